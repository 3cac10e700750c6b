"""A planted law is found again, by least squares that others compute too."""

import math

import numpy
import pytest
from scipy.optimize import curve_fit

from regard.studies.scaling import MIN_SIZES, fit_power_law, fit_with_floor

SIZES = [9_001, 31_007, 77_003, 240_007, 801_001]


def noisy(losses, part=0.002, seed=0):
    chance = numpy.random.default_rng(seed)
    return [loss * math.exp(part * chance.standard_normal()) for loss in losses]


@pytest.mark.spec("S144")
@pytest.mark.parametrize("alpha", [0.03, 0.076, 0.34])
def test_a_planted_exponent_is_recovered(alpha):
    exact = fit_power_law(SIZES, [11.0 * size**-alpha for size in SIZES])
    measured = fit_power_law(SIZES, noisy([11.0 * size**-alpha for size in SIZES], 0.0003))

    assert exact.alpha == pytest.approx(alpha, rel=1e-9) and exact.scale == pytest.approx(11.0)
    assert measured.alpha == pytest.approx(alpha, rel=0.01)
    assert measured(SIZES[2]) == pytest.approx(11.0 * SIZES[2] ** -alpha, rel=1e-3)


@pytest.mark.spec("S144")
@pytest.mark.parametrize("floor", [0.4, 1.69])
def test_a_planted_floor_is_recovered(floor):
    law = fit_with_floor(SIZES, [floor + 40 * size**-0.34 for size in SIZES])

    assert (law.alpha, law.floor, law.scale) == pytest.approx((0.34, floor, 40), rel=0.01)
    assert law.floors == pytest.approx((floor, floor), rel=0.01)  # nothing else fits


def test_the_line_is_that_of_numpy_with_its_standard_error():
    losses = noisy([7 * size**-0.07 for size in SIZES], 0.01)
    (slope, level), spread = numpy.polyfit(numpy.log(SIZES), numpy.log(losses), 1, cov=True)

    law = fit_power_law(SIZES, losses)

    assert (law.alpha, math.log(law.scale), law.error) == pytest.approx((-slope, level, math.sqrt(spread[0, 0])))


def test_the_floored_law_is_that_of_scipy():
    losses = noisy([1.7 + 30 * size**-0.3 for size in SIZES], 0.003)

    def model(x, floor, scale, alpha):
        return numpy.log(numpy.log(floor + scale * numpy.exp(-alpha * x)))

    law = fit_with_floor(SIZES, losses)

    def missed(floor):  # in the logarithms of what is above the floor, as ours
        return numpy.polyfit(numpy.log(SIZES), numpy.log(numpy.array(losses) - floor), 1, full=True)[1]

    (floor, _, alpha), _ = curve_fit(model, numpy.log(SIZES), numpy.log(numpy.log(losses)), p0=(1.5, 30, 0.3))
    assert (law.floor, law.alpha) == pytest.approx((floor, alpha), rel=0.05)
    assert missed(law.floor) <= 1.2 * min(missed(floor), missed(0.0))


def test_what_is_left_over_is_told_size_by_size():
    losses = [7 * size**-0.07 for size in SIZES]
    losses[1] *= 1.02
    law = fit_power_law(SIZES, losses)

    assert max(law.left) == law.left[1] and law.miss == pytest.approx(numpy.sqrt(numpy.mean(numpy.square(law.left))))
    for size, loss, left in zip(SIZES, losses, law.left, strict=True):
        assert loss == pytest.approx(law(size) * (1 + left))


def test_a_bad_floor_is_said_by_a_wide_range():
    losses = noisy([7 * size**-0.07 for size in SIZES], 0.004)

    low, high = fit_with_floor(SIZES, losses).floors

    assert high - low > 0.2 * min(losses)


@pytest.mark.parametrize("sizes, losses", [
    (SIZES[: MIN_SIZES - 1], [3.0, 2.9, 2.8]), (SIZES, [3.0, 2.9, 2.8, 2.7]), ([0, *SIZES[1:]], [3, 2, 2, 2, 2.0]),
    (SIZES, [3.0, 2.9, 2.8, 2.7, math.inf]), ([SIZES[0]] * 5, [3.0, 2.9, 2.8, 2.7, 2.6]),
])  # fmt: skip
def test_too_few_sizes_or_impossible_ones_are_refused(sizes, losses):
    with pytest.raises(ValueError, match="sizes"):
        fit_power_law(sizes, losses)
