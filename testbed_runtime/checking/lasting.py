"""Waits that continue when a round ends with a failure. The path of the next round leads to them, so the end of this round is attributed to
them too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter

from msgspec.structs import replace

from testbed_runtime.checking.criticalpath import (
    EPSILON_NS,
    NEAR_NS,
    TIE_NS,
    lateness_ns,
    taskmanager_of,
)
from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.faults import FaultEffect, targets_of
from testbed_runtime.checking.heldmessages import MESSAGES
from testbed_runtime.core.faults.links import ANYBODY, logical_name, split_link
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement.recovery import Round, Segment
from testbed_runtime.core.waits import EVERYTHING, KINDS, Outcome, Wait, ended_by
from testbed_runtime.history.waits import INT64_MAX

_ENDED = frozenset({"restart-delay", "slot", "checkpoint", "connection", "failure-report", "catch-up", "fault", "credit", "first-record"})  # fmt: skip
"""Kinds of waits that end with a failure, or that do not matter to the next round."""
_OF_A_LOSS = ("replacement", "heartbeat")
"""Kinds of waits that begin with the fault that ended or silenced a process."""
_ONLY_DELAYING = ("network", "frames", "rpc", "registration", "store")
"""The groups of faults that stop no process."""
_UNREACHABLE = "RecipientUnreachableException"
"""The failure of a deployment to a TaskManager that is dead."""
FEWER = "restarts fewer times"
"""Why a shorter wait saves more than itself: what the job then does."""
Change = Callable[[Segment], Segment]
PAUSE = "process.pause"
HELD_BACK = ("registration.delay", "rpc.delay", "store.slow")
"""The kinds of faults that delay single messages or calls. A delayed message is delivered when the fault
ends."""


def each_segment(rounds: Iterable[Round], change: Change) -> tuple[Round, ...]:
    """Return the rounds with every segment changed."""
    return tuple(replace(r, segments=tuple(map(change, r.segments))) for r in rounds)


def with_segments(rounds: Iterable[Round], segments: Iterable[Segment]) -> tuple[Round, ...]:
    """Return the rounds with these segments, in their order, instead of their own."""
    parts = iter(segments)
    return tuple(replace(r, segments=tuple(next(parts) for _ in r.segments)) for r in rounds)


def lasting_wait(
    waits: Iterable[Wait], segments: Sequence[Segment], cause: Cause | None = None
) -> Wait | None:
    """Return the wait with which the path of a round begins, if that wait had begun before the round. A wait
    that ended together with the previous round delayed nothing. `cause`: the failure before the round. A message
    in the mailbox of another TaskManager than the one it names did not cause it, and neither did one in that
    TaskManager's own if the answer to a deployment only came too late for its option."""
    if not segments or segments[0].kind in _ENDED:
        return None
    first = segments[0]
    if (first.kind, first.phase) == ("completion", KINDS["checkpoint"].phase):
        return None  # the checkpoint failed the job, as one that expires does
    caused = cause is None or (cause.taskmanager in ("", first.who) and cause.kind != "deployment")
    if (first.kind, first.what) == ("stalled", MESSAGES) and not caused:
        return None
    if first.end_ns - first.start_ns <= TIE_NS:
        return None
    same = [w for w in waits if (w.kind, w.who, w.what) == (first.kind, first.who, first.what)]
    found = [
        w for w in same if w.start_ns < first.start_ns - EPSILON_NS and first.end_ns <= w.end_ns + EPSILON_NS
    ]
    return max(found, key=lambda w: w.start_ns, default=None)


def unnoticed_loss(waits: Iterable[Wait], cause: Cause | None, failure: Cause | None) -> Wait | None:
    """Return the wait for the heartbeats of a lost TaskManager, if a round began and failed because of it and the loss was noticed later.
    Until then, tasks are deployed to it in vain (with headgate.restart.fence-dead-slots: false, as in Flink), and a shorter restart delay only
    adds rounds."""
    if cause is None or failure is None or cause.taskmanager != failure.taskmanager:
        return None
    found = [w for w in _losses_after(waits, cause) if failure.t_ns < w.end_ns - EPSILON_NS]
    return min(found, key=lambda w: w.end_ns, default=None)


def dead_slots(waits: Iterable[Wait], cause: Cause | None, end: int, lost: Collection[str]) -> list[Wait]:
    """Return the waits of a successful round until the slots of the lost TaskManager were removed, if the
    loss was noticed during the round. An earlier restart would have used these slots again, in vain if the
    TaskManager is one of those that are `lost`."""
    gone = cause is not None and logical_name(cause.taskmanager) in lost
    found = _losses_after(waits, cause) if cause is not None and gone else []
    return [replace(w, kind="fencing", wait=f"{w.wait}-fencing") for w in found if w.end_ns <= end]


def _losses_after(waits: Iterable[Wait], cause: Cause) -> list[Wait]:
    """Return the waits for the heartbeats of the TaskManager that a failure names, if it was declared lost after that failure."""
    lost = ("heartbeat", cause.taskmanager, Outcome.EXPIRED)
    expired = [w for w in waits if (w.kind, w.what, w.outcome) == lost]
    return [w for w in expired if w.start_ns < cause.t_ns < w.end_ns - EPSILON_NS]


def since_earlier_fault(
    waits: Iterable[Wait], segments: Sequence[Segment], earlier: Iterable[FaultEffect], effect_ns: int
) -> tuple[Segment, ...]:
    """Return the segments of a failover that joined an outage. If its first wait had begun with an `earlier`
    fault, the segments start at the beginning of that wait. Such a wait is for the replacement of a process
    that the fault had ended, or for the heartbeats of a process that it had silenced. A cancellation can also
    end with the loss of such a TaskManager. A later failure does not shorten that wait."""
    silencing = [fault for fault in earlier if not fault.on_data_alone]
    hit = {name for fault in silencing for target in targets_of(fault) for name in split_link(target)}
    hit -= {"", ANYBODY}
    number = next((n for n, s in enumerate(segments) if s.end_ns - s.start_ns > _short_ns(s)), 0)
    first = segments[number]
    kind = ended_by(first.kind)
    losses = [w for w in waits if w.kind == kind and kind in _OF_A_LOSS and w.outcome.belongs_to_option]
    ending = [w for w in losses if w.option == first.option and abs(w.end_ns - first.end_ns) <= EPSILON_NS]
    found = [
        w
        for w in ending
        if (kind != first.kind or (w.who, w.what) == (first.who, first.what))
        and hit.intersection((w.what, *(name.rpartition("-")[0] for name in (w.what, w.who))))
        and w.start_ns < first.start_ns < w.end_ns
    ]
    late = [w for w in found if lateness_ns(w)]
    if late:  # calls fail only when the process is gone and no fault holds them back
        noticed = first.end_ns - late[0].budget_ns
        return (replace(first, start_ns=max(first.start_ns, noticed)), *segments[number + 1 :])
    if not found:
        return tuple(segments)
    held = min(found, key=lambda w: w.start_ns)
    since = max(effect_ns, held.start_ns)
    if kind == first.kind:
        return (replace(first, start_ns=since), *segments[number + 1 :])
    before = replace(
        first, kind=kind, phase=KINDS[kind].phase, who=held.who, what=held.what, start_ns=since, end_ns=first.start_ns, slack_ns=-1, next="", more="",
    )  # fmt: skip
    return (before, *segments[number:])


def _short_ns(segment: Segment) -> int:
    """Return up to which length a segment is no wait of its own. A failure that is noticed at once is reported later by a busy machine."""
    return NEAR_NS if segment.kind in ("connection", "failure-report") else EPSILON_NS


def continues(before: Segment, after: Segment) -> bool:
    """Whether two neighbouring segments are one wait that continued over the end of a round."""
    one, other = ((s.kind, s.who, s.what, s.text) for s in (before, after))
    return one == other and before.end_ns == after.start_ns and after.kind not in _ENDED


def share_slack(rounds: Sequence[Round], needless: Sequence[bool]) -> tuple[Round, ...]:
    """Return the rounds with one slack for all parts of a wait that lasts over several rounds: the parts can
    only be shortened together. `needless`: whether a round began only because that wait lasted too long
    (`needless_restarts`). The limits in such a round are ignored."""
    found = list(rounds)
    last = len(found) - 1
    while last > 0:
        first = last
        while first > 0 and found[first].segments and found[first - 1].segments:
            if not continues(found[first - 1].segments[-1], found[first].segments[0]):
                break
            first -= 1
            if len(found[first].segments) > 1:
                break
        if first < last:
            found[first : last + 1] = _shared(found[first : last + 1], needless[first + 1 : last + 1])
        last = min(first, last - 1)
    for number in range(1, len(found)):
        if needless[number] and found[number].segments:
            _add_rest(found, number)
            own = tuple(without_limit(s) if s.kind == "fencing" else s for s in found[number].segments)
            found[number] = replace(found[number], segments=own)
    return tuple(found)


def needless_restarts(causes: Sequence[Cause | None], waits: Iterable[Wait]) -> list[bool]:
    """Return, for the cause of each round, whether that round began only because something came too late: slot requests expired, or tasks were
    deployed to a TaskManager that was dead. Its loss may also be noticed only after that deployment, if it is being replaced since before."""
    replaced = grouped((taskmanager_of(w), w) for w in waits if w.kind == "replacement")

    def needless(before: Cause | None, cause: Cause | None) -> bool:
        if cause is None or cause.kind == "slot":
            return cause is not None
        if before is None:
            return False
        own = replaced.get(logical_name(cause.taskmanager), ())
        gone = any(w.start_ns <= before.t_ns + TIE_NS < w.end_ns for w in own)
        return gone or is_unreachable(cause)

    return [needless(before, cause) for before, cause in pairwise((None, *causes))]


def is_unreachable(cause: Cause) -> bool:
    """Whether a deployment to a dead TaskManager failed."""
    return cause.cause_class.endswith(_UNREACHABLE)


def _add_rest(rounds: list[Round], needless: int) -> None:
    """Add the rest of the delay of a needless restart to the slack of a wait that ended in this delay: with a shorter wait, there is no such
    restart. The whole delay counts if that wait ended when the delay began. All of it is saved in addition to a wait that can be as short as 0 s."""
    delay, number = rounds[needless].segments[0], needless - 1
    left, text = max(0, delay.slack_ns), delay.next
    ended = [s for s in rounds[number].segments if s.end_ns - s.start_ns > TIE_NS][-1:]
    if delay.slack_ns < 0 and delay.kind == "restart-delay" and ended and ended[0].kind == "replacement":
        left, text = delay.end_ns - delay.start_ns, ended[0].text
    last: tuple[int, int] | None = None
    while left > 0:
        segments = list(rounds[number].segments)
        at = max((n for n, s in enumerate(segments) if s.end_ns - s.start_ns > TIE_NS), default=-1)
        if at < 0 or segments[at].text != text:
            break
        last = last or (number, at)
        if (own := segments[at]).slack_ns >= 0:
            added = max(0, min(left, own.end_ns - own.start_ns - own.slack_ns))
            segments[at], left = replace(own, slack_ns=own.slack_ns + added), left - added
        rounds[number] = replace(rounds[number], segments=tuple(segments))
        if at > 0 or number == 0:
            break
        number -= 1
    if last is not None and left > 0:
        segments = list(rounds[last[0]].segments)
        before_ns = delay.end_ns - delay.start_ns - delay.slack_ns if delay.slack_ns >= 0 else 0
        segments[last[1]] = with_more(segments[last[1]], left + before_ns, FEWER)
        rounds[last[0]] = replace(rounds[last[0]], segments=tuple(segments))


def without_limit(own: Segment) -> Segment:
    """Return a wait that can be as short as 0 s."""
    return replace(own, slack_ns=-1, next="", more="")


def with_more(own: Segment, more_ns: int, why: str) -> Segment:
    """Return a wait that saves `more_ns` in addition to itself, for the reason `why`."""
    return replace(own, slack_ns=own.end_ns - own.start_ns + more_ns, more=why)


def runs_before(fault: str) -> str:
    """Return, as the reason for a larger saving, that the job then runs again before a fault."""
    return f"runs again before the fault `{fault}`"


def _shared(rounds: Sequence[Round], needless: Sequence[bool]) -> list[Round]:
    parts = [r.segments[-1] for r in rounds[:-1]] + [rounds[-1].segments[0]]
    lengths = [p.end_ns - p.start_ns for p in parts]
    needed = [p for p, less in zip(parts, (False, *needless), strict=True) if not less]
    limits = [(p.slack_ns, p.next) for p in needed if p.slack_ns >= 0]
    left, limited_by = min(limits, key=itemgetter(0), default=(sum(lengths), ""))
    found = []
    for number in reversed(range(len(parts))):
        slack, name = (-1, "") if left >= lengths[number] else (left, limited_by)
        new = replace(parts[number], slack_ns=slack, next=name, more="")
        left = max(0, left - lengths[number])
        one = rounds[number]
        segments = (new, *one.segments[1:]) if number == len(parts) - 1 else (*one.segments[:-1], new)
        found.append(replace(one, segments=segments))
    return found[::-1]


def without_outrun(
    rounds: Sequence[Round], waits: Iterable[Wait], effects: Iterable[FaultEffect]
) -> tuple[Round, ...]:
    """Return the rounds without limits that a shorter wait would avoid: a pause of the JobManager that began
    after the wait. The pause costs nothing if the failover has ended before it begins."""
    pauses = {e.fault for e in effects if e.kind.endswith(".pause")}
    paused = [w for w in waits if (w.kind, w.who) == ("jobmanager", EVERYTHING) and w.fault in pauses]

    def changed(own: Segment) -> Segment:
        outrun = any(w.cause == own.next and own.start_ns < w.start_ns - EPSILON_NS for w in paused)
        return without_limit(own) if outrun else own

    return each_segment(rounds, changed)


def with_delays_avoided(rounds: Sequence[Round], effects: Iterable[FaultEffect]) -> tuple[Round, ...]:
    """Return the rounds with a larger slack for waits before a step that a fault delayed: without all that the waits for one option can save,
    the step begins before the fault, and is not delayed. A wait may then save more than itself, also one that has a limit."""
    delaying = {e.fault: e for e in effects if e.group in _ONLY_DELAYING}
    found = [s for r in rounds for s in r.segments]
    for number, step in enumerate(found):
        if (fault := delaying.get(step.fault)) is None:
            continue
        more_ns, why = step.end_ns - step.start_ns, runs_before(step.fault)
        earlier = enumerate(found[:number])
        for option, own in grouped((s.option, at) for at, s in earlier if s.option != step.option).items():
            limited = [at for at in own if found[at].slack_ns >= 0]
            at = (limited or own)[-1]
            saved_ns = sum(savable_ns(found[at]) for at in own)
            if not option or step.start_ns - saved_ns >= fault.begun_ns - EPSILON_NS:
                continue
            wait = found[at]
            over_ns = more_ns - (wait.end_ns - wait.start_ns - wait.slack_ns) if limited else more_ns
            if over_ns > 0 and fault.kind in HELD_BACK:  # others hold up a running job too
                found[at] = with_more(wait, over_ns, why)
            elif limited:
                found[at] = capped(replace(wait, slack_ns=wait.slack_ns + more_ns))
    return with_segments(rounds, found)


def savable_ns(own: Segment) -> int:
    """Return how much shorter a wait can become."""
    return own.slack_ns if own.slack_ns >= 0 else own.end_ns - own.start_ns


def after_cut_delay(own: Round, waits: Sequence[Wait]) -> Round:
    """Return the round with smaller savings for the waits before a restart delay that the end of the JobManager cut off: what they save
    is first added to that delay."""
    segments = list(own.segments)
    for number, (delay, following) in enumerate(pairwise(own.segments)):
        cut = (
            w for w in waits if w.kind == delay.kind and w.start_ns <= delay.start_ns + EPSILON_NS < w.end_ns
        )
        wait = next(cut, None) if (delay.kind, following.kind) == ("restart-delay", "jobmanager") else None
        if wait is None or delay.option:
            continue
        left_ns = wait.start_ns + wait.budget_ns - delay.end_ns
        for at, before in enumerate(segments[:number]):
            if before.option and not before.gave_up:
                segments[at] = with_slack(
                    before, max(0, before.end_ns - before.start_ns - left_ns), following.text
                )
    return replace(own, segments=tuple(segments))


def until_faults_end(
    rounds: Sequence[Round],
    effects: Iterable[FaultEffect],
    delays: Mapping[str, int],
    waits: Sequence[Wait] = (),
) -> tuple[Round, ...]:
    """Return the rounds with smaller savings for waits during a fault, if a later wait ends with that fault
    however early it begins. `delays`: by how much each fault delays a message or a call. The delay ends after
    that time, with the fault, or when the call has expired (`waits`). A fault that lets nothing pass has no
    delay."""
    ends = {e.fault: e for e in effects if e.ended_ns is not None}
    held = [s for r in rounds for s in r.segments if s.fault in ends and _ends_with(s, ends[s.fault], delays)]

    def limited(own: Segment) -> Segment:
        during = (s for s in held if ends[s.fault].begun_ns <= own.start_ns + EPSILON_NS)
        later = (s for s in during if own.end_ns <= s.start_ns)
        following = next(later, None) if own.option and own.kind != "registration" else None
        if following is None:
            return own
        if following.kind == "catch-up":  # the rest of the catch-up may still become shorter
            late_ns = (
                following.end_ns - (ends[following.fault].ended_ns or 0) if following.fault in delays else 0
            )
            saved_ns = rounds[-1].end_ns - following.end_ns + max(0, late_ns)
        elif _expires(following, waits, delays):
            saved_ns = 0
        else:
            saved_ns = _saved(own, following, ends, delays)
        return with_slack(own, saved_ns, following.text)

    return each_segment(rounds, limited)


def _expires(segment: Segment, waits: Iterable[Wait], delays: Mapping[str, int]) -> bool:
    """Whether a wait that ended with its fault would have expired before, if it had begun earlier. The wait
    for all tasks has no limit, but the waits for single tasks have one. A partition request may outlast its
    limit."""
    same = [w for w in waits if (w.kind, w.fault) == (segment.kind, segment.fault) and w.kind != "partition"]
    ended = [w for w in same if abs(w.end_ns - segment.end_ns) <= EPSILON_NS]
    budget_ns = min((w.budget_ns for w in ended if w.budget_ns > 0), default=INT64_MAX)
    return budget_ns < delays.get(segment.fault, 0)


def with_slack(own: Segment, saved_ns: int, following: str) -> Segment:
    """Limit the slack of a wait to `saved_ns`, unless it is smaller anyway. If the wait were shorter by more
    than that, the job would wait for `following` instead."""
    if saved_ns >= savable_ns(own):
        return own
    return replace(own, slack_ns=min(saved_ns, own.end_ns - own.start_ns), next=following, more="")


def _saved(
    own: Segment, following: Segment, ends: Mapping[str, FaultEffect], delays: Mapping[str, int]
) -> int:
    fault = ends[following.fault]
    if fault.hides_link:
        return 0
    needless = following.start_ns + delays.get(fault.fault, 0) - (fault.ended_ns or 0)
    return max(0, own.end_ns - own.start_ns - needless)


def _ends_with(segment: Segment, fault: FaultEffect, delays: Mapping[str, int]) -> bool:
    """Whether a wait was for something that a fault held back, and ended with the fault. A wait on a link
    that let nothing pass may end later, if at least half of it is before TCP has sent everything again. A
    catch-up is held back until the last records that the fault delayed arrive."""
    within = (fault.ended_ns or 0) - segment.start_ns
    if segment.kind == "catch-up" and not fault.hides_link:
        return -TIE_NS <= segment.end_ns - (fault.ended_ns or 0) <= delays.get(fault.fault, 0) + TIE_NS
    lasted = segment.end_ns - segment.start_ns
    if fault.hides_link:
        passing = within - fault.sent_again_ns  # on a new connection, or what is sent then
        return passing > 0 and 2 * within >= lasted >= passing - EPSILON_NS
    return fault.kind in HELD_BACK and abs(lasted - within) <= TIE_NS and delays.get(fault.fault, 0) > within


def capped(own: Segment) -> Segment:
    """Return a wait with a slack of at most its length, unless it saves more than itself."""
    length_ns = own.end_ns - own.start_ns
    return own if own.more else replace(own, slack_ns=min(own.slack_ns, length_ns))
