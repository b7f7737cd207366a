"""TaskManagers that handle no messages because a fault keeps one in their mailbox: nothing records that, but what they miss shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed_runtime.checking.faults import FaultEffect, targets_of
from testbed_runtime.core.faults.kinds import KINDS as FAULTS
from testbed_runtime.core.faults.links import ANYBODY, PLANES, split_link
from testbed_runtime.core.faults.vocabulary import Hides
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.core.waits import JOBMASTER_NAME, KINDS, RM_NAME, Outcome, Wait

MESSAGES = "messages"
"""The subject of these waits."""
_NO_ANSWER = ("process.pause", "heartbeats.mute")
"""The kinds of faults, besides those of the network, with which a TaskManager answers no heartbeat but may come back."""


def held_messages(
    waits: Sequence[Wait],
    effects: Sequence[FaultEffect],
    delays: Mapping[str, int],
    planes: Mapping[str, str],
) -> list[Wait]:
    """Return a wait for each TaskManager that was declared lost meanwhile: from the last heartbeat that it answered until it registers
    with the JobMaster again, which asks it for a slot. `delays`: for how long each fault keeps a message; a shorter one than the
    heartbeats may be missing explains no loss. `planes`: of each fault."""
    losses = [
        w
        for w in waits
        if w.kind == "heartbeat" and w.who in (JOBMASTER_NAME, RM_NAME) and w.outcome is Outcome.EXPIRED
        # not by calls that did not reach it: it is there
        if w.option in KINDS["heartbeat"].options[:1]
    ]
    losses = [w for w in losses if not any(_keeps_silent(e, w, planes) for e in effects)]
    found: dict[str, Wait] = {}
    for effect in effects:
        for loss in losses if effect.kind == "rpc.delay" and effect.injected_ns is not None else ():
            lasted = effect.begun_ns < loss.end_ns and (effect.ended_ns or loss.end_ns) > loss.start_ns
            enough = delays.get(effect.fault, 0) > loss.budget_ns
            again = [
                w.start_ns
                for w in waits
                if (w.kind, w.what, w.who) == ("registration", JOBMASTER_NAME, loss.what)
                and w.end_ns > loss.end_ns
            ]
            ordinal = _ordinal(loss)
            if lasted and enough and again and ordinal in targets_of(effect) and loss.what not in found:
                found[loss.what] = Wait(
                    wait=f"{loss.what}/{MESSAGES}", kind="stalled", who=loss.what, what=MESSAGES, start_ns=loss.start_ns,
                    end_ns=min(again), cause=f"{ordinal} to handle the messages in its mailbox, during the fault `{effect.fault}`", fault=effect.fault,
                )  # fmt: skip
    return list(found.values())


def _ordinal(loss: Wait) -> str:
    return loss.what.rpartition("-")[0]


def _keeps_silent(effect: FaultEffect, loss: Wait, planes: Mapping[str, str]) -> bool:
    """Return whether the JobManager heard nothing of the lost TaskManager for half of the time because of this fault: it paused it,
    muted it or cut it off. One that was killed does not come back."""
    kind = FAULTS.get(effect.kind)
    cuts = kind is not None and kind.hides is Hides.LINK and planes.get(effect.fault, PLANES[0]) != PLANES[0]
    if effect.injected_ns is None or not (cuts or effect.kind in _NO_ANSWER):
        return False
    ends = {_ordinal(loss), JOBMANAGER, ANYBODY, ""}
    lasted = min(effect.ended_ns or loss.end_ns, loss.end_ns) - max(effect.begun_ns, loss.start_ns)
    hit = any(ends.issuperset(split_link(target)) for target in targets_of(effect))
    return hit and 2 * lasted >= loss.end_ns - loss.start_ns
