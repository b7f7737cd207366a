"""Values of options as Flink reads them: TimeUtils.parseDuration, MemorySize.parse and ConfigurationUtils.

The errors are ValueErrors with the value, Flink's text and the syntax to use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from testbed_runtime.core.versions import ISO_DURATIONS, LATEST, has

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1


def java_int(number: int) -> int:
    """Return a number as Java's int, which wraps."""
    return (number + MAX_INT + 1) % (2 * (MAX_INT + 1)) - MAX_INT - 1


def java_long(number: int) -> int:
    """Return a number as Java's long, which wraps."""
    return (number + MAX_LONG + 1) % (2 * (MAX_LONG + 1)) - MAX_LONG - 1


def saturated_long(number: float) -> int:
    """Cast a double to Java's long: NaN is 0, and a number that does not fit is the nearest long."""
    if math.isnan(number):
        return 0
    if abs(number) >= MAX_LONG:
        return MAX_LONG if number > 0 else -MAX_LONG - 1
    return int(number)


def java_double(number: float) -> str:
    """Format a number as Java's Double.toString: with an exponent below 0.001, and from 10⁷ on."""
    digits = repr(number)
    if number == 0 or not math.isfinite(number) or 0.001 <= abs(number) < 10**7:
        return digits
    sign, figures, exponent = Decimal(digits).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, figures)).rstrip("0")
    return f"{'-' * sign}{text[0]}.{text[1:] or '0'}E{exponent + len(figures) - 1}"


def truncated(number: int, divisor: int) -> int:
    """Divide as Java does: towards zero. The divisor is positive."""
    return number // divisor if number >= 0 else -(-number // divisor)


_BLANK = "".join(map(chr, range(33)))
"""The characters that Java's String.trim removes."""
_NUMBER_AND_UNIT = re.compile(r"([0-9]*)(.*)", re.DOTALL)
NS = 10**9
"""Nanoseconds per second."""
MILLIS = 1000
"""Milliseconds per second."""
_DURATION_UNITS = (
    ("DAYS", ("d", "day", "days"), 86400 * NS),
    ("HOURS", ("h", "hour", "hours"), 3600 * NS),
    ("MINUTES", ("min", "m", "minute", "minutes"), 60 * NS),
    ("SECONDS", ("s", "sec", "secs", "second", "seconds"), NS),
    ("MILLISECONDS", ("ms", "milli", "millis", "millisecond", "milliseconds"), 10**6),
    ("MICROSECONDS", ("µs", "micro", "micros", "microsecond", "microseconds"), 1000),
    ("NANOSECONDS", ("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1),
)
_NANOS = {label: nanos for _, labels, nanos in _DURATION_UNITS for label in labels}
DURATION_LABELS = (*_NANOS, "us")
"""The units of a duration in a document."""
_ALL_DURATION_UNITS = ", ".join(f"{name}: ({' | '.join(labels)})" for name, labels, _ in _DURATION_UNITS)
MB = 1024**2
_MEMORY_UNITS = (
    (("b", "bytes"), 1),
    (("k", "kb", "kibibytes"), 1024),
    (("m", "mb", "mebibytes"), MB),
    (("g", "gb", "gibibytes"), 1024**3),
    (("t", "tb", "tebibytes"), 1024**4),
)
_BYTES = {label: factor for labels, factor in _MEMORY_UNITS for label in labels}
_ALL_MEMORY_UNITS = " / ".join(f"({' | '.join(labels)})" for labels, _ in _MEMORY_UNITS)
_ISO = re.compile(
    r"([-+]?)P(?=.)(?:([-+]?\d+)D)?(?:T(?=.)(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?)(\d+)(?:[.,](\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
"""The syntax of Java's Duration.parse."""
_INTEGER = re.compile(r"[-+]?[0-9]+")
SIGNED = re.compile(r"[-+][0-9]{1,18}")
"""A long with a sign, which a duration cannot have."""
_DECIMAL = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?)[fd]?", re.IGNORECASE)

_ODD_DOUBLE = re.compile(
    r"[-+]?(?:NaN|Infinity|0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][-+]?[0-9]+[fFdD]?)"
)
"""The texts that Java's Double.parseDouble reads besides decimal numbers."""
_OTHER_DIGITS = re.compile(r"[-+]?\d+")


def parse_duration(text: str, flink_version: str = "") -> float:
    """Parse a duration into seconds: an integer and a unit (default: milliseconds), or ISO 8601 from 2.0 on. Without a version it
    is one of a document, in which `us` is a unit too. Raises ValueError."""
    number, unit = _split(text)
    modern = has(flink_version or LATEST, ISO_DURATIONS)
    if unit == "us" and not flink_version:
        unit = "µs"
    problem, nanos = "", 0
    if not text.strip(_BLANK):
        problem = "argument is an empty- or whitespace-only string"
    elif not number and modern:
        return _iso_duration(text)
    elif not number:
        problem = "text does not start with a number"
    elif not modern and int(number) > MAX_LONG:
        problem = f"The value '{number}' cannot be re represented as 64bit number (numeric overflow)."
    elif unit and unit not in _NANOS:
        problem = f"Time interval unit label '{unit}' does not match any of the recognized units: {_ALL_DURATION_UNITS}"
    else:
        nanos = int(number) * _NANOS[unit or "ms"]
        if modern and nanos // NS > MAX_LONG:
            problem = f"The value '{number}' cannot be represented as Duration (numeric overflow)."
    return _seconds(text, nanos, problem)


def _iso_duration(text: str) -> float:
    trimmed = text.strip(_BLANK)
    found = _ISO.fullmatch(trimmed)
    not_iso = f"text does not start with a number, and is not a valid ISO-8601 duration format: {trimmed}"
    if found is None:
        return _seconds(text, 0, not_iso)
    sign, days, hours, minutes, second_sign, seconds, fraction = found.groups()
    part = int(f"{second_sign or ''}1") * (int(seconds or 0) * NS + int((fraction or "").ljust(9, "0")))
    whole = (int(days or 0) * 86400, int(hours or 0) * 3600, int(minutes or 0) * 60)
    nanos = sum(whole) * NS + part
    if max(map(abs, (*whole, nanos // NS))) > MAX_LONG:
        return _seconds(text, 0, not_iso)
    nanos = -nanos if sign == "-" else nanos
    return _seconds(text, nanos, "negative duration is not supported" if nanos < 0 else "")


def duration_text(seconds: float, flink_version: str) -> str:
    """Return a duration as Flink's errors show it: Java's Duration.toString from 2.0 on, before that Time.toString."""
    millis = round(seconds * 1000)
    if not has(flink_version, ISO_DURATIONS):
        return f"{millis} ms"
    minutes, rest = divmod(millis, 60_000)
    parts = ((minutes // 60, "H"), (minutes % 60, "M"), (rest / 1000, "S"))
    return "PT" + ("".join(f"{number:g}{unit}" for number, unit in parts if number) or "0S")


def _seconds(text: str, nanos: int, problem: str) -> float:
    """Return nanoseconds as seconds. Raise ValueError with the problem, or if the milliseconds are more than Java's long."""
    if not problem and nanos // 10**6 > MAX_LONG:
        problem = "long overflow"
    if problem:
        raise ValueError(
            f"{text!r} is not a duration: write an integer and a unit, as in '500 ms' or '10 s' ({problem})"
        )
    return nanos / NS


def parse_memory(text: str) -> int:
    """Parse a memory size into bytes: an integer and a unit (default: bytes). Raises ValueError."""
    number, unit = _split(text)
    size = int(number or 0) * _BYTES.get(unit, 1)
    if not text.strip(_BLANK):
        problem = "argument is an empty- or whitespace-only string"
    elif not number:
        problem = "text does not start with a number"
    elif int(number) > MAX_LONG:
        problem = f"The value '{number}' cannot be re represented as 64bit number (numeric overflow)."
    elif unit and unit not in _BYTES:
        problem = f"Memory size unit '{unit}' does not match any of the recognized units: {_ALL_MEMORY_UNITS}"
    elif size > MAX_LONG:
        problem = f"The value '{text}' cannot be re represented as 64bit number of bytes (numeric overflow)."
    else:
        return size
    raise ValueError(
        f"{text!r} is not a memory size: write an integer and a unit, as in '32 kb' or '64 mb' ({problem})"
    )


def _split(text: str) -> tuple[str, str]:
    """Return the digits at the beginning of a text, and the unit in lower case."""
    found = _NUMBER_AND_UNIT.fullmatch(text.strip(_BLANK))
    return (found[1], found[2].strip(_BLANK).lower()) if found else ("", "")


MILLIS_FROM = 1000
"""A duration without a unit that is at least this large was meant in milliseconds: as seconds, it would be longer than a quarter of an hour."""


def is_bare(text: str) -> bool:
    """Whether a duration is a number without a unit."""
    return bool(_split(text)[0]) and not _split(text)[1]


def missing_unit(text: str) -> str:
    """Return a warning if a duration is a bare number, which Flink reads as milliseconds. Empty otherwise, and for 0."""
    number = text.strip(_BLANK)
    if not is_bare(text) or int(number) == 0:
        return ""
    written = " or ".join(f"'{text}'" for text in with_units(int(number)))
    return f"{number!r} has no unit, so it is {number} ms (write {written})"


def with_units(number: int) -> tuple[str, ...]:
    """Return what a duration without a unit may have meant. Large numbers are hardly seconds."""
    return (f"{number} ms",) if number >= MILLIS_FROM else (f"{number} s", f"{number} ms")


def parse_bool(text: str) -> bool:
    found = text.lower()
    if found in ("true", "false"):
        return found == "true"
    raise ValueError(f"{text!r} is not a boolean: write 'true' or 'false'{_padded(text)}")


def _parse_int(text: str) -> int:
    if not _INTEGER.fullmatch(text) or not -MAX_INT - 1 <= int(text) <= MAX_INT:
        digits = ": write the digits 0 to 9, although Flink reads others"
        other = digits if _OTHER_DIGITS.fullmatch(text) else _padded(text)
        raise ValueError(f"{text!r} is not an integer of at most 32 bits, such as '3'{other}")
    return int(text)


def _padded(text: str) -> str:
    """Return a hint for a value that Flink does not trim."""
    return " (without spaces around it)" if text != text.strip(_BLANK) else ""


def _parse_float(text: str) -> float:
    """Read a double in decimal digits. Java also reads NaN, infinities and hexadecimal, which are refused."""
    trimmed = text.strip(_BLANK)
    found = _DECIMAL.fullmatch(trimmed)
    if found is not None and math.isfinite(float(found[1])):
        return float(found[1])
    odd = found is not None or _ODD_DOUBLE.fullmatch(trimmed)
    why = ": Flink reads it, but as an option it must be finite and decimal" if odd else ""
    raise ValueError(f"{text!r} is not a number such as '0.5'{why}")


PARSERS: dict[str, Callable[[str], Any]] = {
    "duration": parse_duration,
    "memory": parse_memory,
    "boolean": parse_bool,
    "integer": _parse_int,
    "double": _parse_float,
    "string": str,
}
