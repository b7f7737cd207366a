"""Check that the history is complete. Rows are numbered per process without gaps; shed rows are recorded as events."""

from __future__ import annotations

from testbed_runtime.checking.common import data, events
from testbed_runtime.history.numbers import counts_of
from testbed_runtime.history.schema import Trial


def missing_rows(trial: Trial) -> tuple[int | None, str]:
    """Return how many rows were shed or lost, and by which processes. None if there are no rows at all.

    The last rows of a killed process cannot be counted: nothing records that they existed."""
    counts = counts_of(trial).to_pylist()
    if not counts:
        return None, "nothing was recorded"
    missing, details = 0, []
    for row in counts:
        gap = row["highest"] + 1 - row["distinct"]
        if gap > 0:
            missing += gap
            details.append(f"{row['process']}: {gap} lost")
    for event in events(trial, "history.shed"):
        more = data(event)
        missing += int(more.get("rows", 0))
        details.append(f"{event['process']}: {more.get('rows')} of {more.get('table')} shed")
    return missing, "; ".join(details)
