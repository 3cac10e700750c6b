"""SkipInit: builds a model without initialising weights, for the meta device or for weights from a file."""

from typing import Any

from torch.overrides import TorchFunctionMode


class SkipInit(TorchFunctionMode):
    """Context without weight initialisation; on the meta device random functions would import the whole compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)
