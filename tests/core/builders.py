"""Small things that many tests are made of: places, asks, models. Sizes are odd and differ, so swapped axes show."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace

import torch
from parity.tolerance import randomise
from torch import Tensor, nn

from regard import config as C
from regard.core.kernels import KERNELS, AttentionArgs, AttentionSpec, make_plan
from regard.core.layers import Scope
from regard.core.masks import FULL, Mask, mask
from regard.core.model import Transformer, Trunk
from regard.core.positions import Bias, Position, PreparedPosition, build_position
from regard.core.tokens import TokenLayout, Tokens, sequence_tokens

B, H, Q, K, D, E = 2, 3, 5, 7, 9, 11  # D: width of q and k in a head, E: that of v
DIM, VOCAB = 12, 23
GRID = (3, 5)

# What each mask means, once more in plain Python. Here q and k are single tokens.
MEANINGS: dict[str, Callable[[SimpleNamespace, SimpleNamespace], bool]] = {
    "full": lambda q, k: True,
    "causal": lambda q, k: k.order <= q.order,
    "prefix(3)": lambda q, k: k.order < 3 or k.order <= q.order,
    "window(2)": lambda q, k: -2 <= k.order - q.order <= 2,
    "strided(3)": lambda q, k: (q.order - k.order) % 3 == 0,
    "dilated(2, 3)": lambda q, k: k.order - q.order in (-6, -3, 0, 3, 6),
    "blocks(3)": lambda q, k: q.order // 3 == k.order // 3,
    "global_tokens(2)": lambda q, k: q.order < 2 or k.order < 2,
    "padding": lambda q, k: k.real,
    "documents": lambda q, k: q.document == k.document,
    "edges": lambda q, k: k.index in q.neighbours or k.index == q.index,
    "edges(0)": lambda q, k: k.index in q.neighbours and k.index != q.index,
    "window2d(2)": lambda q, k: [at // 2 for at in q.at] == [at // 2 for at in k.at],
    "window2d(3, 1)": lambda q, k: [(at - 1) // 3 for at in q.at] == [(at - 1) // 3 for at in k.at],
    "~causal": lambda q, k: k.order > q.order,
    "causal & padding": lambda q, k: k.order <= q.order and k.real,
    "causal & documents & padding": lambda q, k: k.order <= q.order and q.document == k.document and k.real,
    "causal & (window(1) | global_tokens(1))": lambda q, k: (
        k.order <= q.order and (abs(k.order - q.order) <= 1 or k.order < 1 or q.order < 1)
    ),
    "~(causal & window(2)) | edges": lambda q, k: (
        not (k.order <= q.order and abs(k.order - q.order) <= 2) or k.index in q.neighbours or k.index == q.index
    ),
}

# Positions by kind: every one that a model of width DIM on a single axis can have.
POSITIONS: dict[str, C.Position] = {
    "none": C.NoPosition(),
    "sinusoidal": C.SinusoidalPosition(),
    "sinusoidal beside": C.SinusoidalPosition(mode="concat", dim=4),
    "sinusoidal lean": C.SinusoidalPosition(mode="qk"),
    "learned": C.LearnedPosition(length=31),
    "learned lean": C.LearnedPosition(length=31, mode="qk"),
    "onehot": C.OneHotPosition(length=31),
    "rotary": C.RotaryPosition(),
    "rotary interleaved, in part": C.RotaryPosition(layout="interleaved", fraction=0.5),
    "alibi": C.AlibiPosition(),
    "t5": C.T5Bias(num_buckets=8, max_distance=16, bidirectional=False),
    "shaw": C.ShawPosition(max_distance=3),
    "relative": C.RelativeBias(max_distance=3),
    "relative outside": C.RelativeBias(max_distance=3, scaled=False, tables="layer"),
}
PLACED = {name: {"position": c} | ({"embed_dim": 7} if c.kind == "onehot" else {}) for name, c in POSITIONS.items()}
BIASES = {name: POSITIONS[name] for name in ("alibi", "t5", "shaw", "relative", "relative outside")}


# ---------------------------------------------------------------- places


def scattered(count: int, keys: int, seed: int = 0) -> TokenLayout:
    """Tokens in any order, padded here and there, of several documents, on a plane, joined at random."""
    chance = torch.Generator().manual_seed(seed)

    def upto(most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=chance)

    return TokenLayout(
        order=torch.stack([torch.randperm(count + 2, generator=chance)[:count] for _ in range(B)]),
        coords=upto(9, B, count, 2) - 3,
        is_real=upto(3, B, count) > 0,
        document=upto(3, B, count),
        edges=upto(3, B, count, keys) == 0,
    )


def scattered_pair(seed: int = 0, queries: int = Q, keys: int = K) -> tuple[TokenLayout, TokenLayout]:
    return scattered(queries, keys, seed), scattered(keys, keys, seed + 1)


def meant(text: str, q: TokenLayout, k: TokenLayout) -> Tensor:
    """(B, Q, K) by asking the plain Python meaning about every pair."""
    allows = MEANINGS[text]
    rows = [
        [[allows(token(q, b, i), token(k, b, j)) for j in range(k.count)] for i in range(q.count)]
        for b in range(q.batch)
    ]
    return torch.tensor(rows)


def token(places: TokenLayout, b: int, i: int) -> SimpleNamespace:
    return SimpleNamespace(
        index=i, order=int(places.order[b, i]), at=places.coords[b, i].tolist(), real=bool(places.is_real[b, i]),
        document=int(places.document[b, i]), neighbours=places.edges[b, i].nonzero().flatten().tolist(),
    )  # fmt: skip


def asking(
    m: Mask | str = FULL, q: TokenLayout | None = None, k: TokenLayout | None = None, **rest: object
) -> AttentionSpec:
    m = mask(m) if isinstance(m, str) else m
    q = sequence_tokens(torch.empty(B, Q, 0)) if q is None else q
    return AttentionSpec(mask=m, q=q, k=q if k is None else k, **rest)


# ---------------------------------------------------------------- kernels


def heads_of(q: int, k: int, heads: int = H, kv_heads: int | None = None, dtype: torch.dtype = torch.float32):
    """Random q (B, H, Q, D), k (B, G, K, D), v (B, G, K, E) that want gradients."""
    shapes = (heads, q, D), (kv_heads or heads, k, D), (kv_heads or heads, k, E)
    return [torch.randn(B, *shape, dtype=dtype, requires_grad=True) for shape in shapes]


def attend(
    name: str, q: Tensor, k: Tensor, v: Tensor, ask: AttentionSpec, scale: float = D**-0.5, bias: Bias | None = None
):
    """One attention through the plan, as a layer calls it."""
    ask = replace(ask, bias=bias is not None, dtype=q.dtype)
    return make_plan(name, ask, heads=q.shape[1]).run(q, k, v, AttentionArgs(scale, bias=bias))


def biased(c: C.Position, heads: int, width: int = D) -> Position:
    """A position with noise in its tables: fresh ones are empty."""
    made = build_position(c, DIM, heads, width)
    for table in made.parameters():
        nn.init.normal_(table)
    return made


PARTIAL = ("flex", "varlen", "window2d", "local", "native_decode")  # for some masks or devices alone: laws of their own
CPU_KERNELS = [name for name, kernel in KERNELS.items() if kernel.exact and name not in PARTIAL]
DROPPING = [name for name in CPU_KERNELS if name != "tiled_flash"]  # who drops attention weights


# ---------------------------------------------------------------- models


def trunk(**said: object) -> C.Trunk:
    """The settings of a small trunk without dropout."""
    base = dict(
        dim=DIM, depth=2, position=C.NoPosition(), attention=C.Attention(heads=H), mlp=C.MLP(hidden=17),
        dropout=C.NO_DROPOUT,
    )  # fmt: skip
    return C.Trunk(**(base | said))


def model(
    *,
    embed: C.TextEmbedding | None = None,
    head: C.Head | None = None,
    init: str = "xavier",
    precision: str = "fp32",
    encoder: C.Encoder | None = None,
    seed: int = 0,
    **said: object,
) -> Transformer:
    """A small model with noise on every weight, ready to be asked."""
    torch.manual_seed(seed)
    c = C.Transformer(
        embed=embed or C.TextEmbedding(vocab=VOCAB), trunk=trunk(**said), head=head or C.LMHead(tied=False),
        encoder=encoder, init=init, precision=precision,
    )  # fmt: skip
    made = Transformer(c).eval()
    randomise(made)
    return made


def translator(source: dict | None = None, **said: object) -> Transformer:
    """A small encoder-decoder."""
    return model(encoder=C.Encoder(trunk=trunk(**(source or {}))), **({"mask": "causal", "cross": "last"} | said))


def stack(**said: object) -> Trunk:
    """A trunk that takes vectors."""
    return model(head=C.NoHead(), **said).trunk


def ids_of(*shape: int, low: int = 1) -> Tensor:
    return torch.randint(low, VOCAB, shape)


def padded(ids: Tensor, left: int, right: int, fill: int | None = None) -> tuple[Tensor, Tensor, slice]:
    """ids with padding on both sides, which of them are real, and where they are."""
    count = ids.shape[1]
    sides = [ids_of(len(ids), n) if fill is None else torch.full((len(ids), n), fill) for n in (left, right)]
    real = torch.zeros(len(ids), left + count + right, dtype=torch.bool)
    real[:, left : left + count] = True
    return torch.cat([sides[0], ids, sides[1]], 1), real, slice(left, left + count)


def scope(x: Tensor, m: str = "full", kernel: str = "reference", place: PreparedPosition | None = None) -> Scope:
    """What a block must know to run alone on vectors in a row."""
    return Scope(plan=make_plan(kernel, asking(m, sequence_tokens(x))), position=place or PreparedPosition())


def padded_tokens(x: Tensor, real: Tensor) -> Tokens:
    tokens = sequence_tokens(x)
    tokens.order, tokens.is_real, tokens.is_plain = (real.cumsum(-1) - 1).clamp(min=0), real, False
    return tokens


def parameters(*modules: nn.Module) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())


def gradients(out: Tensor, inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of a random mix of the output: a plain sum is blind to much."""
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=out.dtype)
    return torch.autograd.grad((out * probe).sum(), list(inputs))
