"""Models without numbers: shapes alone, so that a model of any size is counted and run in a moment.

`outline` has its weights on torch's meta device: enough to count. `ghost` has fake tensors, which pretend to stand on
a real device: under `ghost.mode` it runs forward, chooses its kernels and keeps what autograd would keep.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

import regard.efficient  # kernels, front ends and heads enter themselves in the core's tables
import regard.inputs  # noqa: F401
from regard import config
from regard.core.model import Transformer
from regard.heads import Towers

Config = config.Transformer | config.Towers
Model = Transformer | Towers


def outline(model: Model | Config) -> Model:
    """The model itself, or one of the right shapes and no numbers."""
    if isinstance(model, nn.Module):
        return model
    with torch.device("meta"), Undrawn():
        return Towers(model) if isinstance(model, config.Towers) else Transformer(model)


class Undrawn(TorchFunctionMode):
    """Weights without numbers need no beginning; drawing it on the meta device would import the whole compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)


class Ghost:
    """A model of fake tensors, and the mode in which it can be called."""

    def __init__(self, c: Config, device: str = "cpu") -> None:
        self.mode, self.device = FakeTensorMode(), torch.device(device)
        self.model: Any = outline(c)
        known: dict[int, nn.Parameter] = {}  # tied weights stay one
        for module in self.model.modules():
            for name, weight in module.named_parameters(recurse=False):
                if id(weight) not in known:
                    known[id(weight)] = nn.Parameter(self.empty(*weight.shape, dtype=weight.dtype))
                module._parameters[name] = known[id(weight)]

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        with self.mode:
            return torch.empty(shape, dtype=dtype, device=self.device)

    def ids(self, batch: int, count: int) -> Tensor:
        return self.empty(batch, count, dtype=torch.long)

    def reads(self, front: config.Front, batch: int, context: int) -> Tensor:
        """What a front end is given: images where it reads images, else ids."""
        if isinstance(front, config.Stages):
            front = front.patches
        if isinstance(front, config.Patches):
            return self.empty(batch, front.channels, front.image, front.image)
        return self.ids(batch, front.count if isinstance(front, config.Pixels) else context)

    def run(self, batch: int, context: int) -> Any:
        """One forward pass; an encoder reads as many tokens as the decoder."""
        c = self.model.c
        if isinstance(c, config.Towers):
            return self.model(*(self.reads(tower.embed, batch, context) for tower in c.towers))
        x = self.reads(c.embed, batch, context)
        if c.encoder is None:
            return self.model(x)
        return self.model(x, source=self.reads(c.encoder.embed or c.embed, batch, context))


def ghost(c: Config, device: str = "cpu") -> Ghost:
    """A model that can be asked about everything but its numbers."""
    return Ghost(c, device)
