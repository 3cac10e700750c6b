"""Heads: LMHead, PoolingHead, TokenHead, PretrainingHead and NoHead on a trunk's vectors; deferred logits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.layers import ACTIVATIONS, FusedLinear, Norm, compute_dtype
from regard.core.model import HEADS, Transformer
from regard.core.tokens import Tokens
from regard.inputs.cost import linear_flops
from regard.inputs.text import TextEmbedding

HEAD_ACTIVATIONS = ACTIVATIONS | {"tanh": torch.tanh}


class DeferredLogits(NamedTuple):
    """Deferred logits, before the product x W' + b: the caller may compute a few rows at a time."""

    x: Tensor  # (B, N, D)
    weight: Tensor  # (V, D)
    bias: Tensor | None  # (V,)


class LMHead(FusedLinear):
    """LM head: vectors to logits over the vocabulary, with the embedding's table if tied."""

    def __init__(self, c: config.LMHead, trunk: config.Trunk, embed: TextEmbedding) -> None:
        vocab, width = embed.tokens.weight.shape if c.tied or c.transform else (embed.c.vocab, trunk.dim)
        vocab = c.vocab or vocab
        super().__init__(width, {"head": vocab}, ("head",) if c.bias else ())
        self.scale = c.scale
        self.dense = nn.Linear(trunk.dim, width) if c.transform else None
        self.norm = Norm(trunk.norm, width) if c.transform else None
        self.activation = c.activation or trunk.mlp.activation
        if c.tied and self.dense is None and width != trunk.dim:
            raise ConfigError(f"head.tied: the embedding is {width} wide and the trunk {trunk.dim}; set head.transform")
        if c.tied:
            self.weight = embed.tokens.weight

    def forward(self, tokens: Tokens, deferred: bool = False) -> Tensor | DeferredLogits:  # type: ignore[override]
        x = tokens.x
        if self.dense is not None and self.norm is not None:
            x = self.norm(HEAD_ACTIVATIONS[self.activation](self.dense(x)))
        x = x if self.scale == 1 else x * self.scale
        if not deferred:
            return super().forward(x)  #: S047
        kind, bias = compute_dtype(x), self.full_bias()  # cast here, where autocast is still on
        return DeferredLogits(x.to(kind), self.weight.to(kind), None if bias is None else bias.to(kind))


def defer_logits(model: nn.Module, ids: Tensor, **given: Any) -> Any:
    """The model's output with DeferredLogits: with a large vocabulary all logits may not fit in memory."""
    if not any(isinstance(part, LMHead) for part in model.modules()):  # the model may be wrapped
        raise ConfigError("head.kind: only heads 'lm' and 'pretraining' support deferred logits")
    return model(ids, deferred=True, **given)


def can_defer_logits(model: Any) -> bool:
    """Whether a model's forward accepts `deferred`: it has an LM head, and no hook needs its logits."""
    head = getattr(model, "head", None)
    words = isinstance(head.lm if isinstance(head, PretrainingHead) else head, LMHead)
    return words and not model.hooks


LinearFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # of vectors, a weight and a bias


def last_token_logits(
    model: Transformer, ids: Tensor, product: LinearFunction = F.linear, /, **given: Any
) -> Tensor:  # (B, V)
    """The logits after the last token, computed into a buffer: with a large vocabulary those of a whole prompt cost as
    much as the model."""
    defers = isinstance(model.head, LMHead) and not model.hooks
    said: Any = model(ids, **given, **({"deferred": True} if defers else {}))
    if isinstance(said, DeferredLogits):
        return product(said.x[:, -1], said.weight, said.bias)
    logits: Tensor = said[:, -1].clone()
    return logits


class PretrainingHead(nn.Module):
    """BERT's pre-training head: a pair of logits for every token, and a pooled vector."""

    def __init__(self, c: config.PretrainingHead, trunk: config.Trunk, embed: TextEmbedding) -> None:
        super().__init__()
        self.lm, self.pooling = (HEADS[each.kind](each, trunk, embed) for each in (c.lm, c.pooling))

    def forward(self, tokens: Tokens, **deferred: bool) -> tuple[Tensor | DeferredLogits, Tensor]:
        return self.lm(tokens, **deferred), self.pooling(tokens)

    def flops(self, tokens: int) -> int:
        return head_flops(self.lm, tokens) + head_flops(self.pooling, tokens)


class TokenHead(nn.Module):
    """Token head: one linear layer for every token, with an output for each tag class, or two for an answer's ends."""

    def __init__(self, c: config.TokenHead, trunk: config.Trunk, embed: TextEmbedding) -> None:
        super().__init__()
        self.dense = nn.Linear(trunk.dim, trunk.dim) if c.dense else None
        self.out, self.activation = nn.Linear(trunk.dim, c.out, bias=c.bias), c.activation

    def forward(self, tokens: Tokens) -> Tensor:  # (B, N, D) -> (B, N, out)
        x = tokens.x if self.dense is None else HEAD_ACTIVATIONS[self.activation](self.dense(tokens.x))
        return self.out(x)  # type: ignore[no-any-return]  #: S164

    def flops(self, tokens: int) -> int:
        return linear_flops(self, tokens)


class NoHead(nn.Module):
    """No head: the trunk's vectors."""

    def forward(self, tokens: Tokens) -> Tensor:
        return tokens.x


class PoolingHead(nn.Module):
    """Pooling head: one vector for the sequence, from the first token, the mean, the last real one, or the end
    token."""

    def __init__(self, c: config.PoolingHead, trunk: config.Trunk, embed: TextEmbedding) -> None:
        super().__init__()
        self.c = c
        self.dense = nn.Linear(trunk.dim, trunk.dim) if c.dense else None
        self.out = nn.Linear(trunk.dim, c.out, bias=c.bias) if c.out else None
        self.others = nn.ModuleList(nn.Linear(trunk.dim, c.out or 0, bias=c.bias) for _ in range(1, c.classifiers))

    def forward(self, tokens: Tokens) -> Tensor:
        x = self.pick(tokens)
        x = x if self.dense is None else HEAD_ACTIVATIONS[self.c.activation](self.dense(x))
        said = x if self.out is None else self.out(x)
        if not self.others:
            return said
        more = [each(self.pick(tokens, after)) for after, each in enumerate(self.others, 1)]
        return torch.stack([said, *more]).mean(0)

    def pick(self, tokens: Tokens, after: int = 0) -> Tensor:  # (B, D)
        """The pooled vector, or the one `after` positions behind the first."""
        x, real = tokens.x, tokens.is_real
        if self.c.pooling == "mean":
            keep = x.new_ones(x.shape[:2]) if real is None else real.to(x.dtype)
            return (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)
        at = torch.zeros_like(tokens.order[:, 0])  #: S054
        if self.c.pooling == "eos":
            if tokens.end is None:
                raise ConfigError("head.pooling 'eos': these tokens do not carry the end of the text (Tokens.end)")
            at = tokens.end
        elif self.c.pooling == "last":
            index = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
            at = (index if real is None else index * real).amax(-1)
        elif real is not None:
            at = real.int().argmax(-1)  # the first real token, after left padding
        return x.take_along_dim((at + after)[:, None, None], 1)[:, 0]


def head_flops(head: nn.Module, tokens: int) -> int:
    """FLOPs of a head: logits for every token, pooled outputs once per sequence."""
    declared = getattr(head, "flops", None)
    return declared(tokens) if declared else linear_flops(head, tokens if isinstance(head, nn.Linear) else 1)


HEADS.update(
    lm=LMHead, pooling=PoolingHead, pretraining=PretrainingHead, token=TokenHead, none=lambda c, trunk, embed: NoHead()
)
