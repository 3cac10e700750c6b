"""A module in the place of another: of another class, with the same parameters, settings, hooks and mode.

The names of the weights stay, and so does whatever holds the weights, such as ties and optimizers. It is how a live
model gets adapters (`models.lora`) and forgets activations (`models.checkpointing`).
"""

from typing import Any

from torch import nn


def shared_module(kind: type, layer: nn.Module) -> Any:
    """A module of another class with the parameters, the settings and the mode of this one."""
    new: Any = object.__new__(kind)  # no new weights are drawn
    vars(new).update(vars(layer), _modules=dict(layer._modules))  # one table of parameters, so packing sees both
    vars(new).pop("_compiled_call_impl", None)  # was compiled for the other class
    return new
