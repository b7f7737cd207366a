"""Split a recovery into phases by its milestones. A milestone never precedes the previous one (running maximum).

    effect → detect → cancel → slots → restore → deploy → reconnect → first record → catch-up → steady

Without a failover the middle phases are null, and `catch-up` starts at the effect. A phase that outlasts the observation
has the observed time as a lower bound (NotRecovered).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed_runtime.checking import bounds
from testbed_runtime.checking.checkpoints import restored_age_s
from testbed_runtime.checking.common import (
    NS,
    Entry,
    Ints,
    TaskSeries,
    Window,
    Windows,
    events,
    options,
    task_series,
    windows,
)
from testbed_runtime.checking.failovers import Cause, cause_of, first_cause
from testbed_runtime.checking.faults import FaultEffect, check_faults
from testbed_runtime.checking.throughput import rate
from testbed_runtime.core.judgement.metrics import (
    NO_BASELINE,
    NO_DATA,
    NO_FAILOVER,
    NO_FAULT,
    NOT_RECOVERED,
    OBSERVATION_TOO_SHORT,
    RECOVERY_PHASES,
)
from testbed_runtime.core.options import Options
from testbed_runtime.history.schema import Trial

EPSILON_NS = NS // 10
"""Tolerated lag above the baseline's 95th percentile: one sample period, one flush of the outputs."""
HOLD_NS = NS // 2
"""The lag must stay normal for this long: one good sample between two bad ones does not end the recovery."""
EARLY_NS = NS
"""The lag must be normal for this long to count as caught up while the fault still lasts. Less may be a gap in its effect."""
STEP_NS = NS // 10
"""Resolution of the search: the sampling period."""
FRESH_NS = NS
"""A task without a sample for this long is not running. Its lag is unknown, so it has not caught up."""
PHASES = RECOVERY_PHASES
"""In their order."""
STEADY_S = 3
STEADY_SHARE = 0.05
MIDDLE = ("cancel", "slots", "restore", "deploy", "reconnect", "first-record")


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a recovery. `seconds` is None if the phase did not happen or is unknown. With the reason NotRecovered or
    ObservationTooShort it is a lower bound."""

    name: str
    seconds: float | None
    bounded_by: str = ""
    reason: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Recovery:
    phases: tuple[Phase, ...]
    downtime: Phase
    total: Phase
    fault: str
    """Name of the fault from which the job recovered."""


def check_recovery(trial: Trial, entry: Entry) -> Recovery:
    """Return the trial's recovery. Several failovers form one recovery: detection is taken from the first of them, all
    other milestones from the last."""
    effects = check_faults(trial, entry)
    begun = [e.injected_ns for e in effects if e.injected_ns is not None]
    # the job did not recover from what failed before any fault began
    cause = first_cause(trial, min(begun, default=0))
    fault = _responsible_fault(effects, cause)
    if fault is None or fault.injected_ns is None:
        return _none(NO_FAULT)
    return _Recovery(trial, entry, fault, fault.injected_ns, cause).split()


def _responsible_fault(effects: list[FaultEffect], cause: Cause | None) -> FaultEffect | None:
    """Return the fault behind the first cause: one on the TaskManager that it names, else the last one before it, else the
    first."""
    injected = sorted((e for e in effects if e.injected_ns is not None), key=lambda e: e.injected_ns or 0)
    if cause is None:
        return injected[0] if injected else None
    before = [e for e in injected if (e.injected_ns or 0) <= cause.t_ns]
    ordinal = cause.taskmanager.rpartition("-")[0]
    hit = [e for e in before if ordinal and ordinal in _targets(e)]
    candidates = hit or before or injected
    return candidates[-1] if candidates else None


def _targets(effect: FaultEffect) -> list[str]:
    try:
        found = json.loads(effect.targets) if effect.targets else []
    except ValueError:
        return []
    return [str(t) for t in found] if isinstance(found, list) else []


def _none(reason: str) -> Recovery:
    phases = tuple(Phase(name, None, reason=reason) for name in RECOVERY_PHASES)
    return Recovery(phases, Phase("downtime", None, reason=reason), Phase("total", None, reason=reason), "")


class _Recovery:
    """Walks the milestones of one trial in order. `at` is the running maximum."""

    def __init__(
        self, trial: Trial, entry: Entry, fault: FaultEffect, effect_ns: int, cause: Cause | None
    ) -> None:
        self.trial = trial
        self.entry = entry
        self.fault = fault
        self.effect = effect_ns
        self.cause = cause if cause is not None and cause.t_ns >= effect_ns else None
        self.windows: Windows = windows(trial, entry)
        self.options: Options = options(entry)
        self.end = max(self.windows.end, effect_ns)
        self.at = effect_ns
        self.phases: list[Phase] = []
        started = [e for e in events(trial, "failover.started") if int(e["t_ns"]) >= effect_ns]
        self.restart = started[-1] if started else None
        self.stuck = False

    def split(self) -> Recovery:
        self._detect()
        downtime = Phase("downtime", None, reason=NO_FAILOVER)
        if self.restart is None:
            self.phases += [Phase(name, None, reason=NO_FAILOVER) for name in MIDDLE]
        else:
            self._middle(self.restart)
            reason = NOT_RECOVERED if self.stuck else ""
            until = self.end if self.stuck else self.at
            downtime = Phase("downtime", (until - self.effect) / NS, reason=reason)
        self._tail()
        return Recovery(tuple(self.phases), downtime, self._total(), self.fault.fault)

    def _total(self) -> Phase:
        steady = self.phases[-1]
        if steady.reason in ("", NOT_RECOVERED, OBSERVATION_TOO_SHORT):
            until = self.at if not steady.reason else self.end
            return Phase("total", (until - self.effect) / NS, reason=steady.reason)
        return Phase("total", None, reason=steady.reason)

    def _detect(self) -> None:
        if self.cause is None:
            self.phases.append(Phase("detect", None, reason=NO_FAILOVER))
            return
        earlier = [
            cause_of(e)
            for e in events(self.trial, "taskmanager.lost")
            if self.effect <= int(e["t_ns"]) <= self.cause.t_ns and e["subject"] == self.cause.taskmanager
        ]
        first = earlier[0] if earlier else self.cause
        self._reach("detect", first.t_ns, bounds.detect_bound(first, self.options), first.text)

    def _middle(self, restart: dict[str, Any]) -> None:
        """Add the phases of the last restart. Earlier failed restarts belong to the phase during which they were tried."""
        number, began = restart["subject"], int(restart["t_ns"])
        restored = [e for e in events(self.trial, "task.restored") if int(e["t_ns"]) >= began]
        connected = [e for e in events(self.trial, "gate.connected") if int(e["t_ns"]) >= began]
        arrived = [e for e in events(self.trial, "sink.first-record") if int(e["t_ns"]) >= began]
        moments: dict[str, int | None] = {
            "cancel": self._milestone("failover.cancelled", number),
            "slots": self._milestone("failover.slots", number),
            "restore": _last(restored),
            "deploy": self._milestone("failover.deployed", number),
            "reconnect": _last(connected),
            "first-record": int(arrived[0]["t_ns"]) if arrived else None,
        }
        for index, name in enumerate(MIDDLE):
            later = [moments[n] for n in MIDDLE[index + 1 :] if moments[n] is not None]
            self._middle_phase(name, moments[name], has_later=bool(later))

    def _middle_phase(self, name: str, moment: int | None, *, has_later: bool) -> None:
        if moment is not None and moment <= self.end:
            span = bounds.Span(self.at, max(moment, self.at))
            self._reach(name, moment, self._bound(name, span))
        elif name == "restore" and has_later:
            self.phases.append(Phase(name, 0.0, "no checkpoint to restore"))
        elif has_later:
            self.phases.append(Phase(name, None, reason=NO_DATA))
        else:
            self._stop(name, self._bound(name, bounds.Span(self.at, self.end)))

    def _bound(self, name: str, span: bounds.Span) -> str:
        if name == "restore":
            return "state and checkpoint store"
        if name == "first-record":
            return bounds.setting(self.options, "execution.buffer-timeout.interval")
        if name == "slots":
            return bounds.slots_bound(self.trial, span, self.options, self.entry)
        rules = {
            "cancel": bounds.cancel_bound,
            "deploy": bounds.deploy_bound,
            "reconnect": bounds.reconnect_bound,
        }
        return rules[name](self.trial, span, self.options)

    def _milestone(self, kind: str, number: str) -> int | None:
        found = [int(e["t_ns"]) for e in events(self.trial, kind) if e["subject"] == number]
        found = [t for t in found if t >= self.effect]
        return found[-1] if found else None

    def _reach(self, name: str, moment: int, bounded_by: str, text: str = "") -> None:
        moment = max(moment, self.at)
        self.phases.append(Phase(name, (moment - self.at) / NS, bounded_by, text=text))
        self.at = moment

    def _stop(self, name: str, bounded_by: str, reason: str = NOT_RECOVERED) -> None:
        """End the walk in this phase, because the observation ended. Its time is a lower bound; later phases are unknown."""
        seconds = None if self.stuck else max(0, self.end - self.at) / NS
        self.phases.append(Phase(name, seconds, bounded_by if not self.stuck else "", reason))
        self.stuck = True

    # ---- catch-up and steady, from the samples

    def _tail(self) -> None:
        if self.stuck:
            self._stop("catch-up", "")
            self._stop("steady", "")
            return
        if self.windows.baseline is None:
            self.phases += [Phase(n, None, reason=NO_BASELINE) for n in ("catch-up", "steady")]
            return
        reason = self._catch_up(self.windows.baseline)
        if reason == NOT_RECOVERED:
            self._stop("steady", "")
        elif reason:
            self.phases.append(Phase("steady", None, reason=reason))
        else:
            self._steady(self.windows.baseline)

    def _catch_up(self, baseline: Window) -> str:
        """Find the catch-up milestone. Return the reason if there is none, otherwise an empty string."""
        series = task_series(self.trial, "sink", "source")
        normal = {s.role: _percentile_lag(series, s.role, baseline) for s in series}
        if not series or all(v is None for v in normal.values()):
            self.phases.append(Phase("catch-up", None, reason=NO_DATA if not series else NO_BASELINE))
            return self.phases[-1].reason
        times = np.arange(self.at, self.end + 1, STEP_NS, dtype=np.int64)
        good = np.ones(len(times), dtype=np.bool_)
        for task in sorted({s.task for s in series}):
            good &= _caught_up([s for s in series if s.task == task], normal, times, baseline)
        # without a failover: the moment from which no task is behind any more, as seen when the fault has ended
        fault_end = self.at if self.restart is not None else max(self.at, self.fault.ended_ns or self.at)
        first = _since_when(good, int(np.searchsorted(times, fault_end)))
        moment = _first_run(good[first:], HOLD_NS // STEP_NS)
        bounded = self._catch_up_bound(in_time=moment is not None and int(times[first + moment]) < fault_end)
        if moment is None:
            self._stop("catch-up", bounded)
        else:
            self._reach("catch-up", int(times[first + moment]), bounded)
        return self.phases[-1].reason

    def _catch_up_bound(self, *, in_time: bool) -> str:
        """Return what bounded the catch-up. `in_time`: it was reached before the fault ended."""
        restored = [e for e in events(self.trial, "task.restored") if int(e["t_ns"]) >= self.effect]
        if self.restart is None or not restored:
            waited = self.restart is None and not in_time
            return "end of the fault" if waited else "spare capacity of the job"
        replayed = restored_age_s(self.trial, int(restored[-1]["checkpoint"]), self.effect)
        return bounds.catch_up_bound((self.at - self.effect) / NS, replayed, self.options)

    def _steady(self, baseline: Window) -> None:
        sinks = task_series(self.trial, "sink")
        normal = rate(sinks, baseline)
        if not normal:
            self.phases.append(Phase("steady", None, reason=NO_BASELINE))
            return
        bounded = "spare capacity of the job"
        if self.end - self.at < STEADY_S * NS:
            self._stop("steady", bounded, OBSERVATION_TOO_SHORT)
            return
        for start in range(self.at, self.end - STEADY_S * NS + 1, STEP_NS):
            now = rate(sinks, Window(start, start + STEADY_S * NS))
            if now is not None and abs(now - normal) <= STEADY_SHARE * normal:
                self._reach("steady", start, bounded)
                return
        self._stop("steady", bounded)


def _last(found: list[dict[str, Any]]) -> int | None:
    return int(found[-1]["t_ns"]) if found else None


def _percentile_lag(series: list[TaskSeries], role: str, window: Window) -> float | None:
    lags: list[Ints] = [
        s.lag_ns[(s.t_ns >= window.start) & (s.t_ns < window.end)] for s in series if s.role == role
    ]
    together = np.concatenate(lags) if lags else np.zeros(0, dtype=np.int64)
    return float(np.percentile(together, 95)) if len(together) else None


def _caught_up(
    attempts: list[TaskSeries], normal: dict[str, float | None], times: Ints, baseline: Window
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each time whether the task has caught up: the newest sample of its newest attempt is fresh and its lag
    normal. A sink must also not wait for records longer than in the baseline, because its lag is that of its last record."""
    limit = normal[attempts[0].role]
    good = np.zeros(len(times), dtype=np.bool_)
    quiet = _longest_quiet(attempts, baseline) if attempts[0].role == "sink" else None
    for series in sorted(attempts, key=lambda s: s.attempt):
        newest = np.searchsorted(series.t_ns, times, side="right") - 1
        started = newest >= 0
        lag = series.lag_ns[np.maximum(newest, 0)]
        age = times - series.t_ns[np.maximum(newest, 0)]
        fine = (age <= FRESH_NS) & (lag <= (limit or 0.0) + EPSILON_NS)
        if quiet is not None:
            fine &= _quiet_for(series, times) <= quiet + EPSILON_NS
        good = np.where(started, fine, good)  # a newer attempt replaces an older one from its first sample on
    return good


def _longest_quiet(attempts: list[TaskSeries], baseline: Window) -> int | None:
    """Return the longest time without a new record in the baseline. None if it had no records (a subtask without keys)."""
    moments = np.sort(np.concatenate([_arrivals(s) for s in attempts]))
    moments = moments[(moments >= baseline.start) & (moments < baseline.end)]
    if not len(moments):
        return None
    return int(np.diff(np.concatenate([[baseline.start], moments, [baseline.end]])).max())


def _quiet_for(series: TaskSeries, times: Ints) -> Ints:
    """Return for each time how long ago the last new record arrived, or since when the attempt has run without one."""
    moments = np.concatenate([series.t_ns[:1], _arrivals(series)])
    newest = np.searchsorted(moments, times, side="right") - 1
    return np.asarray(times - moments[np.maximum(newest, 0)], dtype=np.int64)


def _arrivals(series: TaskSeries) -> Ints:
    """Return the times of the samples that show new records."""
    return np.asarray(series.t_ns[np.diff(series.records_in, prepend=0) > 0], dtype=np.int64)


def _since_when(good: np.ndarray[Any, np.dtype[np.bool_]], at: int) -> int:
    """Return the index from which everything was good up to `at`, or `at` if that lasted less than EARLY_NS."""
    first = at
    while first > 0 and good[first - 1]:
        first -= 1
    return first if first == 0 or at - first >= EARLY_NS // STEP_NS else at


def _first_run(good: np.ndarray[Any, np.dtype[np.bool_]], length: int) -> int | None:
    """Return where the first run of at least `length` starts. A run cut off by the end does not count."""
    run = 0
    for index, value in enumerate(good.tolist()):
        run = run + 1 if value else 0
        if run >= length:
            return index - length + 1
    return None
