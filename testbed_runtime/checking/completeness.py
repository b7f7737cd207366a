"""Is the history itself whole? Rows are numbered per process without gaps; what was shed says so itself."""

from __future__ import annotations

import pyarrow as pa

from testbed_runtime.checking.common import data, events
from testbed_runtime.history.schema import TABLES, Trial

_KEY = ("process", "boot_id")


def missing_rows(trial: Trial) -> tuple[int | None, str]:
    """Rows shed or lost in the middle, and by whom. None when there is no row at all. The last rows of a process that was
    killed cannot be missed: nobody knows of them."""
    numbered = pa.concat_tables([trial.table(t).select([*_KEY, "seq"]) for t in TABLES])
    if len(numbered) == 0:
        return None, "nothing was recorded"
    grouped = numbered.group_by(list(_KEY)).aggregate([("seq", "max"), ("seq", "count_distinct")])
    missing, who = 0, []
    for row in sorted(grouped.to_pylist(), key=lambda r: str(r["process"])):
        gap = row["seq_max"] + 1 - row["seq_count_distinct"]
        if gap > 0:
            missing += gap
            who.append(f"{row['process']}: {gap} lost")
    for event in events(trial, "history.shed"):
        more = data(event)
        missing += int(more.get("rows", 0))
        who.append(f"{event['process']}: {more.get('rows')} of {more.get('table')} shed")
    return missing, "; ".join(who)
