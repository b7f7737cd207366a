"""Every checker returns an answer for a history that lacks what a real one may lack. Only its reader refuses damage."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from msgspec import to_builtins

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.reduced import reduced
from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.checking.trace import trace_events
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.waits import Outcome
from testbed_runtime.history.schema import TABLES, Trial
from tests.checking.recorded import recorded
from tests.manifests import trial_entry

MS = 1_000_000
ROUNDS = 10
"""Histories of each test. More seeds find more; these are quick."""
BY = {
    "events": ("kind",),
    "waits": ("kind", "who"),
    "faults": ("state", "targets"),
    "checkpoints": ("state",),
    "tasks": ("task", "vertex"),
}
"""The columns of which all rows with one value may be missing."""
SMALL = ("events", "waits", "checkpoints", "faults")
PARAMETERS: tuple[dict[str, Any], ...] = (
    {},
    {"latency_s": 0.01},
    {"bytes_per_second": 1000},
    {"delay_s": 5.0, "frame_class": "credit"},
)

Tables = dict[str, pa.Table]
Change = Callable[[Random, Tables, dict[str, Any]], None]


def values(table: pa.Table, column: str) -> list[Any]:
    found: list[Any] = table.column(column).to_pylist()
    return found


def keep(table: pa.Table, kept: list[bool]) -> pa.Table:
    return table.filter(pa.array(kept, pa.bool_()))


def put(table: pa.Table, column: str, new: list[Any]) -> pa.Table:
    place = table.schema.get_field_index(column)
    field = table.schema.field(place)
    return table.set_column(place, field, pa.array(new, field.type))


def processes(tables: Tables) -> list[str]:
    return sorted({p for t in tables.values() for p in t.column("process").unique().to_pylist()})


def lose_the_end(random: Random, tables: Tables, entry: dict[str, Any]) -> None:
    """Drop the last rows of one process, or of all."""
    lost = set(random.choice([[p] for p in processes(tables)] + [processes(tables)]))
    last = max(values(tables["events"], "t_ns")) - random.choice([1, 300, 3000, 9000]) * MS
    for name, table in tables.items():
        pairs = zip(values(table, "process"), values(table, "t_ns"), strict=True)
        tables[name] = keep(table, [p not in lost or t <= last for p, t in pairs])


def lose_rows(random: Random, tables: Tables, entry: dict[str, Any]) -> None:
    """Drop the rows of one process, of one kind, or some of them in one table."""
    name = random.choice(list(tables))
    table = tables[name]
    column = random.choice([*BY.get(name, ()), "process"])
    if len(table):
        gone = random.choice(sorted(set(values(table, column))))
        part = random.choice([0.5, 1.0])
        tables[name] = keep(table, [v != gone or random.random() > part for v in values(table, column)])


def shift_clocks(random: Random, tables: Tables, entry: dict[str, Any]) -> None:
    """Let the clock of each process differ by up to 5 ms."""
    offsets = {p: random.randint(-5 * MS, 5 * MS) for p in processes(tables)}
    for name, table in tables.items():
        for column in ("t_ns", "start_ns") if name == "waits" else ("t_ns",):
            pairs = zip(values(table, "process"), values(table, column), strict=True)
            tables[name] = put(tables[name], column, [t + offsets[p] for p, t in pairs])


def equal_times(random: Random, tables: Tables, entry: dict[str, Any]) -> None:
    """Round times, and mix the rows of all tables."""
    step = random.choice([10, 100, 1000]) * MS
    for name in SMALL:
        tables[name] = put(tables[name], "t_ns", [t // step * step for t in values(tables[name], "t_ns")])
    for name, table in tables.items():
        order = list(range(len(table)))
        random.shuffle(order)
        tables[name] = table.take(pa.array(order, pa.int64()))


def change_waits(random: Random, tables: Tables, entry: dict[str, Any]) -> None:
    """End waits never, late, at once, or otherwise."""
    rows = tables["waits"].to_pylist()
    for row in random.choices(rows, k=min(len(rows), 5)):
        how = random.randrange(4)
        if how == 0:
            row["outcome"], row["t_ns"] = "open", row["t_ns"] + 20_000 * MS
        elif how == 1:
            row["t_ns"] = row["start_ns"]
        elif how == 2:
            row["t_ns"] += random.randint(0, 5000) * MS
        else:
            row["outcome"] = str(random.choice(list(Outcome)))
    tables["waits"] = pa.Table.from_pylist(rows, tables["waits"].schema)


def stop_counters(random: Random, tables: Tables, entry: dict[str, Any]) -> None:
    """Let a counter of all tasks stand still, or have one value in two samples."""
    column = random.choice(["records_in", "records_out", "busy_ns", "bytes_in", "lag_ns", "idle_ns"])
    old = values(tables["tasks"], column)
    tables["tasks"] = put(tables["tasks"], column, random.choice([[0] * len(old), [*old[:1], *old[:-1]]]))


def move_phases(random: Random, tables: Tables, entry: dict[str, Any]) -> None:
    """Leave a phase out, give it no length, or another one."""
    phases = entry["phases"]
    if not phases:
        return
    phase = random.choice(phases)
    how = random.randrange(3)
    if how == 0:
        phases.remove(phase)
    elif how == 1:
        phase["end_ns"] = phase["start_ns"]
    else:
        phase["end_ns"] = phase["start_ns"] + random.choice([1, 10, 100, 600]) * MS


def change_fault(random: Random, tables: Tables, entry: dict[str, Any]) -> None:
    """Make the fault one of another kind, which began or ended at another time, or hit nothing."""
    rows = tables["faults"].to_pylist()
    state, by = random.choice(["injected", "ended"]), random.choice([0, 0, -3000, 3000, 20_000]) * MS
    kind, targets = random.choice(sorted(KINDS)), random.choice([None, None, "", "[]", '["tm-0"]'])
    for row in rows:
        row |= {"kind": kind, "targets": row["targets"] if targets is None else targets}
        row["t_ns"] += by if row["state"] == state else 0
    tables["faults"] = pa.Table.from_pylist(rows, tables["faults"].schema)
    for fault in entry["faults"]:
        fault |= {"kind": kind, "params": random.choice(PARAMETERS)}


CHANGES: tuple[Change, ...] = (
    lose_the_end,
    lose_rows,
    shift_clocks,
    equal_times,
    change_waits,
    stop_counters,
    move_phases,
    change_fault,
)


def judged(trial: Trial, entry: TrialEntry) -> str:
    """Return everything that is computed of a trial, as it is written."""
    answer = trial_recovery(trial, entry)
    rows = trial_metrics(trial, entry, recovery=answer)
    found = [
        answer.to_json(),
        to_builtins(rows),
        to_builtins(trial_timeseries(trial, entry)),
        trace_events(trial, answer),
    ]
    return json.dumps(found, allow_nan=False)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change.__name__))
def test_every_history_is_judged(change: Change):
    """One change, and half of the time others too. The reduced trial, which Spark judges, has the same answer as the whole one."""
    random = Random(CHANGES.index(change))
    given = recorded()
    for number in range(ROUNDS):
        tables = {name: given.trial.table(name) for name in TABLES}
        entry: dict[str, Any] = copy.deepcopy(dict(given.manifest))
        more = random.sample(CHANGES, random.choice([0, 0, 1, 2]))
        for one in (change, *more):
            one(random, tables, entry)
        names = [one.__name__ for one in (change, *more)]
        small = reduced(Trial(given.trial.run, given.trial.trial, dict(tables)))
        found = judged(small, trial_entry(entry))
        whole = judged(Trial(given.trial.run, given.trial.trial, tables), trial_entry(entry))
        assert found == whole, (number, names)
