"""Acknowledgements, commits and records of stale attempts that were rejected."""

from __future__ import annotations

from testbed_runtime.checking.common import data, events
from testbed_runtime.history.schema import Trial


def rejected(trial: Trial) -> dict[str, int]:
    """Return the number of rejections by what was rejected."""
    counts: dict[str, int] = {}
    for event in events(trial, "stale.rejected"):
        more = data(event)
        what = str(more.get("what") or "acknowledgement")
        counts[what] = counts.get(what, 0) + int(more.get("count", 1))
    return counts
