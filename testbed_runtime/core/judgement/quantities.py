"""Measured values as every reader sees them: in answers, verdicts, reports and comparisons, in the terminal and in files."""

from __future__ import annotations

import math
from collections.abc import Iterator

DASH = "–"
"""Shown if there is no value."""
DIGITS = 3
"""Significant digits of a measured value. Digits before the decimal point are never rounded away."""
MOST_DIGITS = 15
"""A value beside its limit gets more digits, up to this number, until it agrees with the judgement."""
LONG_S = 3_600
"""Longer durations are shown in minutes."""


def counted(count: int, word: str) -> str:
    """Return a number with its noun: `1 trial`, `2 trials`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def seconds(value: float | None, digits: int = DIGITS) -> str:
    """Format a duration: `4.62 s`, `380 ms`, `1.50 ms`, `45.0 µs`, `754 s`, `75.4 min`. A dash for None."""
    if value is None or not math.isfinite(value):
        return DASH
    return _duration(value, digits, in_minutes=abs(value) >= LONG_S)


def _duration(value: float, digits: int, *, in_minutes: bool) -> str:
    if value == 0:
        return "0 s"
    if in_minutes:
        return f"{number(value / 60, digits)} min"
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if abs(float(f"{value * scale:.{digits - 1}e}")) < 1_000:
            return f"{number(value * scale, digits)} {unit}"
    return f"{number(value, digits)} s"


def number(value: float, digits: int = DIGITS) -> str:
    """Format a number with this many significant digits and thousands separators: `4.60`, `45.2`, `1,234`."""
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def count(value: float | None, digits: int = DIGITS) -> str:
    """Format a number of things, or a mean of such numbers: `19,870`, `4.5`, `0.667`. A dash for None."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == int(value):
        return f"{int(value):,}"
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_value(value: float, unit: str, digits: int = DIGITS) -> str:
    """Format a value with its unit: `4.62 s`, `95.0 %`, `19,870 records/s`, `1,024 bytes`, `3`."""
    if not math.isfinite(value):
        return f"{value:g}"
    if unit == "s":
        return seconds(value, digits)
    decimals = digits - DIGITS
    if unit == "ratio":
        return f"{value * 100:,.{decimals + 1}f} %"
    if unit in ("records/s", "bytes"):
        return f"{value:,.{decimals}f} {unit}"
    return count(value, digits)


def apart(first: float, second: float) -> tuple[str, str]:
    """Format two durations with enough digits to show that they differ, if they do. Both are in minutes, or
    neither."""
    long = min(abs(first), abs(second)) >= LONG_S
    found = [
        (_duration(first, digits, in_minutes=long), _duration(second, digits, in_minutes=long))
        for digits in range(DIGITS, MOST_DIGITS + 1)
    ]
    return next((pair for pair in found if pair[0] != pair[1]), found[0])


def more_exact(value: float, unit: str) -> Iterator[str]:
    """Yield the value with more and more digits."""
    for digits in range(DIGITS, MOST_DIGITS + 1):
        yield format_value(value, unit, digits)
