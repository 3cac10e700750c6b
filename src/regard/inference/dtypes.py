"""Floating-point dtypes by name: torch's names and common aliases."""

from typing import Any

import torch

from regard.config.errors import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
DTYPE_ALIASES = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float64": "fp64",
    "double": "fp64",
}
WORDS = ("auto", *DTYPES, *DTYPE_ALIASES)


def parse_dtype(dtype: Any, key: str = "dtype") -> torch.dtype | None:
    """The torch dtype of a dtype or name; None for "auto", the stored dtype of the weights."""
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    name = dtype.removeprefix("torch.").lower() if isinstance(dtype, str) else ""
    if name == "auto":
        return None
    if (name := DTYPE_ALIASES.get(name, name)) in DTYPES:
        return DTYPES[name]
    raise ConfigError(f"{key}: no {dtype!r}; there are {', '.join(WORDS)}, and the same of torch")
