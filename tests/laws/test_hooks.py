"""Looking inside: recording changes no bit, what is recorded is what happened, and an edit does what it says."""

import math
from contextlib import suppress

import pytest
import torch
from parity.tolerance import gradients, randomise
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from regard import config as C
from regard.core.hooks import looking
from regard.core.masks import mask
from regard.core.model import Transformer
from regard.core.positions import alibi_slopes
from regard.core.tokens import Tokens, grid_tokens
from regard.models.dual_encoder import DualEncoder

B, N, S, D, H, V = 2, 7, 5, 12, 3, 19  # S: tokens of a source
GRID = (5, 7)
KERNELS = ["reference", "fused", "window2d", pytest.param("flex", marks=pytest.mark.slow)]
EXACT = ["reference", "fused"]

kernels = pytest.mark.parametrize("kernel", KERNELS)


def trunk(**rest) -> C.Trunk:
    said = dict(dim=D, depth=3, mask="causal", attention=C.Attention(heads=H), dropout=C.NO_DROPOUT)
    return C.Trunk(**said | rest)


def ready(c: C.Transformer) -> Transformer:
    made = Transformer(c).eval()
    randomise(made)
    return made


def model(**rest) -> Transformer:
    return ready(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk(**rest)))


def translator(**rest) -> Transformer:
    c = C.Transformer(
        embed=C.TextEmbedding(vocab=V),
        trunk=trunk(cross="last", **rest),
        encoder=C.Encoder(trunk=trunk(mask="full")),
    )
    return ready(c)


def ids(*shape: int) -> Tensor:
    return torch.randint(V, shape)


def case(kernel: str) -> tuple[Transformer, Tensor | Tokens]:
    """A model that runs on this kernel, and something to give it: an image where the kernel wants one."""
    attention = C.Attention(heads=H, kernel=kernel)
    if kernel == "window2d":
        return model(attention=attention, position=C.AlibiPosition(), mask="window2d(3, 1)"), grid_tokens(
            torch.randn(B, 35, D), GRID
        )
    return model(attention=attention, position=C.AlibiPosition()), ids(B, N)


def watched(one: torch.nn.Module, *names: str, given: Tensor | Tokens, **choice) -> dict[str, Tensor]:
    """What is recorded at these addresses, under their last words: trunk.1.attn.q as attn.q."""
    with looking(one, *names, **choice) as seen:
        one(given)
    return {name.split(".", 2)[-1]: seen[name] for name in seen}


# ---------------------------------------------------------------- recording


@kernels
@torch.no_grad()
def test_watching_any_address_changes_no_bit(kernel):
    one, given = case(kernel)
    before = one(given)

    for address in one.addresses():
        with looking(one, address) as seen:
            assert torch.equal(one(given), before), address
        assert len(list(seen)) == 1, address


@kernels
@torch.no_grad()
def test_watching_everything_changes_no_bit(kernel):
    one, given = case(kernel)
    before = one(given)

    with looking(one, "*") as seen:
        assert torch.equal(one(given), before)
    assert list(seen) == list(one.addresses())


@pytest.mark.parametrize("kernel", EXACT)
def test_watching_a_training_step_changes_no_bit_of_the_gradients(kernel):
    rates = C.Dropout(attention=0.3, mlp=0.2)
    one, given = model(attention=C.Attention(heads=H, kernel=kernel), dropout=rates).train(), ids(B, N)

    def step() -> dict[str, Tensor]:
        one.zero_grad()
        torch.manual_seed(3)
        one(given).square().mean().backward()
        return gradients(one)

    before = step()
    with looking(one, "*"):
        after = step()

    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@kernels
@pytest.mark.spec("S149")
@torch.no_grad()
def test_the_pattern_is_the_softmax_of_the_kernel_s_own_queries_and_keys(kernel):
    one, given = case(kernel)
    made = watched(one, "trunk.1.attn.*", given=given)
    tokens = given if isinstance(given, Tokens) else one.embed(given)
    place = torch.arange(tokens.count)
    distance = (place[:, None] - place).abs()
    scores = made["attn.q"] @ made["attn.k"].mT / math.sqrt(D // H) - alibi_slopes(H)[:, None, None] * distance
    allowed = mask(one.trunk.c.mask).table(tokens, tokens)[:, None]
    expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1)

    assert_close(made["attn.pattern"], expected, atol=1e-6, rtol=0)
    assert_close(made["attn.pattern"] @ made["attn.v"], made["attn.result"], atol=1e-6, rtol=0)


@kernels
@torch.no_grad()
def test_every_row_of_a_pattern_sums_to_one(kernel):
    one, given = case(kernel)
    rows = watched(one, "trunk.1.attn.pattern", given=given)["attn.pattern"]

    assert (rows >= 0).all()
    assert_close(rows.sum(-1), torch.ones(rows.shape[:-1]), atol=1e-6, rtol=0)


@torch.no_grad()
def test_the_scores_are_what_the_pattern_is_the_softmax_of():
    made = watched(model(position=C.ShawPosition(max_distance=2)), "trunk.1.attn.*", given=ids(B, N))

    assert_close(made["attn.scores"].softmax(-1), made["attn.pattern"])


@pytest.mark.parametrize("kernel", EXACT)
@torch.no_grad()
def test_padding_is_never_looked_at_and_who_sees_nobody_looks_nowhere(kernel):
    one, given = model(attention=C.Attention(heads=H, kernel=kernel)), ids(B, N)
    real = torch.arange(N).expand(B, N) >= torch.tensor([[2], [N]])  # all of the second row is padding
    with looking(one, "trunk.1.attn.pattern") as seen:
        one(given, real=real)
    rows = seen["trunk.1.attn.pattern"]

    assert not rows[0, :, :, :2].any()
    assert_close(rows[0].sum(-1), torch.ones(H, N))
    assert not rows[1].any()


@pytest.mark.parametrize("kv_heads", [3, 1])
@torch.no_grad()
def test_grouped_heads_show_a_pattern_each_from_the_keys_they_share(kv_heads):
    one = model(attention=C.Attention(heads=6, head_dim=4, kv_heads=kv_heads), mask="full")
    made = watched(one, "trunk.1.attn.*", given=ids(B, N))
    keys = made["attn.k"].repeat_interleave(6 // kv_heads, 1)

    assert made["attn.pattern"].shape == (B, 6, N, N)
    assert_close(made["attn.pattern"], (made["attn.q"] @ keys.mT / 2).softmax(-1), atol=1e-6, rtol=0)


@torch.no_grad()
def test_cross_attention_is_watched_like_any_other():
    one, given, source = translator(), ids(B, N), ids(B, S)
    real = torch.arange(S) < torch.tensor([[3], [S]])
    with looking(one, "trunk.1.cross.*") as seen:
        one(given, source=source, source_real=real)
    q, k, rows = (seen[f"trunk.1.cross.{name}"] for name in ("q", "k", "pattern"))
    scores = (q @ k.mT / math.sqrt(D // H)).masked_fill(~real[:, None, None], -torch.inf)

    assert rows.shape == (B, H, N, S)
    assert_close(rows, scores.softmax(-1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("how", [dict(score="cosine"), dict(qk_norm=C.Norm(kind="rms"))], ids=["cosine", "norm"])
@torch.no_grad()
def test_what_cross_attention_shows_as_its_query_is_what_it_compares(how):
    one = translator(attention=C.Attention(heads=H, scale=1.0, **how))
    with looking(one, "trunk.1.cross.*") as seen:
        one(ids(B, N), source=ids(B, S))
    q, k, scores = (seen[f"trunk.1.cross.{name}"] for name in ("q", "k", "scores"))

    assert_close(q @ k.mT, scores)


@torch.no_grad()
def test_the_encoder_has_addresses_of_its_own():
    one = translator()
    with looking(one, "encoder.2.residual", "encoder.0.attn.pattern") as seen:
        one(ids(B, N), source=ids(B, S))

    assert seen["encoder.0.attn.pattern"].shape == (B, H, S, S)
    assert seen["encoder.2.residual"].shape == (B, S, D)


def test_a_pattern_recorded_in_training_carries_a_gradient():
    one, given = model().train(), ids(B, N)
    with looking(one, "trunk.1.attn.pattern") as seen:
        one(given)
    seen["trunk.1.attn.pattern"].square().sum().backward()

    assert one.trunk.blocks[1].attn.qkv.weight.grad.abs().sum() > 0
    assert one.trunk.blocks[2].attn.qkv.weight.grad is None  # what comes later had no part in it


def test_the_pattern_is_the_one_before_dropout():
    one, given = model(dropout=C.Dropout(embed=0.0, residual=0.0, attention=0.5)), ids(B, N)
    quiet = watched(one, "trunk.0.attn.pattern", given=given)
    trained = watched(one.train(), "trunk.0.attn.pattern", given=given)

    assert_close(quiet["attn.pattern"], trained["attn.pattern"])


@torch.no_grad()
def test_towers_are_watched_each_under_its_own_number():
    tower = C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk(), head=C.PoolingHead(pooling="mean"))
    both = DualEncoder(C.DualEncoder(towers=(tower, tower))).eval()
    with looking(both, "towers.*.trunk.1.residual") as seen:
        both(ids(B, N), ids(B, S))

    assert [seen[name].shape[1] for name in seen] == [N, S]


# ---------------------------------------------------------------- the residual stream, part by part


@pytest.mark.parametrize("place", ["pre", "post"])
@torch.no_grad()
def test_the_residual_stream_is_recorded_before_after_and_between_the_sublayers(place):
    one = translator(norm_placement=place)
    with looking(one, "trunk.*") as seen:
        one(ids(B, N), source=ids(B, S))
    block, x = one.trunk.blocks[1], seen["trunk.0.residual"]

    for name, after in (("attn", "residual_attn"), ("cross", "residual_cross"), ("mlp", "residual")):
        norm, out = getattr(block, f"{name}_norm"), seen[f"trunk.1.{name}.out"]
        assert torch.equal(seen[f"trunk.1.{name}.input"], norm(x) if place == "pre" else x)
        x = x + out if place == "pre" else norm(x + out)
        assert torch.equal(seen[f"trunk.1.{after}"], x)


@torch.no_grad()
def test_an_edit_between_attention_and_mlp_is_what_the_mlp_and_the_stream_go_on_with():
    one, given = model(), ids(B, N)
    moved = torch.randn(B, N, D)
    with looking(one, "trunk.1.residual_attn", edit=lambda address, x: moved), looking(one, "trunk.1.*") as seen:
        one(given)
    block = one.trunk.blocks[1]

    assert torch.equal(seen["trunk.1.mlp.input"], block.mlp_norm(moved))
    assert_close(seen["trunk.1.residual"], moved + seen["trunk.1.mlp.out"])


@pytest.mark.parametrize("projections", [("q", "k", "v", "out"), ("q", "k", "v")])
@torch.no_grad()
def test_what_the_heads_add_to_the_stream_sums_to_what_attention_adds(projections):
    one, given = model(attention=C.Attention(heads=H, projections=projections)).double(), ids(B, N)
    made = watched(one, "trunk.1.attn.head_out", "trunk.1.attn.out", given=given)
    some = watched(one, "trunk.1.attn.head_out", given=given, heads=[2, 0], queries=slice(1, -2))
    bias = one.trunk.blocks[1].attn.out.bias if "out" in projections else 0.0

    assert made["attn.head_out"].shape == (B, H, N, D)
    assert_close(made["attn.head_out"].sum(1) + bias, made["attn.out"], atol=1e-12, rtol=0)
    assert_close(some["attn.head_out"], made["attn.head_out"][:, [2, 0], 1:-2])


@torch.no_grad()
def test_what_a_head_adds_is_edited_like_the_head_itself():
    one, given = model(), ids(B, N)
    with looking(one, "trunk.1.attn.head_out", heads=[1], queries=slice(2, 5), edit=lambda address, x: 0 * x):
        added = one(given)
    with looking(one, "trunk.1.attn.result", heads=[1], queries=slice(2, 5), edit=lambda address, x: 0 * x):
        mixed = one(given)

    assert_close(added, mixed, atol=1e-6, rtol=0)


# ---------------------------------------------------------------- gradients

PLACES = ["embed", "1.attn.input", "1.attn.q", "1.attn.v", "1.attn.result", "1.attn.head_out", "1.attn.out",
          "1.residual_attn", "1.mlp.input", "1.mlp.hidden", "1.residual", "1.attn.scores", "1.attn.pattern",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_gradient_is_the_slope_of_the_loss_along_a_small_edit(place):
    one, given, address = model(mask="full").double(), ids(B, N), f"trunk.{place}"
    one.requires_grad_(place != "embed")  # whether or not a weight before the address is trained
    with looking(one, address, grad=True) as seen:
        one(given).square().sum().backward()
    slope, way = seen.grad(address), torch.randn(seen[address].shape, dtype=torch.float64)

    def loss(step: float) -> float:
        with torch.no_grad(), looking(one, address, edit=lambda name, x: x + step * way):
            return float(one(given).square().sum())

    assert_close(float((slope * way).sum()), (loss(1e-5) - loss(-1e-5)) / 2e-5, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", EXACT)
def test_keeping_gradients_changes_neither_the_output_nor_the_gradients_of_the_weights(kernel):
    one, given = model(attention=C.Attention(heads=H, kernel=kernel)), ids(B, N)

    def step() -> tuple[Tensor, dict[str, Tensor]]:
        one.zero_grad()
        out = one(given)
        out.square().mean().backward()
        return out, gradients(one)

    out, before = step()
    with looking(one, "*", grad=True) as seen:
        again, after = step()

    assert_close(again, out, atol=1e-6, rtol=0)  # patterns were made by `reference`
    assert all(seen.grad(address).shape == seen[address].shape for address in seen)
    for name in before:
        assert_close(after[name], before[name], atol=1e-6, rtol=1e-4)


def test_the_gradient_of_chosen_heads_and_rows_is_that_part_of_all_of_it():
    one, given, address = model(), ids(B, N), "trunk.1.attn.pattern"
    found = []
    for choice in ({}, dict(heads=[2, 0], queries=slice(1, -2))):
        with looking(one, address, grad=True, **choice) as seen:
            one(given).square().sum().backward()
        found.append(seen.grad(address))

    assert_close(found[1], found[0][:, [2, 0], 1:-2])


def test_a_gradient_that_cannot_be_is_refused_in_a_sentence():
    one, given = model(), ids(B, N)
    with looking(one, "trunk.embed", grad=True) as seen, pytest.raises(KeyError, match="takes looking.*then backward"):
        one(given)
        seen.grad("trunk.embed")
    with looking(one, "trunk.embed", grad=True), torch.no_grad(), pytest.raises(ValueError, match="gradients are off"):
        one(given)
    with (
        pytest.raises(ValueError, match="edit or grad=True, not both"),
        looking(one, "trunk.embed", grad=True, edit=lambda address, x: x),
    ):
        one(given)


# ---------------------------------------------------------------- choosing heads and rows


@kernels
@torch.no_grad()
def test_chosen_heads_and_rows_are_exactly_those(kernel):
    one, given = case(kernel)
    names = [f"trunk.1.attn.{name}" for name in ("q", "scores", "pattern", "result")]
    whole = watched(one, *names, given=given)
    some = watched(one, *names, given=given, heads=[2, 0], queries=slice(1, -2))

    for name, part in some.items():
        assert_close(part, whole[name][:, [2, 0], 1:-2], atol=1e-6, rtol=0)


@torch.no_grad()
def test_rows_are_chosen_where_there_are_no_heads():
    one, given = model(), ids(B, N)
    names = ["trunk.embed", "trunk.1.mlp.hidden", "trunk.1.mlp.out", "trunk.1.residual", "trunk.final", "logits"]
    whole, some = (watched(one, *names, given=given, queries=rows) for rows in (None, slice(-1, None)))

    assert all(torch.equal(some[name], whole[name][:, -1:]) for name in whole)


@torch.no_grad()
def test_keys_and_values_are_shown_for_all_tokens_whatever_rows_are_asked_for():
    made = watched(model(), "trunk.1.attn.[kv]", given=ids(B, N), heads=[1], queries=slice(2, 3))

    assert made["attn.k"].shape == made["attn.v"].shape == (B, 1, N, D // H)


@torch.no_grad()
def test_a_chosen_head_of_a_group_shows_and_reads_its_own_group_s_keys_and_values():
    one, given = model(attention=C.Attention(heads=6, head_dim=4, kv_heads=3)), ids(B, N)
    whole, some = (watched(one, "trunk.1.attn.*", given=given, heads=heads) for heads in (None, [4, 1]))

    assert_close(some["attn.pattern"], whole["attn.pattern"][:, [4, 1]])
    assert torch.equal(some["attn.k"], whole["attn.k"][:, [2, 0]])
    assert torch.equal(some["attn.v"], whole["attn.v"][:, [2, 0]])


@pytest.mark.parametrize("name", ["q", "k", "scores", "pattern", "result"])
def test_a_head_that_is_not_there_is_refused_by_its_number(name):
    one = model()

    with (
        pytest.raises(ValueError, match=rf"^trunk.1.attn.{name} has {H} heads, and \[{H}\] were requested$"),
        looking(one, f"trunk.1.attn.{name}", heads=[H]),
    ):
        one(ids(B, N))


class Largest(TorchDispatchMode):
    """The number of elements in the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


LONG = 129


@torch.no_grad()
def largest_while_watching(**choice) -> int:
    one, given = model(attention=C.Attention(heads=H, kernel="fused")), ids(1, LONG)
    with looking(one, "trunk.1.attn.pattern", **choice), Largest() as largest:
        one(given)
    return largest.elements


def test_watching_one_row_makes_no_table_of_all_rows():
    assert largest_while_watching(queries=slice(-1, None)) < LONG * LONG


def test_watching_one_head_makes_the_table_of_that_head_alone():
    assert largest_while_watching(heads=[1]) == LONG * LONG  # and the measure does see such a table


# ---------------------------------------------------------------- generation


@torch.no_grad()
def test_each_step_of_a_generation_is_recorded_as_it_was_without_a_cache():
    one, given, address = model(), ids(B, N), "trunk.1.attn.pattern"
    real = torch.arange(N) >= torch.tensor([[2], [0]])
    whole = watched(one, address, given=one.embed(given, real=real))["attn.pattern"]
    cache = one.cache(B, 11)
    with looking(one, address) as seen:
        for step in range(N):
            one(given[:, step : step + 1], real=real[:, step : step + 1], cache=cache)
    first, *later = seen.all_calls(address)

    assert len(later) == N - 1
    for step, rows in enumerate(later, 1):
        rows, wanted = rows[:, :, 0, : step + 1], whole[:, :, step, : step + 1]
        assert_close(rows[real[:, step]], wanted[real[:, step]], atol=1e-6, rtol=0)


@torch.no_grad()
def test_watching_a_generation_changes_no_bit():
    one, given = model(), ids(B, N)

    def logits() -> Tensor:
        cache = one.cache(B, 11)
        return torch.cat([one(given[:, :4], cache=cache), one(given[:, 4:], cache=cache)], 1)

    before = logits()
    with looking(one, "*"):
        assert torch.equal(logits(), before)


# ---------------------------------------------------------------- editing


@pytest.mark.parametrize("name", ["attn.q", "attn.result", "attn.out", "mlp.hidden", "mlp.out", "residual"])
@torch.no_grad()
def test_an_edit_that_changes_nothing_changes_no_bit(name):
    one, given = model(), ids(B, N)
    before = one(given)

    with looking(one, f"trunk.*.{name}", edit=lambda address, x: x):
        assert torch.equal(one(given), before)


@pytest.mark.parametrize("kernel", [*EXACT, "window2d"])
@pytest.mark.parametrize("name", ["scores", "pattern"])
@torch.no_grad()
def test_an_edit_of_the_table_that_changes_nothing_is_the_kernel_s_own_result(name, kernel):
    one, given = case(kernel)
    before = one(given)

    with looking(one, f"trunk.1.attn.{name}", edit=lambda address, x: x):
        assert_close(one(given), before, atol=1e-5, rtol=0)


@torch.no_grad()
def test_silencing_a_head_is_zeroing_its_columns_of_the_output_map():
    one, given, width = model(), ids(B, N), D // H
    with looking(one, "trunk.1.attn.result", heads=[2], edit=lambda address, x: 0 * x):
        silenced = one(given)
    one.trunk.blocks[1].attn.out.weight[:, 2 * width : 3 * width] = 0

    assert_close(silenced, one(given), atol=1e-6, rtol=0)


@torch.no_grad()
def test_a_uniform_pattern_gathers_the_mean_of_the_values():
    one, given = model(), ids(B, N)
    with looking(one, "trunk.1.attn.pattern", edit=lambda address, x: torch.full_like(x, 1 / N)):
        made = watched(one, "trunk.1.attn.v", "trunk.1.attn.result", given=given)
    mean = made["attn.v"].mean(2, keepdim=True)

    assert_close(made["attn.result"], mean.expand(B, H, N, D // H), atol=1e-6, rtol=0)


@torch.no_grad()
def test_scores_of_zero_are_a_uniform_pattern():
    one, given = model(), ids(B, N)
    with looking(one, "trunk.1.attn.scores", edit=lambda address, x: torch.zeros_like(x)):
        zeroed = one(given)
    with looking(one, "trunk.1.attn.pattern", edit=lambda address, x: torch.full_like(x, 1 / N)):
        uniform = one(given)

    assert_close(zeroed, uniform, atol=1e-6, rtol=0)


@torch.no_grad()
def test_a_number_added_to_all_scores_changes_nothing():
    one, given = model(), ids(B, N)
    before = one(given)

    with looking(one, "trunk.*.attn.scores", edit=lambda address, x: x + 5):
        assert_close(one(given), before, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_residual_of_another_text_makes_its_logits():
    one, mine, theirs = model(), ids(B, N), ids(B, N)
    with looking(one, "trunk.1.residual") as seen:
        expected = one(theirs)

    with looking(one, "trunk.1.residual", edit=lambda address, x: seen[address]):
        assert torch.equal(one(mine), expected)


@torch.no_grad()
def test_silencing_a_feed_forward_layer_is_zeroing_its_last_map():
    one, given = model(), ids(B, N)
    with looking(one, "trunk.1.mlp.out", edit=lambda address, x: torch.zeros_like(x)):
        silenced = one(given)
    for weight in one.trunk.blocks[1].mlp.down.parameters():
        weight.zero_()

    assert torch.equal(silenced, one(given))


@torch.no_grad()
def test_edited_logits_are_what_comes_out():
    one, given = model(), ids(B, N)
    expected = one(given)
    expected[:, -1] = 7

    with looking(one, "logits", queries=slice(-1, None), edit=lambda address, x: torch.full_like(x, 7)):
        assert torch.equal(one(given), expected)


@torch.no_grad()
def test_an_edit_of_cross_attention_s_pattern_chooses_what_is_read():
    one, source = translator(), ids(B, S)
    first = torch.eye(S)[0].expand(B, H, N, S)
    with (
        looking(one, "trunk.1.cross.pattern", edit=lambda address, x: first),
        looking(one, "trunk.1.cross.v", "trunk.1.cross.result") as seen,
    ):
        one(ids(B, N), source=source)

    assert_close(seen["trunk.1.cross.result"], seen["trunk.1.cross.v"][:, :, :1].expand(B, H, N, D // H))


@pytest.mark.parametrize("name", ["attn.pattern", "attn.result", "mlp.out", "residual"])
@torch.no_grad()
def test_an_edit_leaves_earlier_layers_alone_and_reaches_later_ones(name):
    one, given = model(), ids(B, N)
    with looking(one, "trunk.*.residual") as before:
        one(given)
    with looking(one, f"trunk.1.{name}", edit=lambda address, x: 0 * x), looking(one, "trunk.*.residual") as after:
        one(given)

    assert [torch.equal(before[address], after[address]) for address in before] == [True, False, False]


@torch.no_grad()
def test_an_edit_of_chosen_heads_and_rows_leaves_the_others_alone():
    one, given, address = model(), ids(B, N), "trunk.1.attn.result"
    before = watched(one, address, given=given)["attn.result"].clone()
    with looking(one, address, heads=[1], queries=slice(2, 4), edit=lambda address, x: x + 1):
        after = watched(one, address, given=given)["attn.result"]
    before[:, 1, 2:4] += 1

    assert torch.equal(after, before)


def test_gradients_flow_through_an_edit():
    one, given = model(), ids(B, N)
    factor = torch.tensor(0.5, requires_grad=True)
    with looking(one, "trunk.1.attn.pattern", edit=lambda address, x: factor * x):
        one(given).square().mean().backward()

    assert factor.grad.abs() > 0 and one.trunk.blocks[0].attn.qkv.weight.grad.abs().sum() > 0


@torch.no_grad()
def test_an_edit_is_told_the_address():
    one, told = model(), []
    with looking(one, "trunk.*.mlp.out", edit=lambda address, x: (told.append(address), x)[1]):
        one(ids(B, N))

    assert told == ["trunk.0.mlp.out", "trunk.1.mlp.out", "trunk.2.mlp.out"]


# ---------------------------------------------------------------- looking several times


@torch.no_grad()
def test_two_who_look_see_the_same():
    one, given = model(), ids(B, N)
    with looking(one, "trunk.1.residual") as outer, looking(one, "trunk.*.residual") as inner:
        one(given)

    assert torch.equal(outer["trunk.1.residual"], inner["trunk.1.residual"])
    assert (len(list(outer)), len(list(inner))) == (1, 3)


@torch.no_grad()
def test_who_looks_inside_an_edit_sees_what_was_made_of_it():
    one, given, address = model(), ids(B, N), "trunk.1.attn.pattern"
    with (
        looking(one, address) as before,
        looking(one, address, edit=lambda _, x: 0 * x),
        looking(one, address) as after,
    ):
        one(given)

    assert before[address].any() and not after[address].any()


@torch.no_grad()
def test_a_shared_block_has_an_address_for_each_pass():
    one, given = model(share_layers=True), ids(B, N)
    with looking(one, "trunk.*.residual") as seen:
        one(given)

    assert len(one.trunk.blocks) == 1
    assert list(seen) == [f"trunk.{i}.residual" for i in range(3)]
    assert not torch.equal(seen["trunk.0.residual"], seen["trunk.1.residual"])


@torch.no_grad()
def test_one_pass_of_a_shared_block_is_edited_without_the_others():
    one, given = model(share_layers=True), ids(B, N)
    with looking(one, "trunk.0.mlp.out") as before:
        plain = one(given)
    with (
        looking(one, "trunk.1.mlp.out", edit=lambda address, x: 0 * x),
        looking(one, "trunk.0.mlp.out") as after,
    ):
        edited = one(given)

    assert torch.equal(before["trunk.0.mlp.out"], after["trunk.0.mlp.out"])
    assert not torch.equal(plain, edited)


@torch.no_grad()
def test_every_call_is_kept_and_the_last_is_shown():
    one, first, last = model(), ids(B, N), ids(B, N)
    with looking(one, "logits") as seen:
        logits = [one(first), one(last)]

    assert all(torch.equal(x, y) for x, y in zip(seen.all_calls("logits"), logits, strict=True))
    assert torch.equal(seen["logits"], logits[1])


# ---------------------------------------------------------------- coming and going


@torch.no_grad()
def test_afterwards_nobody_looks():
    one, given = model(), ids(B, N)
    before = one(given)
    with looking(one, "trunk.0.attn.result", edit=lambda address, x: 0 * x), looking(one, "logits") as seen:
        one(given)

    assert torch.equal(one(given), before)
    assert len(seen.all_calls("logits")) == 1


@torch.no_grad()
def test_an_error_inside_leaves_the_model_unwatched():
    one, given = model(), ids(B, N)
    before = one(given)
    with suppress(KeyError), looking(one, "logits", edit=lambda address, x: {}[address]):
        one(given)

    assert torch.equal(one(given), before)


def test_who_leaves_first_need_not_have_come_last():
    one = model()
    first, second = looking(one, "logits"), looking(one, "trunk.embed")
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None), second.__exit__(None, None, None)

    assert one.hooks == ()


def test_a_misspelt_address_is_answered_with_the_nearest():
    with (
        pytest.raises(ValueError, match="no address 'trunk.1.atn.pattern'; did you mean 'trunk.1.attn.pattern'"),
        looking(model(), "trunk.1.atn.pattern"),
    ):
        pass


def test_an_edit_of_another_shape_is_refused_by_its_address():
    one = model()

    with (
        looking(one, "trunk.1.mlp.out", edit=lambda address, x: x[:, :1]),
        pytest.raises(ValueError, match=rf"^edit at trunk.1.mlp.out must return .* \({B}, {N}, {D}\)$"),
    ):
        one(ids(B, N))


def test_an_edit_that_returns_nothing_is_refused_by_its_address():
    one = model()

    with (
        looking(one, "trunk.1.mlp.out", edit=lambda address, x: None),
        pytest.raises(ValueError, match="^edit at trunk.1.mlp.out must return a tensor"),
    ):
        one(ids(B, N))


def test_what_was_not_seen_is_asked_for_in_vain():
    with looking(model(), "logits") as seen, pytest.raises(KeyError, match="nothing was recorded at 'logits'"):
        seen["logits"]
