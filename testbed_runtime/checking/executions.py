"""The executions of a trial: one per subtask and attempt, with each state and when it was reached."""

from __future__ import annotations

from dataclasses import dataclass, field

from testbed_runtime.checking.common import data, events
from testbed_runtime.checking.failovers import cause_text
from testbed_runtime.core.faults.links import logical_name
from testbed_runtime.history.columns import vertex_of
from testbed_runtime.history.schema import Trial


@dataclass(slots=True)
class ExecutionHistory:
    """One attempt of one subtask. Seconds count from the first event of the job."""

    task: str
    """`vertex-subtask`."""
    attempt: int
    taskmanager: str = ""
    """Empty if it got no slot."""
    states: list[tuple[str, float | None]] = field(default_factory=list)
    """The states of the attempt, in order. The time of CREATED is not recorded: it is the job's start or
    restart."""
    cause: str = ""
    """`class: text`; empty if nothing failed."""


def executions(trial: Trial) -> list[ExecutionHistory]:
    """Return every execution, by vertex in the order of scheduling, subtask and attempt."""
    found: dict[tuple[str, int], ExecutionHistory] = {}
    changes = events(trial, "job.state", "task.state")
    begun_ns = changes[0]["t_ns"] if changes else 0
    for row in changes:
        if row["kind"] == "job.state":
            continue
        change = data(row)
        key = str(row["subject"]), row["attempt"]
        execution = found.get(key)
        if execution is None:
            execution = found[key] = ExecutionHistory(*key, states=[(change["from"], None)])
        execution.states.append((change["to"], (row["t_ns"] - begun_ns) / 1e9))
        execution.taskmanager = change["taskmanager"] or execution.taskmanager
        if row["text"] or change["cause_class"]:
            execution.cause = cause_text(change["cause_class"], row["text"])
    vertices = list(dict.fromkeys(vertex_of(task) for task, _ in found))

    def order(execution: ExecutionHistory) -> tuple[int, int, int]:
        vertex, _, subtask = execution.task.rpartition("-")
        return vertices.index(vertex), int(subtask), execution.attempt

    return sorted(found.values(), key=order)


def places(trial: Trial, before_ns: int) -> dict[str, str]:
    """Map each subtask to the TaskManager of its newest attempt before that time."""
    changes = [e for e in events(trial, "task.state") if e["t_ns"] < before_ns]
    return {e["subject"]: logical_name(str(data(e).get("taskmanager"))) for e in changes}


def used_in(trial: Trial, start_ns: int, end_ns: int) -> frozenset[str]:
    """Return the TaskManagers that ran tasks at the start of a span, or to which tasks were deployed during it."""
    given = [e for e in events(trial, "task.state") if start_ns <= e["t_ns"] <= end_ns]
    names = (logical_name(str(data(e).get("taskmanager"))) for e in given)
    return frozenset(places(trial, start_ns).values()).union(names)
