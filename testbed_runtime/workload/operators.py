"""Operators: batches of records in, batches out, with state per key group. Pure; time is an argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from testbed_runtime.core.errors import FlinkError, UserError
from testbed_runtime.core.job.jobgraph import OperatorConfig
from testbed_runtime.workload.functions import UserFunction, UserRecord, load_function
from testbed_runtime.workload.keys import group_range, key_groups
from testbed_runtime.workload.records import (
    Records,
    checksums,
    picked,
    record_dtype,
    seal,
    text_bytes,
    text_of,
    with_text,
)
from testbed_runtime.workload.snapshots import KeyGroupState, SubtaskSnapshot

KeyedRow = tuple[int, int, int, bytes]
"""Window, key, count, text."""

SLICE_RECORDS_FIRST = 32
"""Size of a Python function's first slice, before its cost is known."""


@dataclass(frozen=True, slots=True)
class SubtaskContext:
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


class Operator:
    """The `map` operator, which passes records on unchanged, and base class of the others."""

    slice_records: int = 0
    """Maximum records per call; 0 for no limit. User code runs in slices."""
    drops: bool = False
    """Whether the operator dropped records on purpose."""

    def __init__(self, context: SubtaskContext) -> None:
        self.context = context

    def process(self, records: Records) -> Records | None:
        return records

    def next_timer_ns(self) -> int | None:
        """Return when `on_time` is to be called, or None."""
        return None

    def on_time(self, now_ns: int) -> Records | None:
        del now_ns
        return None

    def finish(self) -> Records | None:
        """Return the records still held at the end of the data, or None."""
        return None

    def snapshot(self, base: SubtaskSnapshot) -> SubtaskSnapshot:
        return base

    def restore(self, snapshots: Iterable[SubtaskSnapshot]) -> None:
        """Restore from the snapshots of all subtasks, at any earlier parallelism. Keeps only this subtask's key groups."""

    def took(self, records: int, seconds: float) -> None:
        """Report how long a call took, for operators that adapt their slices."""


class KeyedState:
    """Counts by window and key, stored and redistributed by key group."""

    def __init__(self, context: SubtaskContext) -> None:
        self._context = context
        self.counts: dict[tuple[int, int], int] = {}
        self.texts: dict[int, bytes] = {}

    def snapshot(self) -> tuple[KeyGroupState, ...]:
        if not self.counts:
            return ()
        keys = np.array([key for _, key in self.counts], dtype=np.int64)
        by_group: dict[int, list[KeyedRow]] = {}
        groups = key_groups(keys, self._context.max_parallelism).tolist()
        for group, ((window, key), count) in zip(groups, self.counts.items(), strict=True):
            by_group.setdefault(group, []).append((window, key, count, self.texts.get(key, b"")))
        return tuple(KeyGroupState.of(group, sorted(by_group[group])) for group in sorted(by_group))

    def restore(self, snapshots: Iterable[SubtaskSnapshot]) -> None:
        context = self._context
        mine = group_range(context.subtask, context.parallelism, context.max_parallelism)
        for snapshot in snapshots:
            if snapshot.max_parallelism != context.max_parallelism:
                raise FlinkError(
                    "IllegalStateException",
                    f"Failed to rollback to checkpoint/savepoint {snapshot.checkpoint}. Max parallelism mismatch between "
                    f"checkpoint/savepoint state and new program. Cannot map operator {context.name} with max parallelism "
                    f"{snapshot.max_parallelism} to new program with max parallelism {context.max_parallelism}. This "
                    "indicates that the program has been changed in a non-compatible way after the checkpoint/savepoint.",
                )
            for group in snapshot.key_groups:
                if group.key_group in mine:
                    self._add(group.rows())

    def _add(self, rows: list[KeyedRow]) -> None:
        for window, key, count, text in rows:
            self.counts[window, key] = self.counts.get((window, key), 0) + count
            if text:
                self.texts[key] = text


class KeyedCount(Operator):
    """Counts records per key and passes them on."""

    def __init__(self, context: SubtaskContext) -> None:
        super().__init__(context)
        self.state = KeyedState(context)

    def process(self, records: Records) -> Records:
        keys, counts = np.unique(records["key"], return_counts=True)
        state = self.state.counts
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            state[0, key] = state.get((0, key), 0) + count
        return records

    def count(self, key: int) -> int:
        return self.state.counts.get((0, key), 0)

    def snapshot(self, base: SubtaskSnapshot) -> SubtaskSnapshot:
        return replace(base, key_groups=self.state.snapshot())

    def restore(self, snapshots: Iterable[SubtaskSnapshot]) -> None:
        self.state.restore(snapshots)


class TumblingWindow(Operator):
    """Counts per key and window of the due time. A window fires at its end; later records fire as separate late panes, so
    that the sum of all counts equals the number of records. An output record is due at its window's end."""

    def __init__(self, context: SubtaskContext, window_s: float) -> None:
        super().__init__(context)
        self.state = KeyedState(context)
        self._window_ns = max(1, int(window_s * 1e9))
        self._record_bytes = 0
        self._next_sequence = 0
        self._open: dict[int, int] = {}

    def process(self, records: Records) -> None:
        self._record_bytes = records.dtype.itemsize
        windows = (records["due_ns"] - self.context.t0_ns) // self._window_ns
        for window in np.unique(windows).tolist():
            chosen = records[windows == window]
            keys, first, inverse = np.unique(chosen["key"], return_index=True, return_inverse=True)
            counts = np.bincount(inverse, weights=chosen["count"]).astype(np.int64)
            self._count(window, keys.tolist(), counts.tolist())
            for index in first[chosen["text"][first] > 0].tolist():
                self.state.texts.setdefault(int(chosen["key"][index]), text_bytes(chosen[index]))

    def _count(self, window: int, keys: list[int], counts: list[int]) -> None:
        state = self.state.counts
        self._open[window] = self._open.get(window, 0) + sum(counts)
        for key, count in zip(keys, counts, strict=True):
            state[window, key] = state.get((window, key), 0) + count

    def _end_ns(self, window: int) -> int:
        return self.context.t0_ns + (window + 1) * self._window_ns

    def next_timer_ns(self) -> int | None:
        return self._end_ns(min(self._open)) if self._open else None

    def on_time(self, now_ns: int) -> Records | None:
        return self._fire([window for window in sorted(self._open) if self._end_ns(window) <= now_ns])

    def finish(self) -> Records | None:
        return self._fire(sorted(self._open))

    def _fire(self, windows: list[int]) -> Records | None:
        rows = sorted((w, k, c) for (w, k), c in self.state.counts.items() if w in windows)
        if not rows:
            return None
        for window, key, _ in rows:
            del self.state.counts[window, key]
        for window in windows:
            del self._open[window]
        texts = [self.state.texts.get(key, b"") for _, key, _ in rows]
        if not self._open:
            self.state.texts.clear()
        return self._panes(rows, texts)

    def _panes(self, rows: list[tuple[int, int, int]], texts: list[bytes]) -> Records:
        panes = np.zeros(len(rows), record_dtype(self._record_bytes))
        panes["vertex"] = self.context.vertex
        panes["subtask"] = self.context.subtask
        panes["sequence"] = np.arange(self._next_sequence, self._next_sequence + len(rows), dtype=np.uint64)
        panes["due_ns"] = [self._end_ns(window) for window, _, _ in rows]
        panes["key"] = [key for _, key, _ in rows]
        panes["count"] = [count for _, _, count in rows]
        if any(texts):
            with_text(panes, texts)
        self._next_sequence += len(rows)
        return seal(panes)

    def snapshot(self, base: SubtaskSnapshot) -> SubtaskSnapshot:
        return replace(
            base,
            key_groups=self.state.snapshot(),
            next_sequence=self._next_sequence,
            record_bytes=self._record_bytes,
        )

    def restore(self, snapshots: Iterable[SubtaskSnapshot]) -> None:
        every = list(snapshots)
        self.state.restore(every)
        for (window, _), count in self.state.counts.items():
            self._open[window] = self._open.get(window, 0) + count
        for snapshot in every:
            self._record_bytes = max(self._record_bytes, snapshot.record_bytes)
            if snapshot.subtask == self.context.subtask:
                self._next_sequence = snapshot.next_sequence


class PythonFunction(Operator):
    """Calls a Python function for each record, in slices of about SLICE_S of work."""

    SLICE_S = 0.0005

    def __init__(
        self, context: SubtaskContext, function: UserFunction, reference: str, *, reuse: bool = False
    ) -> None:
        """With `reuse`, the function gets the same UserRecord again and again, each time with other values: it must not keep
        it (Flink's pipeline.object-reuse)."""
        super().__init__(context)
        self._reuse = reuse
        self._function = function
        self._reference = reference.rpartition("/")[2]
        self.slice_records = SLICE_RECORDS_FIRST

    def process(self, records: Records) -> Records | None:
        new_texts: dict[int, str] = {}
        dropped: list[int] = []
        function, keys, texts = self._function, records["key"].tolist(), self._texts(records)
        new_keys = keys.copy()
        for index, record in enumerate(self._views(records, keys, texts)):
            try:
                answer: Any = function(record)
            except Exception as error:
                raise self._raised(error, record) from error
            if type(answer) is UserRecord:
                if answer.key != keys[index]:
                    new_keys[index] = answer.key
                if answer.text != texts[index]:
                    new_texts[index] = answer.text
            elif answer is None:
                dropped.append(index)
            elif isinstance(answer, int):
                new_keys[index] = answer
            else:
                raise self._wrong(answer)
        if new_keys != keys or new_texts:
            records["key"] = new_keys
            for index, text in new_texts.items():
                with_text(records[index : index + 1], [text.encode()])
            changed = records["key"] != keys
            changed[list(new_texts)] = True
            records["checksum"][changed] = checksums(records)[changed]
        if not dropped:
            return records
        self.drops = True
        kept = np.delete(np.arange(len(records)), dropped)
        return picked(records, kept) if len(kept) else None

    @staticmethod
    def _texts(records: Records) -> list[str]:
        if records["text"].any():
            return [text_of(record) for record in records]
        return [""] * len(records)

    def _views(self, records: Records, keys: list[int], texts: list[str]) -> Iterable[UserRecord]:
        """Return what the function sees of each record. The columns are converted at once, each record when it is its turn."""
        vertices, subtasks = records["vertex"].tolist(), records["subtask"].tolist()
        names = {pair: self.context.origin(*pair) for pair in set(zip(vertices, subtasks, strict=True))}
        sources = [names[pair] for pair in zip(vertices, subtasks, strict=True)]
        sequence, due_ns, count = (records[name].tolist() for name in ("sequence", "due_ns", "count"))
        columns = sources, sequence, keys, due_ns, count, texts
        return self._reused(*columns) if self._reuse else map(UserRecord, *columns)

    @staticmethod
    def _reused(*columns: Sequence[Any]) -> Iterator[UserRecord]:
        record = UserRecord("", 0, 0, 0, 0, "")
        for values in zip(*columns, strict=True):
            record.source, record.sequence, record.key, record.due_ns, record.count, record.text = values
            yield record

    def took(self, records: int, seconds: float) -> None:
        """Choose the next slice to take SLICE_S at the measured cost, and at most twice the size of this one."""
        fitting = int(self.SLICE_S * records / seconds) if seconds > 0 else 2 * self.slice_records
        self.slice_records = max(1, min(fitting, 2 * self.slice_records, 1024))

    def _raised(self, error: Exception, record: UserRecord) -> FlinkError:
        where = f"raised by {self._reference} on record {record.sequence} of {record.source}"
        return FlinkError(type(error).__name__, f"{error} ({where})")

    def _wrong(self, answer: object) -> FlinkError:
        return FlinkError(
            "TypeError",
            f"{self._reference} returned {type(answer).__name__} instead of a UserRecord, an int (a new key) or None",
        )


def make_operator(config: OperatorConfig, context: SubtaskContext, *, reuse: bool = False) -> Operator:
    """Create an operator. `reuse`: see PythonFunction. Raises FlinkError if its function cannot be loaded, and ValueError for an unknown kind."""
    if config.kind == "map":
        return Operator(context)
    if config.kind == "keyed-count":
        return KeyedCount(context)
    if config.kind == "window":
        return TumblingWindow(context, config.window_s)
    if config.kind == "python":
        try:
            function = load_function(config.function)
        except UserError as error:
            raise FlinkError("PythonFunction", error.problem) from error
        return PythonFunction(context, function, config.function, reuse=reuse)
    raise ValueError(f"unknown operator {config.kind!r}")
