"""Small models of every shape, with what they read: sizes are odd and differ, so swapped axes show."""

from dataclasses import replace

import torch
from core.made import translator, trunk
from torch import Tensor, nn

from regard import config as C
from regard.core.model import Transformer
from regard.heads import Towers
from regard.inputs.senses import sense

B, N, VOCAB = 3, 29, 23
GATED = C.MLP(hidden=19, gated=True, activation="silu")
GROUPED = C.Attention(heads=6, groups=2, width=4)
CLASSES = C.Pooled(place="mean", out=5)


def config(**said: object) -> C.Transformer:
    head, precision = said.pop("head", C.Vocabulary(tied=False)), said.pop("precision", "fp32")
    said = {"attention": C.Attention(heads=3), "mask": "causal"} | said
    return C.Transformer(embed=C.Embed(vocab=VOCAB), trunk=trunk(**said), head=head, precision=precision)


def image(embed: C.Front, **said: object) -> C.Transformer:
    return C.Transformer(embed=embed, trunk=trunk(**said), head=CLASSES)


WINDOWS = dict(mask=("cells(3)", "cells(3, 2)"), position=C.Relative(radius=2, axes=2, inside=False, tables="layer"))
PATCHES = C.Patches(size=5, image=35)
STAGES = C.Stages(
    patches=C.Patches(size=3, image=42, cls=False, norm=True), trunks=(trunk(depth=4, **WINDOWS),)
)

SERIES = C.Series(channels=3, length=21, patch=5, stride=3)

SHAPES: dict[str, C.Transformer | C.Towers] = {
    "plain": config(),
    "gated, grouped heads": config(mlp=GATED, attention=GROUPED, position=C.Rotary()),
    "embedding of another width": config(width=7, depth=3),
    "shared layers": config(shared=True, depth=5),
    "Shaw's positions": config(position=C.Shaw(radius=3)),
    "T5's buckets": config(position=C.Buckets(buckets=8, distance=16, both=False), depth=3),
    "learned positions, post-norm": config(position=C.Learned(length=31), place="post", depth=5),
    "wide values": config(attention=C.Attention(heads=3, width=5, value_width=9)),
    "dropout everywhere": config(dropout=C.Dropout(embed=0.1, attention=0.2, mlp=0.1, sublayer=0.3), depth=3),
    "masks in turn": config(mask=("causal", "causal & window(3)", "causal & landmarks(2)"), depth=7),
    "a window in chunks": config(mask="causal & window(5)", attention=C.Attention(heads=3, kernel="local"), depth=3),
    "other heads in every layer": config(attention=C.Attention(heads=(3, 1, 2), groups=(1, 1, 2), width=4), depth=3),
    "both heads of BERT": config(head=C.Both(), mask="everything"),
    "one vector": config(head=C.Pooled(dense=True, out=5), mask="everything"),
    "no head": config(head=C.Bare()),
    "translator": translator(source={"depth": 3}, depth=4).c,
    "translator, layer by layer": translator(source={"depth": 3}, depth=3, cross="layerwise").c,
    "translator with other heads across": translator(across=C.Attention(heads=2, width=5), depth=3).c,
    "patches": image(PATCHES, position=C.Learned(length=50), depth=3),
    "pixels": replace(config(position=C.Learned(length=35)), embed=C.Pixels(palette=22, grid=(5, 7)),
                      head=C.Vocabulary(tied=False, size=22)),
    "stages": image(STAGES, dim=24, attention=C.Attention(heads=2), mask="cells(7)",
                    position=C.Relative(radius=6, axes=2, tables="layer"), depth=2),
    "convolutions": image(C.Convolutions(image=12, widths=(5, 7), blocks=2), depth=3),
    "series, channel by channel": replace(image(SERIES), head=C.Horizon(horizon=7, line=True)),
    "series, all channels": replace(image(replace(SERIES, mix="mixed")), head=C.Horizon(horizon=7, line=True)),
    "spectrograms": image(C.Sound(rate=800, seconds=0.5, way=C.Mel(window=50, hop=20, mels=6, frames=3))),
    "convolved sound": image(C.Sound(rate=800, seconds=0.5, way=C.Convolved(window=50, hop=20, mels=6))),
    "raw sound": image(C.Sound(rate=800, seconds=0.25, way=C.Frames(size=9))),
    "sound at several rates": image(C.Sound(rate=800, seconds=0.25, way=C.Rates(size=9, steps=(5, 1)))),
    "film": image(C.Film(frames=4, image=9, size=3), depth=3),
    "graph": image(C.Graph(features=11, walks=3, degrees=5, hops=2, nodes=13), mask="edges", position=C.Nowhere()),
    "graph of tags, distances": image(C.Graph(tags=5, nodes=13), position=C.Spatial(radius=3)),
    "every node answers": replace(image(C.Graph(tags=5, nodes=13), position=C.Nowhere()), head=C.Each(out=5)),
    "picture and text": replace(config(mask="prefix(49)"), embed=C.Mixed(seen=replace(PATCHES, cls=False),
                                                                         text=C.Embed(vocab=VOCAB))),
    "chunks": image(C.Chunks(vocab=VOCAB, size=8, trunk=trunk(depth=3))),
    "towers": C.Towers(towers=(config(head=CLASSES, depth=3), image(PATCHES, depth=4))),
}  # fmt: skip


def build(c: C.Transformer | C.Towers) -> nn.Module:
    return Towers(c) if isinstance(c, C.Towers) else Transformer(c)


def reads(front: C.Front, batch: int = B, context: int = N) -> dict[str, Tensor]:
    """What a front end is given, by name; of senses, examples without content."""
    if isinstance(front, C.Mixed):
        return {"ids": reads(front.text, batch, context)["ids"], "seen": reads(front.seen, batch)["ids"]}
    if isinstance(front, C.Stages):
        return reads(front.patches, batch)
    if isinstance(front, C.Patches | C.Convolutions):
        return {"ids": torch.randn(batch, front.channels, front.image, front.image)}
    if isinstance(front, C.Pixels):
        return {"ids": torch.randint(front.palette, (batch, *front.grid))}
    if isinstance(front, C.Embed):
        return {"ids": torch.randint(1, front.vocab, (batch, context))}
    own = sense(front)
    return own.batch([own.blank(context)] * batch, None)


def run(made: nn.Module, batch: int = B, context: int = N) -> Tensor:
    """One forward pass on random data; of a pair of answers, something that depends on both."""
    c = made.c
    if isinstance(c, C.Towers):
        return made(*(reads(tower.embed, batch, context)["ids"] for tower in c.towers))
    rest = {} if c.encoder is None else {"source": reads(c.encoder.embed or c.embed, batch, context)["ids"]}
    given = reads(c.embed, batch, context)
    return made(given.pop("ids"), **given, **rest)


def together(out: Tensor | tuple[Tensor, ...]) -> Tensor:
    return sum(each.sum() for each in out) if isinstance(out, tuple) else out.sum()
