"""Small models of every shape, with what they read: sizes are odd and differ, so swapped axes show."""

from dataclasses import replace

import torch
from core.builders import translator, trunk
from torch import Tensor, nn

from regard import config as C
from regard.core.model import Transformer
from regard.inputs.processors import build_processor
from regard.models.dual_encoder import DualEncoder

B, N, VOCAB = 3, 29, 23
GATED = C.MLP(hidden=19, gated=True, activation="silu")
GROUPED = C.Attention(heads=6, kv_heads=2, head_dim=4)
CLASSES = C.PoolingHead(pooling="mean", out=5)


def config(**said: object) -> C.Transformer:
    head, precision = said.pop("head", C.LMHead(tied=False)), said.pop("precision", "fp32")
    said = {"attention": C.Attention(heads=3), "mask": "causal"} | said
    return C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk(**said), head=head, precision=precision)


def image(embed: C.FrontEnd, **said: object) -> C.Transformer:
    return C.Transformer(embed=embed, trunk=trunk(**said), head=CLASSES)


WINDOWS = dict(
    mask=("window2d(3)", "window2d(3, 2)"),
    position=C.RelativeBias(max_distance=2, axes=2, scaled=False, tables="layer"),
)
PATCHES = C.PatchEmbedding(patch_size=5, image_size=35)
STAGES = C.StageEmbedding(
    patches=C.PatchEmbedding(patch_size=3, image_size=42, cls_tokens=False, norm=True),
    trunks=(trunk(depth=4, **WINDOWS),),
)

SERIES = C.SeriesEmbedding(channels=3, length=21, patch_length=5, stride=3)

SHAPES: dict[str, C.Transformer | C.DualEncoder] = {
    "plain": config(),
    "gated, grouped heads": config(mlp=GATED, attention=GROUPED, position=C.RotaryPosition()),
    "attention only": config(mlp=C.MLP(kind="none"), depth=3),
    "embedding of another width": config(embed_dim=7, depth=3),
    "shared layers": config(share_layers=True, depth=5),
    "Shaw's positions": config(position=C.ShawPosition(max_distance=3)),
    "T5's buckets": config(position=C.T5Bias(num_buckets=8, max_distance=16, bidirectional=False), depth=3),
    "learned positions, post-norm": config(position=C.LearnedPosition(length=31), norm_placement="post", depth=5),
    "wide values": config(attention=C.Attention(heads=3, head_dim=5, value_head_dim=9)),
    "dropout everywhere": config(dropout=C.Dropout(embed=0.1, attention=0.2, mlp=0.1, residual=0.3), depth=3),
    "masks in turn": config(mask=("causal", "causal & window(3)", "causal & global_tokens(2)"), depth=7),
    "a window in chunks": config(mask="causal & window(5)", attention=C.Attention(heads=3, kernel="local"), depth=3),
    "other heads in every layer": config(
        attention=C.Attention(heads=(3, 1, 2), kv_heads=(1, 1, 2), head_dim=4), depth=3),
    "both heads of BERT": config(head=C.PretrainingHead(), mask="full"),
    "one vector": config(head=C.PoolingHead(dense=True, out=5), mask="full"),
    "no head": config(head=C.NoHead()),
    "translator": translator(source={"depth": 3}, depth=4).c,
    "translator, layer by layer": translator(source={"depth": 3}, depth=3, cross="layerwise").c,
    "translator with other heads across": translator(cross_attention=C.Attention(heads=2, head_dim=5), depth=3).c,
    "patches": image(PATCHES, position=C.LearnedPosition(length=50), depth=3),
    "pixels": replace(config(position=C.LearnedPosition(length=35)), embed=C.PixelEmbedding(palette=22, grid=(5, 7)),
                      head=C.LMHead(tied=False, vocab=22)),
    "stages": image(STAGES, dim=24, attention=C.Attention(heads=2), mask="window2d(7)",
                    position=C.RelativeBias(max_distance=6, axes=2, tables="layer"), depth=2),
    "convolutions": image(C.ConvEmbedding(image_size=12, widths=(5, 7), blocks_per_stage=2), depth=3),
    "series, channel by channel": replace(image(SERIES), head=C.ForecastHead(horizon=7, linear_skip=True)),
    "series, all channels": replace(image(replace(SERIES, channel_mixing="mixed")),
                                    head=C.ForecastHead(horizon=7, linear_skip=True)),
    "spectrograms": image(
        C.AudioEmbedding(sample_rate=800, max_seconds=0.5,
                         features=C.MelSpectrogram(win_length=50, hop_length=20, n_mels=6, frames_per_token=3))
    ),
    "convolved sound": image(
        C.AudioEmbedding(sample_rate=800, max_seconds=0.5,
                         features=C.ConvSpectrogram(win_length=50, hop_length=20, n_mels=6))
    ),
    "raw sound": image(C.AudioEmbedding(sample_rate=800, max_seconds=0.25, features=C.RawFrames(frame_size=9))),
    "sound at several rates": image(
        C.AudioEmbedding(sample_rate=800, max_seconds=0.25, features=C.MultiRateFrames(frame_size=9, strides=(5, 1)))
    ),
    "film": image(C.VideoEmbedding(frames=4, image_size=9, patch_size=3), depth=3),
    "graph": image(
        C.GraphEmbedding(features=11, random_walk_pe=3, max_degree=5, hops=2, max_nodes=13), mask="edges",
        position=C.NoPosition()
    ),
    "graph of tags, distances": image(C.GraphEmbedding(num_tags=5, max_nodes=13),
                                      position=C.GraphDistanceBias(max_distance=3)),
    "every node answers": replace(image(C.GraphEmbedding(num_tags=5, max_nodes=13), position=C.NoPosition()),
                                  head=C.TokenHead(out=5)),
    "picture and text": replace(config(mask="prefix(49)"),
                                embed=C.MultimodalEmbedding(prefix=replace(PATCHES, cls_tokens=False),
                                                            text=C.TextEmbedding(vocab=VOCAB))),
    "chunks": image(C.ChunkEmbedding(vocab=VOCAB, chunk_size=8, trunk=trunk(depth=3))),
    "towers": C.DualEncoder(towers=(config(head=CLASSES, depth=3), image(PATCHES, depth=4))),
}  # fmt: skip


def build(c: C.Transformer | C.DualEncoder) -> nn.Module:
    return DualEncoder(c) if isinstance(c, C.DualEncoder) else Transformer(c)


def reads(front: C.FrontEnd, batch: int = B, context: int = N) -> dict[str, Tensor]:
    """What a front end is given, by name; of senses, examples without content."""
    if isinstance(front, C.MultimodalEmbedding):
        return {"ids": reads(front.text, batch, context)["ids"], "seen": reads(front.prefix, batch)["ids"]}
    if isinstance(front, C.StageEmbedding):
        return reads(front.patches, batch)
    if isinstance(front, C.PatchEmbedding | C.ConvEmbedding):
        return {"ids": torch.randn(batch, front.channels, front.image_size, front.image_size)}
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
