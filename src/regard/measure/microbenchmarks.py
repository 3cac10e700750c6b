"""Microbenchmarks of a calibration: each probe runs one operation, at a size that occurs in models.

The ladder of most probes is not declared: they run once under an `OpTrace`, which charges for them as for a step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.layers import product_dtype
from regard.core.model import Transformer
from regard.measure.op_trace import LARGE_BLOCK, OpCharge, OpTrace
from regard.measure.step_work import fake_step_loss, trace_step

aten = torch.ops.aten
ProbeCall = Callable[[], object]
WIDE = 512
NEAR = 2**15  # numbers that fit the nearest cache


@dataclass(frozen=True)
class ProbeSizes:
    """Sizes of probes on a kind of device: `rows` of WIDE numbers fit its caches, and `large` numbers fit none."""

    rows: tuple[int, ...]
    large: int
    shapes: tuple[tuple[int, int, int], ...]  # rows, in, out
    squares: tuple[tuple[int, int, int], ...]  # heads, tokens, width
    looks: tuple[tuple[int, int, int], ...]
    updates: tuple[int, ...]  # parameters


SIZES = {
    "cpu": ProbeSizes(
        rows=(256, 2048), large=3 * 2**22, squares=((48, 64, 32), (24, 256, 64)), looks=((24, 128, 32), (4, 640, 64)),
        shapes=((96, 48, 64), (768, 128, 96), (768, 128, 512), (1024, 384, 512), (1024, 512, 1024)),
        updates=(2**17, 2**22),
    ),
    "cuda": ProbeSizes(
        rows=(4096, 65_536), large=2**27, squares=((96, 256, 64), (96, 1024, 64)),
        looks=((96, 256, 64), (96, 1024, 64)), updates=(2**20, 2**26),
        shapes=((1024, 384, 512), (4096, 768, 768), (8192, 768, 3072), (8192, 1024, 4096), (8192, 768, 50_304)),
    ),
}  # fmt: skip
MODELS = {  # dim, vocabulary, batch, context of a small model and a larger one
    "cpu": ((128, 99, 12, 64), (384, 2999, 4, 192)),
    "cuda": ((384, 999, 16, 256), (1024, 9999, 16, 512)),
}
PAGE = 4096  # bytes of a page of memory
TINY = config.Transformer(
    embed=config.TextEmbedding(vocab=8),
    trunk=config.Trunk(dim=8, depth=2, mask="causal", attention=config.Attention(heads=2)),
)


def probe_sizes(device: str) -> ProbeSizes:
    return SIZES.get(device, SIZES["cpu"])


def probes(device: str) -> Iterator[tuple[OpCharge, ProbeCall]]:
    """All probes, each with the charge that it measures."""
    yield from overhead_probes(device)
    for dtype in {torch.float32: 0, product_dtype(device): 0}:  # emulated dtypes are never used
        for call in operation_probes(device, dtype):
            yield probe_charge(call), call


def probe_charge(call: ProbeCall) -> OpCharge:
    """The charge of an operation in a model, without its call overhead."""
    with OpTrace() as record:
        call()
    found: OpCharge
    (found,) = (each for each in record.charges if each[0] not in ("call", "fresh"))
    return found


# ---------------------------------------------------------------- overheads


def overhead_probes(device: str) -> Iterator[tuple[OpCharge, ProbeCall]]:
    """Probes of the call overhead, with all Python above it; of a kernel launch; of new memory; of the optimizer."""
    model, ids = Transformer(TINY).to(device), torch.zeros(1, 4, dtype=torch.long, device=device)
    yield ("call", trace_step(TINY, 1, 4, device, False).charges["call", 1]), partial(run_step, model, ids)
    yield kernel_probe(device)
    yield ("fresh", 2 * LARGE_BLOCK), partial(touch_memory, 2 * LARGE_BLOCK, device)
    x, y = (torch.zeros(NEAR, device=device, dtype=torch.bfloat16) for _ in range(2))
    yield ("touch", 3 * NEAR), partial(x.add_, y)
    for count in probe_sizes(device).updates:
        yield ("update", count), optimizer_probe(count, device)


def run_step(model: nn.Module, ids: Tensor) -> None:
    model.zero_grad()
    fake_step_loss(model(ids)).backward()


def kernel_probe(device: str, many: int = 64) -> tuple[OpCharge, ProbeCall]:
    """A minimal kernel; on a GPU many of them in a captured graph, as compiled steps run."""
    x, y, z = (torch.zeros(8, device=device) for _ in range(3))
    if device != "cuda":
        return ("kernel", 1), partial(torch.add, x, y, out=z)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(many):
            torch.add(x, y, out=z)
    return ("kernel", many), graph.replay


def touch_memory(size: int, device: str) -> None:
    torch.empty(size, dtype=torch.uint8, device=device)[::PAGE].zero_()


def optimizer_probe(count: int, device: str) -> ProbeCall:
    """The work of an optimizer step for so many parameters, gradients given."""
    weight = nn.Parameter(torch.zeros(count, device=device))
    weight.grad = torch.ones_like(weight)
    return partial(run_update, [weight], make_adam([weight]))


def make_adam(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=1e-5, fused=True)


def run_update(weights: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    optimizer.step()


# ---------------------------------------------------------------- whole steps


def step_probes(device: str) -> Iterator[tuple[config.Transformer, int, int, ProbeCall]]:
    """Whole training steps of small and larger models, in fp32 and mixed: config, batch, context, and the step."""
    precisions: tuple[Literal["fp32", "mixed"], ...] = ("fp32", "mixed")
    for precision in precisions[: 1 if product_dtype(device) == torch.float32 else 2]:
        for dim, vocab, batch, context in MODELS.get(device, MODELS["cpu"]):
            c = probe_model(dim, vocab, context, precision)
            model = Transformer(c).to(device)
            ids = torch.zeros(batch, context, dtype=torch.long, device=device)
            weights = list(model.parameters())
            yield c, batch, context, partial(run_train_step, model, ids, weights, make_adam(weights))


def probe_model(dim: int, vocab: int, context: int, precision: Literal["fp32", "mixed"]) -> config.Transformer:
    trunk = config.Trunk(
        dim=dim,
        depth=2,
        mask="causal",
        position=config.LearnedPosition(length=context),
        mlp=config.MLP(activation="gelu"),
        attention=config.Attention(heads=dim // 32),
        dropout=config.NO_DROPOUT,
    )
    return config.Transformer(embed=config.TextEmbedding(vocab=vocab), trunk=trunk, init="gpt2", precision=precision)


def run_train_step(
    model: nn.Module, ids: Tensor, weights: list[nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    run_step(model, ids)
    run_update(weights, optimizer)


# ---------------------------------------------------------------- operations


def operation_probes(device: str, dtype: torch.dtype) -> Iterator[ProbeCall]:
    """Probes of products, attention and elementwise operations in one dtype."""
    draw = partial(torch.randn, device=device, dtype=dtype)
    for rows, wide, out in probe_sizes(device).shapes:
        yield partial(torch.mm, draw(rows, wide), draw(out, wide).mT)
        yield partial(torch.mm, draw(wide, rows).mT, draw(wide, out))
    for heads, tokens, width in probe_sizes(device).squares:
        yield partial(torch.bmm, draw(heads, tokens, width), draw(heads, tokens, width).mT)  # scores
        yield partial(torch.bmm, draw(heads, tokens, tokens), draw(heads, tokens, width))  # weighted sums
    for heads, tokens, width in probe_sizes(device).looks:
        yield from attention_probes(draw, heads, tokens, width)
    for rows in probe_sizes(device).rows:
        x, y = draw(rows, WIDE), draw(rows, WIDE)
        yield from pointwise_probes(x, y)
        split = x.view(4, rows // 4, 8, -1).transpose(1, 2)  # the layout of attention heads
        yield partial(split.clone, memory_format=torch.contiguous_format)
        yield partial(torch.mul, split[..., :32], y[: rows // 4, :32])
    large = probe_sizes(device).large
    yield partial(draw(large).add_, draw(large))


def attention_probes(draw: Callable[..., Tensor], heads: int, tokens: int, width: int) -> Iterator[ProbeCall]:
    q, k, v = (draw(1, heads, tokens, width).requires_grad_() for _ in range(3))
    yield partial(without_warnings, F.scaled_dot_product_attention, q, k, v, is_causal=True)
    with torch.enable_grad():
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    yield partial(torch.autograd.grad, out, (q, k, v), torch.ones_like(out), retain_graph=True)


def without_warnings(call: Callable[..., object], *args: object, **rest: object) -> object:
    with torch.no_grad():
        return call(*args, **rest)


def pointwise_probes(x: Tensor, y: Tensor) -> Iterator[ProbeCall]:
    """Probes of operations besides products and attention; each backward takes the gradient y."""
    gain, kind = torch.ones_like(x[0]), x.dtype
    square = x.view(-1, min(WIDE, x.shape[0]), WIDE)
    future = torch.ones_like(square[0], dtype=torch.bool).triu(1)
    soft, log = x.softmax(-1), x.log_softmax(-1)
    _, mean, rstd = aten.native_layer_norm(x, (WIDE,), gain, gain, 1e-5)
    yield partial(torch.add, x, y)
    for how in ("none", "tanh"):
        yield partial(aten.gelu, x, approximate=how)
        yield partial(aten.gelu_backward, y, x, approximate=how)
    yield partial(aten.silu, x)
    yield partial(aten.silu_backward, y, x)
    yield partial(aten._softmax, x, -1, False)
    yield partial(aten._softmax_backward_data, y, soft, -1, kind)
    yield partial(aten._log_softmax, x, -1, False)
    yield partial(aten._log_softmax_backward_data, y, log, -1, kind)
    yield partial(aten.native_layer_norm, x, (WIDE,), gain, gain, 1e-5)
    yield partial(aten.native_layer_norm_backward, y, x, (WIDE,), mean, rstd, gain, gain, [True, True, True])
    yield partial(aten.masked_fill, square, future, 0.0)
    yield partial(torch.empty_like(x).bernoulli_, 0.9)
