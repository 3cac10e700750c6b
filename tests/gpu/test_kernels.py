"""Kernels on the GPU mean what `reference` means, in value and gradient, and nothing is read back to the host."""

from unittest import SkipTest

import torch
from torch.nn.attention import sdpa_kernel

import regard
from cases import cases, spec
from regard import config as C
from regard.core.kernels import KERNELS, MASKED_BACKENDS, AttentionArgs, AttentionSpec, Plan, choose_kernel
from regard.core.masks import CAUSAL, DOCUMENTS, FULL, PADDING
from regard.core.positions import build_position
from regard.core.tokens import Tokens, grid_tokens
from regard.inputs.text import token_order

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
MASKS = ["full", "causal", "window(40)", "causal & (window(64) | global_tokens(2))", "prefix(33)", "blocks(70)",
         "causal & dilated(5, 7)", "padding", "causal & documents", "documents & padding", "edges"]  # fmt: skip
BIASES = {
    "none": C.NoPosition(),
    "alibi": C.AlibiPosition(),
    "t5": C.T5Bias(),
    "relative": C.RelativeBias(),
    "shaw": C.ShawPosition(),
}


def tokens(B=3, N=200):
    """Rows with padding on the left or right, packed documents and a random graph."""
    real = torch.ones(B, N, dtype=torch.bool, device=DEVICE)
    real[0, : N // 5] = False
    real[1, -N // 7 :] = False
    document = torch.randint(0, 4, (B, N), device=DEVICE).sort(-1).values
    edges = torch.rand(B, N, N, device=DEVICE) < 0.2
    edges[2, 5] = False  # a node with nobody to look at but itself
    order = token_order(real, real, None, None)
    return Tokens(x=real[..., None].float(), order=order, is_real=real, document=document, edges=edges)


def heads(B, N, H=4, G=2, d=64, dtype=torch.float32):
    sizes = ((B, H, N, d), (B, G, N, d), (B, G, N, d))
    return [torch.randn(size, device=DEVICE, dtype=dtype, requires_grad=True) for size in sizes]


def run(name, mask, where, qkv, bias):
    dtype = qkv[0].dtype
    ask = AttentionSpec(mask=mask, q=where, k=where, bias=bias.biased, grad=True, dtype=dtype, device=DEVICE)
    why = KERNELS[name].unsupported_reason(ask)
    if why:
        raise SkipTest(f"{name} {why}")
    out = Plan(KERNELS[name], "test", ask).run(*qkv, AttentionArgs(0.125, 0.0, bias.bias_for(qkv[0], 0.125)))
    weight = torch.linspace(-1, 1, out.numel(), device=DEVICE, dtype=out.dtype).view(out.shape)
    return out, torch.autograd.grad((out * weight).sum(), qkv)


def worst(one, other):
    """The largest difference, relative to numbers larger than one."""
    pairs = [(a.float(), b.float()) for a, b in zip(one, other, strict=True)]
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in pairs)


@spec("S020", "S021", "S026")
@cases(text=MASKS, how=[("fused", torch.float32), ("fused", torch.bfloat16), ("flex", torch.float32)])
def test_exact_kernels_equal_the_reference_over_every_mask(text, how):
    name, dtype = how
    where, mask = tokens(), regard.mask(text)
    qkv = heads(3, 200, dtype=dtype)
    bias = build_position(BIASES["none"], 8, 4, 64).prepare(where, where)
    mine, meant = run(name, mask, where, qkv, bias), run("reference", mask, where, qkv, bias)
    assert worst([mine[0]], [meant[0]]) <= TOLERANCE[dtype]
    assert worst(mine[1], meant[1]) <= TOLERANCE[dtype]


@spec("S035")
@cases(name=["fused", "flex"], kind=list(BIASES), text=["causal & padding", "full"])
def test_exact_kernels_equal_the_reference_with_every_bias_and_train_its_table(name, kind, text):
    where, mask, qkv = tokens(), regard.mask(text), heads(3, 200)
    module = build_position(BIASES[kind], 8, 4, 64).to(DEVICE)
    for table in module.parameters():
        torch.nn.init.normal_(table)
    results = []
    for kernel in (name, "reference"):
        module.zero_grad()
        bias = module.prepare(where, where)
        ask = AttentionSpec(mask=mask, q=where, k=where, bias=bias.biased, grad=True, device=DEVICE)
        if KERNELS[kernel].unsupported_reason(ask):
            raise SkipTest(KERNELS[kernel].unsupported_reason(ask))
        out = Plan(KERNELS[kernel], "test", ask).run(*qkv, AttentionArgs(0.125, 0.0, bias.bias_for(qkv[0], 0.125)))
        out.square().sum().backward()
        results.append([out.detach(), *(table.grad.clone() for table in module.parameters())])
    assert worst(*results) <= 5e-5


@spec("S024")
@cases(name=["reference", "fused", "flex"], dtype=[torch.float32, torch.bfloat16])
def test_a_query_that_sees_nobody_gets_zeros_and_finite_gradients(name, dtype):
    where = tokens()
    where.is_real[2] = False
    qkv = heads(3, 200, dtype=dtype)
    out, grads = run(name, CAUSAL & PADDING, where, qkv, build_position(C.NoPosition(), 8, 4, 64).prepare(where, where))
    assert out[2].abs().max() == 0
    assert all(grad.isfinite().all() for grad in grads)


@spec("S024")
@cases(backend=MASKED_BACKENDS, dtype=[torch.float32, torch.bfloat16], biased=[False, True])
def test_each_backend_that_takes_a_table_agrees_on_nobody(backend, dtype, biased):
    where = tokens()
    where.is_real[2] = False
    q, k, v = qkv = heads(3, 200, G=4, dtype=dtype)
    table = (CAUSAL & PADDING).table(where, where)[:, None]
    if biased:
        table = torch.randn(3, 4, 200, 200, device=DEVICE, dtype=dtype).masked_fill(~table, float("-inf"))
    with sdpa_kernel([backend]):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=table)
    grads = torch.autograd.grad(out.sum(), qkv)
    assert out[2].abs().max() == 0
    assert all(grad.isfinite().all() for grad in grads)


@cases(mask=[DOCUMENTS, CAUSAL & DOCUMENTS], pieces=[13, 64])
def test_documents_run_as_sequences_of_their_own_length(mask, pieces):
    where = tokens()
    where.is_real, where.num_documents = None, pieces
    where.order = torch.arange(200, device=DEVICE).expand(3, 200)
    qkv = heads(3, 200, dtype=torch.bfloat16)
    bias = build_position(C.NoPosition(), 8, 4, 64).prepare(where, where)
    mine, meant = run("varlen", mask, where, qkv, bias), run("reference", mask, where, qkv, bias)
    assert worst([mine[0], *mine[1]], [meant[0], *meant[1]]) <= 2e-2
    ask = AttentionSpec(mask=mask, q=where, k=where, dtype=torch.bfloat16, device=DEVICE)
    assert choose_kernel(ask)[0] == "varlen"


@cases(text=["window2d(7)", "window2d(7, 3)", "window2d(5, 2)"], kind=["none", "relative"])
def test_image_windows_equal_the_dense_mask(text, kind):
    where = grid_tokens(torch.zeros(2, 14 * 21, 1, device=DEVICE), (14, 21))
    module = build_position(
        C.RelativeBias(axes=2, max_distance=6) if kind == "relative" else C.NoPosition(), 8, 4, 64
    ).to(DEVICE)
    for table in module.parameters():
        torch.nn.init.normal_(table)
    qkv, bias = heads(2, 14 * 21), module.prepare(where, where)
    mine, meant = (run(name, regard.mask(text), where, qkv, bias) for name in ("window2d", "reference"))
    assert worst([mine[0], *mine[1]], [meant[0], *meant[1]]) <= 2e-5


@cases(mask=[FULL, CAUSAL])
def test_the_fused_kernel_needs_memory_that_grows_with_n_and_not_with_its_square(mask):
    peaks = []
    for N in (4096, 8192):
        where = regard.sequence_tokens(torch.zeros(1, N, 1, device=DEVICE))
        qkv = heads(1, N, dtype=torch.bfloat16)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run("fused", mask, where, qkv, build_position(C.NoPosition(), 8, 4, 64).prepare(where, where))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= 2.2 * peaks[0]
