"""Where a token stands: what each kind of position promises, and that padding and packing do not move anybody."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parity.tolerance import randomise
from torch import Tensor
from torch.testing import assert_close

from regard import config as C
from regard.config.reader import from_dict
from regard.core.hooks import looking
from regard.core.positions import (
    RotaryPosition,
    SinusoidalPosition,
    alibi_slopes,
    rotate_pairs,
    sinusoidal_table,
)
from regard.core.tokens import TokenIndex, TokenLayout, Tokens, grid_tokens, sequence_tokens
from regard.inference.model import Model  # the core's, and what can be done with it besides
from regard.models.positions import OneHotPosition
from regard.models.relative_bias import T5Bias

B, N, D, H, V = 2, 7, 12, 3, 19
WIDE = 512  # the width of the original Transformer

POSITIONS = {
    "none": C.NoPosition(),
    "sinusoidal": C.SinusoidalPosition(),
    "sinusoidal-concat": C.SinusoidalPosition(mode="concat", dim=4),
    "sinusoidal-qk": C.SinusoidalPosition(mode="qk", layout="halves"),
    "learned": C.LearnedPosition(length=N, offset=2),
    "learned-qk": C.LearnedPosition(length=N, mode="qk"),
    "onehot": C.OneHotPosition(length=N),
    "rotary": C.RotaryPosition(),
    "rotary-fraction": C.RotaryPosition(fraction=0.5, layout="interleaved"),
    "alibi": C.AlibiPosition(),
    "t5": C.T5Bias(num_buckets=6, max_distance=9),
    "shaw": C.ShawPosition(max_distance=3),
    "relative": C.RelativeBias(max_distance=3),
    "relative-outside": C.RelativeBias(max_distance=3, scaled=False, tables="layer"),
}
positions = pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)


def trunk(position: C.Position, **rest) -> C.Trunk:
    """A small trunk; what is set beside the vectors makes them wider, and a map brings them back to dim."""
    width = D - 2 if getattr(position, "mode", "") == "concat" else None
    said = dict(dim=D, depth=2, embed_dim=width, attention=C.Attention(heads=H), dropout=C.NO_DROPOUT) | rest
    return C.Trunk(position=position, **said)


def model(position: C.Position, **rest) -> Model:
    c = C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk(position, **rest), head=C.NoHead())
    made = Model(c).double().eval()
    randomise(made)
    return made


def places(*order: int) -> TokenLayout:
    return TokenLayout(order=torch.tensor([order]))


def seen_in(one: torch.nn.Module, ids: Tensor, *names: str) -> list[Tensor]:
    """What stands at these places of the first layer."""
    with looking(one, *(f"trunk.0.attn.{name}" for name in names)) as seen, torch.no_grad():
        one(ids)
    return [seen[f"trunk.0.attn.{name}"] for name in names]


def ids(*shape: int) -> Tensor:
    return torch.randint(V, shape)


# ---------------------------------------------------------------- sinusoids


@pytest.mark.spec("S029")
def test_the_first_sinusoid_is_zero_one_zero_one():
    assert torch.equal(sinusoidal_table(torch.tensor(0), WIDE), torch.tensor([0.0, 1.0] * (WIDE // 2)))


@pytest.mark.spec("S029")
def test_sinusoids_stay_between_minus_one_and_one():
    assert sinusoidal_table(torch.arange(5_000), WIDE).abs().max() <= 1


@pytest.mark.spec("S029")
def test_sinusoids_have_no_parameters():
    assert not list(SinusoidalPosition(C.SinusoidalPosition(), WIDE).parameters())


@pytest.mark.spec("S029")
def test_five_thousand_places_have_five_thousand_sinusoids():
    assert len(sinusoidal_table(torch.arange(5_000), WIDE).unique(dim=0)) == 5_000


@pytest.mark.spec("S029")
def test_each_channel_is_the_wave_of_the_formula():
    table = sinusoidal_table(torch.arange(N).double(), D)

    for pos in range(N):
        for i in range(D // 2):
            angle = pos / 10_000 ** (2 * i / D)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-14)
            assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-14)


def test_two_halves_hold_the_same_waves_as_turn_and_turn_about():
    at = torch.arange(N)

    assert torch.equal(
        sinusoidal_table(at, D, layout="halves"), sinusoidal_table(at, D).unflatten(-1, (-1, 2)).mT.flatten(-2)
    )


def shift_matrix(k: int, width: int) -> Tensor:
    """T_k: for each wave the block [cos sin; -sin cos](k·w). It does not know where it is applied."""
    waves = k * 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    cos, sin = waves.cos(), waves.sin()
    return torch.block_diag(*torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2))


@pytest.mark.spec("S030", "S190")
def test_moving_a_sinusoid_is_one_rotation_wherever_it_stands():
    table = sinusoidal_table(torch.arange(1_000).double(), WIDE)

    assert_close(table[:-7] @ shift_matrix(7, WIDE).mT, table[7:], atol=1e-12, rtol=0)


@pytest.mark.spec("S190")
@given(st.integers(0, 500), st.integers(0, 500))
def test_moving_twice_is_moving_by_the_sum(k, j):
    assert_close(shift_matrix(k, D) @ shift_matrix(j, D), shift_matrix(k + j, D), atol=1e-12, rtol=0)


def likeness() -> Tensor:  # PE(0)·PE(distance)
    table = sinusoidal_table(torch.arange(200).double(), WIDE)
    return table @ table[0]


@pytest.mark.spec("S031")
def test_how_alike_two_sinusoids_are_is_a_matter_of_distance():
    table = sinusoidal_table(torch.arange(200).double(), WIDE)

    for pos in (3, 50, 101):
        assert_close(table[pos:] @ table[pos], likeness()[: 200 - pos], atol=1e-10, rtol=0)


@pytest.mark.spec("S031")
def test_up_to_43_steps_nearer_means_more_alike():
    assert (likeness()[:44].diff() < 0).all()


@pytest.mark.spec("S031")
def test_beyond_43_steps_nearer_need_not_mean_more_alike():
    assert likeness()[44] > likeness()[43]


# ---------------------------------------------------------------- learned


TOO_LONG = {
    "learned": (C.LearnedPosition(length=N), N + 1, f"{N + 1} tokens are more than position.length {N}"),
    "one-hot": (C.OneHotPosition(length=N), N + 1, f"{N + 1} tokens are more than position.length {N}"),
    "too many rows": (C.LearnedPosition(length=(2, 4)), (3, 4), "3x4 tokens are more than position.length 2x4"),
    "too many columns": (C.LearnedPosition(length=(3, 3)), (3, 4), "3x4 tokens are more than position.length 3x3"),
}


def vectors(size: int | tuple[int, int], width: int = D) -> Tokens:
    """Tokens in a row, or on a grid of this size."""
    x = torch.randn(B, math.prod(size) if isinstance(size, tuple) else size, width, dtype=torch.float64)
    return grid_tokens(x, size) if isinstance(size, tuple) else sequence_tokens(x)


@pytest.mark.spec("S032")
@pytest.mark.parametrize("position, size, sentence", TOO_LONG.values(), ids=TOO_LONG)
def test_an_input_longer_than_the_table_is_refused_by_its_length(position, size, sentence):
    one = model(position)

    with pytest.raises(ValueError, match=f"^{sentence}"):
        one(vectors(size, one.trunk.incoming))


@pytest.mark.spec("S032")
@pytest.mark.parametrize("kind", ["learned", "too many rows", "too many columns"])
def test_who_stretches_as_the_refusal_says_is_taken(kind):
    position, size, _ = TOO_LONG[kind]
    one, given = model(position), vectors(size)
    with pytest.raises(ValueError) as refusal:
        one(given)
    advice = re.search(r"model\.extend\((.*)\)", str(refusal.value))[1]
    one.extend(*map(int, advice.split(",")))

    assert one(given).shape == given.x.shape


@pytest.mark.spec("S032")
def test_the_first_and_last_vectors_survive_stretching():
    one = model(C.LearnedPosition(length=N, offset=2))
    [before] = [table.detach().clone() for table in one.trunk.position.tables]
    one.extend(2 * N - 1)
    [after] = one.trunk.position.tables

    assert_close(after[:2], before[:2])  # kept free for the family's own use
    assert_close(after[2::2], before[2:])  # every second place is an old one
    assert after.requires_grad


@pytest.mark.spec("S032")
@pytest.mark.parametrize("length, longer", [(N, (13,)), (N, (5,)), ((2, 3), (3, 5))], ids=["longer", "shorter", "grid"])
def test_a_stretched_model_is_the_one_that_its_config_describes(length, longer):
    one, given = model(C.LearnedPosition(length=length, offset=2)), vectors(longer if len(longer) > 1 else longer[0])
    one.extend(*longer)
    twin = Model(one.c).double().eval()
    twin.load_state_dict(one.state_dict())

    assert one.trunk.position.lengths == twin.trunk.position.lengths == longer
    assert one.trunk.c == one.c.trunk == twin.trunk.c
    assert torch.equal(one(given), twin(given))


@pytest.mark.parametrize("length, lengths", [(N, (13, 13)), ((2, 3), (5,))], ids=["too many", "too few"])
def test_stretching_takes_one_length_for_each_axis(length, lengths):
    one = model(C.LearnedPosition(length=length))

    with pytest.raises(ValueError, match="axes"):
        one.extend(*lengths)


@given(offset=st.integers(0, 5), count=st.integers(1, N))
def test_an_offset_skips_the_first_rows_of_the_table(offset, count):
    table = model(C.LearnedPosition(length=N, offset=offset)).trunk.position

    assert torch.equal(table.table(places(*range(count)))[0], table.tables[0][offset : offset + count])


# ---------------------------------------------------------------- two axes


def slide(h: int, w: int, width: int) -> Tensor:
    """The lecture's construction of positions on two axes, (h·w, width)."""
    rows, columns = sinusoidal_table(torch.arange(h), width // 2), sinusoidal_table(torch.arange(w), width // 2)
    return torch.cat([rows.unsqueeze(1).repeat(1, w, 1), columns.unsqueeze(0).repeat(h, 1, 1)], -1).flatten(0, 1)


@pytest.mark.spec("S034")
@given(h=st.integers(1, 9), w=st.integers(1, 9))
def test_two_axes_are_the_lecture_s_bit_for_bit(h, w):
    table = SinusoidalPosition(C.SinusoidalPosition(axes=2), D).table(grid_tokens(torch.empty(B, h * w, D), (h, w)))

    assert torch.equal(table[0], slide(h, w, D))


@pytest.mark.spec("S034")
@pytest.mark.parametrize("c", [C.SinusoidalPosition(axes=2), C.LearnedPosition(length=(5, 7))], ids=lambda c: c.kind)
def test_half_the_channels_tell_the_row_and_half_the_column(c):
    made = model(c).trunk.position
    rows, columns = made.table(grid_tokens(torch.empty(B, 35, D), (5, 7)))[0].unflatten(0, (5, 7)).chunk(2, -1)

    assert torch.equal(rows, rows[:, :1].expand_as(rows))
    assert torch.equal(columns, columns[:1].expand_as(columns))
    assert len(rows[:, 0].unique(dim=0)) == 5 and len(columns[0].unique(dim=0)) == 7


def test_a_learned_table_for_each_axis_is_read_at_its_own_coordinate():
    made = model(C.LearnedPosition(length=(5, 7))).trunk.position
    rows, columns = made.tables
    table = made.table(grid_tokens(torch.empty(B, 35, D), (5, 7)))

    assert torch.equal(table[0, 3 * 7 + 4], torch.cat([rows[3], columns[4]]))


@pytest.mark.parametrize("c", [C.SinusoidalPosition(axes=2), C.LearnedPosition(length=(5, 7))], ids=lambda c: c.kind)
def test_tokens_in_a_row_have_no_second_axis(c):
    with pytest.raises(ValueError, match="2 axes, and the tokens 1 coordinates$"):
        model(c)(ids(B, N))


def test_rotary_refuses_coordinates_it_would_not_read():
    with pytest.raises(ValueError, match="1 axes, and the tokens 2 coordinates$"):
        model(C.RotaryPosition())(vectors((3, 4)))


# ---------------------------------------------------------------- on the scores


@pytest.mark.spec("S035")
def test_the_lecture_s_r_stands_inside_the_division():
    one = model(C.RelativeBias(max_distance=3), depth=1)
    q, k, scores = seen_in(one, ids(B, N), "q", "k", "scores")
    r = one.trunk.position.bias

    for i in range(N):
        for j in range(N):
            offset = max(-3, min(3, j - i)) + 3
            expected = ((q[:, :, i] * k[:, :, j]).sum(-1) + r[offset]) / math.sqrt(D // H)
            assert_close(scores[:, :, i, j], expected, atol=1e-12, rtol=0)


def test_outside_the_division_r_is_added_as_it_is():
    one = model(C.RelativeBias(max_distance=3, scaled=False), depth=1)
    q, k, scores = seen_in(one, ids(B, N), "q", "k", "scores")
    distance = (torch.arange(N)[None] - torch.arange(N)[:, None]).clamp(-3, 3) + 3
    r = one.trunk.position.bias[distance].permute(2, 0, 1)

    assert_close(scores, q @ k.mT / math.sqrt(D // H) + r, atol=1e-12, rtol=0)


@pytest.mark.spec("S035")
def test_shaw_s_vectors_are_added_to_the_keys():
    one = model(C.ShawPosition(max_distance=3), depth=1)
    q, k, scores = seen_in(one, ids(B, N), "q", "k", "scores")
    distance = (torch.arange(N)[None] - torch.arange(N)[:, None]).clamp(-3, 3) + 3
    moved = k[:, :, None] + one.trunk.position.keys[distance]  # (B, H, Q, K, d)

    assert_close(scores, torch.einsum("bhqd,bhqkd->bhqk", q, moved) / math.sqrt(D // H), atol=1e-12, rtol=0)


@pytest.mark.spec("S035")
def test_each_alibi_head_subtracts_its_slope_times_the_distance():
    q, k, scores = seen_in(model(C.AlibiPosition(), depth=1), ids(B, N), "q", "k", "scores")
    distance = (torch.arange(N)[None] - torch.arange(N)[:, None]).abs()
    slope = alibi_slopes(H).double()  # they are kept in fp32

    assert_close(scores, q @ k.mT / math.sqrt(D // H) - slope[:, None, None] * distance, atol=1e-12, rtol=0)


def published_slopes(heads: int) -> list[float]:
    """As in the paper's repository: a geometric row for a power of two, and every second of the next row beyond it."""
    if math.log2(heads).is_integer():
        start = 2 ** -(2 ** -(math.log2(heads) - 3))
        return [start * start**i for i in range(heads)]
    near = 2 ** math.floor(math.log2(heads))
    return published_slopes(near) + published_slopes(2 * near)[0::2][: heads - near]


@pytest.mark.spec("S035")
@pytest.mark.parametrize("heads", [8, 12, 1, 3, 16])
def test_alibi_s_slopes_are_the_published_ones(heads):
    assert_close(alibi_slopes(heads), torch.tensor(published_slopes(heads)), atol=0, rtol=1e-6)


@pytest.mark.spec("S035")
def test_eight_heads_halve_the_slope_from_one_to_the_next():
    assert alibi_slopes(8).tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def bucket(distance: int, both: bool, buckets: int, farthest: int) -> int:
    """T5's bucket of one distance (key minus query), told with Python's own numbers."""
    first = 0
    if both:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    near = buckets // 2
    if distance < near:
        return first + distance
    far = math.log(distance / near) / math.log(farthest / near) * (buckets - near)
    return first + min(near + int(far + 1e-6), buckets - 1)  # fp32 may fall short where the logarithm is whole


def buckets_of(c: C.T5Bias, distances: Tensor) -> Tensor:
    b = torch.zeros(1, dtype=torch.long)
    here, there = places(0), TokenLayout(order=distances[None])
    return T5Bias(c, H).index(TokenIndex(here, b, b), TokenIndex(there, b, torch.arange(len(distances))))


@pytest.mark.spec("S035")
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("buckets, farthest", [(32, 128), (12, 50)])
def test_buckets_are_t5_s_for_every_distance(both, buckets, farthest):
    distances = torch.arange(-200, 201)
    ours = buckets_of(C.T5Bias(num_buckets=buckets, max_distance=farthest, bidirectional=both), distances)

    assert ours.tolist() == [bucket(d, both, buckets, farthest) for d in distances.tolist()]


@pytest.mark.slow  # for the import
@pytest.mark.parametrize("both", [True, False])
@given(buckets=st.integers(4, 40), farthest=st.integers(41, 300))
def test_buckets_are_those_of_the_transformers_library(both, buckets, farthest):
    attention = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    distances = torch.arange(-200, 201)
    theirs = attention._relative_position_bucket(distances, both, buckets, farthest)

    assert torch.equal(
        buckets_of(C.T5Bias(num_buckets=buckets, max_distance=farthest, bidirectional=both), distances), theirs
    )


@pytest.mark.spec("S035")
@pytest.mark.parametrize("kind", ["relative", "relative-outside", "t5", "shaw"])
def test_a_table_of_zeros_is_no_position_at_all(kind):
    one, none = model(POSITIONS[kind]), model(C.NoPosition())
    for weight in one.trunk.positions.parameters():
        torch.nn.init.zeros_(weight)
    none.load_state_dict({name: weight for name, weight in one.state_dict().items() if "positions" not in name})
    given = ids(B, N)

    assert_close(one(given), none(given), atol=1e-12, rtol=0)


# ---------------------------------------------------------------- where they go


def embedded(one: Model, given: Tensor) -> Tensor:
    with looking(one, "trunk.embed") as seen:
        one(given)
    return seen["trunk.embed"]


@pytest.mark.spec("S036")
def test_added_positions_are_added():
    one, given = model(C.SinusoidalPosition()), ids(B, N)

    assert torch.equal(embedded(one, given), one.embed.tokens(given) + sinusoidal_table(torch.arange(N), D))


@pytest.mark.spec("S036")
@pytest.mark.parametrize(
    "position", [C.SinusoidalPosition(mode="concat", dim=4), C.LearnedPosition(mode="concat", dim=4)]
)
def test_concatenated_positions_stand_beside_the_vectors_and_the_width_grows(position):
    one, given = model(position, dim=D + 4, embed_dim=None, attention=C.Attention(heads=2)), ids(B, N)
    beside = one.trunk.position.table(one.embed(given)).expand(B, N, 4).double()

    assert one.embed.tokens.weight.shape == (V, D)
    assert torch.equal(embedded(one, given), torch.cat([one.embed.tokens(given), beside], -1))


@pytest.mark.spec("S036")
def test_positions_for_queries_and_keys_alone_leave_values_alone():
    one, given = model(C.SinusoidalPosition(mode="qk"), depth=1), ids(B, N)
    block = one.trunk.blocks[0]
    x, p = block.attn_norm(one.embed.tokens(given)), sinusoidal_table(torch.arange(N), D)
    made = dict(zip("qkv", seen_in(one, given, "q", "k", "v"), strict=True))

    for name, comes_from in (("q", x + p), ("k", x + p), ("v", x)):
        weight, bias = block.attn.qkv.named_parts()[name]
        assert_close(made[name], block.attn.split(comes_from @ weight.mT + bias, H), atol=1e-12, rtol=0)


@pytest.mark.spec("S016")
def test_a_score_with_positions_is_the_sum_of_four_terms():
    one, given = model(C.SinusoidalPosition(mode="qk"), depth=1), ids(B, N)
    block = one.trunk.blocks[0]
    x, p = block.attn_norm(one.embed.tokens(given)), sinusoidal_table(torch.arange(N), D).double()[None]
    (w_q, b_q), (w_k, b_k), _ = block.attn.qkv.named_parts().values()
    qx, kx = block.attn.split(x @ w_q.mT + b_q, H), block.attn.split(x @ w_k.mT + b_k, H)
    qp, kp = block.attn.split(p @ w_q.mT, H), block.attn.split(p @ w_k.mT, H)
    terms = [q @ k.mT / math.sqrt(D // H) for q in (qx, qp) for k in (kx, kp)]  # xx, xp, px, pp
    [scores] = seen_in(one, given, "scores")

    assert_close(sum(terms), scores, atol=1e-10, rtol=0)
    assert all(term.abs().max() > 0.01 for term in terms)  # none of the four is nothing


@pytest.mark.spec("S198")
def test_one_hot_positions_widen_the_vectors_by_the_length():
    one = model(C.OneHotPosition(length=N), dim=D + N, embed_dim=None, attention=C.Attention(heads=1))

    assert one.embed.tokens.weight.shape == (V, D)
    assert embedded(one, ids(B, N)).shape == (B, N, D + N)


@pytest.mark.spec("S198")
@given(st.lists(st.integers(0, N - 1), min_size=1, max_size=N))
def test_a_linear_map_reads_one_hot_positions_back_exactly(order):
    tokens = Tokens(x=torch.randn(1, len(order), D), order=torch.tensor([order]))
    beside = OneHotPosition(C.OneHotPosition(length=N)).embed(tokens.x, tokens)
    read_out = torch.cat([torch.zeros(D), torch.arange(N).float()])

    assert torch.equal(beside @ read_out, torch.tensor([order]).float())


FOUR = {  # absolute?, learned?
    "sinusoidal": (True, False),
    "learned": (True, True),
    "alibi": (False, False),
    "rotary": (False, False),
    "t5": (False, True),
    "shaw": (False, True),
    "relative": (False, True),
}


@pytest.mark.spec("S037")
@pytest.mark.parametrize("kind, learned", [(kind, learned) for kind, (_, learned) in FOUR.items()])
def test_chosen_positions_have_no_parameters_and_learned_ones_have(kind, learned):
    one = model(from_dict(C.Trunk, {"position": {"kind": kind}}).position)

    assert bool(list(one.trunk.positions.parameters())) == learned


@pytest.mark.spec("S037")
@pytest.mark.parametrize("kind, absolute", [(kind, absolute) for kind, (absolute, _) in FOUR.items()])
def test_moving_everybody_is_seen_by_absolute_positions_alone(kind, absolute):
    one = model(from_dict(C.Trunk, {"position": {"kind": kind}}).position)
    here = sequence_tokens(torch.randn(B, N, D).double())
    there = Tokens(x=here.x, order=here.order + 5)
    change = (one(here) - one(there)).abs().max()

    assert (change > 0.01) if absolute else (change < 1e-5)


# ---------------------------------------------------------------- rotary


def turned(x: Tensor, at: int, **c) -> Tensor:
    where = places(at)
    return RotaryPosition(C.RotaryPosition(**c), x.shape[-1]).prepare(where, where).rotate(x)


@pytest.mark.parametrize("interleaved", [True, False])
@given(m=st.integers(0, 900), n=st.integers(0, 900), shift=st.integers(0, 900))
def test_turned_queries_and_keys_agree_by_distance_alone(interleaved, m, n, shift):
    q, k = torch.randn(2, 8, dtype=torch.float64)
    waves = 10_000.0 ** -(torch.arange(0, 8, 2, dtype=torch.float64) / 8)

    def score(m: int, n: int) -> Tensor:
        return rotate_pairs(q, *rotation(m), interleaved) @ rotate_pairs(k, *rotation(n), interleaved)

    def rotation(at: int) -> tuple[Tensor, Tensor]:
        return (at * waves).cos(), (at * waves).sin()

    assert_close(score(m, n), score(m + shift, n + shift), atol=1e-11, rtol=0)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_rotary_scores_depend_on_the_distance_alone(layout):
    q, k = torch.randn(2, B, H, 1, 8, dtype=torch.float64)

    def score(m: int, n: int) -> Tensor:
        return (turned(q, m, layout=layout) * turned(k, n, layout=layout)).sum(-1)

    # angles are made in fp32 as in published models: at place 100 they are good to 4e-6
    assert_close(score(5, 2), score(105, 102), atol=1e-4, rtol=0)
    assert (score(5, 2) - score(5, 3)).abs().max() > 0.01


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@given(at=st.integers(0, 10_000))
def test_turning_keeps_the_length_of_a_vector(fraction, at):
    x = torch.randn(B, H, 1, 8, dtype=torch.float64)

    assert_close(turned(x, at, fraction=fraction).norm(dim=-1), x.norm(dim=-1), atol=1e-6, rtol=0)


def test_a_partial_rotation_leaves_the_rest_alone():
    x = torch.randn(B, H, 1, 12)
    out = turned(x, 5, fraction=0.5)

    assert torch.equal(out[..., 6:], x[..., 6:])
    assert torch.equal(out[..., :6], turned(x[..., :6], 5))


def test_neighbouring_pairs_are_half_and_half_after_permuting_channels():
    x = torch.randn(B, H, 1, 12)
    halves = torch.arange(12).view(6, 2).mT.flatten()  # 0 2 4 .. 1 3 5 ..

    assert torch.equal(turned(x, 5, layout="interleaved")[..., halves], turned(x[..., halves], 5))


# ---------------------------------------------------------------- padding and packing


@positions
def test_padding_on_the_left_moves_no_token(position):
    one, given = model(position), ids(B, N)
    padded = one(given, real=torch.arange(N) >= torch.tensor([[2], [0]]))

    assert_close(padded[:1, 2:], one(given[:1, 2:]), atol=1e-10, rtol=0)
    assert_close(padded[1:], one(given[1:]), atol=1e-10, rtol=0)


@positions
def test_a_packed_document_stands_where_it_would_stand_alone(position):
    one, given = model(position), ids(B, N)
    document = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [4, 4, 5, 5, 5, 5, 6]])
    packed = one(given, document=document)

    assert_close(packed[:1, 3:], one(given[:1, 3:]), atol=1e-10, rtol=0)
    assert_close(packed[1:, 2:6], one(given[1:, 2:6]), atol=1e-10, rtol=0)


@positions
def test_padding_on_the_left_of_documents_moves_no_token(position):
    one, given = model(position), ids(B, N)
    real = torch.arange(N).expand(B, N) >= 2

    assert_close(one(given, real=real, document=torch.zeros_like(given))[:, 2:], one(given[:, 2:]), atol=1e-10, rtol=0)


PARTED = {
    "padding": dict(real=torch.arange(N).expand(B, N) >= 2),
    "packing": dict(document=torch.arange(N).expand(B, N) // 4),
}


@pytest.mark.parametrize("rest", PARTED.values(), ids=PARTED)
def test_a_scaling_that_goes_by_the_length_of_the_row_refuses_rows_of_several_lengths(rest):
    with pytest.raises(ValueError, match="^position.scaling 'dynamic' goes by the input's length"):
        model(C.RotaryPosition(scaling="dynamic", original_length=5, factor=2.0))(ids(B, N), **rest)


@positions
def test_without_a_mask_only_positions_know_the_order(position):
    one, given = model(position), ids(B, N)
    change = (one(given.roll(2, 1)).roll(-2, 1) - one(given)).abs().max()

    assert (change < 1e-10) if position.kind == "none" else (change > 1e-3)


@positions
def test_every_position_works_in_sixteen_bits(position):
    one, given = model(position), ids(B, N)
    exact = one(given)

    assert_close(one.bfloat16()(given).double(), exact, atol=0.1, rtol=0)  # 8 bits of precision, two layers


# ---------------------------------------------------------------- widths


@pytest.mark.parametrize(
    "position", [C.SinusoidalPosition(mode="qk"), C.LearnedPosition(length=N, mode="qk")], ids=lambda c: c.kind
)
def test_positions_for_queries_and_keys_fit_an_embedding_of_another_width(position):
    assert model(position, embed_dim=8)(ids(B, N)).shape == (B, N, D)


@pytest.mark.parametrize("kind", [C.SinusoidalPosition, C.LearnedPosition])
@pytest.mark.parametrize("mode, dim", [("add", 6), ("qk", 6), ("concat", None)])
def test_a_dim_is_for_positions_beside_the_vectors_and_they_need_one(kind, mode, dim):
    with pytest.raises(ValueError, match="^dim: mode 'concat' needs it, and it is for that mode alone$"):
        kind(mode=mode, dim=dim)


FULL = [
    C.SinusoidalPosition(mode="concat", dim=D),
    C.LearnedPosition(mode="concat", dim=D),
    C.OneHotPosition(length=D + 1),
]


@pytest.mark.parametrize("position", FULL, ids=lambda c: c.kind)
def test_concatenation_that_leaves_no_room_for_the_tokens_is_refused(position):
    with pytest.raises(ValueError, match=rf"^position: \d+ channels set beside the tokens leave none of dim {D}$"):
        trunk(position, embed_dim=None)
