"""Sparse masks in chunks mean what the mask means on the dense kernel: windows, dilations, blocks, global tokens."""

import pytest
import torch
from core.builders import BIASES, asking, attend, biased, gradients, heads_of, padded_tokens
from parity.tolerance import GRADIENT, assert_near

from regard.attention.cost import AttentionField
from regard.attention.local import BandPattern, band_of_mask, computed_pairs
from regard.core.kernels import make_plan
from regard.core.masks import mask
from regard.core.tokens import TokenLayout, sequence_tokens

SPARSE = [
    "window(5)", "causal & window(19)", "dilated(2, 3)", "causal & dilated(3, 5)", "strided(7)", "causal & strided(4)",
    "blocks(6)", "causal & blocks(20)", "window(3) | global_tokens(2)", "causal & (window(3) | global_tokens(2))",
    "dilated(2, 4) | global_tokens(3)", "causal & (dilated(2, 3) | global_tokens(1))", "global_tokens(2)",
    "causal & global_tokens(3)", "window(4) & global_tokens(2)", "window(9) & ~window(2)",
    "(window(2) | blocks(5)) & causal", "window(3) & strided(2)",
]  # fmt: skip


def row(count, batch=2):
    return sequence_tokens(torch.empty(batch, count, 0))


def assert_same(ask, bias=None, keep=None, **heads):
    """Output and gradients of the two kernels, on the queries to keep."""
    q, k, v = heads_of(ask.q.count, ask.q.count, **heads)
    place = None if bias is None else biased(BIASES[bias], q.shape[1])
    results = []
    for name in ("local", "reference"):
        made = None if place is None else place.prepare(ask.q, ask.k).bias_for(q, 0.3)
        out = attend(name, q, k, v, ask, 0.3, made)
        results.append(out if keep is None else out.masked_fill(~keep[:, None, :, None], 0.0))
    assert_near(*results)
    weights = [q, k, v, *([] if place is None else place.parameters())]
    for ours, theirs in zip(*(gradients(out, weights) for out in results), strict=True):
        assert_near(ours, theirs, GRADIENT)


@pytest.mark.spec("S114")
@pytest.mark.parametrize("text", SPARSE)
@pytest.mark.parametrize("count", [1, 2, 17, 40, 101])
def test_a_sparse_mask_in_chunks_equals_itself_on_the_dense_kernel(text, count):
    assert_same(asking(text, row(count)))


@pytest.mark.parametrize("text", ["causal & (window(3) | global_tokens(2))", "dilated(2, 3)"])
def test_heads_may_share_keys(text):
    assert_same(asking(text, row(37)), heads=6, kv_heads=2)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("text", ["causal & (window(3) | global_tokens(2))", "dilated(2, 3)"])
def test_a_bias_is_honoured(text, bias):
    assert_same(asking(text, row(37)), bias)


@pytest.mark.spec("S021")
@pytest.mark.parametrize("text", SPARSE)
@pytest.mark.parametrize("left, right", [(0, 7), (5, 0), (3, 4)])
def test_padding_before_and_after_the_tokens_is_never_seen(text, left, right):
    count, slot = 41, torch.arange(41)
    real = torch.stack([(slot >= left) & (slot < count - right), slot < 1])  # and a row of one token
    places = padded_tokens(torch.empty(2, count, 0), real)

    assert_same(asking(mask(text) & mask("padding"), places), keep=real)


@pytest.mark.parametrize("text", ["causal & window(4)", "blocks(5)", "dilated(2, 2)"])
def test_packed_documents_stay_apart(text):
    document = torch.tensor([[0] * 19 + [1] * 3 + [2] * 15, [0] * 1 + [1] * 36])
    order = torch.cat([torch.cat([torch.arange(n) for n in sizes])[None] for sizes in ([19, 3, 15], [1, 36])])
    places = TokenLayout(order=order, document=document)

    assert_same(asking(mask(text) & mask("documents"), places))


@pytest.mark.spec("S067", "S114")
@pytest.mark.parametrize("text", ["causal & window(29)", "window(29)", "window(40) | global_tokens(1)"])
def test_a_window_as_wide_as_the_text_is_dense_attention(text):
    q, k, v = heads_of(29, 29)
    dense = "causal" if "causal" in text else "full"

    assert_near(attend("local", q, k, v, asking(text, row(29))), attend("reference", q, k, v, asking(dense, row(29))))


def test_gradients_are_those_of_small_steps():
    ask = asking("causal & (dilated(1, 2) | global_tokens(1))", row(19, 1))
    q, k, v = heads_of(19, 19, heads=2, kv_heads=1, dtype=torch.float64)
    q, k, v = (x[:1, :, :, :3].detach().requires_grad_() for x in (q, k, v))

    assert torch.autograd.gradcheck(lambda q, k, v: attend("local", q, k, v, ask, 0.3), (q, k, v))


# ---------------------------------------------------------------- what it spares


@pytest.mark.parametrize("text", SPARSE)
def test_a_band_holds_every_pair_that_its_mask_allows(text):
    found, places = band_of_mask(mask(text)), row(37, 1)
    i, j = torch.arange(37)[:, None], torch.arange(37)[None]
    near = ((i - j).abs() <= found.radius) & ((i - j) % max(found.step, 1) == 0)
    mark = (i < found.landmarks) | (j < found.landmarks)

    assert (mask(text).table(places, places)[0] <= (near | mark)).all()
    assert not found.behind or (mask(text).table(places, places)[0] <= (j <= i)).all()


def test_bands_join_as_their_masks_do():
    assert band_of_mask(mask("causal & (dilated(4, 3) | global_tokens(2))")) == BandPattern(12, 3, 2, behind=True)
    assert band_of_mask(mask("window(4) | window(9)")) == BandPattern(9)
    assert band_of_mask(mask("strided(4) & strided(6)")).step == 12
    assert not band_of_mask(mask("causal | window(2)")).sparse


@pytest.mark.spec("S114")
@pytest.mark.parametrize("text", ["causal & window(16)", "dilated(16, 4)", "causal & (window(32) | global_tokens(4))"])
def test_twice_the_length_is_twice_the_work(text):
    counts = [computed_pairs(AttentionField(n, n, mask(text)), False) for n in (2048, 4096, 8192)]

    assert counts[1] / counts[0] == pytest.approx(2, rel=0.02)
    assert counts[2] < 8192**2 / 20


def test_no_table_of_n_by_n_is_made():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            out = op(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.most = max(self.most, out.numel())
            return out

    count = 2048
    q = torch.randn(1, 1, count, 4)
    with Largest() as seen:
        attend("local", q, q, q, asking("causal & (dilated(8, 3) | global_tokens(2))", row(count, 1)), 0.3)

    assert seen.most < count * count / 20


# ---------------------------------------------------------------- what it refuses, and what auto does


def test_tokens_out_of_order_or_with_holes_are_refused():
    shuffled = TokenLayout(order=torch.tensor([[0, 2, 1, 3]]))
    holes = padded_tokens(torch.empty(1, 5, 0), torch.tensor([[True, True, False, True, True]]))

    for text, places in (("causal & window(2)", shuffled), ("causal & window(2) & padding", holes)):
        with pytest.raises(ValueError, match="needs consecutive tokens"):
            make_plan("local", asking(text, places))


def test_global_tokens_of_packed_documents_are_refused():
    places = TokenLayout(order=torch.tensor([[0, 1, 0, 1]]), document=torch.tensor([[0, 0, 1, 1]]))

    with pytest.raises(ValueError, match="global tokens only at the start of a row"):
        make_plan("local", asking("documents & (window(1) | global_tokens(1))", places))


def test_auto_takes_it_for_long_sparse_lines_even_padded_and_never_where_it_would_refuse():
    real = torch.arange(200) < torch.tensor([[150], [200]])
    padded, holes = (padded_tokens(torch.empty(2, 200, 0), keep) for keep in (real, real & (torch.arange(200) != 70)))

    assert make_plan("auto", asking("causal & (window(8) | global_tokens(2))", row(200))).kernel.name == "local"
    assert make_plan("auto", asking("causal & window(8) & padding", padded)).kernel.name == "local"
    assert make_plan("auto", asking("causal & window(8) & padding", holes)).kernel.name == "fused"
    assert make_plan("auto", asking("strided(2)", row(200))).kernel.name == "fused"
