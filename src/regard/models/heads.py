"""What is asked of a trunk's vectors: logits for every token, one vector for a sequence; and models compared by it."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.layers import ACTIVATIONS, Fused, Norm, working
from regard.core.model import HEADS, Transformer
from regard.core.tokens import Tokens
from regard.core.watch import Looker
from regard.inputs.text import Embed

SHAPES = ACTIVATIONS | {"tanh": torch.tanh}


class Hidden(NamedTuple):
    """Logits before they are made: x W' + b. Whoever holds them may make a few rows at a time."""

    x: Tensor  # (B, N, D)
    weight: Tensor  # (V, D)
    bias: Tensor | None  # (V,)


class Vocabulary(Fused):
    """Vectors to logits over the vocabulary, with the embedding's own table when tied."""

    def __init__(self, c: config.Vocabulary, trunk: config.Trunk, embed: Embed) -> None:
        vocab, width = embed.tokens.weight.shape if c.tied or c.transform else (embed.c.vocab, trunk.dim)
        vocab = c.size or vocab
        super().__init__(width, {"head": vocab}, ("head",) if c.bias else ())
        self.scale, self.speaks = c.scale, True  # silent inside `hidden`: the answer is a Hidden
        self.dense = nn.Linear(trunk.dim, width) if c.transform else None
        self.norm = Norm(trunk.norm, width) if c.transform else None
        self.activation = c.activation or trunk.mlp.activation
        if c.tied and self.dense is None and width != trunk.dim:
            raise ValueError(f"head.tied: the embedding is {width} wide and the trunk {trunk.dim}; set head.transform")
        if c.tied:
            self.weight = embed.tokens.weight

    def forward(self, tokens: Tokens) -> Tensor | Hidden:  # type: ignore[override]
        x = tokens.x
        if self.dense is not None and self.norm is not None:
            x = self.norm(SHAPES[self.activation](self.dense(x)))
        x = x if self.scale == 1 else x * self.scale
        if self.speaks:
            return super().forward(x)  #: S047
        kind, bias = working(x), self.full_bias()  # cast here, where autocast is still on
        return Hidden(x.to(kind), self.weight.to(kind), None if bias is None else bias.to(kind))


@contextmanager
def hidden(model: nn.Module) -> Iterator[None]:
    """Inside, heads over a vocabulary answer with a Hidden: a vocabulary may be too large for all logits at once."""
    heads = [part for part in model.modules() if isinstance(part, Vocabulary)]
    if not heads:
        raise ValueError("head.kind: only 'vocabulary' and 'both' make logits over words that can be held back")
    for head in heads:
        head.speaks = False
    try:
        yield
    finally:
        for head in heads:
            head.speaks = True


Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # of vectors, a weight and a bias


def last(model: Transformer, ids: Tensor, product: Product = F.linear, /, **given: Any) -> Tensor:  # (B, V)
    """The logits after the last token, to be written into: over a large vocabulary those of a whole prompt cost as much
    as the model."""
    with hidden(model.head) if isinstance(model.head, Vocabulary) and not model.lookers else nullcontext():
        said: Any = model(ids, **given)
    if isinstance(said, Hidden):
        return product(said.x[:, -1], said.weight, said.bias)
    logits: Tensor = said[:, -1].clone()
    return logits


class Both(nn.Module):
    """Logits for every token, and a vector for the whole: a pair."""

    def __init__(self, c: config.Both, trunk: config.Trunk, embed: Embed) -> None:
        super().__init__()
        self.vocabulary, self.pooled = (HEADS[each.kind](each, trunk, embed) for each in (c.vocabulary, c.pooled))

    def forward(self, tokens: Tokens) -> tuple[Tensor | Hidden, Tensor]:
        return self.vocabulary(tokens), self.pooled(tokens)


class Each(nn.Module):
    """The same small map for every token: one number for each class of a tag, or two for an answer's ends."""

    def __init__(self, c: config.Each, trunk: config.Trunk, embed: Embed) -> None:
        super().__init__()
        self.dense = nn.Linear(trunk.dim, trunk.dim) if c.dense else None
        self.out, self.activation = nn.Linear(trunk.dim, c.out, bias=c.bias), c.activation

    def forward(self, tokens: Tokens) -> Tensor:  # (B, N, D) -> (B, N, out)
        x = tokens.x if self.dense is None else SHAPES[self.activation](self.dense(tokens.x))
        return self.out(x)  # type: ignore[no-any-return]  #: S164


class Bare(nn.Module):
    """No head: the trunk's own vectors."""

    def forward(self, tokens: Tokens) -> Tensor:
        return tokens.x


class Pooled(nn.Module):
    """One vector for the sequence: the first token's, the mean, the last real one's, or the end-of-text token's."""

    def __init__(self, c: config.Pooled, trunk: config.Trunk, embed: Embed) -> None:
        super().__init__()
        self.c = c
        self.dense = nn.Linear(trunk.dim, trunk.dim) if c.dense else None
        self.out = nn.Linear(trunk.dim, c.out, bias=c.bias) if c.out else None
        self.others = nn.ModuleList(nn.Linear(trunk.dim, c.out or 0, bias=c.bias) for _ in range(1, c.voices))

    def forward(self, tokens: Tokens) -> Tensor:
        x = self.pick(tokens)
        x = x if self.dense is None else SHAPES[self.c.activation](self.dense(x))
        said = x if self.out is None else self.out(x)
        if not self.others:
            return said
        more = [each(self.pick(tokens, after)) for after, each in enumerate(self.others, 1)]
        return torch.stack([said, *more]).mean(0)

    def pick(self, tokens: Tokens, after: int = 0) -> Tensor:  # (B, D)
        """The vector that stands for the sequence, or one that comes `after` the first."""
        x, real = tokens.x, tokens.real
        if self.c.place == "mean":
            keep = x.new_ones(x.shape[:2]) if real is None else real.to(x.dtype)
            return (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)
        at = torch.zeros_like(tokens.order[:, 0])  #: S054
        if self.c.place == "end":
            if tokens.end is None:
                raise ValueError("head.place 'end': these tokens do not say where the text ends (Tokens.end)")
            at = tokens.end
        elif self.c.place == "last":
            index = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
            at = (index if real is None else index * real).amax(-1)
        elif real is not None:
            at = real.int().argmax(-1)  # the first real token, after padding on the left
        return x.take_along_dim((at + after)[:, None, None], 1)[:, 0]


HEADS.update(vocabulary=Vocabulary, pooled=Pooled, both=Both, each=Each, none=lambda c, trunk, embed: Bare())


Given = Tensor | Tokens | dict[str, Any]  # what a tower reads: ids or images, or all that its forward takes by name


class Towers(nn.Module):
    """Several models whose pooled vectors are compared: cosines times a trained scale."""

    def __init__(self, c: config.Towers) -> None:
        super().__init__()
        self.c = c
        widths = {tower.head.out or tower.trunk.dim for tower in c.towers if isinstance(tower.head, config.Pooled)}
        if len(c.towers) < 2 or not all(isinstance(tower.head, config.Pooled) for tower in c.towers):
            raise ValueError("towers: at least two, each with a head of kind 'pooled'")
        if len(widths) > 1:
            raise ValueError(f"towers: their vectors are {sorted(widths)} wide; set head.out to one width for all")
        self.towers: list[Transformer] = nn.ModuleList(Transformer(tower) for tower in c.towers)  # type: ignore[assignment]
        self.scale = nn.Parameter(torch.tensor(math.log(c.scale)))
        for i, tower in enumerate(self.towers):
            tower.where = f"towers.{i}"

    def forward(self, *inputs: Given, compare: bool = True) -> Any:
        """(B, C) logits between the first two towers: row i of the one against row j of the other.

        Without `compare`, the vectors of each tower, and the factor that their cosines are to be multiplied by.
        """
        places = range(len(self.towers))
        made = [self.vectors(place, given) for place, given in zip(places, inputs, strict=True)]
        return self.factor * made[0] @ made[1].mT if compare else (*made, self.factor)  #: S062

    def vectors(self, place: int, given: Given) -> Tensor:  # (B, D)
        """What one tower makes of its input, in length 1; arguments of its own go in a dict by name."""
        tower = self.towers[place]
        x = tower(**given) if isinstance(given, dict) else tower(given)
        return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)

    @property
    def factor(self) -> Tensor:
        """What cosines are multiplied by."""
        return self.scale.clamp(max=math.log(self.c.limit)).exp()

    @torch.no_grad()
    def hold(self) -> None:
        """Bring the scale back to its limit: beyond it no gradient would ever do so."""
        self.scale.clamp_(max=math.log(self.c.limit))

    def addresses(self) -> Iterator[str]:
        for tower in self.towers:
            yield from tower.addresses()

    @property
    def lookers(self) -> tuple[Looker, ...]:
        return self.towers[0].lookers

    @lookers.setter
    def lookers(self, lookers: tuple[Looker, ...]) -> None:
        for tower in self.towers:
            tower.lookers = lookers
