"""Failovers that a longer timeout would have avoided. The wait expired before something arrived or returned that a fault delayed, and the
history shows when the delay ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise

from msgspec.structs import replace

from testbed_runtime.checking.apart import missing_taskmanagers
from testbed_runtime.checking.criticalpath import EPSILON_NS, NEAR_NS, TIE_NS
from testbed_runtime.checking.failovers import TOGETHER_NS, Cause
from testbed_runtime.checking.faults import FaultEffect, added_delays, round_trip_delays, targets_of
from testbed_runtime.checking.heldmessages import acts_on, keeps_silent, silences
from testbed_runtime.checking.lasting import PAUSE, each_segment, with_segments, with_slack
from testbed_runtime.checking.rounds import REFUSING, responsible
from testbed_runtime.checking.waitcauses import ordinal
from testbed_runtime.checking.waits import LOSSES
from testbed_runtime.core.faults.links import split_link
from testbed_runtime.core.faults.retransmission import connects_at
from testbed_runtime.core.job.limits import BACKOFF_MAX, enough_backoff
from testbed_runtime.core.job.messages import SubmitTask
from testbed_runtime.core.judgement.recovery import Round, Segment
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import JOBMASTER_NAME, KINDS, PRODUCT, RM_NAME, Outcome, Wait
from testbed_runtime.history.waits import INT64_MAX

_HELD_BACK = {
    "partition": "registration.delay",
    "deployment": "rpc.delay",
    "jobmanager": "rpc.delay",
    "checkpoint": "store.slow",
    "connection": "network.partition",
}
"""Kinds of waits, each with the kind of faults that only delay what is waited for. It arrives at the latest
when the fault ends."""
_EACH_ITS_OWN = ("registration.delay", "store.slow")
"""The kinds of those faults that delay everything by the same time, side by side. It does not have to wait for the end of the fault."""
_JOBMANAGER_KILL, _JOBMANAGER_PAUSE = "jobmanager.kill", "jobmanager.pause"
_MUTED = "heartbeats.mute"
"""Checkpoints complete while it lasts."""
_LATENCY = "network.latency"
_HEARTBEAT = KINDS["heartbeat"].options[0]
Places = Callable[[int], Mapping[str, str]]


def with_enough(
    rounds: Sequence[Round],
    failures: Sequence[Cause],
    waits: Sequence[Wait],
    effects: Sequence[FaultEffect],
    entry: TrialEntry,
    *,
    places: Places = lambda _: {},
) -> tuple[Round, ...]:
    """Return the rounds. Each wait that expired and caused a failover gets the time after which it would have
    completed, if the history shows that. `failures`: the failures of these rounds. `places`: the TaskManager of each
    task, before a point in time."""
    shows, configuration = (
        _Ends(waits, effects, entry, places, failures=failures, end_ns=rounds[-1].end_ns),
        entry.options,
    )
    used = places(rounds[-1].end_ns + 1).values()

    def longer(segment: Segment) -> Segment:
        caused = any(abs(segment.end_ns - c.t_ns) <= TOGETHER_NS for c in failures)
        if not (caused and segment.option and segment.outcome == Outcome.EXPIRED):
            return segment
        wait = next((w for w in waits if is_of(segment, w)), None)
        needed = None if wait is None else shows.needed_ns(wait)
        if wait is None or needed is None or needed <= wait.budget_ns:
            return segment
        value = (
            enough_backoff(configuration, budget_s=wait.budget_ns / NS, needed_s=needed / NS)
            if wait.option == BACKOFF_MAX
            else ""
        )
        found = replace(segment, budget_ns=wait.budget_ns, enough_ns=needed, enough_value=value)
        return shows.with_another_loss(found, wait, rounds[-1], used)

    def in_pause(segment: Segment) -> Segment:
        caused = any(abs(segment.end_ns - c.t_ns) <= TOGETHER_NS for c in failures)
        return shows.with_expired(segment, rounds[0].start_ns) if caused else segment

    found = each_segment(each_segment(rounds, longer), in_pause)
    return each_segment(found, partial(shows.until_last_loss, used=used))


def until_refusals_end(
    rounds: Sequence[Round], failures: Sequence[Cause], waits: Sequence[Wait], effects: Sequence[FaultEffect]
) -> tuple[Round, ...]:
    """Return the rounds with smaller savings during a fault that let no restart succeed before it ended: one that held back what expired waits
    were for, or that refused connections and caused one of the `failures`."""
    begun = [e for e in effects if e.injected_ns is not None]
    segments = [s for r in rounds for s in r.segments]
    given_up = [w for s in segments if s.gave_up for w in waits if is_of(s, w)]
    for wait in reversed(given_up):
        segments = _until_end(segments, _held_back(wait, begun), wait.cause)
    for fault in (responsible(begun, cause) for cause in failures):
        if fault is not None and fault.kind in REFUSING:
            segments = _until_end(segments, fault, f"the end of the fault `{fault.fault}`")
    return with_segments(rounds, segments)


def _held_back(wait: Wait, effects: Sequence[FaultEffect]) -> FaultEffect | None:
    """Return the fault that delayed what this wait was for."""
    held = (wait.fault, _HELD_BACK.get(wait.kind))
    return next((e for e in effects if (e.fault, e.kind) == held), None)


def _until_end(segments: Sequence[Segment], fault: FaultEffect | None, text: str) -> list[Segment]:
    """Return the segments with smaller savings during a fault after whose end a restart succeeded. An earlier
    restart would have failed like the previous ones, or would have waited for the end of the fault too.
    `text`: what the job would have waited for."""
    if fault is None or fault.ended_ns is None:
        return list(segments)
    begun_ns, ended_ns = fault.begun_ns, fault.ended_ns
    last = next((s for s in segments if s.start_ns < ended_ns <= s.end_ns), None)
    if last is None or last.gave_up or not (last.option or last.fault == fault.fault):
        return list(segments)
    found, left = list(segments), dict[str, int]()
    for number, own in reversed(list(enumerate(segments))):
        inside = begun_ns <= own.start_ns + EPSILON_NS and own.end_ns <= last.end_ns
        if own.option and not own.gave_up and inside:
            saved = left.get(own.option, last.end_ns - ended_ns)  # of all its waits together
            found[number] = with_slack(own, saved, text)
            left[own.option] = max(0, saved - (own.end_ns - own.start_ns))
    return found


def is_of(segment: Segment, wait: Wait) -> bool:
    """Whether a segment is the end of this expired wait."""
    same = (segment.kind, segment.who, segment.what) == (wait.kind, wait.who, wait.what)
    return same and wait.outcome is Outcome.EXPIRED and abs(segment.end_ns - wait.end_ns) <= EPSILON_NS


def _lost_again(lost: Wait, fault: FaultEffect) -> str:
    """Say what the job waits for if it restarts on a TaskManager whose heartbeats are still missing."""
    return f"{ordinal(lost.what)} to be lost once more, during the fault `{fault.fault}`"


def _restarts_anyway(fault: FaultEffect, timeout_ns: int) -> bool:
    """Whether the job restarts after this fault, or may, if heartbeats are missed after `timeout_ns`."""
    if fault.kind == PAUSE or (fault.hides_link and not fault.on_data_alone):
        return fault.ended_ns is None or fault.ended_ns - fault.begun_ns > timeout_ns
    return fault.kind in LOSSES or fault.kind == _JOBMANAGER_KILL


class _Ends:
    """Compute when a wait that expired would have completed."""

    def __init__(
        self,
        waits: Sequence[Wait],
        effects: Sequence[FaultEffect],
        entry: TrialEntry,
        places: Places,
        *,
        failures: Sequence[Cause],
        end_ns: int,
    ) -> None:
        """`failures`: those of the recovery, which ends at `end_ns`."""
        self.waits, self.places, self.failures, self.end_ns = waits, places, failures, end_ns
        self.effects = [e for e in effects if e.injected_ns is not None]
        self.asked = {fault.name: round(fault.duration_s * NS) for fault in entry.faults}
        self.methods = {fault.name: fault.params.get("method") for fault in entry.faults}
        self.delays, self.round_trips = added_delays(entry), round_trip_delays(entry)
        chosen = entry.options
        self.interval_ns = round(chosen.duration("heartbeat.interval") * NS)
        self.timeout_ns = round(chosen.duration("heartbeat.timeout") * NS)
        self.needs_all = missing_taskmanagers(entry, lost=1) > 0
        self.tolerated = chosen.integer("execution.checkpointing.tolerable-failed-checkpoints")

    def needed_ns(self, wait: Wait) -> int | None:
        """Return how long the wait would have lasted without its limit. None if the history does not
        show it."""
        if wait.budget_ns < 0 or PRODUCT in wait.option:
            return None  # another limit would have ended it soon after
        if wait.option == _HEARTBEAT:
            found = [self._returned(wait), *map(self._returned, self._merged(wait))]
            known = [needed for needed in found if needed is not None]
            return max(known) if len(known) == len(found) else None
        held = _held_back(wait, self.effects)
        arrival_ns = None if held is None else self._ended_by_itself(held)
        if held is None or arrival_ns is None:
            return None
        earlier = self._expired_before(wait)
        together = (arrival_ns - (*earlier, wait)[0].start_ns) // (len(earlier) + 1)
        if wait.kind == "connection":
            passes = arrival_ns - held.sent_again_ns
            arrival_ns = wait.start_ns + round(connects_at(0.0, (passes - wait.start_ns) / NS) * NS)
            together = arrival_ns - wait.start_ns
        own = self.delays.get(wait.fault, 0) * self._messages(wait, held)
        alone = wait.start_ns + own + self._usual_ns(held) + TIE_NS
        if own and alone > wait.end_ns:
            arrival_ns = min(arrival_ns, alone)
        return min(arrival_ns - wait.start_ns, together) if arrival_ns > wait.end_ns else None

    def _messages(self, wait: Wait, held: FaultEffect) -> int:
        """Return how many delays the wait, or another one that expired with it, can last: one, or one for each task that was
        submitted to the same TaskManager meanwhile, because it handles one message after the other. 0 if the wait lasts until
        the end of the fault."""
        if held.kind in _EACH_ITS_OWN:
            return 1
        if wait.kind != "deployment" or self.methods.get(held.fault) != SubmitTask.__name__:
            return 0
        places = self.places(wait.end_ns)
        own = [w for w in self.waits if (w.kind, w.option) == (wait.kind, wait.option)]
        own = [w for w in own if w.start_ns < wait.end_ns and wait.start_ns < w.end_ns]
        shortest_ns = min(self.delays.get(held.fault, 0), wait.budget_ns)
        tasks = {w.what for w in own if w.end_ns - w.start_ns >= shortest_ns}
        return max(Counter(map(places.get, tasks)).values(), default=0)

    def _expired_before(self, checkpoint: Wait) -> list[Wait]:
        """Return the checkpoints that were tolerated and expired one after the other until this one began. A longer
        timeout would have delayed it. Empty for waits of other kinds."""
        found: list[Wait] = []
        own = [
            w
            for w in self.waits
            if w.kind == checkpoint.kind == "checkpoint" and w.outcome is Outcome.EXPIRED
        ]
        for wait in sorted(own, key=lambda w: -w.end_ns):
            if abs(wait.end_ns - (found[0] if found else checkpoint).start_ns) <= TIE_NS:
                found.insert(0, wait)
        return found

    def _usual_ns(self, fault: FaultEffect) -> int:
        """Return how long a checkpoint takes without the fault on the store: the longest one before it."""
        own = [w for w in self.waits if w.kind == "checkpoint" and w.outcome is Outcome.COMPLETED]
        before = [w.end_ns - w.start_ns for w in own if w.end_ns <= fault.begun_ns]
        return max(before, default=0) if fault.group == "store" else 0

    def with_expired(self, segment: Segment, since_ns: int) -> Segment:
        """Return a pause of the JobManager together with the only limit that expired during it, and the value that this limit would have
        needed. TaskManagers miss the JobMaster's heartbeats, and the JobManager cannot renew its lease. `since_ns`: when the recovery began."""
        pause = next(
            (e for e in self.effects if (e.fault, e.kind) == (segment.fault, _JOBMANAGER_PAUSE)), None
        )
        back = None if pause is None else self._ended_by_itself(pause)
        if pause is None or back is None or not segment.start_ns < back <= segment.end_ns + TIE_NS:
            return segment
        pauses = (e for e in self.effects if e.kind == pause.kind and (e.ended_ns or 0) > pause.begun_ns)
        begun_ns = min((e.begun_ns for e in pauses), default=back)  # one that went on is one with it
        expired = [
            w
            for w in self.waits
            if (w.kind == "lease" or (w.kind, w.what) == ("heartbeat", JOBMASTER_NAME))
            and w.outcome is Outcome.EXPIRED
            and PRODUCT not in w.option
            and begun_ns < w.start_ns + w.budget_ns <= back
        ]
        if len({w.option for w in expired}) != 1:
            return segment
        first = min(expired, key=lambda w: w.start_ns)
        needed = back - first.start_ns
        silence = needed if first.kind == "heartbeat" else self.timeout_ns
        meanwhile = [e for e in self.effects if since_ns <= e.begun_ns <= back]
        if any(_restarts_anyway(e, silence) for e in meanwhile):
            return segment
        text = f"{first.option} = {first.value}"
        return replace(segment, budget_ns=first.budget_ns, enough_ns=needed, expired=text)

    def _ended_by_itself(self, fault: FaultEffect) -> int | None:
        """Return when a fault ended by itself. None if that is not known, because a fault is healed early when its trial ends."""
        if fault.ended_ns is None or fault.voided:
            return None
        early = (
            fault.ended_ns - fault.sent_again_ns - fault.begun_ns < self.asked.get(fault.fault, 0) - NEAR_NS
        )
        return None if early else fault.ended_ns

    def _returned(self, wait: Wait) -> int | None:
        """Return how long heartbeats between a TaskManager and the JobManager would have been missing. Of the
        waits for them since the silence began, the earliest counts: with a longer limit, there is no earlier loss after which they start
        again. A muted heartbeat is repeated only after one more interval. One that TCP sends again arrives when the silence ends. None if the history does not show it."""
        lost, silent = self._lost(wait)
        if not silent:
            return self._answered(lost)
        ends = [self._ended_by_itself(e) for e in silent]
        known = [end for end in ends if end is not None]
        back = max(known, default=0)
        if len(known) < len(ends) or back < wait.end_ns or self._fails_anyway(lost, back):
            return None
        if any(e.kind != _MUTED for e in silent) and self._other_expires(lost, back):
            return None
        own = [w for w in self.waits if w.option == _HEARTBEAT and lost.what in (w.who, w.what)]
        silent_ns = min(*(e.begun_ns for e in silent), wait.end_ns - TIE_NS)
        begun = [w.start_ns for w in own if w.start_ns < wait.end_ns and silent_ns < w.end_ns]
        since = min(begun, default=wait.start_ns)
        return back - since + max(map(self._repeated_ns, silent))

    def _merged(self, wait: Wait) -> list[Wait]:
        """Return the waits for the heartbeats of other TaskManagers whose loss failed the job only because it was restarting: with a
        longer limit for the first loss alone, they would fail it. A process that ends fails it anyway."""
        used = {*self.places(wait.end_ns).values()} - {ordinal(self._lost(wait)[0].what)}
        own = [
            w
            for w in self.waits
            if (w.option, w.who, w.outcome) == (wait.option, JOBMASTER_NAME, wait.outcome)
        ]
        later = [
            w for w in own if ordinal(w.what) in used and wait.end_ns + TOGETHER_NS < w.end_ns <= self.end_ns
        ]
        merged = [w for w in later if all(abs(w.end_ns - c.t_ns) > TOGETHER_NS for c in self.failures)]
        return [w for w in merged if not self._fails_anyway(w, w.end_ns)]

    def _lost(self, wait: Wait) -> tuple[Wait, list[FaultEffect]]:
        """Return the wait as one for the TaskManager's heartbeats, and the faults that kept the TaskManager silent: those during the wait, and
        those that began before it was heard again."""
        at_taskmanager = wait.kind == "jobmanager" or wait.what in (JOBMASTER_NAME, RM_NAME)
        lost = replace(wait, what=wait.who) if at_taskmanager else wait
        silent = [e for e in self.effects if keeps_silent(e, lost)]
        for later in sorted(self.effects, key=lambda e: e.begun_ns) if silent else ():
            heard_ns = max((e.ended_ns or INT64_MAX) + self._repeated_ns(e) for e in silent)
            if later.begun_ns <= heard_ns < (later.ended_ns or INT64_MAX) and silences(later, lost):
                silent.append(later)
        return lost, silent

    def _repeated_ns(self, silent: FaultEffect) -> int:
        """Return how long after this fault the next heartbeat comes. One that is only late comes at once."""
        return 0 if silent.kind.endswith(".pause") or silent.sent_again_ns else self.interval_ns

    def with_another_loss(self, segment: Segment, wait: Wait, last: Round, used: Collection[str]) -> Segment:
        """Return the segment of this wait with smaller savings if it is for the heartbeats of a muted TaskManager that the job still `used`: with
        a lower value, that TaskManager is lost once more before the fault ends. `last`: the last round of the recovery."""
        lost, silent = self._lost(wait)
        name = ordinal(lost.what)
        if wait.option != _HEARTBEAT or name not in used or {e.kind for e in silent} != {_MUTED}:
            return segment
        begun_ns = min(e.begun_ns for e in silent)
        ended_ns = max(e.ended_ns or INT64_MAX for e in silent)
        same = (wait.kind, wait.who, wait.what, wait.option, wait.outcome)
        losses = [w for w in self.waits if (w.kind, w.who, w.what, w.option, w.outcome) == same]
        losses = sorted(
            (w for w in losses if begun_ns < w.end_ns and w.start_ns < ended_ns), key=lambda w: w.start_ns
        )
        gaps = (later.start_ns - earlier.end_ns for earlier, later in pairwise(losses))
        restart_ns = last.end_ns - max(last.start_ns, wait.end_ns)
        gap_ns = max(restart_ns, *gaps, 0)  # the job restarts after each loss
        # with a limit below this, another loss fits into the fault
        share = (segment.enough_ns - gap_ns * len(losses)) // (len(losses) + 1)
        return with_slack(segment, max(0, wait.budget_ns - share), _lost_again(lost, silent[0]))

    def until_last_loss(self, segment: Segment, *, used: Collection[str]) -> Segment:
        """Return a restart delay with smaller savings if the heartbeats of a muted TaskManager that the job still `used` were missed in it: an
        earlier restart would have failed with that loss. Not with a spare TaskManager, or if the mute began in the delay: an earlier
        restart may then succeed."""
        if segment.kind != "restart-delay" or not segment.option or not self.needs_all:
            return segment
        missed = [w for w in self.waits if w.option == _HEARTBEAT and w.outcome is Outcome.EXPIRED]
        during = [w for w in missed if segment.start_ns + TIE_NS < w.end_ns <= segment.end_ns + TIE_NS]
        for wait in sorted(during, key=lambda w: -w.end_ns):
            lost, silent = self._lost(wait)
            muted = {e.kind for e in silent} == {_MUTED}
            if muted and ordinal(lost.what) in used and all(e.begun_ns <= segment.start_ns for e in silent):
                saved_ns = max(0, segment.end_ns - wait.end_ns)
                return with_slack(segment, saved_ns, _lost_again(lost, silent[0]))
        return segment

    def _answered(self, lost: Wait) -> int | None:
        """Return how long a heartbeat is missing that only comes late: the next request is delayed, and then its answer."""
        late = [e for e in self.effects if e.kind == _LATENCY and not e.on_data_alone and acts_on(e, lost)]
        needed = self.interval_ns + sum(self.round_trips[e.fault] for e in late)
        return None if not late or self._fails_anyway(lost, lost.start_ns + needed) else needed

    def _other_expires(self, lost: Wait, until_ns: int) -> bool:
        """Return whether another wait that this loss ended would have expired before, and failed the job: a checkpoint, or the deployment of a
        task to the lost TaskManager."""
        ended = [w for w in self.waits if w.start_ns < lost.end_ns <= w.end_ns + TIE_NS]
        over = [w for w in ended if w.budget_ns > 0 and w.start_ns + w.budget_ns < until_ns]
        placed = self.places(lost.end_ns)
        deployed = (w for w in over if w.kind == "deployment" and placed.get(w.what) == ordinal(lost.what))
        return any(deployed) or (not self.tolerated and any(w.kind == "checkpoint" for w in over))

    def _fails_anyway(self, lost: Wait, until_ns: int) -> bool:
        """Whether another fault since the start of the wait would have failed the tasks of the lost TaskManager by then: the end of a process,
        or the close of its data connections."""
        name = ordinal(lost.what)
        during = [
            e for e in self.effects if e.begun_ns <= until_ns and (e.ended_ns or until_ns) > lost.start_ns
        ]
        ending = [e for e in during if e.kind in LOSSES or (e.kind in REFUSING and not e.on_rpc_alone)]
        hit = any(name in split_link(target) for e in ending for target in targets_of(e))
        return hit or any(e.kind == _JOBMANAGER_KILL for e in during)
