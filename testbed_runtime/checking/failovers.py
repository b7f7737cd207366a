"""Failovers: their number, their deployments, their causes, and which component detected them first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from testbed_runtime.checking.common import data, events
from testbed_runtime.history.schema import Trial

SAME_NS = 1_000_000
"""A failover and the job's change to RESTARTING this close together are the same restart."""
TOGETHER_NS = 100_000_000
"""Failures this close together have one cause."""
RECOVERED = "JobManagerRestarted"
"""The class of the cause with which a new JobManager recovers the job."""
REPORTED_TO = "/user/rpc/jobmaster"
"""In Flink's text of an ask that timed out at the JobMaster: the report of a task's state."""
_WRAPPED = "; caused by "

_BY_TEXT: tuple[tuple[tuple[str, ...], str], ...] = (
    (("lost leadership",), "lease"),
    (("no longer reachable", "eartbeat of", "unexpectedly no longer running"), "heartbeat"),
    (("PartitionNotFound", "not found"), "partition"),
    ((REPORTED_TO,), "jobmanager"),
    (("Invocation of", "Ask timed out", "AskTimeout", "rpcTimeout"), "deployment"),
    (("checkpoint tolerable failure threshold",), "checkpoint"),
    (("NoResourceAvailable", "Slot request bulk"), "slot"),
    ((RECOVERED,), "jobmanager"),
    (("Connection unexpectedly closed", "Lost connection", "RemoteTransport", "LocalTransport", "Connection reset", "Sending the partition request", "ConnectionClosed", "RecipientUnreachable", "PartitionConnection"), "connection"),
)  # fmt: skip
"""The first match in `class: text` wins, so more specific entries come first."""


class Cause(Struct, frozen=True):
    """The cause of a failure, as first known to the JobManager."""

    t_ns: int
    text: str
    cause_class: str
    detector: str
    """`JobMaster`, `ResourceManager` or `Task`."""
    taskmanager: str
    """ResourceID of the affected TaskManager; empty if the cause names none."""
    terminal: bool = False
    """The job did not restart."""

    @property
    def kind(self) -> str:
        """The kind of the wait whose end was this failure, by Flink's texts."""
        text = f"{self.cause_class}: {self.text}"
        return next((kind for parts, kind in _BY_TEXT if any(p in text for p in parts)), "failure-report")

    @property
    def report_expired(self) -> bool:
        """Whether the JobMaster did not answer the report of a starting task in time."""
        return REPORTED_TO in self.text


class Failovers(Struct, frozen=True):
    count: int
    attempts: int
    first: Cause | None
    causes: tuple[Cause, ...]


def check_failovers(trial: Trial) -> Failovers:
    """Count restarts as Flink's `numRestarts` does: also a failure during a restart begins one, unless the restart strategy
    merged it. Restart numbers are unique only per incarnation of the JobManager."""
    started = {(e["process"], e["subject"]): cause_of(e) for e in events(trial, "failover.started")}
    found = tuple(started.values())
    attempts = {
        (e["process"], e["subject"], data(e).get("attempt")) for e in events(trial, "failover.attempt")
    }
    return Failovers(len(found), len(attempts), found[0] if found else None, found)


def failures(trial: Trial) -> list[Cause]:
    """Return every failure that restarted or ended the job, by time."""
    found = [cause_of(e) for e in events(trial, "failover.started")]
    for event in events(trial, "job.state"):
        to, t_ns = data(event).get("to"), int(event["t_ns"])
        if to == "RESTARTING" and all(abs(c.t_ns - t_ns) > SAME_NS for c in found):
            found.append(cause_of(event))
    ends = [e for e in events(trial, "job.state") if data(e).get("to") in ("FAILING", "FAILED")]
    if ends:
        found.append(cause_of(ends[0], terminal=True))
    return sorted(found, key=lambda c: c.t_ns)


def round_causes(trial: Trial) -> list[Cause]:
    """Return the failures that began or ended a round. Of failures that follow each other at once, the first counts: tasks
    that fail together, and deployments that fail at once."""
    found: list[Cause] = []
    for cause in failures(trial):
        if not found or cause.terminal or cause.t_ns - found[-1].t_ns > TOGETHER_NS:
            found.append(cause)
    return found


def cause_of(event: Mapping[str, Any], *, terminal: bool = False) -> Cause:
    """Return the cause recorded in a `failover.started`, `taskmanager.lost` or `job.state` event."""
    more = data(event)
    taskmanager = more.get("taskmanager") or (event["subject"] if event["kind"] == "taskmanager.lost" else "")
    return Cause(
        t_ns=int(event["t_ns"]),
        text=event["text"],
        cause_class=str(more.get("cause_class") or ""),
        detector=str(more.get("detector") or "Task"),
        taskmanager=str(taskmanager),
        terminal=terminal,
    )


def terminal_failure(trial: Trial) -> Cause | None:
    """Return why the job failed permanently, or None if it did not."""
    failed = [e for e in events(trial, "job.state") if data(e).get("to") == "FAILED"]
    return cause_of(failed[-1], terminal=True) if failed else None


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


def root_cause(trial: Trial, until_ns: int) -> str:
    """Return what last failed a job that is not running at that time, as `class: text`; empty for one that runs or finished."""
    failure = terminal_failure(trial)
    if failure is None:
        if job_state(trial, until_ns) in ("RUNNING", "FINISHED", None):
            return ""
        started = [e for e in events(trial, "failover.started") if int(e["t_ns"]) <= until_ns]
        if not started:
            return ""
        failure = cause_of(started[-1])
    return unwrapped(failure.cause_class, failure.text)


def unwrapped(cause_class: str, text: str) -> str:
    """Return `class: text` of the cause within "Recovery is suppressed by …; caused by …", or of the cause itself."""
    wrapper, separator, inner = text.partition(_WRAPPED)
    if separator and wrapper.startswith("Recovery is suppressed by"):
        return inner
    return f"{cause_class}: {text}" if cause_class else text
