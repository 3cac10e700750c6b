"""The residual stream by its places, and the model's own final norm and head applied at any of them.

    embed ─► 0.attn ─► 0.mlp ─► 1.attn ─► 1.cross ─► 1.mlp ─► … ─► final norm ─► head

A place is named for the sublayer that has just been added; a block without feed-forward ends at 0.attn. In a model with
norms after the sum (post-norm) the vectors at a place are those that came out of that norm.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError
from regard.core.hooks import Activations, looking
from regard.core.model import Trunk
from regard.core.tokens import Tokens
from regard.lens.attention_maps import evaluation_mode, record_trunk_inputs, unwrap_model
from regard.lens.prompt import Prompt
from regard.models.heads import (
    DeferredLogits,
    LMHead,
    PoolingHead,
    PretrainingHead,
    TokenHead,
    can_defer_logits,
)
from regard.models.reversible import sublayer_names


@dataclass(frozen=True)
class Place:
    """One place of the residual stream: its address for `looking`, and the sublayer after which it is."""

    name: str  # embed, 3.attn, 3.cross, 3.mlp
    address: str
    layer: int  # -1 for embed
    part: str  # embed, attn, cross or mlp


def residual_places(model: Any, halves: bool = True, trunk: str = "trunk") -> list[Place]:
    """The places of a trunk in the order of the walk; without `halves` one for each block and the embedding."""
    blocks = find_trunk(model, trunk)
    places = [Place("embed", f"{trunk}.embed", -1, "embed")]
    for layer in range(blocks.c.depth):
        *inner, last = sublayer_names(blocks.blocks[layer % len(blocks.blocks)])
        for part in inner if halves else ():
            places.append(Place(f"{layer}.{part}", f"{trunk}.{layer}.residual_{part}", layer, part))
        places.append(Place(f"{layer}.{last}", f"{trunk}.{layer}.residual", layer, last))
    return places


def find_trunk(model: Any, name: str = "trunk") -> Trunk:
    """The trunk of that name, or a sentence for a model that has none of blocks."""
    trunk = getattr(unwrap_model(model), name, None)
    if not isinstance(trunk, Trunk):
        raise ConfigError(f"{name}: this model has no stack of blocks there, so it has no residual stream to look at")
    return trunk


@dataclass(frozen=True, eq=False)
class Recording:
    """What a model said of a prompt, what was recorded on the way, and the trunk's tokens without their vectors."""

    out: Any
    seen: Activations
    tokens: Tokens
    memory: Tokens | None = None

    def logits(self, part: slice = slice(None)) -> Tensor:
        """What the model says at some positions (B, n, V); (B, 1, classes) of a head that pools."""
        out = self.out[0] if type(self.out) is tuple else self.out
        if isinstance(out, DeferredLogits):
            return F.linear(out.x[:, part], out.weight, out.bias)
        said: Tensor = out[:, None] if out.dim() == 2 else out.flatten(1, -2)[:, part]
        return said


@contextmanager
def recording(
    model: Any, prompt: Prompt, *addresses: str, grad: bool = False, queries: slice | None = None,
    deferred: bool = False,
) -> Iterator[Recording]:  # fmt: skip
    """Run the model once with these addresses recorded, of all rows or the chosen ones; without dropout, with gradients
    only where asked for. With `deferred` only those logits over words are made that `Recording.logits` is asked for."""
    model = unwrap_model(model)
    deferred = deferred and can_defer_logits(model)
    with evaluation_mode(model), torch.set_grad_enabled(grad):
        looks = looking(model, "trunk.embed", *addresses, grad=grad, queries=queries)
        with record_trunk_inputs(model) as notes, looks as seen:
            out = prompt.run(model, deferred=deferred)
            note = notes["trunk"]
        yield Recording(out, seen, note.tokens, note.memory)


def find_head(model: Any) -> LMHead | TokenHead | PoolingHead:
    """The head that makes logits, or a sentence for a model that makes none."""
    head = unwrap_model(model).head
    head = head.lm if isinstance(head, PretrainingHead) else head
    if not isinstance(head, LMHead | TokenHead | PoolingHead) or getattr(head, "out", True) is None:
        raise ConfigError("head: this model answers with vectors, neither with words nor with classes, so there is "
                          "nothing to decode its residual stream into")  # fmt: skip
    return head


def logit_count(model: Any) -> int:
    """How many logits the head makes: the size of the vocabulary, or the number of classes."""
    head = find_head(model)
    return int((head if isinstance(head, LMHead) else head.out).out_features)  # type: ignore[union-attr]


class Unembedding:
    """The model's final norm and head, for vectors of the residual stream (B, N, D): logits (B, N, V).

    A head that pools answers once for a sequence, (B, 1, classes), from the vectors that it would pool.
    """

    def __init__(self, model: Any, tokens: Tokens) -> None:
        self.model, self.tokens = unwrap_model(model), tokens
        self.trunk, self.head = find_trunk(self.model), find_head(self.model)

    @property
    def pools(self) -> bool:
        return isinstance(self.head, PoolingHead)

    def __call__(self, x: Tensor, final: bool = True) -> Tensor:
        """`final` applies the trunk's final norm first, if it has one; its own output has had it."""
        x = x if not final or self.trunk.final_norm is None else self.trunk.final_norm(x)
        kind = self.model.autocast()
        with torch.autocast(x.device.type, kind, enabled=kind is not None):
            logits: Tensor = self.head(self.tokens.with_vectors(x))
        return logits[:, None] if self.pools else logits

    def outputs(self, x: Tensor, ids: list[int]) -> Tensor:  # (B, n, D) -> (B, n, ids)
        """The logits of these words or classes; the vectors have had the final norm. An LM head makes no others."""
        factors = self.factors(x, final=False)
        if factors is None:
            return self(x, final=False)[..., ids]
        return F.linear(factors.x, factors.weight[ids], None if factors.bias is None else factors.bias[ids])

    def factors(self, x: Tensor, final: bool = True) -> DeferredLogits | None:
        """The factors of the logits over words; None where the head makes other ones."""
        if not isinstance(self.head, LMHead):
            return None
        x = x if not final or self.trunk.final_norm is None else self.trunk.final_norm(x)
        kind = self.model.autocast()
        with torch.autocast(x.device.type, kind, enabled=kind is not None):
            found = self.head(self.tokens.with_vectors(x), deferred=True)
        assert isinstance(found, DeferredLogits)
        return found
