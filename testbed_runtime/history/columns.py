"""Columns of the history as arrays, and the rows of each owner in the order in which its process wrote them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from testbed_runtime.core.values import NS
from testbed_runtime.history.schema import TABLES, Trial

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
Row = Mapping[str, Any]
Rows = list[tuple[int, dict[str, Any]]]
"""Rows with their positions in the table."""
ATTEMPT = ("process", "task", "attempt")
SPENT = ("busy_ns", "backpressured_ns", "idle_ns")
"""The columns with the times that a task spent. Their sum grows as fast as the task's clock."""
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


def distinct(table: pa.Table, *columns: str) -> Rows:
    """Return each combination of values of these columns, with the first row that has it."""
    if not sound(table, *columns):
        return []
    _, rows = np.unique(numbered([table], columns), return_index=True)
    return list(zip(rows.tolist(), table.select(columns).take(pa.array(rows)).to_pylist(), strict=True))


def has_one_clock(trial: Trial) -> bool:
    """Whether all rows have one boot id. A reduced trial has it in some tables only, and every process writes events."""
    tables = [t for name in TABLES if len(t := trial.table(name)) and "boot_id" in t.column_names]
    return len({boot for table in tables for boot in pc.unique(table.column("boot_id")).to_pylist()}) == 1


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
    value = _json(text)
    return value if isinstance(value, dict) else {}


def targets_in(text: str | None) -> list[str] | None:
    """Return the targets of a fault from their JSON text. None if it is not a list."""
    value = _json(text)
    return list(map(str, value)) if isinstance(value, list) else None


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def ended_process(event: Mapping[str, Any]) -> str:
    """Return the process that a process.exit with parsed data is about, with its incarnation."""
    incarnation = event["data"].get("incarnation")
    return f"{event['subject']}-{incarnation}" if incarnation is not None else str(event["subject"])


def attempt_of(event: Row) -> Attempt:
    """Return the attempt of a task that an event is about."""
    return event["subject"], event["attempt"]


def taskmanager_of(event: Row) -> str:
    """Return the TaskManager that an event with parsed data names."""
    return str(event["data"].get("taskmanager"))


def vertex_of(task: str) -> str:
    """Return the vertex of a subtask."""
    return task.rpartition("-")[0]
