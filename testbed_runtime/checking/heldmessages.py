"""TaskManagers that handle no messages because a fault keeps one in their mailbox: nothing records that, but what they miss shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed_runtime.checking.faults import FaultEffect, targets_of
from testbed_runtime.core.waits import JOBMASTER_NAME, KINDS, RM_NAME, Outcome, Wait

MESSAGES = "messages"
"""The subject of these waits."""


def held_messages(waits: Sequence[Wait], effects: Iterable[FaultEffect]) -> list[Wait]:
    """Return a wait for each TaskManager that was declared lost meanwhile: from the last heartbeat that it answered until it registers
    with the JobMaster again, which asks it for a slot."""
    losses = [
        w
        for w in waits
        if w.kind == "heartbeat" and w.who in (JOBMASTER_NAME, RM_NAME) and w.outcome is Outcome.EXPIRED
        # not by calls that did not reach it: it is there
        if w.option in KINDS["heartbeat"].options[:1]
    ]
    found: dict[str, Wait] = {}
    for effect in effects:
        for loss in losses if effect.kind == "rpc.delay" and effect.injected_ns is not None else ():
            lasted = effect.begun_ns < loss.end_ns and (effect.ended_ns or loss.end_ns) > loss.start_ns
            again = [
                w.start_ns
                for w in waits
                if (w.kind, w.what, w.who) == ("registration", JOBMASTER_NAME, loss.what)
                and w.end_ns > loss.end_ns
            ]
            ordinal = loss.what.rpartition("-")[0]
            if lasted and again and ordinal in targets_of(effect) and loss.what not in found:
                found[loss.what] = Wait(
                    wait=f"{loss.what}/{MESSAGES}", kind="stalled", who=loss.what, what=MESSAGES, start_ns=loss.start_ns,
                    end_ns=min(again), cause=f"{ordinal} to handle the messages in its mailbox, during the fault `{effect.fault}`", fault=effect.fault,
                )  # fmt: skip
    return list(found.values())
