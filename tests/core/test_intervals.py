"""The ends of a bootstrap interval (BCa, Efron 1987), with levels computed by hand for six trials at 95 %."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from testbed_runtime.core.judgement.statistics import Floats, Interval, _levels, mean_interval

REACH = 2.57058 * (6 / 5) ** 0.5
"""Student's t with 5 degrees of freedom, widened for 6 trials: 2.8159."""


def levels(values: list[float], drawn: list[float], observed: float) -> tuple[float, float]:
    """The quantiles of the resampled means at which the interval of the mean ends."""

    def mean(means: Sequence[Floats]) -> Floats:
        return means[0]

    return _levels(observed, np.asarray(drawn), [np.asarray(values)], mean, 0.95)


@pytest.mark.parametrize(
    ("case", "values", "below", "expected"),
    [
        # Φ(∓2.8159)
        ("neither skewed nor biased", [-1, -1, -1, 1, 1, 1], 5, (0.00243, 0.99757)),
        # a = 0.5556 / (6 × 0.8333^1.5) = 0.12172; Φ(−2.8159 / 1.34276), Φ(2.8159 / 0.65724)
        ("skewed to the right", [0, 0, 0, 0, 0, 6], 5, (0.01799, 0.99999)),
        ("skewed to the left", [0, 0, 0, 0, 0, -6], 5, (0.00001, 0.98201)),
        # z = Φ⁻¹(0.8) = 0.84162; Φ(2 × 0.84162 ∓ 2.8159)
        ("most resampled means are below", [-1, -1, -1, 1, 1, 1], 8, (0.12867, 1.0)),
        # never beyond one resampled mean: Φ⁻¹(0.9) = 1.28155; Φ(2.5631 ∓ 2.8159)
        ("all of them are", [-1, -1, -1, 1, 1, 1], 10, (0.40021, 1.0)),
    ],
)
def test_an_interval_ends_where_bias_and_skewness_move_it(
    case: str, values: list[float], below: int, expected: tuple[float, float]
):
    """`below` of ten resampled means are smaller than the observed one."""
    found = levels(values, [float(n) for n in range(10)], below - 0.5)
    assert found == pytest.approx(expected, abs=1e-5), case


def test_a_resampled_mean_that_equals_the_observed_one_counts_half():
    """Four are below and two equal: as if five were below."""
    drawn = [0.0, 1.0, 2.0, 3.0, 5.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert levels([-1, -1, -1, 1, 1, 1], drawn, 5.0) == pytest.approx((0.00243, 0.99757), abs=1e-5)


def test_an_interval_reaches_at_least_as_far_as_students():
    """Six trials of ±1 have a standard error of √(1.2 / 6), and t is 2.57058. Equal trials need no interval."""
    found = mean_interval([-1, -1, -1, 1, 1, 1], confidence=0.95, seed=1)
    assert found is not None
    reach = 2.57058 * 0.2**0.5
    assert (found.low, found.high) == (pytest.approx(-reach, abs=1e-4), pytest.approx(reach, abs=1e-4))
    assert mean_interval([3.0] * 6, confidence=0.95, seed=1) == Interval(value=3.0, low=3.0, high=3.0)
    assert found.negated() == Interval(value=0.0, low=-found.high, high=-found.low)


def test_the_smaller_of_two_samples_decides_how_far_an_interval_reaches():
    """Six trials of one variant and sixty of the other, of which none is skewed: as with six alone."""
    samples = [np.asarray([-1.0, 1.0] * pairs) for pairs in (3, 30)]

    def difference(means: Sequence[Floats]) -> Floats:
        return means[1] - means[0]

    for order in (samples, samples[::-1]):
        found = _levels(4.5, np.arange(10.0), order, difference, 0.95)
        assert found == pytest.approx((0.00243, 0.99757), abs=1e-5)
