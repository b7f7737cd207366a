"""A history that the processes themselves wrote, in virtual time: a TaskManager is killed, and the job drains. Tests change rows."""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa

from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.history.damage import Damage
from testbed_runtime.history.schema import TABLES, Trial, arrow_schema
from testbed_runtime.history.validation import check_trial
from testbed_runtime.simulation.loop import run_virtual
from tests.manifests import trial_entry
from tests.simulation.simulating import run_one

TIMES = ("t_ns", "start_ns")
"""The columns with a time of the process's clock, but for the windows of the latencies, which begin at a multiple of their length."""
Row = dict[str, Any]
Change = Callable[[Row], Row | None]

DOCUMENT: Row = {
    "apiVersion": "headgate.dev/v1alpha1",
    "kind": "Scenario",
    "metadata": {"name": "recorded"},
    "spec": {
        "hypothesis": "Nothing is lost.",
        "seed": 7,
        "testbed": {
            "taskManagers": {"replicas": 5, "slots": 1},
            "flinkConfiguration": {
                "heartbeat.interval": "200 ms",
                "heartbeat.timeout": "1 s",
                "heartbeat.rpc-failure-threshold": "-1",
                "execution.checkpointing.interval": "500 ms",
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.delay": "100 ms",
            },
            "job": {
                "vertices": [
                    {"name": "source", "parallelism": 2, "slotSharingGroup": "src", "source": {"recordsPerSecond": 600}},
                    {"name": "count", "parallelism": 2, "operator": "keyed-count"},
                    {"name": "sink", "parallelism": 2, "sink": "ledger"},
                ],
                "edges": [
                    {"from": "source", "to": "count", "partitioning": "hash"},
                    {"from": "count", "to": "sink", "partitioning": "forward"},
                ],
            },
        },
        "timeline": {"warmUp": "1 s", "baseline": "2 s", "observation": "8 s"},
        "faults": [
            {
                "name": "kill",
                "at": "0 s",
                "duration": "1 s",
                "target": {"taskManagers": {"running": "sink", "mode": "one"}},
                "process": {"kill": {}},
            }
        ],
        "control": False,
        "expect": [{"metric": "delivery.lost", "equals": 0}],
    },
}  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A trial and its entry in the manifest."""

    trial: Trial
    manifest: Mapping[str, Any]
    """The entry as the file has it."""

    @property
    def entry(self) -> TrialEntry:
        return trial_entry(self.manifest)

    def changed(self, table: str, change: Change) -> Recorded:
        """Return the history with `change` made to each row of a table. Rows for which it returns None are gone, and the rows of
        their processes are numbered anew."""
        rows = self.trial.table(table).to_pylist()
        made = [change(dict(row)) for row in rows]
        assert made != rows, "nothing was changed"
        gone: dict[str, list[int]] = {}
        for before, after in zip(rows, made, strict=True):
            if after is None:
                gone.setdefault(before["process"], []).append(before["seq"])
        kept = pa.Table.from_pylist([row for row in made if row is not None], schema=arrow_schema(table))
        tables = {name: _renumbered(self.trial.table(name), gone) for name in TABLES}
        tables[table] = _renumbered(kept, gone)
        return Recorded(Trial(self.trial.run, self.trial.trial, tables), self.manifest)

    def with_rows(self, table: str, more: list[Row]) -> Recorded:
        """Return the history with further rows of a table."""
        added = pa.concat_tables(
            [self.trial.table(table), pa.Table.from_pylist(more, schema=arrow_schema(table))]
        )
        return Recorded(
            Trial(self.trial.run, self.trial.trial, {**self.trial.tables, table: added}), self.manifest
        )

    def numbered(self) -> Recorded:
        """Return the history with the rows of each process numbered without gaps, in the order of their numbers."""
        seqs: dict[str, list[int]] = {}
        for table in self.trial.tables.values():
            for process, seq in zip(
                table.column("process").to_pylist(), table.column("seq").to_pylist(), strict=True
            ):
                seqs.setdefault(process, []).append(seq)
        free = {p: sorted(set(range(max(found))) - set(found)) for p, found in seqs.items()}
        tables = {name: _renumbered(table, free) for name, table in self.trial.tables.items()}
        return Recorded(Trial(self.trial.run, self.trial.trial, tables), self.manifest)

    def with_entry(self, **changes: Any) -> Recorded:
        """Return the history with other fields of its entry."""
        return Recorded(self.trial, {**self.manifest, **changes})

    def found(self) -> list[Damage]:
        return check_trial(self.trial, self.entry)

    def columns(self) -> set[tuple[str, str]]:
        return {(d.table, d.column) for d in self.found()}


def _renumbered(table: pa.Table, gone: Mapping[str, list[int]]) -> pa.Table:
    """Return the rows with the numbers that they would have without those that are gone."""
    lost = {process: sorted(seqs) for process, seqs in gone.items() if seqs}
    if not lost:
        return table
    numbers = [
        seq - bisect_left(lost.get(process, ()), seq)
        for process, seq in zip(
            table.column("process").to_pylist(), table.column("seq").to_pylist(), strict=True
        )
    ]
    return table.set_column(table.schema.get_field_index("seq"), "seq", pa.array(numbers, pa.int64()))


@cache
def recorded() -> Recorded:
    """Return the history. It is made once."""
    return record(DOCUMENT)


def record(document: Row, *, start_s: float = 1000.0) -> Recorded:
    """Return the history of the document's trial, which has to pass. The clock of its processes begins at `start_s`."""
    began = patch.dict(run_virtual.__kwdefaults__, start_s=start_s)
    with tempfile.TemporaryDirectory() as folder, began:
        ran = run_one(document, Path(folder))
    assert ran.result.verdict.verdict == "Pass", ran.result.verdict.summary
    return Recorded(ran.trial, json.loads(msgspec.json.encode(ran.entry)))


WALL_S = 1_795_670_000.123456
"""A time since 1970, here in 2026. As a float it is exact to a quarter of a microsecond."""
NODES = {
    "runner": 0,
    "supervisor": 7,
    "jobmanager-1": -20,
    "tm-0": 13,
    "tm-1": -9,
    "tm-2": 20,
    "tm-3": 4,
    "tm-4": -16,
}
"""The milliseconds by which the clock of each process's node is ahead. NTP keeps them this near to each other."""


def record_in_pods(document: Row) -> Recorded:
    """Return the history that pods on one node would have written: on a wall clock."""
    return record(document, start_s=WALL_S)


def spread(found: Recorded) -> Recorded:
    """Return the history with each process on a node of its own, whose clock differs by some milliseconds."""
    tables = {name: on_nodes(found.trial.table(name)) for name in TABLES}
    return Recorded(Trial(found.trial.run, found.trial.trial, tables), found.manifest)


def on_nodes(table: pa.Table) -> pa.Table:
    """Move each row to the clock of its process's node, which has a boot id of its own."""

    def moved(row: Row) -> Row:
        node = next((n for n in NODES if row["process"].startswith(n)), "other")
        times = [column for column in TIMES if column in row]
        return row | {"boot_id": node} | {c: row[c] + NODES.get(node, 0) * 1_000_000 for c in times}

    return pa.Table.from_pylist([moved(row) for row in table.to_pylist()], schema=table.schema)
