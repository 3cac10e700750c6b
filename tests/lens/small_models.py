"""One small model of every shape, with noise on every weight, something for it to read, and heads it can lose."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from parity.tolerance import randomise
from torch import Tensor

from regard import config as C
from regard.inference.model import Model
from regard.models.dual_encoder import DualEncoder

DIM, HEADS, DEPTH, VOCAB, B, N, S = 12, 3, 2, 23, 3, 11, 7
Heads = dict[str, list[int]]


@dataclass(frozen=True)
class Shape:
    """How to make a model, what it reads, which heads to take away, and where its heads stand."""

    make: Callable[[], Any]
    reads: Callable[[], tuple[Any, ...]]
    gone: Heads
    named: dict[str, Any] = field(default_factory=dict)
    places: tuple[str, ...] = ("trunk.0.attn", "trunk.1.attn")

    def model(self, seed: int = 0) -> Any:
        torch.manual_seed(seed)
        made = self.make().eval()
        randomise(made)
        return made

    def ask(self, model: Any) -> Tensor:
        """What the model says, as one tensor."""
        torch.manual_seed(1)
        with torch.no_grad():
            told = model(*self.reads(), **self.named)
        return torch.cat([x.flatten() for x in told]) if isinstance(told, tuple) else told


def trunk(**said: Any) -> C.Trunk:
    base = dict(dim=DIM, depth=DEPTH, position=C.NoPosition(), attention=C.Attention(heads=HEADS),
                mlp=C.MLP(hidden=17), dropout=C.NO_DROPOUT)  # fmt: skip
    return C.Trunk(**(base | said))


def text(head: C.Head | None = None, embed: C.TextEmbedding | None = None, **said: Any) -> Callable[[], Model]:
    whole = C.Transformer(embed=embed or C.TextEmbedding(vocab=VOCAB), trunk=trunk(**said), head=head or C.LMHead())
    return lambda: Model(whole)


def translator(source: dict[str, Any], **said: Any) -> Callable[[], Model]:
    whole = C.Transformer(embed=C.TextEmbedding(vocab=VOCAB, pad_id=0), encoder=C.Encoder(trunk=trunk(**source)),
                          trunk=trunk(**({"mask": "causal", "cross": "last"} | said)))  # fmt: skip
    return lambda: Model(whole)


PATCHES = C.PatchEmbedding(patch_size=2, image_size=6, channels=3)  # nine of them and a learned token
VIT = C.Transformer(
    embed=PATCHES, trunk=trunk(position=C.LearnedPosition(length=10)), head=C.PoolingHead(pooling="cls", out=5)
)
STAGES = C.Transformer(
    embed=C.StageEmbedding(
        patches=C.PatchEmbedding(patch_size=2, image_size=12, channels=3, cls_tokens=False, norm=True),  # 6 x 6
        trunks=(trunk(dim=6, depth=2, attention=C.Attention(heads=2), mask=("window2d(3)", "window2d(3, 1)"),
                      position=C.RelativeBias(max_distance=2, axes=2, scaled=False, tables="layer")),),
    ),
    trunk=trunk(mask="window2d(3)", position=C.RelativeBias(max_distance=2, axes=2, scaled=False, tables="layer")),
    head=C.PoolingHead(pooling="mean", out=5),
)  # fmt: skip
WORDS = C.Transformer(
    embed=C.TextEmbedding(vocab=VOCAB, eos_id=VOCAB - 1),
    trunk=trunk(mask="causal", position=C.LearnedPosition(length=N)),
    head=C.PoolingHead(pooling="eos", out=5, bias=False),
)  # fmt: skip


def ids(low: int = 1) -> tuple[Tensor]:
    return (torch.randint(low, VOCAB, (B, N)),)


def ragged() -> tuple[Tensor]:
    """Rows of different lengths, padded on the right with zeros."""
    (rows,) = ids()
    rows[1, 8:], rows[2, 5:] = 0, 0
    return (rows,)


def images() -> tuple[Tensor]:
    return (torch.randn(B, 3, 6, 6),)


SOURCE = {"source": torch.randint(1, VOCAB, (B, S), generator=torch.Generator().manual_seed(5))}
SOURCE["source"][1, 4:] = 0  # padding
SEEN = torch.randn(B, 3, 12, 12, generator=torch.Generator().manual_seed(5))
CROSSED = ("encoder.0.attn", "encoder.1.attn", "trunk.0.attn", "trunk.0.cross", "trunk.1.attn", "trunk.1.cross")

SHAPES: dict[str, Shape] = {
    "decoder": Shape(text(mask="causal", position=C.LearnedPosition(length=31)), ids, {"trunk.0.attn": [1]}),
    "windowed decoder": Shape(
        text(mask=("causal", "causal & window(3)"), position=C.RotaryPosition()),
        ids,
        {"trunk.0.attn": [0, 2], "trunk.1.attn": [2]},
    ),
    "attention only": Shape(
        text(mask="causal", position=C.LearnedPosition(length=31, mode="qk"), mlp=C.MLP(kind="none")),
        ids,
        {"trunk.0.attn": [2], "trunk.1.attn": [0]},
    ),
    "encoder": Shape(
        text(
            position=C.LearnedPosition(length=31),
            norm_placement="post",
            embed_norm=True,
            embed=C.TextEmbedding(vocab=VOCAB, pad_id=0),
            head=C.PretrainingHead(lm=C.LMHead(transform=True), pooling=C.PoolingHead(dense=True, out=2)),
        ),
        ragged,
        {"trunk.1.attn": [0, 1]},
    ),
    "grouped": Shape(
        text(
            mask="causal",
            position=C.RotaryPosition(),
            norm=C.Norm(kind="rms"),
            attention=C.Attention(
                heads=6, kv_heads=3, head_dim=4, value_head_dim=5, bias=("q", "v"), qk_norm=C.Norm(kind="rms")
            ),
        ),
        ids,
        {"trunk.0.attn": [2, 3], "trunk.1.attn": [0, 1, 4, 5]},
    ),
    "shared": Shape(
        text(share_layers=True, embed_dim=7, depth=3, head=C.LMHead(transform=True)),
        ids,
        {"trunk.*.attn": [1]},
        places=tuple(f"trunk.{i}.attn" for i in range(3)),
    ),
    "translator": Shape(
        translator({}, position=C.SinusoidalPosition()),
        ids,
        {"trunk.1.cross": [0], "encoder.0.attn": [2]},
        SOURCE,
        CROSSED,
    ),
    "t5": Shape(
        translator(
            {"position": C.T5Bias(num_buckets=8, max_distance=16)},
            position=C.T5Bias(num_buckets=8, max_distance=16, bidirectional=False),
            attention=C.Attention(heads=HEADS, scale=1.0, bias=()),
        ),
        ragged,
        {"encoder.0.attn": [1], "trunk.*.attn": [0], "trunk.0.cross": [1, 2]},
        SOURCE,
        CROSSED,
    ),
    "layerwise": Shape(
        translator({}, cross="layerwise"), ids, {"trunk.0.attn": [0], "trunk.1.attn": [1]}, SOURCE, CROSSED
    ),
    "captioner": Shape(
        lambda: Model(
            C.Transformer(
                embed=C.TextEmbedding(vocab=VOCAB),
                encoder=C.Encoder(trunk=trunk(), embed=STAGES.embed),
                trunk=trunk(mask="causal", cross="last", position=C.RotaryPosition()),
            )
        ),
        ids,
        {"encoder_embed.0.0.attn": [0], "trunk.1.cross": [0, 1]},
        {"source": SEEN},
        ("encoder_embed.0.0.attn", "encoder_embed.0.1.attn", *CROSSED),
    ),
    "relative": Shape(text(mask="causal", position=C.RelativeBias(max_distance=3)), ids, {"trunk.0.attn": [2]}),
    "shaw": Shape(
        text(mask="causal", position=C.ShawPosition(max_distance=3, tables="shared")), ids, {"trunk.1.attn": [0, 2]}
    ),
    "vit": Shape(lambda: Model(VIT), images, {"trunk.0.attn": [0], "trunk.1.attn": [1, 2]}),
    "stages": Shape(
        lambda: Model(STAGES),
        lambda: (torch.randn(B, 3, 12, 12),),
        {"embed.0.1.attn": [1], "trunk.0.attn": [0]},
        places=("embed.0.0.attn", "embed.0.1.attn", "trunk.0.attn", "trunk.1.attn"),
    ),
    "pixels": Shape(
        lambda: Model(
            C.Transformer(
                embed=C.PixelEmbedding(palette=VOCAB - 1, grid=(3, 5)),
                head=C.LMHead(tied=False, vocab=VOCAB - 1),
                trunk=trunk(mask="causal", position=C.LearnedPosition(length=15)),
            )
        ),
        lambda: (torch.randint(VOCAB - 1, (B, 3, 5)),),
        {"trunk.0.attn": [0]},
    ),
    "towers": Shape(
        lambda: DualEncoder(C.DualEncoder(towers=(VIT, WORDS))),
        lambda: (*images(), *ids()),
        {"towers.0.trunk.1.attn": [0], "towers.1.trunk.0.attn": [1, 2]},
        places=tuple(f"towers.{i}.trunk.{j}.attn" for i in range(2) for j in range(2)),
    ),
}
