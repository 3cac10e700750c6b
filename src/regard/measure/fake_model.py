"""Fake models: tensors without data, so that a model of any size can be counted and run quickly.

`meta_model` has its weights on torch's meta device, which is enough for counting. `FakeModel` has FakeTensors, which
claim a real device: under its `mode` it runs forward, chooses its kernels, and autograd saves the same tensors.

Also here: context lengths (by the positions, or by the tokens of an image), and parameter counts, each parameter once,
under one of seven names.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import regard.attention
import regard.inputs
import regard.models  # noqa: F401
from regard import config
from regard.core.layers import product_dtype
from regard.core.model import Transformer
from regard.inputs.processors import PROCESSORS, build_processor
from regard.models.dual_encoder import DualEncoder
from regard.models.meta_init import SkipInit

ModelConfig = config.Transformer | config.DualEncoder
AnyModel = Transformer | DualEncoder
# front ends with ids or images as input
PLAIN = (
    config.TextEmbedding,
    config.PatchEmbedding,
    config.StageEmbedding,
    config.PixelEmbedding,
    config.ConvEmbedding,
)


def meta_model(model: AnyModel | ModelConfig) -> AnyModel:
    """The model itself, or a model of the config on the meta device."""
    if isinstance(model, nn.Module):
        return model
    with torch.device("meta"), SkipInit():
        return DualEncoder(model) if isinstance(model, config.DualEncoder) else Transformer(model)


class FakeModel:
    """A model of FakeTensors, with the mode in which it can be called."""

    def __init__(self, c: ModelConfig, device: str = "cpu") -> None:
        self.model: Any = meta_model(c)
        recurrent = any(isinstance(part, nn.RNNBase) for part in self.model.modules())  # not supported by GPU kernels
        self.mode, self.device = FakeTensorMode(), torch.device("cpu" if recurrent else device)
        known: dict[int, nn.Parameter] = {}  # tied weights stay tied
        for module in self.model.modules():
            for name, weight in module.named_parameters(recurse=False):
                if id(weight) not in known:
                    known[id(weight)] = nn.Parameter(self.empty(*weight.shape, dtype=weight.dtype))
                setattr(module, name, known[id(weight)])  # setattr also updates the weight list of recurrent layers
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = self.empty(*buffer.shape, dtype=buffer.dtype)
            if isinstance(module, Transformer):
                module.products = torch.bfloat16  # on any machine; `precision_on_device` handles this one's "mixed"

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        with self.mode:
            return torch.empty(shape, dtype=dtype, device=self.device)

    def ids(self, batch: int, *counts: int) -> Tensor:
        return self.empty(batch, *counts, dtype=torch.long)

    def input_names(self, front: Any, batch: int, context: int) -> dict[str, Tensor]:
        """The fake inputs of a front end, by name: ids, images, or those of its processor for a blank example."""
        if isinstance(front, config.StageEmbedding):
            front = front.patches
        if isinstance(front, config.MultimodalEmbedding):
            seen = self.input_names(front.prefix, batch, context)
            return {"ids": self.ids(batch, context), "seen": seen.pop("ids"),
                    **{f"seen_{name}": table for name, table in seen.items()}}  # fmt: skip
        if isinstance(front, config.PatchEmbedding | config.ConvEmbedding):
            return {"ids": self.empty(batch, front.channels, front.image_size, front.image_size)}
        if isinstance(front, config.MaskedConvEmbedding):
            return {"ids": self.ids(batch, front.grid[0], front.grid[1])}
        if isinstance(front, config.TextEmbedding | config.PixelEmbedding):
            return {"ids": self.ids(batch, front.count if isinstance(front, config.PixelEmbedding) else context)}
        return {name: self.empty(batch, *table.shape[1:], dtype=table.dtype)
                for name, table in blank_inputs(front, context).items()}  # fmt: skip

    def run(self, batch: int, context: int) -> Any:
        """Run one forward pass; an encoder reads as many tokens as the decoder."""
        c = self.model.c
        if isinstance(c, config.DualEncoder):
            return self.model(*(self.input_names(tower.embed, batch, context)["ids"] for tower in c.towers))
        given = self.input_names(c.embed, batch, context)
        if c.encoder is not None:
            given["source"] = self.input_names(c.encoder.embed or c.embed, batch, context)["ids"]
        return self.model(given.pop("ids"), **given)


def precision_on_device(c: ModelConfig, device: str) -> ModelConfig:
    """The config as this machine computes it: "mixed" is fp32 on a CPU without bf16 products."""
    if c.precision != "mixed" or product_dtype(device) != torch.float32:
        return c
    if isinstance(c, config.DualEncoder):
        return replace(c, towers=tuple(replace(each, precision="fp32") for each in c.towers))
    return replace(c, precision="fp32")


def blank_inputs(front: Any, context: int) -> dict[str, Tensor]:
    """The inputs of a front end for an example without content, of this length where it can vary."""
    own = build_processor(front)
    if not hasattr(own, "blank"):
        raise config.ConfigError(f"model.embed.kind: the cost of {front.kind!r} cannot be predicted; give its "
                                 "processor a `blank` example")  # fmt: skip
    return own.collate([own.blank(context)], None)


def can_fake(c: ModelConfig) -> bool:
    """Whether a model can run on FakeTensors: whether the inputs of all its front ends are known."""
    models = c.towers if isinstance(c, config.DualEncoder) else (c,)
    fronts: list[Any] = [
        each.embed.prefix if isinstance(each.embed, config.MultimodalEmbedding) else each.embed for each in models
    ]
    fronts += [each.encoder.embed for each in models if each.encoder is not None]
    return all(
        front is None
        or isinstance(front, PLAIN)
        or (front.kind in PROCESSORS and hasattr(build_processor(front), "blank"))
        for front in fronts
    )


def build_fake_model(c: ModelConfig, device: str = "cpu") -> FakeModel:
    return FakeModel(c, device)


# front ends with a fixed number of tokens
IMAGE_EMBEDDINGS = (config.PatchEmbedding, config.StageEmbedding, config.PixelEmbedding, config.ConvEmbedding)
USUAL = 512  # tokens, for a model without a maximum length


def max_tokens(c: ModelConfig) -> int:
    """The maximum length of a model: its learned positions, or the training length of rotary ones; the tokens of an
    image."""
    if isinstance(c, config.DualEncoder):
        read = [tower for tower in c.towers if isinstance(tower.embed, config.TextEmbedding)]
        return min(max_tokens(tower) for tower in read or c.towers)
    if not isinstance(c.embed, config.TextEmbedding):
        return getattr(c.embed, "count", None) or USUAL
    return min(known_length(trunk.position) or USUAL for trunk in text_trunks(c))


def position_limit(c: ModelConfig) -> int | None:
    """The number of positions that a model has; None where they are unlimited."""
    if isinstance(c, config.DualEncoder):
        found = [position_limit(tower) for tower in c.towers if isinstance(tower.embed, config.TextEmbedding)]
    else:
        found = [
            known_length(trunk.position)
            for trunk in text_trunks(c)
            if not isinstance(trunk.position, config.RotaryPosition)
        ]
    return min((length for length in found if length is not None), default=None)


def trunk_configs(c: config.Transformer) -> list[config.Trunk | config.RecurrentStack]:
    """The trunk, and the encoder's if there is one."""
    return [c.trunk] if c.encoder is None else [c.trunk, c.encoder.trunk]


def text_trunks(c: config.Transformer) -> list[config.Trunk | config.RecurrentStack]:
    """The trunks that read text: an encoder of other inputs has its own length."""
    own = None if c.encoder is None else c.encoder.embed
    return trunk_configs(c) if own is None or isinstance(own, config.TextEmbedding) else [c.trunk]


def known_length(position: config.Position) -> int | None:
    if isinstance(position, config.RotaryPosition):
        return position.original_length
    length = getattr(position, "length", None)
    return length if isinstance(length, int) else None


def count_unit(c: ModelConfig) -> str:
    """The unit of FLOPs: a token of text, an image, or a pair for a dual encoder."""
    if isinstance(c, config.DualEncoder):
        return "pair"
    return (
        "image"
        if isinstance(c.embed, config.PatchEmbedding | config.StageEmbedding | config.ConvEmbedding)
        else "token"
    )


def check_context(c: ModelConfig, context: int | None) -> int:
    """The given length, if the model can read it; by default its maximum."""
    most = max_tokens(c)
    if context is None:
        return most
    if isinstance(c, config.Transformer) and isinstance(c.embed, IMAGE_EMBEDDINGS) and context != most:
        raise config.ConfigError(f"context: {context}, but an image is always {most} tokens here; leave it out")
    known = position_limit(c)
    if known is not None and context > known:
        raise config.ConfigError(f"context: {context} is more than the {known} positions of the model; "
                                 "choose fewer, or set a longer trunk.position.length")  # fmt: skip
    return context


PARTS = ("embedding", "positions", "attention", "cross-attention", "feed-forward", "norms", "head")
NAMED = {"positions": "positions", "attn": "attention", "cross": "cross-attention", "mlp": "feed-forward"}


def count_parameters(model: AnyModel | ModelConfig) -> dict[str, int]:  #: S143
    """Parameters by part; an embedding tied to the head counts as embedding."""
    found = dict.fromkeys(PARTS, 0)
    for name, weight in meta_model(model).named_parameters():  # tied weights appear once
        found[parameter_group(name)] += weight.numel()
    return found


def parameter_group(name: str) -> str:
    """The part that a parameter belongs to, by its name: "trunk.blocks.3.attn_norm.weight" is of the norms.

    Projections of patches and of merged tokens belong to the embedding, the scale between towers to the head.
    """
    steps = name.split(".")
    if any(step == "norm" or step.endswith("_norm") for step in steps):
        return "norms"
    for step in steps:
        if step in NAMED:
            return NAMED[step]
    return "head" if "head" in steps or steps == ["scale"] else "embedding"
