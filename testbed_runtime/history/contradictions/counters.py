"""Compare the samples of the tasks with the time that passed, with the latencies, and with what was emitted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from testbed_runtime.core.values import NS
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import (
    ATTEMPT,
    ROUNDING_NS,
    SPENT,
    TOLERANCE_NS,
    Attempt,
    Ints,
    Owned,
    attempt_of,
    equal,
    filled_buckets,
    first_true,
    ints,
    numbered,
    vertex_of,
)
from testbed_runtime.history.contradictions.exchange import last_samples
from testbed_runtime.history.damage import Damage, first_of_each
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS

OFF_MIN = 3
"""Minimum samples that are off before a task counts as damaged: a few may be taken while its process is paused."""
SINK_SAMPLES_MIN = 3
"""Minimum samples of a sink from which it follows which of its latency windows must have been written."""
SPENT_NS = NS // 10
"""The times that a task spent and the clock are read one after the other."""
REPEATED_MIN = 6
WINDOWS_BACK = 2
"""A window is written before the first sample that is this many windows later."""
RATE_SHARE = 0.05
RATE_NS = NS
"""Emission may differ from the schedule by this share, and by what is due in this time: a lazy source defers records."""


def check_counters_across(trial: CheckedTrial) -> list[Damage]:
    """Return the contradictions between counters, at most one for each rule."""
    tasks = trial.table("tasks")
    if not len(tasks):
        return []
    owned = trial.attempts("tasks")
    rules = [_spent(tasks, owned), _repeated(tasks, owned), _emitted(trial), _offered(trial)]
    return first_of_each(*rules, *_latencies(trial))


def _spent(tasks: pa.Table, owned: Owned) -> Iterator[Damage]:
    """Yield a task whose busy, back-pressured and idle time together do not pass as fast as the clock. A process may be paused while
    it takes a sample."""
    begun = (ints(tasks, "t_ns") - sum(ints(tasks, c) for c in SPENT))[owned.order]
    usual = [int(np.median(one)) for one in np.split(begun, owned.starts[1:])]
    off = np.abs(begun - owned.spread(np.array(usual, dtype=np.int64))) > SPENT_NS
    for owner in first_true(np.add.reduceat(off, owned.starts) >= OFF_MIN):
        row, first = int(owned.order[owned.ends[owner]]), int(owned.order[owned.starts[owner]])
        grew = {c: tasks.column(c)[row].as_py() - tasks.column(c)[first].as_py() for c in ("t_ns", *SPENT)}
        spent, task = sum(grew[c] for c in SPENT) / NS, tasks.column("task")[row].as_py()
        problem = f"makes {task} spend {spent:.1f} s in {grew['t_ns'] / NS:.1f} s (busy, back-pressured and idle time together)"
        yield Damage("tasks", max(SPENT, key=grew.__getitem__), row, problem)


def _repeated(tasks: pa.Table, owned: Owned) -> Iterator[Damage]:
    """Yield an attempt most of whose samples were taken at the time of another one. Only its last sample can be."""
    t_ns = ints(tasks, "t_ns")[owned.order]
    same = owned.follows(np.diff(t_ns) == 0)
    wrong = (np.add.reduceat(same, owned.starts) * 3 > owned.sizes) & (owned.sizes >= REPEATED_MIN)
    for owner in first_true(wrong):
        first = int(owned.starts[owner])
        row = int(owned.order[first + first_true(same[first:])[0]])
        problem = f"is of a second sample of {tasks.column('task')[row].as_py()} at one time, as many are"
        yield Damage("tasks", "seq", row, problem)


def _emitted(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a source whose count differs from the number with which it ended. An attempt that began with a checkpoint counts less."""
    tasks = trial.table("tasks")
    kinds = {vertex.name: vertex.kind for vertex in trial.vertices}
    began_with_state = trial.attempts_with("task.restored")
    counted, seq, process = ints(tasks, "records_out"), ints(tasks, "seq"), tasks.column("process")
    of_attempt, nothing = trial.places("tasks", "task", "attempt"), np.empty(0, dtype=np.int64)
    for _, end in trial.events("source.end"):
        following, task = end["data"].get("next"), end["subject"]
        if not isinstance(following, int):
            continue
        mine = of_attempt.get(attempt_of(end), nothing)
        wrong = mine[counted[mine] > following].tolist()
        restored = attempt_of(end) in began_with_state or trial.events("job.restored")
        if not wrong and kinds.get(vertex_of(task)) == "generated" and not restored:
            fewer = mine[(counted[mine] < following) & (seq[mine] > end["seq"])].tolist()
            wrong = [row for row in fewer if process[row].as_py() == end["process"]]
        if wrong:
            problem = f"is {counted[wrong[0]]}, but {task} emitted {following} records (source.end in events)"
            yield Damage("tasks", "records_out", wrong[0], problem)


def _offered(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a source that did not follow its schedule: its count and its lag together give the time at which each record was due.
    Its last samples may come after its last record, and have no lag. One that was paused while it waited has none until it runs.
    One that waits for its next input split has none. Without a buffer timeout, a lazy source may defer its records for a long time."""
    tasks = trial.table("tasks")
    deferred = not 0 <= trial.options.buffer_timeout_s <= RATE_NS / NS
    if deferred or trial.events("input-split"):
        return
    for vertex in trial.vertices:
        rate = (vertex.records_per_second or 0.0) / vertex.parallelism
        if vertex.kind != "generated" or rate <= 0:
            continue
        places = np.flatnonzero(equal(tasks, "vertex", vertex.name))
        mine = tasks.take(pa.array(places))
        owned = Owned.attempts(mine)
        counted, reached = ints(mine, "records_out"), ints(mine, "t_ns") - ints(mine, "lag_ns")
        for rows in np.split(owned.order, owned.starts[1:]):
            going = rows[counted[rows] < counted[rows].max(initial=0)]
            if len(off := _off_schedule(counted[going], reached[going], rate)):
                row, records = int(places[going[off[0]]]), counted[going[off[0]]]
                task = tasks.column("task")[row].as_py()
                problem = f"is {records}, which {task} cannot have emitted by then at {rate:g} records/s (lag_ns, and recordsPerSecond in the manifest)"
                yield Damage("tasks", "records_out", row, problem)


def _off_schedule(counted: Ints, reached: Ints, rate: float) -> Ints:
    """Return the places at which three samples in a row begin that are off the schedule of most samples."""
    if not len(counted):
        return counted
    started = reached - counted * (NS / rate)
    allowed = RATE_NS + 2 * NS / rate + RATE_SHARE * (reached - reached[0])
    off = np.abs(started - np.median(started)) > allowed
    return np.flatnonzero(off[:-2] & off[1:-1] & off[2:]).astype(np.int64)


def _latencies(trial: CheckedTrial) -> list[Iterator[Damage]]:
    """Compare the samples of the sinks with their latencies."""
    tasks, latency = trial.table("tasks"), trial.table("latency")
    places = np.flatnonzero(equal(tasks, "role", "sink"))
    if not len(latency) or not len(places):
        return []
    finished = {(task, r["attempt"]) for task, r in last_samples(trial).items()}
    sinks = _Sinks(tasks.take(pa.array(places)), latency, places, finished)
    return [_first_records(trial), sinks.miscounted(), sinks.lags(), sinks.windows_in_order(), sinks.late()]


def _first_records(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a first record that was later than every record of the first window."""
    latency = trial.table("latency")
    owned = trial.attempts("latency")
    first = latency.select([*ATTEMPT, "max_ns"]).take(pa.array(owned.order[owned.starts])).to_pylist()
    most = {(r["process"], r["task"], r["attempt"]): max(0, r["max_ns"]) for r in first}
    for row, event in trial.events("sink.first-record"):
        found = event["data"].get("latency_ns")
        limit = most.get((event["process"], *attempt_of(event)))
        if limit is not None and isinstance(found, int) and found > limit + ROUNDING_NS:
            problem = f"of sink.first-record has a latency of {found / NS:g} s, the window with it at most {limit / NS:g} s (latency)"
            yield Damage("events", "data", row, problem)


class _Sinks:
    """The samples and the latencies of all sinks, in the order in which each attempt wrote them."""

    def __init__(self, samples: pa.Table, latency: pa.Table, places: Ints, finished: set[Attempt]) -> None:
        self.finished = finished
        """The attempts that have written their last row."""
        self.samples, self.latency, self.places, self.windows = samples, latency, places, len(latency)
        seq = np.concatenate([ints(latency, "seq"), ints(samples, "seq")])
        self.owned = owned = Owned.of(numbered([latency, samples], ATTEMPT), seq)
        self.sampled = owned.order >= self.windows
        no_windows, no_samples = np.zeros(self.windows, np.int64), np.zeros(len(samples), np.int64)
        self.received = self._of(no_windows, ints(samples, "records_in"))
        self.lag = self._of(no_windows, ints(samples, "lag_ns"))
        self.t_ns = self._of(ints(latency, "t_ns"), ints(samples, "t_ns"))
        self.begun = self._of(ints(latency, "window_start_ns"), ints(samples, "t_ns"))
        self.window_ns = int(ints(latency, "window_ns").max())
        count = self._of(ints(latency, "count"), no_samples)
        total = np.cumsum(count)
        self.measured = total - owned.spread(total[owned.starts] - count[owned.starts])
        """Latencies that the attempt had written by then."""
        self.most = self._of(np.maximum(ints(latency, "max_ns"), 0), no_samples)
        self.least = self._of(_least(latency), no_samples)

    def _of(self, windows: Ints, samples: Ints) -> Ints:
        return np.concatenate([windows, samples])[self.owned.order]

    def _sample(self, at: int) -> int:
        """Return the row of a sample among those of the sinks."""
        return int(self.owned.order[at]) - self.windows

    def _row(self, at: int) -> int:
        return int(self.places[self._sample(at)])

    def _attempt(self, at: int) -> Attempt:
        return self._task(at), self.samples.column("attempt")[self._sample(at)].as_py()

    def _task(self, at: int) -> str:
        return str(self.samples.column("task")[self._sample(at)].as_py())

    def miscounted(self) -> Iterator[Damage]:
        """Yield a sink that counted fewer or more records than it measured latencies."""
        fewer = np.flatnonzero(self.sampled & (self.received < self.measured)).tolist()
        for at, measured in ((at, self.measured[at]) for at in fewer) if fewer else self._unmeasured():
            problem = f"is {self.received[at]}, but {self._task(at)} measured {measured} latencies (count in latency)"
            yield Damage("tasks", "records_in", self._row(at), problem)

    def _unmeasured(self) -> Iterator[tuple[int, int]]:
        """Yield a sample of a sink with more records than latencies, and their number. One that has finished has written all; before that,
        those of its last windows are not written yet, and those of a batch only once it is processed."""
        for rows in np.split(np.arange(len(self.sampled)), self.owned.starts[1:]):
            at = rows[self.sampled[rows]]
            if not len(at):
                continue
            measured, received = self.measured[at[-1]], self.received[at]
            if received[-1] > measured and self._attempt(at[-1]) in self.finished:
                yield at[-1], measured
            if len(at) < SINK_SAMPLES_MIN:
                continue
            written_ns = self.t_ns[at[-2]] - WINDOWS_BACK * self.window_ns
            old = int(np.searchsorted(self.t_ns[at], written_ns, side="right")) - 1
            before = int(np.searchsorted(received, received[max(old, 0)])) - 1
            if before >= 0 and received[before] > measured:
                yield at[before], measured

    def windows_in_order(self) -> Iterator[Damage]:
        """Yield a window that had ended before its attempt wrote the window before it: its records arrived after that."""
        rows = np.flatnonzero(~self.sampled)
        within = np.diff(np.searchsorted(self.owned.starts, rows, side="right")) == 0
        gone = self.t_ns[rows[:-1]] - (self.begun[rows[1:]] + self.window_ns)
        for at in first_true(within & (gone > TOLERANCE_NS)):
            problem = f"is the start of a window that ended {gone[at] / NS:.1f} s before the window before it was written"
            yield Damage("latency", "window_start_ns", int(self.owned.order[rows[at + 1]]), problem)

    def late(self) -> Iterator[Damage]:
        """Yield a window that had ended before two samples that its attempt took before it wrote the window: a sample writes a window
        that is over. Only the time of the first one may be taken a moment after it looked."""
        samples = np.flatnonzero(self.sampled)
        second = np.cumsum(self.sampled) - 2
        before = samples[np.maximum(second, 0)] if len(samples) else second
        known = ~self.sampled & (second >= 0) & (before >= self.owned.spread(self.owned.starts))
        gone = self.t_ns[np.where(known, before, 0)] - (self.begun + self.window_ns)
        for at in first_true(known & (gone > 0)):
            task = self.latency.column("task")[int(self.owned.order[at])].as_py()
            problem = f"is of a window that had ended {gone[at] / NS:.1f} s before {task} was sampled, but that was written later"
            yield Damage("latency", "window_start_ns", int(self.owned.order[at]), problem)

    def lags(self) -> Iterator[Damage]:
        """Yield a lag that is outside the latencies of the windows around it: it is that of the last record."""
        before, after = self.owned.neighbours(~self.sampled)
        known = self.sampled & (before >= 0) & (after >= 0)
        least = np.minimum(self.least[before], self.least[after])
        most = np.maximum(self.most[before], self.most[after])
        for at in first_true(known & ((self.lag < least) | (self.lag > most))):
            problem = f"is {self.lag[at] / NS:g} s, but the records of {self._task(at)} were {least[at] / NS:g} to {most[at] / NS:g} s late (buckets and max_ns in latency)"
            yield Damage("tasks", "lag_ns", self._row(at), problem)


def _least(latency: pa.Table) -> Ints:
    """Return the least latency that each window can have: the lower bound of its lowest bucket with records."""
    rows, buckets, _ = filled_buckets(latency)
    lowest = np.full(len(latency), len(LATENCY_BOUNDS_NS), dtype=np.int64)
    np.minimum.at(lowest, rows, buckets)
    return np.asarray(np.array([0, *(b + 1 for b in LATENCY_BOUNDS_NS)])[lowest], dtype=np.int64)
