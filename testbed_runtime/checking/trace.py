"""A trial's waits, rounds and critical path as a trace in the Trace Event Format, which Perfetto and Chrome open.

Every process and task has tracks, its waits are slices on them. Rounds and the critical path have tracks of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from testbed_runtime.core.judgement.recovery import Recovery, TrialRecovery
from testbed_runtime.core.waits import Wait
from testbed_runtime.history.schema import Trial

WAITS_MAX = 20_000
"""Most waits of one trial; the longest are kept."""
TRIALS_MAX = 20
"""Most trials of one trace."""
ROUNDS, PATH = 1, 2
"""Thread ids of the first two tracks of a trial."""


def trace(trials: Iterable[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the content of `trace.json` from the `trace_events` of its trials."""
    return {"displayTimeUnit": "ms", "traceEvents": [event for events in trials for event in events]}


def trace_events(trial: Trial, found: TrialRecovery, *, pid: int = 1) -> list[dict[str, Any]]:
    """Return the events of one trial, which is the process `pid` of the trace: its number among the trials, from 1. None
    beyond TRIALS_MAX. Times are microseconds of the trial's monotonic clock."""
    if pid > TRIALS_MAX:
        return []
    tracks = _Tracks()
    events = [_name("process_name", pid, 0, f"trial {trial.trial}")]
    for recovery in (*([] if found.start is None else [found.start]), *found.recoveries):
        events += _path(recovery, pid)
    waits = sorted((Wait.from_row(row) for row in trial.rows("waits")), key=lambda w: w.start_ns - w.end_ns)
    for wait in sorted(waits[:WAITS_MAX], key=lambda w: (w.start_ns, -w.end_ns, w.wait)):
        details = {
            "wait": wait.wait, "option": wait.option, "value": wait.value, "outcome": str(wait.outcome),
            "budget_s": wait.budget_ns / 1e9 if wait.budget_ns >= 0 else "", "cause": wait.cause,
        }  # fmt: skip
        name = f"{wait.kind} {wait.what}".strip()
        track = (pid, tracks.place(wait))
        events.append(_slice(track, (wait.start_ns, wait.end_ns), name, wait.kind, details))
    named = {ROUNDS: "rounds", PATH: "critical path", **tracks.names}
    return [*(_name("thread_name", pid, tid, name) for tid, name in named.items()), *events]


class _Tracks:
    """Places waits on tracks so that none overlaps another on the same track. A party has as many tracks as it needs."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._ends: dict[str, list[tuple[int, int]]] = {}

    def place(self, wait: Wait) -> int:
        """Return the track of this wait. Waits come ordered by their start."""
        lanes = self._ends.setdefault(wait.who, [])
        for index, (tid, ended) in enumerate(lanes):
            if ended <= wait.start_ns:
                lanes[index] = (tid, wait.end_ns)
                return tid
        tid = PATH + 1 + len(self.names)
        lanes.append((tid, wait.end_ns))
        self.names[tid] = wait.who if len(lanes) == 1 else f"{wait.who} ({len(lanes)})"
        return tid


def _path(recovery: Recovery, pid: int) -> list[dict[str, Any]]:
    """Return the rounds and the segments of a recovery."""
    events = []
    label = f"recovery from {' and '.join(recovery.faults)}" if recovery.faults else "start"
    for one in recovery.rounds:
        details: dict[str, Any] = {"recovery": label, "cause": one.cause, "ended_by": one.ended_by, "failure": one.failure}  # fmt: skip
        span = (one.start_ns, one.end_ns)
        events.append(_slice((pid, ROUNDS), span, f"{label}: round {one.number}", "round", details))
        for s in one.segments:
            details = {name: getattr(s, name) for name in ("phase", "who", "what", "option", "outcome")}
            events.append(_slice((pid, PATH), (s.start_ns, s.end_ns), s.words, s.kind, details))
    return events


def _slice(
    track: tuple[int, int], span: tuple[int, int], name: str, category: str, details: dict[str, Any]
) -> dict[str, Any]:
    """Return a complete event: a slice with its start and duration in microseconds."""
    start, end = span
    args = {key: value for key, value in details.items() if value != ""}
    return {"name": name, "cat": category, "ph": "X", "ts": start / 1e3, "dur": (end - start) / 1e3, "pid": track[0], "tid": track[1], "args": args}  # fmt: skip


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {"name": name}}
