"""Compare the samples of the tasks with the time that passed, with the latencies, and with what was emitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from testbed_runtime.history.columns import (
    ATTEMPT,
    NS,
    ROUNDING_NS,
    TOLERANCE_NS,
    Ints,
    Owned,
    equal,
    events,
    filled_buckets,
    first_true,
    ints,
    numbered,
    parsed,
    places_of,
    sound,
)
from testbed_runtime.history.contradictions.exchange import last_samples
from testbed_runtime.history.damage import Damage
from testbed_runtime.history.manifest import options_of, vertices
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, Trial

SPENT = ("busy_ns", "backpressured_ns", "idle_ns")
OFF_MIN = 3
"""Samples that are off before a task is damaged: one may be taken while its process is paused."""
SINK_SAMPLES_MIN = 3
"""Fewer samples of a sink say nothing about the windows of its latencies."""
SPENT_NS = NS // 10
"""The times that a task spent and the clock are read one after the other."""
REPEATED_MIN = 6
WINDOWS_BACK = 2
"""A window is written before the first sample that is this many windows later."""
RATE_SHARE = 0.05
RATE_NS = NS
"""Emission may differ from the schedule by this share, and by what is due in this time: a lazy source defers records."""


def check_counters_across(trial: Trial, entry: Mapping[str, Any]) -> list[Damage]:
    """Return the contradictions between counters, at most one for each rule."""
    tasks = trial.table("tasks")
    if not sound(tasks, "seq", "t_ns", "role", *ATTEMPT):
        return []
    owned = Owned.attempts_of(trial, "tasks")
    rules = (
        _spent(tasks, owned),
        _repeated(tasks, owned),
        _emitted(trial, entry),
        _offered(trial, entry),
        _latencies(trial),
    )
    return [damage for rule in rules for damage in rule]


def _spent(tasks: pa.Table, owned: Owned) -> Iterator[Damage]:
    """Yield a task whose busy, back-pressured and idle time together do not pass as fast as the clock. A process may be paused while
    it takes a sample."""
    if not sound(tasks, *SPENT):
        return
    begun = (ints(tasks, "t_ns") - sum(ints(tasks, c) for c in SPENT))[owned.order]
    usual = [int(np.median(one)) for one in np.split(begun, owned.starts[1:])]
    off = np.abs(begun - owned.spread(np.array(usual, dtype=np.int64))) > SPENT_NS
    if (owner := first_true(np.add.reduceat(off, owned.starts) >= OFF_MIN)) < 0:
        return
    row, first = int(owned.order[owned.ends[owner]]), int(owned.order[owned.starts[owner]])
    column = max(SPENT, key=lambda c: tasks.column(c)[row].as_py() - tasks.column(c)[first].as_py())
    passed = (tasks.column("t_ns")[row].as_py() - tasks.column("t_ns")[first].as_py()) / NS
    spent = sum(tasks.column(c)[row].as_py() - tasks.column(c)[first].as_py() for c in SPENT) / NS
    task = tasks.column("task")[row].as_py()
    problem = (
        f"makes {task} spend {spent:.1f} s in {passed:.1f} s (busy, back-pressured and idle time together)"
    )
    yield Damage("tasks", column, row, problem)


def _repeated(tasks: pa.Table, owned: Owned) -> Iterator[Damage]:
    """Yield an attempt most of whose samples were taken at the time of another one. Only its last sample can be."""
    t_ns = ints(tasks, "t_ns")[owned.order]
    same = np.zeros(len(t_ns), dtype=np.bool_)
    same[1:] = t_ns[1:] == t_ns[:-1]
    same[owned.starts] = False
    wrong = (np.add.reduceat(same, owned.starts) * 3 > owned.sizes) & (owned.sizes >= REPEATED_MIN)
    if (owner := first_true(wrong)) >= 0:
        first = int(owned.starts[owner])
        row = int(owned.order[first + first_true(same[first:])])
        problem = f"is of a second sample of {tasks.column('task')[row].as_py()} at one time, as many are"
        yield Damage("tasks", "seq", row, problem)


def _emitted(trial: Trial, entry: Mapping[str, Any]) -> Iterator[Damage]:
    """Yield a source whose count differs from the number with which it ended. An attempt that began with a checkpoint counts less."""
    tasks = trial.table("tasks")
    if not sound(tasks, "records_out"):
        return
    restored = {(e["subject"], e["attempt"]) for _, e in events(trial, "task.restored")}
    started = bool(events(trial, "job.restored"))
    kinds = {v["name"]: v.get("kind") for v in vertices(entry)}
    counted, seq, process = ints(tasks, "records_out"), ints(tasks, "seq"), tasks.column("process")
    of_attempt, nothing = places_of(trial, "tasks", "task", "attempt"), np.empty(0, dtype=np.int64)
    for _, end in events(trial, "source.end"):
        following = parsed(end["data"]).get("next")
        if not isinstance(following, int):
            continue
        task, attempt = end["subject"], end["attempt"]
        mine = of_attempt.get((task, attempt), nothing)
        beyond = mine[counted[mine] > following].tolist()
        fresh = (
            kinds.get(task.rpartition("-")[0]) == "generated"
            and not started
            and (task, attempt) not in restored
        )
        fewer = mine[(counted[mine] < following) & (seq[mine] > end["seq"])].tolist() if fresh else []
        short = [row for row in fewer if process[row].as_py() == end["process"]]
        if beyond or short:
            row = (beyond or short)[0]
            problem = f"is {counted[row]}, but {task} emitted {following} records (source.end in events)"
            yield Damage("tasks", "records_out", row, problem)
            return


def _offered(trial: Trial, entry: Mapping[str, Any]) -> Iterator[Damage]:
    """Yield a source that did not follow its schedule: its count and its lag together give the time at which each record was due.
    Its last samples may come after its last record, and have no lag. One that was paused while it waited has none until it runs.
    One that waits for its next input split has none, and without a buffer timeout a lazy source may defer its records for long."""
    tasks = trial.table("tasks")
    deferred = not 0 <= options_of(entry).buffer_timeout_s <= RATE_NS / NS
    if deferred or events(trial, "input-split") or not sound(tasks, "records_out", "lag_ns"):
        return
    for vertex in vertices(entry):
        rate = float(vertex.get("recordsPerSecond") or 0) / int(vertex.get("parallelism") or 1)
        if vertex.get("kind") != "generated" or rate <= 0:
            continue
        places = np.flatnonzero(equal(tasks, "vertex", vertex["name"]))
        mine = tasks.take(pa.array(places))
        owned = Owned.attempts(mine)
        counted, reached = ints(mine, "records_out"), ints(mine, "t_ns") - ints(mine, "lag_ns")
        for rows in np.split(owned.order, owned.starts[1:]):
            going = rows[counted[rows] < counted[rows].max(initial=0)]
            if len(off := _off_schedule(counted[going], reached[going], rate)):
                row, records = int(places[going[off[0]]]), counted[going[off[0]]]
                problem = (
                    f"is {records}, which {tasks.column('task')[row].as_py()} cannot have emitted by then at {rate:g} "
                    "records/s (lag_ns, and recordsPerSecond in the manifest)"
                )
                yield Damage("tasks", "records_out", row, problem)
                return


def _off_schedule(counted: Ints, reached: Ints, rate: float) -> Ints:
    """Return the places at which three samples in a row begin that are off the schedule of most samples."""
    if not len(counted):
        return counted
    started = reached - counted * (NS / rate)
    allowed = RATE_NS + 2 * NS / rate + RATE_SHARE * (reached - reached[0])
    off = np.abs(started - np.median(started)) > allowed
    return np.flatnonzero(off[:-2] & off[1:-1] & off[2:]).astype(np.int64)


def _latencies(trial: Trial) -> Iterator[Damage]:
    """Yield a sink that counted fewer or more records than it measured latencies, or whose lag none of them had."""
    tasks, latency = trial.table("tasks"), trial.table("latency")
    if not sound(latency, "seq", "count", "max_ns", "buckets", *ATTEMPT):
        return
    places = np.flatnonzero(equal(tasks, "role", "sink"))
    if not len(places) or not sound(tasks, "records_in", "lag_ns"):
        return
    yield from _first_records(trial)
    sinks = tasks.take(pa.array(places))
    finished = {(task, r["attempt"]) for task, r in last_samples(trial).items()}
    yield from _Sinks(sinks, latency, places, finished).check()


def _first_records(trial: Trial) -> Iterator[Damage]:
    """Yield a first record that was later than every record of the first window."""
    latency = trial.table("latency")
    owned = Owned.attempts_of(trial, "latency")
    first = latency.select([*ATTEMPT, "max_ns"]).take(pa.array(owned.order[owned.starts])).to_pylist()
    most = {(r["process"], r["task"], r["attempt"]): max(0, r["max_ns"]) for r in first}
    for row, event in events(trial, "sink.first-record"):
        found = parsed(event["data"]).get("latency_ns")
        limit = most.get((event["process"], event["subject"], event["attempt"]))
        if limit is not None and isinstance(found, int) and found > limit + ROUNDING_NS:
            problem = f"of sink.first-record has a latency of {found / NS:g} s, the window with it at most {limit / NS:g} s (latency)"
            yield Damage("events", "data", row, problem)
            return


class _Sinks:
    """The samples and the latencies of all sinks, in the order in which each attempt wrote them."""

    def __init__(
        self, samples: pa.Table, latency: pa.Table, places: Ints, finished: set[tuple[str, int]]
    ) -> None:
        self.finished = finished
        """The attempts that have written their last row."""
        self.samples, self.latency, self.places, self.windows = samples, latency, places, len(latency)
        seq = np.concatenate([ints(latency, "seq"), ints(samples, "seq")])
        self.owned = owned = Owned.of(numbered([latency, samples], ATTEMPT), seq)
        self.sampled = owned.order >= self.windows
        self.received = self._of(np.zeros(self.windows, np.int64), ints(samples, "records_in"))
        self.lag = self._of(np.zeros(self.windows, np.int64), ints(samples, "lag_ns"))
        self.t_ns = self._of(ints(latency, "t_ns"), ints(samples, "t_ns"))
        self.begun = self._of(ints(latency, "window_start_ns"), ints(samples, "t_ns"))
        self.window_ns = int(ints(latency, "window_ns").max())
        count = self._of(ints(latency, "count"), np.zeros(len(samples), np.int64))
        total = np.cumsum(count)
        self.measured = total - owned.spread(total[owned.starts] - count[owned.starts])
        """Latencies that the attempt had written by then."""
        nothing = np.zeros(len(samples), np.int64)
        self.most = self._of(np.maximum(ints(latency, "max_ns"), 0), nothing)
        self.least = self._of(_least(latency), nothing)

    def _of(self, windows: Ints, samples: Ints) -> Ints:
        return np.concatenate([windows, samples])[self.owned.order]

    def check(self) -> Iterator[Damage]:
        if (at := first_true(self.sampled & (self.received < self.measured))) >= 0:
            yield self._miscounted(at, int(self.measured[at]))
        else:
            yield from self._unmeasured()
        yield from self._lags()
        yield from self._windows()
        yield from self._late()

    def _row(self, at: int) -> int:
        return int(self.places[self.owned.order[at] - self.windows])

    def _attempt(self, at: int) -> tuple[str, int]:
        row = int(self.owned.order[at]) - self.windows
        return self._task(at), self.samples.column("attempt")[row].as_py()

    def _task(self, at: int) -> str:
        return str(self.samples.column("task")[int(self.owned.order[at]) - self.windows].as_py())

    def _miscounted(self, at: int, measured: int) -> Damage:
        problem = (
            f"is {self.received[at]}, but {self._task(at)} measured {measured} latencies (count in latency)"
        )
        return Damage("tasks", "records_in", self._row(at), problem)

    def _unmeasured(self) -> Iterator[Damage]:
        """Yield a sink with more records than latencies. One that has finished has written all; before that, those of its last
        windows are not written yet, and those of a batch only once it is processed."""
        for rows in np.split(np.arange(len(self.sampled)), self.owned.starts[1:]):
            at = rows[self.sampled[rows]]
            if (
                len(at)
                and self.received[at[-1]] > self.measured[at[-1]]
                and self._attempt(at[-1]) in self.finished
            ):
                yield self._miscounted(int(at[-1]), int(self.measured[at[-1]]))
                return
            if len(at) < SINK_SAMPLES_MIN:
                continue
            old = (
                np.searchsorted(
                    self.t_ns[at], self.t_ns[at[-2]] - WINDOWS_BACK * self.window_ns, side="right"
                )
                - 1
            )
            before = int(np.searchsorted(self.received[at], self.received[at[max(old, 0)]])) - 1
            if before >= 0 and self.received[at[before]] > self.measured[at[-1]]:
                yield self._miscounted(int(at[before]), int(self.measured[at[-1]]))
                return

    def _windows(self) -> Iterator[Damage]:
        """Yield a window that had ended before its attempt wrote the window before it: its records arrived after that."""
        rows = np.flatnonzero(~self.sampled)
        within = np.diff(np.searchsorted(self.owned.starts, rows, side="right")) == 0
        gone = self.t_ns[rows[:-1]] - (self.begun[rows[1:]] + self.window_ns)
        if (at := first_true(within & (gone > TOLERANCE_NS))) >= 0:
            problem = f"is the start of a window that ended {gone[at] / NS:.1f} s before the window before it was written"
            yield Damage("latency", "window_start_ns", int(self.owned.order[rows[at + 1]]), problem)

    def _late(self) -> Iterator[Damage]:
        """Yield a window that had ended before two samples that its attempt took before it wrote the window: a sample writes a window
        that is over. Only the time of the first one may be taken a moment after it looked."""
        samples = np.flatnonzero(self.sampled)
        second = np.cumsum(self.sampled) - 2
        before = samples[np.maximum(second, 0)] if len(samples) else second
        known = ~self.sampled & (second >= 0) & (before >= self.owned.spread(self.owned.starts))
        gone = self.t_ns[np.where(known, before, 0)] - (self.begun + self.window_ns)
        if (at := first_true(known & (gone > 0))) >= 0:
            task = self.latency.column("task")[int(self.owned.order[at])].as_py()
            problem = f"is of a window that had ended {gone[at] / NS:.1f} s before {task} was sampled, but that was written later"
            yield Damage("latency", "window_start_ns", int(self.owned.order[at]), problem)

    def _lags(self) -> Iterator[Damage]:
        """Yield a lag that is outside the latencies of the windows around it: it is that of the last record."""
        owned, places = self.owned, np.arange(len(self.owned.order))
        first, end = owned.spread(owned.starts), owned.spread(owned.ends)
        before = np.maximum.accumulate(np.where(self.sampled, -1, places))
        after = np.minimum.accumulate(np.where(self.sampled, len(places), places)[::-1])[::-1]
        known = self.sampled & (before >= first) & (after <= end)
        near, far = np.where(known, before, 0), np.where(known, after, 0)
        least = np.minimum(self.least[near], self.least[far])
        most = np.maximum(self.most[near], self.most[far])
        if (at := first_true(known & ((self.lag < least) | (self.lag > most)))) >= 0:
            problem = (
                f"is {self.lag[at] / NS:g} s, but the records of {self._task(at)} were {least[at] / NS:g} to "
                f"{most[at] / NS:g} s late (buckets and max_ns in latency)"
            )
            yield Damage("tasks", "lag_ns", self._row(at), problem)


def _least(latency: pa.Table) -> Ints:
    """Return the least latency that each window can have: the lower bound of its lowest bucket with records."""
    rows, buckets, _ = filled_buckets(latency)
    lowest = np.full(len(latency), len(LATENCY_BOUNDS_NS), dtype=np.int64)
    np.minimum.at(lowest, rows, buckets)
    return np.asarray(np.array([0, *(b + 1 for b in LATENCY_BOUNDS_NS)])[lowest], dtype=np.int64)
