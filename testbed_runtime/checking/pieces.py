"""The pieces of a path over the waits, and their conversion into segments with owners."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.core.judgement.recovery import UNATTRIBUTED, Segment
from testbed_runtime.core.waits import EVERYTHING, KINDS, OWN_PARTITION, Outcome, Wait

_NOT_PROGRESS = frozenset({Outcome.FAILED, Outcome.CANCELLED, Outcome.OPEN})
MUST_SUCCEED = frozenset({"partition", "deployment", "slot", "restore", "open", "first-record"})
"""The next step needs the success of these waits, so it cannot follow one that expired."""
_MUST_FAIL = frozenset({"heartbeat", "lease", "checkpoint"})
"""Kinds of waits that cause something only when they fail."""


class Piece(Struct, frozen=True):
    """A span of the path, and the wait that owns it."""

    start: int
    end: int
    wait: Wait | None


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Join neighbouring pieces with the same owner. There are no gaps between the pieces."""
    found: list[Piece] = []
    for piece in pieces:
        if found and found[-1].wait is piece.wait:
            found[-1] = Piece(found[-1].start, piece.end, piece.wait)
        else:
            found.append(piece)
    return found


def is_of_option(wait: Wait) -> bool:
    """Whether the value of the wait's option decided how long the wait was."""
    return wait.outcome.belongs_to_option and bool(wait.option)


def segment(piece: Piece, slack: tuple[int, Wait] | None, *, known: bool) -> Segment:
    """Return the segment of a piece. `slack`: how much shorter the wait could be, and the wait that would
    then take over. `known`: the piece begins after the failure was known, and shows no other one."""
    wait = piece.wait
    if wait is None:
        text = "no recorded wait"
        return Segment(kind=UNATTRIBUTED, phase="", start_ns=piece.start, end_ns=piece.end, text=text)
    own = is_of_option(wait)
    return Segment(
        kind=_kind(wait),
        phase=_phase(wait, known=known),
        start_ns=piece.start,
        end_ns=piece.end,
        who=wait.who,
        what=wait.what,
        option=wait.option if own else "",
        value=wait.value if own else "",
        outcome=str(wait.outcome),
        text=owner_text(wait),
        detail=wait.detail,
        fault="" if own else wait.fault,
        from_events=not wait.wait,
        slack_ns=-1 if slack is None else slack[0],
        next="" if slack is None else owner_text(slack[1]),
    )


def _kind(wait: Wait) -> str:
    """Return the kind of a wait. A stall that the JobManager recorded while a fault paused it counts as that
    pause."""
    paused = wait.kind == "stalled" and wait.fault and wait.who.startswith(f"{JOBMANAGER}-")
    return "jobmanager" if paused else wait.kind


def _phase(wait: Wait, *, known: bool) -> str:
    """Return the phase of a recovery that a wait counts for. When a TaskManager's heartbeats of the
    JobManager time out, that detects a failure. A process that stands still when the failure is already
    `known` delays the restart, like a JobManager that does not answer. So does a store that cannot complete a checkpoint; before, it shows a
    failure."""
    expired = (wait.kind, wait.outcome, wait.option)
    given_up = expired == ("jobmanager", Outcome.EXPIRED, "heartbeat.timeout")
    failed = (wait.kind, wait.outcome) == ("completion", Outcome.FAILED) and not known
    kind = "jobmanager" if known and wait.kind == "stalled" else _kind(wait)
    return KINDS["heartbeat" if given_up else "checkpoint" if failed else kind].phase


def owner_text(wait: Wait) -> str:
    """Return the owner of a wait in words: `key = value` of the option that decided, otherwise the cause."""
    if is_of_option(wait):
        return f"{wait.option} = {wait.value}" if wait.value else wait.option
    return wait.cause or KINDS[wait.kind].doc


def caused(wait: Wait) -> bool:
    """Whether another step can follow from the end of this wait."""
    if wait.kind in _MUST_FAIL:
        return wait.outcome in (Outcome.EXPIRED, Outcome.FAILED)
    if wait.kind in MUST_SUCCEED:
        return wait.outcome in (Outcome.COMPLETED, Outcome.FIRED)
    return wait.outcome not in _NOT_PROGRESS or wait.kind in ("connection", "failure-report")


def registers_producer(holder: Wait, wait: Wait) -> bool:
    """Whether the holder is the registration of the partition that this wait was for."""
    return wait.kind == holder.kind == "partition" and (holder.who, holder.what) == (wait.what, OWN_PARTITION)


def stores(holder: Wait, wait: Wait) -> bool:
    """Whether the holder is the wait for the store that could not complete this checkpoint."""
    same = (holder.kind, holder.what) == ("completion", wait.what)
    return same and holder.outcome is wait.outcome is Outcome.FAILED


def starts_again(start: Wait, stopped: Wait) -> bool:
    """Whether `start` is the start of the JobManager that a fault had killed (`stopped`). TaskManagers do not count: one that is killed while
    it is paused starts again before the pause has ended."""
    killed = (stopped.kind, stopped.who) == ("jobmanager", EVERYTHING)
    same = start.kind == "start" and start.what.rpartition("-")[0] == stopped.what
    return killed and same and stopped.start_ns < start.start_ns < stopped.end_ns
