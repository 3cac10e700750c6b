"""The laws of the table find what is wrong with a kernel, and nothing wrong with ours."""

import json

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from regard import config
from regard.cli.check import check_kernel
from regard.core.kernels import KERNELS, attention_scores, attention_weights, reference, register_kernel, repeat_kv
from regard.core.masks import CAUSAL, FULL, PADDING
from regard.doctor.kernel_cases import KernelSubject
from regard.doctor.kernel_check import KERNEL_LAWS, check_kernel_laws, judge_results, load_custom_kernel
from regard.measure.peak_memory import TensorTracker

OURS = [
    "reference", "fused", "short", "tiled_flash(5)", "local", "window2d", "sparse", "topk(3)", "additive(5)", "linear",
    "performer(16)", "linformer(4)", "lsh(4, 2)", "varlen",
]  # fmt: skip


@pytest.fixture(autouse=True)
def table_as_it_was(monkeypatch):
    monkeypatch.setattr("regard.core.kernels.KERNELS", KERNELS)
    before, said = dict(KERNELS), list(config.KERNELS)
    yield
    KERNELS.clear()
    KERNELS.update(before)
    config.KERNELS[:] = said


def verdicts(said, *laws):
    subject = KernelSubject(said)
    return {law: judge_results(law, list(KERNEL_LAWS[law](subject))).verdict for law in laws or KERNEL_LAWS}


@pytest.mark.spec("S184")
@pytest.mark.parametrize("said", OURS)
def test_our_kernels_keep_every_law_they_do_not_refuse(said):
    found = verdicts(said)

    assert "fail" not in found.values()
    assert "pass" in found.values() or said == "varlen"  # which needs a GPU


# ---------------------------------------------------------------- kernels that break one law each


def simple(spec):
    return "" if spec.mask in (FULL, CAUSAL, PADDING, CAUSAL & PADDING) else "takes full and causal"


def broken(name, **facts):
    return register_kernel(f"broken_{name}", unsupported_reason=simple, **facts)


@broken("reference")
def another_scale(q, k, v, plan, args):
    return reference(2 * q, k, v, plan, args)


@broken("gradients", exact=False)
def no_gradient_for_keys(q, k, v, plan, args):
    return reference(q, k.detach(), v, plan, args)


@broken("future", exact=False)
def looks_ahead(q, k, v, plan, args):
    return scaled_dot_product_attention(q, repeat_kv(k, q), repeat_kv(v, q), scale=args.scale)


@broken("crowd", exact=False)
def looks_ahead_without_a_gradient(q, k, v, plan, args):
    return reference(q / k.detach().abs().amax((2, 3), keepdim=True).amax(1, keepdim=True), k, v, plan, args)


@broken("empty", exact=False)
def divides_by_nothing(q, k, v, plan, args):
    return attention_scores(q, k, args.scale, plan.table(q, None)).softmax(-1) @ repeat_kv(v, q)


@broken("groups", exact=False)
def shares_in_turn(q, k, v, plan, args):
    k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
    return attention_weights(attention_scores(q, k, args.scale, plan.table(q, None))) @ v


@broken("chance", exact=False)
def draws_anew(q, k, v, plan, args):
    return reference(q + 0.1 * torch.randn_like(q), k, v, plan, args)


class NoGradient(torch.autograd.Function):
    """Its gradient is no number."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, x):
        return torch.full_like(x, torch.nan)


@broken("numbers")
def gradients_that_are_no_numbers(q, k, v, plan, args):
    return reference(q, k, NoGradient.apply(v), plan, args)


@broken("raises", exact=False)
def raises(q, k, v, plan, args):
    raise IndexError("off by one")


MINE = {name: KERNELS.pop(name) for name in list(KERNELS) if name.startswith("broken_")}
config.KERNELS[:] = [name for name in config.KERNELS if name not in MINE]


@pytest.mark.spec("S184")
@pytest.mark.parametrize(
    "name, law",
    [
        ("broken_reference", "equals reference"), ("broken_future", "the future"), ("broken_future", "padding"),
        pytest.param("broken_gradients", "gradients", marks=pytest.mark.slow), ("broken_crowd", "the future"),
        ("broken_empty", "empty row"), ("broken_groups", "grouped heads"), ("broken_chance", "the same twice"),
        ("broken_future", "cache"), ("broken_numbers", "equals reference"), ("broken_numbers", "the future"),
    ],
)  # fmt: skip
def test_a_kernel_that_breaks_a_law_is_found_out(name, law):
    register_kernel(name, exact=MINE[name].exact, unsupported_reason=simple)(MINE[name].run)

    assert verdicts(name, law)[law] == "fail"


def test_a_kernel_that_raises_has_failed_and_the_rest_is_still_examined():
    register_kernel("broken_raises", exact=False, unsupported_reason=simple)(raises)
    found = check_kernel_laws("broken_raises", longest=512)

    assert [each.verdict for each in found].count("fail") == len(found) - 1  # but for what it is not asked
    assert "IndexError: off by one" in found[1].evidence


def test_a_kernel_there_is_not_is_suggested():
    with pytest.raises(config.ConfigError, match="no kernel 'linera'; did you mean 'linear'"):
        check_kernel_laws("linera")


@pytest.mark.slow
@pytest.mark.spec("S114", "S184")
def test_growth_tells_squares_from_lines():
    dense, line = (check_kernel_laws(said, longest=1024)[-1] for said in ("reference", "linear"))

    assert float(dense.evidence.split("memory as n^")[1][:4]) > 1.8
    assert float(line.evidence.split("memory as n^")[1][:4]) < 1.1
    assert check_kernel_laws("reference", longest=1024, exponent=0.1)[-1].verdict == "fail"


def test_a_peak_counts_what_is_there_at_once():
    with TensorTracker() as held:
        x = torch.zeros(1000)
        for _ in range(5):
            x = x + 1

    assert held.most == 2 * 4000 and held.now == 4000


# ---------------------------------------------------------------- a file of one's own

FILE = """
from regard.core.kernels import register_kernel, reference

@register_kernel("mine")
def mine(q, k, v, plan, how):
    return reference(q, k, v, plan, how){more}
"""


@pytest.mark.spec("S184")
@pytest.mark.parametrize("more, code", [("", 0), (" * 1.01", 1)])
def test_a_file_of_ones_own_is_held_to_the_laws(tmp_path, capsys, more, code):
    (tmp_path / "mine.py").write_text(FILE.format(more=more))

    assert check_kernel(str(tmp_path / "mine.py"), max_length=512) == code
    shown = capsys.readouterr().out
    assert "equals reference" in shown and ("fail" in shown) == bool(code)
    assert ("all laws hold" in shown) == (not code)


def test_a_script_reads_json(capsys):
    assert check_kernel("linear", max_length=512, json=True) == 0
    told = json.loads(capsys.readouterr().out)

    assert told["kept"] is True
    assert {row["check"] for row in told["kernels"]["linear"]} == {*KERNEL_LAWS, "growth"}


@pytest.mark.parametrize(
    "text, why",
    [
        ("x = 1", "registers no kernel"),
        ("def f(:", "line 1: SyntaxError"),
        ("\nraise RuntimeError('no')", "line 2: RuntimeError: no"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, text, why):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(config.DataError, match=why):
        load_custom_kernel(tmp_path / "mine.py")
    with pytest.raises(config.DataError, match="no such file"):
        load_custom_kernel(tmp_path / "yours.py")
