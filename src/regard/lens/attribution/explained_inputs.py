"""Differentiable inputs of a model: its token vectors before positions, or its pixels, each with a baseline.

    ids     ──  table of words  ──►  x (1, N, D)  ──►  positions, trunk, head      one input for each token
    image   ──►  x (1, C, H, W)  ──►  patches, positions, trunk, head               one input for each patch
    other   ──  front end  ──►  x (1, N, D)  ──►  positions, trunk, head            one input for each of its vectors

An encoder-decoder has two of them, its prompt and its source. Baselines are values of x that say nothing: zero, the
mean, or the vector of one token; which places are real, positions and segments stay those of the input.
"""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.core.tokens import Tokens
from regard.inputs.cnn import ConvEmbedding, MaskedConvEmbedding
from regard.inputs.image import PatchEmbedding, PixelEmbedding, normalize_image
from regard.inputs.stages import StageEmbedding
from regard.inputs.text import TextEmbedding
from regard.lens.attention_maps import unwrap_model
from regard.lens.prompt import Prompt, token_id

Baseline = str | int | None  # "zero", "mean", "mask", "pad", or a token as a text or an id


class InputVectors:
    """The vectors that a front end gives to its trunk. `place` says of which input each number of x is a part."""

    names = ("zero", "mean")  # the baselines it knows by name

    def __init__(self, model: Any, front: Any, first: Tensor, given: dict[str, Tensor], labels: tuple[str, ...]):
        self.model, self.front, self.first, self.given = model, front, first, given
        self.tokenizer = getattr(model, "output_tokenizer", None)
        self.tokens = self.embed()
        self.x = self.tokens.x.detach()
        self.count, self.grid = self.tokens.count, self.tokens.grid
        self.place = torch.arange(self.count, device=self.x.device)[None, :, None]
        self.labels = labels if len(labels) == self.count else tuple(map(str, range(self.count)))
        if len(self.x) != 1:
            raise ConfigError(f"prompt: it has {len(self.x)} rows; one is explained at a time, give them one by one")

    def embed(self) -> Tokens:
        """What the front end makes of the input, in the precision of a forward."""
        kind = self.model.autocast()
        with torch.autocast(self.first.device.type, kind, enabled=kind is not None):
            tokens: Tokens = self.front(self.first, **self.given)
        return tokens

    def pack(self, x: Tensor) -> Tokens | Tensor:
        """What forward takes for these rows of x."""
        return repeat_layout(self.tokens, len(x)).with_vectors(x)

    def baseline(self, name: Baseline) -> Tensor:
        """A value of x that says nothing; None is what stands for a thing that is hidden."""
        name = self.hidden if name is None else name
        if name == "zero":
            return torch.zeros_like(self.x)
        if name == "mean":
            return self.mean().expand_as(self.x)
        raise ConfigError(f"baseline: these inputs are no tokens of a vocabulary; {name!r} must be zero or mean")

    @property
    def hidden(self) -> Baseline:
        """The baseline of occlusion."""
        return "mean"

    def mean(self) -> Tensor:
        """The mean of this input's own vectors, padding left out."""
        real = self.tokens.is_real
        return (self.x if real is None else self.x[real][None]).mean(1, keepdim=True)

    def sum_inputs(self, values: Tensor) -> Tensor:  # like rows of x -> (rows, count)
        """One number for each input: the sum over what is a part of it."""
        out = torch.zeros(len(values), self.count, dtype=torch.float64, device=values.device)
        return out.index_add(1, self.place.expand_as(values[:1]).flatten(), values.detach().flatten(1).double())

    def occlude(self, inputs: Tensor, baseline: Tensor) -> Tensor:  # (rows,) -> rows of x
        """One row of x for each of these inputs, with that input alone replaced by its baseline."""
        chosen = self.place == inputs.view(-1, *[1] * (self.x.dim() - 1))
        return torch.where(chosen, baseline, self.x)

    def from_tokens(self, shares: Tensor) -> Tensor:  # (…, tokens of the trunk) -> (…, count)
        """Numbers of the trunk's tokens, for the inputs: learned tokens before an image are none of it."""
        return shares[..., self.tokens.count - self.count :]


class WordVectors(InputVectors):
    """The vectors of words, each by its id."""

    def __init__(self, model: Any, front: Any, first: Tensor, given: dict[str, Tensor], labels: tuple[str, ...]):
        super().__init__(model, front, first, given, labels)
        if isinstance(self.front, PixelEmbedding) and first.dim() > 2:
            self.labels = ("start", *self.labels[:-1])  # it reads every pixel but the last

    def baseline(self, name: Baseline) -> Tensor:
        """The front end once more, with one vector in the place of every word: segments stay, and so does padding."""
        table = self.front.tokens
        word = self.word(self.hidden if name is None else name)
        hook = table.register_forward_hook(lambda module, given, out: word.to(out.dtype).expand_as(out))
        try:
            return self.embed().x.detach()
        finally:
            hook.remove()

    @property
    def hidden(self) -> Baseline:
        """The mask token where there is one."""
        return "mask" if "mask" in getattr(self.tokenizer, "special_ids", {}) else "mean"

    def word(self, name: Baseline) -> Tensor:  # (D,)
        weight: Tensor = self.front.tokens.weight.detach()
        if name == "zero":
            return torch.zeros_like(weight[0])
        return weight.mean(0) if name == "mean" else weight[self.word_id(name)]

    def word_id(self, name: Baseline) -> int:
        if name in ("mask", "pad"):
            known = getattr(self.tokenizer, "special_ids", {})
            own = known.get(str(name), self.front.c.pad_id if name == "pad" else None)
            if own is None:
                raise ConfigError(f"baseline: this model has no {name} token; give 'zero', 'mean' or a token")
            return int(own)
        if isinstance(name, int) and not 0 <= name < (vocab := len(self.front.tokens.weight)):
            raise ConfigError(f"baseline: id {name} is outside the vocabulary of {vocab}")
        return name if isinstance(name, int) else token_id(self.model, str(name), self.tokenizer)


class Pixels(InputVectors):
    """The pixels of an image; an input is a block of them, one for each token of the trunk's grid."""

    def __init__(self, model: Any, front: Any, first: Tensor, given: dict[str, Tensor], labels: tuple[str, ...]):
        super().__init__(model, front, first, given, labels)
        c = self.front.c.patches if isinstance(self.front, StageEmbedding) else self.front.c
        self.x = normalize_image(c, first).to(self.tokens.x.dtype)
        rows, columns = self.grid = self.tokens.grid or (c.side, c.side)
        self.count = rows * columns
        down, across = (torch.arange(size, device=first.device) for size in first.shape[-2:])
        self.place = (down * rows // len(down))[:, None] * columns + across * columns // len(across)
        self.place = self.place[None, None]
        self.labels = tuple(f"{row},{column}" for row in range(rows) for column in range(columns))

    def pack(self, x: Tensor) -> Tokens | Tensor:
        return x

    def mean(self) -> Tensor:
        """The mean pixel of this image."""
        return self.x.mean((2, 3), keepdim=True)


def read_inputs(model: Any, prompt: Prompt) -> list[InputVectors]:
    """The inputs of a prompt: the trunk's own, and after them the encoder's, if there is one."""
    model, given = unwrap_model(model), dict(prompt.given)
    if not hasattr(model, "embed_inputs"):
        raise ConfigError("model: towers answer with a likeness and not with words or classes; explain one of them, "
                          "model.towers[0]")  # fmt: skip
    source, real = given.pop("source", None), given.pop("source_real", None)
    found = [input_kind(model.embed)(model, model.embed, prompt.first, given, prompt.labels)]
    if source is not None:
        front = model.embed if model.encoder_embed is None else model.encoder_embed
        beside = {} if real is None else {"real": real}
        found.append(input_kind(front)(model, front, source, beside, prompt.source_labels))
        found[1].tokenizer = getattr(model, "tokenizer", None)
    return found


def input_kind(front: Any) -> type[InputVectors]:
    """How a front end is differentiated; masked convolutions mix their words before the trunk has them."""
    if isinstance(front, PatchEmbedding | StageEmbedding | ConvEmbedding):
        return Pixels
    words = isinstance(front, TextEmbedding) and not isinstance(front, MaskedConvEmbedding)
    return WordVectors if words else InputVectors


def repeat_layout(tokens: Tokens, rows: int) -> Tokens:
    """The layout of one row so many times, for vectors of one's own."""
    tables = {each.name: getattr(tokens, each.name) for each in fields(tokens) if each.name != "x"}
    many: dict[str, Any] = {
        name: x.repeat_interleave(rows, 0) for name, x in tables.items() if isinstance(x, Tensor) and len(x) == 1
    }
    return replace(tokens, **many)
