"""The `transformers` API: from_pretrained and save_pretrained, with their usual keywords.

    model = regard.Model.from_pretrained("gpt2", torch_dtype="bfloat16", device_map="cuda")
    model.save_pretrained("mine")

They are `load` and `save`. A keyword is honoured, or refused with the reason: none is ignored.
"""

from pathlib import Path
from typing import Any, Self

import torch

from regard.config.errors import ConfigError, DataError, did_you_mean
from regard.inference.dtypes import parse_dtype
from regard.zoo.packaged import packaged_model

# Keywords with the values that change nothing here, and why no other is accepted.
SETTLED: dict[str, tuple[tuple[Any, ...], str]] = {
    "trust_remote_code": ((False, None), "code that comes with weights is never run here; what it says must be said as "
                          "a config"),
    "use_safetensors": ((True, None), "other files may run code when they are opened; convert them first"),
    "low_cpu_mem_usage": ((True, None), "weights always go straight to their place"),
    "safe_serialization": ((True, None), "weights are written as safetensors and as nothing else"),
    "push_to_hub": ((False, None), "nothing is sent anywhere; `hf upload` sends a folder"),
    "token": ((True, None), "`hf auth login` keeps one, or HF_TOKEN says it; in a program anyone could read it"),
}  # fmt: skip
READ = ("dtype", "torch_dtype", "device_map", "revision", "token", "local_files_only", "trust_remote_code",
        "use_safetensors", "low_cpu_mem_usage")  # fmt: skip
WRITTEN = ("safe_serialization", "push_to_hub")


class PretrainedMixin:
    """The methods from_pretrained and save_pretrained, as in `transformers`."""

    @classmethod
    def from_pretrained(cls, name: str | Path, **given: Any) -> Self:
        """Load a model of this class, as `regard.load` does, with the keywords of `transformers`."""
        model = from_pretrained(name, **given)
        if not isinstance(model, cls):
            found = type(model).__name__
            raise DataError(f"{name}: holds {found} and not {cls.__name__}; use regard.{found}.from_pretrained, or "
                            "regard.load, which opens both")  # fmt: skip
        return model

    def save_pretrained(self, path: str | Path, **given: Any) -> None:
        """Save the model as a folder; the same as `save`."""
        check_keywords(given, WRITTEN, "save_pretrained")
        self.save(path)  # type: ignore[attr-defined]


def from_pretrained(name: str | Path, **given: Any) -> Any:
    """Load a model with the keywords of `transformers`: dtype or torch_dtype, device_map, revision, ...

    Without a device_map the model stays on the CPU, as in `transformers`; "gpt2" is a hub id unless it is a local
    folder.
    """
    from regard.inference.load import load_model

    check_keywords(given, READ, "from_pretrained")
    if "dtype" in given and "torch_dtype" in given:
        raise ConfigError("torch_dtype: dtype is given as well; keep one of the two")
    key = "torch_dtype" if "torch_dtype" in given else "dtype"
    where = resolve_name(name, given.get("revision"), given.get("local_files_only"))
    kind = parse_dtype("fp32" if given.get(key) is None else given[key], key)
    return load_model(where, device=parse_device_map(given.get("device_map")), dtype=kind or "auto")


def resolve_name(name: str | Path, revision: str | None, local: bool | None) -> str | Path:
    """The name for `load`: a folder, a packaged model, or a hub id with its revision."""
    if Path(name).exists() or packaged_model(name) is not None:
        if revision is not None:
            raise ConfigError(f"revision: {name} is a folder here, which has none; leave it out")
        return name
    if local:
        raise ConfigError(f"local_files_only: {name} is no folder here; with HF_HUB_OFFLINE=1 in the environment "
                          "models come from the cache alone")  # fmt: skip
    text = str(name)
    text = f"hf:{text}" if "/" not in text and not text.startswith("hf:") else text
    return text if revision is None else f"{text.partition('@')[0]}@{revision}"


def check_keywords(given: dict[str, Any], known: tuple[str, ...], verb: str) -> None:
    """Refuse unknown keywords, and values that are not supported."""
    for word, value in given.items():
        if word not in known:
            raise ConfigError(f"{verb}: no keyword {word!r}{did_you_mean(word, known)} there are {', '.join(known)}")
        if word in SETTLED and not any(value is one for one in SETTLED[word][0]):
            said = word if word == "token" else f"{word}={value!r}"  # a token is a secret, and is not repeated
            raise ConfigError(f"{verb}: {said} is refused: {SETTLED[word][1]}")


def parse_device_map(device_map: Any) -> str:
    """The one device of a device_map: a model is not split over several devices here."""
    if isinstance(device_map, dict):
        places = set(device_map.values())
        device_map = places.pop() if set(device_map) == {""} else device_map
    if device_map is None:
        return "cpu"
    if isinstance(device_map, int) and not isinstance(device_map, bool):
        return f"cuda:{device_map}"
    if isinstance(device_map, str | torch.device):
        return str(device_map)
    raise ConfigError(
        f"device_map: {device_map!r}; a model stays whole here, so name one device: auto, cpu, cuda or cuda:1"
    )
