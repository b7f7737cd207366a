"""How much a number of trials can show: the minimum for an interval, repeated looks, the false-pass risk of quantiles. Pure."""

from __future__ import annotations

import math

CONFIDENCE = 0.95
"""Confidence of an interval, or of all intervals of a table together."""


def trials_for(confidence: float) -> int:
    """Return the fewest trials that can decide at this confidence: as many as a two-sided sign test needs (6 at 95 %)."""
    return math.ceil(1 - math.log2(1 - confidence) - 1e-9)


def corrected(intervals: int) -> float:
    """Return the confidence of each of several intervals that together have CONFIDENCE (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / max(1, intervals)


def looks(least: int, most: int) -> tuple[int, ...]:
    """Return the numbers of trials after which a sequential comparison looks at its intervals: from `least`,
    doubled each time, to `most`."""
    found = [min(least, most)]
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return tuple(found)


def false_pass_risk(*, quantile: float, trials: int, lower: bool = False) -> float:
    """Return the probability that a quantile over trials passes although the system's true quantile just
    misses the bound. `lower`: the bound is a least value."""
    allowed = trials - max(1, math.ceil(quantile * trials - 1e-9))
    missed = binomial_cdf(allowed, trials, 1 - quantile)
    return 1 - missed if lower else missed


def quantile_note(*, quantile: float, within: int, trials: int, lower: bool = False) -> str:
    """Say what a quantile over trials shows, and how often a system that misses the bound would pass."""
    share = share_shown(within=within, trials=trials)
    shown = (
        f"{within} of {trials} trials are within the bound: with {CONFIDENCE * 100:g} % confidence at least {share * 100:.0f} % of all "
        f"trials are"
    )
    if quantile >= 1:
        return shown
    risk = false_pass_risk(quantile=quantile, trials=trials, lower=lower)
    return f"{shown}. A system that just misses this p{quantile * 100:g} passes with a probability of {risk * 100:.0f} %"


def share_shown(*, within: int, trials: int) -> float:
    """Return the least share of all trials that stays within the bound, with a probability of CONFIDENCE
    (Clopper and Pearson)."""
    if within == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        share = (low + high) / 2
        # as many as observed, or more, would be too unlikely if the true share were this small
        unlikely = binomial_cdf(trials - within, trials, 1 - share) < 1 - CONFIDENCE
        low, high = (share, high) if unlikely else (low, share)
    return low


def binomial_cdf(most: int, trials: int, probability: float) -> float:
    """Return the probability of at most `most` events in this number of trials."""
    return sum(
        math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(most + 1)
    )
