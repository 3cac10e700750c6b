"""HFConfig: a Hugging Face config.json, read key by key; a bad value is one sentence that names the key."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard import config
from regard.config.errors import DataError, did_you_mean

MAX_INT = 2**31 - 1

# Their names of an activation and ours; the first of several is the one that we write.
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
# Weights of half precision are read into fp32, which holds each of them exactly.
HF_DTYPES = {"float32": "fp32", "float16": "fp32", "float64": "fp32", "bfloat16": "bf16"}


def hf_word(ours: str, table: Mapping[str, str]) -> str:
    return next((theirs for theirs, mine in table.items() if mine == ours), ours)


@dataclass(frozen=True)
class HFConfig:
    """A table of their settings, and where it stands; null is the same as nothing said."""

    said: Mapping[str, Any]
    path: str = "config.json"

    def get(self, key: str, default: Any = None) -> Any:
        value = self.said.get(key)
        return default if value is None else value

    def default(self, **defaults: Any) -> "HFConfig":
        """The same, with what goes without saying in a family."""
        return HFConfig(defaults | {key: value for key, value in self.said.items() if value is not None}, self.path)

    def error(self, key: str, expected: str) -> DataError:
        value = self.get(key)
        value = value[:40] if isinstance(value, list | str) else value  # a file may hold millions of them
        found = "is missing" if value is None else f"is {json.dumps(value)[:80]}"
        return DataError(f"{self.path}: {key} {found}; {expected}")

    def get_int(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if type(value) is not int or not 1 <= value <= MAX_INT:
            raise self.error(key, "expected a whole number from 1")
        return value

    def get_float(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:  # 1e309 in whole digits is none
            raise self.error(key, "expected a number")
        return float(value)

    def get_bool(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if type(value) is not bool:
            raise self.error(key, "expected true or false")
        return value

    def get_str(self, key: str, table: Mapping[str, str], default: str | None = None) -> str:
        """Our word for theirs."""
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
        """The table under a key; empty if there is none."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, "expected a table")
        return HFConfig(value, f"{self.path}: {key}")

    def require(self, key: str, *allowed: Any) -> None:
        """What we cannot say in another way must be as we say it; the first is what it is unless said."""
        if self.get(key, allowed[0]) not in allowed:
            raise self.error(key, f"models here can only have {json.dumps(allowed[0])}")


# ---------------------------------------------------------------- heads that every family has


def body_without_head(hf: HFConfig) -> config.Head:
    """The body alone, as classes called Model have it."""
    return config.NoHead()


def num_labels(hf: HFConfig) -> int:
    """How many classes their labels name; two unless said."""
    return len(hf.table("id2label").said) or hf.get_int("num_labels", 2)


def labels_to_hf(c: config.Head) -> dict[str, Any]:
    """As many labels as a head has answers."""
    many = getattr(c, "out", None)
    if many is None or not isinstance(c, config.PoolingHead | config.TokenHead):
        return {}
    told = [f"LABEL_{number}" for number in range(many)]
    return {"id2label": dict(enumerate(told)), "label2id": {name: number for number, name in enumerate(told)}}
