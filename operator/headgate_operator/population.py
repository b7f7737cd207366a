"""Metrics about Headgate's objects, from what the watches deliver: phases, active faults, verdicts. State, without calls.

Every label has a bounded set of values; no object's name is a label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headgate_operator.exposition import Histogram, by_label, counter, gauge
from testbed_runtime.api.status import COMPLETE, EVALUATING, REJECTED, SUSPENDED
from testbed_runtime.api.views import Fault, Manifest, Resource, seconds
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.judgement.verdict import Verdict

PHASES = {
    "Testbed": ("Starting", "Ready", "Rolling", "Degraded", REJECTED),
    "ScenarioRun": (SUSPENDED, "Starting", "Running", EVALUATING, COMPLETE),
}
"""The phases that have a time series; anything else is `other`."""
OVERDUE_S = 30.0
"""A fault that is active for so long after its deadline is reported as overdue: agents end a fault within a second."""
EVALUATION_BUCKETS_S = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0)
VERDICTS = frozenset(Verdict)
OTHER = "other"


class _Facts(Struct, frozen=True):
    phase: str
    faults: tuple[tuple[str, float], ...] = ()
    """Kind and deadline of each fault that acts."""
    residue: bool = False
    voided: int = 0
    evaluating_since: float | None = None


class Population:
    """`now` is seconds since the epoch."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str], _Facts] = {}
        # from 0 on, because Prometheus' increase() does not see the step with which a time series begins
        self._verdicts = Counter(dict.fromkeys((*VERDICTS, OTHER), 0))
        self._voided = 0
        self._evaluations = Histogram(EVALUATION_BUCKETS_S)

    def seen(self, obj: Manifest, now: float, *, gone: bool) -> None:
        """Handle a watch event of one of Headgate's kinds."""
        key = str(obj.get("kind")), Resource(obj).path
        before = self._objects.pop(key, None)
        if gone:
            return
        facts = _facts(obj, before, now)
        self._objects[key] = facts
        if before is None or key[0] != "ScenarioRun":
            return  # objects that ended before this process began are not counted
        self._voided += max(0, facts.voided - before.voided)
        if facts.phase == COMPLETE and before.phase != COMPLETE:
            verdict = str((obj.get("status") or {}).get("verdict") or "")
            self._verdicts[verdict if verdict in VERDICTS else OTHER] += 1
            if before.evaluating_since is not None:
                self._evaluations.add(now - before.evaluating_since)

    def forget(self, kind: str, name: str) -> None:
        """Forget an object that does not exist any more."""
        self._objects.pop((kind, name), None)

    def lines(self, now: float) -> list[str]:
        """Return the time series in Prometheus' text format."""
        known = self._objects.values()
        acting = [fault for facts in known for fault in facts.faults]
        active = Counter(kind for kind, _ in acting)
        overdue = sum(now > deadline + OVERDUE_S for _, deadline in acting)
        residue = Counter(kind for (kind, _), f in self._objects.items() if f.residue)
        return [
            *gauge("headgate_faults_active", "Faults that act now.", by_label("kind", active)),
            *gauge("headgate_faults_overdue", "Faults that act after their deadline.", overdue),
            *gauge(
                "headgate_residue", "Objects whose faults left something behind.", by_label("kind", residue)
            ),
            *self._phases("Testbed", "headgate_testbeds"),
            *self._phases("ScenarioRun", "headgate_runs"),
            *counter(
                "headgate_runs_finished_total",
                "Runs that ended, by verdict.",
                by_label("verdict", self._verdicts),
            ),
            *counter("headgate_trials_voided_total", "Trials that were voided.", self._voided),
            *self._evaluations.lines(
                "headgate_evaluation_duration_seconds", "Duration of a run's evaluation."
            ),
        ]

    def _phases(self, kind: str, name: str) -> list[str]:
        phases = [f.phase for (k, _), f in self._objects.items() if k == kind]
        counts = Counter(p if p in PHASES[kind] else OTHER for p in phases)
        every = {phase: counts[phase] for phase in (*PHASES[kind], OTHER)}
        return gauge(name, f"{kind}s by phase.", by_label("phase", every))


def _facts(obj: Manifest, before: _Facts | None, now: float) -> _Facts:
    status: Mapping[str, Any] = obj.get("status") or {}
    phase = str(status.get("phase") or "")
    if obj.get("kind") == "Fault":
        active = [_fault(status, now)] if Fault(obj).active else []
        return _Facts(phase, tuple(active), residue=bool(status.get("residue")))
    since = before.evaluating_since if before else None
    return _Facts(
        phase,
        tuple(_fault(fault, now) for fault in status.get("activeFaults") or ()),
        residue=any(f.get("residue") for f in status.get("faults") or ()),
        voided=sum(bool(t.get("voided")) for t in status.get("trials") or ()),
        evaluating_since=(now if since is None else since) if phase == EVALUATING else None,
    )


def _fault(fault: Mapping[str, Any], now: float) -> tuple[str, float]:
    """Return kind and deadline of a fault that acts, from a Fault's status or a run's."""
    kind, deadline = str(fault.get("kind") or ""), fault.get("deadline")
    return kind if kind in KINDS else OTHER, seconds(deadline) if deadline else now
