"""Check that the history is complete. Rows are numbered per process without gaps; shed rows are recorded as events."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from testbed_runtime.checking.common import data, events
from testbed_runtime.history.numbers import counts_of
from testbed_runtime.history.schema import Trial

NEVER_EMPTY = ("events", "tasks", "checkpoints", "delivery", "faults")
"""Tables that a complete history of a job with checkpoints and faults has. If rows are missing, the empty ones are named."""


class Missing(Struct, frozen=True):
    """Rows that the history lacks. The last rows of a killed process cannot be counted: nothing records that they existed."""

    gaps: Mapping[str, int]
    """Rows per process whose numbers are missing. Their tables are unknown: the process may have written to any of `wrote`."""
    wrote: Mapping[str, tuple[str, ...]]
    """The tables in which each of these processes has rows."""
    shed: Mapping[tuple[str, str], int]
    """Rows per process and table that the process dropped, because the recorder did not take them."""
    empty: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(self.gaps.values()) + sum(self.shed.values())

    @property
    def text(self) -> str:
        """The missing rows in words."""
        lacking = [(", ".join(self.wrote[process]), process, count) for process, count in self.gaps.items()]
        parts = [
            f"column seq of {tables}: {process} lacks {count} rows" for tables, process, count in lacking
        ]
        parts += [f"{process} shed {count} rows of {table}" for (process, table), count in self.shed.items()]
        return "; ".join(parts + [f"{table} is empty" for table in self.empty if self.gaps])


def missing_rows(trial: Trial) -> Missing | None:
    """Return the rows that were shed or lost. None if there are no rows at all."""
    counts = counts_of(trial).to_pylist()
    if not counts:
        return None
    gaps: dict[str, int] = {}
    wrote: dict[str, tuple[str, ...]] = {}
    for row in counts:
        gap = row["highest"] + 1 - row["distinct"]
        if gap > 0:
            gaps[row["process"]] = gaps.get(row["process"], 0) + gap
            wrote[row["process"]] = tuple(sorted({*wrote.get(row["process"], ()), *row["tables"]}))
    shed: dict[tuple[str, str], int] = {}
    for event in events(trial, "history.shed"):
        more = data(event)
        key = (str(event["process"]), str(more.get("table")))
        shed[key] = shed.get(key, 0) + int(more.get("rows", 0))
    return Missing(gaps, wrote, shed, tuple(t for t in NEVER_EMPTY if not len(trial.table(t))))


def delivery_incomplete(trial: Trial) -> str:
    """Return why rows of `delivery` may be missing; empty if none can be. A loss is not proven in that case. Only rows of the JobManager
    and of processes that wrote `delivery` matter; if the table is empty, those of every process."""
    missing = missing_rows(trial)
    if missing is None:
        return ""
    writers = set(trial.table("delivery").column("process").unique().to_pylist())
    gaps = [p for p in missing.gaps if not writers or p in writers or p.startswith("jobmanager")]
    shed = [p for p, table in missing.shed if table == "delivery"]
    return missing.text if gaps or shed else ""
