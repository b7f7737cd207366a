"""A sealed trial and its entry in the manifest, as the rules of `contradictions` read them.

The rules compare the same events, waits and attempts again and again. Each of them is found once and kept with the trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.job.messages import TERMINAL_JOB_STATES
from testbed_runtime.core.options import Options
from testbed_runtime.core.trial.manifest import FaultEntry, PhaseEntry, TrialEntry, VertexEntry
from testbed_runtime.history import columns
from testbed_runtime.history.columns import (
    TOLERANCE_NS,
    Attempt,
    Ints,
    Owned,
    Row,
    Rows,
    attempt_of,
    ended_process,
    equal,
    ints,
    parsed,
    sound,
    taskmanager_of,
)
from testbed_runtime.history.schema import Trial

EVENT_COLUMNS = ("process", "seq", "t_ns", "kind", "subject", "attempt", "checkpoint", "text", "data")
UNREAD = ("network.buffers", "network.pools", "socket.state", "cpu.spent", "backpressure.sampled")
"""Kinds of events whose data is compared with no other row. They are frequent, so their data is not
parsed."""


class CheckedTrial:
    """The tables of a trial, the lookups that several rules share, and what the manifest says about its job."""

    def __init__(self, trial: Trial, entry: TrialEntry, *, one_clock: bool | None = None) -> None:
        """`one_clock` defaults to whether all rows have one boot id."""
        self.trial = trial
        self.entry = entry
        self.one_clock = columns.has_one_clock(trial) if one_clock is None else one_clock

    # ---- the manifest

    @cached_property
    def options(self) -> Options:
        return self.entry.options

    @property
    def vertices(self) -> tuple[VertexEntry, ...]:
        return self.entry.job.vertices

    @cached_property
    def kinds(self) -> set[str]:
        """The kinds of the vertices. The kind of one that does not say it is empty."""
        return {vertex.kind for vertex in self.vertices}

    @cached_property
    def edges(self) -> list[tuple[str, str, str]]:
        """The source, the target and the partitioning of each edge."""
        return [(edge.source, edge.target, edge.partitioning) for edge in self.entry.job.edges]

    @cached_property
    def has_blocking_edges(self) -> bool:
        return bool(self.entry.blocking_edges)

    @cached_property
    def parallelism(self) -> dict[str, int]:
        return self.entry.parallelism

    @cached_property
    def tasks(self) -> set[str]:
        """The subtasks of the job."""
        return self.entry.tasks

    @property
    def phases(self) -> tuple[PhaseEntry, ...]:
        return self.entry.phases

    @property
    def starts(self) -> dict[str, int]:
        """When the phases began, by their names."""
        return {phase.name: phase.start_ns for phase in self.phases}

    @cached_property
    def faults(self) -> dict[str, FaultEntry]:
        """The faults by their names."""
        return {fault.name: fault for fault in self.entry.faults}

    @property
    def drained(self) -> bool:
        return self.entry.drained is True

    # ---- tables

    def table(self, name: str) -> pa.Table:
        return self.trial.table(name)

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        """The tables that were read. Some are missing if the trial was read in parts."""
        return self.trial.tables

    def rows(self, name: str) -> Rows:
        """Return all rows of a small table, in its order."""
        return self.trial.kept(
            f"rows and places of {name}", lambda: list(enumerate(self.table(name).to_pylist()))
        )

    def distinct(self, name: str, *keys: str) -> Rows:
        """Return each combination of values that the rows of a table have, with the first row that has it."""
        return self.trial.kept(
            f"distinct {keys} of {name}", lambda: columns.distinct(self.table(name), *keys)
        )

    def places(self, name: str, *keys: str) -> dict[tuple[Any, ...], Ints]:
        """Map each combination of values of these columns to its rows, in order."""
        return self.trial.kept(f"places of {keys} in {name}", lambda: columns.places(self.table(name), *keys))

    def attempts(self, name: str) -> Owned:
        """Return the rows of a table, ordered by attempt and number."""
        return self.trial.kept(f"attempts of {name}", lambda: Owned.attempts(self.table(name)))

    # ---- events

    def events(self, *kinds: str) -> Rows:
        """Return the events of these kinds with their positions in the table and their parsed data, in the order in
        which each process wrote them."""
        found = [pair for kind in kinds for pair in self._events.get(kind, ())]
        return found if len(kinds) == 1 else sorted(found, key=_written)

    @cached_property
    def _events(self) -> dict[str, Rows]:
        table = self.table("events")
        if not sound(table, "kind", "process", "seq"):
            return {}
        read = pc.invert(pc.is_in(table.column("kind"), pa.array(UNREAD)))
        places = np.flatnonzero(read.to_numpy(zero_copy_only=False))
        events = table.select(EVENT_COLUMNS).take(pa.array(places)).to_pylist()
        rows = [event | {"data": parsed(event["data"])} for event in events]
        pairs = sorted(zip(places.tolist(), rows, strict=True), key=_written)
        return grouped((pair[1]["kind"], pair) for pair in pairs)

    def changes(self, kind: str, state: str) -> list[dict[str, Any]]:
        """Return the events of a kind (`task.state`, `job.state`) that changed to a state."""
        return [event for _, event in self.events(kind) if event["data"].get("to") == state]

    @cached_property
    def deployed(self) -> dict[Attempt, dict[str, Any]]:
        """Maps each attempt that was deployed to its event."""
        return {attempt_of(event): event for event in self.changes("task.state", "DEPLOYING")}

    @cached_property
    def finished(self) -> set[Attempt]:
        """The attempts that finished on TaskManagers that were neither killed nor lost."""
        gone = {event["subject"] for _, event in self.events("taskmanager.lost")}
        exits = [event for _, event in self.events("process.exit")]
        gone |= {ended_process(event) for event in exits if event["data"].get("signal")}
        ended = {attempt_of(event) for event in self.changes("task.state", "FINISHED")}
        return {one for one in ended & self.deployed.keys() if taskmanager_of(self.deployed[one]) not in gone}

    @cached_property
    def recorded_to_its_end(self) -> bool:
        """Whether one JobManager has written all events of the job, until the job ended."""
        states = self.events("job.state")
        ended = any(e["data"].get("to") in TERMINAL_JOB_STATES for _, e in states)
        managers = {e["process"] for _, e in self.events("job.state", "task.state", "failover.started")}
        return ended and len(managers) == 1 and not self.events("leadership")

    def attempts_with(self, *kinds: str) -> dict[Attempt, int]:
        """Map each attempt of a task with an event of these kinds to the position of the last such event."""
        return {attempt_of(e): row for row, e in self.events(*kinds)}

    # ---- waits

    def waits(self, *kinds: str) -> Rows:
        """Return the waits of these kinds, or all."""
        return [(row, r) for row, r in self.rows("waits") if not kinds or r["kind"] in kinds]

    def attempts_that_waited(self, kind: str) -> dict[Attempt, int]:
        """Map each attempt of a task with a wait of this kind to the position of the last such wait."""
        return {(r["who"], r["attempt"]): row for row, r in self.waits(kind)}

    def tolerance_ns(self, process: str, since_ns: int, until_ns: int | None = None) -> int:
        """Return how much two times that this process recorded for the same moment may differ, because it may
        have stalled in between. One of them is `since_ns`, or both are between that and `until_ns`."""
        first, last = since_ns - TOLERANCE_NS, (since_ns if until_ns is None else until_ns) + TOLERANCE_NS
        stalls = (s for s in self._stalls.get(process, ()) if s["start_ns"] <= last and first <= s["t_ns"])
        return TOLERANCE_NS + max((s["t_ns"] - s["start_ns"] for s in stalls), default=0)

    @cached_property
    def _stalls(self) -> dict[str, list[Row]]:
        waits = self.table("waits")
        if not sound(waits, "process", "kind", "start_ns", "t_ns"):
            return {}
        stalled = waits.filter(equal(waits, "kind", "stalled")).select(["process", "start_ns", "t_ns"])
        return grouped((r["process"], r) for r in stalled.to_pylist())

    def happened(self, process: str, t_ns: int, times: Iterable[int]) -> bool:
        """Whether one of these times may be the moment that this process recorded as `t_ns`."""
        allowed = self.tolerance_ns(process, t_ns)
        return any(abs(time - t_ns) <= allowed for time in times)

    # ---- checkpoints

    @cached_property
    def completed(self) -> list[Row]:
        """The rows of completed checkpoints."""
        return [r for _, r in self.rows("checkpoints") if r["state"] == "completed"]

    @cached_property
    def has_channel_state(self) -> bool:
        """Whether a checkpoint has records that were in flight: they are received, but not sent again."""
        persisted = ints(self.table("checkpoints"), "persisted_bytes")
        return bool(persisted.any()) or bool(self.events("job.restored"))


def _written(pair: tuple[int, Row]) -> tuple[str, int]:
    return pair[1]["process"], pair[1]["seq"]
