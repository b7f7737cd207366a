"""Columns of the history as arrays, and the rows of each owner in the order in which its process wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.values import NS
from testbed_runtime.history.schema import Trial

OWN_CLOCK = ("events", "channels", "tasks", "latency", "delivery", "checkpoints", "frames")
"""Tables whose rows have the time at which their process wrote them. The time of a wait is its end."""
ROUNDING_NS = NS // 100
JOB_PROCESSES = ("tm-", "jobmanager")
"""Prefixes of the names of a job's processes. A supervisor in a pod records its waits under another name than
its own."""
TOLERANCE_NS = NS
"""Two times that one process recorded for the same moment may differ by this much, and by the time for which
the process did not run (`tolerance_ns`)."""
CAUSAL_NS = NS // 20
"""Processes that share a clock write their rows in the order of cause and effect. The rows of a last sample
may be late by this much."""

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Attempt = tuple[str, int]
"""A task and the number of its attempt."""
Deployed = Mapping[Attempt, Mapping[str, Any]]
Row = Mapping[str, Any]
Rows = list[tuple[int, dict[str, Any]]]
"""Rows with their positions in the table."""
ATTEMPT = ("process", "task", "attempt")
SPENT = ("busy_ns", "backpressured_ns", "idle_ns")
"""The columns with the times that a task spent. Their sum grows as fast as the task's clock."""
EVENT_COLUMNS = ("process", "seq", "t_ns", "kind", "subject", "attempt", "checkpoint", "text", "data")
UNREAD = ("network.buffers", "network.pools", "socket.state", "cpu.spent", "backpressure.sampled")
"""Kinds of events whose data is compared with no other row. They are frequent, so their data is not
parsed."""
PARSED_TEXTS = 4096
"""Number of JSON texts that are kept parsed. The events of a large job have far fewer, and each is read
several times."""


def ints(table: pa.Table, column: str) -> Ints:
    return np.asarray(table.column(column).to_numpy(zero_copy_only=False), dtype=np.int64)


def sound(table: pa.Table, *columns: str) -> bool:
    """Whether a table has rows, and no nulls in these columns."""
    known = all(c in table.column_names for c in columns)
    return bool(len(table)) and known and not any(table.column(c).null_count for c in columns)


def equal(table: pa.Table, column: str, value: str) -> Flags:
    """Return which rows have this value."""
    return np.asarray(pc.equal(table.column(column), value).to_numpy(zero_copy_only=False), dtype=np.bool_)


def first_true(flags: Any) -> list[int]:
    """Return the position of the first true value. Empty if there is none. Takes a NumPy array or an Arrow
    array without nulls."""
    found: list[int] = np.flatnonzero(np.asarray(flags))[:1].tolist()
    return found


def tolerance_ns(trial: Trial, process: str, since_ns: int, until_ns: int | None = None) -> int:
    """Return how much two times that this process recorded for the same moment may differ, because it may
    have stalled in between. One of them is `since_ns`, or both are between that and `until_ns`."""
    stalls = trial.kept("stalls", lambda: _stalls(trial)).get(process, ())
    first, last = since_ns - TOLERANCE_NS, (since_ns if until_ns is None else until_ns) + TOLERANCE_NS
    return TOLERANCE_NS + max(
        (end - start for start, end in stalls if start <= last and first <= end), default=0
    )


def _stalls(trial: Trial) -> dict[str, list[tuple[int, int]]]:
    waits = trial.table("waits")
    if not sound(waits, "process", "kind", "start_ns", "t_ns"):
        return {}
    stalled = waits.filter(equal(waits, "kind", "stalled")).select(["process", "start_ns", "t_ns"])
    return grouped((r["process"], (r["start_ns"], r["t_ns"])) for r in stalled.to_pylist())


def filled_buckets(latency: pa.Table) -> tuple[Ints, Ints, Ints]:
    """Return row, bucket and count of each latency bucket that is not 0. There are few: in a large job, most
    windows have one record."""
    column = latency.column("buckets")
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), dtype=np.int64)
    counts = np.asarray(pc.list_flatten(column), dtype=np.int64)
    ends, filled = np.cumsum(lengths), np.flatnonzero(counts)
    rows = np.searchsorted(ends, filled, side="right")
    return rows, filled - (ends - lengths)[rows], counts[filled]


def committed_records(delivery: pa.Table) -> Ints:
    """Return the number of records of each row: the records of its bitmap, and the duplicates."""
    bits = [int.from_bytes(bitmap, "little").bit_count() for bitmap in delivery.column("bitmap").to_pylist()]
    return np.array(bits, dtype=np.int64) + ints(delivery, "duplicated")


def numbered(tables: Sequence[pa.Table], columns: Sequence[str]) -> Ints:
    """Return a number for each row of all tables. Rows that are equal in these columns have equal numbers."""
    found = np.zeros(sum(map(len, tables)), dtype=np.int64)
    for column in columns:
        chunks = [chunk for table in tables for chunk in table.column(column).chunks]
        if not chunks:
            continue
        encoded = pa.chunked_array(chunks).combine_chunks().dictionary_encode()
        found = found * max(1, len(encoded.dictionary)) + np.asarray(encoded.indices, dtype=np.int64)
    return found


def places(table: pa.Table, *columns: str) -> dict[tuple[Any, ...], Ints]:
    """Map each combination of values of these columns to its rows, in order. Calling `equal` for each
    combination would look at all rows each time."""
    number = numbered([table], columns)
    order = np.argsort(number, kind="stable").astype(np.int64)
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    firsts = table.select(columns).take(pa.array(order[starts])).to_pylist()
    return dict(zip((tuple(r.values()) for r in firsts), np.split(order, starts[1:]), strict=False))


def places_of(trial: Trial, name: str, *columns: str) -> dict[tuple[Any, ...], Ints]:
    """Return the `places` of a table. They are computed once."""
    return trial.kept(f"places of {columns} in {name}", lambda: places(trial.table(name), *columns))


class Owned(Struct, frozen=True):
    """Rows, ordered by their owner and number. The arrays of the methods have one entry for each row, in this
    order."""

    order: Ints
    """The positions of the rows in their table."""
    starts: Ints
    """The first position in `order` of each owner."""
    sizes: Ints

    @classmethod
    def of(cls, owners: Ints, seq: Ints) -> Owned:
        order = np.lexsort((seq, owners)).astype(np.int64)
        starts = np.flatnonzero(np.diff(owners[order], prepend=-1)).astype(np.int64)
        return cls(order, starts, np.diff(starts, append=len(order)).astype(np.int64))

    @classmethod
    def attempts(cls, table: pa.Table) -> Owned:
        """Order the samples of each attempt."""
        return cls.of(numbered([table], ATTEMPT), ints(table, "seq"))

    @classmethod
    def attempts_of(cls, trial: Trial, name: str) -> Owned:
        """Order the rows of each attempt in a table."""
        return trial.kept(f"attempts of {name}", lambda: cls.attempts(trial.table(name)))

    @property
    def ends(self) -> Ints:
        """The last position in `order` of each owner."""
        return self.starts + self.sizes - 1

    def spread(self, of_owner: Ints) -> Ints:
        """Repeat the value of each owner for all its rows."""
        return np.repeat(of_owner, self.sizes)

    def follows(self, change: Flags) -> Flags:
        """Extend what is true between each row and the next one to all rows. The first row of an owner gets
        False."""
        found = np.append(False, change)[: len(self.order)]
        found[self.starts] = False
        return found

    def neighbours(self, wanted: Flags) -> tuple[Ints, Ints]:
        """Return, for each position, the last position up to it and the first position from it on where
        `wanted` is true for the same owner. -1 if there is none."""
        places = np.arange(len(self.order))
        before = np.maximum.accumulate(np.where(wanted, places, -1))
        after = np.minimum.accumulate(np.where(wanted, places, len(places))[::-1])[::-1]
        first, last = self.spread(self.starts), self.spread(self.ends)
        return np.where(before >= first, before, -1), np.where(after <= last, after, -1)

    def last(self, wanted: Flags) -> Ints:
        """Return the last position of each owner where `wanted` is true. -1 if there is none."""
        places = np.where(wanted, np.arange(len(self.order)), -1)
        return np.asarray(np.maximum.reduceat(places, self.starts), dtype=np.int64)


@lru_cache(maxsize=PARSED_TEXTS)
def parsed(text: str | None) -> Mapping[str, Any]:
    """Return the JSON object in a text, which all readers share. Empty for any other text."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def rows_of(trial: Trial, name: str) -> Rows:
    """Return all rows of a small table, in its order."""
    return trial.kept(f"rows and places of {name}", lambda: list(enumerate(trial.table(name).to_pylist())))


def events(trial: Trial, *kinds: str) -> Rows:
    """Return the events of these kinds with their positions in the table, in the order in which each process
    wrote them."""
    of_kind = trial.kept("events that are compared", lambda: _by_kind(trial.table("events")))
    found = [pair for kind in kinds for pair in of_kind.get(kind, ())]
    return found if len(kinds) == 1 else sorted(found, key=_written)


def _by_kind(table: pa.Table) -> dict[str, Rows]:
    if not sound(table, "kind", "process", "seq"):
        return {}
    read = pc.invert(pc.is_in(table.column("kind"), pa.array(UNREAD)))
    places = np.flatnonzero(read.to_numpy(zero_copy_only=False))
    rows = table.select(EVENT_COLUMNS).take(pa.array(places)).to_pylist()
    pairs = sorted(zip(places.tolist(), rows, strict=True), key=_written)
    return grouped((pair[1]["kind"], pair) for pair in pairs)


def _written(pair: tuple[int, dict[str, Any]]) -> tuple[str, int]:
    return pair[1]["process"], pair[1]["seq"]


def distinct(trial: Trial, name: str, *columns: str) -> Rows:
    """Return each combination of values that the rows of a table have, with the first row that has it."""

    def found() -> Rows:
        table = trial.table(name)
        if not sound(table, *columns):
            return []
        _, rows = np.unique(numbered([table], columns), return_index=True)
        return list(zip(rows.tolist(), table.select(columns).take(pa.array(rows)).to_pylist(), strict=True))

    return trial.kept(f"distinct {columns} of {name}", found)


def ended_process(event: Mapping[str, Any]) -> str:
    """Return the process that a process.exit is about, with its incarnation."""
    incarnation = parsed(event["data"]).get("incarnation")
    return f"{event['subject']}-{incarnation}" if incarnation is not None else str(event["subject"])


def changes(trial: Trial, kind: str, state: str) -> list[dict[str, Any]]:
    """Return the events of a kind (`task.state`, `job.state`) that changed to a state."""
    return [event for _, event in events(trial, kind) if parsed(event["data"]).get("to") == state]


def deployments(trial: Trial) -> dict[Attempt, dict[str, Any]]:
    """Map each attempt that was deployed to its event."""

    def found() -> dict[Attempt, dict[str, Any]]:
        return {attempt_of(e): e for e in changes(trial, "task.state", "DEPLOYING")}

    return trial.kept("deployments", found)


def waits_of(trial: Trial, *kinds: str) -> Rows:
    """Return the waits of these kinds, or all."""
    return [(row, r) for row, r in rows_of(trial, "waits") if not kinds or r["kind"] in kinds]


def attempt_of(event: Row) -> Attempt:
    """Return the attempt of a task that an event is about."""
    return event["subject"], event["attempt"]


def taskmanager_of(event: Row) -> str:
    """Return the TaskManager that an event names."""
    return str(parsed(event["data"]).get("taskmanager"))


def attempts_with(trial: Trial, *kinds: str) -> dict[Attempt, int]:
    """Map each attempt of a task with an event of these kinds to the position of the last such event."""
    return {attempt_of(e): row for row, e in events(trial, *kinds)}


def attempts_that_waited(trial: Trial, kind: str) -> dict[Attempt, int]:
    """Map each attempt of a task with a wait of this kind to the position of the last such wait."""
    return {(r["who"], r["attempt"]): row for row, r in waits_of(trial, kind)}


def happened(trial: Trial, process: str, t_ns: int, times: Iterable[int]) -> bool:
    """Whether one of these times may be the moment that this process recorded as `t_ns`."""
    allowed = tolerance_ns(trial, process, t_ns)
    return any(abs(time - t_ns) <= allowed for time in times)


def vertex_of(task: str) -> str:
    """Return the vertex of a subtask."""
    return task.rpartition("-")[0]
