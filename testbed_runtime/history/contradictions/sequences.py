"""Compare the rows of one thing with the row before: states of tasks and of the job, phases, states of a fault, windows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.values import NS
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import CAUSAL_NS, Rows, first_true, ints
from testbed_runtime.history.damage import Damage, first_of_each
from testbed_runtime.history.schema import LATENCY_WINDOW_NS

FIRST_STATE = "CREATED"
LOOSE = 2
BEFORE = {
    "injected": ("asked",), "verified": ("injected",), "unverified": ("injected",), "ended": ("injected",),
    "clean": ("ended", "failed"), "residue": ("ended", "failed"),
}  # fmt: skip
"""One of these states of a fault precedes each state. An agent that was deleted with its pod loses the last ones."""


ONCE = {
    "events": ("process", "kind", "subject", "attempt", "checkpoint", "text", "data", "t_ns"),
    "waits": ("process", "kind", "who", "what", "attempt", "start_ns", "t_ns", "outcome"),
    "faults": ("process", "fault", "targets", "state"),
}
"""No two rows of these tables are equal in all of these columns."""
MAY_REPEAT = ("job.state", "rpc.timeout", "failover.cancelled", "stale.rejected", "note")
"""Kinds of events that may occur twice at the same time. A job whose regions are lost together restarts once for each of them; its states
follow on each other."""


def check_sequences(trial: CheckedTrial) -> list[Damage]:
    """Return the rows that cannot follow the row before, at most one for each rule."""
    rules = [_states(trial), _phases(trial), _faults(trial), _windows(trial), _again(trial)]
    return first_of_each(*rules, *([_moved(trial)] if trial.one_clock else []))


def _states(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a change from a state that the task or the job did not have. A JobManager that lost its leadership begins again."""
    last: dict[tuple[str, str, str, int], str] = {}
    for row, event in trial.events("task.state", "job.state"):
        data = event["data"]
        owner = (event["process"], event["kind"], event["subject"], event["attempt"])
        before = last.get(owner, FIRST_STATE)
        if data.get("from", before) not in (before, FIRST_STATE):
            problem = f"says that {event['subject']} was {data['from']}, but it was {before}"
            yield Damage("events", "data", row, problem)
        last[owner] = str(data.get("to"))


def _phases(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield phases that the runner did not enter in the order of the manifest. A trial that was ended early lacks the last ones."""
    planned = [phase.name for phase in trial.phases]
    entered = [(row, e["subject"]) for row, e in trial.events("trial.phase")]
    found = [name for _, name in entered]
    if found == [*planned, "end"][: len(found)]:
        return
    row = next((row for (row, name), phase in zip(entered, planned, strict=False) if name != phase), -1)
    phases = ", ".join(planned)
    problem = f"of trial.phase has {', '.join(found)[:80]}, but the phases are {phases} (manifest)"
    yield Damage("events", "subject", row, problem)


def _of_faults(trial: CheckedTrial) -> dict[tuple[str, str, str], Rows]:
    """Map each fault, on the same targets and by one process, to its rows, in the order in which they were written."""
    rows = sorted(trial.rows("faults"), key=lambda pair: (pair[1]["process"], pair[1]["seq"]))
    return grouped(((r["process"], r["fault"], r["targets"]), (row, r)) for row, r in rows)


def _faults(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a fault that lacks a state, and one that was asked for otherwise in a later row."""
    for (_, name, _), rows in _of_faults(trial).items():
        seen: set[str] = set()
        first = rows[0][1]
        for row, r in rows:
            needed = BEFORE.get(r["state"], ())
            if needed and not seen & set(needed):
                problem = f"says that {name} was {r['state']}, but not {' or '.join(needed)} before"
                yield Damage("faults", "state", row, problem)
            seen.add(r["state"])
            for column in ("backend", "asked"):
                if r[column] != first[column]:
                    problem = f"is {r[column][:60]!r}, but it was {first[column][:60]!r} when {name} was {first['state']}"
                    yield Damage("faults", column, row, problem)


def _again(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a row that a process wrote twice: an event, a wait, or a state of a fault."""
    for name, columns in ONCE.items():
        table = trial.table(name)
        rows = table.select(columns).append_column("row", pa.array(np.arange(len(table))))
        if name == "events":
            rows = rows.filter(pc.invert(pc.is_in(rows.column("kind"), pa.array(MAY_REPEAT))))
        alike = rows.group_by(list(columns)).aggregate([("row", "min"), ("row", "max")])
        if len(again := alike.filter(pc.greater(alike.column("row_max"), alike.column("row_min")))):
            row = int(pc.min(again.column("row_max")).as_py())
            problem = f"is of a second row of {table.column(columns[1])[row].as_py()}: another one has the same columns"
            yield Damage(name, "seq", row, problem)


def _moved(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a state of a fault that has an earlier time than the previous state."""
    for (_, name, _), rows in _of_faults(trial).items():
        for (before, a), (_, b) in pairwise(rows):
            if b["t_ns"] < a["t_ns"] - CAUSAL_NS:
                off = (a["t_ns"] - b["t_ns"]) / NS
                problem = f"says that {name} was {a['state']} {off:.1f} s after it was {b['state']}"
                yield Damage("faults", "t_ns", before, problem)


def _windows(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a window that is much longer than the time until the next one begins, and one that no task measures: in a job that a
    JobManager deployed they have one length."""
    table = trial.table("latency")
    if not len(table):
        return
    begins, lasts = ints(table, "window_start_ns"), ints(table, "window_ns")
    wrong = {"window_ns": lasts - LATENCY_WINDOW_NS, "window_start_ns": begins % LATENCY_WINDOW_NS}
    for column, off in wrong.items() if trial.deployed else ():
        for row in first_true(off):
            value = table.column(column)[row].as_py()
            usual = f"{LATENCY_WINDOW_NS / NS:g} s"
            problem = f"is {value}, but windows take {usual} and begin at a multiple of it"
            yield Damage("latency", column, row, problem)
    owned = trial.attempts("latency")
    after = np.diff(begins[owned.order], append=0)
    after[owned.ends] = np.iinfo(np.int64).max // LOOSE  # no window follows
    for at in first_true(LOOSE * after < lasts[owned.order]):
        row = int(owned.order[at])
        problem = f"is {lasts[row] / NS:g} s, but the next window begins after {after[at] / NS:g} s"
        yield Damage("latency", "window_ns", row, problem)
