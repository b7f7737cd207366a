"""The waits of a trial: what processes recorded, what only faults and events show, and the steps that recorded their span."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from testbed_runtime.checking.common import NS, Entry, data, events
from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.faults import FaultEffect
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.core.options import parse_duration
from testbed_runtime.core.waits import KINDS, Outcome, Wait
from testbed_runtime.history.schema import Trial

JOBMASTER = "JobMaster"
SLOW_NS = 250_000_000
"""A shorter wait is not blamed on a fault that was active."""
_HOLDS_UP = {
    "registration": ("partition",),
    "store": ("restore", "checkpoint"),
    "rpc": ("deployment", "failure-report", "cancellation", "registration", "slot"),
    "network": ("restore", "partition", "deployment", "failure-report", "connection"),
    "frames": ("partition", "first-record"),
}
"""Families of faults, and the kinds of waits that they make longer."""


def read_waits(trial: Trial, entry: Entry, effects: Sequence[FaultEffect], end_ns: int) -> list[Wait]:
    """Return every wait of the trial, by its end, with its owner in words as `cause`. What a paused or dead process did not
    record comes from the faults and from the ends of processes."""
    found = [_named(Wait.from_row(row), effects) for row in trial.rows("waits")]
    for effect in effects:
        if effect.injected_ns is not None:
            found += _of_fault(effect, effect.injected_ns, end_ns)
    found += _replacements(trial, entry, found, end_ns)
    return sorted(found, key=lambda w: (w.end_ns, w.start_ns, w.wait))


def _named(wait: Wait, effects: Iterable[FaultEffect]) -> Wait:
    """Return the wait with its owner in words: what was waited for, and the fault that made it slow."""
    text = KINDS[wait.kind].doc
    for effect in effects:
        family, begun, ended = effect.kind.partition(".")[0], effect.injected_ns, effect.ended_ns
        during = begun is not None and begun < wait.end_ns and (ended is None or ended > wait.start_ns)
        if during and wait.kind in _HOLDS_UP.get(family, ()) and wait.end_ns - wait.start_ns >= SLOW_NS:
            text = f"{KINDS[wait.kind].doc}, during the fault `{effect.fault}`"
    return replace(wait, cause=text)


def _of_fault(effect: FaultEffect, start_ns: int, end_ns: int) -> list[Wait]:
    """Return what a fault holds up while it lasts: a process that it paused, or the JobManager."""
    family, _, what = effect.kind.partition(".")
    kind = "jobmanager" if family == JOBMANAGER else "stalled" if effect.kind == "process.pause" else ""
    if not kind:
        return []
    ended, outcome = effect.ended_ns, Outcome.COMPLETED
    if ended is None:
        ended, outcome = end_ns, Outcome.OPEN
    verb = {"pause": "was paused", "kill": "was killed"}.get(what, f"was hit by {effect.kind}")
    return [
        Wait(
            wait=f"{effect.fault}/{target}", kind=kind, who="everything", what=target, start_ns=start_ns, end_ns=ended,
            outcome=outcome, cause=f"{target} {verb} by the fault `{effect.fault}`",
        )
        for target in targets_of(effect)
    ]  # fmt: skip


def _replacements(trial: Trial, entry: Entry, waits: Iterable[Wait], end_ns: int) -> list[Wait]:
    """Return the waits for each next incarnation of a TaskManager: the delay of `replaceLost`, and the start."""
    asked = str(((entry.get("job") or {}).get("taskManagers") or {}).get("replaceLost") or "Never")
    try:
        delay_ns = round(parse_duration(asked) * NS)
    except ValueError:  # Never
        delay_ns = 0
    registering = {w.who: w.start_ns for w in waits if w.kind == "registration" and w.what != JOBMASTER}
    found: list[Wait] = []
    for event in events(trial, "taskmanager.registered"):
        incarnation = str(event["subject"])
        ordinal = incarnation.rpartition("-")[0]
        ended = [int(e["t_ns"]) for e in events(trial, "process.exit") if _ordinal(e["subject"]) == ordinal]
        ended = [t for t in ended if t < int(event["t_ns"])]
        if not ended:
            continue
        due = min(ended[-1] + delay_ns, int(event["t_ns"]))
        up = min(registering.get(incarnation, int(event["t_ns"])), int(event["t_ns"]))
        found.append(
            Wait(
                wait=f"{incarnation}/replacement", kind="replacement", start_ns=ended[-1], end_ns=due,
                option="taskManagers.replaceLost", value=asked, outcome=Outcome.FIRED, who="supervisor", what=incarnation,
            )
        )  # fmt: skip
        found.append(
            Wait(wait=f"{incarnation}/start", kind="start", start_ns=due, end_ns=up, cause=f"start of {incarnation}", who="supervisor", what=incarnation)
        )  # fmt: skip
    return [w for w in found if w.start_ns < w.end_ns <= end_ns]


def _ordinal(process: str) -> str:
    """Return `tm-0` of `tm-0-1` or `tm-0`."""
    return process if process.count("-") < 2 else process.rpartition("-")[0]


def fault_wait(effect: FaultEffect, start_ns: int, end_ns: int) -> Wait:
    """Return the wait of a job that survives a fault for the end of that fault."""
    stalled = effect.kind in ("process.pause", "jobmanager.pause", "jobmanager.kill")
    return Wait(
        wait=f"{effect.fault}/lasts",
        kind="stalled" if stalled else "fault",
        who="job",
        what=effect.fault,
        start_ns=start_ns,
        end_ns=end_ns,
        cause=f"end of the fault `{effect.fault}` ({effect.kind})",
    )


def targets_of(effect: FaultEffect) -> list[str]:
    """Return the ordinal names that the fault hit."""
    try:
        found = json.loads(effect.targets) if effect.targets else []
    except ValueError:
        return []
    return [str(t) for t in found] if isinstance(found, list) else []


# ---- steps


def detection(cause: Cause, effect_ns: int) -> list[Wait]:
    """Return the step from the effect of a fault to the failure that it caused."""
    text = {"heartbeat": "missing heartbeats", "connection": "close of the connection"}.get(cause.kind)
    return [
        _step(cause.kind, effect_ns, cause.t_ns, text or f"detection of {cause.cause_class or 'the failure'}")
    ]


def steps(trial: Trial, *, since: int, until: int, restart: bool, running_ns: int | None) -> list[Wait]:
    """Return the steps of one deployment as waits: cancellation, slots, deployment, restore, connections, first record.

    `since` is the failure (`restart`) or the submission, `running_ns` when the last sink received its first new record. The
    step that did not end lasts until the failure or the end of the record, `until`."""
    slots = _moments(trial, "failover.slots", since, until) or _states(trial, "DEPLOYING", since, until)[:1]
    deployed = _moments(trial, "failover.deployed", since, until)
    if not restart:
        deployed = _states(trial, "RUNNING", since, until)[-1:] if running_ns is not None else []
    milestones = [
        ("slot", slots, "allocation of slots"),
        ("deployment", deployed, "deployment of the tasks"),
        ("partition", _moments(trial, "gate.connected", since, until)[-1:], "connections and partition requests"),
        ("first-record", [] if running_ns is None else [running_ns], "the first new record at each sink"),
    ]  # fmt: skip
    if restart:
        cancelled = _moments(trial, "failover.cancelled", since, until)
        milestones.insert(0, ("cancellation", cancelled, "cancellation of the tasks"))
    found: list[Wait] = []
    at = since
    for index, (kind, moments, text) in enumerate(milestones):
        if moments:
            end = max(at, moments[0])
        elif any(later for _, later, _ in milestones[index + 1 :]):
            continue
        else:
            end = until
        found.append(_step(kind, at, end, text))
        at = end
        if not moments:
            break
    restored = _moments(trial, "task.restored", since, until)
    if slots and restored:
        found.append(_step("restore", slots[0], restored[-1], "state and checkpoint store"))
    return [s for s in found if s.end_ns > s.start_ns]


def _moments(trial: Trial, kind: str, since: int, until: int) -> list[int]:
    return [int(e["t_ns"]) for e in events(trial, kind) if since <= int(e["t_ns"]) <= until]


def _states(trial: Trial, state: str, since: int, until: int) -> list[int]:
    found = [e for e in events(trial, "task.state") if since <= int(e["t_ns"]) <= until]
    return [int(e["t_ns"]) for e in found if data(e).get("to") == state]


def _step(kind: str, start_ns: int, end_ns: int, text: str) -> Wait:
    return Wait(wait="", kind=kind, who=JOBMASTER, what="", start_ns=start_ns, end_ns=end_ns, cause=text)
