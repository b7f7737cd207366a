"""Keyed state in sorted files on local disk (`state.backend.type: rocksdb`): a log-structured merge tree.

Writes go to a buffer. A full buffer, and every checkpoint, becomes a run of immutable files; runs are merged when there are
several of similar size. A checkpoint consists of the runs of that moment, so an incremental one stores only new files. There
is no write-ahead log: after a failure the state is that of a checkpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.job.keygroups import group_range
from testbed_runtime.ports.storage import StateFileStore
from testbed_runtime.workload.keyedstate import FOREVER, KeyedRow, KeyedState, SubtaskContext, TimeToLive
from testbed_runtime.workload.keys import key_groups
from testbed_runtime.workload.slotmemory import CachedBlock, SlotMemory
from testbed_runtime.workload.snapshots import StateFile, SubtaskSnapshot
from testbed_runtime.workload.sortedfile import (
    HEAD_BYTES,
    REMOVED,
    TAIL_BYTES,
    Index,
    Place,
    Row,
    Rows,
    decode_block,
    decode_index,
    encode_files,
    index_bytes,
)

MERGE_RUNS = 4
"""Runs of similar size that are merged into one, as RocksDB merges files of level 0."""
FIRST_KEY, LAST_KEY = -(2**63), 2**63 - 1


class StateFiles(StateFileStore, Protocol):
    """The files of one attempt. Pinned ones stay readable for an upload after they were deleted."""

    def pin(self, checkpoint: int, names: tuple[str, ...]) -> None: ...


class SortedFile(Struct, frozen=True):
    """A file with its index in memory."""

    file: StateFile
    index: Index
    firsts: tuple[Place, ...]

    @classmethod
    def open(cls, file: StateFile, files: StateFileStore) -> SortedFile:
        """Raises FlinkError if the file is damaged, OSError if it is missing."""
        size = index_bytes(files.read(file.name, max(0, file.size - TAIL_BYTES)))
        tail = files.read(file.name, max(0, file.size - size))
        index = decode_index(files.read(file.name, 0, HEAD_BYTES), tail)
        return cls(file, index, tuple(block.first for block in index.blocks))


class Run:
    """Files whose ranges of keys follow each other."""

    def __init__(self, members: list[SortedFile]) -> None:
        self.members = members
        self.size = sum(member.file.size for member in members)
        self._firsts = [member.firsts[0] for member in members]

    @property
    def files(self) -> tuple[StateFile, ...]:
        return tuple(member.file for member in self.members)

    @property
    def newest_ns(self) -> int:
        return max(member.index.newest_ns for member in self.members)

    def overlaps(self, window: int) -> bool:
        return self._firsts[0][0] <= window <= self.members[-1].index.last[0]

    def block_of(self, place: Place) -> tuple[SortedFile, int] | None:
        """Return the only block that may contain a place (window and key), with its file. None if there is no such block."""
        found = bisect_right(self._firsts, place) - 1
        if found < 0 or place > self.members[found].index.last:
            return None
        member = self.members[found]
        return member, bisect_right(member.firsts, place) - 1

    def blocks(self, first: Place, last: Place) -> Iterator[tuple[SortedFile, int]]:
        """Yield the blocks, with their files, that may contain places of a range."""
        for member in self.members:
            if member.firsts[0] <= last and member.index.last >= first:
                start = max(0, bisect_right(member.firsts, first) - 1)
                for number in range(start, bisect_right(member.firsts, last)):
                    yield member, number


def runs_to_merge(sizes: list[int]) -> int:
    """Return how many of the newest runs to merge, 0 for none. A run joins if it is at most as large as all newer runs together. At
    least MERGE_RUNS runs are merged."""
    count, total = 0, 0
    for size in reversed(sizes):
        if count and size > total:
            break
        count, total = count + 1, total + size
    return count if count >= MERGE_RUNS else 0


class FileState(KeyedState):
    """`KeyedState` whose rows are in memory only until they are written to a file. `name` is unique in the slot."""

    def __init__(
        self,
        context: SubtaskContext,
        files: StateFiles,
        memory: SlotMemory,
        *,
        name: str,
        ttl: TimeToLive = FOREVER,
    ) -> None:
        super().__init__(context, ttl)
        self._files = files
        self._memory = memory
        self._name = name
        self._runs: list[Run] = []
        self._written = 0
        memory.open(name)

    @property
    def adds_up(self) -> bool:
        """Always False: adding up counts outside of the state would delay the writing of full buffers to files."""
        return False

    def add(self, window: int, keys: list[int], counts: list[int], texts: Mapping[int, bytes]) -> None:
        super().add(window, keys, counts, texts)
        if self._memory.must_flush(self._name, len(self._rows)):
            self._flush()

    def take(self, windows: list[int]) -> list[KeyedRow]:
        found: dict[Place, Row] = {}
        for window in windows:
            first, last = (window, FIRST_KEY), (window, LAST_KEY)
            for run in self._runs:
                for member, number in run.blocks(first, last):
                    rows = self._block(member, number)
                    found.update((place, row) for place, row in rows.items() if place[0] == window)
        found.update((place, row) for place, row in self._rows.items() if place[0] in windows)
        for place, row in found.items():
            if any(run.overlaps(place[0]) for run in self._runs):
                self._rows[place] = (REMOVED, row[1], b"")
            else:
                self._rows.pop(place, None)
        return [(*place, row[0], row[2]) for place, row in sorted(found.items()) if self._live(row)]

    def rows(self) -> Rows:
        self._flush()
        return self._merged(self._runs)

    def snapshot(self, base: SubtaskSnapshot) -> SubtaskSnapshot:
        """Write the buffer to a file, and drop runs that have expired as a whole."""
        self._flush()
        for run in [run for run in self._runs if self._ttl.expired(run.newest_ns)]:
            self._runs.remove(run)
            self._delete(run)
        runs = tuple(run.files for run in self._runs)
        self._files.pin(base.checkpoint, tuple(file.name for run in runs for file in run))
        return replace(base, runs=runs)

    def close(self) -> None:
        self._memory.close(self._name)
        for run in self._runs:
            self._delete(run)
        self._runs.clear()

    # ---- files

    def _finder(self) -> Callable[[Place], Row | None]:
        return self._find

    def _find(self, place: Place) -> Row | None:
        row = self._rows.get(place)
        for run in reversed(self._runs):
            if row is not None:
                break
            found = run.block_of(place)
            row = None if found is None else self._block(*found).get(place)
        return row if row is not None and self._live(row) else None

    def _block(self, member: SortedFile, number: int) -> CachedBlock:
        name = f"{self._name}/{member.file.name}"
        rows = self._memory.find(name, number)
        if rows is None:
            rows = dict(self._read(member, number).pairs())
            self._memory.keep(name, number, rows)
        return rows

    def _read(self, member: SortedFile, number: int) -> Rows:
        block = member.index.blocks[number]
        return decode_block(self._files.read(member.file.name, block.offset, block.size))

    def _flush(self) -> None:
        rows = self._ttl.unexpired(Rows.of(sorted(self._rows.items())))
        self._rows.clear()
        self._memory.must_flush(self._name, 0)
        if not self._runs:
            rows = rows.chosen(rows.counts != REMOVED)
        if len(rows):
            self._runs.append(self._write(rows))
        if merge := runs_to_merge([run.size for run in self._runs]):
            self._merge(merge)

    def _merge(self, count: int) -> None:
        """Merge the `count` newest runs into one, without expired rows. Markers of removed rows are dropped if the oldest run is among them."""
        kept, merged = self._runs[:-count], self._runs[-count:]
        rows = self._merged(merged, removed=bool(kept))
        self._runs = [*kept, self._write(rows)] if len(rows) else kept
        for run in merged:
            self._delete(run)

    def _merged(self, runs: list[Run], *, removed: bool = False) -> Rows:
        """Return the newest row of each key in these runs, unless it has expired. `removed`: keep the rows that mark a key as removed."""
        every = ((FIRST_KEY, FIRST_KEY), (LAST_KEY, LAST_KEY))
        parts = [self._read(*found) for run in runs for found in run.blocks(*every)]
        rows = self._ttl.unexpired(Rows.concat([Rows.of([]), *parts]).merged())
        return rows if removed else rows.chosen(rows.counts != REMOVED)

    def _write(self, rows: Rows) -> Run:
        written = []
        for data in encode_files(rows):
            self._written += 1
            file = StateFile(f"{self._written:06}.sst", len(data))
            self._files.write(file.name, data)
            written.append(SortedFile.open(file, self._files))
        return Run(written)

    def _delete(self, run: Run) -> None:
        for member in run.members:
            self._files.delete(member.file.name)
            self._memory.forget(f"{self._name}/{member.file.name}", len(member.firsts))

    def _restore_files(self, snapshot: SubtaskSnapshot) -> None:
        """Continue with the files of this subtask's own snapshot. At another parallelism, write this subtask's key groups to new
        files."""
        context = self._context
        runs = [Run([SortedFile.open(file, self._files) for file in run]) for run in snapshot.runs]
        if (snapshot.subtask, snapshot.parallelism) == (context.subtask, context.parallelism):
            self._runs = runs
            self._written = max((int(f.name.partition(".")[0]) for f in snapshot.files), default=0)
            return
        rows = self._merged(runs)
        mine = group_range(context.subtask, context.parallelism, context.max_parallelism)
        groups = key_groups(rows.keys, context.max_parallelism)
        rows = rows.chosen((groups >= mine.start) & (groups < mine.stop))
        for run in runs:
            self._delete(run)
        if len(rows):
            self._runs.append(self._write(rows))
