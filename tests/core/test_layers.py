"""The parts of a block, and what a config can say about them."""

from dataclasses import replace

import pytest
import torch
from core.builders import (
    DIM,
    DROPPING,
    GRID,
    PLACED,
    POSITIONS,
    VOCAB,
    B,
    H,
    ids_of,
    model,
    parameters,
    scope,
    stack,
    translator,
    trunk,
)
from parity.tolerance import NORM, assert_near
from torch import Tensor, nn

from regard import config as C
from regard.core.hooks import looking
from regard.core.layers import Norm
from regard.core.model import Transformer, Trunk
from regard.core.tokens import grid_tokens, sequence_tokens

N = 7


# ---------------------------------------------------------------- residuals and norms


@pytest.mark.spec("S042")
@torch.no_grad()
def test_sublayers_that_add_nothing_leave_the_identity():
    trunk_, x = stack(depth=5, final_norm=False), torch.randn(B, N, DIM)
    for block in trunk_.blocks:
        for last in (block.attn.out, block.mlp.down):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    assert torch.equal(trunk_(sequence_tokens(x)).x, x)


def flow(residual: bool, init: str, depth: int = 100) -> float:
    """The gradient where the first layer begins, over that where the last one does."""
    width = 24
    x, streams = torch.randn(B, N, width), []
    for block in Trunk(trunk(dim=width, depth=depth), init).blocks:
        streams.append(x.requires_grad_() if not streams else x)
        x = block(x, scope(x)) if residual else block.mlp(block.attn(x, scope(x)), scope(x))
    first, last = torch.autograd.grad((x * torch.randn_like(x)).sum(), [streams[0], streams[-1]])
    return float(first.norm() / last.norm())


@pytest.mark.spec("S042")
@pytest.mark.parametrize("init", ["gpt2", "bert", "vit"])  # under xavier and t5 they grow by 6 to 23
def test_through_a_hundred_layers_gradients_pass_beside_the_sublayers(init):
    assert 0.1 < flow(residual=True, init=init) < 10


@pytest.mark.spec("S042")
@pytest.mark.parametrize("init", ["xavier", "t5"])  # under the others they are nothing long before
def test_through_a_hundred_layers_without_residuals_gradients_vanish(init):
    assert flow(residual=False, init=init) < 1e-6


@pytest.mark.spec("S044", "S042")
@pytest.mark.parametrize("place", ["pre", "post"])
def test_a_block_is_its_two_lines(place):
    block, x = stack(norm_placement=place).blocks[0], torch.randn(B, N, DIM)
    s = scope(x)
    if place == "pre":
        h = x + block.attn(block.attn_norm(x), s)
        y = h + block.mlp(block.mlp_norm(h), s)
    else:
        h = block.attn_norm(x + block.attn(x, s))
        y = block.mlp_norm(h + block.mlp(h, s))

    assert_near(block(x, s), y, 0)


@pytest.mark.parametrize("place, said, final", [
    ("pre", None, True), ("post", None, False), ("pre", False, False), ("post", True, True),
])  # fmt: skip
def test_a_last_norm_belongs_to_pre_norm_unless_said(place, said, final):
    assert (stack(norm_placement=place, final_norm=said).final_norm is not None) == final


@pytest.mark.spec("S043")
@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_its_formula_with_or_without_gain_and_bias(gain, bias):
    norm, x = Norm(C.Norm(gain=gain, bias=bias, eps=1e-3), 13), 3 * torch.randn(B, N, 13) + 2
    for weight in norm.parameters():
        nn.init.normal_(weight)
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    want = (x - mean) / (variance + 1e-3).sqrt()
    want = want * norm.weight if gain else want
    want = want + norm.bias if bias else want

    assert_near(norm(x), want, NORM)
    assert parameters(norm) == 13 * (gain + bias)


@pytest.mark.spec("S043")
def test_the_norm_of_one_two_three_four_is_the_one_computed_by_hand():
    """E01 to E03: the mean divides by d, the root holds the variance, the mean becomes 0."""
    norm = Norm(C.Norm(eps=1e-12), 4)

    assert_near(norm(torch.arange(1.0, 5)), torch.tensor([-3.0, -1, 1, 3]) / 5**0.5, NORM)


def test_rms_norm_does_not_move_the_mean():
    norm, x = Norm(C.Norm(kind="rms", eps=0.0), 13), torch.randn(B, N, 13) + 2

    assert_near(norm(x), x / x.square().mean(-1, keepdim=True).sqrt(), NORM)
    assert norm.bias is None


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_gain_with_an_offset_begins_as_one(kind):
    plain, offset = (Norm(C.Norm(kind=kind, offset=o), 13) for o in (0.0, 1.0))
    x = torch.randn(B, N, 13)

    assert not offset.weight.any()
    assert_near(plain(x), offset(x), 0)


# ---------------------------------------------------------------- dropout

RATE = 0.3
many = 200  # of tokens: enough for one per cent


def share_of_zeros(x: Tensor) -> float:
    return float((x == 0).float().mean())


def dropping(**rates: float) -> Trunk:
    return stack(depth=1, final_norm=False, dropout=C.Dropout(**({"embed": 0.0, "residual": 0.0} | rates))).train()


@pytest.mark.spec("S048")
def test_embedded_tokens_are_dropped_at_their_rate():
    out = dropping(embed=RATE).stem(sequence_tokens(torch.ones(B, 3 * many, DIM)))

    assert share_of_zeros(out) == pytest.approx(RATE, abs=0.01)
    assert_near(out[out != 0], torch.full_like(out[out != 0], 1 / (1 - RATE)))


@pytest.mark.spec("S048")
@torch.no_grad()
def test_what_each_sublayer_adds_is_dropped_at_its_rate():
    block, x = dropping(residual=RATE).blocks[0], torch.zeros(B, 3 * many, DIM)
    for last, says in ((block.attn.out, 1.0), (block.mlp.down, 100.0)):
        nn.init.zeros_(last.weight)
        nn.init.constant_(last.bias, says * (1 - RATE))
    added = block(x, scope(x)).round()  # 0, 1, 100 or 101

    assert set(added.unique().tolist()) == {0, 1, 100, 101}
    assert float((added % 10 == 0).float().mean()) == pytest.approx(RATE, abs=0.01)
    assert float((added < 50).float().mean()) == pytest.approx(RATE, abs=0.01)


@torch.no_grad()
def test_hidden_channels_are_dropped_at_their_rate():
    mlp, x = dropping(mlp=RATE).blocks[0].mlp, torch.randn(B, 3 * many, DIM)
    nn.init.constant_(mlp.up.bias, 100.0)  # so that relu itself makes no zero
    nn.init.eye_(mlp.down.weight)
    nn.init.zeros_(mlp.down.bias)

    assert share_of_zeros(mlp(x, scope(x))) == pytest.approx(RATE, abs=0.01)


@pytest.mark.spec("S048")
@pytest.mark.parametrize("kernel", [*DROPPING, "window2d"])
@torch.no_grad()
def test_attention_weights_are_dropped_at_their_rate(kernel):
    side = 15
    said = dict(mask="window2d(15)" if kernel == "window2d" else "full", dim=side**2, depth=1)
    attention = C.Attention(heads=1, projections=(), kernel=kernel)
    trunk_ = Trunk(trunk(**said, attention=attention, dropout=C.Dropout(embed=0.0, residual=0.0, attention=RATE)))
    x = torch.eye(side**2).expand(B, -1, -1)  # then what comes out is the weights themselves
    tokens = grid_tokens(x, (side, side))
    place = trunk_.position.prepare(tokens, tokens)
    plan = trunk_.runner.plan(trunk_, x, trunk_.masks[0], tokens, tokens, place)
    layer = trunk_.blocks[0].attn.train()
    weights = layer(x, replace(scope(x), plan=plan))

    assert plan.kernel.name == kernel
    assert share_of_zeros(weights) == pytest.approx(RATE, abs=0.01)
    assert_near(weights.sum(-1).mean(), torch.tensor(1.0), 0.02)


@pytest.mark.spec("S048")
def test_the_original_rates_are_a_tenth():
    rates = C.Trunk().dropout

    assert (rates.embed, rates.attention, rates.mlp, rates.residual) == (0.1, 0.0, 0.0, 0.1)


@pytest.mark.spec("S048")
@pytest.mark.parametrize("kernel", DROPPING)
def test_dropout_sleeps_outside_training(kernel):
    everywhere = C.Dropout(embed=RATE, attention=RATE, mlp=RATE, residual=RATE)
    one = model(dropout=everywhere, attention=C.Attention(heads=H, kernel=kernel))
    none = model(attention=C.Attention(heads=H, kernel=kernel))
    ids = ids_of(B, N)

    assert_near(one(ids), one(ids), 0)
    assert_near(one(ids), none(ids), 0)
    assert not torch.equal(one.train()(ids), one(ids))


# ---------------------------------------------------------------- parts of the config


def test_heads_may_differ_from_layer_to_layer():
    one = model(depth=3, attention=C.Attention(heads=(1, 5, 2), head_dim=7))

    assert [block.attn.qkv.weight.shape[0] for block in one.trunk.blocks] == [21, 105, 42]
    assert one(ids_of(B, N)).shape == (B, N, VOCAB)


def test_shared_layers_have_the_parameters_of_one():
    assert parameters(stack(depth=5, share_layers=True)) == parameters(stack(depth=1))


def test_shared_layers_are_the_same_block_again_and_again():
    shared, apart, x = stack(depth=3, share_layers=True), stack(depth=3), torch.randn(B, N, DIM)
    for block in apart.blocks:
        block.load_state_dict(shared.blocks[0].state_dict())
    apart.final_norm.load_state_dict(shared.final_norm.state_dict())

    assert_near(shared(sequence_tokens(x)).x, apart(sequence_tokens(x)).x, 0)


@pytest.mark.parametrize("name, tables, count", [("shaw", "layer", 3), ("shaw", "shared", 1), ("relative", "layer", 3)])
def test_tables_of_positions_belong_to_the_trunk_or_to_each_layer(name, tables, count):
    trunk_ = stack(depth=3, position=replace(POSITIONS[name], tables=tables))
    trunk_(sequence_tokens(torch.randn(B, N, DIM))).x.sum().backward()

    assert len(trunk_.positions) == count
    assert all(weight.grad.any() for weight in trunk_.positions.parameters())


@pytest.mark.parametrize("bias, stored", [(("q", "v", "out"), 2 * DIM), (("k",), DIM), ((), 0)])
def test_only_the_biases_that_are_wanted_are_stored(bias, stored):
    attention = stack(attention=C.Attention(heads=H, bias=bias)).blocks[0].attn

    assert (0 if attention.qkv.bias is None else attention.qkv.bias.numel()) == stored
    assert (attention.out.bias is not None) == ("out" in bias)
    assert [name for name, (_, b) in attention.qkv.named_parts().items() if b is not None] == [
        n for n in "qkv" if n in bias
    ]


def test_cross_attention_leaves_out_the_same_biases():
    cross = translator(attention=C.Attention(heads=H, bias=("q", "v", "out"))).trunk.blocks[0].cross

    assert cross.q.bias.numel() == DIM and cross.kv.bias.numel() == DIM


def test_a_norm_may_follow_the_embeddings():
    one = model(embed_norm=True, position=C.SinusoidalPosition())
    tokens = one.embed(ids_of(B, N))

    assert_near(one.trunk.stem(tokens), one.trunk.embed_norm(one.trunk.position.embed(tokens.x, tokens)), 0)


def test_windows_of_an_image_in_turn_run_as_2d_windows_and_mean_their_masks():
    said = dict(mask=("window2d(2)", "window2d(2, 1)"), position=C.RelativeBias(max_distance=2, axes=2, tables="layer"))
    kernels = (C.Attention(heads=H, kernel=kernel) for kernel in ("window2d", "reference"))
    regrouped, dense = (stack(attention=attention, **said) for attention in kernels)
    x = torch.randn(B, GRID[0] * GRID[1], DIM)

    assert_near(regrouped(grid_tokens(x, GRID)).x, dense(grid_tokens(x, GRID)).x)


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("precision", ["mixed", "bf16"])
@pytest.mark.parametrize("name", PLACED)
@torch.no_grad()
def test_sixteen_bits_stay_close_to_thirty_two(name, precision):
    exact, ids = model(mask="causal", **PLACED[name]), ids_of(B, N)
    short = model(mask="causal", precision=precision, **PLACED[name])
    short.load_state_dict(exact.state_dict())

    assert short(ids).dtype == torch.bfloat16
    assert (short(ids).float() - exact(ids)).norm() < 0.03 * exact(ids).norm()


@pytest.mark.parametrize("precision", ["fp32", "mixed", "bf16"])
def test_mixed_precision_keeps_its_weights_and_bf16_does_not(precision):
    one = model(precision=precision).train()
    one(ids_of(B, N)).float().square().mean().backward()
    stored = torch.bfloat16 if precision == "bf16" else torch.float32

    assert all(weight.dtype == weight.grad.dtype == stored for weight in one.parameters())


@pytest.mark.parametrize("side", ["attn", "cross"])
@torch.no_grad()
def test_the_queries_and_keys_one_sees_are_those_that_make_the_pattern(side):
    one = translator(attention=C.Attention(heads=H, qk_norm=C.Norm()))
    q, k, pattern = (f"trunk.0.{side}.{name}" for name in ("q", "k", "pattern"))
    with looking(one, q, k, pattern) as seen:
        one(ids_of(B, N), source=ids_of(B, 5))
    scores = seen[q] @ seen[k].mT * one.trunk.blocks[0].attn.scale
    scores = scores.masked_fill(seen[pattern] == 0, float("-inf"))

    assert_near(scores.softmax(-1), seen[pattern])


# ---------------------------------------------------------------- layers that differ in their heads


def test_every_layer_has_its_own_heads_and_kv_heads():
    c = trunk(depth=3, attention=C.Attention(heads=(2, 4, 6), kv_heads=(2, 2, 3), head_dim=5))
    made = model(depth=3, attention=c.attention)

    assert [(block.attn.heads, block.attn.kv_heads) for block in made.trunk.blocks] == [(2, 2), (4, 2), (6, 3)]
    assert [block.attn.qkv.weight.shape[0] for block in made.trunk.blocks] == [(2 + 4) * 5, (4 + 4) * 5, (6 + 6) * 5]
    assert made(ids_of(B, 7)).isfinite().all()


def test_a_cache_has_room_for_the_kv_heads_of_each_layer():
    made = model(depth=2, mask="causal", attention=C.Attention(heads=(2, 4), kv_heads=(1, 4), head_dim=5)).eval()
    ids, cache = ids_of(B, 7), made.cache(B, 9)
    whole = made(ids)

    assert [entry.k.shape[1] for entry in cache.entries] == [1, 4]
    assert_near(torch.cat([made(ids[:, :4], cache=cache), made(ids[:, 4:], cache=cache)], 1), whole)


def test_cross_attention_may_have_heads_of_its_own():
    c = trunk(cross="last", cross_attention=C.Attention(heads=(1, 3), head_dim=5), depth=2)
    made = Transformer(C.Transformer(embed=C.TextEmbedding(vocab=23), trunk=c, encoder=C.Encoder(trunk=trunk(depth=1))))

    assert [block.cross.heads for block in made.trunk.blocks] == [1, 3]
    assert made(ids_of(B, 5), source=ids_of(B, 7)).isfinite().all()
