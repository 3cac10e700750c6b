"""Curves: thin, and true."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.report.curves import (
    MAX_POINTS,
    clip_events,
    downsample,
    log_curve,
    median_value,
    score_names,
    skip_events,
    smooth_values,
    speed_curve,
)
from regard.report.headline import format_duration_short


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=900), st.integers(6, 300))
def test_thinning_keeps_the_ends_and_the_extremes(values, most):
    keep = downsample(values, most)
    finite = [value for value in values if math.isfinite(value)]

    assert len(keep) <= max(most, 2) and keep == sorted(set(keep))
    assert keep[0] == 0 and keep[-1] == len(values) - 1
    if finite:
        kept = [values[i] for i in keep if math.isfinite(values[i])]
        assert min(kept) == min(finite) and max(kept) == max(finite)


def test_a_spike_in_a_long_log_is_not_lost():
    lines = [{"step": step, "loss": 2.0 + (step == 77_777)} for step in range(100_000)]
    found = log_curve(lines, "loss", smooth=True)

    assert len(found["value"]) <= MAX_POINTS and found["value"][found["step"].index(77_777)] == 3.0


def test_a_short_log_is_kept_whole():
    lines = [{"step": step, "loss": 2.0} for step in range(MAX_POINTS)]

    assert log_curve(lines, "loss")["step"] == list(range(MAX_POINTS))


def test_smoothing_keeps_a_straight_line_straight():
    line = [3.0 - 0.001 * i for i in range(1000)]

    assert smooth_values(line)[:-10] == pytest.approx(line[:-10])


def test_a_smooth_line_ends_on_a_mean_and_not_on_one_step():
    line = [2.0] * 999 + [1.0]

    assert smooth_values(line)[-1] == pytest.approx(2 - 1 / 11)


def test_smoothing_quietens_noise_and_passes_over_what_is_not_finite():
    chance = random.Random(0)
    noise = [chance.gauss(0, 1) for _ in range(4000)]
    noise[2000] = math.nan

    assert max(map(abs, smooth_values(noise)[100:-100])) < 0.6  # 81 together: a ninth of the spread, at five of those


def test_speed_is_tokens_over_seconds_whatever_the_logging():
    every = [{"step": i, "loss": 1.0, "tokens": 300, "seconds": 0.5 * i} for i in range(1, 1001)]

    assert set(speed_curve(every)["value"]) == {600} and median_value(speed_curve(every)) == 600
    assert median_value(speed_curve(every[:1])) is None


def test_clipping_is_counted_in_full_and_shown_in_part():
    found = clip_events([{"step": i, "clipped": i % 2 == 0} for i in range(3000)])

    assert found["count"] == 1500 and found["of"] == 3000 and len(found["step"]) <= 300


def test_steps_that_were_not_taken_are_told_in_full_and_marked_in_part():
    lines = [{"step": i, "loss": 2.0, **({"skipped": "leapt" if i < 2000 else "nan"} if i % 2 else {})}
             for i in range(3000)]  # fmt: skip
    found = skip_events(lines)

    assert {why: len(steps) for why, steps in found["why"].items()} == {"leapt": 1000, "nan": 500}
    assert len(found["marks"]) <= 301 and found["marks"][0] == {"step": 1, "seconds": None, "why": "leapt"}
    assert skip_events(lines[::2]) == {"why": {}, "marks": []}


def test_what_an_evaluation_says_beside_the_loss_is_a_score():
    odd = {"note": "fine", "odd": False}
    lines = [{"step": 1, "eval_loss": 2.0, "eval_tokens": 9, "seconds": 1.0},
             {"step": 2, "eval_loss": 1.5, "f1": 0.5, "masked accuracy": 1, "whole": True, **odd}]  # fmt: skip

    assert score_names(lines) == ["f1", "masked accuracy"]


def test_times_are_written_for_people():
    assert [format_duration_short(s) for s in (0.0123, 4.561, 200, 7500)] == [
        "12.3 ms",
        "4.56 s",
        "3 min 20 s",
        "2 h 5 min",
    ]
