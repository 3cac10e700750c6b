"""Alignment: where in the source the decoder looks while it tells each token of the target. #: S157

              The   cat   sat  </s>
    Le        .71   .12   .05   .12        a row for each token told, and it sums to one: the softmax of
    chat      .06   .83   .09   .02        cross-attention, averaged over the heads of one layer

The layer is the last but one unless said: there the averaged heads agree best with alignments made by people (Garg et
al. 2019, "Jointly learning to align and translate with Transformer models").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard import config
from regard.core.watch import looking
from regard.generate.limits import window
from regard.generate.session import still
from regard.generate.translate import Translator

if TYPE_CHECKING:
    from regard.generate.model import Transformer


@dataclass(frozen=True, eq=False)
class Alignment:
    """Tokens of both sides as people read them, special ones included, and weights (target, source)."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Tensor
    layer: int

    def likeliest(self) -> list[tuple[str, str]]:
        """Each token of the target with the one that it looked at most."""
        return [(told, self.source[place])
                for told, place in zip(self.target, self.weights.argmax(-1).tolist(), strict=True)]  # fmt: skip


def align(
    model: "Transformer", source: str, target: str | Sequence[int] | None = None, layer: int | None = None
) -> Alignment:
    translator, depth = Translator(model), model.c.trunk.depth
    known = set(model.addresses())
    looks = [place for place in range(depth) if f"trunk.{place}.cross.pattern" in known]
    if not looks:
        raise config.ConfigError(f"trunk.cross: {model.c.trunk.cross!r} tells the decoder of its source in one vector, "
                                 "so there are no words that it looks at")  # fmt: skip
    layer = looks[max(len(looks) - 2, 0)] if layer is None else layer
    if not -depth <= layer < depth or layer % depth not in looks:
        raise config.ConfigError(f"layer: {layer} is none of the decoder's layers, {looks[0]} to {looks[-1]}")
    read = translator.source(source, "source")
    if target is None:
        [best] = translator([source], {})
        target = best.ids
    if isinstance(target, str):
        target = [*translator.ids(target, "target", target=True), translator.task.target["end"]]
    weights = looked(translator, read, list(target), layer % depth)
    tokens = tuple(map(translator.reads.piece, read)), tuple(map(translator.speaks.piece, target))
    return Alignment(*tokens, weights=weights, layer=layer % depth)


def looked(translator: Translator, source: list[int], target: list[int], layer: int) -> Tensor:  # (T, S)
    """The decoder hears the target word by word; each row is its look before a word."""
    model, ids = translator.model, [translator.begin, *target[:-1]]
    most, vocab = window(model, model.limits), model.c.embed.vocab
    if not target or (most is not None and len(ids) > most):
        raise config.DataError(f"target: {len(target)} tokens, and this model reads 1 to {most or 'any number'} at "
                               "once; give both texts in shorter pieces, a sentence at a time")  # fmt: skip
    if (largest := max(target)) >= vocab or min(target) < 0:
        raise config.DataError(f"target: id {largest} is outside the model's vocabulary of {vocab}; use the tokenizer "
                               "of its training")  # fmt: skip
    where = f"trunk.{layer}.cross.pattern"
    heard, read = (torch.tensor([row], device=next(model.parameters()).device) for row in (ids, source))
    real = torch.ones_like(heard, dtype=torch.bool)  # a target may begin with the pad token
    with still(list(model.modules())), looking(model, where) as seen:
        model(heard, source=read, real=real)
    weights: Tensor = seen[where][0].float().mean(0)  # over the heads
    return weights.clone().cpu()
