"""What attention is, however it is computed: formulas, counts, symmetries, and the reasons for the scale."""

import math

import numpy as np
import pytest
import torch
from core.builders import (
    DIM,
    PLACED,
    B,
    D,
    H,
    K,
    Q,
    asking,
    attend,
    gradients,
    heads_of,
    parameters,
    scope,
    stack,
    trunk,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from parity.tolerance import NORM, assert_near, randomise
from torch import Tensor, nn

from regard import config as C
from regard.config.trunk import PROJECTIONS
from regard.core.hooks import looking
from regard.core.init import init_weights
from regard.core.kernels import attention_scores, attention_weights
from regard.core.layers import MLP, Attention
from regard.core.model import Transformer, Trunk
from regard.core.tokens import sequence_tokens

N = 5
BARE = dict(projections=(), scale=1.0)


def layer(heads: int = H, dim: int = DIM, **said: object) -> Attention:
    """One attention layer with noise in all its weights."""
    c = trunk(dim=dim, attention=C.Attention(heads=heads, **said))
    made = Attention(c.attention, c, 0)
    init_weights(made, "xavier", c)
    randomise(made)
    return made


def run(attention: Attention, x: Tensor, **rest: object) -> Tensor:
    return attention(x, scope(x, **rest))


# ---------------------------------------------------------------- the formula


def in_numpy(attention: Attention, x: Tensor) -> np.ndarray:
    """The same layer head by head and token by token, from its weights alone."""
    parts = {
        n: [None if t is None else t.detach().numpy() for t in wb] for n, wb in attention.qkv.named_parts().items()
    }
    maps = {n: x.numpy() @ weight.T + (0 if bias is None else bias) for n, (weight, bias) in parts.items()}
    heads = []
    for h in range(attention.heads):
        q, k, v = (maps[name][..., h * attention.head_dim : (h + 1) * attention.head_dim] for name in "qkv")
        e = np.exp(np.einsum("bqd,bkd->bqk", q, k) / np.sqrt(attention.head_dim))
        heads.append(np.einsum("bqk,bke->bqe", e / e.sum(-1, keepdims=True), v))
    weight, bias = (None if t is None else t.detach().numpy() for t in attention.out.named_parts()["out"])
    return np.concatenate(heads, -1) @ weight.T + (0 if bias is None else bias)


@pytest.mark.spec("S001", "S002", "S006")
@pytest.mark.parametrize("dtype, within", [(torch.float64, 1e-10), (torch.float32, 1e-6)])
@pytest.mark.parametrize("bias", [PROJECTIONS, (), ("q", "v")], ids=["all", "none", "q and v"])
def test_the_layer_is_what_numpy_makes_of_its_weights(bias, dtype, within):
    attention, x = layer(bias=bias).double(), torch.randn(B, N, DIM, dtype=torch.float64)
    formula = torch.from_numpy(in_numpy(attention, x))

    assert_near(run(attention.to(dtype), x.to(dtype)).double(), formula, within)


@pytest.mark.spec("S001")
@pytest.mark.parametrize("bias, fewer", [("q k v out", 0), ("out", 3 * DIM), ("", 4 * DIM), ("q v out", DIM)])
def test_a_bias_left_out_takes_its_parameters_with_it(bias, fewer):
    assert parameters(layer(bias=tuple(bias.split()))) == 4 * DIM**2 + 4 * DIM - fewer


@pytest.mark.spec("S001")
def test_a_key_without_bias_is_a_key_whose_bias_is_zero():
    part, whole = layer(bias=("q", "v", "out")), layer()
    with torch.no_grad():
        whole.qkv.weight.copy_(part.qkv.weight)
        whole.out.load_state_dict(part.out.state_dict())
        whole.qkv.bias.copy_(torch.cat([part.qkv.bias[:DIM], torch.zeros(DIM), part.qkv.bias[DIM:]]))
    x = torch.randn(B, N, DIM)

    assert_near(run(part, x), run(whole, x), NORM)


@pytest.mark.spec("S002")
@given(seed=st.integers(0, 2**20), size=st.floats(0, 50))
def test_weights_are_never_negative_and_sum_to_one(seed, size):
    chance = torch.Generator().manual_seed(seed)
    q, k = torch.randn(B, H, Q, D, generator=chance) * size, torch.randn(B, H, K, D, generator=chance)
    weights = attention_weights(attention_scores(q, k, 1.0, None), None)

    assert (weights >= 0).all()
    assert_near(weights.sum(-1), torch.ones(B, H, Q), 1e-6)


@pytest.mark.spec("S002")
def test_a_query_looks_hardest_at_the_key_it_agrees_with():
    keys = torch.linalg.qr(torch.randn(D, D)).Q[:K]
    which = torch.tensor([3, 0, 6, 2, 2])
    weights = attention_weights(attention_scores(9 * keys[which][None, None], keys[None, None], 1.0, None), None)

    assert weights[0, 0].argmax(-1).tolist() == which.tolist()


@pytest.mark.spec("S003")
def test_tokens_as_columns_give_the_same_transposed():
    """E19: with a token a column the product is K'Q, normalised down each column; Q'K is something else."""
    q, k, v = (x[:1, :1].double() for x in heads_of(K, K))
    rows = attend("reference", q, k, v, asking(q=sequence_tokens(torch.empty(1, K, 0))))[0, 0]
    Qc, Kc, Vc = (x[0, 0].mT for x in (q, k, v))
    columns = Vc @ (Kc.mT @ Qc / math.sqrt(D)).softmax(0)
    slide = Vc @ (Qc.mT @ Kc / math.sqrt(D)).softmax(0)

    assert_near(columns.mT, rows, 1e-6)
    assert (slide.mT - rows).abs().max() > 0.1


@pytest.mark.spec("S007", "S006")
def test_all_heads_at_once_are_the_heads_one_by_one():
    attention, x = layer(), torch.randn(B, N, DIM)
    made = attention.qkv.split(x)
    results = []
    for h in range(H):
        q, k, v = (made[name][..., h * 4 : (h + 1) * 4] for name in "qkv")
        results.append((q @ k.mT / math.sqrt(4)).softmax(-1) @ v)

    assert_near(run(attention, x), attention.out(torch.cat(results, -1)), NORM)


@pytest.mark.spec("S008")
@given(sizes=st.tuples(*[st.integers(1, 9)] * 4))
def test_any_number_of_queries_and_keys_of_any_width(sizes):
    queries, keys, wide, value = sizes
    q, k, v = (torch.randn(1, H, n, d) for n, d in ((queries, wide), (keys, wide), (keys, value)))
    ask = asking(q=sequence_tokens(torch.empty(1, queries, 0)), k=sequence_tokens(torch.empty(1, keys, 0)))

    assert attend("reference", q, k, v, ask).shape == (1, H, queries, value)


@pytest.mark.spec("S008")
def test_a_layer_may_give_wider_values_than_its_keys():
    attention = layer(value_head_dim=7)

    assert run(attention, torch.randn(B, N, DIM)).shape == (B, N, DIM)
    assert parameters(attention) == 2 * (DIM**2 + DIM) + (DIM * 21 + 21) + (21 * DIM + DIM)


# ---------------------------------------------------------------- what it costs


@pytest.mark.spec("S006")
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 12])
def test_heads_that_split_the_width_cost_the_same_however_many(heads):
    assert parameters(layer(heads)) == 4 * DIM**2 + 4 * DIM


@pytest.mark.spec("S006")
@pytest.mark.parametrize("heads", [1, 3, 5])
def test_heads_of_full_width_cost_so_many_times_as_much(heads):
    assert parameters(layer(heads, head_dim=DIM, bias=())) == 4 * heads * DIM**2


@pytest.mark.spec("S006")
@pytest.mark.parametrize("dim, heads, head_dim", [(1024, 4, 256), (1024, 16, 64), (512, 8, 64)])
def test_a_head_is_the_width_over_the_heads(dim, heads, head_dim):
    with torch.device("meta"):
        attention = Attention(C.Attention(heads=heads), C.Trunk(dim=dim), 0)

    assert attention.head_dim == head_dim and heads * head_dim == dim


@pytest.mark.spec("S004")
@pytest.mark.parametrize("projections, count", [((), 0), (("v",), DIM**2)])
def test_attention_without_projections_has_no_parameters_and_with_values_alone_a_square(projections, count):
    assert parameters(layer(1, **BARE | {"projections": projections, "bias": ()})) == count


@pytest.mark.spec("S004")
def test_attention_without_projections_compares_the_tokens_themselves():
    x = torch.randn(B, N, DIM)

    assert_near(run(layer(1, **BARE), x), (x @ x.mT).softmax(-1) @ x, 1e-6)


@pytest.mark.spec("S004")
def test_attention_with_values_alone_maps_what_is_given_and_not_how_it_is_found():
    attention, x = layer(1, **BARE | {"projections": ("v",), "bias": ()}), torch.randn(B, N, DIM)

    assert_near(run(attention, x), (x @ x.mT).softmax(-1) @ (x @ attention.qkv.weight.mT), NORM)


def test_a_map_left_out_where_the_widths_differ_is_refused():
    with pytest.raises(ValueError, match="attention.projections: without 'q' its width 15 must be dim 12"):
        layer(3, projections=("k", "v", "out"), head_dim=5)


# ---------------------------------------------------------------- why the scale


@pytest.mark.spec("S005", "S189")
@pytest.mark.parametrize("width", [16, 64, 256, 1024])
def test_a_score_of_random_vectors_spreads_by_their_width_and_the_scale_undoes_it(width):
    q, k = torch.randn(2, 20_000, width)
    products = (q * k).sum(-1)

    assert products.var() / width == pytest.approx(1, abs=0.03)
    assert (products / math.sqrt(width)).var() == pytest.approx(1, abs=0.03)


@pytest.mark.spec("S005")
@pytest.mark.parametrize("width, unscaled", [(16, 0.58), (64, 0.79), (256, 0.90), (1024, 0.95)])
def test_without_the_scale_a_wide_head_looks_at_one_key_alone(width, unscaled):
    """How much of a query the best of 64 keys takes. Small samples differ by 0.02: 0.60, 0.81, 0.91, 0.95 were seen."""
    q, k = torch.randn(60, 1, 64, width), torch.randn(60, 1, 64, width)  # 60 sets of 64 queries and 64 keys
    loudest = [
        attention_weights(attention_scores(q, k, scale, None), None).amax(-1).mean() for scale in (1, width**-0.5)
    ]

    assert loudest[0] == pytest.approx(unscaled, abs=0.01)
    assert loudest[1] == pytest.approx(0.11, abs=0.01)


@pytest.mark.spec("S005")
@pytest.mark.parametrize("heads", [1, 3, 4])
def test_a_layer_divides_by_the_root_of_its_head_width_unless_told(heads):
    assert layer(heads).scale == pytest.approx((DIM / heads) ** -0.5)
    assert layer(heads, head_dim=25, value_head_dim=7).scale == pytest.approx(1 / 5)
    assert layer(heads, scale=1.0).scale == 1.0


@pytest.mark.spec("S193")
def test_once_a_softmax_is_full_the_louder_its_scores_the_smaller_their_gradient():
    raw, values = torch.randn(1, 1, 500, 17), torch.randn(17, 13)
    norms = []
    for loud in (3, 10, 30, 100):
        s = (loud * raw).requires_grad_()
        norms.append(gradients(attention_weights(s, None) @ values, [s])[0].norm().item())

    assert norms == sorted(norms, reverse=True) and norms[-1] < norms[0] / 3


@pytest.mark.spec("S193", "S005")
def test_the_scale_keeps_the_gradient_of_wide_heads_alive():
    def norm(width: int, scale: float) -> float:
        s = attention_scores(torch.randn(1, 1, 300, width), torch.randn(1, 1, 64, width), scale, None).requires_grad_()
        return gradients(attention_weights(s, None) @ torch.randn(64, 13), [s])[0].norm().item()

    assert norm(1024, 1.0) < norm(16, 1.0) / 2
    assert norm(1024, 1024**-0.5) == pytest.approx(norm(16, 16**-0.5), rel=0.2)


# ---------------------------------------------------------------- cosines


@pytest.mark.spec("S015")
def test_a_score_is_two_lengths_and_an_angle():
    q, k, _ = heads_of(Q, K)
    cosines = nn.functional.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1)
    lengths = q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :]

    assert_near(attention_scores(q, k, 1 / D, None), lengths * cosines / D, 1e-6)


@pytest.mark.spec("S015")
def test_with_cosines_the_length_of_queries_and_keys_does_not_matter():
    attention, x = layer(score="cosine", bias=()), torch.randn(B, N, DIM)
    before = run(attention, x)
    with torch.no_grad():
        attention.qkv.weight[: 2 * DIM] *= 3.0

    assert_near(run(attention, x), before)


@pytest.mark.spec("S015")
def test_with_cosines_every_score_lies_between_plus_and_minus_the_scale():
    trunk_, x = stack(depth=1, attention=C.Attention(heads=H, score="cosine", scale=5.0)), torch.randn(B, N, DIM)
    attention = trunk_.blocks[0].attn
    q, k, _ = attention.project(9 * x, None)

    assert attention.scale == 5.0 and layer(score="cosine").scale == pytest.approx(2)
    assert attention_scores(q, k, attention.scale, None).abs().max() <= 5.0 + 1e-5


# ---------------------------------------------------------------- symmetries


@pytest.mark.spec("S017")
@given(order=st.permutations(range(N)))
@settings(max_examples=15)
def test_without_positions_shuffled_in_is_shuffled_out(order):
    torch.manual_seed(0)
    attention, x = layer(), torch.randn(B, N, DIM)

    assert_near(run(attention, x[:, order]), run(attention, x)[:, order], 1e-6)


@pytest.mark.spec("S017")
def test_a_whole_trunk_without_positions_sees_a_set():
    trunk_, x, order = stack(depth=3), torch.randn(B, N, DIM), torch.randperm(N)
    out = trunk_(sequence_tokens(x)).x

    assert out.shape == x.shape
    assert_near(trunk_(sequence_tokens(x[:, order])).x, out[:, order])


@pytest.mark.spec("S017")
@pytest.mark.parametrize("name", [name for name in PLACED if name != "none"])
def test_every_position_breaks_the_symmetry(name):
    trunk_ = stack(**PLACED[name])
    x, order = torch.randn(B, N, trunk_.incoming), [3, 1, 4, 0, 2]

    assert (trunk_(sequence_tokens(x[:, order])).x - trunk_(sequence_tokens(x)).x[:, order]).abs().max() > 1e-2


@pytest.mark.spec("S017")
def test_a_causal_mask_breaks_the_symmetry_by_itself():
    trunk_, x, order = stack(mask="causal"), torch.randn(B, N, DIM), [3, 1, 4, 0, 2]

    assert (trunk_(sequence_tokens(x[:, order])).x - trunk_(sequence_tokens(x)).x[:, order]).abs().max() > 1e-2


@pytest.mark.spec("S040")
@given(shift=st.integers(-7, 7))
@settings(max_examples=10)
def test_the_feed_forward_layer_and_bare_attention_do_not_know_where_they_are(shift):
    torch.manual_seed(0)
    block, x = stack().blocks[0], torch.randn(B, N, DIM)

    for sublayer in (block.mlp, block.attn):
        rolled = sublayer(x.roll(shift, 1), scope(x))
        assert_near(rolled, sublayer(x, scope(x)).roll(shift, 1), NORM)


# ---------------------------------------------------------------- how far one layer sees


def felt(layer_: nn.Module, *rest: object, count: int = 7, middle: int = 3) -> list[int]:
    """The places whose input moves the output in the middle."""
    x = torch.randn(1, count, DIM, requires_grad=True)
    out = layer_(x, *(each(x) if callable(each) else each for each in rest))
    return gradients(out[0, middle], [x])[0][0].abs().sum(-1).nonzero().flatten().tolist()


@pytest.mark.spec("S041")
def test_the_feed_forward_layer_sees_one_token_a_convolution_three_and_attention_all():
    block = stack().blocks[0]
    convolution = nn.Conv1d(DIM, DIM, 3, padding=1)

    assert felt(block.mlp, scope) == [3]
    assert felt(lambda x: convolution(x.mT).mT) == [2, 3, 4]
    assert felt(block.attn, scope) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.spec("S041", "S027")
def test_a_window_of_one_makes_attention_see_as_far_as_the_convolution():
    attention = stack().blocks[0].attn

    assert felt(attention, lambda x: scope(x, "window(1)")) == [2, 3, 4]


@pytest.mark.spec("S038")
@pytest.mark.parametrize("dim, hidden", [(12, None), (12, 7), (15, 31)])
def test_the_feed_forward_layer_costs_two_maps_and_two_biases_whatever_the_length(dim, hidden):
    wide = hidden or 4 * dim
    mlp = MLP(C.MLP(hidden=hidden), dim, 0.0)
    init_weights(mlp, "xavier", trunk(dim=dim))

    assert parameters(mlp) == 2 * dim * wide + wide + dim
    for count in (1, 7):
        x = torch.randn(B, count, dim)
        assert mlp(x, scope(x)).shape == x.shape


@pytest.mark.spec("S038")
def test_the_original_feed_forward_layer_widens_512_to_2048():
    with torch.device("meta"):
        mlp = MLP(C.Trunk().mlp, C.Trunk().dim, 0.0)

    assert parameters(mlp) == 2 * 512 * 2048 + 2048 + 512


@pytest.mark.spec("S038")
def test_the_feed_forward_layer_is_its_formula():
    mlp, x = stack().blocks[0].mlp, torch.randn(B, N, DIM)
    (w1, b1), (w2, b2) = mlp.up.named_parts()["up"], mlp.down.named_parts()["down"]

    assert_near(mlp(x, scope(x)), (x @ w1.mT + b1).clamp(min=0) @ w2.mT + b2, NORM)


def test_a_gated_feed_forward_layer_multiplies_its_two_maps():
    mlp, x = stack(mlp=C.MLP(hidden=17, gated=True, activation="silu")).blocks[0].mlp, torch.randn(B, N, DIM)
    (gate, gate_bias), (up, up_bias) = (mlp.up.named_parts()[name] for name in ("gate", "up"))
    hidden = nn.functional.silu(x @ gate.mT + gate_bias) * (x @ up.mT + up_bias)

    assert_near(mlp(x, scope(x)), mlp.down(hidden), NORM)


# ---------------------------------------------------------------- graphs, and the rest of the layer


@pytest.mark.spec("S026")
@pytest.mark.parametrize("text, loops", [("edges", True), ("edges(0)", False)])
def test_on_a_graph_nobody_hears_who_is_not_joined(text, loops):
    nodes = sequence_tokens(torch.randn(B, K, DIM))
    nodes.edges = torch.rand(B, K, K) < 0.4
    weights = watched(stack(mask=text), nodes)
    joined = nodes.edges.clone()
    joined.diagonal(dim1=1, dim2=2).fill_(loops)

    assert torch.equal(weights > 0, joined[:, None].expand_as(weights))


def watched(trunk_: Trunk, tokens: object) -> Tensor:
    """The pattern of the first layer."""
    whole = Transformer(C.Transformer(trunk=trunk_.c, embed=C.TextEmbedding(vocab=3), head=C.NoHead())).eval()
    whole.trunk.load_state_dict(trunk_.state_dict())
    with looking(whole, "trunk.0.attn.pattern") as seen:
        whole(tokens)
    return seen["trunk.0.attn.pattern"]


def test_norms_on_queries_and_keys_give_them_unit_mean_square_before_gain():
    attention = layer(qk_norm=C.Norm(kind="rms"))
    nn.init.ones_(attention.q_norm.weight)
    nn.init.ones_(attention.k_norm.weight)
    q, k, v = attention.project(50 * torch.randn(B, N, DIM), None)

    for made in (q, k):
        assert_near(made.square().mean(-1), torch.ones(B, H, N), 1e-3)
    assert v.square().mean() > 10


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_grouped_heads_equal_full_heads_whose_keys_and_values_repeat(kv_heads):
    few, all_ = layer(6, kv_heads=kv_heads), layer(6)
    with torch.no_grad():
        for name in ("weight", "bias"):
            parts = {n: wb[name == "bias"] for n, wb in few.qkv.named_parts().items()}
            again = [
                parts[n].unflatten(0, (kv_heads, 2)).repeat_interleave(6 // kv_heads, 0).flatten(0, 1) for n in "kv"
            ]
            getattr(all_.qkv, name).copy_(torch.cat([parts["q"], *again]))
    all_.out.load_state_dict(few.out.state_dict())
    x = torch.randn(B, N, DIM)

    assert_near(run(few, x), run(all_, x), NORM)
    assert parameters(few) == 2 * (DIM**2 + DIM) + 2 * (DIM + 1) * 2 * kv_heads


@pytest.mark.spec("S008")
def test_the_values_of_a_wide_head_come_out_of_the_kernel_unmixed():
    q, k, v = heads_of(Q, K)
    few, many = sequence_tokens(torch.empty(B, Q, 0)), sequence_tokens(torch.empty(B, K, 0))
    out = attend("reference", q, k, v, asking(q=few, k=many))
    again = attend("reference", q, k, v[..., :4], asking(q=few, k=many))

    assert out.shape[-1] == v.shape[-1]
    assert_near(out[..., :4], again, NORM)
