"""Limit what a shorter wait saves when several faults share a recovery. With a shorter wait, the job may already run again when the next fault
begins, and then it has to restart once more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.checking.common import JobShape, data, events
from testbed_runtime.checking.criticalpath import EPSILON_NS, NEAR_NS, TIE_NS, is_awaited, taskmanager_of
from testbed_runtime.checking.executions import places
from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.faults import FaultEffect, targets_of
from testbed_runtime.checking.heldmessages import silences
from testbed_runtime.checking.lasting import (
    FEWER,
    PAUSE,
    is_unreachable,
    runs_before,
    savable_ns,
    with_more,
    with_segments,
    with_slack,
    without_limit,
)
from testbed_runtime.checking.pieces import is_of_option
from testbed_runtime.checking.rounds import LOST, Outage, cut_off, responsible
from testbed_runtime.checking.waits import LOSSES
from testbed_runtime.core.faults.links import ANYBODY, logical_name, split_link
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.ids import JOBMANAGER, is_task_manager
from testbed_runtime.core.job.slots import slots_of_groups
from testbed_runtime.core.judgement.recovery import Round, Segment
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import EVERYTHING, JOBMASTER_NAME, KINDS, REPLACE_LOST, RM_NAME, Outcome, Wait
from testbed_runtime.history.columns import vertex_of
from testbed_runtime.history.schema import Trial
from testbed_runtime.history.waits import INT64_MAX

_AFTER_A_DELAY = frozenset(
    {
        "slot-request",
        "slot",
        "start",
        "registration",
        "input",
        "deployment",
        "restore",
        "open",
        "partition",
        "first-record",
    }
)
"""The kinds of waits that every restart has, whatever the job waited for before."""
_SILENT = ("heartbeat", "fencing", "jobmanager")
_HEARTBEAT = KINDS["heartbeat"].options[0]


class Hit(Struct, frozen=True):
    """A fault that stopped a part of the job, and the vertices of that part. They stand still until the fault
    ends, or until another fault makes the job move their tasks."""

    fault: FaultEffect
    vertices: frozenset[str]
    until_ns: int = INT64_MAX


def hits_of(
    trial: Trial, shape: JobShape, faults: Iterable[FaultEffect], since_ns: int, *, whole: bool
) -> list[Hit]:
    """Return, in order, the faults that stopped a part of the job: those that ended the JobManager, that ended, paused or cut off a process which
    ran tasks when the recovery began, or that cut a connection between two such processes. `whole`: every failure restarts the whole job."""
    ran = places(trial, since_ns)
    ordered = sorted(faults, key=lambda f: f.begun_ns)
    found = []
    for fault in ordered:
        targets = set(targets_of(fault))
        own = {vertex_of(task) for task, place in ran.items() if place in targets}
        if (fault.kind in LOST and JOBMANAGER in targets) or (own and whole):
            own = set(shape.parallelism)
        if own and (fault.kind in (*LOST, PAUSE) or (fault.hides_link and not fault.on_data_alone)):
            found.append(Hit(fault, _connected(own, shape)))
        elif fault.on_data_alone and (cut := cut_off(trial, fault)):
            ends = {JOBMANAGER, *_names(fault)}
            moved = [f.begun_ns for f in ordered if f.moves_tasks and not ends.isdisjoint(_names(f))]
            until_ns = min([(fault.ended_ns or INT64_MAX) - fault.sent_again_ns, *moved])
            found.append(Hit(fault, _connected(set(map(vertex_of, cut)), shape), until_ns))
    return found


def downtime_s(trial: Trial, hits: Iterable[Hit], sinks: Collection[str], outage: Outage) -> float | None:
    """Return when the last affected sink received its first new record, in seconds since the effect. None if one received none. A part of the
    job that a fault stopped and that did not restart gets records when that fault ends."""
    if outage.running is None:
        return None
    states = events(trial, "task.state")
    restarts = [(vertex_of(e["subject"]), e["t_ns"]) for e in states if data(e).get("to") == "DEPLOYING"]
    back = outage.running
    for hit in hits:
        fault = hit.fault
        ended = INT64_MAX if fault.ended_ns is None else fault.ended_ns
        if hit.until_ns < ended - fault.sent_again_ns:  # its tasks were moved
            ended = hit.until_ns
        restarted = any(name in hit.vertices and fault.begun_ns < t_ns < ended for name, t_ns in restarts)
        stands = fault.begun_ns < outage.running and not restarted and fault.kind not in LOST
        if stands and not fault.on_rpc_alone and not hit.vertices.isdisjoint(sinks):
            back = max(back, ended)
    if back == INT64_MAX:
        return None
    return (min(back, outage.end) - outage.effect) / NS


def ran_before(
    hits: Sequence[Hit], awaited: Callable[[str], Mapping[str, int]], effect_ns: int, wait: Wait, other: Wait
) -> int:
    """Return how long the job could have run without `wait`, before a fault began `other` or the TaskManager that `other` is for was lost, in
    nanoseconds. It ran until `effect_ns` anyway. 0 if that was not later, or if `wait` is for a process that this fault stopped."""
    ends = {
        JOBMANAGER if n in (JOBMASTER_NAME, RM_NAME) else logical_name(n) for n in (other.who, other.what)
    }
    lost_ns = awaited(wait.option).get(taskmanager_of(other), 0) if is_awaited(other, None) else 0
    gone = (h.fault.begun_ns for h in hits if JOBMANAGER in targets_of(h.fault))
    lost_ns = max((ns for ns in gone if ns <= lost_ns), default=lost_ns)  # every TaskManager registers again
    since = max(wait.start_ns, effect_ns)
    found = since if lost_ns <= since + TIE_NS else lost_ns
    for fault in (h.fault for h in hits):
        names, begun = _names(fault), fault.begun_ns
        # the wait for a process that stopped begins with its last message
        silenced = other.kind in _SILENT and begun < other.end_ns and not names.isdisjoint(ends)
        during = since + TIE_NS < begun < wait.end_ns and logical_name(wait.what) not in names
        if during and (silenced or begun <= other.start_ns + EPSILON_NS):
            found = max(found, begun)
    return found - since


def _names(fault: FaultEffect) -> set[str]:
    """Return the processes that a fault hit, or the ends of its links."""
    return {name for target in targets_of(fault) for name in split_link(target)} - {"", ANYBODY}


def _connected(vertices: set[str], shape: JobShape) -> frozenset[str]:
    """Return every vertex that is connected to one of these, directly or through other vertices."""
    found: set[str] = set()
    while len(found) < len(vertices):
        found = set(vertices)
        for origin, target, _ in shape.edges:
            if not vertices.isdisjoint((origin, target)):
                vertices |= {origin, target}
    return frozenset(found)


def until_each_has_recovered(
    rounds: Sequence[Round],
    hits: Sequence[Hit],
    causes: Iterable[Cause],
    waits: Sequence[Wait],
    effects: Iterable[FaultEffect],
    *,
    awaited: Callable[[str], Collection[str]],
) -> tuple[Round, ...]:
    """Return the rounds with the savings of each option as they are if the job recovers from each fault on its own. The time for that cannot
    be saved. If the job then runs again before the next fault begins, all the rest is saved, even if it is more than the waits of that
    option. A shorter heartbeat timeout may also end the wait for a paused process, which then saves as much more. `causes`: the
    failures of the rounds. `effects`: every fault, also those that only delay steps. `awaited`: for an option,
    the TaskManagers that the job would wait for without its waits."""
    if not hits:
        return tuple(rounds)
    faults, shown, failed = [h.fault for h in hits], dict[str, Cause](), [*causes]
    lost = {target for fault in faults for target in targets_of(fault)}
    for cause in failed:
        if (fault := responsible(faults, cause)) is not None:
            shown.setdefault(fault.fault, cause)
    alone = _Alone(rounds, shown, waits, awaited, effects)
    segments = [s for r in rounds for s in r.segments]
    lasted = sum(s.end_ns - s.start_ns for s in segments if not _works(s))
    shorter = {s.option for s in segments} - {""}
    paused = {h.fault.fault for h in hits if h.fault.kind == PAUSE}
    stalled = sum(s.end_ns - s.start_ns for s in segments if s.kind == "stalled" and s.fault in paused)
    if stalled:
        segments = [_also_without(s, stalled) if s.option == _HEARTBEAT else s for s in segments]
        shorter -= {_HEARTBEAT}
    for option in sorted(shorter):
        found = alone.remaining(hits, option)
        left = max(0, lasted - found.behind_ns)
        # a wait changes only what comes after it
        begun = (s.start_ns for s in segments if s.option == option and s.end_ns - s.start_ns > TIE_NS)
        since_ns = min(begun, default=INT64_MAX)
        apart = any(since_ns < f.begun_ns for f in faults if f.fault == found.apart)
        fewer = found.restarts < len(rounds) and since_ns < rounds[-1].start_ns
        in_vain = fewer and any(map(is_unreachable, failed))
        # the next JobManager recovers the job after steps of its own
        if (apart or in_vain) and JOBMANAGER not in lost:
            why = runs_before(found.apart) if apart else FEWER
            segments = _all_of(segments, option, left, why)
        for number, own in reversed(list(enumerate(segments))):
            if own.option == option and not own.gave_up:
                known = savable_ns(own)
                if left < known - NEAR_NS:
                    segments[number] = with_slack(own, left, f"its recovery from the fault `{found.last}`")
                left = max(0, left - known)
    return with_segments(rounds, segments)


def _also_without(segment: Segment, more_ns: int) -> Segment:
    """Return the segment with `more_ns` more slack, because a shorter wait may end other waits too. The limit is removed if the slack covers
    the whole segment."""
    if segment.slack_ns < 0:
        return segment
    slack_ns = segment.slack_ns + more_ns
    if slack_ns >= segment.end_ns - segment.start_ns:
        return without_limit(segment)
    return replace(segment, slack_ns=slack_ns)


def _all_of(segments: Sequence[Segment], option: str, left_ns: int, why: str) -> list[Segment]:
    """Return the segments with all waits for this option savable, if a lower value saves `left_ns` and their limits allow less. If that is
    more than these waits took, the last one gets the rest, with the reason `why`."""
    own = [n for n, s in enumerate(segments) if s.option == option and not s.gave_up]
    found = list(segments)
    if left_ns <= sum(savable_ns(found[n]) for n in own) + NEAR_NS:
        return found
    for number in own:
        found[number] = without_limit(found[number])
    more_ns = left_ns - sum(savable_ns(found[n]) for n in own)
    if own and more_ns > NEAR_NS:
        found[own[-1]] = with_more(found[own[-1]], more_ns, why)
    return found


def _works(segment: Segment) -> bool:
    """Whether the segment is the job's work on its backlog, whose length depends on the outage before it."""
    return segment.kind == "catch-up" and not segment.fault


def _missed(wait: Wait) -> bool:
    """Whether heartbeats were missing for too long."""
    return (wait.kind, wait.outcome) == ("heartbeat", Outcome.EXPIRED)


class _Remaining(Struct, frozen=True):
    """The remainder of the recoveries if an option costs nothing."""

    behind_ns: int
    """How long the job is behind, without the time in which it worked on its backlog."""
    last: str
    """The fault from which it recovers last."""
    restarts: int
    apart: str
    """The first fault before which the job runs again; empty if there is none."""


class _Alone:
    """The minimum that each fault costs if the job recovers from it on its own."""

    def __init__(
        self,
        rounds: Sequence[Round],
        known: Mapping[str, Cause],
        waits: Sequence[Wait],
        awaited: Callable[[str], Collection[str]],
        effects: Iterable[FaultEffect],
    ) -> None:
        self.begun = {e.fault: e.begun_ns for e in effects}
        self.last = rounds[-1].segments
        self.worked = [s for r in rounds for s in r.segments if _works(s)]
        self.end_ns = rounds[-1].end_ns
        self.known, self.waits, self.awaited = known, waits, awaited
        delays = [w for w in waits if w.kind == "restart-delay" and w.outcome is Outcome.FIRED]
        self.delays = [w for w in delays if rounds[0].start_ns <= w.start_ns < self.end_ns]

    def remaining(self, hits: Sequence[Hit], option: str) -> _Remaining:
        """Return what remains if all waits for this option take no time. A fault begins a restart delay, unless its part of the job is already
        waiting or the next JobManager recovers the job. With a value in between, the job may still wait when a fault begins, which then has
        no delay of its own."""
        own = {h.fault.fault for h in hits}
        gone = [h for h in hits if JOBMANAGER in targets_of(h.fault)]
        lost = [self._lost(h) for h in hits]
        spare = sum(lost) - len(self.awaited(option))
        total = until = begins = 0
        last = apart = ""
        ends, restarted = dict[str, int](), dict[str, int]()
        for hit, fewer in zip(hits, lost, strict=True):
            begun = hit.fault.begun_ns
            back = max(ends.get(v, 0) for v in hit.vertices)
            spare -= fewer
            ended, restarts = self._stopped_until(hit, option, spared=spare >= 0)
            if restarts:
                begins += begun >= back
                before = max(restarted.get(v, 0) for v in hit.vertices)
                restart_ns = ended if hit in gone else self._restarts_at(hit, option, ended, before)
                after = self._after(option, own | {n for n, at in self.begun.items() if at > restart_ns})
                other = "registration" if gone and hit not in gone else ""  # only with the next JobManager
                steps = sum(ns for kind, ns in after.items() if kind != other)
                ended = restart_ns + steps
                restarted |= dict.fromkeys(hit.vertices, max(ended, before))
            ends |= dict.fromkeys(hit.vertices, max(ended, *(ends.get(v, 0) for v in hit.vertices)))
            since = max(until, begun)
            worked = (min(ended, s.end_ns) - max(since, s.start_ns) for s in self.worked)
            total += max(0, ended - since) - sum(max(0, ns) for ns in worked)
            apart = apart or (hit.fault.fault if last and until < begun else "")
            if ended > until:
                until, last = ended, hit.fault.fault
        return _Remaining(total, last, begins, apart)

    def _restarts_at(self, hit: Hit, option: str, noticed_ns: int, back_ns: int) -> int:
        """Return when the job restarts after a fault that is noticed at `noticed_ns`. A killed process closes its connections, which begins
        the restart delay. `back_ns`: when that part of the job runs again after the previous restart; 0 if there was none. The restart fails
        if the JobMaster does not know of the loss yet, as in the recorded trial."""
        fault, begun = hit.fault, hit.fault.begun_ns
        delay = min((w.end_ns - w.start_ns for w in self.delays if w.option != option), default=0)
        cause = self.known.get(fault.fault)
        in_vain = cause is not None and is_unreachable(cause)
        if begun < back_ns:
            return max(noticed_ns, back_ns + delay) if in_vain and back_ns < noticed_ns else noticed_ns
        restart_ns = max(noticed_ns, (begun if fault.kind in LOSSES else noticed_ns) + delay)
        shows = any(_missed(w) and w.option == option for w in self._about_targets(fault))
        # with a value in between, the restart before comes later
        if back_ns and not in_vain and (shows or cause is None):
            restart_ns = min(restart_ns, begun + noticed_ns - back_ns)
        return restart_ns

    def _lost(self, hit: Hit) -> int:
        """Return how many TaskManagers a fault cost: those that it ended, or whose heartbeats were missed in a pause."""
        missed = any(map(_missed, self._about_targets(hit.fault)))
        counts = hit.fault.kind in LOSSES or missed
        return len(set(targets_of(hit.fault)) - {JOBMANAGER}) if counts else 0

    def _about_targets(self, fault: FaultEffect) -> list[Wait]:
        """Return the waits for the fault's targets that ended after it began."""
        targets = set(targets_of(fault))
        later = (w for w in self.waits if fault.begun_ns < w.end_ns <= self.end_ns)
        return [w for w in later if logical_name(w.what) in targets]

    def _after(self, option: str, apart: Set[str]) -> dict[str, int]:
        """Return how long the steps after a restart delay take, by their kind, as the last round shows it. Steps that expired or that
        one of the faults `apart` delayed do not count, because they may concern only one of the faults, or no earlier restart."""
        steps = dict[str, int]()
        for s in self.last:
            own = s.kind in _AFTER_A_DELAY and s.option != option and s.fault not in apart
            if own and s.outcome != Outcome.EXPIRED:
                steps[s.kind] = max(steps.get(s.kind, 0), s.end_ns - s.start_ns)
        return steps

    def _stopped_until(self, hit: Hit, option: str, *, spared: bool) -> tuple[int, bool]:
        """Return when the job can continue after this fault, and whether it has to restart. A lost process has to be noticed and, unless it is
        `spared`, replaced; a pause or a cut has to end."""
        fault, begun = hit.fault, hit.fault.begun_ns
        ended = min(fault.ended_ns or self.end_ns, self.end_ns, hit.until_ns)
        targets = set(targets_of(fault))
        if fault.on_data_alone:
            return max(begun, ended), False
        if JOBMANAGER in targets:
            return ended, True
        own = self._about_targets(fault)
        noticed = [*filter(_missed, own)]
        if fault.kind not in LOST and not noticed:
            return (begun if option == _HEARTBEAT or fault.on_rpc_alone else ended), False
        if option == REPLACE_LOST and fault.kind in LOSSES:  # its registration shows that the process is lost
            return begun, True
        cause = self.known.get(fault.fault)
        first = min(noticed, key=lambda w: w.end_ns, default=None)
        until = begun
        at_once = fault.kind in LOSSES and KINDS["heartbeat"].may_be_limited_by(option)
        if first is not None and first.option != option:
            until = first.end_ns
        elif cause is not None and first is None and not at_once:
            until = cause.t_ns
        replaced = [w for w in own if w.kind == "replacement" and w.start_ns >= begun]
        if replaced and not spared and taskmanager_of(replaced[0]) in self.awaited(option):
            until = max(until, replaced[0].end_ns)
        return until, True


def lost_in(
    effects: Iterable[FaultEffect], waits: Sequence[Wait], start_ns: int, end_ns: int
) -> dict[str, int]:
    """Return the TaskManagers that are missing in an outage, each with the time of its loss: they were killed and not replaced before it,
    or they were paused or cut off from the JobManager in it, for so long that their heartbeats were missed."""
    begun = [e for e in effects if e.injected_ns is not None and e.begun_ns <= end_ns]
    replaced = [w for w in waits if w.kind == "replacement" and w.outcome is Outcome.FIRED]
    up = [(taskmanager_of(w), w.end_ns) for w in replaced if w.end_ns <= start_ns]
    killed = [
        (target, e.begun_ns)
        for e in begun
        if e.kind in LOSSES
        for target in targets_of(e)
        if not any(name == target and e.begun_ns < up_ns for name, up_ns in up)
    ]
    during = [e for e in begun if (e.ended_ns or end_ns) > start_ns and (e.kind == PAUSE or e.hides_link)]
    missed = [
        (logical_name(wait.what), e.begun_ns)
        for wait in waits
        if _missed(wait) and is_task_manager(logical_name(wait.what))
        for e in during
        if e.begun_ns < wait.end_ns <= end_ns and silences(e, wait)
    ]
    return {name: min(begun) for name, begun in grouped([*killed, *missed]).items()}


def missing_taskmanagers(entry: TrialEntry, lost: int) -> int:
    """Return how many TaskManagers have to register before the job has its slots again, if `lost` of them (at least one) are gone. 0 if the
    number of slots is unknown."""
    groups = [(vertex.slot_sharing_group, vertex.parallelism) for vertex in entry.job.vertices]
    needed = sum(slots_of_groups(groups).values())
    replicas, slots = entry.job.task_managers.replicas, entry.job.task_managers.slots
    return max(0, -(-needed // slots) - replicas + max(1, lost)) if needed and replicas else 0


def stalled_taskmanager(wait: Wait) -> str | None:
    """Return the TaskManager whose pause or stall this is, or which waits for the JobManager. None for any other wait."""
    name = logical_name(wait.what if wait.who == EVERYTHING else wait.who)
    return name if wait.kind in ("stalled", "jobmanager") and is_task_manager(name) else None


def awaited_by(
    entry: TrialEntry, lost: Mapping[str, int], waits: Iterable[Wait], span: tuple[int, int], option: str = ""
) -> dict[str, int]:
    """Return the TaskManagers for which the job waited during the span of an outage, each with the time from which it was needed.

    The job waits for the first ones that register, until it has all its slots again. A TaskManager is needed from the loss with which fewer
    were left than the job needs. Lost are those in `lost` and those that registered again. With an `option`, return the TaskManagers for which
    the job would have waited if none of them had waited for that option."""
    returned, gone, sooner = dict[str, int](), dict(lost), set[str]()
    for wait in waits:
        name = taskmanager_of(wait)
        returns_now = span[0] < wait.end_ns <= span[1] and is_task_manager(name)
        if returns_now and wait.what != JOBMASTER_NAME and is_awaited(wait, None):
            returned[name] = max(returned.get(name, 0), wait.end_ns)
            gone[name] = min(gone.get(name, wait.start_ns), wait.start_ns)
            if option and is_of_option(wait) and wait.option == option:
                sooner.add(name)
    ordered = sorted(returned, key=lambda name: (name not in sooner, returned[name], name))
    missing = [
        (missing_taskmanagers(entry, number), at) for number, at in enumerate(sorted(gone.values()), 1)
    ]
    lacked = [
        next((at for count, at in missing if count > place), INT64_MAX) for place in range(len(ordered))
    ]
    return {name: at for name, at in zip(ordered, lacked, strict=True) if at < returned[name]}
