"""The schedule of one trial, as data. The runner asks what is due and carries it out.

    deploy | warmUp | baseline | fault … | observation … | drain | end
           ^ job_running()     ^ time zero of the faults         ^ zero + max(observation, end of the last fault)

`observation` counts from time zero of the faults, so that a trial takes warmUp + baseline + observation however long its
faults last. The phase `fault` ends with the last fault; the phase `observation` is the rest. A control trial has the same
phases without the injections.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from testbed_runtime.core.faults.lease import RENEW_EVERY_S
from testbed_runtime.core.faults.model import Fault

ENTER = "enter"
INJECT = "inject"
RENEW = "renew"
HEAL = "heal"
SUBMIT = "submit"
# order at one instant: ends, then the phase, then starts, then faults without a duration end; the drain is last
_RANK = {HEAL: 0, ENTER: 1, RENEW: 2, INJECT: 3, SUBMIT: 4}
_AT_ONCE, _LAST = 5, 6


class Action(Struct, frozen=True):
    """Something to do at loop time `at`. `name` is the phase for ENTER, the fault for INJECT, RENEW and HEAL, empty for SUBMIT."""

    kind: str
    name: str
    at: float


class PhaseSpan(Struct, frozen=True):
    name: str
    start: float
    end: float


class Windows(Struct, frozen=True, kw_only=True):
    """Lengths of a trial's phases; `drain_s` is a limit."""

    warm_up_s: float
    baseline_s: float
    observation_s: float
    drain_s: float


class Timeline:
    """The schedule of one trial. Call `begin(now)`, then `job_running(now)`, then `due(now)` until the end.

    Every call returns the actions that are due, in order; no action is returned twice.
    """

    def __init__(self, windows: Windows, faults: Sequence[Fault], *, control: bool) -> None:
        for name in ("warm_up_s", "baseline_s", "observation_s"):
            if (seconds := getattr(windows, name)) < 0:
                raise ValueError(f"{name} is negative: {seconds}")
        names = [f.name for f in faults]
        if len(set(names)) != len(names):
            raise ValueError("two faults have the same name")
        self.windows = windows
        self.faults = tuple(faults)
        self.control = control
        self.phase = ""
        self._planned: list[tuple[float, int, Action]] = []
        self._active: list[str] = []
        self._spans: list[PhaseSpan] = []
        self._entered_at = 0.0
        self._end_at: float | None = None

    @property
    def fault_window_s(self) -> float:
        """The length of the phase `fault`: from time zero to the end of the last fault."""
        return max((f.at_s + f.duration_s for f in self.faults if not f.before_submit), default=0.0)

    @property
    def after_zero_s(self) -> float:
        """Seconds from time zero of the faults to the start of the drain."""
        return max(self.windows.observation_s, self.fault_window_s)

    @property
    def planned_s(self) -> float:
        """Seconds from the running job to the start of the drain."""
        return self.windows.warm_up_s + self.windows.baseline_s + self.after_zero_s

    def begin(self, now: float) -> list[Action]:
        """Start the deployment: first the faults that precede the submission, then the submission."""
        if self.phase:
            raise ValueError("the timeline has already begun")
        self._schedule(Action(ENTER, "deploy", now))
        for fault in self.faults:
            if fault.before_submit:
                self._plan_fault(fault, now)
        self._schedule(Action(SUBMIT, "", now))
        return self.due(now)

    def job_running(self, now: float) -> list[Action]:
        """Start the warm-up: all tasks run."""
        if self.phase != "deploy":
            raise ValueError(f"the job cannot start running in phase {self.phase or 'none'}")
        zero = now + self.windows.warm_up_s + self.windows.baseline_s
        ends = [self._plan_fault(f, zero + f.at_s) for f in self.faults if not f.before_submit]
        faults_end = max(ends, default=zero)
        self._end_at = max(zero + self.windows.observation_s, faults_end)
        self._schedule(Action(ENTER, "warmUp", now))
        self._schedule(Action(ENTER, "baseline", now + self.windows.warm_up_s))
        self._schedule(Action(ENTER, "fault", zero))
        self._schedule(Action(ENTER, "observation", faults_end))
        self._schedule(Action(ENTER, "drain", self._end_at), _LAST)
        for fault in self.faults:
            if fault.before_submit:  # no later than this: no job drains during a fault
                self._schedule(Action(HEAL, fault.name, self._end_at))
        return self.due(now)

    def due(self, now: float) -> list[Action]:
        """Return the actions up to `now`, in order of their time."""
        ready = [a for at, _, a in self._planned if at <= now]
        self._planned = self._planned[len(ready) :]
        return [a for a in ready if self._apply(a, now)]

    def cut_short(self, now: float) -> list[Action]:
        """Heal what is active and drain now, because the job has ended or the trial is void. Pending actions are dropped."""
        return self._end_with("" if self.phase in ("drain", "end") else "drain", now)

    def drained(self, now: float) -> list[Action]:
        """End the trial: the drain is complete, or it was abandoned."""
        return self._end_with("end", now)

    def _end_with(self, phase: str, now: float) -> list[Action]:
        self._planned = []
        for name in self._active:
            self._schedule(Action(HEAL, name, now))
        if phase:
            self._schedule(Action(ENTER, phase, now))
        return self.due(now)

    @property
    def next_time(self) -> float | None:
        """The time of the next action; None if nothing is planned."""
        return self._planned[0][0] if self._planned else None

    @property
    def spans(self) -> tuple[PhaseSpan, ...]:
        """The completed phases in order, with their actual start and end."""
        return tuple(self._spans)

    def spans_until(self, now: float) -> tuple[PhaseSpan, ...]:
        """The completed phases, and the one that is in progress."""
        open_phase = self.phase not in ("", "end")
        return (*self.spans, PhaseSpan(self.phase, self._entered_at, now)) if open_phase else self.spans

    def remaining(self, now: float) -> float | None:
        """Return the seconds until the drain; None before the job runs."""
        return None if self._end_at is None else max(0.0, self._end_at - now)

    def _plan_fault(self, fault: Fault, at: float) -> float:
        """Plan a fault and return its end. A control trial only waits for that time."""
        end = at + fault.duration_s
        if self.control:
            return end
        self._schedule(Action(INJECT, fault.name, at))
        renewals = 1
        while (when := at + renewals * RENEW_EVERY_S) < end:
            self._schedule(Action(RENEW, fault.name, when))
            renewals += 1
        self._schedule(Action(HEAL, fault.name, end), _AT_ONCE if end <= at else None)
        return end

    def _schedule(self, action: Action, rank: int | None = None) -> None:
        self._planned.append((action.at, _RANK[action.kind] if rank is None else rank, action))
        self._planned.sort(key=lambda planned: planned[:2])

    def _apply(self, action: Action, now: float) -> bool:
        if action.kind == ENTER:
            if self.phase:
                self._spans.append(PhaseSpan(self.phase, self._entered_at, now))
            self.phase, self._entered_at = action.name, now
        elif action.kind == INJECT:
            self._active.append(action.name)
        elif action.kind == HEAL:
            if action.name not in self._active:
                return False
            self._active.remove(action.name)
        elif action.kind == RENEW:
            return action.name in self._active
        return True
