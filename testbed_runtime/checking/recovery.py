"""The metrics of a recovery: its seconds by phase, derived only from the rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from testbed_runtime.checking.baseline import STEADY_S, baseline_of, steady_share, steady_since
from testbed_runtime.checking.common import Window, windows
from testbed_runtime.checking.progress import progress_of
from testbed_runtime.core.judgement.metrics import (
    JOB_FAILED,
    MILESTONE_PHASES,
    NO_BASELINE,
    NO_FAILOVER,
    NO_FAULT,
    NO_OUTAGE,
    NO_SUCH_PHASE,
    NOT_RECOVERED,
    OBSERVATION_TOO_SHORT,
    RECOVERY_PHASES,
)
from testbed_runtime.core.judgement.recovery import Recovery, Segment, SharedFault, TrialRecovery
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.history.schema import Trial

MIDDLE = RECOVERY_PHASES[:-2]
"""The phases that only a failover has."""


class Phase(Struct, frozen=True):
    """A phase of a recovery. `seconds` is None if the phase did not happen or is unknown. With the reason NotRecovered or
    ObservationTooShort it is a lower bound."""

    name: str
    seconds: float | None
    bounded_by: str = ""
    reason: str = ""
    text: str = ""


def worst(found: TrialRecovery) -> Recovery | None:
    """Return the recovery that the metrics describe (of `recovery.total`, see `longest`): one that did not end,
    otherwise one with a failover, otherwise the longest. None if no fault began a recovery."""
    faults = [r for r in found.recoveries if r.fault]
    return max(faults, key=lambda r: (not r.recovered, _failed_over(r), r.total_s), default=None)


def _failed_over(recovery: Recovery) -> bool:
    return any(r.cause for r in recovery.rounds)


def longest(found: TrialRecovery) -> Recovery | None:
    """Return the recovery whose length is `recovery.total`: the worst one, or a longer outage in which a fault that had caused a failover
    stopped the job again. Every failover counts: a later one without this fault does not change that outage."""
    chosen = worst(found)
    if chosen is None or not chosen.recovered:
        return chosen
    held = {fault for r in found.recoveries if _failed_over(r) for fault in r.faults}
    again = [r for r in found.recoveries if r.again and r.fault in held]
    return max((chosen, *again), key=lambda r: r.total_s)


def milestones(
    found: TrialRecovery, end: int, faults: Collection[str] = ()
) -> tuple[tuple[str, Window | None], ...]:
    """Return the windows `outage`, `catch-up` and `recovered` of the worst recovery. The rows `recovery.*`
    describe the same recovery, except `recovery.total`.

    With several faults, the windows of each fault follow as `outage/<fault>`, and so on. Faults that share a
    recovery share its end, and each begins with its own effect. Of several recoveries of one fault, the longest
    since its effect counts. `recovered` lasts until `end`. `faults`: the faults of the scenario."""
    chosen = worst(found)
    windows = dict.fromkeys(MILESTONE_PHASES) if chosen is None else dict(_milestones(chosen, end))
    none: dict[str, Window | None] = dict.fromkeys(MILESTONE_PHASES)
    by_fault = {**dict.fromkeys(faults, none), **_of_faults(found, end)}
    if len(by_fault) > 1 or len(found.recoveries) > 1:
        windows |= {f"{n}/{fault}": w for fault, spans in by_fault.items() for n, w in spans.items()}
    return tuple(windows.items())


def _of_faults(found: TrialRecovery, end: int) -> dict[str, dict[str, Window | None]]:
    """Return the windows of each fault in its worst recovery: one that did not end, otherwise the one that ended last after the fault's
    effect in it."""
    known: dict[str, tuple[tuple[bool, int], dict[str, Window | None]]] = {}
    for recovery in found.recoveries:
        own = [(recovery.fault, recovery.effect_ns, _milestones(recovery, end))] if recovery.fault else []
        shared = [(s.fault, s.effect_ns, _of_shared(recovery, s, end)) for s in recovery.shared]
        for fault, effect_ns, spans in (*own, *shared):
            length = (not recovery.recovered, recovery.end_ns - effect_ns)
            if fault not in known or length > known[fault][0]:
                known[fault] = (length, dict(spans))
    return {fault: spans for fault, (_, spans) in known.items()}


def no_window(found: TrialRecovery, phase: str, faults: Collection[str]) -> str:
    """Return the reason why a milestone has no window in this trial: it was not reached, or there was no outage."""
    fault = phase.partition("/")[2]
    chosen = worst(found)
    mine = [r for r in found.recoveries if fault in r.faults] if fault else [chosen] if chosen else []
    if any(r.total_s > 0 for r in mine):
        return NO_SUCH_PHASE
    return NO_OUTAGE if faults or found.recoveries else NO_FAULT


def _milestones(recovery: Recovery, end: int) -> Iterator[tuple[str, Window | None]]:
    """Yield the windows of one recovery."""
    return _spans(recovery.effect_ns, _outage_end(recovery), recovery.end_ns, end)


def _of_shared(recovery: Recovery, shared: SharedFault, end: int) -> Iterator[tuple[str, Window | None]]:
    """Yield the windows of a fault in the recovery that it shares. After the first new records, its outage lasts as
    long as the fault, like that of a fault without a failover."""
    back = _outage_end(recovery)
    if shared.effect_ns >= back:
        back = min(shared.ended_ns or recovery.end_ns, recovery.end_ns)
    return _spans(shared.effect_ns, back, recovery.end_ns, end)


def _outage_end(recovery: Recovery) -> int:
    """Return the end of the outage: when the last affected sink subtask received a new record, or without a failover when
    the catch-up began."""
    behind = [s.start_ns for s in _segments(recovery) if s.kind == "catch-up"]
    back = behind[-1] if behind else recovery.end_ns
    if recovery.downtime_s is not None:
        back = recovery.effect_ns + round(recovery.downtime_s * NS)
    return min(back, recovery.end_ns)


def _spans(effect: int, back: int, recovered: int, end: int) -> Iterator[tuple[str, Window | None]]:
    spans = ((effect, back), (back, recovered), (recovered, end))
    for name, (start, stop) in zip(MILESTONE_PHASES, spans, strict=True):
        yield name, Window(start, stop) if start < stop else None


def check_recovery(trial: Trial, entry: TrialEntry, found: TrialRecovery) -> list[Phase]:
    """Return the rows `recovery.<name>` of a trial, from its worst recovery."""
    recovery, whole = worst(found), longest(found)
    names = (*RECOVERY_PHASES, "downtime", "total", "rounds", "unattributed", "from-events")
    if recovery is None or whole is None:
        return [Phase(name, None, reason=NO_FAULT) for name in names]
    rows = [_phase(recovery, name) for name in RECOVERY_PHASES[:-1]]
    rows.append(_steady(trial, entry, recovery))
    unknown = recovery.reason not in ("", NOT_RECOVERED, JOB_FAILED)
    total = Phase("total", None, reason=recovery.reason) if unknown else Phase("total", whole.total_s, _largest(_segments(whole)), _bound(whole), whole.fault)  # fmt: skip
    length = recovery.total_s or 1.0
    return [
        *rows,
        _downtime(recovery),
        total,
        Phase("rounds", float(len(recovery.rounds))),
        Phase("unattributed", recovery.unattributed_s / length),
        Phase("from-events", recovery.from_events_s / length),
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
    owned: dict[str, float] = defaultdict(float)
    for segment in segments:
        owned[segment.words] += segment.seconds
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


def _steady(trial: Trial, entry: TrialEntry, recovery: Recovery) -> Phase:
    """Return how long after the recovery the throughput reached its baseline again, within the measured noise."""
    if recovery.reason:
        return Phase("steady", None, reason=_bound(recovery))
    spans = windows(trial, entry)
    normal = baseline_of(trial, entry, spans)
    if normal is None:
        return Phase("steady", None, reason=NO_BASELINE)
    bounded, begun = "spare capacity of the job", recovery.end_ns
    if spans.end - begun < STEADY_S * NS:
        return Phase("steady", max(0, spans.end - begun) / NS, bounded, OBSERVATION_TOO_SHORT)
    share = steady_share(normal.noise, entry.noise)
    since = steady_since(progress_of(trial, "sink"), Window(begun, spans.end), normal.reference, share)
    if since is not None:
        return Phase("steady", (since - begun) / NS, bounded)
    return Phase("steady", (spans.end - begun) / NS, bounded, NOT_RECOVERED)
