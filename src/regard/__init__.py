"""One small, readable transformer that takes every shape.

The names below are found when they are first used: `regard --help` and a mistake in a config never wait for torch.
Nothing is imported here, not even from Python's library: until `regard.cli.main` runs, Ctrl-C prints a traceback.
"""

TYPE_CHECKING = False  # as typing says it, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from regard import attention, config, inputs, lens
    from regard.config.errors import UserError
    from regard.config.version import VERSION as __version__
    from regard.core.hooks import looking
    from regard.core.kernels import KERNELS, register_kernel
    from regard.core.masks import mask
    from regard.core.model import Transformer
    from regard.core.tokens import Tokens, grid_tokens, sequence_tokens
    from regard.engine.engine import Engine
    from regard.engine.text_engine import TextEngine
    from regard.evaluation.evaluator import evaluate
    from regard.inference.dual_encoder_model import DualEncoderModel
    from regard.inference.hf_api import from_pretrained
    from regard.inference.load import load_model as load
    from regard.inference.model import Model
    from regard.inference.model import build_model as build
    from regard.measure.estimate import estimate_model as estimate
    from regard.measure.explain import explain_model as explain
    from regard.report.lens_figures import plot
    from regard.training.api import fit
    from regard.training.api import resume_fit as resume
    from regard.training.loop import train_steps as train
    from regard.training.run import Run
    from regard.zoo.preset import preset

# Where each public name comes from: a module and the name it has there; a package has none.
HOMES = {
    "DualEncoderModel": "inference.dual_encoder_model:DualEncoderModel", "Engine": "engine.engine:Engine",
    "KERNELS": "core.kernels:KERNELS", "Model": "inference.model:Model", "Run": "training.run:Run",
    "TextEngine": "engine.text_engine:TextEngine", "Tokens": "core.tokens:Tokens",
    "Transformer": "core.model:Transformer", "UserError": "config.errors:UserError", "attention": "attention",
    "build": "inference.model:build_model", "config": "config", "estimate": "measure.estimate:estimate_model",
    "evaluate": "evaluation.evaluator:evaluate", "explain": "measure.explain:explain_model", "fit": "training.api:fit",
    "from_pretrained": "inference.hf_api:from_pretrained", "grid_tokens": "core.tokens:grid_tokens",
    "inputs": "inputs", "lens": "lens", "load": "inference.load:load_model", "looking": "core.hooks:looking",
    "mask": "core.masks:mask", "plot": "report.lens_figures:plot", "preset": "zoo.preset:preset",
    "register_kernel": "core.kernels:register_kernel", "resume": "training.api:resume_fit",
    "sequence_tokens": "core.tokens:sequence_tokens", "train": "training.loop:train_steps",
}  # fmt: skip
TORCHLESS = {"config", "config.errors", "zoo.preset"}  # the homes that need no torch

__all__ = [
    "DualEncoderModel", "Engine", "KERNELS", "Model", "Run", "TextEngine", "Tokens", "Transformer", "UserError",
    "attention", "build", "config", "estimate", "evaluate", "explain", "fit", "from_pretrained", "grid_tokens",
    "inputs", "lens", "load", "looking", "mask", "plot", "preset", "register_kernel", "resume", "sequence_tokens",
    "train", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from regard.config.version import VERSION

        return VERSION
    if name not in HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    globals()[name] = found = import_without_gc(*HOMES[name].split(":"))
    return found


def import_without_gc(home: str, name: str = "") -> "Any":
    """Import a name without the collector: it would walk over all of torch, three times, and find nothing.

    What has come is old then: to freeze it and to let it go again at once moves it there without a walk.
    """
    import gc
    from importlib import import_module

    collects, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    try:
        if home not in TORCHLESS:
            import_module("regard.inference.model")  # kernels, front ends, heads enter themselves in the core's tables
        module = import_module(f"regard.{home}")
    finally:
        if collects and not frozen:
            gc.freeze()
            gc.unfreeze()
        if collects:
            gc.enable()
    return getattr(module, name) if name else module


def __dir__() -> list[str]:
    return sorted(__all__)
