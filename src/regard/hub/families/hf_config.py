"""HFConfig: a Hugging Face config.json, read key by key; an error names the key in one sentence."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard import config
from regard.config.errors import DataError, did_you_mean

MAX_INT = 2**31 - 1

# Activations: the name in `transformers` and ours; the first of several is written.
HF_ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
# fp16 weights are loaded into fp32, which holds each of them exactly.
HF_DTYPES = {"float32": "fp32", "float16": "fp32", "float64": "fp32", "bfloat16": "bf16"}


def hf_word(ours: str, table: Mapping[str, str]) -> str:
    return next((theirs for theirs, mine in table.items() if mine == ours), ours)


@dataclass(frozen=True)
class HFConfig:
    """The settings of a config.json, with its path; null is the same as absent."""

    said: Mapping[str, Any]
    path: str = "config.json"

    def get(self, key: str, default: Any = None) -> Any:
        value = self.said.get(key)
        return default if value is None else value

    def default(self, **defaults: Any) -> "HFConfig":
        """The same config with the defaults of a family."""
        return HFConfig(defaults | {key: value for key, value in self.said.items() if value is not None}, self.path)

    def error(self, key: str, expected: str) -> DataError:
        value = self.get(key)
        value = value[:40] if isinstance(value, list | str) else value  # a file may contain millions of elements
        found = "is missing" if value is None else f"is {json.dumps(value)[:80]}"
        return DataError(f"{self.path}: {key} {found}; {expected}")

    def get_int(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if type(value) is not int or not 1 <= value <= MAX_INT:
            raise self.error(key, "expected a whole number from 1")
        return value

    def get_float(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:  # an int like 10**309 has no float
            raise self.error(key, "expected a number")
        return float(value)

    def get_bool(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if type(value) is not bool:
            raise self.error(key, "expected true or false")
        return value

    def get_str(self, key: str, table: Mapping[str, str], default: str | None = None) -> str:
        """Our name for the value, by the table."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in table:
            near = did_you_mean(str(value), table).removeprefix(";").strip()
            raise self.error(key, f"{near} known are {', '.join(table)}".strip())
        return table[value]

    def numbers(self, key: str) -> tuple[float, ...]:
        value = self.get(key)
        if not isinstance(value, list) or not all(type(one) in (int, float) for one in value):
            raise self.error(key, "expected a list of numbers")
        if any(type(one) is int and abs(one) > sys.float_info.max for one in value):
            raise self.error(key, "expected numbers that a float can hold")
        return tuple(float(one) for one in value)

    def table(self, key: str) -> "HFConfig":
        """The object under a key; empty if there is none."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, "expected a table")
        return HFConfig(value, f"{self.path}: {key}")

    def require(self, key: str, *allowed: Any) -> None:
        """Refuse any other value of a setting that is not supported here; the first value is the default."""
        if self.get(key, allowed[0]) not in allowed:
            raise self.error(key, f"models here can only have {json.dumps(allowed[0])}")


# ---------------------------------------------------------------- heads that every family has


def body_without_head(hf: HFConfig) -> config.Head:
    """The body alone, for classes called Model."""
    return config.NoHead()


def num_labels(hf: HFConfig) -> int:
    """The number of labels; two by default."""
    return len(hf.table("id2label").said) or hf.get_int("num_labels", 2)


def labels_to_hf(c: config.Head) -> dict[str, Any]:
    """Generic labels for the outputs of a head."""
    many = getattr(c, "out", None)
    if many is None or not isinstance(c, config.PoolingHead | config.TokenHead):
        return {}
    told = [f"LABEL_{number}" for number in range(many)]
    return {"id2label": dict(enumerate(told)), "label2id": {name: number for number, name in enumerate(told)}}
