"""The parts that all checkers share: the windows of a trial, its tables as arrays, and the collector of
metric rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement.metrics import NO_DATA, MetricRow
from testbed_runtime.core.trial.manifest import PhaseEntry, TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.history.columns import Ints, ints, numbered, parsed
from testbed_runtime.history.schema import Trial

Floats = npt.NDArray[np.float64]


class Window(Struct, frozen=True):
    """A half-open time span in nanoseconds of the monotonic clock."""

    start: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / NS

    def __contains__(self, t_ns: object) -> bool:
        return isinstance(t_ns, int) and self.start <= t_ns < self.end


class Windows(Struct, frozen=True):
    """The phases of a trial. `judged` spans the time from the end of the baseline to the start of the drain."""

    baseline: Window | None
    fault: Window | None
    observation: Window | None
    judged: Window | None
    end: int
    """Start of the drain, or the end of the recording."""
    milestones: tuple[tuple[str, Window | None], ...] = ()
    """The windows of the recovery, by their phase name (`recovery.milestones`)."""

    def by_phase(self) -> list[tuple[str, Window | None]]:
        """Return every window with the phase name used in rows. The empty name is the judged window."""
        phases = [("baseline", self.baseline), ("fault", self.fault), ("observation", self.observation)]
        return [*phases, ("", self.judged), *self.milestones]


def windows(trial: Trial, entry: TrialEntry) -> Windows:
    """Return the windows of a trial from the manifest. A phase that was not reached or has no length is None."""
    spans = {phase.name: phase for phase in entry.phases}
    ends = [phase.end_ns for phase in entry.phases]
    end = spans["drain"].start_ns if "drain" in spans else max(ends, default=_last_moment(trial))
    fault, observation = _window(spans.get("fault"), end), _window(spans.get("observation"), end)
    starts = [spans[n].start_ns for n in ("fault", "observation") if n in spans]
    judged = Window(min(starts), end) if starts and min(starts) < end else None
    return Windows(_window(spans.get("baseline"), end), fault, observation, judged, end)


def stopped_ns(entry: TrialEntry, spans: Windows) -> int | None:
    """Return when the processes of a trial that was interrupted were stopped; None if it was drained, or if that is unknown."""
    drained = any(phase.name == "drain" for phase in entry.phases)
    return None if drained or not entry.phases else spans.end


def _window(span: PhaseEntry | None, end: int) -> Window | None:
    if span is None:
        return None
    start, stop = span.start_ns, min(span.end_ns, end)
    return Window(start, stop) if start < stop else None


def _last_moment(trial: Trial) -> int:
    moments = [int(ints(t, "t_ns").max()) for name in ("events", "tasks") if len(t := trial.table(name))]
    return max(moments, default=0)


def group_starts(*keys: Ints) -> Ints:
    """Return where each group of rows with equal keys begins. The rows are sorted by their keys."""
    changed = np.any([np.diff(key) != 0 for key in keys], axis=0)
    return np.flatnonzero(np.append(True, changed)[: len(keys[0])])


def data(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON object of an event. Empty if it has none."""
    return parsed(row["data"])


def events(trial: Trial, *kinds: str) -> list[dict[str, Any]]:
    """Return the events of these kinds, ordered by time."""
    rows = trial.rows("events")
    kept = trial.kept("events by kind", lambda: grouped((row["kind"], at) for at, row in enumerate(rows)))
    if len(kinds) == 1:
        return [rows[at] for at in kept.get(kinds[0], ())]
    return [rows[at] for at in sorted(at for kind in set(kinds) for at in kept.get(kind, ()))]


class TaskSeries(Struct, frozen=True):
    """The samples of one attempt of one task, by time."""

    task: str
    role: str
    attempt: int
    t_ns: Ints
    records_in: Ints
    records_out: Ints
    lag_ns: Ints

    def received_until(self, t_ns: int, most: float = math.inf) -> float:
        """Return the records received by then, interpolated between samples; 0 before the first sample. At most `most` records per
        nanosecond count since the last sample: more arrived later, for example when a pause had ended."""
        if not len(self.t_ns) or t_ns < self.t_ns[0]:
            return 0.0
        last = int(np.searchsorted(self.t_ns, t_ns, side="right")) - 1
        received, silent = float(np.interp(t_ns, self.t_ns, self.records_in)), t_ns - int(self.t_ns[last])
        return min(received, float(self.records_in[last]) + most * silent) if silent else received


def task_series(trial: Trial, *roles: str) -> list[TaskSeries]:
    """Return the samples of the tasks with these roles (default: all), one series per task and attempt."""
    found = trial.kept("task series", lambda: _all_series(trial.table("tasks")))
    return [s for s in found if not roles or s.role in roles]


def _all_series(table: pa.Table) -> list[TaskSeries]:
    if not len(table):
        return []
    names = table.column("task").combine_chunks().dictionary_encode()
    tasks, attempts = np.asarray(names.indices), ints(table, "attempt")
    t_ns, lag = ints(table, "t_ns"), ints(table, "lag_ns")
    received, emitted = ints(table, "records_in"), ints(table, "records_out")
    order = np.lexsort((t_ns, attempts, tasks))
    labels, kinds = names.dictionary.to_pylist(), table.column("role")
    series = []
    for chosen in np.split(order, group_starts(tasks[order], attempts[order])[1:]):
        task, role = labels[tasks[chosen[0]]], kinds[int(chosen[0])].as_py()
        attempt = int(attempts[chosen[0]])
        counted = received[chosen], emitted[chosen]
        series.append(TaskSeries(task, role, attempt, t_ns[chosen], *counted, lag[chosen]))
    return sorted(series, key=lambda s: (s.task, s.attempt))


def busiest(trial: Trial, start: int, end: int) -> tuple[str, int]:
    """Return the vertex whose busiest subtask worked the largest share of a span, and for how many nanoseconds. Empty without samples."""
    table = trial.table("tasks")
    work = trial.kept("work by time", lambda: _Work.of(table))
    first, last = np.searchsorted(work.t_ns, start, "left"), np.searchsorted(work.t_ns, end, "right")
    if first >= last:
        return "", 0
    order = np.argsort(work.owners[first:last], kind="stable") + first
    starts = group_starts(work.owners[order])
    busy = work.busy_ns[order]
    worked = np.maximum.reduceat(busy, starts) - np.minimum.reduceat(busy, starts)
    if (most := int(worked.max())) <= 0:
        return "", 0
    rows = work.rows[order[starts[worked == most]]]
    names = table.select(["vertex", "task", "attempt"]).take(pa.array(rows)).to_pylist()
    return str(max(tuple(name.values()) for name in names)[0]), most


class _Work(Struct, frozen=True):
    """The busy time in all samples of tasks, ordered by time. It is kept because many spans are looked at."""

    t_ns: Ints
    owners: Ints
    """The number of the attempt of each sample."""
    busy_ns: Ints
    rows: Ints

    @classmethod
    def of(cls, table: pa.Table) -> _Work:
        t_ns = ints(table, "t_ns")
        rows = np.argsort(t_ns, kind="stable").astype(np.int64)
        owners = numbered([table], ("task", "attempt"))
        return cls(t_ns[rows], owners[rows], ints(table, "busy_ns")[rows], rows)


class JobShape(Struct, frozen=True):
    """The job graph of a trial according to the manifest: parallelism, edges, and the role of each vertex."""

    parallelism: dict[str, int]
    edges: tuple[tuple[str, str, str], ...]
    sources: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    windows: frozenset[str] = frozenset()
    """Vertices whose output records each represent many input records."""

    def source_subtasks(self) -> list[str]:
        return [f"{v}-{i}" for v in self.sources for i in range(self.parallelism[v])]

    def copies(self, source: str) -> dict[str, int]:
        """Map each sink vertex to how often every record of `source` should arrive there."""
        arriving = dict.fromkeys(self.parallelism, 0) | {source: 1}
        for vertex in self._topological():
            for origin, target, partitioning in self.edges:
                if origin == vertex:
                    many = self.parallelism[target] if partitioning == "broadcast" else 1
                    arriving[target] += arriving[vertex] * many
        return {sink: arriving[sink] for sink in self.sinks if arriving[sink]}

    def hops(self) -> dict[str, int]:
        """Map each vertex to the number of exchanges on the longest path to it."""
        longest = dict.fromkeys(self.parallelism, 0)
        for vertex in self._topological():
            for origin, target, _ in self.edges:
                if origin == vertex:
                    longest[target] = max(longest[target], longest[vertex] + 1)
        return longest

    def windowed(self, source: str, sink: str) -> bool:
        """Whether there is a window on a path from source to sink."""
        return any(self.reaches(source, w) and self.reaches(w, sink) for w in sorted(self.windows))

    def without_windows(self) -> JobShape:
        """Return the job graph without the output of windows."""
        edges = tuple(e for e in self.edges if e[0] not in self.windows)
        return JobShape(self.parallelism, edges, self.sources, self.sinks)

    def windows_before(self, sink: str) -> tuple[str, ...]:
        """Return the window vertices on the paths to a sink vertex, if every path to it has one. Empty if a
        path has no window, so that the sink gets records before a window has ended."""
        direct = self.without_windows()
        if any(direct.reaches(source, sink) for source in self.sources):
            return ()
        return tuple(sorted(window for window in self.windows if self.reaches(window, sink)))

    def reaches(self, start: str, goal: str) -> bool:
        """Whether there is a path from `start` to `goal`."""
        return start == goal or start in self.before({goal})

    def before(self, vertices: Iterable[str]) -> set[str]:
        """Return the vertices upstream of these."""
        found, todo = set[str](), list(vertices)
        while todo:
            vertex = todo.pop()
            new = {origin for origin, target, _ in self.edges if target == vertex} - found
            found |= new
            todo += new
        return found

    def _topological(self) -> list[str]:
        upstream = {v: {origin for origin, target, _ in self.edges if target == v} for v in self.parallelism}
        return list(TopologicalSorter(upstream).static_order())


def job_shape(entry: TrialEntry) -> JobShape:
    """Return the job graph from the manifest."""
    known = entry.job.vertices
    return JobShape(
        parallelism=entry.parallelism,
        edges=tuple((edge.source, edge.target, edge.partitioning) for edge in entry.job.edges),
        sources=tuple(v.name for v in known if v.role == "source"),
        sinks=tuple(v.name for v in known if v.role == "sink"),
        windows=frozenset(v.name for v in known if v.kind == "window"),
    )


class Answers:
    """Collects the metric rows of one trial."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.rows: list[MetricRow] = []

    def add(
        self,
        metric: str,
        value: float | None = None,
        *,
        phase: str = "",
        quantile: float | None = None,
        text: str = "",
        bounded_by: str = "",
        reason: str = "",
    ) -> None:
        shown = None if value is None else float(value)
        run, trial = self._trial.run, self._trial.trial
        self.rows.append(MetricRow(run, trial, metric, phase, quantile, shown, text, bounded_by, reason))

    def known(self, metric: str, value: float | None, phase: str = "", **more: Any) -> None:
        """Add a row. Without a value, its reason is NoData."""
        self.add(metric, value, phase=phase, reason=NO_DATA if value is None else "", **more)


def without_spans(span: tuple[int, int], others: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of a span that none of the other spans covers."""
    found, at = [], span[0]
    for start, end in sorted(others):
        found += [(at, min(start, span[1]))] if at < min(start, span[1]) else []
        at = max(at, end)
    return [*found, (at, span[1])] if at < span[1] else found
