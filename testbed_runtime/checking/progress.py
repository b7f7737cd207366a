"""Progress of each source and sink subtask over all its attempts: distinct records, and lag that grows while it is silent.

The counters in `tasks` begin at 0 with each attempt and count replayed records again. This module removes the replay: an
attempt restored from a checkpoint continues at the count that its predecessor had when it acknowledged that checkpoint.
A dead or frozen task writes no samples, so its lag grows with the time since the newest record that it handled.
The raw throughput of the sinks, which counts the replay, is here too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.checking.common import Floats, TaskSeries, Window, Windows, data, events, task_series
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.history.columns import Ints, vertex_of
from testbed_runtime.history.schema import Trial

SAMPLE_NS = NS // 10
"""Time between two samples of a running task."""
GAP_NS = NS // 4
"""A longer time without progress is a gap, in which the lag grows."""
REPLAYED_GAPS = 3
"""The number of usual gaps that may pass between a replayed record of a sink and its next record."""
LAST_NS = 2 * NS
"""Length of the last part of the observation. If new records arrive in it, the job is alive at the end."""
NOTHING = int(np.iinfo(np.int64).min // 2)
"""A time earlier than any due time."""
SHORTEST_NS = NS // 2
"""A shorter part does not show whether the job is alive."""


class Progress(Struct, frozen=True):
    """The progress of one subtask. The arrays have one entry per sample, ordered by time."""

    task: str
    role: str
    t_ns: Ints
    distinct: Floats
    """Records received so far without the replayed ones. It never decreases."""
    reached_ns: Ints
    """Due time of the newest record handled so far. It never decreases."""
    ended_ns: int | None = None
    """When the subtask finished by itself, or when a sink had received everything for the first time. From
    then on it has no lag, because nothing new can arrive."""
    usual_gap_ns: int | None = 0
    """Longest time between two records in the baseline, if that exceeds GAP_NS (a window operator upstream), otherwise 0.
    None: it had no records in the baseline, so silence means nothing."""
    restarted_ns: tuple[int, ...] = ()
    """The times of the first samples of the later attempts."""
    last_ns: Ints | None = None
    """Due time of the last record of each sample, which may be older than the newest one: a sink receives from several sources.
    NOTHING if there was none."""

    def received_until(self, t_ns: int) -> float:
        """Return the distinct records received by this time, interpolated between samples; 0 before the first
        sample."""
        return float(np.interp(t_ns, self.t_ns, self.distinct, left=0.0)) if len(self.t_ns) else 0.0

    def received_in(self, window: Window) -> float:
        """Return the distinct records received within the window."""
        return self.received_until(window.end) - self.received_until(window.start)

    def moments(self) -> tuple[Ints, Ints]:
        """Return (time, due time reached) of each sample that shows progress."""
        new = np.diff(self.reached_ns, prepend=NOTHING) > 0
        return self.t_ns[new], self.reached_ns[new]

    def latest_in(self, window: Window) -> float:
        """Return the lateness, in seconds, of the latest record that a sample shows within the window. 0
        without one."""
        if self.last_ns is None:
            return 0.0
        shown = (self.last_ns > NOTHING) & (self.t_ns >= window.start) & (self.t_ns < window.end)
        return float((self.t_ns - self.last_ns)[shown].max(initial=0)) / NS

    def late(self, limit_ns: int) -> tuple[Ints, Ints]:
        """Return (since, until) of the spans in which a record was late by more than `limit_ns`, as far as samples show it. An attempt's
        replayed records were not missing before it began."""
        if self.last_ns is None:
            return self.t_ns[:0], self.t_ns[:0]
        late = (self.last_ns > NOTHING) & (self.t_ns - self.last_ns > limit_ns)
        if self.ended_ns is not None:
            late &= self.t_ns <= self.ended_ns
        until = self.t_ns[late]
        begun = np.asarray([0, *self.restarted_ns], dtype=np.int64)
        own = begun[np.searchsorted(begun, until, side="right") - 1]
        return np.maximum(self.last_ns[late] + limit_ns, own), until

    def lag_at(self, times: Ints, *, tolerated_s: float | None = None) -> Floats:
        """Return the lag in seconds at each time: the age of the newest record that was handled by then, less
        the usual gap. It is at least the age that the record had when it was handled.

        NaN before the first sample. 0 after the subtask finished. With `tolerated_s`, also 0 after the last
        records of a sink that gets records rarely, if its next ones are less than `tolerated_s` late: nothing
        was due in between."""
        moments, reached = self.moments()
        newest = np.searchsorted(moments, times, side="right") - 1
        if not len(moments):
            return np.full(len(times), np.nan)
        last = (moments[newest] - reached[newest]) / NS
        if self.usual_gap_ns is None:
            lag = last
        else:
            lag = np.maximum(last, (times - reached[newest] - self.usual_gap_ns) / NS)
        if self.usual_gap_ns != 0 and tolerated_s is not None:
            settled = self._settled(moments, reached, round(tolerated_s * NS))
            lag = np.where(times >= settled[newest], 0.0, lag)
        if self.ended_ns is not None:
            lag = np.where(times >= self.ended_ns, 0.0, lag)
        return np.where(newest >= 0, lag, np.nan)

    def _settled(self, moments: Ints, reached: Ints, tolerated_ns: int) -> Ints:
        """Return, for each moment, the time from which its lag is 0, because nothing more is due until the
        next moment: the last arrival before that. The lag stays if the next record is late too, or comes
        later than usual: a sample hides late records behind a punctual one.

        What was due before the first punctual record of another attempt has arrived, even if no sample shows
        it. An attempt replays late records, and a longer gap than those in the baseline may follow them. A
        sink without records in the baseline has no lag after its last record."""
        never = np.iinfo(np.int64).max
        later = np.append(moments[1:], never)
        attempt = np.searchsorted(self.restarted_ns, moments, side="right")
        late = moments - reached > tolerated_ns
        known = np.diff(attempt) > 0
        if self.usual_gap_ns is None:
            known |= True
        else:
            times = np.where(late & (attempt > 0), REPLAYED_GAPS, 1)[:-1]
            known |= np.diff(moments) <= times * self.usual_gap_ns + GAP_NS
        settled = ~late[1:] & known
        arrivals = self.t_ns[np.diff(self.distinct, prepend=0.0) > 0]
        before = np.searchsorted(arrivals, later) - 1
        last = np.maximum(arrivals[np.maximum(before, 0)], moments) if len(arrivals) else moments
        return np.where(np.append(settled, self.usual_gap_ns is None), last, never)

    def largest_lag(self, window: Window) -> float | None:
        """Return the largest lag within the window in seconds, or None if it is unknown there.

        Between two samples that both show progress, the lag is that of the samples. In a longer gap, it grows
        until the end of the gap."""
        moments, reached = self.moments()
        end = window.end if self.ended_ns is None else min(window.end, self.ended_ns)
        inside = (moments >= window.start) & (moments < end)
        found = [((moments - reached)[inside]).max()] if inside.any() else []
        if self.usual_gap_ns is not None and len(moments):
            ends = np.minimum(np.append(moments[1:], end), end)
            silent = ends - moments > GAP_NS + self.usual_gap_ns
            grown = (ends - reached - self.usual_gap_ns)[silent & (ends > window.start)]
            found += [grown.max()] if len(grown) else []
        return float(max(found)) / NS if found else None

    def longest_stall(self, window: Window) -> float | None:
        """Return the longest time in seconds without a new record within the window. None if the sink
        received no records in the baseline, or if the window is empty.

        Replayed records are not new."""
        end = window.end if self.ended_ns is None else min(window.end, self.ended_ns)
        if self.usual_gap_ns is None or end <= window.start:
            return None
        times = self.t_ns[np.diff(self.distinct, prepend=0.0) > 0]
        inside = times[(times >= window.start) & (times < end)]
        return float(np.diff(np.concatenate([[window.start], inside, [end]])).max()) / NS


def progress_of(trial: Trial, *roles: str, baseline: Window | None = None) -> list[Progress]:
    """Return the progress of every subtask with these roles (default: sources and sinks). `baseline` sets the usual gaps."""
    everything = trial.kept(f"progress, {baseline}", lambda: _progress_of(trial, baseline))
    return [one for one in everything if one.role in roles] if roles else list(everything)


def _progress_of(trial: Trial, baseline: Window | None) -> list[Progress]:
    """Return the progress of every source and sink."""
    series = grouped((one.task, one) for one in task_series(trial, "source", "sink"))
    restored = {(e["subject"], e["attempt"]): e["checkpoint"] for e in events(trial, "task.restored")}
    acknowledged = [r for r in trial.rows("checkpoints") if r["state"] == "acknowledged"]
    barriers = {(r["task"], r["checkpoint"]): r["t_ns"] for r in acknowledged}
    ended = ended_tasks(trial)
    found = [_merge(task, of, restored, barriers, ended.get(task)) for task, of in sorted(series.items())]
    return [_with_usual_gap(one, baseline) for one in found]


def processed_s(sinks: Sequence[Progress], start: int, end: int) -> float:
    """Return how many seconds of load the sinks received between the due time `start` and the moment `end`.
    This is the mean of all sinks, because some may be dead while the others continue."""
    reached = [int(s.reached_ns[s.t_ns <= end].max(initial=start)) for s in sinks]
    return sum(min(at, end) - start for at in reached) / len(reached) / NS if reached and end > start else 0.0


def goodput(sinks: Sequence[Progress], window: Window) -> float | None:
    """Return the distinct records per second at all sinks. None if no sink was sampled before the window's end."""
    if not any(len(s.t_ns) and s.t_ns[0] < window.end for s in sinks):
        return None
    return sum(s.received_in(window) for s in sinks) / window.seconds


def _merge(
    task: str,
    attempts: Sequence[TaskSeries],
    restored: Mapping[tuple[str, int], int],
    barriers: Mapping[tuple[str, int | None], int],
    ended_ns: int | None,
) -> Progress:
    """Join the attempts of one subtask. Each continues where its predecessor was at the restored checkpoint."""
    times: list[Ints] = []
    counts: list[Floats] = []
    reached: list[Ints] = []
    before: tuple[Ints, Floats] | None = None
    for one in sorted(attempts, key=lambda s: s.attempt):
        start = 0.0
        barrier = barriers.get((task, restored.get((task, one.attempt))))
        if before is not None and barrier is not None:
            start = float(np.interp(barrier, *before, left=0.0))
        own = start + one.records_in.astype(np.float64)
        before = (one.t_ns, own) if before is None else _joined(before, one.t_ns, own)
        times.append(one.t_ns)
        counts.append(own)
        # a sink reports the latency of its last record, which it may have received long ago
        shows = (np.diff(one.records_in, prepend=0) > 0) | (one.role != "sink")
        reached.append(np.where(shows, one.t_ns - one.lag_ns, NOTHING))
    order = np.argsort(np.concatenate(times), kind="stable")
    t_ns = np.concatenate(times)[order]
    distinct = np.maximum.accumulate(np.concatenate(counts)[order])
    last = np.concatenate(reached)[order]
    newest = np.maximum.accumulate(last)
    # nothing is received while a task is silent: what the next sample shows arrived in its own period
    gaps = np.flatnonzero(np.diff(t_ns) > GAP_NS)
    t_ns = np.insert(t_ns, gaps + 1, t_ns[gaps + 1] - SAMPLE_NS)
    return Progress(
        task=task,
        role=attempts[0].role,
        t_ns=t_ns,
        distinct=np.insert(distinct, gaps + 1, distinct[gaps]),
        reached_ns=np.insert(newest, gaps + 1, newest[gaps]),
        ended_ns=ended_ns,
        last_ns=np.insert(last, gaps + 1, NOTHING),
        restarted_ns=tuple(sorted(int(one.t_ns[0]) for one in attempts if one.attempt > 0 and len(one.t_ns))),
    )


def _joined(before: tuple[Ints, Floats], t_ns: Ints, own: Floats) -> tuple[Ints, Floats]:
    """Replace the earlier attempt's counts from the first sample of the next attempt on."""
    keep = before[0] < (t_ns[0] if len(t_ns) else 0)
    return np.concatenate([before[0][keep], t_ns]), np.concatenate([before[1][keep], own])


def ended_tasks(trial: Trial) -> dict[str, int]:
    """Map each task whose last state is FINISHED to the time of that state, and each sink to the first time
    at which it had received everything. Such a sink may still wait for a final checkpoint, or receive all of
    it again."""
    last = {str(e["subject"]): (data(e).get("to"), e["t_ns"]) for e in events(trial, "task.state")}
    ended = {task: t_ns for task, (state, t_ns) in last.items() if state == "FINISHED"}
    for event in events(trial, "sink.end"):
        task, t_ns = str(event["subject"]), event["t_ns"]
        ended[task] = min(t_ns, ended.get(task, t_ns))
    return ended


def all_received(sinks: Sequence[Progress]) -> int | None:
    """Return when every sink had received everything. None if one of them had not."""
    ends = [sink.ended_ns for sink in sinks]
    known = [t_ns for t_ns in ends if t_ns is not None]
    return max(known) if known and len(known) == len(ends) else None


def _with_usual_gap(found: Progress, baseline: Window | None) -> Progress:
    if baseline is None or found.role != "sink":
        return found
    moments = found.t_ns[np.diff(found.distinct, prepend=0.0) > 0]
    moments = moments[(moments >= baseline.start) & (moments < baseline.end)]
    usual = int(np.diff(moments).max()) if len(moments) > 1 else None
    if usual is not None and usual <= GAP_NS:
        usual = 0
    return replace(found, usual_gap_ns=usual)


def raw_rate(sinks: list[TaskSeries], window: Window) -> float | None:
    """Return the records per second that all sinks received, replayed ones included. None if no sink was sampled before the
    window's end."""
    if not any(len(s.t_ns) and s.t_ns[0] < window.end for s in sinks):
        return None
    received = sum(s.received_until(window.end) - s.received_until(window.start) for s in sinks)
    return received / window.seconds


def last_arrival(sinks: list[TaskSeries], until: int) -> int:
    """Return when the last record arrived at any sink, as far as samples up to `until` show. 0 if none did."""
    return _last_increase([(s.t_ns, s.records_in) for s in sinks], until)


def silent_sockets(trial: Trial, entry: TrialEntry, until: int) -> bool:
    """Return whether nothing can arrive at the sinks because nothing was written into the sockets. The job
    reads sockets only, and no source has emitted a record since the last one arrived at a sink. False if a
    source is dead or paused, because it would not have read what was written."""
    kinds = {vertex.kind for vertex in entry.job.vertices if vertex.role == "source"}
    sources = task_series(trial, "source")
    if kinds != {"socket"} or not sources:
        return False
    ended = ended_tasks(trial)
    newest = {s.task: s for s in sorted(sources, key=lambda s: s.attempt)}.values()
    going = [s.t_ns for s in newest if ended.get(s.task, until) >= until]
    reading = all(((t_ns > until - LAST_NS) & (t_ns <= until)).any() for t_ns in going)
    emitted = [(s.t_ns, s.records_out) for s in sources]
    return reading and _last_increase(emitted, until) <= last_arrival(sinks_of(trial), until)


def _last_increase(counters: Sequence[tuple[Ints, Ints]], until: int) -> int:
    """Return when any of the counters increased last, as far as samples up to `until` show. 0 if none
    increased."""
    found = [t_ns[np.diff(counter, prepend=0) > 0] for t_ns, counter in counters]
    return max((int(t[t <= until].max()) for t in found if (t <= until).any()), default=0)


def by_sink(sinks: list[TaskSeries], window: Window) -> dict[str, float]:
    """Return the records per second received by each sink vertex."""
    groups = grouped((vertex_of(series.task), series) for series in sinks)
    rates = {vertex: raw_rate(group, window) for vertex, group in sorted(groups.items())}
    return {vertex: found for vertex, found in rates.items() if found is not None}


def sinks_of(trial: Trial) -> list[TaskSeries]:
    return task_series(trial, "sink")


def alive_at_end(sinks: Sequence[Progress], windows: Windows) -> bool | None:
    """Return whether new records arrived at the end of the observation: in the last LAST_NS plus the usual
    gap between two records, or in the whole judged window if it is shorter. None without samples, or if that
    window is shorter than SHORTEST_NS or the usual gap."""
    if windows.judged is None:
        return None
    usual = max((s.usual_gap_ns or 0 for s in sinks), default=0)
    window = Window(max(windows.judged.start, windows.end - LAST_NS - usual), windows.end)
    if window.end - window.start < max(SHORTEST_NS, usual):
        return None
    arriving = goodput(sinks, window)
    return None if arriving is None else arriving > 0
