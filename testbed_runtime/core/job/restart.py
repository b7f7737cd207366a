"""Flink's restart strategies: may the job restart after this failure, and after what delay.

Times in seconds; the exponential strategy counts in whole milliseconds as Flink does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec import Struct

from testbed_runtime.core.errors import LocalProtocolError, require_option
from testbed_runtime.core.options import BY_KEY, Options
from testbed_runtime.core.values import MAX_INT, MAX_LONG, MILLIS, NS, java_double
from testbed_runtime.core.versions import EXPONENTIAL_DELAY, EXPONENTIAL_DELAY_EXISTS, MERGED_FAILURES, has

NANOS_PER_MILLI = NS // MILLIS
RESTART_STRATEGY = "restart-strategy."
FIXED_DELAY, FAILURE_RATE = f"{RESTART_STRATEGY}fixed-delay.", f"{RESTART_STRATEGY}failure-rate."
EXPONENTIAL = f"{RESTART_STRATEGY}exponential-delay."
TYPE = f"{RESTART_STRATEGY}type"
STRATEGIES = {FIXED_DELAY: "fixed-delay", FAILURE_RATE: "failure-rate", EXPONENTIAL: "exponential-delay"}
"""Prefix of a strategy's own options → its type."""
INITIAL_ABOVE_MAXIMUM = "Initial backoff cannot be higher than maximum backoff."
MULTIPLIER_REFUSED = "Backoff multiplier must be greater than 1."
RESET_REFUSED = "Threshold duration for exponential backoff reset must be at least 1."
ATTEMPTS_REFUSED = "The attemptsBeforeResetBackoff must be at least 1."
NO_RESTART_HINT = "write none as the type for no restart"
UNSET_DELAY_S = 1.0
"""The default of Flink before 1.19 for a job with checkpoints and no restart strategy."""


def _millis(seconds: float) -> int:
    """Return whole milliseconds: Flink's clock has no finer ones, and its comparisons are exact."""
    return round(seconds * MILLIS)


def _clock_ms(now: float) -> int:
    """Return the whole milliseconds that have passed, as System.currentTimeMillis does."""
    return round(now * NS) // NANOS_PER_MILLI


def _setting(options: Options, key: str) -> float:
    """Return a duration in seconds, cut to whole milliseconds as Duration.toMillis does."""
    return _clock_ms(options.duration(key)) / MILLIS


class RestartStrategy:
    """The base of the strategies: one with a constant delay that need not count failures."""

    limit_option = ""
    """Key of the option that limits the number of restarts. Empty if the number is unlimited."""
    delay_s: float

    @property
    def option(self) -> str:
        """Key of the option that decides `backoff_s`. Empty without a delay."""
        return ""

    @property
    def text(self) -> str:
        """The strategy in Flink's text `Recovery is suppressed by <text>`."""
        raise NotImplementedError

    def notify_failure(self, now: float) -> bool:
        """Count a failure. Return True for a new restart attempt, False when it is merged into the pending one."""
        return True

    def can_restart(self, now: float) -> bool:
        return True

    def backoff_s(self, now: float) -> float:
        """Return the time until the restart."""
        return self.delay_s


class NoRestart(RestartStrategy):
    limit_option = TYPE
    text = "NoRestartBackoffTimeStrategy"
    delay_s = 0.0

    def can_restart(self, now: float) -> bool:
        return False


@dataclass(slots=True)
class FixedDelay(RestartStrategy):
    option = FIXED_DELAY + "delay"
    limit_option = FIXED_DELAY + "attempts"
    attempts: int
    delay_s: float
    failures: int = 0

    def __post_init__(self) -> None:
        """Raise OptionRefused as Flink's constructor does."""
        text = "Maximum number of restart attempts must be at least 0."
        require_option(self.attempts >= 0, text, FIXED_DELAY + "attempts", NO_RESTART_HINT)
        text = "Backoff time between restart attempts must be at least 0 ms."
        require_option(self.delay_s >= 0, text, self.option, "write at least 0")

    @property
    def text(self) -> str:
        return (
            f"FixedDelayRestartBackoffTimeStrategy(maxNumberRestartAttempts={self.attempts}, "
            f"backoffTimeMS={_millis(self.delay_s)})"
        )

    def notify_failure(self, now: float) -> bool:
        self.failures += 1
        return True

    def can_restart(self, now: float) -> bool:
        return self.failures <= self.attempts


class FailureRate(RestartStrategy):
    option = FAILURE_RATE + "delay"
    limit_option = FAILURE_RATE + "max-failures-per-interval"

    def __init__(self, max_failures: int, interval_s: float, delay_s: float) -> None:
        """Create the strategy. Raises OptionRefused as Flink's constructor does."""
        text = "Maximum number of restart attempts per time unit must be greater than 0."
        require_option(max_failures > 0, text, FAILURE_RATE + "max-failures-per-interval")
        text = "Failures interval must be greater than 0 ms."
        require_option(_millis(interval_s) > 0, text, FAILURE_RATE + "failure-rate-interval")
        require_option(delay_s >= 0, "Backoff time must be at least 0 ms.", self.option, "write at least 0")
        self._max_failures = max_failures
        self._interval_s = interval_s
        self.delay_s = delay_s
        self._times: deque[float] = deque(maxlen=max_failures + 1)

    @property
    def text(self) -> str:
        return (
            f"FailureRateRestartBackoffTimeStrategy(FailureRateRestartBackoffTimeStrategy(failuresIntervalMS="
            f"{_millis(self._interval_s)},backoffTimeMS={_millis(self.delay_s)},"
            f"maxFailuresPerInterval={self._max_failures})"
        )

    def notify_failure(self, now: float) -> bool:
        self._times.append(now)
        return True

    def can_restart(self, now: float) -> bool:
        full = len(self._times) > self._max_failures
        return not (full and _clock_ms(now) - _clock_ms(self._times[0]) <= _millis(self._interval_s))


class ExponentialConfig(Struct, frozen=True):
    initial_s: float = 1.0
    max_s: float = 60.0
    multiplier: float = 1.5
    reset_s: float = 3600.0
    jitter: float = 0.1
    attempts_before_reset: int = MAX_INT

    def __post_init__(self) -> None:
        """Raise OptionRefused as Flink's constructor does."""
        initial, largest = _millis(self.initial_s), _millis(self.max_s)
        for holds, text, key, hint in (
            (initial >= 1, "Initial backoff must be at least 1.", "initial-backoff", ""),
            (largest >= 1, "Maximum backoff must be at least 1.", "max-backoff", ""),
            (initial <= largest, INITIAL_ABOVE_MAXIMUM, "max-backoff", "make it larger"),
            (
                self.multiplier > 1,
                MULTIPLIER_REFUSED,
                "backoff-multiplier",
                "write '1.1', or fixed-delay as the type",
            ),
            (_millis(self.reset_s) >= 1, RESET_REFUSED, "reset-backoff-threshold", ""),
            (
                0 <= self.jitter <= 1,
                "Jitter factor must be >= 0 and <= 1.",
                "jitter-factor",
                "write '0.1' for 10 %",
            ),
            (
                self.attempts_before_reset >= 1,
                ATTEMPTS_REFUSED,
                "attempts-before-reset-backoff",
                NO_RESTART_HINT,
            ),
        ):
            require_option(holds, text, EXPONENTIAL + key, hint)

    def option_of(self, backoff_ms: int) -> str:
        """Return the option that decided a delay. The maximum decides none that has not grown: it cannot be lower than the initial delay."""
        initial, largest = _millis(self.initial_s), _millis(self.max_s)
        return EXPONENTIAL + ("max-backoff" if initial < largest <= backoff_ms else "initial-backoff")

    def text(self, state: str) -> str:
        """Return Flink's text of a strategy with this configuration in this state."""
        return (
            f"ExponentialDelayRestartBackoffTimeStrategy(initialBackoffMS={_millis(self.initial_s)}, "
            f"maxBackoffMS={_millis(self.max_s)}, backoffMultiplier={java_double(self.multiplier)}, "
            f"resetBackoffThresholdMS={_millis(self.reset_s)}, jitterFactor={java_double(self.jitter)}, {state})"
        )


class ExponentialDelay(RestartStrategy):
    """`uniform(low, high)` draws a whole number of milliseconds, both ends included."""

    limit_option = EXPONENTIAL + "attempts-before-reset-backoff"

    def __init__(self, config: ExponentialConfig, uniform: Callable[[int, int], int]) -> None:
        self._config = config
        self._uniform = uniform
        self._attempt = 0
        self._next_restart_ms = -(2**31)
        self._backoff_ms: int | None = None

    @property
    def option(self) -> str:
        return self._config.option_of(self._backoff_ms or 0)

    @property
    def text(self) -> str:
        return self._config.text(
            f"attemptsBeforeResetBackoff={self._config.attempts_before_reset}, currentRestartAttempt={self._attempt}, "
            f"nextRestartTimestamp={self._next_restart_ms}"
        )

    def notify_failure(self, now: float) -> bool:
        """Merge a failure that comes before the restart. In a real cluster, a task needs more than a
        millisecond to fail after the restart. In virtual time it may not, so this comparison is finer than
        Flink's."""
        if round(now * NS) <= self._next_restart_ms * NANOS_PER_MILLI:
            return False
        now_ms = _clock_ms(now)
        if now_ms - self._next_restart_ms >= _millis(self._config.reset_s):
            self._attempt = 0
        self._backoff_ms = self._draw()
        self._next_restart_ms = now_ms + self._backoff_ms
        self._attempt += 1
        return True

    def can_restart(self, now: float) -> bool:
        return self._attempt <= self._config.attempts_before_reset

    def backoff_s(self, now: float) -> float:
        """Return the remaining delay: a merged failure does not restart it."""
        if self._backoff_ms is None:
            raise LocalProtocolError("Please call notifyFailure first.")
        return max(0, self._next_restart_ms - _clock_ms(now)) / MILLIS

    def _draw(self) -> int:
        """Draw the jitter from the delay as it grew, and limit their sum. The delay of the 91st restart in a row no longer fits
        Java's long: Flink's sum overflows, and it starts again at the initial delay if the jitter is positive."""
        config = self._config
        initial, largest = _millis(config.initial_s), _millis(config.max_s)
        base = _grown(initial, config.multiplier, self._attempt)
        spread = min(int(base * config.jitter), MAX_LONG)
        jittered = base + (self._uniform(-spread, spread) if spread else 0)
        if jittered > MAX_LONG:
            jittered -= 2 * (MAX_LONG + 1)
        return max(initial, min(jittered, largest))


class EarlierExponentialDelay(RestartStrategy):
    """The strategy of 1.13 to 1.18. Each failure is an attempt and the number of attempts is unlimited. The
    delay grows from the previous one, and the jitter is drawn whenever the delay is read."""

    def __init__(self, config: ExponentialConfig, uniform: Callable[[int, int], int]) -> None:
        self._config = config
        self._uniform = uniform
        self._initial_ms, self._max_ms = _millis(config.initial_s), _millis(config.max_s)
        self._backoff_ms = self._initial_ms
        self._last_failure_ms: int | None = None

    @property
    def text(self) -> str:
        return self._config.text(f"currentBackoffMS={self._initial_ms}, lastFailureTimestamp=0")

    @property
    def option(self) -> str:
        return self._config.option_of(self._backoff_ms)

    def notify_failure(self, now: float) -> bool:
        now_ms, last_ms = _clock_ms(now), self._last_failure_ms
        self._last_failure_ms = now_ms
        if last_ms is None or now_ms - last_ms >= _millis(self._config.reset_s) + self._backoff_ms:
            self._backoff_ms = self._initial_ms
        else:
            self._backoff_ms = min(int(self._backoff_ms * self._config.multiplier), self._max_ms)
        return True

    def backoff_s(self, now: float) -> float:
        """Return the delay with a new jitter. It may be below the initial one, but not above the largest."""
        spread = int(self._backoff_ms * self._config.jitter)
        drawn = self._uniform(-spread, spread) if spread else 0
        return min(self._backoff_ms + drawn, self._max_ms) / MILLIS


def _grown(initial: int, multiplier: float, attempt: int) -> int:
    """Return initial × multiplier ** attempt as Java's long: cut to an integer, and at most MAX_LONG."""
    try:
        return min(int(initial * multiplier**attempt), MAX_LONG)
    except OverflowError:
        return MAX_LONG


def settings_in_effect(options: Options) -> Options:
    """Return the options that the strategy reads. While its type is not set, Flink ignores the options of every strategy."""
    return options if options.is_set(TYPE) else Options({}, flink_version=options.flink_version)


def ignored_settings(options: Options) -> Iterator[str]:
    """Yield the keys that are set for another strategy than `restart-strategy.type`, or without a type."""
    for prefix, kind in STRATEGIES.items():
        if not options.is_set(TYPE) or options.string(TYPE) != kind:
            yield from (key for key in options.as_map() if key.startswith(prefix) and key in BY_KEY)


def restart_strategy(options: Options, uniform: Callable[[int, int], int]) -> RestartStrategy:
    """Return the strategy of `restart-strategy.type`. Unset, it is the default of this Flink version with or without
    checkpoints, with the defaults of its options. Raises OptionRefused."""
    if not options.is_set(TYPE):
        if options.duration("execution.checkpointing.interval") <= 0:
            return NoRestart()
        if not has(options.flink_version, EXPONENTIAL_DELAY):
            return FixedDelay(MAX_INT, UNSET_DELAY_S)
        options = settings_in_effect(options)
    kind = options.string(TYPE)
    if kind == "none":
        return NoRestart()
    if kind == "fixed-delay":
        return FixedDelay(
            options.integer(FIXED_DELAY + "attempts"),
            _setting(options, FIXED_DELAY + "delay"),
        )
    if kind == "failure-rate":
        return FailureRate(
            options.integer(FAILURE_RATE + "max-failures-per-interval"),
            _setting(options, FAILURE_RATE + "failure-rate-interval"),
            _setting(options, FAILURE_RATE + "delay"),
        )
    require_option(
        has(options.flink_version, EXPONENTIAL_DELAY_EXISTS),
        "Unknown restart strategy exponential-delay.",
        TYPE,
        "use fixed-delay or failure-rate",
    )
    config = ExponentialConfig(
        initial_s=_setting(options, EXPONENTIAL + "initial-backoff"),
        max_s=_setting(options, EXPONENTIAL + "max-backoff"),
        multiplier=options.number(EXPONENTIAL + "backoff-multiplier"),
        reset_s=_setting(options, EXPONENTIAL + "reset-backoff-threshold"),
        jitter=options.number(EXPONENTIAL + "jitter-factor"),
        attempts_before_reset=options.integer(EXPONENTIAL + "attempts-before-reset-backoff"),
    )
    if not has(options.flink_version, MERGED_FAILURES):
        return EarlierExponentialDelay(config, uniform)
    return ExponentialDelay(config, uniform)


def restart_limit(options: Options) -> str:
    """Return the option that limits the restarts of a job, with its value. A job that fails terminally has reached it. Raises OptionRefused."""
    strategy = restart_strategy(options, lambda low, _: low)
    if isinstance(strategy, NoRestart):
        return f"{TYPE} = none"
    if isinstance(strategy, FixedDelay) and strategy.attempts == MAX_INT:
        return ""  # without a type and with checkpoints, until 1.18
    key = strategy.limit_option
    return f"{key} = {settings_in_effect(options).shown(key)}" if key else ""
