"""One spelling for each model: two configs that make the same function, spelt alike, are equal."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

from regard import config
from regard.config.names import called
from regard.config.trunk import listed
from regard.core.kernels import KERNELS
from regard.core.masks import mask


@overload
def settled(c: config.Transformer) -> config.Transformer: ...
@overload
def settled(c: config.Model) -> config.Model: ...


def settled(c: config.Model) -> config.Model:
    """The same function from ids to logits, spelt in one way.

    Left out are what changes training only (beginnings, dropout), how numbers are held, which ids are padding, and how
    the bytes of an image become numbers.
    """
    if isinstance(c, config.Towers):
        plain = config.Towers(towers=c.towers)
        return replace(c, towers=tuple(settled(each) for each in c.towers), scale=plain.scale, limit=plain.limit)
    reads = c.encoder
    if reads is not None and isinstance(reads.trunk, config.Trunk):
        own = None if reads.embed is None else settled_front(reads.embed)
        reads = replace(reads, trunk=settled_trunk(reads.trunk), embed=own)
    whole = c.head.pooled if isinstance(c.head, config.Both) else c.head
    front = settled_front(c.embed, isinstance(whole, config.Pooled) and whole.place == "end")
    trunk = settled_trunk(of_blocks(c))
    head = settled_head(c.head, trunk.mlp.activation)
    return replace(c, embed=front, trunk=trunk, encoder=reads, head=head, init="xavier", precision="fp32")


def settled_head(c: Any, usual: str) -> Any:
    """An activation is said where it is another than the trunk's, and where there is a layer that has one."""
    if isinstance(c, config.Both):
        return replace(c, vocabulary=settled_head(c.vocabulary, usual), pooled=settled_head(c.pooled, usual))
    if isinstance(c, config.Vocabulary):
        return replace(c, activation=(c.activation or usual) if c.transform else None)
    if isinstance(c, config.Pooled | config.Each) and not c.dense:
        return replace(c, activation=type(c)().activation)
    return c


def settled_front(c: Any, ends: bool = False) -> Any:
    """`ends` where a head asks for the token that ends the text."""
    if type(c) is config.Embed:
        return replace(c, pad=None, end=c.end if ends else None, highest=c.highest and ends)
    if isinstance(c, config.Patches):
        plain = config.Patches()
        return replace(c, mean=plain.mean, std=plain.std, white=plain.white, frame=plain.frame)
    if type(c) is config.Pixels:
        usual = config.Pixels()
        return replace(c, grid=(1, c.grid[0] * c.grid[1]), colours=(), white=usual.white, frame=usual.frame)
    if isinstance(c, config.Sound):
        return replace(c, long="refuse", vary=None)
    if isinstance(c, config.Stages):
        return replace(c, patches=settled_front(c.patches), trunks=tuple(settled_trunk(each) for each in c.trunks))
    return c


def of_blocks(c: config.Transformer) -> config.Trunk:
    """The trunk of a model that could be of a family at all."""
    assert isinstance(c.trunk, config.Trunk)
    return c.trunk


def length(trunk: config.Trunk, context: int | None, usual: int) -> int:
    """The longest text: by the table of places, or by what it was trained on."""
    known = trunk.position.length if isinstance(trunk.position, config.Learned) else context
    return known if isinstance(known, int) else usual


def settled_trunk(c: config.Trunk) -> config.Trunk:
    masks = [str(mask(text)) for text in c.masks]
    return replace(
        c,
        width=None if c.width == c.dim else c.width,
        position=settled_rotary(c.position) if isinstance(c.position, config.Rotary) else c.position,
        mask=tiled([masks[layer % len(masks)] for layer in range(c.depth)]),
        attention=settled_attention(c, c.attention),
        across=settled_across(c),
        mlp=replace(c.mlp, hidden=c.mlp.hidden or 4 * c.dim),
        norm=settled_norm(c.norm),
        final_norm=c.place == "pre" if c.final_norm is None else c.final_norm,
        dropout=config.NO_DROPOUT,
    )


def tiled(masks: Sequence[str]) -> str | tuple[str, ...]:
    """Masks named layer by layer as the shortest tile: a b a b a is (a, b)."""
    for size in range(1, len(masks)):
        if all(each == masks[place % size] for place, each in enumerate(masks)):
            return masks[0] if size == 1 else tuple(masks[:size])
    return masks[0] if len(masks) == 1 else tuple(masks)


def settled_across(trunk: config.Trunk) -> config.Attention | None:
    """Heads across, where they are others than those that look around."""
    if trunk.cross == "none" or trunk.across is None:
        return None
    mine, others = settled_attention(trunk, trunk.attention), settled_attention(trunk, trunk.across)
    return None if mine == others else others


def settled_attention(trunk: config.Trunk, c: config.Attention) -> config.Attention:
    numbers = set(listed(c.heads))
    heads = numbers.pop() if len(numbers) == 1 else c.heads
    width = c.counts(0, trunk.dim)[2]
    usual = 1 / math.sqrt(width)
    name, _ = called(c.kernel)
    exact = name in KERNELS and KERNELS[name].exact
    return replace(
        c,
        heads=heads,
        groups=c.counts(0, trunk.dim)[1] if isinstance(heads, int) and not isinstance(c.groups, tuple) else c.groups,
        width=width,
        value_width=c.value_width or width,
        scale=usual if c.scale is None or math.isclose(c.scale, usual, rel_tol=1e-12) else c.scale,
        qk_norm=None if c.qk_norm is None else settled_norm(c.qk_norm),
        maps=tuple(sorted(set(c.maps))),
        bias=tuple(sorted(set(c.bias) & set(c.maps))),
        kernel="auto" if exact else c.kernel,
    )


def settled_norm(c: config.Norm) -> config.Norm:
    """An rms norm has no bias, whatever is said."""
    return replace(c, bias=c.bias and c.kind == "layer", offset=c.offset if c.gain else 0.0)


# What each scaling of the rotary angles goes by.
USED = {
    "none": (),
    "linear": ("factor",),
    "dynamic": ("factor", "length"),
    "yarn": ("factor", "length", "fast", "slow"),
    "llama3": ("factor", "length", "low", "high"),
    "longrope": ("factor", "length", "factors"),
}


def settled_rotary(c: config.Rotary) -> config.Rotary:
    used = {name: getattr(c, name) for name in ("base", "layout", "part", "scaling", "stretch", *USED[c.scaling])}
    return config.Rotary(**used)
