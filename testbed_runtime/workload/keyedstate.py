"""Counts by window and key in memory (`state.backend.type: hashmap`), stored and redistributed by key group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.keygroups import group_range
from testbed_runtime.core.job.restore import max_parallelism_mismatch
from testbed_runtime.workload.keys import Ints, key_groups
from testbed_runtime.workload.snapshots import KeyGroupState, SubtaskSnapshot
from testbed_runtime.workload.sortedfile import REMOVED, Place, Row, Rows, objects

KeyedRow = tuple[int, int, int, bytes]
"""Window, key, count, text."""


class SubtaskContext(Struct, frozen=True):
    """The subtask that an operator runs in. `vertex` is the index of its vertex in `names`, the names of all vertices."""

    vertex: int
    name: str
    subtask: int
    parallelism: int
    max_parallelism: int
    t0_ns: int
    names: tuple[str, ...]

    def origin(self, vertex: int, subtask: int) -> str:
        """Return the `vertex-subtask` that created a record."""
        return f"{self.names[vertex]}-{subtask}" if vertex < len(self.names) else f"unknown-{subtask}"


class TimeToLive:
    """Decides when entries expire, as with Flink's StateTtlConfig: some time after they were last written (OnCreateAndWrite). Expired
    entries are never returned. With 0 ns, entries do not expire and `now_ns` is not called."""

    def __init__(self, ttl_ns: int = 0, now_ns: Callable[[], int] = lambda: 0) -> None:
        self.ttl_ns = ttl_ns
        self._now_ns = now_ns

    def stamp(self) -> int:
        """Return the time of a write; 0 if entries do not expire."""
        return self._now_ns() if self.ttl_ns else 0

    def expired(self, stamp: int) -> bool:
        return self.ttl_ns > 0 and stamp + self.ttl_ns <= self._now_ns()

    def unexpired(self, rows: Rows) -> Rows:
        return rows.chosen(rows.stamps + self.ttl_ns > self._now_ns()) if self.ttl_ns else rows


FOREVER = TimeToLive()


class KeyedState:
    """Counts and texts by window and key."""

    def __init__(self, context: SubtaskContext, ttl: TimeToLive = FOREVER) -> None:
        self._context = context
        self._ttl = ttl
        self._rows: dict[Place, Row] = {}
        self._sorted: tuple[list[Place], Ints, Ints, Ints] | None = None
        """The sorted places of the last snapshot, then their windows, keys and key groups. Outdated if there are more rows now."""

    @property
    def adds_up(self) -> bool:
        """Whether a row depends only on the sum of the added values, not on their times."""
        return not self._ttl.ttl_ns

    def add(self, window: int, keys: list[int], counts: list[int], texts: Mapping[int, bytes]) -> None:
        """Add to the counts of keys. A key keeps its first text."""
        rows, stamp, find = self._rows, self._ttl.stamp(), self._finder()
        for key, count in zip(keys, counts, strict=True):
            place = (window, key)
            old = find(place)
            if old is None:
                rows[place] = (count, stamp, texts.get(key, b""))
            else:
                rows[place] = (old[0] + count, stamp, old[2] or (texts.get(key, b"") if texts else b""))

    def count(self, window: int, key: int) -> int:
        found = self._find((window, key))
        return 0 if found is None else found[0]

    def take(self, windows: list[int]) -> list[KeyedRow]:
        """Remove windows. Return their rows, sorted by window and key."""
        places = sorted(place for place in self._rows if place[0] in windows)
        taken = [(place, self._rows.pop(place)) for place in places]
        self._sorted = None
        return [(*place, row[0], row[2]) for place, row in taken if self._live(row)]

    def rows(self) -> Rows:
        """Return every row, sorted by window and key."""
        return Rows.of(sorted((place, row) for place, row in self._rows.items() if self._live(row)))

    def totals(self) -> dict[int, int]:
        """Return the sum of the counts of each window."""
        rows = self.rows()
        windows, inverse = np.unique(rows.windows, return_inverse=True)
        sums = np.zeros(len(windows), np.int64)
        np.add.at(sums, inverse, rows.counts)
        return dict(zip(windows.tolist(), sums.tolist(), strict=True))

    def snapshot(self, base: SubtaskSnapshot) -> SubtaskSnapshot:
        """Add the state to a snapshot, without expired rows."""
        if self._ttl.ttl_ns:
            self._rows = {place: row for place, row in self._rows.items() if self._live(row)}
            self._sorted = None
        if not self._rows:
            return base
        places, windows, keys, groups = self._in_order()
        counts, stamps, texts = zip(*map(self._rows.__getitem__, places), strict=True)
        rows = Rows(windows, keys, np.array(counts, np.int64), np.array(stamps, np.int64), objects(texts))
        return replace(base, key_groups=KeyGroupState.divided(groups, rows))

    def _in_order(self) -> tuple[list[Place], Ints, Ints, Ints]:
        """Return the places in order, and their windows, keys and key groups. Rows are only added between two snapshots."""
        if self._sorted is None or len(self._sorted[0]) != len(self._rows):
            places = sorted(self._rows)
            windows = np.array([window for window, _ in places], np.int64)
            keys = np.array([key for _, key in places], np.int64)
            self._sorted = places, windows, keys, key_groups(keys, self._context.max_parallelism)
        return self._sorted

    def restore(self, snapshots: Iterable[SubtaskSnapshot]) -> None:
        """Restore this subtask's key groups. Raises FlinkError for another max parallelism or another backend."""
        context = self._context
        mine = group_range(context.subtask, context.parallelism, context.max_parallelism)
        for snapshot in snapshots:
            former, limit = snapshot.max_parallelism, context.max_parallelism
            if former != limit:
                text = max_parallelism_mismatch(snapshot.checkpoint, context.name, former, limit)
                raise FlinkError("IllegalStateException", text)
            self._restore_files(snapshot)
            for group in snapshot.key_groups:
                if group.key_group in mine:
                    self._sorted = None
                    self._rows.update(self._ttl.unexpired(group.rows()).pairs())

    def close(self) -> None:
        """Release the state's resources."""

    def _restore_files(self, snapshot: SubtaskSnapshot) -> None:
        if snapshot.runs:
            raise FlinkError(
                "IllegalStateException",
                f"Checkpoint {snapshot.checkpoint} of {snapshot.vertex} was taken with state.backend.type rocksdb and cannot "
                "be restored with hashmap.",
            )

    def _finder(self) -> Callable[[Place], Row | None]:
        """Return the fastest way to find a row."""
        return self._find if self._ttl.ttl_ns else self._rows.get

    def _find(self, place: Place) -> Row | None:
        row = self._rows.get(place)
        return row if row is not None and self._live(row) else None

    def _live(self, row: Row) -> bool:
        return row[0] != REMOVED and not self._ttl.expired(row[1])
