"""Models without numbers: shapes alone, so that a model of any size is counted and run in a moment.

`outline` has its weights on torch's meta device: enough to count. `ghost` has fake tensors, which pretend to stand on
a real device: under `ghost.mode` it runs forward, chooses its kernels and keeps what autograd would keep.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import regard.efficient  # kernels, front ends and heads enter themselves in the core's tables
import regard.inputs
import regard.recurrent  # noqa: F401
from regard import config
from regard.core.layers import product_dtype
from regard.core.model import Transformer
from regard.heads import Towers
from regard.inputs.senses import SENSES, sense
from regard.undrawn import Undrawn

Config = config.Transformer | config.Towers
Model = Transformer | Towers
# front ends that are given ids or images
PLAIN = (config.Embed, config.Patches, config.Stages, config.Pixels, config.Convolutions)


def outline(model: Model | Config) -> Model:
    """The model itself, or one of the right shapes and no numbers."""
    if isinstance(model, nn.Module):
        return model
    with torch.device("meta"), Undrawn():
        return Towers(model) if isinstance(model, config.Towers) else Transformer(model)


class Ghost:
    """A model of fake tensors, and the mode in which it can be called."""

    def __init__(self, c: Config, device: str = "cpu") -> None:
        self.model: Any = outline(c)
        recurrent = any(isinstance(part, nn.RNNBase) for part in self.model.modules())  # the GPU's have no ghosts
        self.mode, self.device = FakeTensorMode(), torch.device("cpu" if recurrent else device)
        known: dict[int, nn.Parameter] = {}  # tied weights stay one
        for module in self.model.modules():
            for name, weight in module.named_parameters(recurse=False):
                if id(weight) not in known:
                    known[id(weight)] = nn.Parameter(self.empty(*weight.shape, dtype=weight.dtype))
                setattr(module, name, known[id(weight)])  # a recurrent layer keeps a list of its weights besides
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = self.empty(*buffer.shape, dtype=buffer.dtype)
            if isinstance(module, Transformer):
                module.products = torch.bfloat16  # on any machine; `precision_here` asks what this one makes of "mixed"

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        with self.mode:
            return torch.empty(shape, dtype=dtype, device=self.device)

    def ids(self, batch: int, *counts: int) -> Tensor:
        return self.empty(batch, *counts, dtype=torch.long)

    def reads(self, front: Any, batch: int, context: int) -> dict[str, Tensor]:
        """What a front end is given, by name: ids, images, or whatever its sense makes of nothing at all."""
        if isinstance(front, config.Stages):
            front = front.patches
        if isinstance(front, config.Mixed):
            seen = self.reads(front.seen, batch, context)
            return {"ids": self.ids(batch, context), "seen": seen.pop("ids"),
                    **{f"seen_{name}": table for name, table in seen.items()}}  # fmt: skip
        if isinstance(front, config.Patches | config.Convolutions):
            return {"ids": self.empty(batch, front.channels, front.image, front.image)}
        if isinstance(front, config.MaskedPixels):
            return {"ids": self.ids(batch, front.grid[0], front.grid[1])}
        if isinstance(front, config.Embed | config.Pixels):
            return {"ids": self.ids(batch, front.count if isinstance(front, config.Pixels) else context)}
        return {name: self.empty(batch, *table.shape[1:], dtype=table.dtype)
                for name, table in blank(front, context).items()}  # fmt: skip

    def run(self, batch: int, context: int) -> Any:
        """One forward pass; an encoder reads as many tokens as the decoder."""
        c = self.model.c
        if isinstance(c, config.Towers):
            return self.model(*(self.reads(tower.embed, batch, context)["ids"] for tower in c.towers))
        given = self.reads(c.embed, batch, context)
        if c.encoder is not None:
            given["source"] = self.reads(c.encoder.embed or c.embed, batch, context)["ids"]
        return self.model(given.pop("ids"), **given)


def precision_here(c: Config, device: str) -> Config:
    """The config as a device of this machine computes it: "mixed" is fp32 on a CPU without bf16 products."""
    if c.precision != "mixed" or product_dtype(device) != torch.float32:
        return c
    if isinstance(c, config.Towers):
        return replace(c, towers=tuple(replace(each, precision="fp32") for each in c.towers))
    return replace(c, precision="fp32")


def blank(front: Any, context: int) -> dict[str, Tensor]:
    """What the sense of a front end makes of one example without content; so many tokens, where it has a choice."""
    own = sense(front)
    if not hasattr(own, "blank"):
        raise config.ConfigError(f"model.embed.kind: what {front.kind!r} costs cannot be told before it runs; give its "
                                 "sense a `blank` example")  # fmt: skip
    return own.batch([own.blank(context)], None)


def tellable(c: Config) -> bool:
    """Whether a model can be run as a ghost: whether all of its front ends say what they are given."""
    models = c.towers if isinstance(c, config.Towers) else (c,)
    fronts: list[Any] = [each.embed.seen if isinstance(each.embed, config.Mixed) else each.embed for each in models]
    fronts += [each.encoder.embed for each in models if each.encoder is not None]
    return all(front is None or isinstance(front, PLAIN) or (front.kind in SENSES and hasattr(sense(front), "blank"))
               for front in fronts)  # fmt: skip


def ghost(c: Config, device: str = "cpu") -> Ghost:
    """A model that can be asked about everything but its numbers."""
    return Ghost(c, device)
