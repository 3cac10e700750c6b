"""Replace a module by one of another class with the same parameters, settings, hooks and mode.

The names of the weights stay, and so do references to them, such as ties and optimizers. This is how a live model gets
adapters (`models.lora`) and activation checkpointing (`models.checkpointing`).
"""

from typing import Any

from torch import nn


def shared_module(kind: type, layer: nn.Module) -> Any:
    """A module of another class with the parameters, settings and mode of this one."""
    new: Any = object.__new__(kind)  # skip __init__, which would draw new weights
    vars(new).update(vars(layer), _modules=dict(layer._modules))  # one table of parameters, so packing sees both
    vars(new).pop("_compiled_call_impl", None)  # compiled for the other class
    return new
