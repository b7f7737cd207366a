"""Check that the history is complete. Rows are numbered per process without gaps; shed rows are recorded as events."""

from __future__ import annotations

import pyarrow as pa

from testbed_runtime.checking.common import data, events
from testbed_runtime.history.schema import TABLES, Trial

_KEY = ("process", "boot_id")


def missing_rows(trial: Trial) -> tuple[int | None, str]:
    """Return how many rows were shed or lost, and by which processes. None if there are no rows at all.

    The last rows of a killed process cannot be counted: nothing records that they existed."""
    numbered = pa.concat_tables([trial.table(t).select([*_KEY, "seq"]) for t in TABLES])
    if len(numbered) == 0:
        return None, "nothing was recorded"
    grouped = numbered.group_by(list(_KEY)).aggregate([("seq", "max"), ("seq", "count_distinct")])
    missing, details = 0, []
    for row in sorted(grouped.to_pylist(), key=lambda r: str(r["process"])):
        gap = row["seq_max"] + 1 - row["seq_count_distinct"]
        if gap > 0:
            missing += gap
            details.append(f"{row['process']}: {gap} lost")
    for event in events(trial, "history.shed"):
        more = data(event)
        missing += int(more.get("rows", 0))
        details.append(f"{event['process']}: {more.get('rows')} of {more.get('table')} shed")
    return missing, "; ".join(details)
