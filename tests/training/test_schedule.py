"""How the learning rate moves: Noam's numbers, torch's schedulers, and laws of warm-up and descent."""

import math

import pytest
import torch

from regard import config
from regard.training.optim.schedule import build_schedule

S, W = 37, 5


def factors(setting, steps=S, dim=16):
    """The factor of every step of a run that is counted in steps."""
    made = build_schedule(setting, dim)
    return [made(step, (step - 1) / steps) for step in range(1, steps + 1)]


def theirs(make, steps=S):
    """The same from one of torch's schedulers."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


# ---------------------------------------------------------------- Noam


@pytest.mark.spec("S095")
@pytest.mark.parametrize("dim, step, lr", [
    (512, 1, 1.746928e-7), (512, 4000, 6.987712e-4), (512, 100_000, 1.397542e-4), (1024, 4000, 4.941059e-4),
])  # fmt: skip
def test_noam_s_rule_gives_the_published_rates(dim, step, lr):
    assert build_schedule(config.NoamSchedule(), dim)(step, 0.5) == pytest.approx(lr, rel=1e-6)


@pytest.mark.spec("S095")
def test_noam_s_peak_is_where_the_warm_up_ends():
    rates = factors(config.NoamSchedule(warmup=W))

    assert rates.index(max(rates)) + 1 == W
    assert rates[:W] == sorted(rates[:W]) and rates[W - 1 :] == sorted(rates[W - 1 :], reverse=True)


@pytest.mark.spec("S095")
def test_noam_s_rule_follows_steps_and_not_the_length_of_the_run():
    made = build_schedule(config.NoamSchedule(warmup=W), 16)

    assert {made(9, progress) for progress in (0.0, 0.4, 1.0)} == {16**-0.5 * 9**-0.5}


# ---------------------------------------------------------------- torch's


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_a_cosine_is_torch_s(final):
    expected = theirs(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=S, eta_min=final))

    assert factors(config.WarmupSchedule(kind="cosine", warmup=0, min_lr_ratio=final)) == pytest.approx(
        expected, abs=1e-9
    )


@pytest.mark.parametrize("final", [0.0, 0.3])
def test_a_line_is_torch_s(final):
    expected = theirs(lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, final, total_iters=S))

    assert factors(config.WarmupSchedule(kind="linear", warmup=0, min_lr_ratio=final)) == pytest.approx(
        expected, abs=1e-9
    )


def test_a_warm_up_is_torch_s():
    expected = theirs(lambda o: torch.optim.lr_scheduler.LinearLR(o, 1 / W, 1.0, total_iters=W - 1))

    assert factors(config.WarmupSchedule(kind="constant", warmup=W)) == pytest.approx(expected, abs=1e-9)


def test_a_trapezoid_rises_stays_and_falls():
    rates = factors(config.WSDSchedule(warmup=W, decay_fraction=0.25, min_lr_ratio=0.1), steps=40)

    assert rates[: W + 1] == pytest.approx([step / W for step in range(1, W + 1)] + [1.0])
    assert set(rates[W - 1 : 31]) == {1.0}
    assert rates[31:] == pytest.approx([1 - 0.9 * k / 10 for k in range(1, 10)])


def test_a_trapezoid_without_a_decay_stays():
    assert set(factors(config.WSDSchedule(warmup=0, decay_fraction=0.0))) == {1.0}


# ---------------------------------------------------------------- laws

DOWN = [config.WarmupSchedule(kind=kind, warmup=W, min_lr_ratio=0.05) for kind in ("linear", "cosine")] + [
    config.WSDSchedule(warmup=W)
]


@pytest.mark.spec("S098")
@pytest.mark.parametrize("setting", [*DOWN, config.WarmupSchedule(warmup=W)], ids=lambda c: c.kind)
def test_rates_rise_until_the_warm_up_ends_and_never_after(setting):
    rates = factors(setting)

    assert rates[: W - 1] == sorted(rates[: W - 1]) and rates[W - 1 :] == sorted(rates[W - 1 :], reverse=True)
    assert min(rates) > 0 and max(rates) <= 1


@pytest.mark.parametrize("setting", DOWN, ids=lambda c: c.kind)
def test_at_the_end_the_final_rate_is_reached(setting):
    assert build_schedule(setting, 16)(1000, 1.0) == pytest.approx(setting.min_lr_ratio, abs=1e-12)


@pytest.mark.parametrize("setting", DOWN, ids=lambda c: c.kind)
def test_a_run_by_the_clock_comes_down_by_the_clock(setting):
    made = build_schedule(setting, 16)

    assert made(100 * W, 0.9) == pytest.approx(made(1000 * W, 0.9), rel=0.05)
    assert made(100 * W, 0.9) < made(100 * W, 0.7)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_lr_is_reached_when_the_warm_up_ends(kind):
    rates = factors(config.WarmupSchedule(kind=kind, warmup=10), steps=20)

    assert max(rates) == pytest.approx(1.0) and rates.index(max(rates)) == 9


def test_half_way_along_a_cosine_is_half_the_rate():
    assert build_schedule(config.WarmupSchedule(kind="cosine", warmup=0), 16)(9, 0.5) == pytest.approx(0.5)
    assert build_schedule(config.WarmupSchedule(kind="cosine", warmup=0), 16)(9, 1 / 3) == pytest.approx(0.75)
    assert math.isclose(build_schedule(config.WarmupSchedule(kind="cosine", warmup=0), 16)(9, 2 / 3), 0.25)
