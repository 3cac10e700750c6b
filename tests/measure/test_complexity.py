"""The square of the tokens, its share of the work, and attention beside recurrent and convolutional layers."""

import math
from dataclasses import replace

import pytest
import torch
from core.builders import stack
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import config as C
from regard import measure
from regard.core.tokens import sequence_tokens
from regard.measure.complexity import contiguous_path, dilated_path, formula_applies
from regard.measure.fake_model import max_tokens as longest_context


def dense(name: str) -> C.Transformer:
    """A preset whose every layer sees all that came before."""
    return regard.preset(name, mask="causal")


# ---------------------------------------------------------------- share and squares


@pytest.mark.spec("S122")
@pytest.mark.parametrize(
    ("c", "tokens", "published"),
    [(dense("gpt3-175b"), 2048, 0.027), (regard.preset("bert-base"), 512, 0.10),
     (regard.preset("gpt2", dim=512, heads=8), 1024, 0.25)],
    ids=["GPT-3", "BERT base", "512 wide"],
)  # fmt: skip
def test_the_share_of_looking_is_the_published_one_and_the_counted_one(c, tokens, published):
    found = measure.attention_share(c, measure.count_flops(c, tokens), tokens)

    assert found.applies
    assert found.formula == pytest.approx(published, abs=0.001)
    assert found.counted == pytest.approx(found.formula, rel=0.02)


@pytest.mark.spec("S122")
@pytest.mark.parametrize("name", [n for n in C.PRESETS if isinstance(regard.preset(n), C.Transformer)])
def test_the_formula_is_right_wherever_it_applies(name):
    c = regard.preset(name)
    bill = measure.count_flops(c, longest := longest_context(c))
    found = measure.attention_share(c, bill, longest)

    assert not found.applies or found.counted == pytest.approx(found.formula, rel=0.02)


@pytest.mark.parametrize(
    "change",
    [{"hidden": 512}, {"kv_heads": 3}, {"mask": "causal & window(9)"}, {"position": {"kind": "shaw"}},
     {"trunk": {"mlp": {"gated": True}}}],
    ids=str,
)  # fmt: skip
def test_the_formula_does_not_apply_to_other_layers(change):
    assert formula_applies(regard.preset("gpt2"), 1024)
    assert not formula_applies(regard.preset("gpt2", **change), 1024)


@pytest.mark.spec("S141", "S142")
def test_the_squares_and_their_bytes_are_the_published_ones():
    rows = measure.attention_growth((8,) * 12)

    assert [row.tokens for row in rows] == [128, 256, 512, 1024, 2048, 4096]
    assert [row.pairs for row in rows] == [16384, 65536, 262144, 1048576, 4194304, 16777216]
    assert rows[3].layer == 33_554_432 and rows[3].model == pytest.approx(402.7e6, rel=1e-3)


@pytest.mark.spec("S141")
def test_the_reference_kernel_really_writes_the_square_down():
    c = regard.preset("gpt2", dim=24, depth=5, heads=3, vocab=11, dropout=0.0)
    two = [
        measure.activation_memory(replace(c, trunk=replace(c.trunk, depth=depth)), 1, 128, "reference").kept
        for depth in (5, 4)
    ]
    none = [
        measure.activation_memory(replace(c, trunk=replace(c.trunk, depth=depth)), 1, 128, "fused").kept
        for depth in (5, 4)
    ]
    (row,) = measure.attention_growth((3,) * 5, (128,))

    more = (two[0] - two[1]) - (none[0] - none[1])
    assert row.layer < more < 1.2 * row.layer  # and which of them the mask forbids


# ---------------------------------------------------------------- rivals


def steepness(work, sizes: tuple[int, int]) -> float:
    """The exponent by which counted work grows between two sizes."""
    small, large = (counted(work, size) for size in sizes)
    return math.log(large / small) / math.log(sizes[1] / sizes[0])


def counted(work, size: int) -> float:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        work(size)
    return counter.get_total_flops()


def attention(n: int, d: int) -> None:
    nn.MultiheadAttention(d, 1, batch_first=True)(*[torch.empty(1, n, d)] * 3, need_weights=True)


def convolution(n: int, d: int) -> None:
    nn.Conv1d(d, d, 3, padding=1)(torch.empty(1, d, n))


def recurrent(n: int, d: int) -> None:
    """The products of nn.RNN, one cell after the other, as torch's counter does not see into the fused one."""
    cell, h = nn.RNNCell(d, d), torch.empty(1, d)
    for _ in range(n):
        h = cell(torch.empty(1, d), h)


TORCH = {"attention": attention, "recurrent": recurrent, "convolution, kernel 3": convolution}


@pytest.mark.spec("S139")
@pytest.mark.parametrize("name", TORCH)
def test_operations_of_a_layer_are_those_that_torch_counts(name):
    for n, d in ((37, 24), (101, 8)):
        (row,) = [row for row in measure.layer_complexities(n, d) if row.name == name]
        assert row.operations == pytest.approx(counted(lambda n, d=d: TORCH[name](n, d), n), rel=0.02)


@pytest.mark.spec("S139")
@pytest.mark.parametrize(("name", "in_n", "in_d"), [("attention", 2, 1), ("recurrent", 1, 2),
                                                    ("convolution, kernel 3", 1, 2)])  # fmt: skip
def test_counted_work_grows_by_the_exponents_of_the_table(name, in_n, in_d):
    """Where looking rules: sequences much longer than the layer is wide."""
    work, n, d = TORCH[name], 160 if name == "attention" else 40, 8

    assert steepness(lambda n: work(n, d), (n, 2 * n)) == pytest.approx(in_n, abs=0.2)
    assert steepness(lambda d: work(n, d), (d // 2, d)) == pytest.approx(in_d, abs=0.2)


@pytest.mark.spec("S139")
def test_orders_of_the_table_say_the_same_exponents():
    orders = {row.name: row.operations_order for row in measure.layer_complexities(64, 8, window=5)}

    assert orders == {"attention": "n²·d", "attention, window 5": "r·n·d", "recurrent": "n·d²",
                      "convolution, kernel 3": "k·n·d²", "convolution, dilated": "k·n·d²"}  # fmt: skip


# ---------------------------------------------------------------- how far news travels


def reached(layers: list[nn.Module], n: int) -> bool:
    """Does what stands first change what comes out last?"""
    x = torch.zeros(1, 1, n, requires_grad=True)
    y = x
    for layer in layers:
        nn.init.ones_(layer.weight)
        y = layer(nn.functional.pad(y, (layer.dilation[0] * (layer.kernel_size[0] - 1), 0)))
    y[0, 0, -1].backward()
    return bool(x.grad[0, 0, 0] != 0)


@pytest.mark.spec("S139")
@pytest.mark.parametrize("kernel", [2, 3, 5, 7])
@pytest.mark.parametrize("n", [2, 9, 10, 14, 28, 41])
def test_paths_through_convolutions_are_as_long_as_gradients_say(n, kernel):
    def plain(count):
        return [nn.Conv1d(1, 1, kernel, bias=False) for _ in range(count)]

    def holes(count):
        return [nn.Conv1d(1, 1, kernel, dilation=kernel**i, bias=False) for i in range(count)]

    for make, layers in ((plain, contiguous_path(n, kernel)), (holes, dilated_path(n, kernel))):
        assert reached(make(layers), n)
        assert layers == 1 or not reached(make(layers - 1), n)


@pytest.mark.spec("S139")
def test_a_recurrent_layer_takes_as_many_steps_as_tokens_and_attention_one():
    rows = {row.name: row for row in measure.layer_complexities(41, 8)}
    cell, h, calls = nn.RNNCell(1, 3), torch.zeros(1, 3), 0
    x = torch.randn(41, 1, 1, requires_grad=True)
    for each in x:  # each needs the one before: nothing can be done at once
        h, calls = cell(each, h), calls + 1
    h.sum().backward()

    assert x.grad[0].abs() > 0 and calls == 41
    assert (rows["recurrent"].sequential, rows["recurrent"].path) == (41, 41)
    assert (rows["attention"].sequential, rows["attention"].path) == (1, 1)


@pytest.mark.spec("S139")
@pytest.mark.parametrize(("radius", "n"), [(1, 7), (3, 11), (4, 29)])
def test_the_path_through_windows_is_as_long_as_gradients_say(radius, n):
    (row,) = [row for row in measure.layer_complexities(n, 12, window=radius) if "window" in row.name]

    def reaches(depth: int) -> bool:
        trunk = stack(depth=depth, mask=f"window({radius})").double()
        x = torch.randn(1, n, 12, dtype=torch.double, requires_grad=True)
        trunk(sequence_tokens(x)).x[0, -1].square().sum().backward()
        return bool(x.grad[0, 0].abs().sum() > 0)

    assert reaches(row.path) and not reaches(row.path - 1)
