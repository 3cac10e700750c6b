"""Linear attention: the brackets may move, the sum may run, and generation remembers one matrix."""

import pytest
import torch
import torch.nn.functional as F
from attention.builders import decoder, through
from core.builders import B, D, E, asking, gradients, heads_of, ids_of, padded, padded_tokens
from parity.tolerance import GRADIENT, assert_near

from regard.attention.causal_scan import CHUNK_SIZE, CausalSum, LinearState, causal_sum
from regard.attention.performer import RandomFeatures, feature_map, redraw_features
from regard.core.kernels import make_plan
from regard.core.masks import mask
from regard.core.tokens import TokenLayout, sequence_tokens

N = 2 * CHUNK_SIZE + 9


def row(count, batch=B):
    return sequence_tokens(torch.empty(batch, count, 0))


def by_table(q, k, v, allowed):
    """(phi(Q) phi(K)' ∘ mask) V, rows divided by their sums: with the n x n table that the kernel never makes."""
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT) * allowed
    return weights / weights.sum(-1, keepdim=True) @ v


@pytest.mark.spec("S115")
def test_both_ways_to_set_the_brackets_give_the_same():
    q, k, v = heads_of(5, 7)
    ask = asking(q=row(5), k=row(7))

    assert_near(through("linear", q, k, v, ask), by_table(q, k, v, torch.ones(5, 7)), 1e-5)


@pytest.mark.spec("S115")
@pytest.mark.parametrize("count", [1, 3, CHUNK_SIZE, CHUNK_SIZE + 1, N])
def test_the_causal_sum_in_chunks_is_the_table_with_its_upper_half_left_out(count):
    q, k, v = heads_of(count, count)
    made = through("linear", q, k, v, asking("causal", row(count)))
    results = made, by_table(q, k, v, torch.ones(count, count).tril())

    assert_near(*results, 1e-5)
    for ours, theirs in zip(*(gradients(out, (q, k, v)) for out in results), strict=True):
        assert_near(ours, theirs, GRADIENT)


@pytest.mark.spec("S115")
def test_the_sum_in_chunks_is_the_sum_that_runs():
    q, k, v = (x.detach() for x in heads_of(N, N))
    state, rows = torch.zeros(*q.shape[:2], D, E), []
    for i in range(N):
        state = state + k[:, :, i, :, None] * v[:, :, i, None, :]
        rows.append((q[:, :, i, None] @ state)[:, :, 0])

    assert_near(causal_sum(q, k, v), torch.stack(rows, 2), 1e-4)


def test_its_own_gradient_is_that_of_small_steps():
    q, k, v = (torch.randn(2, 3, 4, width, dtype=torch.float64, requires_grad=True) for width in (3, 3, 5))

    assert torch.autograd.gradcheck(CausalSum.apply, (q, k, v))


@pytest.mark.parametrize("kernel", ["linear", "performer"])
@pytest.mark.parametrize("text", ["full", "causal"])
def test_padding_is_never_heard_and_a_query_without_keys_gets_zeros(kernel, text):
    real = torch.arange(9) >= torch.tensor([[3], [9]])  # the second row is padding alone
    ask = asking(mask(text) & mask("padding"), padded_tokens(torch.empty(2, 9, 0), real))
    q, k, v = heads_of(9, 9)
    own = RandomFeatures(32, D)
    out = through(kernel, q, k, v, ask, own)
    loud = [x.detach().masked_fill(~real[:, None, :, None], 50.0) for x in (k, v)]

    assert_near(through(kernel, q, *loud, ask, own), out, 0)
    assert not out[1].any() and out[0, :, 3:].all()
    assert text == "full" or not out[0, :, :3].any()
    assert all(grad.isfinite().all() for grad in gradients(out, (q, k, v)))


def test_heads_may_share_keys():
    q, k, v = heads_of(N, N, heads=6, kv_heads=2)
    whole = [x.repeat_interleave(3, 1) for x in (k, v)]

    for text in ("full", "causal"):
        ask = asking(text, row(N))
        assert_near(through("linear", q, k, v, ask), through("linear", q, *whole, ask), 1e-6)


# ---------------------------------------------------------------- generation


@pytest.mark.spec("S115")
@pytest.mark.parametrize("kernel", ["linear", "performer(34)"])
@pytest.mark.parametrize("pieces", [[11], [4, 1, 6], [1] * 11])
@pytest.mark.parametrize("kv_heads", [3, 1])
@torch.no_grad()
def test_what_a_state_remembers_is_all_that_was_read(kernel, pieces, kv_heads):
    one = decoder(kernel, attention={"kv_heads": kv_heads}).double()
    ids, real, kept = padded(ids_of(B, 8), 2, 1)
    whole, cache, parts = one(ids, real=real), one.cache(B, 11), []
    for part, there in zip(ids.split(pieces, 1), real.split(pieces, 1), strict=True):
        parts.append(one(part, real=there, cache=cache))

    assert_near(torch.cat(parts, 1)[:, kept], whole[:, kept], 1e-10)


@torch.no_grad()
def test_a_state_has_one_size_for_any_capacity():
    one = decoder("linear")
    tables = ([table for entry in one.cache(B, n).entries for table in entry.tables()] for n in (9, 999))
    small, large = (sum(table.numel() for table in each) for each in tables)

    assert small == large == 2 * B * 3 * 4 * 5  # layers, rows, heads, features, channels and the count


@torch.no_grad()
def test_a_beam_reorders_states():
    one, ids = decoder("linear"), ids_of(B, 7)
    cache = one.cache(B, 9)
    one(ids, cache=cache)
    cache.reorder(torch.tensor([1, 1]))
    turned = one(ids[:1, :1].expand(B, -1), cache=cache)

    assert_near(turned[0], turned[1], 1e-6)
    with pytest.raises(ValueError, match="rewind"):
        cache.truncate(3)


def test_half_precision_sums_in_fp32():
    q, k, v = (x.detach() for x in heads_of(N, N))
    exact = through("linear", q, k, v, asking("causal", row(N)))
    state = LinearState(B, 3, D, E, v.bfloat16())

    assert_near(through("linear", *(x.bfloat16() for x in (q, k, v)), asking("causal", row(N))).float(), exact, 0.05)
    assert state.sum.dtype == torch.float32


# ---------------------------------------------------------------- refusing


@pytest.mark.parametrize("kernel", ["linear", "performer"])
@pytest.mark.parametrize(
    "ask, why",
    [
        (asking("window(2)"), "must be full or causal"),
        (asking("causal & documents"), "must be full or causal"),
        (asking("causal", bias=True), "no scores to add a bias to"),
        (asking("full", dropout=True), "no weights to drop"),
        (asking("causal", row(3), row(5)), "of the same tokens"),
        (asking("causal", TokenLayout(order=torch.tensor([[0, 2, 1]]))), "needs tokens in order"),
    ],
)
def test_what_a_sum_cannot_do_is_refused(kernel, ask, why):
    with pytest.raises(ValueError, match=why):
        make_plan(kernel, ask)


def test_watching_weights_is_refused_and_the_rest_is_seen():
    import regard

    one = decoder("linear")
    with pytest.raises(ValueError, match="no table of attention weights"), regard.looking(one, "trunk.0.attn.pattern"):
        one(ids_of(B, 5))
    with regard.looking(one, "trunk.0.attn.result") as seen:
        one(ids_of(B, 5))
    assert seen["trunk.0.attn.result"].shape == (B, 3, 5, 4)


@pytest.mark.parametrize(
    "said", ["linear(3)", "performer(3, 4)", "performer(0)", "topk(0)", "tiled_flash(1, 2)", "local(2)"]
)
def test_numbers_that_a_kernel_does_not_take_are_refused(said):
    with pytest.raises(ValueError, match="numbers"):
        decoder(said, "causal & window(2)" if "local" in said else "causal")(ids_of(B, 5))


# ---------------------------------------------------------------- performer


@pytest.mark.spec("S066", "S118")
def test_random_features_are_an_unbiased_estimate_of_the_exponential():
    d, many, draws = 7, 28, 600
    q, k = torch.randn(2, d, dtype=torch.float64) * 0.3
    made = []
    for seed in range(draws):
        own = RandomFeatures(many, d)
        own.draw(seed)
        made.append((feature_map(q[None], own.w.double()).exp() * feature_map(k[None], own.w.double()).exp()).mean())
    estimates = torch.stack(made)
    error = estimates.std() / draws**0.5

    assert abs(estimates.mean() - (q @ k).exp()) < 4 * error
    assert error < 0.05 * (q @ k).exp()


def relative_error(features, scale, seed=0, n=128, d=64):
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, 1, n, d) for _ in range(3))
    q, k, ask, own = q * scale, k * scale, asking("full", row(n, 1)), RandomFeatures(features, d)
    exact, made = (through(name, q, k, v, ask, own, d**-0.5) for name in ("reference", "performer"))
    assert made.isfinite().all()
    return float((made - exact).norm() / exact.norm())


def mean_error(features, scale):
    return sum(relative_error(features, scale, seed) for seed in range(5)) / 5


@pytest.mark.spec("S066", "S118")
def test_the_error_falls_as_the_root_of_the_features_and_stays_bad_at_unit_scale():
    few, more, most = (mean_error(m, 0.5) for m in (256, 1024, 4096))

    assert more <= 0.25 and most <= 0.13
    assert 1.6 < few / more < 2.4 and 1.6 < more / most < 2.4
    assert mean_error(4096, 1.0) >= 0.8


def test_directions_are_at_right_angles_and_come_back_with_their_seed():
    own, other = RandomFeatures(2 * D, D), RandomFeatures(2 * D, D)
    along = own.w / own.w.norm(dim=-1, keepdim=True)
    other.draw(int(own.seed))

    assert_near(along @ along.mT, torch.eye(D), 1e-5)
    assert torch.equal(own.w, other.w)


def test_directions_are_kept_with_the_weights_and_redrawn_on_request():
    one, other = decoder("performer(10)"), decoder("performer(10)", seed=5)
    before_ = one(ids_of(B, 5))
    redraw_features(one, 3)
    assert (one(torch.ones(B, 5).long()) != before_).any()
    other.load_state_dict(one.state_dict())

    ids = ids_of(B, 5)
    assert_near(other(ids), one(ids), 0)
    drawn = [block.attn.own.w for block in one.trunk.blocks]
    assert not torch.equal(*drawn)  # every layer has its own


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_no_key_however_large_makes_a_nan(scale):
    q, k, v = heads_of(N, N)
    out = through("performer", q, scale * k, v, asking("causal", row(N)), RandomFeatures(32, D), 0.5)

    assert out.isfinite().all() and all(grad.isfinite().all() for grad in gradients(out, (q, k, v)))
