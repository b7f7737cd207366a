"""Means with bootstrap intervals. Seeded and pure.

The intervals are bias-corrected and accelerated (BCa; Efron 1987). Their tails are widened for small samples by Student's t
(Hesterberg 2015), because a bootstrap of few trials is too narrow. Below `trials_for(confidence)` trials there is no interval:
even a sign test could not decide then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from testbed_runtime.core.judgement.samplesize import trials_for

RESAMPLES = 10_000
_NORMAL = NormalDist()
Floats = NDArray[np.float64]


class Interval(Struct, frozen=True, kw_only=True):
    """An estimate, with the interval that contains the true value with the requested confidence."""

    value: float
    low: float
    high: float

    def negated(self) -> Interval:
        return Interval(value=-self.value, low=-self.high, high=-self.low)

    def to_json(self) -> dict[str, float | None]:
        """Return the interval as JSON, with None for an open end."""
        return {"value": self.value, "low": _finite(self.low), "high": _finite(self.high)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def mean_interval(values: Sequence[float], *, confidence: float, seed: int) -> Interval | None:
    """Return the mean with its interval. None if there are too few values."""
    return _interval([np.asarray(values, dtype=np.float64)], lambda means: means[0], confidence, seed)


def difference_interval(
    reference: Sequence[float],
    other: Sequence[float],
    *,
    paired: bool,
    relative: bool = False,
    confidence: float,
    seed: int,
) -> Interval | None:
    """Return mean(other) − mean(reference), or its ratio to mean(reference).

    `paired`: value n of both has the same seed, so pairs are resampled together. None if there are too few values, or the
    reference is 0 and the difference should be relative."""
    first, second = (np.asarray(v, dtype=np.float64) for v in (reference, other))
    if relative and first.size and (first.mean() == 0 or np.ptp(np.sign(first)) != 0):
        return None

    def statistic(means: Sequence[Floats]) -> Floats:
        change = means[1] - means[0]
        return change / means[0] if relative else change

    if paired:
        return _interval(
            [np.stack([first, second])], lambda m: statistic((m[0][0], m[0][1])), confidence, seed
        )
    return _interval([first, second], statistic, confidence, seed)


def _interval(
    samples: Sequence[Floats], statistic: Callable[[Sequence[Any]], Floats], confidence: float, seed: int
) -> Interval | None:
    """Return the BCa interval of a statistic of the samples' means. The last axis of each sample is its
    trials."""
    fewest = min(sample.shape[-1] for sample in samples)
    if fewest < trials_for(confidence):
        return None
    generator = np.random.default_rng(seed)
    observed = float(statistic([sample.mean(axis=-1) for sample in samples]))
    drawn = np.sort(statistic([_resampled_means(sample, generator) for sample in samples]))
    if drawn[-1] - drawn[0] <= 1e-9 * max(1.0, abs(observed)):  # equal but for rounding
        return Interval(value=observed, low=observed, high=observed)
    low, high = (
        float(np.quantile(drawn, level)) for level in _levels(observed, drawn, samples, statistic, confidence)
    )
    # the resampled means of a few trials end at the trials themselves: an interval of Student's t is the least
    reach = student_t((1 + confidence) / 2, fewest - 1) * _standard_error(samples, statistic)
    return Interval(value=observed, low=min(low, observed - reach), high=max(high, observed + reach))


def _resampled_means(sample: Floats, generator: np.random.Generator) -> Floats:
    count = sample.shape[-1]
    picked = generator.integers(count, size=(count, RESAMPLES), dtype=np.int32)
    means: Floats = sample[..., picked].mean(axis=-2)
    return means


def _levels(
    observed: float,
    drawn: Floats,
    samples: Sequence[Floats],
    statistic: Callable[[Sequence[Any]], Floats],
    confidence: float,
) -> tuple[float, float]:
    """Return the quantiles of the resampled values at which the interval ends."""
    below = (np.searchsorted(drawn, observed, "left") + np.searchsorted(drawn, observed, "right")) / 2
    bias = _NORMAL.inv_cdf(min(max(below / len(drawn), 1 / len(drawn)), 1 - 1 / len(drawn)))
    skew = _acceleration(samples, statistic)
    fewest = min(sample.shape[-1] for sample in samples)
    reach = student_t((1 + confidence) / 2, fewest - 1) * math.sqrt(fewest / (fewest - 1))

    def level(z: float) -> float:
        shifted = bias + z
        return _NORMAL.cdf(bias + shifted / max(1 - skew * shifted, 1e-3))

    return level(-reach), level(reach)


def _acceleration(samples: Sequence[Floats], statistic: Callable[[Sequence[Any]], Floats]) -> float:
    """Return how fast the statistic's spread changes with its value."""
    influences = _influences(samples, statistic)
    cubes = sum(float((influence**3).sum()) for influence in influences)
    squares = sum(float((influence**2).sum()) for influence in influences)
    return cubes / (6 * squares**1.5) if squares > 0 else 0.0


def _standard_error(samples: Sequence[Floats], statistic: Callable[[Sequence[Any]], Floats]) -> float:
    return math.sqrt(
        sum(
            float((influence**2).sum()) * len(influence) / (len(influence) - 1)
            for influence in _influences(samples, statistic)
        )
    )


def _influences(samples: Sequence[Floats], statistic: Callable[[Sequence[Any]], Floats]) -> list[Floats]:
    """Return for each sample how much each trial moves the statistic, from the jackknife."""
    means = [sample.mean(axis=-1) for sample in samples]
    found = []
    for index, sample in enumerate(samples):
        count = sample.shape[-1]
        left_out = (sample.sum(axis=-1, keepdims=True) - sample) / (count - 1)
        values = statistic([left_out if i == index else m for i, m in enumerate(means)])
        found.append((values.mean() - values) * (count - 1) / count)
    return found


@lru_cache
def student_t(level: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution for a level above one half."""
    low, high = 0.0, 1e7
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, degrees) < level else (low, middle)
    return high


def _t_cdf(value: float, degrees: int) -> float:
    """Return the distribution function for integer degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(value, math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    term = cosine if degrees % 2 else 1.0
    total = 0.0
    for k in range(1 if degrees % 2 else 0, degrees - 1, 2):
        total += term
        term *= cosine**2 * (k + 1) / (k + 2)
    if degrees % 2:
        return 0.5 + (angle + sine * total) / math.pi
    return 0.5 + sine * total / 2
