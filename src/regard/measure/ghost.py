"""Models without numbers: shapes alone, so that a model of any size is counted and run in a moment.

`outline` has its weights on torch's meta device: enough to count. `ghost` has fake tensors, which pretend to stand on
a real device: under `ghost.mode` it runs forward, chooses its kernels and keeps what autograd would keep.
"""

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import regard.efficient  # kernels, front ends and heads enter themselves in the core's tables
import regard.heads
import regard.inputs  # noqa: F401
from regard import config
from regard.core.model import Transformer


def outline(model: Transformer | config.Transformer) -> Transformer:
    """The model itself, or one of the right shapes and no numbers."""
    if not isinstance(model, config.Transformer):
        return model
    with torch.device("meta"):
        return Transformer(model)


class Ghost:
    """A model of fake tensors, and the mode in which it can be called."""

    def __init__(self, c: config.Transformer, device: str = "cpu") -> None:
        self.mode, self.device, self.model = FakeTensorMode(), torch.device(device), outline(c)
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


def ghost(c: config.Transformer, device: str = "cpu") -> Ghost:
    """A model that can be asked about everything but its numbers."""
    return Ghost(c, device)
