"""The wait of a restart in which its JobManager was killed, so that it could not record it: events show what it waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed_runtime.checking.common import Entry, data, events, options
from testbed_runtime.core.job.limits import restart_delay
from testbed_runtime.core.job.restart import restart_strategy
from testbed_runtime.core.waits import JOBMASTER_NAME, Outcome, Wait
from testbed_runtime.history.schema import Trial

_MILESTONES = ("failover.started", "failover.cancelled", "failover.slots", "failover.deployed", "job.state")
_AFTER = {"failover.started": "cancellation", "failover.cancelled": "fencing", "failover.slots": "deployment"}
"""The wait of a restart after each of its milestones. The state of the job changes to RUNNING when it requests slots."""


def lost_waits(trial: Trial, entry: Entry, end_ns: int) -> list[Wait]:
    """Return the waits, until the next JobManager recovers the job. Only that for a restart delay has its owner as `cause`."""
    exits = {e["subject"]: int(e["t_ns"]) for e in events(trial, "process.exit")}
    started = events(trial, "failover.started")
    found = []
    for process in dict.fromkeys(e["process"] for e in started):
        if process not in exits:
            continue
        following = (int(e["t_ns"]) for e in started if int(e["t_ns"]) >= exits[process])
        wait = _interrupted(trial, entry, process, next(following, end_ns))
        found += [wait] if wait is not None else []
    return found


def _interrupted(trial: Trial, entry: Entry, process: str, end_ns: int) -> Wait | None:
    """Return what the last restart of this JobManager waited for at its end. None if it was complete."""
    mine = [e for e in events(trial, *_MILESTONES) if e["process"] == process]
    mine = [e for e in mine if e["kind"] != "job.state" or data(e).get("to") == "RUNNING"]
    first = max(n for n, e in enumerate(mine) if e["kind"] == "failover.started")
    last, start_ns, cause = mine[-1], int(mine[-1]["t_ns"]), ""
    kind = _AFTER.get(last["kind"], "slot" if last["kind"] == "job.state" else "")
    if not kind or any(e["kind"] == "failover.deployed" for e in mine[first:]):
        return None
    if kind == "fencing" and (delay := _restart_delay(entry, data(mine[first]))):
        kind, start_ns, cause = "restart-delay", int(mine[first]["t_ns"]), delay
    return Wait(
        wait=f"{process}/{kind}", kind=kind, who=JOBMASTER_NAME, what="", outcome=Outcome.CANCELLED,
        start_ns=start_ns, end_ns=end_ns, cause=cause,
    )  # fmt: skip


def _restart_delay(entry: Entry, started: Mapping[str, Any]) -> str:
    """Return the option that delayed this restart, with its value and the delay in force. Empty if none did. A history of an
    earlier version has only the options."""
    chosen = options(entry)
    if "delay_s" in started:
        option, seconds = str(started["delay_option"]), float(started["delay_s"])
    else:
        strategy = restart_strategy(chosen, lambda low, _: low)
        strategy.notify_failure(0.0)
        option, seconds = strategy.option, strategy.backoff_s(0.0)
    return f"{option} = {restart_delay(chosen, option, seconds).value}" if seconds > 0 else ""
