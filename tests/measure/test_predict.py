"""Predictions: the work of a step held to torch's own counter and profiler; the time, on a machine made up here."""

import json
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from core.builders import trunk
from measure.small_models import build, run
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from regard import config as C
from regard import measure
from regard.core import layers
from regard.core.model import Transformer
from regard.measure import calibration
from regard.measure.calibration import (
    NEEDED_PROBES,
    CalibratedMachine,
    calibration_path,
    machine_facts,
    parse_calibration,
    save_calibration,
)
from regard.measure.microbenchmarks import probes
from regard.measure.op_trace import LARGE_BLOCK, SLOW_OPS, OpTrace
from regard.measure.peak_memory import resident_bytes
from regard.measure.step_work import (
    fake_step_loss,
    measure_step_work,
    newton_schulz_charges,
    optimizer_work,
    trace_step,
)
from regard.models.checkpointing import set_checkpointing
from regard.training.optim import muon
from regard.training.optim.optimizer import OptimizerGroup

ROTARY = {"position": C.RotaryPosition(), "norm": C.Norm(kind="rms"), "mlp": C.MLP(gated=True, activation="silu")}
SHAPES = {
    "plain": {},
    "mixed": {"precision": "mixed"},
    "rotary, gated": ROTARY,
    "several masks": {"mask": ("causal", "causal & window(3)"), "depth": 6},
    "windows in chunks": {"mask": "causal & window(4)", "precision": "mixed", **ROTARY},
    "other heads in each layer": {"attention": C.Attention(heads=(3, 2, 1, 2, 3), head_dim=4)},
    "dropout": {"dropout": C.Dropout(embed=0.1, residual=0.2)},
}


def config(precision: str = "fp32", head: object = None, **said: object) -> C.Transformer:
    said = {"mask": "causal", "attention": C.Attention(heads=3), "depth": 5, **said}
    return C.Transformer(
        embed=C.TextEmbedding(vocab=23), trunk=trunk(**said), head=head or C.LMHead(), precision=precision
    )


def made_up(**changes: float) -> CalibratedMachine:
    """A machine on which a product is a nanosecond an operation, a byte a nanosecond and a call a microsecond."""
    rates = {**dict.fromkeys(NEEDED_PROBES, 1e9), "call": 1e6, "kernel": 1e7, **changes}
    return CalibratedMachine(machine_facts("cpu"), {name: ((1.0, rate),) for name, rate in rates.items()})


def deeper(c: C.Transformer, depth: int) -> C.Transformer:
    return replace(c, trunk=replace(c.trunk, depth=depth))


def arithmetic(charges: Counter) -> int:
    return sum(count * size for (name, size), count in charges.items() if name.split(".")[0] in ("product", "batch"))


def bytes_moved(charges: Counter, *ladders: str) -> int:
    moving = ("plain", "uneven", *ladders)
    return sum(count * size for (name, size), count in charges.items() if name.split(".")[0] in moving)


# ---------------------------------------------------------------- the work of a step


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("shape", SHAPES)
def test_short_models_tell_the_work_of_deep_ones(shape, compiled):
    c = config(**SHAPES[shape])
    told, whole = measure_step_work(c, 3, 17, compiled=compiled), trace_step(c, 3, 17, "cpu", compiled)

    assert told.charges == whole.charges
    assert told.peak == pytest.approx(whole.peak, rel=0.02)


def test_every_layer_asks_for_as_much_as_the_one_before():
    three, four, five = (measure_step_work(deeper(config(), depth), 3, 17) for depth in (3, 4, 5))
    more, again = Counter(four.charges), Counter(five.charges)
    more.subtract(three.charges)
    again.subtract(four.charges)

    assert +more == +again and not -more and not -again


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_twice_the_batch_is_twice_the_arithmetic_in_as_many_calls(compiled):
    once, twice = (measure_step_work(config(), batch, 17, compiled=compiled).charges for batch in (3, 6))

    assert arithmetic(twice) == 2 * arithmetic(once)
    assert all(twice[name, 1] == once[name, 1] for name in ("call", "kernel"))


@pytest.mark.spec("S146")
@pytest.mark.parametrize("shape", ["plain", "rotary, gated", "windows in chunks", "other heads in each layer"])
def test_the_products_are_those_that_torch_counts(shape):
    said = {"attention": C.Attention(heads=3, kernel="reference"), **SHAPES[shape]}
    if "window" in str(said.get("mask")):
        said["attention"] = C.Attention(heads=3, kernel="local")
    elif isinstance(said["attention"].heads, tuple):
        said["attention"] = replace(said["attention"], kernel="reference")
    c = config(**said)
    with FlopCounterMode(display=False) as counter:
        fake_step_loss(Transformer(c)(torch.randint(23, (3, 17)))).backward()

    assert arithmetic(measure_step_work(c, 3, 17).charges) == counter.get_total_flops()
    assert arithmetic(measure_step_work(c, 3, 17, compiled=True).charges) == counter.get_total_flops()


@pytest.fixture(autouse=True)
def with_bf16(monkeypatch):
    """A CPU with bf16 products, as the figures here are of; another one emulates them."""
    monkeypatch.setattr(layers, "CPU_BF16", True)


@pytest.mark.parametrize("shape", ["plain", "mixed", "rotary, gated", "windows in chunks"])
def test_a_ghost_holds_as_much_as_a_step_really_does(shape):
    c, rows = config(head=C.LMHead(tied=False), **SHAPES[shape]), 24
    model, ids = Transformer(c).train(), torch.randint(23, (rows, 17))
    fake_step_loss(model(ids)).backward()  # what is made once is there
    model.zero_grad()
    peak = most(lambda: fake_step_loss(model(ids)).backward())

    assert measure_step_work(c, rows, 17).peak == pytest.approx(peak, rel=0.02)


RECOMPUTED = {
    "plain": config(depth=12, dim=48),
    "mixed": config(depth=12, dim=48, precision="mixed"),
    "dropout": config(depth=12, dim=48, **SHAPES["dropout"]),
    "translator": C.Transformer(
        embed=C.TextEmbedding(vocab=23),
        trunk=trunk(mask="causal", cross="last", depth=7, dim=48),
        encoder=C.Encoder(trunk=trunk(depth=9, dim=48)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", RECOMPUTED)
def test_a_ghost_that_recomputes_holds_and_multiplies_as_much_as_a_step_really_does(shape):
    """Encoder and decoder too, whose layers do not simply add up: the peak is now in the one, now in the other."""
    c, rows = RECOMPUTED[shape], 57
    model = build(c).train()
    set_checkpointing(model)
    fake_step_loss(run(model, rows, 17)).backward()  # what is made once is there
    model.zero_grad()
    peak = most(lambda: fake_step_loss(run(model, rows, 17)).backward())
    with FlopCounterMode(display=False) as counter:
        fake_step_loss(run(model, rows, 17)).backward()
    told = measure_step_work(c, rows, 17, recompute=True)

    assert told.peak == pytest.approx(peak, rel=0.05)  # a block also keeps the state of chance, 5 kB
    assert told.peak < 0.6 * measure_step_work(c, rows, 17).peak
    assert arithmetic(told.charges) == counter.get_total_flops()


def test_recomputing_takes_longer_and_holds_less():
    said = {"batch": 3, "context": 17, "device": made_up()}
    plain, forgetful = (measure.predict_step(config(), **said, recompute=on) for on in (False, True))

    assert plain.step_seconds < forgetful.step_seconds < 4 / 3 * plain.step_seconds
    assert plain.step_flops < forgetful.step_flops < 4 / 3 * plain.step_flops
    assert forgetful.passing < plain.passing
    assert (forgetful.weights, forgetful.optimizer) == (plain.weights, plain.optimizer)


def most(call) -> int:
    """Bytes that a call holds at most, beyond those before it, as the profiler counts them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("shape", SHAPES)
def test_a_compiled_step_moves_less_and_calls_less_for_the_same_products(shape):
    c = config(**SHAPES[shape])
    eager, compiled = measure_step_work(c, 3, 17).charges, measure_step_work(c, 3, 17, compiled=True).charges

    assert arithmetic(compiled) == arithmetic(eager)
    assert bytes_moved(compiled) < bytes_moved(eager, *SLOW_OPS)
    assert compiled["call", 1] == 0 < compiled["kernel", 1] < eager["call", 1]


def test_a_chain_between_two_products_is_read_and_written_once():
    a, b = torch.ones(7, 5), torch.ones(5, 3)
    with OpTrace(compiled=True) as record:
        ((a @ b).exp() * 2 + 1) @ b.mT
    record.close()

    assert bytes_moved(record.charges) == 4 * 7 * 3 * 2
    assert record.charges["kernel", 1] == 3


def test_short_rows_from_here_and_there_are_charged_apart_and_long_ones_are_not():
    x, y, short, long = torch.ones(2, 3, 5, 8), torch.ones(2, 5, 3, 8), torch.ones(5, 8), torch.ones(3, 200)
    with OpTrace() as record:
        x * short  # a row for each head
        x.transpose(1, 2) + y
        x + x
        long + long[0]
        x.sum(-1, keepdim=True)

    found = Counter()
    for (name, _), count in record.charges.items():
        found[name] += count
    assert found["uneven.float32"] == 2 and found["plain.float32"] == 3


def test_large_blocks_of_memory_are_charged_for_as_new():
    vocab = LARGE_BLOCK // (4 * 512) + 1
    c = replace(config(), embed=C.TextEmbedding(vocab=vocab))

    assert any(name == "fresh" and size >= LARGE_BLOCK for name, size in measure_step_work(c, 8, 64).charges)
    assert not any(name == "fresh" for name, _ in measure_step_work(config(), 8, 64).charges)


def test_models_that_read_images_or_translate_have_their_work_too():
    image = C.PatchEmbedding(patch_size=4, image_size=12, channels=3)
    looks = C.Transformer(embed=image, trunk=trunk(depth=3), head=C.PoolingHead(out=5))
    reads = C.Transformer(embed=C.TextEmbedding(vocab=23), trunk=trunk(mask="causal", cross="last", depth=4),
                          encoder=C.Encoder(trunk=trunk(depth=3)))  # fmt: skip

    for c in (looks, reads):
        told, whole = measure_step_work(c, 3, 10), trace_step(c, 3, 10, "cpu", False)
        assert told.charges == whole.charges and arithmetic(told.charges) > 0


# ---------------------------------------------------------------- moving the weights


@pytest.mark.parametrize("a, b", [(5, 5), (5, 9)])
def test_muons_products_are_those_that_torch_counts(a, b):
    with FlopCounterMode(display=False) as counter:
        muon.newton_schulz(torch.randn(3, b, a), rounds=4)

    assert arithmetic(newton_schulz_charges(3, a, b, 4)) == counter.get_total_flops()


MATRICES = {
    "wide": {"dim": 48, "mlp": C.MLP(hidden=192)},
    "gated": {"dim": 48, **ROTARY, "mlp": C.MLP(hidden=101, gated=True)},
    "square": {"dim": 48, "mlp": C.MLP(hidden=48)},
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("setting", [C.AdamW(), C.Muon(), C.Adafactor()], ids=lambda c: c.kind)
@pytest.mark.parametrize("shape", MATRICES)
def test_optimizers_hold_as_much_as_is_told_while_they_move_the_weights(shape, setting, precision):
    c = config(precision, **MATRICES[shape])
    model = Transformer(c)
    optimizer = OptimizerGroup(model, setting)
    optimizer.init_state()  # what it remembers is counted apart
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)

    assert optimizer_work(c, setting).peak == pytest.approx(most(lambda: optimizer.step(None)), rel=0.05, abs=2**13)


def test_adam_moves_every_weight_and_muon_leaves_the_matrices_of_blocks_to_itself():
    c = config()
    total = sum(weight.numel() for weight in Transformer(c).parameters())
    ((_, adams),) = (charge for charge in optimizer_work(c, C.AdamW()).charges if charge[0] == "update")
    ((_, left),) = (charge for charge in optimizer_work(c, C.Muon()).charges if charge[0] == "update")
    matrices = sum(p.numel() for name, p in Transformer(c).named_parameters() if ".blocks." in name and p.dim() == 2)

    assert adams == total and left == total - matrices


def test_adafactor_holds_one_update_at_a_time_and_reads_every_weight():
    c = config()
    sizes = [weight.numel() for weight in Transformer(c).parameters()]
    found = optimizer_work(c, C.Adafactor())
    passes = {size // 12: count for (name, size), count in found.charges.items() if name == "plain.float32"}

    assert found.peak == 4 * max(sizes)
    assert sum(size * count for size, count in passes.items()) == 5 * sum(sizes)


# ---------------------------------------------------------------- time


def test_a_prediction_is_the_sum_of_its_parts():
    bill = measure.predict_step(config(), batch=3, context=17, device=made_up())

    assert bill.is_calibrated and bill.note == ""
    assert bill.step_seconds == pytest.approx(sum(bill.parts.values()))
    assert bill.memory == bill.weights + bill.optimizer + bill.passing


@pytest.mark.parametrize("change", [{"batch": 4}, {"context": 23}, {"accumulate": 2}, {"optimizer": C.Muon()}], ids=str)
def test_more_work_takes_longer(change):
    said = {"batch": 3, "context": 17, "device": made_up()}

    assert (
        measure.predict_step(config(), **{**said, **change}).step_seconds
        > measure.predict_step(config(), **said).step_seconds
    )


def test_more_layers_and_longer_batches_take_more_memory():
    said = {"context": 17, "device": made_up()}
    bills = [
        measure.predict_step(deeper(config(), depth), batch=batch, **said) for depth, batch in ((3, 3), (4, 3), (4, 5))
    ]

    assert bills[0].memory < bills[1].memory < bills[2].memory


@pytest.mark.parametrize("what", ["product.float32", "call", "update", "plain.float32"])
def test_a_machine_that_is_faster_at_something_needs_less_time(what):
    slow, fast = (
        measure.predict_step(config(), batch=3, context=17, device=made_up(**{what: rate})) for rate in (1e5, 1e6)
    )

    assert fast.step_seconds < slow.step_seconds


def test_an_accelerator_computes_while_it_is_asked_for_more():
    cpu = made_up(call=1e9)
    gpu = CalibratedMachine({**cpu.about, "device": "cuda"}, cpu.ladders)
    asked, moves = measure_step_work(config(), 3, 17), optimizer_work(config(), C.AdamW())
    (after, parts), (beside, _) = cpu.step(asked, moves, "fp32"), gpu.step(asked, moves, "fp32")

    assert beside == pytest.approx(after - parts["calls"] - cpu.spent(moves)["call"])  # it moves all weights at once


def test_a_step_takes_longer_than_its_parts_as_whole_steps_did_when_measured():
    plain, asked, moves = made_up(), measure_step_work(config(), 3, 17), optimizer_work(config(), C.AdamW())
    whole = CalibratedMachine(plain.about, {**plain.ladders, "whole.fp32": ((0.01, 0.5),)})
    compiled = measure_step_work(config(), 3, 17, compiled=True)

    assert whole.step(asked, moves, "fp32")[0] == pytest.approx(2 * plain.step(asked, moves, "fp32")[0])
    longer = whole.step(compiled, moves, "fp32")[0] / plain.step(compiled, moves, "fp32")[0]
    assert 1 < longer < 2


def test_without_a_calibration_the_products_set_a_floor(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "matmul_speed", lambda *sizes: 1e6)
    bill = measure.predict_step(config(), batch=3, context=17)

    assert not bill.is_calibrated and "--calibrate" in bill.note
    assert bill.step_seconds == pytest.approx(bill.step_flops / 1e6)
    assert bill.memory == measure.predict_step(config(), batch=3, context=17, device=made_up()).memory


def test_a_context_beyond_the_positions_is_refused():
    c = config(position=C.LearnedPosition(length=11))

    with pytest.raises(C.ConfigError, match="context: 17"):
        measure.predict_step(c, batch=3, context=17, device=made_up())


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
@pytest.mark.parametrize(
    "call", [measure.calibrate, lambda device: measure.predict_step(config(), context=17, device=device)]
)
def test_a_device_that_is_not_here_is_refused(call):
    with pytest.raises(C.ConfigError, match="device: 'cuda' is not available here"):
        call(device="cuda")


def test_the_process_will_hold_what_it_holds_and_what_the_step_adds():
    bill = measure.predict_step(config(), batch=3, context=17, device=made_up())

    for size, compiled, more in ((10**8, False, 1.4e8), (10**9, False, 1.18e9), (10**9, True, 1e9)):
        large = replace(bill, passing=bill.passing + size)
        assert measure.process_bytes(bill, compiled) > resident_bytes() + bill.optimizer + bill.passing
        assert measure.process_bytes(large, compiled) - measure.process_bytes(bill, compiled) == pytest.approx(
            more, rel=0.02
        )


# ---------------------------------------------------------------- ladders


def test_a_ladder_passes_through_its_rungs_and_is_level_beyond_them():
    rungs = ((10.0, 2.0), (1000.0, 8.0))
    machine = CalibratedMachine({}, {"plain.float32": rungs})

    assert [machine.rate("plain.float32", size) for size in (1, 10, 1000, 10**9)] == pytest.approx([2, 2, 8, 8])
    assert machine.rate("plain.float32", 100) == pytest.approx(4)  # halfway, in the logarithms


def test_what_was_not_measured_is_taken_from_the_nearest_that_was():
    machine = made_up(**{"look.float32": 3.0, "plain.bfloat16": 5.0, "plain.float32": 7.0})

    assert machine.rate("look.float16", 1) == 3
    assert machine.rate("erf.bfloat16", 1) == 5
    assert machine.rate("erf.float64", 1) == 7


def test_there_is_a_probe_for_everything_that_is_charged_apart():
    found = {charge[0] for charge, _ in probes("cpu")}
    kinds = ("float32", "bfloat16")
    named = ("product", "batch", "look", "look_back", "plain", "uneven", *SLOW_OPS)

    assert found >= {f"{name}.{kind}" for name in named for kind in kinds} | {*NEEDED_PROBES}


# ---------------------------------------------------------------- the kept machine


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(table: object) -> None:
    calibration_path().parent.mkdir(parents=True, exist_ok=True)
    calibration_path().write_text(json.dumps(table))


def test_a_machine_that_was_kept_is_found_again(cache):
    save_calibration(made_up(call=3e5))
    save_calibration(replace(made_up(), about={**machine_facts("cpu"), "device": "mps"}))

    assert measure.load_calibration() == made_up(call=3e5)
    assert json.loads((cache / "machine.json").read_text()).keys() == {"cpu", "mps"}


def test_nothing_kept_is_nothing_found_and_nothing_said(cache):
    assert measure.load_calibration(notice=pytest.fail) is None
    put({})
    assert measure.load_calibration(notice=pytest.fail) is None


@pytest.mark.parametrize("what, other", [("processor", "Z80"), ("threads", 99), ("torch", "1.0")])
def test_the_machine_of_another_place_is_said_and_ignored(cache, what, other):
    put({"cpu": {"format": 1, "about": {**machine_facts("cpu"), what: other}, "ladders": made_up().ladders}})
    said = []

    assert measure.load_calibration(notice=said.append) is None
    assert len(said) == 1 and f"{what} {other}" in said[0] and "--calibrate" in said[0] and "machine.json" in said[0]


GOOD = {"format": 1, "about": {}, "ladders": {name: [[1.0, 1e9]] for name in NEEDED_PROBES}}
DAMAGED = {
    "another format": {**GOOD, "format": 2},
    "no ladders": {"format": 1, "about": {}},
    "a ladder is missing": {**GOOD, "ladders": {"call": [[1.0, 1.0]]}},
    "an empty ladder": {**GOOD, "ladders": {**GOOD["ladders"], "call": []}},
    "a rate of nothing": {**GOOD, "ladders": {**GOOD["ladders"], "call": [[1.0, 0.0]]}},
    "a rate without end": {**GOOD, "ladders": {**GOOD["ladders"], "call": [[1.0, math.inf]]}},
    "a word for a number": {**GOOD, "ladders": {**GOOD["ladders"], "call": [["one", 1.0]]}},
    "rungs out of order": {**GOOD, "ladders": {**GOOD["ladders"], "call": [[2.0, 1.0], [1.0, 1.0]]}},
    "half a rung": {**GOOD, "ladders": {**GOOD["ladders"], "call": [[1.0]]}},
    "a list": [1, 2, 3],
    "a number": 7,
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_machine_is_not_measured_and_nobody_complains(cache, how):
    put({"cpu": DAMAGED[how]})

    assert measure.load_calibration(notice=pytest.fail) is None
    save_calibration(made_up())
    assert measure.load_calibration(notice=pytest.fail) == made_up()


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "\x00\xff"])
def test_a_file_that_is_no_table_is_written_anew(cache, text):
    cache.mkdir()
    calibration_path().write_text(text, encoding="latin1")

    assert measure.load_calibration(notice=pytest.fail) is None
    save_calibration(made_up())
    assert measure.load_calibration(notice=pytest.fail) == made_up()


def test_whoever_reads_while_others_write_finds_one_of_them_whole(cache):
    rates = [float(rate) for rate in range(1, 9)]
    save_calibration(made_up(call=rates[0]))
    with ThreadPoolExecutor(4) as pool:
        written = [pool.submit(save_calibration, made_up(call=rate)) for rate in rates * 3]
        seen = [measure.load_calibration(notice=pytest.fail) for _ in range(40)]
        assert all(each.result() is None for each in written)

    assert all(each in [made_up(call=rate) for rate in rates] for each in seen)


def test_a_prediction_without_a_machine_says_how_to_measure_it(cache, monkeypatch):
    monkeypatch.setattr(calibration, "matmul_speed", lambda *sizes: 1e6)
    put({"cpu": DAMAGED["a number"]})

    assert "not calibrated" in measure.predict_step(config(), batch=3, context=17).note


def test_parsing_what_was_written_is_the_identity():
    made = made_up()
    written = json.loads(json.dumps({"cpu": {"format": 1, "about": made.about, "ladders": made.ladders}}))

    assert parse_calibration(written, "cpu") == made and parse_calibration(written, "cuda") is None


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))

    with pytest.raises(C.RunError, match=r"machine\.json: cannot be written"):
        save_calibration(made_up())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:whole steps took")  # other tests may be running
def test_a_calibration_is_kept_and_used(cache):
    made = measure.calibrate(0.01)
    bill = measure.predict_step(config(), batch=3, context=17)

    assert measure.load_calibration() == made
    assert bill.is_calibrated and bill == measure.predict_step(config(), batch=3, context=17, device=made)
    assert {"device", "processor", "threads", "torch", "memory", "one call"} <= made.facts().keys()
    assert all(0 < rate < math.inf for rungs in made.ladders.values() for _, rate in rungs)
