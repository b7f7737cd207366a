"""Cases of ExponentialDelayRestartBackoffTimeStrategyTest and FailureRateRestartBackoffTimeStrategyTest, in their milliseconds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

from testbed_runtime.core.errors import LocalProtocolError
from testbed_runtime.core.job.restart import ExponentialConfig, ExponentialDelay, FailureRate
from testbed_runtime.core.values import MAX_INT


def highest(low: int, high: int) -> int:
    """The largest jitter."""
    return high if low else 0


class Clocked:
    """A strategy whose clock a test moves."""

    def __init__(
        self,
        initial: int,
        largest: int,
        multiplier: float,
        reset: int,
        jitter: float,
        attempts: int = MAX_INT,
        uniform: Callable[[int, int], int] = highest,
    ) -> None:
        config = ExponentialConfig(
            initial / 1000, largest / 1000, multiplier, reset / 1000, jitter, attempts_before_reset=attempts
        )
        self.strategy = ExponentialDelay(config, uniform)
        self.now = 0

    def fail(self, after: int = 0) -> bool:
        self.now += after
        return self.strategy.notify_failure(self.now / 1000)

    @property
    def backoff(self) -> int:
        return round(self.strategy.backoff_s(self.now / 1000) * 1000)

    @property
    def can_restart(self) -> bool:
        return self.strategy.can_restart(self.now / 1000)


def test_J_39_more_failures_than_the_rate_within_the_interval_are_one_too_many() -> None:
    """One in each millisecond is allowed, and the fourth of three within 10 s is not. The delay needs no failure."""
    slow = FailureRate(1, 0.001, 0.0)
    for number in range(3):
        slow.notify_failure(0.002 * number)
        assert slow.can_restart(0.002 * number)
    assert slow.can_restart(0.006)
    fast, allowed = FailureRate(3, 10.0, 0.0), []
    for _ in range(4):
        fast.notify_failure(0.0)
        allowed.append(fast.can_restart(0.0))
    assert allowed == [True, True, True, False]
    assert FailureRate(1, 0.001, 10.0).backoff_s(0.0) == 10.0


def test_J_40_the_first_delay_is_the_initial_one_and_does_not_exist_before_a_failure() -> None:
    """42 ms."""
    clocked = Clocked(42, 45, 2.0, 8, 0.0)
    with pytest.raises(LocalProtocolError, match="Please call notifyFailure first"):
        assert clocked.backoff
    clocked.fail()
    assert clocked.backoff == 42


def test_J_41_the_delay_grows_to_its_maximum_and_is_reset_after_the_threshold() -> None:
    """4, 4 × 2.3 and 4 × 2.3² ms; never more than 6 ms; the last millisecond before the threshold resets nothing."""
    growing = Clocked(4, 300, 2.3, MAX_INT, 0.0, 10)
    assert [growing.fail(301) and growing.backoff for _ in range(3)] == [4, 9, 21]
    limited = Clocked(1, 6, 2.0, 8, 0.25)
    for _ in range(10):
        limited.fail()
        assert limited.backoff <= 6
    reset = Clocked(1, 5, 2.0, 8, 0.25)
    assert reset.fail()
    assert reset.fail(8 + reset.backoff - 1)
    assert reset.backoff == 2
    assert reset.fail(8 + reset.backoff)
    assert reset.backoff == 1


@pytest.mark.parametrize(
    ("initial", "jitter", "failures", "expected"),
    [
        (2, 0.25, 2, {3, 4, 5}),
        (2, 0.25, 3, {6, 7}),
        (2, 0.25, 4, {7}),
        (1, 1.0, 1, {1, 2}),
        (1, 1.0, 2, {1, 2, 3, 4}),
        (1, 1.0, 3, {1, 2, 3, 4, 5, 6, 7}),
    ],
)
def test_J_42_the_delays_that_a_jitter_may_give(
    initial: int, jitter: float, failures: int, expected: set[int]
) -> None:
    """Every number of the range may be drawn, and 7 ms is the maximum."""

    def drawn(choice: int) -> tuple[int, int]:
        """The delay with this number of the last range, and the size of the range."""
        size = 0

        def uniform(low: int, high: int) -> int:
            nonlocal size
            size = high - low + 1
            return min(low + choice, high)

        clocked = Clocked(initial, 7, 2.0, MAX_INT, jitter, uniform=uniform)
        for _ in range(failures):
            assert clocked.fail(8)
        return clocked.backoff, size

    found: set[int] = set()
    for choice in itertools.count():
        backoff, size = drawn(choice)
        found.add(backoff)
        if choice >= size:
            break
    assert found == expected


def test_J_43_a_delay_is_reset_and_grows_again() -> None:
    """All settings together."""
    clocked = Clocked(1, 9, 2.0, 80, 0.25)
    for after, expected in ((0, 1), (81, 1), (4, 2), (90, 1), (10, 2)):
        assert clocked.fail(after)
        assert clocked.can_restart
        assert clocked.backoff == expected


def merged(clocked: Clocked, delays: Iterable[int]) -> None:
    """Ten failures in each millisecond of these delays are one attempt each."""
    for delay in delays:
        for passed in range(delay):
            for number in range(10):
                assert clocked.fail() is (passed == number == 0)
                assert clocked.can_restart
                assert clocked.backoff == delay - passed
            clocked.now += 1
        clocked.now += 1


def test_J_44_failures_within_a_delay_are_one_attempt() -> None:
    """2, 4 and 6 ms, and then the attempts are used up."""
    clocked = Clocked(2, 6, 2.0, 80, 0.0, 3)
    merged(clocked, (2, 4, 6))
    assert clocked.fail()
    assert not clocked.can_restart


def test_J_44_merged_failures_are_reset_too() -> None:
    """Ten times, each after 80 ms without a failure."""
    clocked = Clocked(2, 6, 2.0, 80, 0.0, 3)
    for _ in range(10):
        merged(clocked, (2, 4, 6))
        clocked.now += 79
