"""Failovers: their number, their deployment attempts, their causes, and which component detected them first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed_runtime.checking.common import data, events
from testbed_runtime.history.schema import Trial


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a failure, as first known to the JobManager."""

    t_ns: int
    text: str
    cause_class: str
    detector: str
    """`JobMaster`, `ResourceManager` or `Task`."""
    taskmanager: str
    """ResourceID of the affected TaskManager; empty if the cause names none."""


@dataclass(frozen=True, slots=True)
class Failovers:
    count: int
    attempts: int
    first: Cause | None
    causes: tuple[Cause, ...]


def check_failovers(trial: Trial) -> Failovers:
    """Count failovers. Restart numbers are unique only per incarnation of the JobManager."""
    started = events(trial, "failover.started")
    distinct = {(e["process"], e["subject"]) for e in started}
    attempts = {
        (e["process"], e["subject"], data(e).get("attempt")) for e in events(trial, "failover.attempt")
    }
    causes = tuple(cause_of(e) for e in started)
    return Failovers(len(distinct), len(attempts), causes[0] if causes else None, causes)


def cause_of(event: Mapping[str, Any]) -> Cause:
    """Return the cause recorded in a `failover.started`, `taskmanager.lost` or `job.state` event."""
    more = data(event)
    taskmanager = more.get("taskmanager") or (event["subject"] if event["kind"] == "taskmanager.lost" else "")
    return Cause(
        t_ns=int(event["t_ns"]),
        text=event["text"],
        cause_class=str(more.get("cause_class") or ""),
        detector=str(more.get("detector") or "Task"),
        taskmanager=str(taskmanager),
    )


def terminal_failure(trial: Trial) -> Cause | None:
    """Return why the job failed permanently, or None if it did not."""
    failed = [e for e in events(trial, "job.state") if data(e).get("to") == "FAILED"]
    return cause_of(failed[-1]) if failed else None


def job_state(trial: Trial, until_ns: int) -> str | None:
    """Return the state of the job at that time, or None if none was recorded."""
    states = [data(e).get("to") for e in events(trial, "job.state") if e["t_ns"] <= until_ns]
    return str(states[-1]) if states else None


def first_cause(trial: Trial, since_ns: int = 0) -> Cause | None:
    """Return the first cause since then: of a failover, else of a lost TaskManager, else of the job's failure."""
    for kind in ("failover.started", "taskmanager.lost"):
        found = [e for e in events(trial, kind) if int(e["t_ns"]) >= since_ns]
        if found:
            return cause_of(found[0])
    failure = terminal_failure(trial)
    return failure if failure is not None and failure.t_ns >= since_ns else None
