"""Linear attention's own loops give what the sums of plain torch give, in value and gradient, compiled or not."""

from unittest import SkipTest

import torch

from cases import cases
from regard.attention import causal_scan
from regard.attention.linear import positive_features
from regard.core.kernels import AttentionArgs, AttentionSpec, make_plan
from regard.core.masks import CAUSAL
from regard.core.tokens import sequence_tokens
from regard.gpu import linear_attention

NEAR = 3e-2  # of the largest; 16-bit products, 25 seeds: values 6e-3, queries 2.4e-2, keys and values 6e-3


def given(batch, heads, count, widths, dtype):
    """q, k and v as a layer has them: heads between places and channels."""
    torch.manual_seed(0)
    return [torch.randn(batch, count, heads, width, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
            for width in (widths[0], *widths)]  # fmt: skip


def asked(q):
    where = sequence_tokens(torch.zeros(q.shape[0], q.shape[2], 0, device="cuda"))
    return AttentionSpec(mask=CAUSAL, q=where, k=where, grad=True, dtype=q.dtype, device="cuda")


def both(out, qkv):
    up = torch.linspace(-1, 1, out.numel(), device="cuda").view(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad(out, qkv, up)]


def off(ours, theirs):
    return max(((a.float() - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs, strict=True))


def by_sums(qkv, ask):
    """In fp32, through the sums of plain torch."""
    q, k, v = (x.detach().float().requires_grad_() for x in qkv)
    return both(causal_scan.weighted_values(positive_features(q), positive_features(k), v, ask, None), (q, k, v))


@cases(size=[(2, 3, 64), (3, 2, 1), (1, 5, 777), (2, 2, 4100)], widths=[(64, 64), (32, 32), (128, 128)])
def test_the_loops_are_the_sums(size, widths):
    if not linear_attention.HAS_TRITON_LINEAR:
        raise SkipTest("Triton is not installed")
    qkv = given(*size, widths, torch.bfloat16)
    ask = asked(qkv[0])

    assert linear_attention.is_supported(qkv[0], qkv[2], ask)
    ours, theirs = both(make_plan("linear", ask).run(*qkv, AttentionArgs(0.125)), qkv), by_sums(qkv, ask)

    assert off(ours[:1], theirs[:1]) < NEAR
    assert off(ours[3:], theirs[3:]) < NEAR
    if size[2] > 1:  # one place has nothing to choose: no gradient but the value's
        assert off(ours, theirs) < NEAR


def test_compiled_they_give_the_same():
    qkv = given(2, 4, 600, (64, 64), torch.bfloat16)
    made = make_plan("linear", asked(qkv[0]))
    eager = both(made.run(*qkv, AttentionArgs(0.125)), qkv)
    torch._dynamo.reset()

    compiled = torch.compile(lambda q, k, v: made.run(q, k, v, AttentionArgs(0.125)) * 1.0, dynamic=False)

    assert off(both(compiled(*qkv), qkv), [x.float() for x in eager]) < NEAR


@cases(dtype=[torch.float16, torch.float32, torch.float64])
def test_what_they_cannot_do_goes_the_other_way(dtype):
    qkv = given(1, 2, 40, (64, 64), dtype)

    assert not linear_attention.is_supported(qkv[0], qkv[2], asked(qkv[0]))
    assert not linear_attention.is_supported(*(x.bfloat16() for x in (qkv[0], qkv[2][..., :32])), asked(qkv[0]))
    assert make_plan("linear", asked(qkv[0])).run(*qkv, AttentionArgs(0.125)).isfinite().all()
