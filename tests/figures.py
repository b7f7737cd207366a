"""Figures in a text, and those that a command prints or records, side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TOLERANCE = 0.05
"""Share by which a figure in a text may differ from what the command shows, beyond its rounding."""
_SCALES = {"µs": 1e-6, "ms": 1e-3, "%": 0.01, "million": 1e6, "M": 1e6}
_NUMBER = r"(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?: ?(µs|ms|s|%|million|M))?(?!\w)"


def _scaled(number: str, unit: str | None) -> tuple[float, float]:
    """Return a number in seconds, shares or units, and the half of its last digit."""
    scale, digits = _SCALES.get(unit or "", 1.0), number.replace(",", "")
    return float(digits) * scale, 0.5 * scale / 10 ** len(digits.partition(".")[2])


def figures(pattern: str, text: str) -> list[tuple[float, float]]:
    """Return the numbers that are in `text` where the pattern has `#`, each with its rounding. Raises ValueError if the text has
    no such passage."""
    found = re.search(_NUMBER.join(re.escape(part) for part in pattern.split("#")), text)
    if found is None:
        raise ValueError(f"no {pattern!r} in {text!r}")
    groups = found.groups()
    return [_scaled(number, unit) for number, unit in zip(groups[::2], groups[1::2], strict=True)]


def recorded(address: str, rows: Sequence[dict[str, Any]]) -> float:
    """Return the value of a metric in metrics.json: `<trial> <metric> [<phase>] [p<quantile>]`."""
    trial, metric, *words = address.split()
    quantile = next((float(w[1:]) / 100 for w in words if re.fullmatch(r"p[\d.]+", w)), None)
    phase = next((w for w in words if not re.fullmatch(r"p[\d.]+", w)), "")
    wanted = (trial, metric, phase, quantile)
    value = next(r["value"] for r in rows if (r["trial"], r["metric"], r["phase"], r["quantile"]) == wanted)
    return float(value)


def differences(
    text: str, passage: str, shown: str | Sequence[str], output: str, folder: Path | None
) -> Iterator[str]:
    """Yield each figure of a passage that is not what a command shows: in its output, for a pattern with `#`, or as a metric of
    the run in `folder`. Both may end with ` / <divisor>`, which brings the value to the unit of the text."""
    stated = figures(passage, " ".join(text.split()))
    printed = " ".join(output.split())
    rows = json.loads((folder / "metrics.json").read_text(encoding="utf-8")) if folder else []
    measured: list[float] = []
    for one in [shown] if isinstance(shown, str) else shown:
        where, _, divisor = one.partition(" / ")
        values = [value for value, _ in figures(where, printed)] if "#" in where else [recorded(where, rows)]
        measured += [value / float(divisor or 1) for value in values]
    if len(stated) != len(measured):
        yield f"{passage!r} has {len(stated)} figures, {shown!r} {len(measured)}"
    for (value, rounding), real in zip(stated, measured, strict=False):
        if abs(value - real) > max(TOLERANCE * abs(real), 1.001 * rounding):
            yield f"{passage!r} states {value:g}, and {shown!r} is {real:g}"
