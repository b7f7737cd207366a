"""The steps of a deployment and of a detection, derived from the events of the failover. They own the time
that no recorded wait covers."""

from __future__ import annotations

from itertools import pairwise

from testbed_runtime.checking.common import data, events
from testbed_runtime.checking.failovers import TOGETHER_NS, Cause
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import JOBMASTER_NAME, KINDS, Outcome, Wait
from testbed_runtime.history.columns import vertex_of
from testbed_runtime.history.schema import Trial

NEAR_INTERVAL_NS = 250_000_000
"""A checkpoint that begins this close to the interval after the one before was triggered by it."""
SEVERAL = 3
"""With so many restarts at once, the failures are not one failure that several tasks report."""


def detection(cause: Cause, effect_ns: int) -> list[Wait]:
    """Return the step from the effect of a fault to the failure that it caused."""
    text = {
        "heartbeat": "missing heartbeats",
        "lease": "loss of the leadership",
        "checkpoint": "the next checkpoint, by execution.checkpointing.interval",
        "connection": KINDS["connection"].doc,  # as of a recorded wait, so that both have one price
    }.get(cause.kind)
    text = text or f"detection of {cause.cause_class or 'the failure'}"
    return [_step(cause.kind, effect_ns, cause.t_ns, text)]


def next_checkpoints(trial: Trial, entry: TrialEntry, since: int, until: int) -> list[Wait]:
    """Return the waits between `since` and `until` for checkpoints that the interval triggered, up to the one
    that failed at `until`. A store or a link that fails is noticed only with the next checkpoints."""
    key, chosen = "execution.checkpointing.interval", entry.options
    triggered = [r["t_ns"] for r in trial.rows("checkpoints") if r["state"] == "triggered"]
    begun = sorted(t_ns for t_ns in triggered if t_ns <= until)
    interval = round(chosen.duration(key) * NS)
    return [
        Wait(
            wait=f"checkpoint/{due}", kind="checkpoint", who=JOBMASTER_NAME, what="", start_ns=max(since, last), end_ns=due,
            option=key, value=chosen.shown(key), budget_ns=interval, outcome=Outcome.FIRED,
        )
        for last, due in pairwise(begun)
        if due > since and abs(due - last - interval) <= NEAR_INTERVAL_NS
    ]  # fmt: skip


_PRODUCTION = "the work of {}, whose consumers are deployed when it has finished"


def blocking_producers(entry: TrialEntry) -> frozenset[str]:
    """Return the vertices whose results are read only when they are complete."""
    return frozenset(edge.source for edge in entry.blocking_edges)


def _production(trial: Trial, producers: frozenset[str], since: int, until: int) -> tuple[list[int], bool]:
    """Return when tasks of these vertices changed to FINISHED, and whether some had not finished at the
    end."""
    own = [
        e for e in events(trial, "task.state") if vertex_of(e["subject"]) in producers and e["t_ns"] <= until
    ]
    last = {e["subject"]: data(e).get("to") for e in own}
    finished = [e["t_ns"] for e in own if data(e).get("to") == "FINISHED" and since <= e["t_ns"]]
    return finished, any(state != "FINISHED" for state in last.values())


def steps(
    trial: Trial,
    *,
    since: int,
    until: int,
    restart: bool,
    running_ns: int | None,
    producers: frozenset[str] = frozenset(),
) -> list[Wait]:
    """Return the steps of one deployment as waits: cancellation, slots, deployment, restore, connections,
    first record.

    `since` is the failure (`restart`) or the submission. `running_ns` is when the last sink received its
    first new record. A step that did not end lasts until `until`, which is the next failure or the end of the
    record. Consumers of `producers` are deployed only when these have finished."""
    slots = _moments(trial, "failover.slots", since, until)[-1:]
    slots = slots or _states(trial, "DEPLOYING", since, until)[:1]
    deployed, ran = (
        _moments(trial, "failover.deployed", since, until),
        _states(trial, "RUNNING", since, until),
    )
    if not restart:
        deployed = ran[-1:] if running_ns is not None else []
    connected = _moments(trial, "gate.connected", since, until)[-1:]
    finished, unfinished = _production(trial, producers, since, until if running_ns is None else running_ns)
    unfinished = unfinished and running_ns is None
    if finished or unfinished:
        first = min(finished, default=until)
        deployed = deployed if restart else [t for t in ran if t <= first][-1:]
    if unfinished:
        finished, connected = [], []
    elif slots and not deployed:  # a busy JobMaster learns of the deployment later than the sinks
        deployed, connected = connected, []
    milestones = [
        ("slot", slots, "allocation of slots"),
        ("deployment", deployed, "deployment of the tasks"),
        *([("first-record", finished[-1:], _PRODUCTION.format(" and ".join(f"`{name}`" for name in sorted(producers))))] if finished or unfinished else []),
        ("partition", connected, "connections and partition requests"),
        ("first-record", [] if running_ns is None else [running_ns], "the first new record at each sink"),
    ]  # fmt: skip
    if restart:
        started = [e for e in events(trial, "failover.started") if e["t_ns"] >= until]
        later = {(e["process"], e["subject"]) for e in started}
        cancelled = [e for e in events(trial, "failover.cancelled") if since <= e["t_ns"] <= until]
        ended = [e["t_ns"] for e in cancelled if (e["process"], e["subject"]) not in later]
        milestones.insert(0, ("cancellation", ended[-1:], "cancellation of the tasks"))
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
    restored = _moments(trial, "task.restored", since, until)
    recorded = any(r["kind"] == "restore" and since <= r["t_ns"] <= until for r in trial.rows("waits"))
    if slots and restored and not recorded:
        found.append(_step("restore", slots[0], restored[-1], "state and checkpoint store"))
    return [s for s in found if s.end_ns > s.start_ns]


def failing_at_once(trial: Trial, since: int, until: int) -> list[Wait]:
    """Return one step for several restarts in direct succession, each of which ended with a failure. Empty if
    it is one failure that several tasks report."""
    begun = [t for t in _moments(trial, "failover.started", since, until) if t <= since + TOGETHER_NS]
    if len(begun) < SEVERAL:
        return []
    return [_step("deployment", since, begun[-1], "restarts that failed at once")]


def _moments(trial: Trial, kind: str, since: int, until: int) -> list[int]:
    return [e["t_ns"] for e in events(trial, kind) if since <= e["t_ns"] <= until]


def _states(trial: Trial, state: str, since: int, until: int) -> list[int]:
    found = [e for e in events(trial, "task.state") if since <= e["t_ns"] <= until]
    return [e["t_ns"] for e in found if data(e).get("to") == state]


def _step(kind: str, start_ns: int, end_ns: int, text: str) -> Wait:
    return Wait(wait="", kind=kind, who=JOBMASTER_NAME, what="", start_ns=start_ns, end_ns=end_ns, cause=text)
