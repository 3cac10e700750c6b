"""One small, readable transformer that takes every shape.

The names below are found when they are first used: `regard --help` and a mistake in a config never wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regard import config, efficient, inputs
    from regard.core.kernels import KERNELS
    from regard.core.masks import mask
    from regard.core.tokens import Tokens, line, raster
    from regard.core.watch import looking
    from regard.generate.model import Transformer, build
    from regard.heads import Towers
    from regard.zoo import preset

HOMES = {
    "KERNELS": "core.kernels", "Tokens": "core.tokens", "Towers": "heads", "Transformer": "generate.model",
    "build": "generate.model", "config": "", "efficient": "", "inputs": "", "line": "core.tokens",
    "looking": "core.watch", "mask": "core.masks", "preset": "zoo", "raster": "core.tokens",
}  # fmt: skip
ROOMS = {"config", "zoo"}  # the homes that need no torch

__all__ = [
    "KERNELS", "Tokens", "Towers", "Transformer", "build", "config", "efficient", "inputs", "line", "looking", "mask",
    "preset", "raster",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    home = HOMES[name]
    if (home or name) not in ROOMS:
        import_module("regard.generate.model")  # kernels, front ends and heads enter themselves in the core's tables
    module = import_module(f"regard.{home or name}")
    found = getattr(module, name) if home else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
