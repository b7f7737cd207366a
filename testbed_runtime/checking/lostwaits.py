"""The waits of restarts in which their JobManager was killed, so that it could not record them: events show what they waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed_runtime.checking.common import Entry, data, events, options
from testbed_runtime.core.job.limits import restart_delay
from testbed_runtime.core.waits import JOBMASTER_NAME, Outcome, Wait
from testbed_runtime.history.schema import Trial

_AFTER = {"failover.started": "cancellation", "failover.cancelled": "fencing", "failover.slots": "deployment"}
"""The wait of a restart after each of its milestones. Its tasks are SCHEDULED when it requests slots."""


def lost_waits(trial: Trial, entry: Entry, end_ns: int) -> list[Wait]:
    """Return the waits, until the next JobManager recovers the job. Only that for a restart delay has its owner as `cause`."""
    exits = {e["subject"]: int(e["t_ns"]) for e in events(trial, "process.exit")}
    started = events(trial, "failover.started")
    complete = {(e["process"], e["subject"]) for e in events(trial, "failover.deployed")}
    found = []
    for number, one in enumerate(started):
        process = one["process"]
        if process not in exits or (process, one["subject"]) in complete:
            continue
        region = _region(one)
        later = [e for e in started[number + 1 :] if e["process"] == process]
        if later and region.issubset(task for e in later for task in _region(e)):
            continue  # later restarts have taken its tasks
        following = (int(e["t_ns"]) for e in started if int(e["t_ns"]) >= exits[process])
        found.append(_interrupted(trial, entry, one, next(following, end_ns)))
    return found


def _region(started: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(data(started).get("region") or ())


def _interrupted(trial: Trial, entry: Entry, started: Mapping[str, Any], end_ns: int) -> Wait:
    """Return what this restart waited for at the end of its JobManager."""
    process, number, region = started["process"], started["subject"], _region(started)
    mine = [
        e
        for e in events(trial, *_AFTER, "task.state")
        if e["process"] == process and (e["subject"] == number or _requests_slots(e, region))
    ]
    mine = mine[next(n for n, e in enumerate(mine) if e["kind"] == "failover.started") :]
    last = mine[-1]
    kind = _AFTER.get(last["kind"], "slot")
    start_ns, cause = int(last["t_ns"]), ""
    if kind == "fencing" and (delay := _restart_delay(entry, data(started))):
        kind, start_ns, cause = "restart-delay", int(started["t_ns"]), delay
    return Wait(
        wait=f"{process}/{kind}-{number}", kind=kind, who=JOBMASTER_NAME, what="", outcome=Outcome.CANCELLED,
        start_ns=start_ns, end_ns=end_ns, cause=cause,
    )  # fmt: skip


def _requests_slots(event: Mapping[str, Any], region: frozenset[str]) -> bool:
    return (
        event["kind"] == "task.state" and event["subject"] in region and data(event).get("to") == "SCHEDULED"
    )


def _restart_delay(entry: Entry, started: Mapping[str, Any]) -> str:
    """Return the option that delayed this restart, with its value and the delay in force. Empty if none did."""
    option, seconds = str(started.get("delay_option") or ""), float(started.get("delay_s") or 0)
    return f"{option} = {restart_delay(options(entry), option, seconds).value}" if seconds > 0 else ""
