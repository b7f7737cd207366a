"""Restart strategies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.errors import LocalProtocolError
from testbed_runtime.core.job.restart import (
    ExponentialConfig,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    restart_strategy,
)
from testbed_runtime.core.options import Options


def middle(low, high):
    return (low + high) // 2


def test_J_06_fixed_delay_allows_as_many_restarts_as_attempts():
    """3 attempts: 3 restarts, then refused."""
    strategy = FixedDelay(3, 1.0)
    allowed = []
    for _ in range(4):
        strategy.notify_failure(0)
        allowed.append(strategy.can_restart(0))
    assert allowed == [True, True, True, False]


def test_times_are_compared_in_whole_milliseconds():
    """A failure exactly at the end of the delay is merged, whatever the sum of two floats is."""
    for start_ms in range(0, 5000, 7):
        strategy = ExponentialDelay(ExponentialConfig(0.1, 1.0, 1.5, 3600, 0.0, 13), middle)
        strategy.notify_failure(start_ms / 1000)
        assert not strategy.notify_failure((start_ms + 100) / 1000)
        assert strategy.notify_failure((start_ms + 101) / 1000)


def test_J_07_exponential_allows_its_attempts_and_then_no_more():
    """13 attempts, at most 3 ms, failures 4 ms apart: 14 times true, then false."""
    strategy = ExponentialDelay(ExponentialConfig(0.001, 0.003, 1.5, 3600, 0.0, 13), middle)
    now = 0.0
    for _ in range(14):
        assert strategy.can_restart(now)
        strategy.notify_failure(now)
        now += 0.004
    assert not strategy.can_restart(now)


def test_a_failure_before_the_restart_is_merged():
    """The same attempt, and only what is left of its delay: 1 s − 0.4 s; nothing once it has passed."""
    strategy = ExponentialDelay(ExponentialConfig(jitter=0.0), middle)
    assert strategy.notify_failure(0.0)
    assert strategy.backoff_s(0.0) == 1.0
    assert not strategy.notify_failure(0.4)
    assert strategy.backoff_s(0.4) == pytest.approx(0.6)
    assert strategy.backoff_s(1.5) == 0.0


@pytest.mark.parametrize(
    ("attempts", "jitter_ms", "expected_s"),
    [
        (11, -8649, 60.0),  # 1 s × 1.5^11 = 86.497 s, less 10 % = 77.848 s, still above the maximum
        (10, -5766, 51.899),  # 1 s × 1.5^10 = 57.665 s, less 10 % = 51.899 s
        (10, 5766, 60.0),  # 57.665 s + 5.766 s is above the maximum
        (3, 337, 3.712),  # 1 s × 1.5^3 = 3.375 s, and 10 % more
        (0, -100, 1.0),  # never less than the initial delay
    ],
)
def test_the_jitter_is_that_of_the_delay_before_its_maximum(attempts, jitter_ms, expected_s):
    """min(base + jitter, max), where jitter is up to 10 % of a base that is not limited."""
    drawn = []

    def uniform(low, high):
        drawn.append(high)
        return low if jitter_ms < 0 else high

    strategy, now = ExponentialDelay(ExponentialConfig(), uniform), 0.0
    for _ in range(attempts + 1):
        strategy.notify_failure(now)
        delay, now = strategy.backoff_s(now), now + strategy.backoff_s(now) + 1
    assert drawn[-1] == abs(jitter_ms)
    assert delay == pytest.approx(expected_s)


def test_a_delay_that_no_longer_fits_a_long_starts_again_at_the_initial_one():
    """1,000 ms × 1.5^91 is more than 2^63: with a positive jitter Flink's sum is negative."""
    strategy, now, delays = ExponentialDelay(ExponentialConfig(), lambda low, high: high), 0.0, []
    for _ in range(92):
        strategy.notify_failure(now)
        delays.append(strategy.backoff_s(now))
        now += delays[-1] + 1
    assert delays[-2:] == pytest.approx([60.0, 1.0])


def test_the_backoff_grows_to_its_maximum_and_is_reset_by_quiet():
    """1, 1.5, 2.25 s … and 1 s again."""
    strategy = ExponentialDelay(ExponentialConfig(max_s=3.0, reset_s=100, jitter=0.0), middle)
    now, seen = 0.0, []
    for _ in range(5):
        strategy.notify_failure(now)
        seen.append(strategy.backoff_s(now))
        now += seen[-1] + 1
    assert seen == [1.0, 1.5, 2.25, 3.0, 3.0]
    strategy.notify_failure(now + 200)
    assert strategy.backoff_s(now + 200) == 1.0


def test_asking_for_the_delay_first_is_a_bug():
    """Flink's text."""
    with pytest.raises(LocalProtocolError, match="Please call notifyFailure first"):
        ExponentialDelay(ExponentialConfig(), middle).backoff_s(0.0)


def test_the_failure_rate_counts_within_its_interval():
    """One failure an interval: the second within it is one too many."""
    strategy = FailureRate(1, 60, 1)
    strategy.notify_failure(0)
    assert strategy.can_restart(0)
    strategy.notify_failure(61)
    assert strategy.can_restart(61)
    strategy.notify_failure(70)
    assert not strategy.can_restart(70)


def test_none_never_restarts():
    """Recovery is suppressed."""
    strategy = NoRestart()
    strategy.notify_failure(0)
    assert not strategy.can_restart(0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", NoRestart),
        ("fixed-delay", FixedDelay),
        ("failure-rate", FailureRate),
        ("exponential-delay", ExponentialDelay),
    ],
)
def test_the_option_chooses_the_strategy(kind, expected):
    """restart-strategy.type."""
    assert isinstance(restart_strategy(Options({"restart-strategy.type": kind}), middle), expected)


@given(st.lists(st.floats(0, 1000), max_size=40), st.floats(0, 1))
def test_the_exponential_backoff_stays_between_initial_and_maximum(gaps, jitter):
    """A merged failure has what is left of it."""
    strategy = ExponentialDelay(ExponentialConfig(1, 60, 2, 500, jitter), lambda low, high: high)
    now = 0.0
    for gap in gaps:
        now += gap
        least = 0.999 if strategy.notify_failure(now) else 0
        assert least <= strategy.backoff_s(now) <= 60.001


@pytest.mark.parametrize(
    ("version", "interval", "expected"),
    [
        ("1.12", "1 s", FixedDelay(2**31 - 1, 1.0)),
        ("1.20", "1 s", ExponentialDelay),
        ("2.x", "1 s", ExponentialDelay),
        ("1.12", "0 ms", NoRestart),
        ("2.x", "0 ms", NoRestart),
    ],
)
def test_without_a_strategy_the_version_and_the_checkpoints_decide(version, interval, expected):
    """Exponential from 1.19 on, fixed without a limit before, none without checkpoints."""
    options = Options({"execution.checkpointing.interval": interval}, flink_version=version)
    made = restart_strategy(options, middle)
    assert made == expected if isinstance(expected, FixedDelay) else isinstance(made, expected)


def test_fixed_delay_restarts_once_after_a_second_by_default():
    """Flink's defaults."""
    assert restart_strategy(Options({"restart-strategy.type": "fixed-delay"}), middle) == FixedDelay(1, 1.0)
