"""The metrics of a recovery: its seconds by phase, as a summary of the rounds and never a second truth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from testbed_runtime.checking.catchup import STEP_NS
from testbed_runtime.checking.common import NS, Entry, Window, Windows, task_series, windows
from testbed_runtime.checking.throughput import rate
from testbed_runtime.core.judgement.metrics import (
    JOB_FAILED,
    NO_BASELINE,
    NO_FAILOVER,
    NO_FAULT,
    NOT_RECOVERED,
    OBSERVATION_TOO_SHORT,
    RECOVERY_PHASES,
)
from testbed_runtime.core.judgement.recovery import Recovery, Segment, TrialRecovery
from testbed_runtime.history.schema import Trial

PHASES = RECOVERY_PHASES
"""In their order."""
STEADY_S = 3
STEADY_SHARE = 0.05
MIDDLE = PHASES[:-2]
"""The phases that only a failover has."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a recovery. `seconds` is None if the phase did not happen or is unknown. With the reason NotRecovered or
    ObservationTooShort it is a lower bound."""

    name: str
    seconds: float | None
    bounded_by: str = ""
    reason: str = ""
    text: str = ""


def worst(found: TrialRecovery) -> Recovery | None:
    """Return the recovery that the metrics describe: one that did not end, else the longest. None if no fault began any."""
    faults = [r for r in found.recoveries if r.fault]
    return max(faults, key=lambda r: (not r.recovered, r.total_s), default=None)


def check_recovery(trial: Trial, entry: Entry, found: TrialRecovery) -> list[Phase]:
    """Return the rows `recovery.<name>` of a trial, from its worst recovery."""
    recovery = worst(found)
    names = (*PHASES, "downtime", "total", "rounds", "unattributed")
    if recovery is None:
        return [Phase(name, None, reason=NO_FAULT) for name in names]
    rows = [_phase(recovery, name) for name in PHASES[:-1]]
    rows.append(_steady(trial, windows(trial, entry), recovery))
    unknown = recovery.reason not in ("", NOT_RECOVERED, JOB_FAILED)
    total = Phase("total", None, reason=recovery.reason) if unknown else Phase("total", recovery.total_s, _largest(_segments(recovery)), _bound(recovery), recovery.fault)  # fmt: skip
    share = recovery.unattributed_s / recovery.total_s if recovery.total_s > 0 else 0.0
    return [
        *rows,
        _downtime(recovery),
        total,
        Phase("rounds", float(len(recovery.rounds))),
        Phase("unattributed", share),
    ]


def has_failover(recovery: Recovery) -> bool:
    return any(r.cause or r.failure for r in recovery.rounds)


def _segments(recovery: Recovery) -> list[Segment]:
    return [s for r in recovery.rounds for s in r.segments]


def _bound(recovery: Recovery) -> str:
    """Return the reason of a row that has only a lower bound."""
    return NOT_RECOVERED if recovery.reason in (NOT_RECOVERED, JOB_FAILED) else recovery.reason


def _largest(segments: Iterable[Segment]) -> str:
    """Return the owner of the most seconds in words."""
    owned: dict[str, float] = {}
    for segment in segments:
        if segment.seconds > 0:
            owned[segment.text] = owned.get(segment.text, 0.0) + segment.seconds
    return max(owned, key=lambda text: owned[text], default="")


def _phase(recovery: Recovery, name: str) -> Phase:
    mine = [s for s in _segments(recovery) if s.phase == name]
    seconds = sum(s.seconds for s in mine)
    text = recovery.rounds[0].cause if name == "detect" else ""
    last = recovery.rounds[-1].segments[-1:]
    if not recovery.recovered and last and last[0].phase == name:
        return Phase(name, seconds, _largest(mine), _bound(recovery), text)
    if not recovery.recovered and name == "catch-up":
        return Phase(name, None, reason=_bound(recovery))
    if recovery.reason and name == "catch-up":
        return Phase(name, None, reason=recovery.reason)
    if name in MIDDLE and not has_failover(recovery) and not mine:
        return Phase(name, None, reason=NO_FAILOVER)
    return Phase(name, seconds, _largest(mine), text=text)


def _downtime(recovery: Recovery) -> Phase:
    if recovery.downtime_s is not None:
        up_to = [s for s in _segments(recovery) if s.kind != "catch-up"]
        return Phase("downtime", recovery.downtime_s, _largest(up_to))
    if not has_failover(recovery):
        return Phase("downtime", None, reason=NO_FAILOVER)
    return Phase("downtime", recovery.total_s, reason=_bound(recovery))


def _steady(trial: Trial, spans: Windows, recovery: Recovery) -> Phase:
    """Return how long after the recovery the throughput reached its baseline again."""
    if recovery.reason:
        return Phase("steady", None, reason=_bound(recovery))
    sinks = task_series(trial, "sink")
    normal = rate(sinks, spans.baseline) if spans.baseline is not None else None
    if not normal:
        return Phase("steady", None, reason=NO_BASELINE)
    bounded, begun = "spare capacity of the job", recovery.end_ns
    if spans.end - begun < STEADY_S * NS:
        return Phase("steady", max(0, spans.end - begun) / NS, bounded, OBSERVATION_TOO_SHORT)
    for start in range(begun, spans.end - STEADY_S * NS + 1, STEP_NS):
        now = rate(sinks, Window(start, start + STEADY_S * NS))
        if now is not None and abs(now - normal) <= STEADY_SHARE * normal:
            return Phase("steady", (start - begun) / NS, bounded)
    return Phase("steady", (spans.end - begun) / NS, bounded, NOT_RECOVERED)
