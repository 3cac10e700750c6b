"""One small, readable transformer that takes every shape.

The names below are found when they are first used: `regard --help` and a mistake in a config never wait for torch.
Nothing is imported here, not even from Python's library: until `regard.cli.main` runs, Ctrl-C prints a traceback.
"""

TYPE_CHECKING = False  # as typing says it, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from regard import config, efficient, inputs, train
    from regard.config.version import VERSION as __version__
    from regard.core.kernels import KERNELS
    from regard.core.masks import mask
    from regard.core.tokens import Tokens, line, raster
    from regard.core.watch import looking
    from regard.generate.engine import Engine
    from regard.generate.many import Answers
    from regard.generate.model import Transformer, build
    from regard.generate.opening import load
    from regard.generate.spelling import from_pretrained
    from regard.generate.towers import Towers
    from regard.measure.cost import estimate
    from regard.measure.explain import explain
    from regard.train.exam import evaluate
    from regard.train.run import Run
    from regard.zoo import preset

HOMES = {
    "Answers": "generate.many", "Engine": "generate.engine",
    "KERNELS": "core.kernels", "Run": "train", "Tokens": "core.tokens", "Towers": "generate.towers",
    "Transformer": "generate.model", "build": "generate.model", "config": "", "efficient": "", "estimate": "measure",
    "evaluate": "train.exam", "explain": "measure", "from_pretrained": "generate.spelling", "inputs": "",
    "line": "core.tokens", "load": "generate.opening",
    "looking": "core.watch", "mask": "core.masks", "preset": "zoo", "raster": "core.tokens", "train": "",
}  # fmt: skip
ROOMS = {"config", "zoo"}  # the homes that need no torch

__all__ = [
    "Answers", "Engine", "KERNELS", "Run", "Tokens", "Towers", "Transformer", "build", "config", "efficient",
    "estimate", "evaluate", "explain", "from_pretrained", "inputs", "line", "load", "looking", "mask", "preset",
    "raster", "train", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from regard.config.version import VERSION

        return VERSION
    if name not in HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    globals()[name] = found = undisturbed(name, HOMES[name])
    return found


def undisturbed(name: str, home: str) -> "Any":
    """Import a name without the collector: it would walk over all of torch, three times, and find nothing.

    What has come is old then: to freeze it and to let it go again at once moves it there without a walk.
    """
    import gc
    from importlib import import_module

    collects, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    try:
        if (home or name) not in ROOMS:
            import_module("regard.generate.model")  # kernels, front ends, heads enter themselves in the core's tables
        module = import_module(f"regard.{home or name}")
    finally:
        if collects and not frozen:
            gc.freeze()
            gc.unfreeze()
        if collects:
            gc.enable()
    return getattr(module, name) if home else module


def __dir__() -> list[str]:
    return sorted(__all__)
