"""Small models of every shape, with what they read: sizes are odd and differ, so swapped axes show."""

from dataclasses import replace

import torch
from core.made import translator, trunk
from torch import Tensor, nn

from regard import config as C
from regard.core.model import Transformer
from regard.inputs.processors import build_processor
from regard.models.dual_encoder import DualEncoder

B, N, VOCAB = 3, 29, 23
GATED = C.MLP(hidden=19, gated=True, activation="silu")
GROUPED = C.Attention(heads=6, groups=2, width=4)
CLASSES = C.PoolingHead(place="mean", out=5)


def config(**said: object) -> C.Transformer:
    head, precision = said.pop("head", C.LMHead(tied=False)), said.pop("precision", "fp32")
    said = {"attention": C.Attention(heads=3), "mask": "causal"} | said
    return C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk(**said), head=head, precision=precision)


def image(embed: C.FrontEnd, **said: object) -> C.Transformer:
    return C.Transformer(embed=embed, trunk=trunk(**said), head=CLASSES)


WINDOWS = dict(
    mask=("cells(3)", "cells(3, 2)"), position=C.RelativeBias(radius=2, axes=2, inside=False, tables="layer")
)
PATCHES = C.PatchEmbedding(size=5, image=35)
STAGES = C.StageEmbedding(
    patches=C.PatchEmbedding(size=3, image=42, cls=False, norm=True), trunks=(trunk(depth=4, **WINDOWS),)
)

SERIES = C.SeriesEmbedding(channels=3, length=21, patch=5, stride=3)

SHAPES: dict[str, C.Transformer | C.DualEncoder] = {
    "plain": config(),
    "gated, grouped heads": config(mlp=GATED, attention=GROUPED, position=C.RotaryPosition()),
    "embedding of another width": config(width=7, depth=3),
    "shared layers": config(shared=True, depth=5),
    "Shaw's positions": config(position=C.ShawPosition(radius=3)),
    "T5's buckets": config(position=C.T5Bias(buckets=8, distance=16, both=False), depth=3),
    "learned positions, post-norm": config(position=C.LearnedPosition(length=31), place="post", depth=5),
    "wide values": config(attention=C.Attention(heads=3, width=5, value_width=9)),
    "dropout everywhere": config(dropout=C.Dropout(embed=0.1, attention=0.2, mlp=0.1, sublayer=0.3), depth=3),
    "masks in turn": config(mask=("causal", "causal & window(3)", "causal & landmarks(2)"), depth=7),
    "a window in chunks": config(mask="causal & window(5)", attention=C.Attention(heads=3, kernel="local"), depth=3),
    "other heads in every layer": config(attention=C.Attention(heads=(3, 1, 2), groups=(1, 1, 2), width=4), depth=3),
    "both heads of BERT": config(head=C.PretrainingHead(), mask="everything"),
    "one vector": config(head=C.PoolingHead(dense=True, out=5), mask="everything"),
    "no head": config(head=C.NoHead()),
    "translator": translator(source={"depth": 3}, depth=4).c,
    "translator, layer by layer": translator(source={"depth": 3}, depth=3, cross="layerwise").c,
    "translator with other heads across": translator(across=C.Attention(heads=2, width=5), depth=3).c,
    "patches": image(PATCHES, position=C.LearnedPosition(length=50), depth=3),
    "pixels": replace(config(position=C.LearnedPosition(length=35)), embed=C.PixelEmbedding(palette=22, grid=(5, 7)),
                      head=C.LMHead(tied=False, size=22)),
    "stages": image(STAGES, dim=24, attention=C.Attention(heads=2), mask="cells(7)",
                    position=C.RelativeBias(radius=6, axes=2, tables="layer"), depth=2),
    "convolutions": image(C.ConvEmbedding(image=12, widths=(5, 7), blocks=2), depth=3),
    "series, channel by channel": replace(image(SERIES), head=C.ForecastHead(horizon=7, line=True)),
    "series, all channels": replace(image(replace(SERIES, mix="mixed")), head=C.ForecastHead(horizon=7, line=True)),
    "spectrograms": image(
        C.AudioEmbedding(rate=800, seconds=0.5, way=C.MelSpectrogram(window=50, hop=20, mels=6, frames=3))
    ),
    "convolved sound": image(C.AudioEmbedding(rate=800, seconds=0.5, way=C.ConvSpectrogram(window=50, hop=20, mels=6))),
    "raw sound": image(C.AudioEmbedding(rate=800, seconds=0.25, way=C.RawFrames(size=9))),
    "sound at several rates": image(
        C.AudioEmbedding(rate=800, seconds=0.25, way=C.MultiRateFrames(size=9, steps=(5, 1)))
    ),
    "film": image(C.VideoEmbedding(frames=4, image=9, size=3), depth=3),
    "graph": image(
        C.GraphEmbedding(features=11, walks=3, degrees=5, hops=2, nodes=13), mask="edges", position=C.NoPosition()
    ),
    "graph of tags, distances": image(C.GraphEmbedding(tags=5, nodes=13), position=C.GraphDistanceBias(radius=3)),
    "every node "
    "answers": replace(image(C.GraphEmbedding(tags=5, nodes=13), position=C.NoPosition()), head=C.TokenHead(out=5)),
    "picture and text": replace(config(mask="prefix(49)"), embed=C.MultimodalEmbedding(seen=replace(PATCHES, cls=False),
                                                                         text=C.TextEmbedding(vocab=VOCAB))),
    "chunks": image(C.ChunkEmbedding(vocab=VOCAB, size=8, trunk=trunk(depth=3))),
    "towers": C.DualEncoder(towers=(config(head=CLASSES, depth=3), image(PATCHES, depth=4))),
}  # fmt: skip


def build(c: C.Transformer | C.DualEncoder) -> nn.Module:
    return DualEncoder(c) if isinstance(c, C.DualEncoder) else Transformer(c)


def reads(front: C.FrontEnd, batch: int = B, context: int = N) -> dict[str, Tensor]:
    """What a front end is given, by name; of senses, examples without content."""
    if isinstance(front, C.MultimodalEmbedding):
        return {"ids": reads(front.text, batch, context)["ids"], "seen": reads(front.seen, batch)["ids"]}
    if isinstance(front, C.StageEmbedding):
        return reads(front.patches, batch)
    if isinstance(front, C.PatchEmbedding | C.ConvEmbedding):
        return {"ids": torch.randn(batch, front.channels, front.image, front.image)}
    if isinstance(front, C.PixelEmbedding):
        return {"ids": torch.randint(front.palette, (batch, *front.grid))}
    if isinstance(front, C.TextEmbedding):
        return {"ids": torch.randint(1, front.vocab, (batch, context))}
    own = build_processor(front)
    return own.collate([own.blank(context)] * batch, None)


def run(made: nn.Module, batch: int = B, context: int = N) -> Tensor:
    """One forward pass on random data; of a pair of answers, something that depends on both."""
    c = made.c
    if isinstance(c, C.DualEncoder):
        return made(*(reads(tower.embed, batch, context)["ids"] for tower in c.towers))
    rest = {} if c.encoder is None else {"source": reads(c.encoder.embed or c.embed, batch, context)["ids"]}
    given = reads(c.embed, batch, context)
    return made(given.pop("ids"), **given, **rest)


def together(out: Tensor | tuple[Tensor, ...]) -> Tensor:
    return sum(each.sum() for each in out) if isinstance(out, tuple) else out.sum()
