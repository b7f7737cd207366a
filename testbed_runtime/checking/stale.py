"""What stale attempts offered and nobody took: acknowledgements, commits, records."""

from __future__ import annotations

from testbed_runtime.checking.common import data, events
from testbed_runtime.history.schema import Trial


def rejected(trial: Trial) -> dict[str, int]:
    """What → how many, of everything that was rejected as stale."""
    counts: dict[str, int] = {}
    for event in events(trial, "stale.rejected"):
        more = data(event)
        what = str(more.get("what") or "acknowledgement")
        counts[what] = counts.get(what, 0) + int(more.get("count", 1))
    return counts
