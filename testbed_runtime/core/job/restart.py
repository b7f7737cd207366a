"""Flink's restart strategies: may the job restart after this failure, and after what delay.

Times in seconds; the exponential strategy counts in whole milliseconds as Flink does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from testbed_runtime.core.errors import LocalProtocolError
from testbed_runtime.core.options import MAX_INT, Options
from testbed_runtime.core.versions import EXPONENTIAL_DELAY, has

MILLIS = 1000
MAX_LONG = 2**63 - 1
UNSET_DELAY_S = 1.0
"""The default of Flink before 1.19 for a job with checkpoints and no restart strategy."""


def _millis(seconds: float) -> int:
    """Return whole milliseconds: Flink's clock has no finer ones, and its comparisons are exact."""
    return round(seconds * MILLIS)


class RestartStrategy(Protocol):
    def notify_failure(self, now: float) -> bool:
        """Count a failure. Return True for a new restart attempt, False when it is merged into the pending one."""

    def can_restart(self, now: float) -> bool: ...

    def backoff_s(self, now: float) -> float:
        """Return the time until the restart."""

    @property
    def option(self) -> str:
        """Key of the option that decides `backoff_s`; empty without a delay."""

    @property
    def text(self) -> str:
        """The strategy in Flink's text `Recovery is suppressed by <text>`."""


class NoRestart:
    option = ""
    text = "NoRestartBackoffTimeStrategy"

    def notify_failure(self, now: float) -> bool:
        del now
        return True

    def can_restart(self, now: float) -> bool:
        del now
        return False

    def backoff_s(self, now: float) -> float:
        del now
        return 0.0


@dataclass(slots=True)
class FixedDelay:
    attempts: int
    delay_s: float
    failures: int = 0

    @property
    def option(self) -> str:
        return "restart-strategy.fixed-delay.delay"

    @property
    def text(self) -> str:
        return (
            f"FixedDelayRestartBackoffTimeStrategy(maxNumberRestartAttempts={self.attempts}, "
            f"backoffTimeMS={round(self.delay_s * MILLIS)})"
        )

    def notify_failure(self, now: float) -> bool:
        del now
        self.failures += 1
        return True

    def can_restart(self, now: float) -> bool:
        del now
        return self.failures <= self.attempts

    def backoff_s(self, now: float) -> float:
        del now
        return self.delay_s


class FailureRate:
    option = "restart-strategy.failure-rate.delay"

    def __init__(self, max_failures: int, interval_s: float, delay_s: float) -> None:
        self._max_failures = max_failures
        self._interval_s = interval_s
        self._delay_s = delay_s
        self._times: deque[float] = deque(maxlen=max_failures + 1)

    @property
    def text(self) -> str:
        return (
            f"FailureRateRestartBackoffTimeStrategy(FailureRateRestartBackoffTimeStrategy(failuresIntervalMS="
            f"{round(self._interval_s * MILLIS)},backoffTimeMS={round(self._delay_s * MILLIS)},"
            f"maxFailuresPerInterval={self._max_failures})"
        )

    def notify_failure(self, now: float) -> bool:
        self._times.append(now)
        return True

    def can_restart(self, now: float) -> bool:
        full = len(self._times) > self._max_failures
        return not (full and _millis(now) - _millis(self._times[0]) <= _millis(self._interval_s))

    def backoff_s(self, now: float) -> float:
        del now
        return self._delay_s


@dataclass(frozen=True, slots=True)
class ExponentialConfig:
    initial_s: float = 1.0
    max_s: float = 60.0
    multiplier: float = 1.5
    reset_s: float = 3600.0
    jitter: float = 0.1
    attempts_before_reset: int = 2**31 - 1


class ExponentialDelay:
    """`uniform(low, high)` draws a whole number of milliseconds, both ends included."""

    def __init__(self, config: ExponentialConfig, uniform: Callable[[int, int], int]) -> None:
        self._config = config
        self._uniform = uniform
        self._attempt = 0
        self._next_restart_ms = -(2**31)
        self._backoff_ms: int | None = None

    @property
    def option(self) -> str:
        capped = self._backoff_ms is not None and self._backoff_ms >= round(self._config.max_s * MILLIS)
        return f"restart-strategy.exponential-delay.{'max' if capped else 'initial'}-backoff"

    @property
    def text(self) -> str:
        config = self._config
        return (
            f"ExponentialDelayRestartBackoffTimeStrategy(initialBackoffMS={round(config.initial_s * MILLIS)}, "
            f"maxBackoffMS={round(config.max_s * MILLIS)}, backoffMultiplier={config.multiplier}, "
            f"resetBackoffThresholdMS={round(config.reset_s * MILLIS)}, jitterFactor={config.jitter}, "
            f"attemptsBeforeResetBackoff={config.attempts_before_reset}, currentRestartAttempt={self._attempt}, "
            f"nextRestartTimestamp={self._next_restart_ms})"
        )

    def notify_failure(self, now: float) -> bool:
        now_ms = _millis(now)
        if now_ms <= self._next_restart_ms:
            return False
        if now_ms - self._next_restart_ms >= _millis(self._config.reset_s):
            self._attempt = 0
        self._backoff_ms = self._draw()
        self._next_restart_ms = now_ms + self._backoff_ms
        self._attempt += 1
        return True

    def can_restart(self, now: float) -> bool:
        del now
        return self._attempt <= self._config.attempts_before_reset

    def backoff_s(self, now: float) -> float:
        """Return the time that is left of the delay: a failure that is merged does not begin it anew."""
        if self._backoff_ms is None:
            raise LocalProtocolError("Please call notifyFailure first.")
        return max(0, self._next_restart_ms - _millis(now)) / MILLIS

    def _draw(self) -> int:
        """Draw the jitter from the delay as it grew, and limit their sum. The delay of the 91st restart in a row no longer fits
        Java's long: Flink's sum overflows, and it starts again at the initial delay if the jitter is positive."""
        config = self._config
        initial, largest = round(config.initial_s * MILLIS), round(config.max_s * MILLIS)
        base = _grown(initial, config.multiplier, self._attempt)
        spread = min(int(base * config.jitter), MAX_LONG)
        jittered = base + (self._uniform(-spread, spread) if spread else 0)
        if jittered > MAX_LONG:
            jittered -= 2 * (MAX_LONG + 1)
        return max(initial, min(jittered, largest))


def _grown(initial: int, multiplier: float, attempt: int) -> int:
    """Return initial × multiplier ** attempt as Java's long: cut to an integer, and at most MAX_LONG."""
    try:
        return min(int(initial * multiplier**attempt), MAX_LONG)
    except OverflowError:
        return MAX_LONG


def restart_strategy(options: Options, uniform: Callable[[int, int], int]) -> RestartStrategy:
    """Return the strategy of `restart-strategy.type`. Unset, it is the default of this Flink version with or without
    checkpoints."""
    if not options.is_set("restart-strategy.type"):
        if options.duration("execution.checkpointing.interval") <= 0:
            return NoRestart()
        if not has(options.flink_version, EXPONENTIAL_DELAY):
            return FixedDelay(MAX_INT, UNSET_DELAY_S)
    kind = options.string("restart-strategy.type")
    if kind == "none":
        return NoRestart()
    if kind == "fixed-delay":
        return FixedDelay(
            options.integer("restart-strategy.fixed-delay.attempts"),
            options.duration("restart-strategy.fixed-delay.delay"),
        )
    if kind == "failure-rate":
        prefix = "restart-strategy.failure-rate."
        return FailureRate(
            options.integer(prefix + "max-failures-per-interval"),
            options.duration(prefix + "failure-rate-interval"),
            options.duration(prefix + "delay"),
        )
    prefix = "restart-strategy.exponential-delay."
    config = ExponentialConfig(
        initial_s=options.duration(prefix + "initial-backoff"),
        max_s=options.duration(prefix + "max-backoff"),
        multiplier=options.number(prefix + "backoff-multiplier"),
        reset_s=options.duration(prefix + "reset-backoff-threshold"),
        jitter=options.number(prefix + "jitter-factor"),
        attempts_before_reset=options.integer(prefix + "attempts-before-reset-backoff"),
    )
    return ExponentialDelay(config, uniform)
