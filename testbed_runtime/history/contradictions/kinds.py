"""Compare each row with what rows of its kind have: the columns of an event or a state, ids, options, who writes it."""

from __future__ import annotations

from collections.abc import Iterator

from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import JOB_PROCESSES, equal, first_true, ints
from testbed_runtime.history.damage import Damage, first_of_each
from testbed_runtime.history.schema import columns_of_event

OWN_EVENTS = frozenset(("network.buffers", "network.pools", "socket.state", "cpu.spent"))
"""Events of a TaskManager about itself."""
OWN_WAITS = frozenset(("registration",))
"""Waits of a TaskManager that it records itself."""
WITHOUT_ATTEMPT = frozenset((
    "registration", "replacement", "stalled", "start", "checkpoint", "completion", "heartbeat", "lease", "leadership",
    "slot-request",
))  # fmt: skip
"""Waits that belong to neither an attempt nor a restart."""
OF_STATE = {
    "triggered": frozenset[str](),
    "acknowledged": frozenset(("task", "duration_ns", "alignment_ns", "state_bytes", "persisted_bytes")),
    "finalizing": frozenset(("duration_ns",)),
    "completed": frozenset(("duration_ns", "state_bytes")),
    "failed": frozenset(("reason", "duration_ns")),
}
"""The columns that the rows of a checkpoint's states have. The others are empty or 0."""
RESTORED = ("task.restored", "job.restored")
"""Events that are always of a checkpoint."""
CAUSED = ("failover.started", "failover.failure", "taskmanager.lost")
"""Events whose text is always a cause."""
OF_ROLE = {
    "source": ("records_in", "bytes_in"),
    "sink": ("records_out", "bytes_out"),
    "operator": ("lag_ns",),
}
"""The columns of the tasks' samples that are 0 in each role."""


def check_kinds(trial: CheckedTrial) -> list[Damage]:
    """Return rows that cannot be of their kind, at most one for each rule."""
    rules = (_numbers_of_events, _causes, _subjects, _states, _roles, _ids, _limits, _links)
    return first_of_each(*(rule(trial) for rule in rules))


def _numbers_of_events(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield an event with an attempt or a checkpoint although its kind has none, and a restored state without a checkpoint."""
    for row, r in trial.distinct("events", "kind", "attempt", "checkpoint"):
        if r["kind"] in RESTORED and r["checkpoint"] < 0:
            yield Damage("events", "checkpoint", row, f"is -1, but {r['kind']} is of a checkpoint")
        for column in {"attempt", "checkpoint"} - columns_of_event(r["kind"]):
            if r[column] >= 0:
                yield Damage("events", column, row, f"is {r[column]}, but {r['kind']} is of no {column}")


def _causes(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a failure without a cause."""
    for row, r in trial.distinct("events", "kind", "text"):
        if r["kind"] in CAUSED and not r["text"]:
            yield Damage("events", "text", row, f"of {r['kind']} is empty, but every one has a cause")


def _subjects(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield what a TaskManager wrote about another process, and events about nothing."""
    for row, r in trial.distinct("events", "kind", "subject", "process"):
        if r["kind"] in OWN_EVENTS and r["subject"] != r["process"]:
            problem = f"of {r['kind']} is {r['subject'][:60]!r}, but {r['process']} wrote it"
            yield Damage("events", "subject", row, problem)


def _states(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a value that no checkpoint in that state has."""
    for column in sorted(frozenset().union(*OF_STATE.values())):
        without = [state for state, columns in OF_STATE.items() if column not in columns]
        for state in without:
            for row, r in trial.rows("checkpoints"):
                if r["state"] == state and r[column]:
                    problem = f"is {r[column]!r}, which a checkpoint that is {state} does not have"
                    yield Damage("checkpoints", column, row, problem)


def _roles(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a source that received, a sink that sent, and an operator with a lag, in a job that a JobManager deployed."""
    table = trial.table("tasks")
    for role, columns in OF_ROLE.items() if trial.events("task.state") else ():
        for column in columns:
            for row in first_true(equal(table, "role", role) & (ints(table, column) != 0)):
                found = table.column(column)[row].as_py()
                yield Damage("tasks", column, row, f"is {found}, which no {role} has")


def _ids(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield waits whose id, or that of a preceding wait, belongs to another process, and rows recorded for another process."""
    for row, r in trial.waits():
        process = r["process"]
        if not process.startswith(JOB_PROCESSES):
            continue
        for column, ids in (("wait", r["wait"].split() or [""]), ("after", r["after"].split())):
            if any(one.rpartition("/")[0] != process for one in ids):
                yield Damage("waits", column, row, f"is {r[column][:60]!r}, but {process} wrote it")
        if r["kind"] in OWN_WAITS and r["who"] != process:
            problem = f"is {r['who'][:60]!r}, but {process} wrote this {r['kind']} wait"
            yield Damage("waits", "who", row, problem)
        if r["kind"] in WITHOUT_ATTEMPT and r["attempt"] >= 0:
            problem = f"is {r['attempt']}, but a {r['kind']} wait is of no attempt"
            yield Damage("waits", "attempt", row, problem)


def _limits(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield waits with a budget or a value although no option limits them, and options without a value."""
    for row, r in trial.distinct("waits", "option", "value", "budget_ns", "kind"):
        if bool(r["option"]) != bool(r["value"]):
            yield Damage("waits", "option", row, f"is {r['option'][:60]!r}, but value is {r['value'][:60]!r}")
        elif not r["option"] and r["budget_ns"] != -1:
            problem = f"is {r['budget_ns']}, but no option limits this {r['kind']} wait"
            yield Damage("waits", "budget_ns", row, problem)


def _links(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield frames that were tapped by a process at neither end of their link."""
    for row, r in trial.distinct("frames", "side", "link", "process"):
        sender, _, receiver = r["link"].partition("->")
        if r["process"].rpartition("-")[0] != (sender if r["side"] == "sent" else receiver):
            problem = f"is {r['link'][:60]!r}, but {r['process']} {r['side']} the frame"
            yield Damage("frames", "link", row, problem)
