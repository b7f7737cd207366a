"""Plain words for the short names in the tables, and numbers formatted for readers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from testbed_runtime.core.judgement.quantities import DASH, count, seconds

TRIAL_PHASES: dict[str, tuple[str, str]] = {
    "deploy": ("Deploy", "until all tasks are running"),
    "warmUp": ("Warm-up", "not judged"),
    "baseline": ("Baseline", "before the fault"),
    "fault": ("Fault", "while the fault lasts"),
    "observation": ("Observation", "after the fault"),
    "drain": ("Drain", "stop with a final checkpoint"),
    "ended": ("Job ended", "it failed or was cancelled, so there was nothing to drain"),
}

VERDICT_MEANING = {
    "Pass": "Every expectation passed.",
    "Fail": "At least one expectation failed.",
    "Inconclusive": "The run does not provide enough evidence for a verdict.",
    "Error": "The run could not be completed.",
}
CODE = re.compile(r"`([^`]+)`")
"""A name in a text: the pages set it as code."""


def named(fault: str) -> str:
    """Set the name of a fault apart from the words around it."""
    return f"`{fault}`"


def seconds_short(value: float, largest: float = 0.0) -> str:
    """Format a round duration, for axes and requested values: `5 s`, `200 ms`, `50 µs`. `largest`: of the same axis, whose labels have one
    unit."""
    size = max(abs(value), largest)
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if size * scale >= 0.9995 or size == 0:
            return f"{value * scale:.6g} {unit}"
    return f"{value * 1e9:.6g} ns"


def short(value: float) -> str:
    """Format an axis label: `20k`, `1.5M`, `0.5`."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def percent(share: float | None) -> str:
    return DASH if share is None or not math.isfinite(share) else f"{share * 100:.0f} %"


def times(ratio: float) -> str:
    """Format a ratio: `3.2 times`, `45 times`."""
    return f"{ratio:.1f} times" if ratio < 9.95 else f"{ratio:,.0f} times"


def spaced(name: str) -> str:
    """Turn `cpu_count` or `cpuCount` into `Cpu count`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_-]+", " ", name).strip()
    return words[:1].upper() + words[1:]


def value_of(name: str, value: Any) -> str:
    """Format a parameter's value. Names that end in `_s`, `_ns` or `_bytes` carry the unit."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: DASH}[value]
    if isinstance(value, int | float):
        if name.endswith("_ns"):
            return seconds(value / 1e9)
        if name.endswith("_s") and not name.endswith("_per_s"):
            return seconds(float(value))
        return binary(value) if name.endswith("_bytes") else count(float(value))
    if isinstance(value, Mapping):
        return mapping(value)
    if isinstance(value, list | tuple):
        return ", ".join(value_of(name, item) for item in value)
    return str(value)


def binary(size: float) -> str:
    """Format a size: `23.3 GiB`, `32 KiB`, `512 bytes`."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.3g} {unit}"
    return f"{size:g} bytes"


def mapping(values: Mapping[str, Any]) -> str:
    """Format parameters: `latency 100 ms, jitter 0 s`, or a dash if there are none."""
    given = {str(name): value for name, value in values.items() if value not in ("", None)}
    names = {name: spaced(re.sub(r"_(ns|s|bytes)$", "", name)).lower() for name in given}
    parts = [f"{names[name]} {value_of(name, value)}" for name, value in given.items()]
    return ", ".join(parts) or DASH


def moment(iso: str) -> str:
    """Format an ISO 8601 time in UTC as `2026-11-21 07:49:00 UTC`. Any other text is returned unchanged."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)", iso)
    return f"{found[1]} {found[2]} UTC" if found else iso


def shortened(text: str, characters: int) -> str:
    """Cut a text to this many characters."""
    return text if len(text) <= characters else text[: characters - 1] + "…"
