"""Weights without numbers need no beginning: a model is built in a moment, to be counted or to be filled."""

from typing import Any

from torch.overrides import TorchFunctionMode


class Undrawn(TorchFunctionMode):
    """Nothing is drawn inside; on the meta device drawing would import the whole compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)
