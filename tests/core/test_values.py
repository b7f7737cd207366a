"""Values of options as Flink 2.3.0 and 1.20.3 read them; both were asked for each expected value."""

import re

import pytest

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.limits import option_limit, reachability_limit, start_up_limit
from testbed_runtime.core.options import BY_KEY, Options
from testbed_runtime.core.values import (
    duration_text,
    java_int,
    java_long,
    missing_unit,
    parse_duration,
    parse_memory,
    truncated,
)

PAUSE = "execution.checkpointing.min-pause"
UNITS = (
    "does not match any of the recognized units: DAYS: (d | day | days), HOURS: (h | hour | hours), MINUTES: (min | m | minute | "
    "minutes), SECONDS: (s | sec | secs | second | seconds), MILLISECONDS: (ms | milli | millis | millisecond | milliseconds), "
    "MICROSECONDS: (µs | micro | micros | microsecond | microseconds), NANOSECONDS: (ns | nano | nanos | nanosecond | nanoseconds)"
)
ISO = "text does not start with a number, and is not a valid ISO-8601 duration format: "


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("123", 0.123), ("321 s", 321), ("5 MIN", 300), ("2m", 120), ("1 hour", 3600), ("3 days", 259200), ("7 secs", 7),
        ("3 µs", 3e-6), ("3 micros", 3e-6), ("4 nano", 4e-9), ("\t1\ns ", 1), ("9223372036854775807 ms", 9223372036854775.807),
        ("PT10S", 10), ("pt1.5s", 1.5), ("P1D", 86400), ("P1DT2H3M4.5S", 93784.5), ("PT1M-1S", 59), ("-PT-5S", 5), ("PT0S", 0),
    ],
)  # fmt: skip
def test_a_duration_is_read_as_flink_reads_it(text, seconds):
    """J-158: TimeUtilsTest.testParseDuration*, and ISO 8601 as in Java's Duration."""
    assert Options({PAUSE: text}, flink_version="2.3").duration(PAUSE) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "version", "problem"),
    [
        ("", "2.3", "argument is an empty- or whitespace-only string"),
        ("PT-1S", "2.3", "negative duration is not supported"),
        ("-5 s", "2.3", f"{ISO}-5 s"),
        ("PT", "2.3", f"{ISO}PT"),
        ("٣ s", "2.3", f"{ISO}٣ s"),
        ("3 us", "2.3", f"Time interval unit label 'us' {UNITS}"),
        ("1.5 s", "2.3", f"Time interval unit label '.5 s' {UNITS}"),
        ("7 mins", "1.20", f"Time interval unit label 'mins' {UNITS}"),
        ("99999999999999999999 d", "2.3", "The value '99999999999999999999' cannot be represented as Duration (numeric overflow)."),
        ("99999999999999999999 d", "1.20", "The value '99999999999999999999' cannot be re represented as 64bit number (numeric overflow)."),
        ("9223372036854775807 s", "2.3", "long overflow"),
        ("P-5116409531043275D", "2.3", f"{ISO}P-5116409531043275D"),
        ("PT9223372036854775807M", "2.3", f"{ISO}PT9223372036854775807M"),
        ("PT10S", "1.20", "text does not start with a number"),
    ],
)  # fmt: skip
def test_a_duration_that_flink_refuses_is_refused_with_its_text(text, version, problem):
    """J-159: TimeUtilsTest.testParseDurationInvalid and testParseDurationNumberOverflow; ISO 8601 is read from 2.0 on."""
    with pytest.raises(UserError) as refused:
        Options({PAUSE: text}, flink_version=version).duration(PAUSE)
    assert problem in refused.value.problem


def test_a_document_may_write_us():
    """Flink knows only the micro sign, which is not on every keyboard."""
    assert parse_duration("3 us") == parse_duration("3 µs") == pytest.approx(3e-6)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1234", 1234), ("1 bytes", 1), ("32kb", 32768), ("5 kibibytes", 5120), ("7 M", 7 << 20), ("2 gibibytes", 2 << 30),
        ("8388607tb", 8388607 << 40), ("9223372036854775807 b", 2**63 - 1),
    ],
)  # fmt: skip
def test_a_memory_size_is_read_as_flink_reads_it(text, size):
    """MemorySizeTest.testParse*."""
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (" ", "argument is an empty- or whitespace-only string"),
        ("kb", "text does not start with a number"),
        ("1 kib", "Memory size unit 'kib' does not match any of the recognized units: (b | bytes) / (k | kb | kibibytes) / (m | mb | mebibytes) / (g | gb | gibibytes) / (t | tb | tebibytes)"),
        ("9223372036854775808", "The value '9223372036854775808' cannot be re represented as 64bit number (numeric overflow)."),
        ("8388608t", "The value '8388608t' cannot be re represented as 64bit number of bytes (numeric overflow)."),
    ],
)  # fmt: skip
def test_a_memory_size_that_flink_refuses_is_refused_with_its_text(text, problem):
    """MemorySizeTest.testParseInvalid and testParseNumberOverflow."""
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_memory(text)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("restart-strategy.fixed-delay.attempts", "+3", 3),
        ("restart-strategy.fixed-delay.attempts", "2147483647", 2**31 - 1),
        ("restart-strategy.exponential-delay.jitter-factor", "1e-1", 0.1),
        ("restart-strategy.exponential-delay.jitter-factor", "0.5f", 0.5),
        ("restart-strategy.exponential-delay.jitter-factor", " 0.5\n", 0.5),
        ("pipeline.object-reuse", "TRUE", True),
        ("execution.checkpointing.mode", "at_least_once", "AT_LEAST_ONCE"),
        ("state.backend.type", "RocksDB", "rocksdb"),
    ],
)
def test_a_value_is_converted_as_flink_converts_it(key, text, value):
    """ConfigurationUtils.convertTo*: names of enums in any case."""
    assert BY_KEY[key].parse(text) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("restart-strategy.fixed-delay.attempts", "2147483648"),
        ("restart-strategy.fixed-delay.attempts", "1_0"),
        ("restart-strategy.fixed-delay.attempts", "1.0"),
        ("restart-strategy.exponential-delay.jitter-factor", "nan"),
        ("restart-strategy.exponential-delay.jitter-factor", "1_0"),
        ("restart-strategy.fixed-delay.attempts", "\u00a03"),
        ("restart-strategy.fixed-delay.attempts", "\t3 "),
        ("restart-strategy.exponential-delay.jitter-factor", "\u00a00.5"),
        ("pipeline.object-reuse", "\u2003true"),
        ("pipeline.object-reuse", " true "),
        ("execution.checkpointing.mode", "EXACTLY_ONCE "),
        ("pipeline.object-reuse", "yes"),
        ("execution.checkpointing.mode", "ONCE"),
    ],
)
def test_a_value_that_flink_cannot_convert_is_refused(key, text):
    """Python would read some of them. Flink trims durations, sizes and doubles only."""
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        BY_KEY[key].parse(text)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("restart-strategy.fixed-delay.attempts", "٣"),
        *(("restart-strategy.exponential-delay.jitter-factor", text) for text in ("NaN", "-Infinity", "0x1p-2", "1e999")),
    ],
)  # fmt: skip
def test_a_value_that_flink_reads_by_accident_is_refused_with_a_reason(key, text):
    """Integer.parseInt reads the digits of other scripts, Double.parseDouble reads NaN, infinities and hexadecimal."""
    with pytest.raises(ValueError, match="Flink reads"):
        BY_KEY[key].parse(text)


def test_a_warning_about_a_missing_unit_reads_the_digits_that_flink_reads():
    """Python takes a superscript for a digit, but cannot convert it."""
    assert missing_unit("²") == missing_unit("٣") == missing_unit("5 s") == missing_unit(" 0 ") == ""
    assert "write '500 s' or '500 ms'" in missing_unit("\t500 ")


def test_a_limit_is_shown_with_its_unit():
    """A bare number is in milliseconds, and a product of it and a count needs the unit."""
    bare = Options({"heartbeat.interval": "1000", "restart-strategy.fixed-delay.delay": " 5 "})
    assert reachability_limit(bare).value == "1000 ms × 2"
    assert option_limit(bare, "restart-strategy.fixed-delay.delay").value == "5 ms"
    assert reachability_limit(Options({"heartbeat.interval": "1 s"})).value == "1 s × 2"


def test_calls_that_never_count_set_no_limit():
    """A threshold of -1. With one call, the limit is an interval."""
    values = {"heartbeat.interval": "3 s", "heartbeat.rpc-failure-threshold": "1"}
    assert reachability_limit(Options(values)).seconds == 3.0
    off = reachability_limit(Options(values | {"heartbeat.rpc-failure-threshold": "-1"}))
    assert (off.value, off.seconds) == ("3 s × -1", None)


LARGEST_LONG = 9223372036854775807


@pytest.mark.parametrize(
    ("number", "as_int", "as_long"),
    [
        (0, 0, 0),
        (-1, -1, -1),
        (2147483647, 2147483647, 2147483647),
        (2147483648, -2147483648, 2147483648),
        (-2147483648, -2147483648, -2147483648),
        (-2147483649, 2147483647, -2147483649),
        (LARGEST_LONG, -1, LARGEST_LONG),
        (LARGEST_LONG + 1, 0, -LARGEST_LONG - 1),
        (-LARGEST_LONG - 2, -1, LARGEST_LONG),
    ],
)
def test_a_number_wraps_as_in_java(number: int, as_int: int, as_long: int):
    """`(int) x` and `(long) x` keep the lowest 32 and 64 bits."""
    assert (java_int(number), java_long(number)) == (as_int, as_long)


@pytest.mark.parametrize(("number", "result"), [(7, 3), (-7, -3), (1, 0), (-1, 0), (0, 0), (-8, -4)])
def test_a_division_goes_towards_zero_as_in_java(number: int, result: int):
    """Python's goes down."""
    assert truncated(number, 2) == result


@pytest.mark.parametrize(
    ("labels", "seconds"),
    [
        ("d day days", 86400), ("h hour hours", 3600), ("min m minute minutes", 60), ("s sec secs second seconds", 1),
        ("ms milli millis millisecond milliseconds", 1e-3), ("µs micro micros microsecond microseconds", 1e-6),
        ("ns nano nanos nanosecond nanoseconds", 1e-9),
    ],
)  # fmt: skip
def test_every_unit_of_a_duration_has_its_length(labels: str, seconds: float):
    """With all of its names, in both generations of the parser."""
    for label in labels.split():
        for version in ("1.20", "2.3"):
            for text in {f"3 {label}", f"3{label.upper() if label.isascii() else label}"}:
                assert parse_duration(text, version) == pytest.approx(3 * seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("labels", "size"),
    [
        ("b bytes", 1), ("k kb kibibytes", 2**10), ("m mb mebibytes", 2**20), ("g gb gibibytes", 2**30),
        ("t tb tebibytes", 2**40),
    ],
)  # fmt: skip
def test_every_unit_of_a_memory_size_has_its_size(labels: str, size: int):
    """With all of its names."""
    for label in labels.split():
        assert parse_memory(f" 3 {label.upper()}\t") == 3 * size


@pytest.mark.parametrize("version", ["1.20", "2.3"])
def test_the_longest_duration_has_as_many_milliseconds_as_a_long_holds(version: str):
    """One more is refused, in each version with its own text."""
    assert parse_duration(f"{LARGEST_LONG} ms", version) == LARGEST_LONG / 1000
    with pytest.raises(ValueError, match=r"numeric overflow|long overflow"):
        parse_duration(f"{LARGEST_LONG + 1} ms", version)
    assert parse_duration(f"{LARGEST_LONG} ns", version) == pytest.approx(LARGEST_LONG / 1e9)


def test_the_smallest_and_largest_integers_are_read():
    """Java's int. The next ones are refused."""
    key = BY_KEY["restart-strategy.fixed-delay.attempts"]
    assert (key.parse("-2147483648"), key.parse("2147483647"), key.parse("0")) == (-(2**31), 2**31 - 1, 0)
    for text in ("-2147483649", "2147483648", "", "-", "3 3"):
        with pytest.raises(ValueError, match="is not an integer of at most 32 bits"):
            key.parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("PT1H", 3600), ("PT-1H2M", None), ("P1DT-1H", 82800), ("PT0.000000001S", 1e-9), ("PT1.S", 1), ("-PT1S", None), ("PT-0.5S", None), ("+PT1S", 1), ("P-1DT25H", 3600), ("P", None), ("P1DT", None), ("PT1.0000000001S", None)],
)  # fmt: skip
def test_an_iso_duration_is_added_up_with_its_signs(text: str, seconds: float | None):
    """Duration.parse: each part has a sign, and the whole may be negated. A negative sum is refused."""
    if seconds is None:
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text, "2.3")
    else:
        assert parse_duration(text, "2.3") == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(10, "PT10S"), (1.5, "PT1.5S"), (0, "PT0S"), (60, "PT1M"), (3600, "PT1H"), (90061.25, "PT25H1M1.25S")],
)
def test_a_duration_is_written_as_java_writes_it(seconds: float, text: str):
    """Duration.toString leaves out what is zero, and has no days; before 2.0 Flink's errors have milliseconds."""
    assert duration_text(seconds, "2.0") == text
    assert duration_text(seconds, "1.20") == f"{seconds * 1000:.0f} ms"


def test_a_number_of_milliseconds_has_a_sign_where_flink_reads_a_long():
    """A duration, from 1.20 on, is never negative."""
    key = "resourcemanager.standalone.start-up-time"
    assert [Options({key: text}, flink_version="1.19").duration(key) for text in ("-1", "+5")] == [
        -0.001,
        0.005,
    ]
    for text in ("-1", "+5"):
        with pytest.raises(UserError, match="is not a duration"):
            Options({key: text}, flink_version="1.20").duration(key)


def test_a_negative_start_up_time_is_the_time_of_a_slot_request():
    """ConfigurationUtils.getStandaloneClusterStartupPeriodTime; -1 is the default until 1.19."""
    times = {"resourcemanager.standalone.start-up-time": "-1", "slot.request.timeout": "4000"}
    limit = start_up_limit(Options(times, flink_version="1.19"))
    assert (limit.option, limit.seconds) == ("slot.request.timeout", 4)
    limit = start_up_limit(
        Options({**times, "resourcemanager.standalone.start-up-time": "0"}, flink_version="1.19")
    )
    assert (limit.option, limit.seconds) == ("resourcemanager.standalone.start-up-time", 0)
