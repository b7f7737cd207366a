"""Find the moment at which the job has caught up: when the last of its sink and source subtasks has done so.
A subtask has caught up when its lag is back at the 95th percentile of the baseline, or within the buffer
timeouts of the exchanges before it. Each subtask counts from its own moment on, even if it lags again for a
short time before the last one has caught up. A sink is also behind while records of one of its sources are
missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct

from testbed_runtime.checking.baseline import baseline_of, cut, normal_lag
from testbed_runtime.checking.common import Window, Windows, data, events, job_shape
from testbed_runtime.checking.latency import merge_sinks
from testbed_runtime.checking.progress import SAMPLE_NS, Progress, all_received, progress_of
from testbed_runtime.core.judgement.metrics import NO_BASELINE, NO_DATA
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.history.columns import Ints, ints, vertex_of
from testbed_runtime.history.schema import Trial
from testbed_runtime.history.waits import INT64_MAX

EPSILON_S = 0.2
"""Tolerated lag above the baseline's 95th percentile: one flush of the outputs, and one sample period, in which it grows."""
HOLD_NS = NS // 2
"""The lag must stay normal for this long: one good sample between two bad ones does not end the recovery."""
EARLY_NS = NS
"""The lag must be normal for this long to count as caught up while the fault still lasts. A shorter time may
be a gap in the effect of the fault."""

FEW = 20
"""A 95th percentile of fewer values is only their maximum. Sinks with fewer records in the baseline are judged together."""

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Arrivals(Struct, frozen=True):
    """The largest latency at any sink per time window: when that record was due, and when it had arrived. It
    is used for sinks that hardly get records, whose silence does not show that they are behind. A late record
    shows that its sink was behind since the record was due."""

    due_ns: Ints
    arrived_ns: Ints
    limit_ns: int

    @classmethod
    def read(cls, trial: Trial, baseline: Window) -> Arrivals | None:
        """Return the arrivals. The limit is the 95th percentile of the baseline plus EPSILON_S. None if
        records arrived in too few windows of the baseline."""
        table = merge_sinks(trial.table("latency"))
        if not len(table):
            return None
        arrived, latency = ints(table, "window_start_ns") + ints(table, "window_ns"), ints(table, "max_ns")
        usual = latency[(arrived > baseline.start) & (arrived <= baseline.end)]
        if len(usual) < FEW:
            return None
        return cls(arrived - latency, arrived, int(np.percentile(usual, 95)) + round(EPSILON_S * NS))

    def mark(self, good: Bools, times: Ints) -> None:
        """Clear `good` at the times at which a late record had not arrived yet."""
        clear(good, times, self.due_ns + self.limit_ns, self.arrived_ns)


def missing(trial: Trial, baseline: Window, sinks: Sequence[Progress], flushed_s: float) -> tuple[Ints, Ints]:
    """Return (since, until) of the spans in which a record was certainly missing at some sink. Such a record
    arrived in a later time window and was late by more than the length of that window. Samples may not show
    it among the records of other sources. A record is late if it is later than all records of the baseline. A
    record that a restart replays was not missing before the restart."""
    table = merge_sinks(trial.table("latency"))
    start = ints(table, "window_start_ns")
    ends, latency = start + ints(table, "window_ns"), ints(table, "max_ns")
    usual = latency[(ends > baseline.start) & (start < baseline.end)]
    if not len(usual):
        return start[:0], start[:0]
    tolerated = max(int(usual.max()) + round(EPSILON_S * NS), round(flushed_s * NS))
    begun = np.asarray([0, *sorted(t for one in sinks for t in one.restarted_ns)], dtype=np.int64)
    # the first sample of an attempt comes after its first records
    attempt = np.searchsorted(begun, ends + round(EPSILON_S * NS), side="right") - 1
    since = np.maximum(ends - latency + tolerated, begun[attempt])
    received = all_received(sinks)
    certain = (since < start) & (start < (INT64_MAX if received is None else received))
    return since[certain], start[certain]


def clear(good: Bools, times: Ints, since: Ints, until: Ints) -> None:
    """Clear `good` at the times within the spans."""
    begins, ends = np.searchsorted(times, since, side="right"), np.searchsorted(times, until)
    for begin, end in np.column_stack([begins, ends]).tolist():
        good[begin:end] = False


class CatchUp(Struct, frozen=True):
    """The lag of all subtasks, from which follows when they caught up. `reason` is set if that cannot be
    known."""

    subtasks: tuple[tuple[Progress, float], ...]
    """Each subtask with the largest lag in seconds that is normal for it."""
    end: int
    reason: str = ""
    finished: int | None = None
    """When the sinks had received everything, or the job had finished. From then on, no subtask is behind."""
    arrivals: Arrivals | None = None
    """The arrivals by which the sinks with too few records are judged."""
    latest: Mapping[str, float] = {}
    """The lateness, in seconds, of each subtask's latest record in the baseline. Some sources or paths are
    always later than others."""
    missing: tuple[Ints, Ints] | None = None
    """The beginnings and ends of the spans in which a record was certainly missing at some sink."""
    held: tuple[tuple[int, int], ...] = ()
    """Spans in which a task waited for one of its inputs or for its state."""

    @classmethod
    def read(
        cls,
        trial: Trial,
        entry: TrialEntry,
        spans: Windows,
        end: int,
        *,
        held: Sequence[tuple[int, int]] = (),
    ) -> CatchUp:
        """Read the lag of all subtasks. `held`: spans in which a task waited for one of its inputs or for its
        state. Such a task is behind with that input, which the records of its other inputs do not show."""
        baseline = spans.baseline
        if baseline is None:
            return cls((), end, NO_BASELINE)
        found = progress_of(trial, baseline=baseline)
        sinks = [one for one in found if one.role == "sink"]
        window = cut(baseline, sinks)
        normal = baseline_of(trial, entry, spans, sinks)
        until = end if normal is not None and normal.catching_up else None
        few = {one.task for one in found if one.role == "sink" and one.received_in(window) < FEW}
        arrivals = Arrivals.read(trial, window) if few else None
        judged = [one for one in found if arrivals is None or one.task not in few]
        usual = [(one, normal_lag(one, window, until)) for one in judged]
        flushed = flush_delays(trial, entry)
        flush = {one.task: flushed.get(vertex_of(one.task), 0.0) for one, _ in usual}
        known = tuple((one, max(lag + EPSILON_S, flush[one.task])) for one, lag in usual if lag is not None)
        ends = [e["t_ns"] for e in events(trial, "job.state") if data(e).get("to") == "FINISHED"]
        received = all_received(sinks)
        ends += [] if received is None else [received]
        finished = min((t for t in ends if t <= end), default=None)
        reason = "" if known or arrivals else NO_BASELINE if found else NO_DATA
        long = _united((start, stop) for start, stop in held if stop - start >= HOLD_NS)
        if until is not None:
            return cls(known, end, reason, finished, arrivals, held=long)
        latest = {one.task: one.latest_in(window) for one in judged}
        gone = missing(trial, window, sinks, max(flushed.values(), default=0.0))
        return cls(known, end, reason, finished, arrivals, latest, gone, long)

    def punctual(self, task: str, latency_ns: int | None) -> bool:
        """Return whether a record with this latency at a sink subtask shows that it was not behind. False if that is unknown."""
        limit = next((limit for one, limit in self.subtasks if one.task == task), None)
        return limit is not None and latency_ns is not None and latency_ns <= limit * NS

    def behind_before(self, end: int) -> frozenset[str]:
        """Return the subtasks that were behind just before `end`, as far as their lag shows it."""
        times = np.asarray([end - SAMPLE_NS], dtype=np.int64)
        lags = {one.task: (one.lag_at(times, tolerated_s=limit)[0], limit) for one, limit in self.subtasks}
        return frozenset(task for task, (lag, limit) in lags.items() if not lag <= limit)

    def good_between(self, start: int, end: int) -> bool:
        """Return whether no subtask was behind from `start` to `end`."""
        return bool(self._good(np.arange(start, end, SAMPLE_NS, dtype=np.int64)).all())

    def falls_behind(self, start: int, end: int) -> int | None:
        """Return the first moment from `start` on from which some subtask was behind for EARLY_NS, before `end`. None if there is none."""
        times = np.arange(start, end, SAMPLE_NS, dtype=np.int64)
        behind = ~self._good(times)
        edges = [0, *(np.flatnonzero(np.diff(behind)) + 1).tolist(), len(times)]
        runs = (
            first
            for first, last in pairwise(edges)
            if behind[first:last].any() and last - first >= EARLY_NS // SAMPLE_NS
        )
        return next((int(times[first]) for first in runs), None)

    def behind_until(self, at: int, since: int) -> int:
        """Return the time, at the earliest `since`, from which a subtask was behind at every moment until
        `at`. Return `at` if that is less than HOLD_NS before it."""
        times = np.arange(at - SAMPLE_NS, since, -SAMPLE_NS, dtype=np.int64)[::-1]
        last_good = np.flatnonzero(self._good(times))
        begun = int(times[last_good[-1]]) + SAMPLE_NS if len(last_good) else since
        return begun if at - begun >= HOLD_NS else at

    def behind_since(self, at: int) -> int | None:
        """Return the time, at the earliest `at`, from which a subtask was behind at every moment until the
        end. None if no subtask is behind at the end."""
        good = self._good(times := np.arange(at, self.end + 1, SAMPLE_NS, dtype=np.int64))
        if not len(times) or good[-1]:
            return None
        last_good = np.flatnonzero(good)
        return int(times[last_good[-1] + 1]) if len(last_good) else at

    def since(self, at: int, *, fault_end: int = 0) -> int | None:
        """Return the first moment from `at` on at which every subtask has caught up. None if there is none
        before the end. Among many subtasks, there is always one whose next record is a little late. Each
        subtask has therefore caught up from its own moment on, until it falls behind for at least HOLD_NS. It
        may do so right after that moment: the subtasks need not stay good together.

        `fault_end`: the end of a fault that the job survived. The moment may be before it, if no subtask was
        behind from then on."""
        times = np.arange(at, self.end + 1, SAMPLE_NS, dtype=np.int64)
        if self.reason or not len(times):
            return None
        caught_up = np.ones(len(times), dtype=np.bool_)
        ended = int(np.searchsorted(times, max(at, fault_end)))
        for gap_ns, good in self._each_good(times):
            first = _since_when(good, ended)
            caught_up[:first] = False
            own = _without_short_runs(good[first:], HOLD_NS // SAMPLE_NS)
            caught_up[first:] &= _without_short_gaps(own, gap_ns // SAMPLE_NS)
        if caught_up.any():
            return int(times[np.argmax(caught_up)])
        return self.finished if self.finished is not None and self.finished >= at else None

    def _good(self, times: Ints) -> Bools:
        """Return for each time whether no subtask was behind."""
        good = np.ones(len(times), dtype=np.bool_)
        for _, one in self._each_good(times):
            good &= one
        return good

    def _each_good(self, times: Ints) -> Iterator[tuple[int, Bools]]:
        """Yield, for each subtask, its usual gap between two records and whether it was not behind at each
        time. The sinks that are judged together count as one subtask."""
        held = np.zeros(len(times), dtype=np.bool_)
        for start, end in self.held:
            held[np.searchsorted(times, start) : np.searchsorted(times, end)] = True
        for subtask, limit in self.subtasks:
            good = (subtask.lag_at(times, tolerated_s=limit) <= limit) & ~held
            latest = self.latest.get(subtask.task, 0.0) + EPSILON_S
            clear(good, times, *subtask.late(round(max(limit, latest) * NS)))
            yield subtask.usual_gap_ns or 0, good
        if self.missing is not None:
            good = np.ones(len(times), dtype=np.bool_)
            clear(good, times, *self.missing)
            yield 0, good
        if self.arrivals is not None:
            good = ~held
            self.arrivals.mark(good, times)
            yield 0, good


def _united(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the spans, with overlapping ones joined. A large job has one for each channel."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)


def flush_delays(trial: Trial, entry: TrialEntry) -> dict[str, float]:
    """Map each vertex to the longest time in seconds that a record can wait for output flushers on its way
    there: one buffer timeout for each exchange. When a flusher runs depends on when its task was deployed. A
    redeployed job may therefore lag by up to this time more than in its baseline, without a backlog."""
    timeout = max(0.0, entry.options.buffer_timeout_s)
    return {vertex: hops * timeout for vertex, hops in job_shape(entry).hops().items()}


def _since_when(good: Bools, at: int) -> int:
    """Return the index from which everything was good up to `at`. Return `at` if that time is shorter than
    EARLY_NS and does not reach back to index 0."""
    first = at
    while first > 0 and good[first - 1]:
        first -= 1
    return first if first == 0 or at - first >= EARLY_NS // SAMPLE_NS else at


def _without_short_runs(good: Bools, length: int) -> Bools:
    """Replace each run shorter than `length` with the value of the last long run before it. Before the first
    long run, everything counts as bad. A run at the end counts with the length that it has so far."""
    if not len(good):
        return good
    starts = np.concatenate([[0], np.flatnonzero(np.diff(good)) + 1])
    lengths = np.diff(np.append(starts, len(good)))
    last_long = np.maximum.accumulate(np.where(lengths >= length, np.arange(len(starts)), -1))
    values = (last_long >= 0) & good[starts[last_long]]
    found: Bools = np.repeat(values, lengths)
    return found


def _without_short_gaps(good: Bools, length: int) -> Bools:
    """Clear each good run shorter than `length` that precedes a bad one. Nothing was due in such a run, so it
    does not show that the next records come in time."""
    found = good.copy()
    edges = np.flatnonzero(np.diff(good)) + 1
    for start, end in pairwise([0, *edges.tolist()]):
        if end - start < length:
            found[start:end] = False
    return found
