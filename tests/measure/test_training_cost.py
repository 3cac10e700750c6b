"""Devices, time, money, and whether it fits: held to published figures and to simple laws."""

import sys
import warnings
from dataclasses import replace

import pytest
from measure.small_models import config

import regard
from regard import config as C
from regard import measure
from regard.measure import format_estimate
from regard.measure.activations import ActivationMemory
from regard.measure.calibration import CalibratedMachine
from regard.measure.memory import RankMemory, TrainingMemory

DEVICES = measure.known_devices()
# what the makers' data sheets say, once more: bf16 or fp16 products with fp32 sums, without sparsity
PEAKS = {"v100": 125, "t4": 65, "a100-40gb": 312, "a100-80gb": 312, "h100-sxm": 989, "h200": 989, "tpu-v3": 123,
         "tpu-v4": 275, "tpu-v5e": 197, "b200": 2250, "rtx3090": 71}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # too few tokens: its own test below
        yield


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_is_whole_and_names_its_source(name):
    found = DEVICES[name]

    assert found.title and found.source and 2016 <= found.year <= 2026
    assert 8e9 < found.memory < 1e12 and 1e11 < found.bandwidth < 1e13
    assert found.half > (found.fp32 or 0) > -1
    assert found.type in ("bf16", "fp16")


def test_peaks_are_the_published_ones():
    assert {name: DEVICES[name].half / 1e12 for name in PEAKS} == PEAKS


def test_an_unknown_device_is_told_which_was_meant():
    with pytest.raises(C.ConfigError, match="device: no 'h100'; did you mean 'h100-pcie' or 'h100-sxm'"):
        measure.find_device("h100")


def test_a_device_without_a_peak_in_32_bits_says_so():
    with pytest.raises(C.ConfigError, match="device: tpu-v3 has no published peak in fp32"):
        measure.estimate_parameters(10**9, terms=measure.CostTerms(device="tpu-v3"))


def test_here_is_this_machine_as_it_was_measured(monkeypatch):
    ladders = {"product.float32": ((1e6, 5e10), (1e9, 9e10)), "product.bfloat16": ((1e6, 2e11),),
               "plain.float32": ((1e4, 3e10), (1e8, 1e10))}  # fmt: skip
    kept = CalibratedMachine({"processor": "a slide rule"}, ladders)
    monkeypatch.setattr(sys.modules["regard.measure.calibration"], "load_calibration", lambda device="cpu": kept)
    found = measure.find_device("here")

    assert (found.fp32, found.half, found.bandwidth, found.title) == (9e10, 2e11, 1e10, "a slide rule")
    assert found.memory > 1e9


def test_here_must_have_been_measured(monkeypatch):
    monkeypatch.setattr(sys.modules["regard.measure.calibration"], "load_calibration", lambda device="cpu": None)

    with pytest.raises(C.ConfigError, match="--calibrate"):
        measure.find_device("here")


# ---------------------------------------------------------------- time and money


@pytest.mark.spec("S145")
def test_gpt3_on_v100s_costs_what_was_published():
    """Li (2020): 355 years of one V100 at 28 TFLOP/s, 4.6 million at 1.50 an hour; by the rule of thumb."""
    terms = measure.CostTerms(tokens=300e9, device="v100", utilization=28 / 125, price=1.5)
    ruled = measure.estimate_parameters(175 * 10**9, precision="mixed", terms=terms).training
    counted = measure.estimate_model(replace(regard.preset("gpt3-175b"), precision="mixed"), terms=terms).training

    assert ruled.seconds / (365.25 * 86400) == pytest.approx(355, rel=0.01)
    assert ruled.cost == pytest.approx(4.6e6, rel=0.03)
    assert counted.rounded_rule == pytest.approx(3.15e23) and counted.cost == pytest.approx(ruled.cost, rel=0.03)


@pytest.mark.spec("S145")
def test_bert_large_on_64_tpu_chips_for_four_days_reaches_a_believable_share_of_their_peak():
    """Devlin et al. (2019): a million steps of 256 sequences, nine tenths of them 128 tokens long."""
    tokens = 256 * (0.9e6 * 128 + 0.1e6 * 512)
    full = measure.CostTerms(tokens=tokens, device="tpu-v2", utilization=1.0)
    bill = measure.estimate_model(
        replace(regard.preset("bert-large"), precision="mixed"), context=128, ranks=64, terms=full
    )

    assert 0.05 < bill.training.seconds / (4 * 86400) < 0.5


def test_time_falls_with_ranks_and_money_does_not():
    one, many = (
        measure.estimate_parameters(10**9, precision="bf16", ranks=ranks,
                      terms=measure.CostTerms(tokens=1e11, device="a100-80gb", price=2.0)).training for ranks in (1, 64)
    )  # fmt: skip

    assert one.seconds == pytest.approx(64 * many.seconds)
    assert one.cost == pytest.approx(many.cost)
    assert one.cost == pytest.approx(one.rule / 1e18 * one.pace.exaflop_cost)


def test_a_step_and_a_run_take_time_in_proportion():
    terms = measure.CostTerms(tokens=1e9, device="a100-80gb")
    bill = measure.estimate_model(regard.preset("gpt2"), batch=3, ranks=5, terms=terms)
    steps = 1e9 / (3 * 5 * bill.context)

    assert bill.training.seconds == pytest.approx(steps * bill.step_seconds)


def test_recomputing_costs_a_third_more_time_and_money_for_less_memory():
    terms = measure.CostTerms(tokens=1e9, device="a100-80gb", price=2.0)
    plain, again = (measure.estimate_model(regard.preset("gpt2", depth=48), batch=9, terms=terms, recompute=on)
                    for on in (False, True))  # fmt: skip
    blocks = plain.flops.forward - plain.flops.parts["head"]

    assert again.flops.training == pytest.approx(plain.flops.training + blocks)
    for name in ("seconds", "cost", "flops"):
        more = getattr(again.training, name) / getattr(plain.training, name)
        assert more == pytest.approx(again.step_seconds / plain.step_seconds) and 1.3 < more < 4 / 3
    assert again.memory.activations == plain.activations["auto"].checkpointed < 0.2 * plain.memory.activations
    assert again.fit.needs == again.memory.total < plain.fit.needs
    assert "once more" in format_estimate.format_estimate(
        again
    ) and "nothing is computed twice" in format_estimate.format_estimate(plain)


def test_what_is_recomputed_already_is_no_remedy():
    terms = measure.CostTerms(device="t4")
    plain, again = (measure.estimate_model(regard.preset("gpt2"), batch=300, terms=terms, recompute=on)
                    for on in (False, True))  # fmt: skip

    assert not plain.fit.fits and not again.fit.fits
    assert not any("checkpointing" in remedy for remedy in again.fit.remedies)
    rows = int(again.fit.remedies[0].removeprefix("a batch of "))
    assert measure.estimate_model(regard.preset("gpt2"), batch=rows, terms=terms, recompute=True).fit.fits


def test_writing_is_bound_by_what_must_be_read():
    bill = measure.estimate_model(regard.preset("gpt2"), terms=measure.CostTerms(device="a100-80gb"))
    longer = measure.estimate_model(regard.preset("gpt2"), context=64, terms=measure.CostTerms(device="a100-80gb"))

    assert bill.decoding == pytest.approx(2039e9 / (bill.memory.weights + bill.cache.total))
    assert longer.decoding > bill.decoding
    assert (
        measure.estimate_model(regard.preset("bert-base"), terms=measure.CostTerms(device="a100-80gb")).decoding is None
    )


# ---------------------------------------------------------------- tokens for each parameter


@pytest.mark.spec("S147")
@pytest.mark.parametrize(("parameters", "tokens", "enough"), [(110e6, 10e9, True), (175e9, 300e9, False)])
def test_too_few_tokens_are_warned_of(parameters, tokens, enough):
    terms = measure.CostTerms(tokens=tokens)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        run = measure.estimate_parameters(int(parameters), terms=terms).training

    assert run.enough is enough and len(heard) == (not enough)
    assert enough or "1.71 tokens per parameter are fewer than the recommended 20" in str(heard[0].message)


@pytest.mark.spec("S147")
def test_the_ratio_wanted_is_a_matter_of_choice():
    assert measure.estimate_parameters(
        175 * 10**9, terms=measure.CostTerms(tokens=300e9, tokens_per_parameter=1.5)
    ).training.enough


# ---------------------------------------------------------------- does it fit?


def load(**said: int) -> RankMemory:
    base = dict(memory=TrainingMemory(100, 100, 200, 600), held=ActivationMemory(600, 60), block=10, batch=6, ranks=1)
    return RankMemory(**(base | said))


def test_what_fits_needs_no_remedy():
    found = load().fit(1000)

    assert found.fits and found.needs == 1000 and found.remedies == ()


def test_each_remedy_alone_would_be_enough():
    found = load().fit(950)

    assert found.remedies == ("a batch of 5", "checkpointing every block (a third more arithmetic)", "2 ranks")


def test_together_they_may_do_what_none_does_alone():
    assert load(batch=1).fit(300).remedies == ("checkpointing and 2 ranks",)
    assert load(batch=1).fit(70).remedies == ()


@pytest.mark.parametrize("has", [300, 500, 700, 950])
def test_the_ranks_that_a_remedy_names_really_fit_and_one_fewer_does_not(has):
    lean = load(memory=TrainingMemory(100, 100, 200, 60), held=ActivationMemory(60, 60), batch=1)
    (remedy,) = lean.fit(has).remedies[-1:] or ("1 ranks",)
    ranks = int(remedy.split()[0])

    assert replace(lean, ranks=ranks).fit(has).fits
    assert ranks <= 2 or not replace(lean, ranks=ranks - 1).fit(has).fits


def test_a_bill_says_whether_it_fits_and_what_would_help():
    terms = measure.CostTerms(device="v100")
    small, large = (measure.estimate_model(c, terms=terms) for c in (config(), regard.preset("llama-7b")))

    assert small.fit.fits and not large.fit.fits
    assert "fits in 32 GB" in format_estimate.format_estimate(
        small
    ) and "it would with" in format_estimate.format_estimate(large)


@pytest.mark.parametrize(
    "said",
    [{"tokens": 0.0}, {"tokens": float("nan")}, {"tokens": float("inf")}, {"utilization": 1.1}, {"utilization": 0.0},
     {"price": -1.0, "device": "t4"}, {"price": 1.0}, {"tokens_per_parameter": -2.0}],
    ids=str,
)  # fmt: skip
def test_terms_that_cannot_be_are_refused_by_their_name(said):
    with pytest.raises(C.ConfigError, match=next(iter(said))):
        measure.CostTerms(**said)
