"""What mixing n tokens costs, counted by torch and not by the clock: kernels grow as their formulas say."""

import math

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import config as C
from regard import measure
from regard.core.kernels import KERNELS
from regard.measure.complexity import cost_order, fit_exponent, measure_growth
from regard.measure.peak_memory import peak_tensor_bytes
from regard.models.segment_memory import build_segment_memory

GIB = 2**30
SHORT, LONG = 2048, 16384
SPARSE = ["causal & window(64)", "window(64)", "causal & (window(64) | global_tokens(2))",
          "causal & window(256) & strided(4)"]  # fmt: skip
SAID = {  # how a model of one layer says each, where its name alone is not enough
    "linformer": lambda n: {"kernel": f"linformer(32, {n})", "mask": "full"},
    "lsh": lambda n: {"kernel": "lsh(64, 2)", "projections": ("q", "v", "out")},
    "local": lambda n: {"mask": "causal & window(64)"},
}  # fmt: skip


def layer(mask="causal", depth=1, dim=24, **said):
    attention = C.Attention(heads=3, **said)
    trunk = C.Trunk(dim=dim, depth=depth, mask=mask, attention=attention, position=C.NoPosition(), dropout=C.NO_DROPOUT)
    return C.Transformer(embed=C.TextEmbedding(vocab=23), trunk=trunk)


def looked(c, tokens):
    """Products between tokens that torch counts in a forward pass of shapes alone: maps are no batched ones."""
    made = measure.build_fake_model(c)
    with made.mode, torch.no_grad(), FlopCounterMode(display=False) as counter:
        made.run(1, tokens)
    return counter.get_flop_counts()["Global"][torch.ops.aten.bmm]


def steepness(work):
    return math.log(work(LONG) / work(SHORT)) / math.log(LONG / SHORT)


@pytest.mark.spec("S114")
@pytest.mark.parametrize("mask", SPARSE)
def test_sparse_looking_grows_as_n_and_dense_as_its_square(mask):
    assert steepness(lambda n: looked(layer(mask, kernel="local"), n)) < 1.2
    assert steepness(lambda n: looked(layer(mask, kernel="reference"), n)) > 1.8


@pytest.mark.spec("S139")
@pytest.mark.parametrize(
    "name", [name for name in KERNELS if name not in ("window2d", "graph", "sparse", "native_decode")]
)
def test_counted_operations_grow_as_the_formula_of_a_kernel(name):
    """Those that `regard estimate` counts, and `regard compare` shows the power of beside the time."""

    def looking(n):
        said = {"kernel": name, **SAID.get(name, lambda n: {})(n)}
        return measure.count_flops(layer(said.pop("mask", "causal"), **said), n).parts["looking"] * n

    assert steepness(looking) == pytest.approx(cost_order(name)[1], abs=0.2)


def test_only_kernels_of_images_and_graphs_are_left_out():
    declared = {name for name in KERNELS if cost_order(name) is not None}

    assert {"window2d", "sparse"} <= KERNELS.keys() - {"native_decode"} <= declared


@pytest.mark.spec("S121")
@pytest.mark.parametrize("said", [{"kernel": "linear"}, {"kernel": "local", "mask": "causal & window(128)"}], ids=str)
def test_a_step_on_fifty_thousand_tokens_has_room_in_six_gibibytes(said):
    said = dict(said)
    c = layer(said.pop("mask", "causal"), depth=4, dim=120, **said)
    bill, dense = (
        measure.estimate_model(each, context=50_000) for each in (c, layer(depth=4, dim=120, kernel="reference"))
    )

    assert bill.memory.total < 6 * GIB < 100 * GIB < dense.memory.total


@pytest.mark.spec("S121")
@pytest.mark.parametrize(("kernel", "mask", "kept"), [("linear", "causal", 1), ("local", "causal & window(9)", 9)])
def test_a_stream_is_read_in_memory_that_does_not_grow(kernel, mask, kept):
    """And what is read in pieces is what is read at once, where the mask reaches no further than the memory."""
    model, size = regard.build(layer(mask, kernel=kernel)).eval(), 32
    ids, seen, held, said = torch.randint(23, (1, 40 * size)), build_segment_memory(model, 1, kept), [], []

    def piece(start):
        with torch.no_grad():
            said.append(model(ids[:, start : start + size], cache=seen))

    for start in range(0, ids.shape[1], size):
        held.append(peak_tensor_bytes(lambda start=start: piece(start)))

    assert len(set(held[1:])) == 1  # bytes that a piece takes, whatever came before it
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(said, 1), model(ids), rtol=1e-4, atol=1e-4)


def test_a_view_of_what_was_given_holds_nothing_new():
    x = torch.ones(3, 1000)

    assert peak_tensor_bytes(lambda: x.view(-1).split(500)) == 0
    assert peak_tensor_bytes(lambda: x.T + 1) == 12_000


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_memory_of_an_operator_of_higher_order_is_seen():
    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))

    assert peak_tensor_bytes(lambda: flex_attention(q, k, v)) >= q.nbytes


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("last", [2, 3, 9])
def test_the_exponent_of_a_power_is_found(power, last):
    lengths = [256 * 2**place for place in range(6)]

    assert fit_exponent(lengths, [3e-9 + 7e-6 * n**power for n in lengths], last) == pytest.approx(power, abs=1e-3)


def test_the_exponent_of_the_last_doubling_is_the_logarithm_of_its_ratio():
    assert fit_exponent([256, 512, 1024], [9.0, 1.0, 3.0], last=2) == pytest.approx(math.log2(3.0))
    assert math.isnan(fit_exponent([256], [1.0]))


@pytest.mark.parametrize(("enough", "least", "lengths"), [
    (math.inf, 2, [1, 2, 4, 8, 16]), (4.0, 2, [1, 2, 4]), (0.0, 2, [1, 2]), (0.0, 3, [1, 2, 4]),
])  # fmt: skip
def test_a_length_doubles_until_it_costs_enough(enough, least, lengths):
    assert measure_growth(lambda n: (n, 7.0), 1, 20, enough, least) == (lengths, [(n, 7.0) for n in lengths])


def test_a_length_without_a_cost_ends_the_growth():
    assert measure_growth(lambda n: (1.0,) if n < 4 else None, 1, 99, math.inf) == ([1, 2], [(1.0,), (1.0,)])
