"""Failovers: their number, their deployments, their causes, and which component detected them first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from testbed_runtime.checking.common import data, events
from testbed_runtime.core.job.causes import FAILURE_REPORT, FUNCTION, ended_wait
from testbed_runtime.history.schema import Trial

SAME_NS = 1_000_000
"""A failover and the job's change to RESTARTING this close together are the same restart."""
TOGETHER_NS = 100_000_000
"""Failures this close together have one cause."""


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
    kind: str = FAILURE_REPORT
    """The kind of the wait whose end was this failure."""
    own: bool = False
    """A function of the scenario raised the error, so no fault is behind it."""
    root: str = ""
    """The cause that `text` wraps, as `class: text`; empty if it wraps none."""

    @property
    def report_expired(self) -> bool:
        """Whether the JobMaster did not answer a request of a task in time, such as the report of its state."""
        timed_out = self.cause_class.endswith("TimeoutException")
        return self.kind == "jobmanager" and self.detector == "Task" and timed_out

    @property
    def words(self) -> str:
        """The root cause as `class: text`."""
        return self.root or cause_text(self.cause_class, self.text)


class Failovers(Struct, frozen=True):
    count: int
    attempts: int
    causes: tuple[Cause, ...]


def check_failovers(trial: Trial, before_ns: int | None = None) -> Failovers:
    """Count restarts as Flink's `numRestarts` does. A failure during a restart begins another restart, unless
    the restart strategy merged it, even if that was too late. Restart numbers are unique only per incarnation
    of the JobManager. `before_ns`: when the processes were stopped. Later failures do not count."""
    restarts = [e for e in events(trial, "failover.started") if before_ns is None or e["t_ns"] < before_ns]
    merged = {(e["process"], e["subject"]) for e in restarts if not counted(e)}
    started = {(e["process"], e["subject"]): cause_of(e) for e in restarts}
    found = tuple(started.values())
    tried = events(trial, "failover.attempt")
    attempts = {(e["process"], e["subject"], data(e).get("attempt")) for e in tried}
    return Failovers(len(started.keys() - merged), len(attempts), found)


def counted(started: Mapping[str, Any]) -> bool:
    """Return whether Flink counts this restart. True in a history of an earlier version, which does not
    record that."""
    return bool(data(started).get("counted", True))


def failures(trial: Trial) -> list[Cause]:
    """Return every failure that restarted or ended the job, by time."""
    found = [cause_of(e) for e in events(trial, "failover.started")]
    for event in events(trial, "job.state"):
        to, t_ns = data(event).get("to"), event["t_ns"]
        if to == "RESTARTING" and all(abs(c.t_ns - t_ns) > SAME_NS for c in found):
            found.append(cause_of(event))
    ends = [e for e in events(trial, "job.state") if data(e).get("to") in ("FAILING", "FAILED")]
    if ends:
        found.append(cause_of(ends[0], terminal=True))
    return sorted(found, key=lambda c: c.t_ns)


def round_causes(trial: Trial) -> list[Cause]:
    """Return the failures that began or ended a round. Of failures in direct succession, the first counts:
    tasks can fail together, and deployments can fail at once."""
    found: list[Cause] = []
    for cause in failures(trial):
        if not found or cause.terminal or cause.t_ns - found[-1].t_ns > TOGETHER_NS:
            found.append(cause)
    return found


def cause_of(event: Mapping[str, Any], *, terminal: bool = False) -> Cause:
    """Return the cause recorded in a `failover.started`, `taskmanager.lost` or `job.state` event."""
    more = data(event)
    wait, cause_class = str(more.get("wait") or ""), str(more.get("cause_class") or "")
    taskmanager = more.get("taskmanager") or (event["subject"] if event["kind"] == "taskmanager.lost" else "")
    return Cause(
        t_ns=event["t_ns"],
        text=event["text"],
        cause_class=cause_class,
        detector=str(more.get("detector") or "Task"),
        taskmanager=str(taskmanager),
        terminal=terminal,
        kind=ended_wait(cause_class, "" if wait == FUNCTION else wait),
        own=wait == FUNCTION,
        root=str(more.get("root") or ""),
    )


def terminal_failure(trial: Trial) -> Cause | None:
    """Return why the job failed permanently, or None if it did not."""
    failed = [e for e in events(trial, "job.state") if data(e).get("to") == "FAILED"]
    return cause_of(failed[-1], terminal=True) if failed else None


def job_state(trial: Trial, until_ns: int) -> str | None:
    """Return the state of the job at that time, or None if none was recorded."""
    states = [data(e).get("to") for e in events(trial, "job.state") if e["t_ns"] <= until_ns]
    return str(states[-1]) if states else None


def first_cause(trial: Trial) -> Cause | None:
    """Return the first cause: of a failover, else of a lost TaskManager, else of the job's failure."""
    for kind in ("failover.started", "taskmanager.lost"):
        if found := events(trial, kind):
            return cause_of(found[0])
    return terminal_failure(trial)


def root_cause(trial: Trial, until_ns: int) -> str:
    """Return the last root cause of a job that is not running at that time, as `class: text`. Empty if the
    job runs or has finished."""
    failure = terminal_failure(trial)
    if failure is None:
        if job_state(trial, until_ns) in ("RUNNING", "FINISHED", None):
            return ""
        started = [e for e in events(trial, "failover.started") if e["t_ns"] <= until_ns]
        if not started:
            return ""
        failure = cause_of(started[-1])
    return failure.words


def cause_text(cause_class: str, text: str) -> str:
    """Return a cause as `class: text`."""
    return f"{cause_class}: {text}" if cause_class else text
