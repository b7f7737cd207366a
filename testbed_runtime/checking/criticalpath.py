"""Walk back over the waits from the end of a span to its start, and attribute every nanosecond to exactly one wait or cause.

Two rules lead from a point of the path to the wait before it:

- Within a wait that its own option did not end (`_holder`): the last wait that delayed it. What remains is its own.
- Before a wait (`_before`): the one that ended last among those that it needed. An event from outside needed nothing, so the path
  continues with what it interrupted.

A gap between two waits belongs to the step that recorded it, or stays unattributed. Pure: no table, no trial.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from itertools import pairwise

from msgspec.structs import replace

from testbed_runtime.checking.pieces import (
    MUST_SUCCEED,
    Piece,
    caused,
    is_of_option,
    merged,
    owner_text,
    registers_producer,
    segment,
    starts_again,
    stores,
)
from testbed_runtime.checking.unrecorded import is_slot_request
from testbed_runtime.core.faults.links import logical_name
from testbed_runtime.core.ids import is_task_manager
from testbed_runtime.core.judgement.recovery import Segment
from testbed_runtime.core.waits import (
    EVERYTHING,
    JOBMASTER_NAME,
    KINDS,
    POD_STEPS,
    RM_NAME,
    Outcome,
    Wait,
    processes,
)

EPSILON_NS = 5_000_000
"""Two processes record the same moment at most this far apart."""
TIE_NS = 20_000_000
"""Waits that ended this close together ended together. The longest of them is the one that mattered."""
NEAR_NS = 250_000_000
"""A completed wait was delayed by another one that ended at most this long before it."""
TRIED = 10
"""Number of other waits that are tried as the next limit when an option is lowered. Each takes a walk of its own."""

Awaited = Callable[[str], Collection[str]]
Ran = Callable[[Wait, Wait], int]
_ANYWHERE = ("jobmanager", "leadership", "stalled")
"""Kinds of waits that delay every step."""
_STARTING = ("start", *reversed(POD_STEPS), "replacement")
"""The steps of a process that replaces another one, the last one first."""
_OWN_PAUSES = {"jobmanager": ("open", "stalled"), "stalled": ("open",)}
"""Kinds of a process's own pauses that explain its waits of these kinds."""
_PAUSES = frozenset(kind for kinds in _OWN_PAUSES.values() for kind in kinds)
DELAY_CATCH_UP = ("partition", "open", "restore")
"""Kinds of waits in which a subtask receives nothing yet, while others catch up."""
_HELD_BY = {
    "slot": ("slot-request", "heartbeat", "registration", *_STARTING, "fencing", *_ANYWHERE),
    "fencing": ("registration", *_STARTING, *_ANYWHERE),
    "cancellation": ("heartbeat", "registration", *_STARTING, *_ANYWHERE),
    "registration": ("start", *_ANYWHERE),
    "deployment": ("open", *_ANYWHERE),
    # a channel of the result is silent until the iteration has ended
    "partition": ("iteration", "deployment", "restore", *_ANYWHERE),
    "first-record": ("partition", "open", "restore", "iteration", *_ANYWHERE),
    "catch-up": DELAY_CATCH_UP,
}
"""The kinds of waits whose end often ends a completed wait of the given kind, because they delayed it. An event can also interrupt the wait
before they have ended."""
_FROM_ITS_START = frozenset({"first-record", "catch-up"})
"""Kinds of waits that can be delayed at any time. A sink that receives from one producer still waits for the partition of another."""
_DETECTION = frozenset({"heartbeat", "lease", "connection", "failure-report", "checkpoint"})
"""Kinds of waits that end with a failure. They explain nothing after it."""
_LOSS = ("heartbeat", "fencing")
"""Kinds of waits that end when the loss of a TaskManager is noticed."""
_EVENTS = _DETECTION | {"stalled", "jobmanager"}
"""Kinds of waits that begin with an event from outside. The path continues with the wait that was in progress then."""
_REPLACED = ("completion", Outcome.CANCELLED)
_TIMED = frozenset({"heartbeat", "lease", "fencing", "cancellation", "restart-delay"})
"""Kinds of waits with an exact limit. A longer one means that its process noticed the expiry late."""
_NEVER = frozenset({"alignment", "completion", "credit", "final-checkpoint"})
_BEFORE_EVENTS = frozenset(KINDS) - _NEVER - {"catch-up", "fault"}
_NOT_INTERRUPTED = _NEVER | {"heartbeat", "lease", "checkpoint", *_ANYWHERE}
"""Kinds of waits in progress that no event interrupts: other processes stand still too, and no record waits for a checkpoint."""
_BESIDE = frozenset({
    "cancellation", "fencing", "restart-delay", "input", "deployment", "restore", "open", "partition", "iteration", "jobmanager", "leadership",
})  # fmt: skip
"""The steps that a restart needs, all of them. Detections are not included: the first of several is enough."""
_OF_SLOTS = frozenset({*_STARTING, "registration"})
"""The steps of a TaskManager until it is registered."""
_BEFORE_SLOTS = frozenset({"cancellation", "fencing", "restart-delay"})
_AFTER_SLOTS = MUST_SUCCEED - {"slot"}


@cache
def _needed(kind: str) -> frozenset[str]:
    """Return every kind that may have come before a wait of this kind, directly or not."""
    found: set[str] = set()
    todo = list(KINDS[kind].after)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [*KINDS[name].after, *_HELD_BY.get(name, ())]
    return frozenset((found | set(_ANYWHERE) | set(_HELD_BY.get(kind, ()))) - _NEVER - {"slot-request"})


def attribute(
    waits: Iterable[Wait],
    steps: Sequence[Wait],
    *,
    start: int,
    end: int,
    last: Wait,
    detected: int,
    terminal: bool = False,
    awaited: Awaited | None = None,
    known: bool = False,
    lasts: bool = False,
    ran: Ran = lambda *_: 0,
) -> tuple[Segment, ...]:
    """Return the segments of [start, end], without gaps and overlaps. `last` is the wait that ended the span; the walk begins with it.
    `steps` own what no wait covers. `detected`: when the failure that began the span was known. `terminal`: the job failed permanently when
    the span ended. `awaited`: for an option, the TaskManagers that the job would need in addition to those that it still has if no
    wait for that option took time; None: all that come. `known`: a failure began the span, so a stall or a store that fails after `detected`
    is not part of a detection, unless it ended the span. `lasts`: the path of the next span begins with `last`. `ran`: how long the job could
    have run without the first wait before a fault began the second one."""
    if end <= start:
        return ()
    lasting = [w for w in waits if w.end_ns > w.start_ns]
    walk = _Walk(_without_own_pauses(lasting), steps, start, detected, last if terminal else None)
    walk.from_end(end, last, lasts=lasts)
    found = []
    for piece in merged(reversed(walk.pieces)):
        shows_another = piece.wait is not None and stores(piece.wait, last)
        after_failure = known and piece.start >= detected - EPSILON_NS and not shows_another
        found.append(segment(piece, walk.slack(piece.wait, awaited, ran), known=after_failure))
    return tuple(found)


def _without_own_pauses(waits: Sequence[Wait]) -> list[Wait]:
    """Drop the waits of a process that it had only because it did not run. A process that opens functions does not run its event loop, and a
    process that does not run receives no answer from the JobManager."""
    pauses: dict[tuple[str, str], list[Wait]] = defaultdict(list)
    for w in waits:
        if w.kind in _PAUSES:
            pauses[_process(w), w.kind].append(w)

    def explained(wait: Wait) -> bool:
        own = (w for kind in _OWN_PAUSES[wait.kind] for w in pauses[_process(wait), kind])
        inside = (min(wait.end_ns, w.end_ns) - max(wait.start_ns, w.start_ns) for w in own)
        return 2 * sum(max(0, ns) for ns in inside) > wait.end_ns - wait.start_ns

    return [w for w in waits if w.kind not in _OWN_PAUSES or not explained(w)]


def _process(wait: Wait) -> str:
    """Return the process that recorded a wait."""
    return wait.wait.rpartition("/")[0]


class _Walk:
    """The state of one walk: `at` moves from the end to `start`. `pieces` collects the spans that it has passed."""

    def __init__(
        self, waits: Sequence[Wait], steps: Sequence[Wait], start: int, detected: int, fatal: Wait | None
    ) -> None:
        self._all = waits
        self.waits = sorted((w for w in waits if w.end_ns > start), key=lambda w: (w.end_ns, w.wait))
        self._ends = [w.end_ns for w in self.waits]
        self.steps = steps
        self.start = start
        self.detected = detected
        self.fatal = fatal
        """The wait whose failure ended the job, if one did."""
        self.at = self.end = start
        self.pieces: list[Piece] = []
        self._ids = {w.wait: w for w in self.waits if w.wait}
        self._joins: list[tuple[int, Collection[str]]] = []
        """The points at which another wait could have decided, the last one first: the time, and the kinds that the step needed."""
        self._later: dict[int, int] = {}
        """The number of these points that follow each wait of the path, by its id."""
        self._taken: set[int] = set()
        """The ids of the waits of the path. None of them can delay another one: two that ended together would delay each other."""

    def from_end(self, end: int, last: Wait, *, lasts: bool = False) -> None:
        self.at = self.end = end
        current = last
        if last.end_ns < end - EPSILON_NS:
            self._fill(max(last.end_ns, self.start))
        if lasts:  # what this span still needed is also needed when it ends
            self._joins.append((last.end_ns, _needed("slot") if last.kind in _OF_SLOTS else ()))
        while self.at > self.start:
            if lasts and current is last:
                self._taken.add(id(last))
                self._later[id(last)] = len(self._joins)
                self._add(max(last.start_ns, self.start), last)
            else:
                self._take(current)
            self._join(self.at, current, _needed(current.kind))
            before = self._before(current)
            if before is None:
                self._fill(self.start)
                return
            self._fill(min(before.end_ns, self.at))
            current = before

    def _join(self, at: int, wait: Wait, kinds: Collection[str]) -> None:
        """Note that a wait needed others of these kinds. No TaskManager that comes or returns from a pause is needed before slots are
        requested."""
        early = wait.kind in _BEFORE_SLOTS
        self._joins.append((at, frozenset(kinds) - _OF_SLOTS - {"stalled"} if early else kinds))

    def _take(self, wait: Wait) -> None:
        """Add to the path the wait from its start to the current point, with the waits that delayed it in between."""
        self._taken.add(id(wait))
        self._later[id(wait)] = len(self._joins)
        self._join(min(wait.end_ns, self.at), wait, _HELD_BY.get(wait.kind, ()))
        interrupted, delayed = wait.end_ns > self.at + EPSILON_NS, False
        while self.at > max(wait.start_ns, self.start):
            holder = self._holder(wait, delayed=delayed)
            if holder is None and (interrupted or delayed):
                holder = self._in_progress(wait)
            if holder is None or holder.start_ns >= self.at:
                break
            delayed = delayed or holder.kind != "slot-request"
            self._add(max(holder.end_ns, wait.start_ns, self.start), wait)
            if holder.kind == "fault":  # it delayed a step of this wait
                self._taken.add(id(holder))
                self._add(max(holder.start_ns, wait.start_ns, self.start), replace(holder, kind=wait.kind))
            elif self._comes_late(holder, wait):
                late = replace(holder, kind="fencing")
                if self._add(max(wait.start_ns, self.start), late):
                    self._later[id(late)] = len(self._joins)
            else:
                self._take(holder)
        if (pause := self._pause_of_judge(wait)) is not None:
            self._add(max(pause.end_ns, self.start), wait)
            self._add(max(pause.start_ns, wait.start_ns, self.start), pause)
        elif (busy := self._busy_judge(wait)) is not None:
            judged = self._judged(wait)
            self._add(max(judged.start_ns + judged.budget_ns, wait.start_ns, self.start), busy)
        self._add(max(wait.start_ns, self.start), wait)

    def _comes_late(self, loss: Wait, wait: Wait) -> bool:
        """Whether a loss delayed a wait that began long after the failure was known. The loss then counts as a part of that wait, not as
        detection."""
        noticed = loss.kind in _DETECTION and loss.start_ns < wait.start_ns
        return noticed and self.detected + NEAR_NS < wait.start_ns

    def _holder(self, wait: Wait, *, delayed: bool) -> Wait | None:
        """Return the wait that delayed this one: the last one that ended before the current point, among those that can. None if this wait's own
        option or cause ended it. `delayed`: another wait delayed its end, so its own option did not end it."""
        if wait.kind == "slot" and wait.outcome is Outcome.EXPIRED and not (delayed or is_slot_request(wait)):
            return None if wait is self.fatal else self._missing_taskmanager(wait)
        if wait.who == EVERYTHING:  # the JobManager that was killed is back when it has started
            back = [
                w
                for w in self.waits
                if w.start_ns < self.at <= w.end_ns + EPSILON_NS and starts_again(w, wait)
            ]
            return _latest(back, wait)
        ended = min(wait.end_ns, self.at)
        began, last = (
            bisect_right(self._ends, wait.start_ns),
            bisect_right(self._ends, wait.end_ns + EPSILON_NS),
        )
        untaken = [w for w in self.waits[began:last] if id(w) not in self._taken and w.start_ns < self.at]
        inside = [w for w in untaken if w.end_ns <= ended + EPSILON_NS]
        # several requests can be under way at the same time
        parts = [w for w in untaken if (w.end_ns <= self.at or is_slot_request(w)) and _is_part(w, wait)]
        if delayed:  # by the producer's restore, for example, which comes after its registration
            parts += [w for w in inside if registers_producer(w, wait)]
        if (wait.outcome.belongs_to_option or wait.kind == "stalled") and not delayed:
            return _latest(parts, wait)
        kinds = _HELD_BY.get(wait.kind, _ANYWHERE)
        since = wait.start_ns if wait.kind in _FROM_ITS_START else ended - NEAR_NS
        near = [
            w
            for w in inside
            if w.end_ns > since
            and w.kind in kinds
            and w.kind != wait.kind
            and caused(w)
            and _concerns(w, wait)
            and (not delayed or self._possible(w))
            and (
                wait.kind == "catch-up"
                or w.kind == "slot-request"
                or ended - w.start_ns > 2 * (ended - w.end_ns)
            )
        ]
        # a wait whose end a busy process noticed late did not keep it busy
        prompt = [w for w in near if lateness_ns(w) == 0]
        came_ns = max((w.end_ns for w in near if w.kind in _STARTING), default=0)
        delays = [w for w in near if w.kind == "slot-request" and w.end_ns >= came_ns - EPSILON_NS]
        return _latest(delays or prompt or near or parts, wait)

    def _in_progress(self, wait: Wait) -> Wait | None:
        """Return what this wait waited for when an event interrupted it, if that is known."""
        kinds = frozenset(_HELD_BY.get(wait.kind, ())) - _NOT_INTERRUPTED - {"fencing"}
        kinds -= _OF_SLOTS if wait.kind == "cancellation" else frozenset()
        coming = [w for w in self.waits if w.kind in kinds and w.start_ns < self.at < w.end_ns and caused(w)]
        return min(coming, key=lambda w: (w.start_ns, w.wait), default=None)

    def slack(self, wait: Wait | None, awaited: Awaited | None, ran: Ran) -> tuple[int, Wait] | None:
        """Return by how much this wait, which its option ended, could be shortened before another wait takes over, and that wait, or None. It was
        in progress at the same time, does not depend on this wait or its option, and a later step of the path needed it too. If a fault began it
        during this wait, the time before that fault is saved too. `awaited` and `ran`: as in `attribute`."""
        if wait is None or not is_of_option(wait):
            return None
        needed = None if awaited is None else awaited(wait.option)
        found: dict[tuple[str, int], tuple[int, Wait]] = {}
        for at, kinds in self._joins[: self._later.get(id(wait), 0)]:
            for w in self.waits:
                if (
                    w.kind in kinds
                    and (_is_beside(w, needed) or is_awaited(w, needed))
                    and wait.start_ns + TIE_NS < w.end_ns <= at + EPSILON_NS
                    and w.start_ns < min(wait.end_ns - TIE_NS, self.end - EPSILON_NS)
                    and w.option != wait.option
                    and id(w) not in self._taken
                    and caused(w)
                    and not _follows(w, wait)
                ):
                    slack = max(0, at - w.end_ns) + ran(wait, w)
                    known = found.get((w.kind, w.end_ns))
                    found[w.kind, w.end_ns] = min(known or (slack, w), (slack, w), key=_first_and_name)
        best: tuple[int, Wait] | None = None
        for slack, other in sorted(found.values(), key=_first_and_name)[:TRIED]:
            known_ns = wait.end_ns - wait.start_ns if best is None else best[0]
            if slack >= known_ns:
                break
            owner, needless = self._owner_until(other, wait)
            if owner is not None and slack + needless < known_ns:
                best = slack + needless, owner
        return best

    def _owner_until(self, other: Wait, wait: Wait) -> tuple[Wait | None, int]:
        """Return the wait that took most of the time from the start of `wait` to the end of `other`, on the path there. For example, a
        cancellation ends when the loss of a TaskManager is noticed. None if that path depends on the option of `wait` too. Also return how
        much of that time an earlier replacement would save, because its registration shows that the previous process is lost."""
        path = _Walk(self._all, self.steps, wait.start_ns, self.detected, self.fatal)
        path.from_end(other.end_ns, other)
        lasted: dict[str, tuple[int, Wait]] = {}
        needless = 0
        for piece in path.pieces:
            if piece.wait is None:
                continue
            if wait.kind == "replacement" and self._notices_loss(piece.wait):
                needless += piece.end - piece.start
                continue
            same_option = is_of_option(piece.wait) and piece.wait.option == wait.option
            if same_option and piece.end - piece.start > TIE_NS:
                return None, 0
            owner = owner_text(piece.wait)
            lasted[owner] = (lasted.get(owner, (0, other))[0] + piece.end - piece.start, piece.wait)
            if piece.wait.who == EVERYTHING:
                break  # a fault began then, whatever was in progress
        if needless and not any(ns > TIE_NS for ns, _ in lasted.values()):
            return None, 0
        return max(lasted.values(), key=_first_and_name, default=(0, other))[1], needless

    def _notices_loss(self, wait: Wait) -> bool:
        """Whether this wait ends when the loss of a replaced TaskManager is noticed. The lost process has the name of the replacement, or
        that name without the process number. A cancellation may also end with that loss."""
        lost = self._losses(wait)
        names = {w.what.rpartition("-")[0] for w in lost if w.outcome is Outcome.EXPIRED} - {""}
        replaced = [w.what for w in self._all if w.kind == "replacement"] if names else []
        return not names.isdisjoint([*replaced, *(name.rpartition("-")[0] for name in replaced)])

    def _losses(self, wait: Wait) -> list[Wait]:
        """Return the waits for noticing the loss of a TaskManager that ended together with this wait: the wait itself, or those that ended a
        cancellation."""
        if wait.kind in _LOSS:
            return [wait]
        by_loss = wait.kind == "cancellation" and is_of_option(wait)
        if not (by_loss and KINDS["heartbeat"].may_be_limited_by(wait.option)):
            return []
        return [w for w in self._all if w.kind in _LOSS and abs(w.end_ns - wait.end_ns) <= TIE_NS]

    def _judged(self, wait: Wait) -> Wait:
        """Return the wait that shows how late the end of this one was noticed: the promptest among the losses that ended it."""
        return min(self._losses(wait), key=lambda w: (lateness_ns(w), w.wait), default=wait)

    def _missing_taskmanager(self, slots: Wait) -> Wait | None:
        """Return the wait for a TaskManager that came, possibly again, when the slot requests expired, or later. With a longer timeout, the job
        would have waited for it anyway. A busy ResourceManager counts if it did not answer for half of the time."""
        coming = [w for w in self.waits if w.start_ns < slots.end_ns <= w.end_ns + EPSILON_NS and caused(w)]
        half = slots.start_ns + (slots.end_ns - slots.start_ns) // 2
        busy = [w for w in coming if (w.kind, w.what) == ("jobmanager", RM_NAME) and w.start_ns <= half]
        own = [w for w in coming if w.kind in ("replacement", "start")]
        own += [w for w in coming if (w.kind, w.who) == ("stalled", EVERYTHING)]
        own += [w for w in coming if (w.kind, w.what) == ("registration", RM_NAME)]
        return max(own or busy, key=lambda w: (w.end_ns, w.wait), default=None)

    def _pause_of_judge(self, wait: Wait) -> Wait | None:
        """Return the pause of the process that waited for heartbeats, if it made the wait longer than its option: none counts as missing in it.
        A pause from a fault's own record is preferred to the one that the process recorded."""
        if (late_ns := lateness_ns(self._judged(wait))) == 0:
            return None
        process = _process(wait)
        own = [w for w in self.waits if _process(w) == process and w.kind == "stalled"]
        own += [w for w in self.waits if w.who == EVERYTHING and process.startswith(f"{w.what}-")]
        own = [w for w in own if wait.start_ns < w.end_ns <= self.at]
        return max(
            own, key=lambda w: (min(late_ns, w.end_ns - w.start_ns), w.who == EVERYTHING), default=None
        )

    def _busy_judge(self, wait: Wait) -> Wait | None:
        """Return the wait that shows what kept the JobManager's component busy when the option of `wait` expired, or the option of the loss
        that ended `wait`. A busy component notices the expiry late, and callers may have given up by then."""
        judged = self._judged(wait)
        if (late_ns := lateness_ns(judged)) == 0:
            return None
        since = wait.end_ns - late_ns
        asked = [w for w in self.waits if w.kind == "jobmanager" and w.what == judged.who]
        asked = [w for w in asked if caused(w) or w.outcome is Outcome.CANCELLED]
        asked = [w for w in asked if 2 * (min(w.end_ns, wait.end_ns) - max(w.start_ns, since)) > late_ns]
        return max(asked, key=lambda w: (bool(w.fault), w.end_ns - w.start_ns, w.wait), default=None)

    def _before(self, current: Wait) -> Wait | None:
        """Return the wait that ended last before the current point, among those that `current` needed."""
        named = [w for i in current.after if (w := self._ids.get(i)) is not None and self._possible(w)]
        if not named and current.kind == "checkpoint":
            named = self._checkpoint_before(current)
        start = self.pieces[-1].wait if self.pieces else None
        overtaken = self.at < current.start_ns - TIE_NS  # what delayed it had begun before it
        current = start if overtaken and start else current
        named = named or [w for w in self.waits if start and starts_again(start, w)]
        if named:
            return _latest(named, current)
        later_loss = current.kind == "replacement" and current.start_ns > self.start + EPSILON_NS
        later_loss = later_loss and abs(current.start_ns - self.detected) > EPSILON_NS  # not of this restart
        if current.kind not in _EVENTS and not later_loss:
            asked = (current.kind, current.what) == ("registration", JOBMASTER_NAME)  # for a slot
            ended = self._last_ended(_needed("slot" if asked else current.kind))
            if not overtaken or (ended and ended[0].end_ns >= self.at - TIE_NS):
                return _latest(ended, current)
        around = [w for w in self.waits if w.start_ns < self.at - EPSILON_NS and w.end_ns > self.at]
        during = [w for w in around if w.kind not in _NOT_INTERRUPTED]
        if current.kind in _DETECTION and all(w.kind in _OF_SLOTS for w in during):
            during = []  # a running job does not wait for a TaskManager that comes
        if (current.kind in _PAUSES or current.who == EVERYTHING or later_loss) and not during:
            stopped = (w for w in around if w.who == EVERYTHING or w.kind == "leadership")
            during = [w for w in stopped if id(w) not in self._taken]
        before_slots = any(w.kind in ("cancellation", "restart-delay") for w in during)
        if before_slots and all(w.kind != "slot" for w in during):  # and no other region waits for slots
            during = [w for w in during if w.kind not in _OF_SLOTS]
        if any(w.kind == "catch-up" for w in during):  # the job ran: no sink still had to get a record
            during = [w for w in during if (w.kind, w.outcome) != ("first-record", Outcome.CANCELLED)]
        if during:
            return min(during, key=lambda w: (w.kind == "slot", w.kind != "iteration", w.start_ns))
        return _latest(self._last_ended(_BEFORE_EVENTS), current)

    def _checkpoint_before(self, checkpoint: Wait) -> list[Wait]:
        """Return the checkpoints that had to end before this one could begin, whatever their outcome."""
        others = [w for w in self.waits if w.kind == "checkpoint" and w is not checkpoint]
        before = [w for w in others if w.start_ns < self.at]
        return [w for w in before if abs(w.end_ns - checkpoint.start_ns) <= EPSILON_NS]

    def _last_ended(self, kinds: Collection[str]) -> list[Wait]:
        """Return the wait that ended last before the current point, and those that ended together with it."""
        found: list[Wait] = []
        for index in range(bisect_right(self._ends, self.at + EPSILON_NS) - 1, -1, -1):
            wait = self.waits[index]
            if found and wait.end_ns < found[0].end_ns - TIE_NS:
                break
            if wait.kind in kinds and self._possible(wait):
                found.append(wait)
        return found

    def _possible(self, wait: Wait) -> bool:
        """Whether the current point can follow from the end of this wait."""
        known = wait.kind not in _DETECTION or wait.end_ns <= self.detected + EPSILON_NS
        return known and wait.end_ns <= self.at + EPSILON_NS and wait.start_ns < self.at and caused(wait)

    def _fill(self, until: int) -> None:
        """Give the gap between `until` and the current point to the innermost step that covers it, or to the recorded wait of
        its kind that was in progress."""
        edges = {t for s in self.steps for t in (s.start_ns, s.end_ns) if until < t < self.at}
        moments = sorted({until, self.at, *edges}, reverse=True)
        for later, earlier in pairwise(moments):
            covering = [s for s in self.steps if s.start_ns <= earlier and s.end_ns >= later]
            owner = max(covering, key=lambda s: (s.start_ns, -s.end_ns), default=None)
            self.pieces.append(Piece(earlier, later, owner and self._recorded(owner, earlier, later)))
        self.at = until

    def _recorded(self, step: Wait, start: int, end: int) -> Wait:
        """Return the innermost recorded wait of the step's kind that covers the span, otherwise the step. For slots, a completion counts too:
        the JobMaster requests slots only when the store has completed the checkpoint, or failed to. So does a restart delay that was cut off."""
        found = [w for w in self.waits if w.start_ns <= start and w.end_ns >= end]
        own = [w for w in found if w.kind == step.kind and (w.kind == "restart-delay" or caused(w))]
        if step.kind == "slot" and not step.wait:
            until = {"completion": step.end_ns + EPSILON_NS, "restart-delay": end + EPSILON_NS}
            own += [w for w in found if w.end_ns <= until.get(w.kind, 0) and (w.kind, w.outcome) != _REPLACED]
        return max(own, key=lambda w: (w.start_ns, -w.end_ns), default=step)

    def _add(self, until: int, wait: Wait) -> bool:
        if until >= self.at:
            return False
        self.pieces.append(Piece(until, self.at, wait))
        self.at = until
        return True


def _first_and_name(pair: tuple[int, Wait]) -> tuple[int, str]:
    return pair[0], pair[1].wait


def _is_beside(wait: Wait, awaited: Collection[str] | None) -> bool:
    """Whether this is a step that a restart needs. It needs none of a TaskManager that gives the JobManager up, or that it does not await
    while it awaits others."""
    if wait.kind == "jobmanager" and is_task_manager(name := logical_name(wait.who)):
        return wait.outcome is not Outcome.EXPIRED and (not awaited or name in awaited)
    return wait.kind in _BESIDE


def is_awaited(wait: Wait, awaited: Collection[str] | None) -> bool:
    """Whether this is a step or the pause of a TaskManager that the job needs."""
    step = wait.kind in _OF_SLOTS or (wait.kind, wait.who) == ("stalled", EVERYTHING)
    return step and (awaited is None or taskmanager_of(wait) in awaited)


def taskmanager_of(wait: Wait) -> str:
    """Return the TaskManager of a step until it is registered, or of its pause, by its name without the process number."""
    return logical_name(wait.who if wait.kind == "registration" else wait.what)


def _follows(wait: Wait, shortened: Wait) -> bool:
    """Whether the wait ends with the other one: it is between the same two processes and ended together with it, or it is a registration with
    the JobMaster that a replacement made possible, because that completed the slots that the JobMaster needs."""
    same = processes(wait.who, wait.what) == processes(shortened.who, shortened.what)
    if wait.what and same and abs(wait.end_ns - shortened.end_ns) <= TIE_NS:
        return True
    registered = (wait.kind, wait.what) == ("registration", JOBMASTER_NAME)
    return registered and shortened.kind == "replacement" and wait.end_ns >= shortened.end_ns - EPSILON_NS


def _concerns(holder: Wait, wait: Wait) -> bool:
    """Whether the holder can have delayed this wait, according to their names. A partition only waits for the deployment and the state of its
    own producer. A TaskManager that misses the JobManager's heartbeats delays slots only by its registration, a wait of its own."""
    if wait.kind == "slot" and holder.kind == "heartbeat" and holder.what in (JOBMASTER_NAME, RM_NAME):
        return False
    producer = {"deployment": holder.what, "restore": holder.who}.get(holder.kind, wait.what)
    return wait.kind != "partition" or producer == wait.what


def _is_part(holder: Wait, wait: Wait) -> bool:
    """Whether one wait is a part of a longer one, whenever it ended: one of its requests, a step, the task that kept it waiting, or
    the store that could not complete it."""
    if wait.kind == "checkpoint":
        return stores(holder, wait)
    if wait.kind == holder.kind == "cancellation":  # the task that hung
        return holder.outcome is Outcome.EXPIRED and wait.start_ns <= holder.start_ns
    if wait.kind == "slot" and not is_slot_request(wait):  # only a TaskManager that offers a slot registers
        asked = (holder.kind, holder.what) == ("registration", JOBMASTER_NAME) and caused(holder)
        return asked or (is_slot_request(holder) and wait.start_ns - EPSILON_NS <= holder.start_ns)
    return wait.kind == "iteration" and holder.kind in ("stalled", "fault") and holder.who == EVERYTHING


def _latest(waits: Sequence[Wait], current: Wait) -> Wait | None:
    """Return the wait that ended last. If several ended together, return the longest; if they also began together, return one that its option
    ended."""
    if not waits:
        return None
    end = max(w.end_ns for w in waits)
    together = [w for w in waits if w.end_ns >= end - TIE_NS]
    begun = min((w.start_ns for w in together if w.kind in _AFTER_SLOTS), default=end)
    together = [w for w in together if not _was_overtaken(w, begun)]
    first = min(w.start_ns for w in together)
    longest = [w for w in together if w.start_ns <= first + TIE_NS]
    by_option = [w for w in longest if is_of_option(w)]
    longest = by_option or [w for w in longest if w.start_ns == first]
    return min(longest, key=lambda w: (w.start_ns, w.who != current.who, -w.end_ns, w.wait))


def _was_overtaken(coming: Wait, begun_ns: int) -> bool:
    """Whether a step after the allocation of slots began before a TaskManager was there, so that it did not wait for that TaskManager.
    `begun_ns`: when the first such step began."""
    return coming.kind in _OF_SLOTS and begun_ns < coming.end_ns - TIE_NS


def lateness_ns(wait: Wait) -> int:
    """Return how long after the expiry of its option the end of a wait was noticed, in nanoseconds. 0 if it was noticed at once."""
    judged = wait.kind in _TIMED and wait.outcome.belongs_to_option
    late_ns = wait.end_ns - wait.start_ns - wait.budget_ns if judged and wait.budget_ns >= 0 else 0
    return late_ns if late_ns >= NEAR_NS else 0
