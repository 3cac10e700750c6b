"""Every exact kernel means what `reference` means, and `reference` means what the formula says."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from core.builders import (
    BIASES,
    CPU_KERNELS,
    GRID,
    MEANINGS,
    B,
    D,
    E,
    H,
    K,
    Q,
    asking,
    attend,
    biased,
    gradients,
    heads_of,
    meant,
    scattered,
    scattered_pair,
)  # fmt: skip
from parity.tolerance import GRADIENT, assert_near
from sizes import in_full
from torch import Tensor

from regard.core.kernels import KERNELS, AttentionArgs, AttentionSpec, make_plan
from regard.core.masks import CAUSAL
from regard.core.positions import Bias
from regard.core.tokens import TokenIndex, TokenLayout, grid_tokens, sequence_tokens

OTHERS = [name for name in CPU_KERNELS if name != "reference"]


def assert_same(name: str, ask: AttentionSpec, bias: str | None = None, scale: float = D**-0.5, **heads: int) -> None:
    """Output and gradients of q, k, v and the bias' own tables, against the reference."""
    q, k, v = heads_of(ask.q.count, ask.k.count, **heads)
    place = None if bias is None else biased(BIASES[bias], q.shape[1])
    weights = [q, k, v, *([] if place is None else place.parameters())]
    results = []
    for each in (name, "reference"):
        made = None if place is None else place.prepare(ask.q, ask.k).bias_for(q, scale)
        results.append(attend(each, q, k, v, ask, scale, made))
    assert_near(*results)
    for ours, theirs in zip(*(gradients(out, weights) for out in results), strict=True):
        assert_near(ours, theirs, GRADIENT)


# ---------------------------------------------------------------- what the reference means


def spelled_out(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray, scale: float) -> np.ndarray:
    """Attention as one says it, in loops over NumPy's float64: no tensor of the library in sight."""
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    share = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(*q.shape[:3]):
        seen = [j for j in range(k.shape[2]) if allowed[b, i, j]]
        raw = [math.exp(scale * sum(q[b, h, i] * k[b, h // share, j])) for j in seen]
        for weight, j in zip(raw, seen, strict=True):
            out[b, h, i] += weight / sum(raw) * v[b, h // share, j]
    return out


@pytest.mark.spec("S002")
@pytest.mark.parametrize("kv_heads", [6, 3, 1])
@pytest.mark.parametrize("text", ["full", "causal", "padding", "causal & (window(1) | global_tokens(1))"])
def test_the_reference_is_the_formula_to_ten_digits(text, kv_heads):
    places = scattered_pair()
    q, k, v = heads_of(Q, K, heads=6, kv_heads=kv_heads, dtype=torch.float64)
    out = attend("reference", q, k, v, asking(text, *places))
    plain = [x.detach().numpy() for x in (q, k, v)]

    assert_near(out, torch.from_numpy(spelled_out(*plain, meant(text, *places).numpy(), D**-0.5)), 1e-10)


@pytest.mark.spec("S002")
@pytest.mark.parametrize("name", CPU_KERNELS)
def test_equal_keys_share_the_query_equally(name):
    q, _, v = heads_of(Q, K)
    few, many = sequence_tokens(torch.empty(B, Q, 0)), sequence_tokens(torch.empty(B, K, 0))
    out = attend(name, q, torch.zeros(B, H, K, D), v, asking(q=few, k=many))

    assert_near(out, v.mean(2, keepdim=True).expand_as(out))


@pytest.mark.parametrize("name", CPU_KERNELS)
def test_a_causal_query_counts_from_the_first_key_however_many_keys_there_are(name):
    """PyTorch's own is_causal hangs the triangle in the upper left corner, and so must we when Q is not K."""
    few, many = sequence_tokens(torch.empty(B, Q, 0)), sequence_tokens(torch.empty(B, K, 0))
    q, k, v = heads_of(Q, K)
    out = attend(name, q, k, v, asking(CAUSAL, few, many))

    assert_near(out[:, :, 0], v[:, :, 0])


# ---------------------------------------------------------------- the others mean the same


@pytest.mark.parametrize("text", MEANINGS)
@pytest.mark.parametrize("name", OTHERS)
def test_an_exact_kernel_means_the_same_under_every_mask(name, text):
    assert_same(name, asking(text, *scattered_pair()))


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("text", ["full", "causal & padding"])
@pytest.mark.parametrize("name", OTHERS)
def test_an_exact_kernel_means_the_same_under_every_bias(name, text, bias):
    q, k = (replace(places, coords=None) for places in scattered_pair())

    assert_same(name, asking(text, q, k), bias)


@pytest.mark.parametrize("kv_heads", [3, 2, 1])
@pytest.mark.parametrize("bias", [None, "alibi", "shaw"])
@pytest.mark.parametrize("name", OTHERS)
def test_an_exact_kernel_means_the_same_when_heads_share_keys(name, bias, kv_heads):
    q, k = (replace(places, coords=None) for places in scattered_pair())

    assert_same(name, asking("window(2)", q, k), bias, heads=6, kv_heads=kv_heads)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, -0.7])
@pytest.mark.parametrize("name", OTHERS)
def test_an_exact_kernel_means_the_same_at_every_scale(name, scale):
    assert_same(name, asking("causal", *scattered_pair()), scale=scale)


@pytest.mark.parametrize("text", ["full", "causal"])
@pytest.mark.parametrize("name", OTHERS)
def test_the_fast_path_of_plain_tokens_means_the_same(name, text):
    ask = asking(text)

    assert ask.plain
    assert_same(name, ask)


def test_a_table_made_ahead_for_all_layers_is_the_table_a_layer_would_make():
    q, k = (replace(places, coords=None) for places in scattered_pair())
    bias = biased(BIASES["relative outside"], H).prepare(q, k).bias
    ask = replace(asking("causal", q, k), bias=True)
    heads = heads_of(Q, K)
    ahead, alone = make_plan("fused", ask, bias, H), make_plan("fused", ask)

    assert_near(ahead.table(heads[0], bias), alone.table(heads[0], bias), 0)
    assert_near(ahead.run(*heads, AttentionArgs(1.0, bias=bias)), alone.run(*heads, AttentionArgs(1.0, bias=bias)), 0)


# ---------------------------------------------------------------- image windows by regrouping

WINDOWS = [
    "window2d(2)",
    "window2d(2, 1)",
    "window2d(3, 1)",
    "window2d(4, 3)",
    "window2d(7)",
    "window2d(1)",
    "window2d(2, 5)",
]


def image(grid: tuple[int, ...] = GRID) -> TokenLayout:
    return grid_tokens(torch.empty(B, math.prod(grid), 0), grid)


@pytest.mark.parametrize("grid", [(3, 5), (5, 1), (7,), (2, 3, 3)])
@pytest.mark.parametrize("text", WINDOWS)
def test_regrouped_windows_mean_the_same_as_their_mask(text, grid):
    assert_same("window2d", asking(text, image(grid)))


@pytest.mark.parametrize("bias", ["alibi", "t5", "shaw"])
@pytest.mark.parametrize("text", ["window2d(2, 1)", "window2d(3)"])
def test_regrouped_windows_mean_the_same_under_a_bias(text, bias):
    assert_same("window2d", asking(text, image()), bias)


@pytest.mark.parametrize("scaled", [True, False])
def test_regrouped_windows_mean_the_same_under_offsets_on_two_axes(scaled, monkeypatch):
    monkeypatch.setitem(BIASES, "plane", replace(BIASES["relative"], axes=2, scaled=scaled))

    assert_same("window2d", asking("window2d(3, 1)", image()), "plane")


@pytest.mark.parametrize("kv_heads", [3, 1])
def test_regrouped_windows_mean_the_same_when_heads_share_keys(kv_heads):
    assert_same("window2d", asking("window2d(2, 1)", image()), "alibi", heads=6, kv_heads=kv_heads)


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("bias", [None, "shaw", "relative"])
@pytest.mark.parametrize("name", [*CPU_KERNELS, "window2d"])
def test_gradients_are_those_of_small_steps(name, bias):
    q, k = (replace(places, coords=None) for places in scattered_pair(queries=3, keys=5))
    ask = asking("window2d(2, 1)", image((5,))) if name == "window2d" else asking("causal & padding", q, k)
    place = None if bias is None else biased(BIASES[bias], 2).double()
    q, k, v = heads_of(ask.q.count, ask.k.count, heads=2, kv_heads=1, dtype=torch.float64)

    def run(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
        made = None if place is None else place.prepare(ask.q, ask.k).bias_for(q, 0.3)
        return attend(name, q, k, v, ask, 0.3, made)

    assert torch.autograd.gradcheck(run, (q, k, v, *([] if place is None else place.parameters())))


# ---------------------------------------------------------------- queries without keys


class Silent(Bias):
    """Forbids the second query everything, from within the scores."""

    def at(self, b: Tensor, h: Tensor, q: TokenIndex, k: TokenIndex) -> Tensor:
        nothing = torch.zeros_like(q.i * k.i, dtype=torch.float32)
        return nothing.masked_fill(q.i == 1, float("-inf"))


def assert_silent(out: Tensor, silent: Tensor, inputs: list[Tensor]) -> None:
    """Zeros where `silent` (B, Q), something elsewhere, and gradients without a NaN."""
    assert silent.any() and not out[silent[:, None].expand(out.shape[:3])].any()
    assert silent.all() or out[~silent[:, None].expand(out.shape[:3])].all()
    assert all(grad.isfinite().all() for grad in gradients(out, inputs))


def lonely() -> tuple[TokenLayout, TokenLayout]:
    """Queries and keys of which the second query of the first row sees no key, under each of the masks below."""
    q, k = (replace(places, coords=None) for places in scattered_pair())
    q.order[0, 1], q.document[0, 1], q.edges[0, 1] = 99, 99, False
    return q, k


LONELY = ["~causal", "edges(0)", "causal & documents & padding"]


@pytest.mark.spec("S024")
@pytest.mark.parametrize("bias", [None, *BIASES])
@pytest.mark.parametrize("text", LONELY)
@pytest.mark.parametrize("name", CPU_KERNELS)
def test_a_query_that_sees_nobody_gets_zeros_and_finite_gradients(name, text, bias):
    places = lonely()
    ask = asking(text, *places)
    q, k, v = heads_of(Q, K)
    place = None if bias is None else biased(BIASES[bias], H)
    made = None if place is None else place.prepare(*places).bias_for(q, 0.3)
    inputs = [q, k, v, *([] if place is None else place.parameters())]

    assert_silent(attend(name, q, k, v, ask, 0.3, made), ~ask.mask.table(*places).any(-1), inputs)


@pytest.mark.spec("S024")
@pytest.mark.parametrize("name", CPU_KERNELS)
def test_a_row_of_nothing_but_padding_gets_zeros_and_finite_gradients(name):
    q, k = scattered_pair()
    k.is_real[0] = False
    heads = heads_of(Q, K)
    silent = torch.tensor([True, False])[:, None].expand(B, Q)
    k.is_real[1, 0] = True

    assert_silent(attend(name, *heads, asking("padding", q, k)), silent, heads)


@pytest.mark.spec("S024")
@pytest.mark.parametrize("name", [*CPU_KERNELS, "window2d"])
def test_a_query_that_a_bias_forbids_everything_gets_zeros_and_finite_gradients(name):
    ask = asking("window2d(2)", image()) if name == "window2d" else asking("full")
    heads = heads_of(ask.q.count, ask.q.count)
    silent = torch.arange(ask.q.count).expand(B, -1) == 1

    assert_silent(attend(name, *heads, ask, bias=Silent()), silent, heads)


@pytest.mark.spec("S021")
@pytest.mark.parametrize("name", CPU_KERNELS)
def test_a_forbidden_key_is_not_even_felt_when_it_is_huge(name):
    ask = asking("padding", *scattered_pair())
    q, k, v = heads_of(Q, K)
    loud = [x.masked_fill(~ask.k.is_real[:, None, :, None], 1e9) for x in (k, v)]

    assert_near(attend(name, q, *loud, ask), attend(name, q, k, v, ask), 0)


# ---------------------------------------------------------------- FlexAttention: forward alone on CPU, and it compiles


def at_rest(*counts: int, **heads: int) -> list[Tensor]:
    return [x.detach() for x in heads_of(*counts, **heads)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, bias, kv_heads",
    [
        ("causal & documents & padding", None, 1),
        ("~(causal & window(2)) | edges", None, 3),
        ("causal & padding", "shaw", 1),
        *(
            pytest.param(*case, marks=in_full)  # each compiles for seconds
            for case in [
                ("causal & (window(1) | global_tokens(1))", None, 3),
                ("full", "alibi", 3),
                ("causal", "relative", 3),
                ("window(2)", "t5", 3),
            ]
        ),
    ],
)
@torch.no_grad()
def test_flex_means_the_same(text, bias, kv_heads):
    q, k = (replace(places, coords=None) for places in scattered_pair(queries=9))
    heads = at_rest(9, K, kv_heads=kv_heads)
    made = None if bias is None else biased(BIASES[bias], H).prepare(q, k).bias_for(heads[0], 0.3)
    ask = asking(text, q, k)

    assert_near(attend("flex", *heads, ask, 0.3, made), attend("reference", *heads, ask, 0.3, made))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["window2d(3, 1)", pytest.param("causal", marks=in_full)])
@torch.no_grad()
def test_flex_means_the_same_on_masks_that_need_no_data(text):
    ask = asking(text, image())
    heads = at_rest(ask.q.count, ask.q.count)

    assert_near(attend("flex", *heads, ask), attend("reference", *heads, ask))


@pytest.mark.slow
@pytest.mark.spec("S024")
@pytest.mark.parametrize("bias", [pytest.param(None, marks=in_full), "alibi"])
@torch.no_grad()
def test_flex_gives_zeros_to_a_query_without_keys(bias):
    q, k = lonely()
    heads = at_rest(Q, K)
    ask = asking("~causal", q, k)
    made = None if bias is None else biased(BIASES[bias], H).prepare(q, k).bias
    out, silent = attend("flex", *heads, ask, bias=made), ~ask.mask.table(q, k).any(-1)

    assert silent.any() and not out[silent[:, None].expand(out.shape[:3])].any()
    assert out.isfinite().all()


# ---------------------------------------------------------------- refusing, and choosing

packed = scattered(Q, Q)
counted = replace(packed, num_documents=9)


@pytest.mark.parametrize(
    "name, ask, why",
    [
        ("flex", asking(CAUSAL, dropout=True), "dropout"),
        ("flex", asking(CAUSAL, grad=True), "gradient on CPU"),
        ("window2d", asking(CAUSAL, image()), "mask"),
        ("window2d", asking("window2d(2) & padding", image()), "mask"),
        ("window2d", asking("window2d(2)", packed), "grid"),
        ("window2d", asking("window2d(2)", image(), image()), "grid"),
        ("varlen", asking("causal & documents", packed), "how many documents"),
        ("varlen", asking("causal & documents", counted), "CUDA"),
        ("varlen", asking("causal", counted), "masks"),
        ("varlen", asking("documents", counted, bias=True), "bias"),
        ("varlen", asking("documents", counted, dropout=True), "dropout"),
    ],
)
def test_a_kernel_refuses_what_it_cannot_do_in_one_sentence(name, ask, why):
    with pytest.raises(ValueError, match="attention.kernel") as refusal:
        make_plan(name, ask)

    said = str(refusal.value)
    assert repr(name) in said and why in said and "'auto'" in said
    assert "\n" not in said and ". " not in said


def test_a_kernel_that_is_misspelt_is_suggested():
    with pytest.raises(ValueError, match="no kernel 'fussed'; did you mean 'fused'"):
        make_plan("fussed", asking())


@pytest.mark.parametrize("name", ["reference", "fused"])
@pytest.mark.parametrize("text", MEANINGS)
def test_the_kernels_of_the_core_refuse_nothing(name, text):
    assert make_plan(name, asking(text, *scattered_pair(), bias=True, dropout=True, grad=True)).kernel.name == name


def long(m: str, **rest: object) -> AttentionSpec:
    return asking(m, sequence_tokens(torch.empty(1, 1025, 0)), **rest)


@pytest.mark.parametrize(
    "ask, chosen, reason",
    [
        (long("causal"), "fused", "one fused pass"),
        (long("window(2)"), "local", "no more than the window"),
        (asking("window(2)"), "fused", "over a table"),
        (long("causal", bias=True), "fused", "over a table"),
        (asking(CAUSAL, grad=True), "fused", "one fused pass"),
        (asking("window2d(2)", image()), "window2d", "sequences of their own"),
        (long("causal", device="cuda"), "fused", "one fused pass"),
        (long("window(9)", device="cuda"), "flex", "blocks"),
        (asking("causal & documents", counted, device="cuda", dtype=torch.bfloat16), "varlen", "documents"),
    ],
)
def test_auto_says_what_it_chose_and_why(ask, chosen, reason):
    # On the host the plan of a CUDA ask can be made, though not run.
    made = make_plan("auto", ask)

    assert made.kernel.name == chosen and reason in made.reason
    assert str(made) == f"{chosen}: {ask.mask} over {ask.q.count} x {ask.k.count}, {made.reason}"


@pytest.mark.parametrize("text", MEANINGS)
def test_auto_never_chooses_a_kernel_that_refuses(text):
    for device in ("cpu", "cuda"):
        for grad, bias, dropout, half in np.ndindex(2, 2, 2, 2):
            dtype = torch.bfloat16 if half else torch.float32
            rest = dict(grad=bool(grad), bias=bool(bias), dropout=bool(dropout), dtype=dtype, device=device)
            ask = asking(text, *scattered_pair(), **rest)

            assert KERNELS[make_plan("auto", ask).kernel.name].unsupported_reason(ask) == ""


def test_a_mask_that_only_contains_windows_is_not_run_as_windows():
    windows, more = asking("window2d(2)", image()), asking("window2d(2) & causal", image())

    assert make_plan("auto", windows).kernel.name == "window2d"
    assert make_plan("auto", more).kernel.name != "window2d"


def test_values_may_be_wider_than_keys():
    q, k, v = heads_of(Q, K)
    few, many = sequence_tokens(torch.empty(B, Q, 0)), sequence_tokens(torch.empty(B, K, 0))

    for name in CPU_KERNELS:
        assert attend(name, q, k, v, asking(q=few, k=many)).shape == (B, H, Q, E)
