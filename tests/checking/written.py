"""Hand-written rows of a few processes, for the rules that find damage: each test writes only what its rule reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.damage import Damage
from testbed_runtime.history.schema import TABLES, Trial, arrow_schema
from tests.manifests import trial_entry

NS = 1_000_000_000
START = 1_795_670_000 * NS
"""Second 0 on the clock of a pod: nanoseconds since 1970, here in 2026."""
JM = "jobmanager-1"
Row = dict[str, Any]
Written = tuple[str, Row]
TIMES = ("t", "start", "window_start")
"""Seconds since START, which a row has as `<name>_ns`."""


def at(seconds: float) -> int:
    return START + round(seconds * NS)


def wrote(*rows: Written) -> Trial:
    """Return a trial in which each process wrote these rows in this order. A column that a row does not have is empty or 0."""
    tables: dict[str, list[Row]] = {name: [] for name in TABLES}
    numbers: dict[str, int] = {}
    for name, given in rows:
        row = {"run": "r", "trial": "main-1", "process": "tm-0-1", "boot_id": "b", "t": 0.0} | given
        for time in TIMES:
            if time in row:
                row[f"{time}_ns"] = at(row.pop(time))
        row.setdefault("seq", numbers.get(row["process"], 0))
        numbers[row["process"]] = row["seq"] + 1
        tables[name].append({f.name: _empty(f.type) for f in arrow_schema(name)} | row)
    return Trial(
        "r",
        "main-1",
        {n: pa.Table.from_pylist(found, schema=arrow_schema(n)) for n, found in tables.items()},
    )


def checked(trial: Trial, entry: Mapping[str, Any] | TrialEntry | None = None, **known: bool) -> CheckedTrial:
    """Return a trial as its rules read it. `one_clock` follows from the boot ids, if it is not given."""
    return CheckedTrial(trial, entry if isinstance(entry, TrialEntry) else trial_entry(entry), **known)


def _empty(kind: pa.DataType) -> Any:
    if pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return "" if pa.types.is_string(kind) else False
    return b"" if pa.types.is_binary(kind) else [] if pa.types.is_list(kind) else 0


def event(
    kind: str,
    subject: str = "",
    t: float = 0.0,
    *,
    attempt: int = -1,
    checkpoint: int = -1,
    process: str = JM,
    **data: Any,
) -> Written:
    row = {"kind": kind, "subject": subject, "t": t, "attempt": attempt, "checkpoint": checkpoint}
    return "events", row | {"process": process, "data": json.dumps(data) if data else ""}


def state(
    task: str, before: str, to: str, t: float = 0.0, *, attempt: int = 0, on: str = "tm-0-1"
) -> Written:
    """A change of a task's state, as the JobManager records it."""
    return event(
        "task.state",
        task,
        t,
        attempt=attempt,
        **{"from": before, "to": to, "taskmanager": on, "cause_class": ""},
    )


def job(to: str, t: float = 0.0, **more: Any) -> Written:
    return event("job.state", "job", t, **{"from": "RUNNING", "to": to, "cause_class": ""} | more)


def wait(kind: str, who: str = "JobMaster", *, start: float = 0.0, t: float = 0.0, **more: Any) -> Written:
    row = {"kind": kind, "who": who, "start": start, "t": t, "process": JM, "attempt": -1, "budget_ns": -1}
    return "waits", row | {"outcome": "completed"} | more


def sample(task: str, t: float = 0.0, **more: Any) -> Written:
    return "tasks", {"task": task, "vertex": task.rpartition("-")[0], "role": "operator", "t": t} | more


def texts(found: Iterable[Damage]) -> list[str]:
    """Return the findings as they are reported. A row is -1 if the whole column is meant."""
    found = list(found)
    assert all(one.row >= -1 for one in found)
    return [str(one) for one in found]


def edited(rows: list[Written], changes: dict[int, Row | list[Written] | None]) -> Trial:
    """Return the trial of these rows with changes: other columns of a row, no row (None), or other rows in its place."""
    made: list[Written] = []
    for number, (table, row) in enumerate(rows):
        change = changes.get(number, {})
        made += change if isinstance(change, list) else [] if change is None else [(table, row | change)]
    return wrote(*made)
