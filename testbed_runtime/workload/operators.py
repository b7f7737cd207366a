"""Operators: batches of records in, batches out, with state per key group. Pure; time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError, UserError
from testbed_runtime.core.job.causes import FUNCTION
from testbed_runtime.core.job.jobgraph import FUNCTIONS, OperatorConfig
from testbed_runtime.workload.functions import UserFunction, UserRecord, load_function
from testbed_runtime.workload.iteration import SolutionSet, records_of
from testbed_runtime.workload.keyedstate import KeyedRow, KeyedState, SubtaskContext
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
from testbed_runtime.workload.snapshots import SubtaskSnapshot

SLICE_RECORDS_FIRST = 32
"""Size of a Python function's first slice, before its cost is known."""


class Operator:
    """The `map` operator, which passes records on unchanged, and base class of the others."""

    slice_records: int = 0
    """Maximum records per call; 0 for no limit. User code runs in slices."""
    drops: bool = False
    """Whether the operator has dropped records, as its function asked for."""

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

    def close(self) -> None:
        """Release what the state has outside of the operator."""

    def took(self, records: int, seconds: float) -> None:
        """Record how long a call took. Operators that adapt the size of their slices use it."""


class KeyedOperator(Operator):
    """An operator with keyed state, which is in memory unless another one is given."""

    def __init__(self, context: SubtaskContext, state: KeyedState | None = None) -> None:
        super().__init__(context)
        self.state = state or KeyedState(context)

    def snapshot(self, base: SubtaskSnapshot) -> SubtaskSnapshot:
        return self.state.snapshot(base)

    def restore(self, snapshots: Iterable[SubtaskSnapshot]) -> None:
        self.state.restore(snapshots)

    def close(self) -> None:
        self.state.close()


class KeyedCount(KeyedOperator):
    """Counts records per key and passes them on."""

    def __init__(self, context: SubtaskContext, state: KeyedState | None = None) -> None:
        super().__init__(context, state)
        self._uncounted: Counter[int] | None = Counter() if self.state.adds_up else None
        """Counts that were not added to the state yet. None if it matters when they are added (see `adds_up`)."""

    def process(self, records: Records) -> Records:
        if self._uncounted is None:
            keys, counts = np.unique(records["key"], return_counts=True)
            self.state.add(0, keys.tolist(), counts.tolist(), {})
        elif len(records) == 1:
            self._uncounted[int(records["key"][0])] += 1
        else:
            self._uncounted.update(records["key"].tolist())
        return records

    def _count(self) -> None:
        """Add the counts to the state."""
        if self._uncounted:
            self.state.add(0, list(self._uncounted), list(self._uncounted.values()), {})
            self._uncounted.clear()

    def count(self, key: int) -> int:
        self._count()
        return self.state.count(0, key)

    def snapshot(self, base: SubtaskSnapshot) -> SubtaskSnapshot:
        self._count()
        return super().snapshot(base)


class TumblingWindow(KeyedOperator):
    """Counts per key and window of the due time. A window fires at its end; later records fire as separate late panes, so
    that the sum of all counts equals the number of records. An output record is due at its window's end."""

    def __init__(self, context: SubtaskContext, window_s: float, state: KeyedState | None = None) -> None:
        super().__init__(context, state)
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
            texts = {
                int(chosen["key"][index]): text_bytes(chosen[index])
                for index in first[chosen["text"][first] > 0].tolist()
            }
            self._open[window] = self._open.get(window, 0) + int(counts.sum())
            self.state.add(window, keys.tolist(), counts.tolist(), texts)

    def _end_ns(self, window: int) -> int:
        return self.context.t0_ns + (window + 1) * self._window_ns

    def next_timer_ns(self) -> int | None:
        return self._end_ns(min(self._open)) if self._open else None

    def on_time(self, now_ns: int) -> Records | None:
        return self._fire([window for window in sorted(self._open) if self._end_ns(window) <= now_ns])

    def finish(self) -> Records | None:
        return self._fire(sorted(self._open))

    def _fire(self, windows: list[int]) -> Records | None:
        rows = self.state.take(windows) if windows else []
        for window in windows:
            del self._open[window]
        return self._panes(rows) if rows else None

    def _panes(self, rows: list[KeyedRow]) -> Records:
        panes = np.zeros(len(rows), record_dtype(self._record_bytes))
        panes["vertex"] = self.context.vertex
        panes["subtask"] = self.context.subtask
        panes["sequence"] = np.arange(self._next_sequence, self._next_sequence + len(rows), dtype=np.uint64)
        panes["due_ns"] = [self._end_ns(window) for window, *_ in rows]
        panes["key"] = [key for _, key, *_ in rows]
        panes["count"] = [count for _, _, count, _ in rows]
        texts = [text for *_, text in rows]
        if any(texts):
            with_text(panes, texts)
        self._next_sequence += len(rows)
        return seal(panes)

    def snapshot(self, base: SubtaskSnapshot) -> SubtaskSnapshot:
        numbered = replace(base, next_sequence=self._next_sequence, record_bytes=self._record_bytes)
        return super().snapshot(numbered)

    def restore(self, snapshots: Iterable[SubtaskSnapshot]) -> None:
        every = list(snapshots)
        self.state.restore(every)
        self._open = self.state.totals()
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
        """Yield a UserRecord for each record. The columns are converted at once, each record when it is reached."""
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

    def _call(self, *records: UserRecord) -> Any:
        """Call the function. Raises FlinkError with the first record, if the function raises an exception."""
        try:
            return self._function(*records)
        except Exception as error:
            raise self._raised(error, records[0]) from error

    def _raised(self, error: Exception, record: UserRecord) -> FlinkError:
        where = f"raised by {self._reference} on record {record.sequence} of {record.source}"
        return FlinkError(type(error).__name__, f"{error} ({where})", wait=FUNCTION)

    def _wrong(self, answer: object, wanted: str = "a UserRecord, an int (a new key) or None") -> FlinkError:
        text = f"{self._reference} returned {type(answer).__name__} instead of {wanted}"
        return FlinkError("TypeError", text, wait=FUNCTION)


class FlatMap(PythonFunction):
    """Calls a Python function that returns any number of records for each record. They keep the origin of that record."""

    def process(self, records: Records) -> Records | None:
        places: list[int] = []
        made: list[UserRecord] = []
        for index, record in enumerate(self._views(records, records["key"].tolist(), self._texts(records))):
            try:
                answers = [*self._function(record)]
            except Exception as error:
                raise self._raised(error, record) from error
            for answer in answers:
                if type(answer) is not UserRecord:
                    raise self._wrong(answer, "any number of UserRecords")
            places += [index] * len(answers)
            made += answers
        if not made:
            return None
        found = records_of(picked(records, np.array(places)).tobytes(), records.dtype.itemsize)
        found["key"] = [answer.key for answer in made]
        with_text(found, [answer.text.encode() for answer in made])
        return seal(found)


class SolutionSetJoin(PythonFunction):
    """Calls a Python function with each candidate and the entry of the solution set that has its key. What the function returns
    replaces the text of the entry, and the new entry is emitted. A candidate without an entry is ignored."""

    def __init__(self, context: SubtaskContext, function: UserFunction, reference: str) -> None:
        super().__init__(context, function, reference)
        self.solution = SolutionSet()
        """The task replaces it by the solution set that it shares with the head."""

    def process(self, records: Records) -> Records | None:
        updated = []
        for candidate in self._views(records, records["key"].tolist(), self._texts(records)):
            entry = self.solution.get(candidate.key)
            if entry is None:
                continue
            current = next(iter(self._views(entry, [candidate.key], self._texts(entry))))
            answer = self._call(candidate, current)
            if answer is None:
                continue
            if type(answer) is not UserRecord or answer.key != candidate.key:
                raise self._wrong(answer, "a UserRecord with the same key or None")
            with_text(entry, [answer.text.encode()])
            self.solution.put(seal(entry))
            updated.append(entry)
        return np.concatenate(updated) if updated else None


class Criterion(PythonFunction):
    """The criterion of an iteration: a Python function that is true for a record as long as the iteration has to continue."""

    def count(self, records: Records) -> int:
        """Return for how many of the records the function is true."""
        found = 0
        for record in self._views(records, records["key"].tolist(), self._texts(records)):
            try:
                found += bool(self._function(record))
            except Exception as error:
                raise self._raised(error, record) from error
        return found


def make_operator(
    config: OperatorConfig, context: SubtaskContext, state: KeyedState | None = None, *, reuse: bool = False
) -> Operator:
    """Create an operator, with its keyed state if that is not to be in memory. `reuse`: see PythonFunction. Raises FlinkError if its
    function cannot be loaded, and ValueError for an unknown kind."""
    if config.kind == "map":
        return Operator(context)
    if config.kind == "keyed-count":
        return KeyedCount(context, state)
    if config.kind == "window":
        return TumblingWindow(context, config.window_s, state)
    if config.kind in FUNCTIONS:
        try:
            function = load_function(config.function, FUNCTIONS[config.kind])
        except UserError as error:
            raise FlinkError("PythonFunction", error.problem) from error
        if config.kind == "flat-map":
            return FlatMap(context, function, config.function)
        if config.kind == "solution-set-join":
            return SolutionSetJoin(context, function, config.function)
        return PythonFunction(context, function, config.function, reuse=reuse)
    raise ValueError(f"unknown operator {config.kind!r}")
