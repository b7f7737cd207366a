"""Turn rows into segments: per-table buffers, common columns, defaults, limits.

`history.recording.sink.StreamingSink` sends the segments of a process. `MemorySink` keeps the rows (simulation, tests).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pyarrow as pa

from testbed_runtime.core.errors import LocalProtocolError
from testbed_runtime.core.values import MAX_INT
from testbed_runtime.history.schema import TABLES, Trial, arrow_schema
from testbed_runtime.history.segments import Segment, encode_table

MAX_BUFFERED_ROWS = 20_000
"""Maximum buffered rows of one table. The busiest table writes fewer than 2,000 rows in 200 ms."""
SEGMENT_ROWS = 4_096
"""A table with this many rows gets a segment before the regular interval."""
CHUNK_ROWS = 1_024
"""A `MemorySink` keeps this many rows of a table as Python objects."""
SPOOL_SOFT_BYTES = 8 * 1024 * 1024
"""If the recorder is unreachable and this much is waiting, only VITAL tables are recorded."""
SPOOL_HARD_BYTES = 32 * 1024 * 1024
"""Above this nothing is recorded: the memory of the process under test matters more than its history."""
VITAL = ("events", "waits", "delivery", "checkpoints", "faults")

NowNs = Callable[[], int]
_MINUS_ONE = frozenset({"attempt", "checkpoint"})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _column(name: str, kind: pa.DataType) -> tuple[str, Callable[[Any], Any], type, Any]:
    """Return the name, conversion, type and default of a column. Values of that type need no conversion. Columns are never
    null."""
    if pa.types.is_string(kind):
        return name, _text, str, ""
    if pa.types.is_boolean(kind):
        return name, bool, bool, False
    if pa.types.is_binary(kind):
        return name, bytes, bytes, b""
    if pa.types.is_list(kind):
        return name, lambda values: [int(v) for v in values], list, []
    return name, int, int, -1 if name in _MINUS_ONE else 0


_COLUMNS = {table: [_column(name, kind) for name, kind in columns] for table, columns in TABLES.items()}
_NAMES = {table: frozenset(("t_ns", *(name for name, _ in columns))) for table, columns in TABLES.items()}
_DEFAULTS = {table: {name: default for name, _, _, default in found} for table, found in _COLUMNS.items()}
_VALUES = {table: itemgetter(*defaults) for table, defaults in _DEFAULTS.items()}
_KINDS = {table: [kind for _, _, kind, _ in found] for table, found in _COLUMNS.items()}


def _with_defaults(table: str, row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values of all columns. Raises LocalProtocolError."""
    if table not in _NAMES or not row.keys() <= _NAMES[table]:
        unknown = row.keys() - _NAMES.get(table, frozenset())
        raise LocalProtocolError(f"history table {table!r} has no columns {sorted(unknown)}")
    values: tuple[Any, ...] = _VALUES[table](_DEFAULTS[table] | row)
    return values


class RowBuffer:
    """The rows of one process in order, per table."""

    __slots__ = ("_chunk_rows", "_chunks", "_common", "_now_ns", "_rows", "_seq")

    def __init__(
        self, *, run: str, trial: str, process: str, boot_id: str, now_ns: NowNs, chunk_rows: int = MAX_INT
    ) -> None:
        """Create an empty buffer. With `chunk_rows` rows, a table keeps them as an Arrow table, which takes
        less memory."""
        self._common = {"run": run, "trial": trial, "process": process, "boot_id": boot_id}
        self._now_ns = now_ns
        self._seq = 0
        self._chunk_rows = chunk_rows
        self._rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in TABLES}
        self._chunks: dict[str, list[pa.Table]] = {}

    @property
    def process(self) -> str:
        return self._common["process"]

    def append(self, table: str, row: dict[str, Any]) -> None:
        """Add a row. Mappings and lists become JSON in text columns. Raises LocalProtocolError for an unknown table or
        column, which is a bug of the caller."""
        try:
            # most rows have every column and no other
            values = _VALUES[table](row) if len(row) == len(_KINDS[table]) else _with_defaults(table, row)
        except KeyError:
            values = _with_defaults(table, row)
        if list(map(type, values)) != _KINDS[table]:
            found = zip(values, _COLUMNS[table], strict=True)
            values = tuple(
                value if type(value) is kind else coerce(value) for value, (_, coerce, kind, _) in found
            )
        self.put(table, values, int(row["t_ns"]) if "t_ns" in row else None)

    def put(self, table: str, values: tuple[Any, ...], t_ns: int | None = None) -> None:
        """Add a row at `t_ns`, by default now. `values` has one for every column, in their order and with
        their types."""
        rows = self._rows[table]
        rows.append((self._seq, self._now_ns() if t_ns is None else t_ns, *values))
        self._seq += 1
        if len(rows) >= self._chunk_rows:
            self._chunks.setdefault(table, []).append(self._arrow(table, rows))
            rows.clear()

    def count(self, table: str) -> int:
        chunks = self._chunks.get(table, ())
        return len(self._rows[table]) + sum(int(chunk.num_rows) for chunk in chunks)

    def table(self, table: str) -> pa.Table:
        """Return a copy of the buffered rows as an Arrow table."""
        rest = self._arrow(table, self._rows[table])
        chunks = self._chunks.get(table)
        return pa.concat_tables([*chunks, rest]) if chunks else rest

    def _arrow(self, table: str, rows: list[tuple[Any, ...]]) -> pa.Table:
        shared = {name: pa.repeat(pa.scalar(value), len(rows)) for name, value in self._common.items()}
        names = ("seq", "t_ns", *(name for name, _ in TABLES[table]))
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        return pa.table({**shared, **dict(zip(names, columns, strict=True))}, schema=arrow_schema(table))

    def take(self, table: str) -> pa.Table:
        """Return the buffered rows as an Arrow table and empty the buffer, even if a value does not fit its column."""
        try:
            return self.table(table)
        finally:
            self._rows[table] = []
            self._chunks.pop(table, None)


class SegmentWriter:
    """Turns rows into numbered segments. Sheds rows if too much is waiting, and records how many were shed."""

    def __init__(self, *, run: str, trial: str, process: str, boot_id: str, now_ns: NowNs) -> None:
        self._buffer = RowBuffer(run=run, trial=trial, process=process, boot_id=boot_id, now_ns=now_ns)
        self._number = 0
        self._shed: Counter[str] = Counter()
        self._spool: list[Segment] = []
        self._spool_bytes = 0
        self._cut_ends: list[int] = []

    def append(self, table: str, row: dict[str, Any]) -> bool:
        """Add a row. Return True if it is time to cut a segment."""
        if table in _NAMES and self._buffer.count(table) >= MAX_BUFFERED_ROWS:
            self._shed[table] += 1
            return True
        self._buffer.append(table, row)
        return self._buffer.count(table) >= SEGMENT_ROWS

    def cut(self) -> None:
        """Move buffered rows into segments at the end of the spool, up to its limits."""
        if self._shed and self._spool_bytes < SPOOL_HARD_BYTES:
            shed, self._shed = self._shed, Counter()
            for table, rows in shed.items():
                data = {"table": table, "rows": rows}
                self._buffer.append(
                    "events", {"kind": "history.shed", "subject": self._buffer.process, "data": data}
                )
        first = self._number
        for index, table in enumerate(TABLES):
            limit = SPOOL_HARD_BYTES if table in VITAL else SPOOL_SOFT_BYTES
            rows = self._buffer.count(table)
            if rows and self._spool_bytes < limit:
                self._cut_table(index, table, rows)
        if self._number > first:
            self._cut_ends.append(self._number)

    def pending(self, max_bytes: int) -> list[Segment]:
        """Return the oldest unacknowledged cuts: at least one, and more up to `max_bytes`.

        Cuts are never split, because the rows of a cut are numbered across its tables: half a cut before a SIGKILL would
        look like lost rows."""
        batch: list[Segment] = []
        size = 0
        for end in self._cut_ends:
            cut = [s for s in self._spool if s.number < end and (not batch or s.number > batch[-1].number)]
            size += sum(s.size for s in cut)
            if batch and size > max_bytes:
                break
            batch.extend(cut)
        return batch

    def acknowledged(self, next_number: int) -> None:
        """Drop every segment below `next_number`, which the recorder has written to disk."""
        kept = [s for s in self._spool if s.number >= next_number]
        self._spool_bytes = sum(s.size for s in kept)
        self._spool = kept
        self._cut_ends = [end for end in self._cut_ends if end > next_number]

    @property
    def next_number(self) -> int:
        return self._number

    @property
    def buffered(self) -> bool:
        """Whether rows are waiting that are not in a segment yet."""
        return bool(self._shed) or any(self._buffer.count(t) for t in TABLES)

    def _cut_table(self, index: int, table: str, rows: int) -> None:
        try:
            body = encode_table(self._buffer.take(table))
        # a value does not fit: drop the segment, record that, and continue
        except (pa.ArrowException, OverflowError):
            self._shed[table] += rows
            return
        segment = Segment(number=self._number, table=index, body=body)
        self._number += 1
        self._spool.append(segment)
        self._spool_bytes += segment.size


class MemorySink:
    """A `ports.storage.HistorySink` that keeps everything in memory. One per process of a simulation."""

    def __init__(
        self, *, run: str = "run", trial: str = "main-1", process: str, boot_id: str = "sim", now_ns: NowNs
    ) -> None:
        self.buffer = RowBuffer(
            run=run, trial=trial, process=process, boot_id=boot_id, now_ns=now_ns, chunk_rows=CHUNK_ROWS
        )
        self.put = self.buffer.put

    def append(self, table: str, **row: Any) -> None:
        self.buffer.append(table, row)

    async def flush(self) -> bool:
        """Return True: there is nothing to flush."""
        return True


class MemoryHistory:
    """All in-memory sinks of one trial. Replaces the recorder."""

    def __init__(self, *, run: str = "run", trial: str = "main-1", boot_id: str = "sim") -> None:
        self.run = run
        self.trial_name = trial
        self.boot_id = boot_id
        self._sinks: list[MemorySink] = []

    def sink(self, process: str, now_ns: NowNs) -> MemorySink:
        """Create the sink of a new process. `now_ns` is its clock in nanoseconds."""
        sink = MemorySink(
            run=self.run, trial=self.trial_name, process=process, boot_id=self.boot_id, now_ns=now_ns
        )
        self._sinks.append(sink)
        return sink

    def table(self, name: str) -> pa.Table:
        """Return the rows of a table that all processes have appended so far."""
        written = [s.buffer.table(name) for s in self._sinks if s.buffer.count(name)]
        return pa.concat_tables(written or [arrow_schema(name).empty_table()])

    def tables(self) -> dict[str, pa.Table]:
        """Return everything appended so far by all processes."""
        return {name: self.table(name) for name in TABLES}

    def trial(self) -> Trial:
        return Trial(run=self.run, trial=self.trial_name, tables=self.tables())
