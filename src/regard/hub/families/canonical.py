"""Canonical configs: two configs that build the same function have the same canonical form."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

from regard import config
from regard.config.errors import parse_call
from regard.config.trunk import as_tuple
from regard.core.kernels import KERNELS
from regard.core.masks import mask


@overload
def canonicalize(c: config.Transformer) -> config.Transformer: ...
@overload
def canonicalize(c: config.Model) -> config.Model: ...


def canonicalize(c: config.Model) -> config.Model:
    """The canonical form of a config: one spelling for the same function from ids to logits.

    It drops settings of training (initialisation, dropout), of precision, of padding ids, and of image preprocessing.
    """
    if isinstance(c, config.DualEncoder):
        plain = config.DualEncoder(towers=c.towers)
        return replace(
            c,
            towers=tuple(canonicalize(each) for each in c.towers),
            initial_scale=plain.initial_scale,
            max_scale=plain.max_scale,
        )
    reads = c.encoder
    if reads is not None and isinstance(reads.trunk, config.Trunk):
        own = None if reads.embed is None else canonical_front_end(reads.embed)
        reads = replace(reads, trunk=canonical_trunk(reads.trunk), embed=own)
    whole = c.head.pooling if isinstance(c.head, config.PretrainingHead) else c.head
    front = canonical_front_end(c.embed, isinstance(whole, config.PoolingHead) and whole.pooling == "eos")
    trunk = canonical_trunk(block_trunk(c))
    head = canonical_head(c.head, trunk.mlp.activation)
    return replace(c, embed=front, trunk=trunk, encoder=reads, head=head, init="xavier", precision="fp32")


def canonical_head(c: Any, usual: str) -> Any:
    """Set the activation only where a layer has one and it differs from the trunk's."""
    if isinstance(c, config.PretrainingHead):
        return replace(c, lm=canonical_head(c.lm, usual), pooling=canonical_head(c.pooling, usual))
    if isinstance(c, config.LMHead):
        return replace(c, activation=(c.activation or usual) if c.transform else None)
    if isinstance(c, config.PoolingHead | config.TokenHead) and not c.dense:
        return replace(c, activation=type(c)().activation)
    return c


def canonical_front_end(c: Any, ends: bool = False) -> Any:
    """The front end without what does not change logits; `ends` is True where the head pools at the end token."""
    if type(c) is config.TextEmbedding:
        return replace(c, pad_id=None, eos_id=c.eos_id if ends else None, eos_is_max_id=c.eos_is_max_id and ends)
    if isinstance(c, config.PatchEmbedding):
        plain = config.PatchEmbedding()
        return replace(c, mean=plain.mean, std=plain.std, max_value=plain.max_value, resize=plain.resize)
    if type(c) is config.PixelEmbedding:
        usual = config.PixelEmbedding()
        return replace(c, grid=(1, c.grid[0] * c.grid[1]), colors=(), max_value=usual.max_value, resize=usual.resize)
    if isinstance(c, config.AudioEmbedding):
        return replace(c, too_long="error", augment=None)
    if isinstance(c, config.StageEmbedding):
        return replace(
            c, patches=canonical_front_end(c.patches), trunks=tuple(canonical_trunk(each) for each in c.trunks)
        )
    return c


def block_trunk(c: config.Transformer) -> config.Trunk:
    """The trunk of a model in a family, which is never recurrent."""
    assert isinstance(c.trunk, config.Trunk)
    return c.trunk


def max_length(trunk: config.Trunk, context: int | None, usual: int) -> int:
    """The longest text: by the table of learned positions, or by the training length."""
    known = trunk.position.length if isinstance(trunk.position, config.LearnedPosition) else context
    return known if isinstance(known, int) else usual


def canonical_trunk(c: config.Trunk) -> config.Trunk:
    masks = [str(mask(text)) for text in c.masks]
    return replace(
        c,
        embed_dim=None if c.embed_dim == c.dim else c.embed_dim,
        position=canonical_rotary(c.position) if isinstance(c.position, config.RotaryPosition) else c.position,
        mask=shortest_tile([masks[layer % len(masks)] for layer in range(c.depth)]),
        attention=canonical_attention(c, c.attention),
        cross_attention=canonical_cross_attention(c),
        mlp=c.mlp if c.mlp.kind == "none" else replace(c.mlp, hidden=c.mlp.hidden or 4 * c.dim),
        norm=canonical_norm(c.norm),
        final_norm=c.norm_placement == "pre" if c.final_norm is None else c.final_norm,
        dropout=config.NO_DROPOUT,
    )


def shortest_tile(masks: Sequence[str]) -> str | tuple[str, ...]:
    """The masks of all layers as their shortest repeating unit: a b a b a is (a, b)."""
    for size in range(1, len(masks)):
        if all(each == masks[place % size] for place, each in enumerate(masks)):
            return masks[0] if size == 1 else tuple(masks[:size])
    return masks[0] if len(masks) == 1 else tuple(masks)


def canonical_cross_attention(trunk: config.Trunk) -> config.Attention | None:
    """The config of cross-attention, where it differs from that of self-attention."""
    if trunk.cross == "none" or trunk.cross_attention is None:
        return None
    mine, others = canonical_attention(trunk, trunk.attention), canonical_attention(trunk, trunk.cross_attention)
    return None if mine == others else others


def canonical_attention(trunk: config.Trunk, c: config.Attention) -> config.Attention:
    numbers = set(as_tuple(c.heads))
    heads = numbers.pop() if len(numbers) == 1 else c.heads
    width = c.counts(0, trunk.dim)[2]
    usual = 1 / math.sqrt(width)
    name, _ = parse_call(c.kernel)
    exact = name in KERNELS and KERNELS[name].exact
    return replace(
        c,
        heads=heads,
        kv_heads=c.counts(0, trunk.dim)[1]
        if isinstance(heads, int) and not isinstance(c.kv_heads, tuple)
        else c.kv_heads,
        head_dim=width,
        value_head_dim=c.value_head_dim or width,
        scale=usual if c.scale is None or math.isclose(c.scale, usual, rel_tol=1e-12) else c.scale,
        qk_norm=None if c.qk_norm is None else canonical_norm(c.qk_norm),
        projections=tuple(sorted(set(c.projections))),
        bias=tuple(sorted(set(c.bias) & set(c.projections))),
        kernel="auto" if exact else c.kernel,
    )


def canonical_norm(c: config.Norm) -> config.Norm:
    """An RMS norm has no bias, whatever the setting."""
    return replace(c, bias=c.bias and c.kind == "layer", offset=c.offset if c.gain else 0.0)


# The settings that each RoPE scaling uses.
USED = {
    "none": (),
    "linear": ("factor",),
    "dynamic": ("factor", "original_length"),
    "yarn": ("factor", "original_length", "beta_fast", "beta_slow"),
    "llama3": ("factor", "original_length", "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", "original_length", "freq_factors"),
}


def canonical_rotary(c: config.RotaryPosition) -> config.RotaryPosition:
    used = {
        name: getattr(c, name)
        for name in ("base", "layout", "fraction", "scaling", "attention_factor", *USED[c.scaling])
    }
    return config.RotaryPosition(**used)
