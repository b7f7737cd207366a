"""TaskManagers that handle no messages because a fault delays a message in their mailbox. No process records
this. It is derived from the heartbeats that they do not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from testbed_runtime.checking.common import data, events
from testbed_runtime.checking.faults import FaultEffect, targets_of
from testbed_runtime.core.faults.links import ANYBODY, split_link
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.core.job.messages import CancelTask, SubmitTask, TriggerCheckpoint
from testbed_runtime.core.waits import JOBMASTER_NAME, KINDS, RM_NAME, Outcome, Wait
from testbed_runtime.history.schema import Trial
from testbed_runtime.history.waits import INT64_MAX

MESSAGES = "messages"
"""The subject of these waits."""
NO_METHODS: Mapping[str, str] = MappingProxyType({})
_ANSWERS = {CancelTask.__name__: "cancellation", SubmitTask.__name__: "deployment", TriggerCheckpoint.__name__: "checkpoint"}  # fmt: skip
"""The kind of the JobMaster's wait for the answer to each of these messages."""
_NO_ANSWER = ("process.pause", "heartbeats.mute")
"""The kinds of faults, besides network faults, during which a TaskManager answers no heartbeat but may
recover."""


def held_messages(
    waits: Sequence[Wait],
    effects: Sequence[FaultEffect],
    delays: Mapping[str, int],
    methods: Mapping[str, str] = NO_METHODS,
) -> list[Wait]:
    """Return a wait for each TaskManager that was declared lost while a fault delayed its messages. The wait
    begins with the last heartbeat that the TaskManager answered, or with the first delayed message after
    that. It ends when the TaskManager registers with the JobMaster again, or when the fault ends. `delays`:
    how long each fault delayed the messages of one TaskManager. A delay shorter than the heartbeat timeout
    explains no loss. `methods`: the message that each fault delays."""
    losses = [
        w
        for w in waits
        if w.kind == "heartbeat" and w.who in (JOBMASTER_NAME, RM_NAME) and w.outcome is Outcome.EXPIRED
        # a TaskManager that holds messages is reachable: failed calls do not count
        if w.option in KINDS["heartbeat"].options[:1]
    ]
    losses = [w for w in losses if not any(keeps_silent(e, w) for e in effects)]
    found: dict[tuple[str, int], Wait] = {}
    for effect in effects:
        for loss in losses if effect.kind == "rpc.delay" and effect.injected_ns is not None else ():
            lasted = effect.begun_ns < loss.end_ns and (effect.ended_ns or loss.end_ns) > loss.start_ns
            enough = delays.get(effect.fault, 0) > loss.budget_ns
            mine = ("registration", JOBMASTER_NAME, loss.what)
            registrations = [w for w in waits if (w.kind, w.what, w.who) == mine]
            again = [w.start_ns for w in registrations if w.end_ns > loss.end_ns]
            ordinal = _ordinal(loss)
            if lasted and enough and again and ordinal in targets_of(effect):
                wait = Wait(
                    wait=f"{loss.what}/{MESSAGES}", kind="stalled", who=loss.what, what=MESSAGES, end_ns=min(*again, effect.ended_ns or INT64_MAX),
                    start_ns=_first_message(waits, loss, methods.get(effect.fault, ""), effect.ended_ns), fault=effect.fault,
                    cause=f"{ordinal} to handle the messages in its mailbox, during the fault `{effect.fault}`",
                )  # fmt: skip
                found.setdefault((loss.what, wait.end_ns), wait)
    return list(found.values())


def relayed_losses(trial: Trial) -> list[Wait]:
    """Return a wait for each loss that the ResourceManager reports to the JobMaster, until the JobMaster handles it. A busy JobMaster begins
    the failover later."""
    lost, failed = (
        [e for e in events(trial, kind) if data(e).get("detector") == RM_NAME]
        for kind in ("taskmanager.lost", "failover.failure")
    )
    found = []
    for event in failed:
        process, at = str(data(event).get("taskmanager")), event["t_ns"]
        since = max((e["t_ns"] for e in lost if e["subject"] == process and e["t_ns"] <= at), default=at)
        if since < at:
            name = f"{process}/relayed/{event['subject']}"
            found.append(
                Wait(
                    wait=name, kind="jobmanager", who=RM_NAME, what=JOBMASTER_NAME, start_ns=since, end_ns=at
                )
            )
    return found


def _first_message(waits: Sequence[Wait], loss: Wait, method: str, ended_ns: int | None) -> int:
    """Return when the first message with this method was sent after the last answered heartbeat and during
    the fault. This is known only if the wait for the answer was recorded; otherwise return the start of the
    loss."""
    kind = _ANSWERS.get(method)
    sent = [w.start_ns for w in waits if w.kind == kind and w.who == JOBMASTER_NAME]
    until = min(loss.end_ns, ended_ns or loss.end_ns)
    return min((t for t in sent if loss.start_ns < t < until), default=loss.start_ns)


def _ordinal(loss: Wait) -> str:
    return loss.what.rpartition("-")[0]


def keeps_silent(effect: FaultEffect, loss: Wait) -> bool:
    """Return whether this fault kept the lost TaskManager silent for at least half of the wait."""
    return silences(effect, loss) and acts_on(effect, loss)


def silences(effect: FaultEffect, loss: Wait) -> bool:
    """Return whether this fault paused, muted or cut off the lost TaskManager. A kill does not count: a killed process does not come back."""
    cuts = effect.hides_link and not effect.on_data_alone
    return (cuts or effect.kind in _NO_ANSWER) and _hits(effect, loss)


def acts_on(effect: FaultEffect, loss: Wait) -> bool:
    """Return whether this fault acted on the lost TaskManager, or on its link to the JobManager, for at least half of the wait."""
    lasted = min(effect.ended_ns or loss.end_ns, loss.end_ns) - max(effect.begun_ns, loss.start_ns)
    return _hits(effect, loss) and 2 * lasted >= loss.end_ns - loss.start_ns


def _hits(effect: FaultEffect, loss: Wait) -> bool:
    ends = {_ordinal(loss), JOBMANAGER, ANYBODY, ""}
    hit = any(ends.issuperset(split_link(target)) for target in targets_of(effect))
    return hit and effect.injected_ns is not None
