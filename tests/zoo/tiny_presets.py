"""A tiny model of the same sentence: two layers, a few channels, a few words; and what it is called with.

Images in patches stay as large as they are: their windows and places are part of the sentence.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from regard import config as C

B, N, S = 2, 7, 11  # rows, tokens, tokens of a source
DIM, HEADS, GROUPS, WIDTH, HIDDEN, NARROW = 24, 4, 2, 10, 40, 14
WORDS, OUT = 53, 5


def small(c):
    if isinstance(c, C.DualEncoder):
        return replace(c, towers=tuple(map(small, c.towers)))
    embed, head, trunk = c.embed, c.head, small_trunk(c.trunk)
    if isinstance(embed, C.TextEmbedding):
        embed = replace(embed, vocab=WORDS, eos_id=embed.eos_id and WORDS - 1, scale=rescaled(embed.scale, c))
    if isinstance(embed, C.StageEmbedding):
        embed = replace(embed, trunks=tuple(small_trunk(each, place) for place, each in enumerate(embed.trunks)))
        trunk = small_trunk(c.trunk, len(embed.trunks))
    if isinstance(embed, C.PixelEmbedding):
        embed = replace(embed, grid=(5, 6))
        trunk = replace(trunk, position=replace(trunk.position, length=embed.count))
    if isinstance(head, C.PoolingHead) and head.out:
        head = replace(head, out=OUT)
    if isinstance(head, C.LMHead):
        head = replace(head, scale=rescaled(head.scale, c))
    encoder = c.encoder and replace(c.encoder, trunk=small_trunk(c.encoder.trunk))
    return replace(c, embed=embed, trunk=trunk, head=head, encoder=encoder)


def small_trunk(c, stage=0):
    kv_heads, head_dim = c.attention.kv_heads and GROUPS, c.attention.head_dim and WIDTH
    attention = replace(c.attention, heads=HEADS, kv_heads=kv_heads, head_dim=head_dim)
    mlp = replace(c.mlp, hidden=c.mlp.hidden and HIDDEN)
    return replace(c, dim=DIM * 2**stage, depth=2, embed_dim=c.embed_dim and NARROW, attention=attention, mlp=mlp)


def rescaled(scale, c):
    """A scale of sqrt(dim), or of 1/sqrt(dim), remains one."""
    for power in (0.5, -0.5):
        if math.isclose(scale, c.trunk.dim**power):
            return DIM**power
    assert scale == 1
    return scale


def read(c, count: int) -> Tensor:
    """What a front end is given, on torch's default device."""
    match c:
        case C.StageEmbedding():
            return read(c.patches, count)
        case C.PatchEmbedding():
            return torch.randn(B, c.channels, c.image_size, c.image_size)
        case C.PixelEmbedding():
            return torch.randint(c.palette, (B, *c.grid))
    return torch.randint(3, c.vocab - 1, (B, count))  # no pads, which transformers would give other places


def said(model, count: int = N):
    """What a model answers to something that it can read: a list of tensors."""
    c = model.c
    if isinstance(c, C.DualEncoder):
        return [model(*(read(tower.embed, count) for tower in c.towers))]
    out = model(read(c.embed, count), **({"source": read(c.embed, S)} if c.encoder else {}))
    return list(out) if isinstance(out, tuple) else [out]


def shapes(c) -> list[tuple[int, ...]]:
    """The shapes of what it must answer."""
    if isinstance(c, C.DualEncoder):
        return [(B, B)]
    heads = (c.head.lm, c.head.pooling) if isinstance(c.head, C.PretrainingHead) else (c.head,)
    return [shape(c, head, getattr(c.embed, "count", N)) for head in heads]


def shape(c, head, count):
    match head:
        case C.PoolingHead():
            return (B, head.out or c.trunk.dim)
        case C.LMHead():
            return (B, count, head.vocab or c.embed.vocab)
    return (B, count, c.trunk.dim)
