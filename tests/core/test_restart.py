"""Restart strategies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.errors import LocalProtocolError, OptionRefused
from testbed_runtime.core.job.limits import restart_delay
from testbed_runtime.core.job.restart import (
    EXPONENTIAL,
    FAILURE_RATE,
    FIXED_DELAY,
    EarlierExponentialDelay,
    ExponentialConfig,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    ignored_settings,
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
    assert (allowed, strategy.backoff_s(0)) == ([True, True, True, False], 1.0)


def test_times_are_compared_in_whole_milliseconds():
    """A failure exactly at the end of the delay is merged, whatever the sum of two floats is."""
    for start_ms in range(0, 5000, 7):
        strategy = ExponentialDelay(ExponentialConfig(0.1, 1.0, 1.5, 3600, 0.0, 13), middle)
        strategy.notify_failure(start_ms / 1000)
        assert not strategy.notify_failure((start_ms + 100) / 1000)
        assert strategy.notify_failure((start_ms + 101) / 1000)


@pytest.mark.parametrize("start_s", [0.0, 0.0001, 0.0006, 0.0009999])
def test_a_failure_within_a_millisecond_after_the_restart_is_not_merged(start_s: float):
    """In virtual time a restarted task may fail that soon. In Flink, its next delay is twice as long."""
    strategy = ExponentialDelay(ExponentialConfig(1.0, 60.0, 2.0, 3600, 0.0, 13), middle)
    now, delays = start_s, []
    for _ in range(3):
        assert strategy.notify_failure(now)
        delays.append(strategy.backoff_s(now))
        now += delays[-1] + 0.0002
    assert delays == pytest.approx([1.0, 2.0, 4.0], abs=0.001)


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
        *((kind, NoRestart) for kind in ("none", "off", "disable", "None")),
        *((kind, FixedDelay) for kind in ("fixed-delay", "fixeddelay", "Fixed-Delay")),
        *((kind, FailureRate) for kind in ("failure-rate", "failurerate")),
        *((kind, ExponentialDelay) for kind in ("exponential-delay", "exponentialdelay", "EXPONENTIALDELAY")),
    ],
)
def test_the_option_chooses_the_strategy(kind, expected):
    """J-156: all spellings of RestartStrategyType, in any case."""
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
    """J-157: exponential from 1.19 on, fixed without a limit before, none without checkpoints."""
    options = Options({"execution.checkpointing.interval": interval}, flink_version=version)
    made = restart_strategy(options, middle)
    assert made == expected if isinstance(expected, FixedDelay) else isinstance(made, expected)


def test_an_unset_strategy_has_the_defaults_of_its_options():
    """J-157: RestartBackoffTimeStrategyFactoryLoader.getDefaultRestartStrategyFactory reads none of them."""
    options = {"execution.checkpointing.interval": "1 s", EXPONENTIAL + "initial-backoff": "7 s"}
    unset = restart_strategy(Options(options), middle)
    named = restart_strategy(Options({"restart-strategy": "exponential-delay"} | options), middle)
    assert ("initialBackoffMS=1000," in unset.text, "initialBackoffMS=7000," in named.text) == (True, True)


@pytest.mark.parametrize(
    ("kind", "key", "value", "message"),
    [
        ("fixed-delay", FIXED_DELAY + "attempts", "-1", "Maximum number of restart attempts must be at least 0."),
        ("failure-rate", FAILURE_RATE + "max-failures-per-interval", "0", "Maximum number of restart attempts per time unit must be greater than 0."),
        ("failure-rate", FAILURE_RATE + "failure-rate-interval", "0 ms", "Failures interval must be greater than 0 ms."),
        ("exponential-delay", EXPONENTIAL + "initial-backoff", "0 s", "Initial backoff must be at least 1."),
        ("exponential-delay", EXPONENTIAL + "max-backoff", "0 s", "Maximum backoff must be at least 1."),
        ("exponential-delay", EXPONENTIAL + "max-backoff", "999 ms", "Initial backoff cannot be higher than maximum backoff."),
        ("exponential-delay", EXPONENTIAL + "backoff-multiplier", "1", "Backoff multiplier must be greater than 1."),
        ("exponential-delay", EXPONENTIAL + "reset-backoff-threshold", "0", "Threshold duration for exponential backoff reset must be at least 1."),
        ("exponential-delay", EXPONENTIAL + "jitter-factor", "1.1", "Jitter factor must be >= 0 and <= 1."),
        ("exponential-delay", EXPONENTIAL + "jitter-factor", "-0.1", "Jitter factor must be >= 0 and <= 1."),
        ("exponential-delay", EXPONENTIAL + "attempts-before-reset-backoff", "0", "The attemptsBeforeResetBackoff must be at least 1."),
    ],
)  # fmt: skip
def test_what_a_strategy_refuses_names_the_option(kind, key, value, message):
    """The checkArgument calls of the constructors; another strategy does not read the option."""
    with pytest.raises(OptionRefused) as refused:
        restart_strategy(Options({"restart-strategy.type": kind, key: value}), middle)
    found = refused.value
    assert (found.class_name, found.message, found.key) == ("IllegalArgumentException", message, key)
    assert isinstance(
        restart_strategy(Options({"restart-strategy.type": "none", key: value}), middle), NoRestart
    )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda delay: FixedDelay(1, delay), "Backoff time between restart attempts must be at least 0 ms"),
        (lambda delay: FailureRate(1, 60, delay), "Backoff time must be at least 0 ms"),
    ],
)
def test_a_negative_delay_is_refused_and_none_is_allowed(make, text):
    """Flink's constructors; options cannot have such a value."""
    assert make(0.0).backoff_s(0) == 0
    with pytest.raises(OptionRefused, match=text) as refused:
        make(-0.001)
    assert refused.value.key.endswith(".delay")


def test_fixed_delay_without_attempts_never_restarts():
    """0 attempts are allowed."""
    strategy = FixedDelay(0, 1.0)
    strategy.notify_failure(0)
    assert not strategy.can_restart(0)


def test_fixed_delay_restarts_once_after_a_second_by_default():
    """Flink's defaults."""
    assert restart_strategy(Options({"restart-strategy.type": "fixed-delay"}), middle) == FixedDelay(1, 1.0)


def earlier(uniform=middle, **values):
    """Return the strategy of 1.18 with these options."""
    options = {"restart-strategy": "exponential-delay"}
    options |= {EXPONENTIAL + key.replace("_", "-"): value for key, value in values.items()}
    made = restart_strategy(Options(options, flink_version="1.18"), uniform)
    assert isinstance(made, EarlierExponentialDelay)
    return made


def test_J_07_until_1_18_exponential_delay_restarts_without_end_and_each_failure_counts():
    """Failures 1 ms apart, from a JobManager that has just started: 1, 2, 4 … 300 s, none merged, none refused."""
    strategy, delays = earlier(jitter_factor="0"), []
    for count in range(12):
        assert strategy.notify_failure(count / 1000)
        assert strategy.can_restart(count / 1000)
        delays.append(strategy.backoff_s(count / 1000 + 0.5))
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


def test_J_07_until_1_18_each_delay_is_cut_to_milliseconds_and_grows_from_that():
    """3 ms × 1.5 is 4 ms, then 6 and 9: 1.19 computes 3 × 1.5² = 6.75 and 3 × 1.5³ = 10.1 from the first one."""
    options = {"initial_backoff": "3 ms", "backoff_multiplier": "1.5", "jitter_factor": "0"}
    strategy, delays = earlier(**options), []
    for count in range(4):
        strategy.notify_failure(count)
        delays.append(strategy.backoff_s(count))
    assert delays == [0.003, 0.004, 0.006, 0.009]


def test_J_07_until_1_18_the_delay_is_reset_by_quiet_after_the_last_delay():
    """Threshold 10 s: quiet of 10 s + 2 s resets a delay of 2 s, one millisecond less does not."""
    for quiet_s, expected_s in ((12.0, 1.0), (11.999, 4.0)):
        strategy = earlier(jitter_factor="0", reset_backoff_threshold="10 s")
        strategy.notify_failure(5.0)
        strategy.notify_failure(6.0)
        strategy.notify_failure(6.0 + quiet_s)
        assert strategy.backoff_s(6.0 + quiet_s) == expected_s


def test_J_07_until_1_18_a_jitter_may_shorten_the_first_delay_but_lengthens_none_above_the_maximum():
    """10 %: 0.9 s instead of 1 s; the largest of 300 s stays 300 s. It is drawn anew at each reading."""
    draws = iter([-100, 100, 30_000])
    strategy = earlier(lambda low, high: next(draws))
    strategy.notify_failure(0)
    assert (strategy.backoff_s(0), strategy.backoff_s(0)) == (0.9, 1.1)
    for _ in range(10):
        strategy.notify_failure(0)
    assert (strategy.backoff_s(0), strategy.option) == (300.0, EXPONENTIAL + "max-backoff")


@pytest.mark.parametrize("build", [ExponentialDelay, EarlierExponentialDelay])
def test_a_maximum_that_equals_the_initial_delay_decides_none(
    build: type[ExponentialDelay | EarlierExponentialDelay],
):
    """It cannot be lower: only a lower initial delay shortens the restart."""
    strategy = build(ExponentialConfig(3.0, 3.0, 2.0, 3600, 0.0, 13), middle)
    strategy.notify_failure(0)
    assert (strategy.backoff_s(0), strategy.option) == (3.0, EXPONENTIAL + "initial-backoff")


def test_J_07_in_1_12_there_is_no_exponential_delay():
    """RestartBackoffTimeStrategyFactoryLoader of 1.12 does not know the name."""
    options = Options({"restart-strategy": "exponential-delay"}, flink_version="1.12")
    with pytest.raises(OptionRefused, match="Unknown restart strategy exponential-delay"):
        restart_strategy(options, middle)


@pytest.mark.parametrize(
    ("seconds", "value"),
    [(1.0, "1 s"), (1.001, "1 s, now 1.001 s"), (0.999, "1 s, now 0.999 s"), (2.0, "1 s, now 2 s")],
)
def test_a_delay_that_differs_from_its_option_by_a_millisecond_is_recorded_as_changed(
    seconds: float, value: str
):
    """Its budget is then not the option's."""
    key = "restart-strategy.fixed-delay.delay"
    options = Options({key: "1 s", "restart-strategy.type": "fixed-delay"})
    assert restart_delay(options, key, seconds).value == value


def test_a_delay_that_flink_ignores_is_not_the_limit_of_a_restart():
    """Without a type, the default strategy has the defaults of its options (RestartBackoffTimeStrategyFactoryLoader)."""
    key = "restart-strategy.fixed-delay.delay"
    options = Options({key: "7 s", "execution.checkpointing.interval": "1 s"}, flink_version="1.17")
    delay_s = restart_strategy(options, middle).backoff_s(0)
    assert (delay_s, restart_delay(options, key, delay_s).value) == (1.0, "1 s")
    assert list(ignored_settings(options)) == [key]
    typed = options.with_values({"restart-strategy.type": "fixed-delay"})
    assert list(ignored_settings(typed)) == []
    assert list(ignored_settings(typed.with_values({"restart-strategy.type": "failure-rate"}))) == [key]


@pytest.mark.parametrize(
    "smallest",
    [
        {"initial_s": 0.001}, {"initial_s": 0.001, "max_s": 0.001}, {"initial_s": 60.0}, {"multiplier": 1.0001},
        {"reset_s": 0.001}, {"jitter": 0.0}, {"jitter": 1.0}, {"attempts_before_reset": 1},
    ],
)  # fmt: skip
def test_the_smallest_and_the_largest_values_of_the_exponential_delay_are_accepted(smallest):
    """Flink's constructor compares whole milliseconds."""
    config = ExponentialConfig(**smallest)
    assert all(getattr(config, name) == value for name, value in smallest.items())


def test_the_option_of_an_exponential_delay_is_the_maximum_once_it_is_reached():
    """Before the first failure it is the initial one."""
    config = ExponentialConfig(initial_s=1, max_s=4, multiplier=2, jitter=0)
    strategy, found = ExponentialDelay(config, middle), []
    for now in (None, 0, 2, 5, 10):
        if now is not None:
            assert strategy.notify_failure(now) is True
            assert strategy.notify_failure(now) is False
        found.append(strategy.option.removeprefix("restart-strategy.exponential-delay."))
    assert found == ["initial-backoff", "initial-backoff", "initial-backoff", "max-backoff", "max-backoff"]


def test_a_delay_that_no_longer_fits_a_float_is_the_maximum():
    """After ten thousand restarts in a row."""
    strategy = ExponentialDelay(ExponentialConfig(jitter=0, max_s=60), middle)
    for attempt in range(10_000):
        strategy.notify_failure(61.0 * attempt)
    assert strategy.backoff_s(61.0 * 9_999) == 60.0
    assert NoRestart().can_restart(0.0) is False


@pytest.mark.parametrize(
    ("after_s", "restarts"), [(59.999, False), (60.0, False), (60.0009, False), (60.001, True)]
)
def test_failures_that_are_exactly_the_interval_apart_count_together(after_s: float, restarts: bool):
    """FailureRateRestartBackoffTimeStrategy: the oldest of them must be more than the interval ago. The clock has whole milliseconds."""
    strategy = FailureRate(1, 60, 1)
    for now in (1.0, 1.0 + after_s):
        strategy.notify_failure(now)
    assert strategy.can_restart(1.0 + after_s) is restarts


@pytest.mark.parametrize(
    ("written", "delay_s"), [("1999 µs", 0.001), ("999999 ns", 0.0), ("1001 ms", 1.001), ("300 ms", 0.3)]
)
def test_a_duration_is_cut_to_whole_milliseconds(written: str, delay_s: float):
    """Flink's strategies read Duration.toMillis. A delay of less than a millisecond is none."""
    for prefix, kind in ((FIXED_DELAY, "fixed-delay"), (FAILURE_RATE, "failure-rate")):
        options = Options({"restart-strategy.type": kind, f"{prefix}delay": written})
        assert restart_strategy(options, middle).backoff_s(0) == delay_s


@pytest.mark.parametrize(
    ("kind", "key", "message"),
    [
        ("failure-rate", FAILURE_RATE + "failure-rate-interval", "Failures interval must be greater than 0 ms."),
        ("exponential-delay", EXPONENTIAL + "initial-backoff", "Initial backoff must be at least 1."),
        ("exponential-delay", EXPONENTIAL + "max-backoff", "Maximum backoff must be at least 1."),
        (
            "exponential-delay",
            EXPONENTIAL + "reset-backoff-threshold",
            "Threshold duration for exponential backoff reset must be at least 1.",
        ),
    ],
)  # fmt: skip
def test_a_strategy_refuses_less_than_a_millisecond_as_none(kind: str, key: str, message: str):
    """999 µs are 0 ms."""
    with pytest.raises(OptionRefused) as refused:
        restart_strategy(Options({"restart-strategy.type": kind, key: "999 µs"}), middle)
    assert refused.value.message == message


@pytest.mark.parametrize("strategy", [ExponentialDelay, EarlierExponentialDelay])
def test_a_small_jitter_is_shown_as_java_shows_a_double(strategy) -> None:
    """With an exponent, in the text that suppresses a recovery."""
    assert "jitterFactor=5.0E-4, " in strategy(ExponentialConfig(jitter=0.0005), max).text


def test_a_fixed_delay_has_to_be_given() -> None:
    """A delay of 0 s is not assumed."""
    with pytest.raises(TypeError, match="delay_s"):
        FixedDelay(3)  # type: ignore[call-arg]
