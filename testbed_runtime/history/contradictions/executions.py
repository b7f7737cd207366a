"""Compare the rows of attempts with what the JobManager deployed, and with the restarts that it recorded.

A JobManager that was killed loses its last rows. These rules hold where one JobManager recorded the job to its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import JOBMASTER_NAME, RM_NAME, Outcome
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import (
    TOLERANCE_NS,
    Attempt,
    Owned,
    attempt_of,
    first_true,
    ints,
    numbered,
)
from testbed_runtime.history.damage import Damage, first_of_each, no_row

GIVING_UP = (JOBMASTER_NAME, RM_NAME)
LONG_NS = 5 * NS
"""A task that ran for longer than this and finished has written samples."""
WITH_ATTEMPTS = ("tasks", "channels", "latency", "delivery")
TASK_EVENTS = frozenset((
    "task.restored", "source.end", "gate.connected", "sink.first-record", "sink.end", "function.dropped", "partition.request",
    "latency.markers", "receive-queue.closed", "input-split",
))  # fmt: skip
"""Events of an attempt that was deployed."""
OF_THE_JOBMASTER = frozenset(("input-split",))
"""Those that its TaskManager does not write."""


def check_executions(trial: CheckedTrial) -> list[Damage]:
    """Return the contradictions between attempts and deployments, at most one for each rule."""
    if not trial.events("task.state") or not trial.recorded_to_its_end:
        return []
    return [
        *first_of_each(*(_attempts(trial, name) for name in WITH_ATTEMPTS)),
        *first_of_each(
            _attempts_of_events(trial), _attempts_of_waits(trial), _places(trial), _sampled(trial)
        ),
        *_restarts(trial),
        *first_of_each(_restored(trial), _lost(trial), _older(trial)),
    ]


def _attempts(trial: CheckedTrial, name: str) -> Iterator[Damage]:
    """Yield a row of an attempt that was not deployed."""
    for row, r in trial.distinct(name, "task", "attempt"):
        if (r["task"], r["attempt"]) not in trial.deployed:
            yield Damage(name, "attempt", row, _never(r["task"], r["attempt"]))


def _older(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a sample of an attempt that its TaskManager took long after those of a later attempt of the task had begun. An attempt whose
    deployment expired may still begin at a busy TaskManager, and run beside the next one."""
    expired = [r for _, r in trial.waits("deployment") if r["outcome"] == Outcome.EXPIRED]
    late = grouped((r["what"], r["attempt"]) for r in expired)
    table = trial.table("tasks")
    owned = Owned.of(numbered([table], ("process", "task")), ints(table, "seq"))
    attempt, t_ns = ints(table, "attempt")[owned.order], ints(table, "t_ns")[owned.order]
    for start, size in zip(owned.starts.tolist(), owned.sizes.tolist(), strict=True):
        mine, times = attempt[start : start + size], t_ns[start : start + size]
        task = table.column("task")[int(owned.order[start])].as_py()
        newest = np.maximum.accumulate(mine)
        since = times[np.searchsorted(newest, newest)]
        older = (mine < newest) & ~np.isin(mine, late.get(task, ()))
        for at in first_true(older & (times - since > TOLERANCE_NS)):
            problem = f"is {mine[at]}, but {task} had been sampled in attempt {newest[at]} for {(times[at] - since[at]) / NS:.1f} s"
            yield Damage("tasks", "attempt", int(owned.order[start + at]), problem)


def _never(task: str, attempt: int) -> str:
    return f"is {attempt}, but no attempt {attempt} of {task} was deployed (task.state in events)"


def _attempts_of_events(trial: CheckedTrial) -> Iterator[Damage]:
    for row, event in trial.events(*TASK_EVENTS):
        if event["attempt"] >= 0 and attempt_of(event) not in trial.deployed:
            yield Damage("events", "attempt", row, f"of {event['kind']} {_never(*attempt_of(event))}")


def _attempts_of_waits(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield the wait of a task in an attempt that was not deployed. Other waits have the number of a restart."""
    known = trial.tasks | {task for task, _ in trial.deployed}
    for row, r in trial.waits():
        if r["attempt"] < 0 or r["who"] == JOBMASTER_NAME or (r["who"], r["attempt"]) in trial.deployed:
            continue
        if r["who"] in known:
            yield Damage("waits", "attempt", row, _never(r["who"], r["attempt"]))
        else:
            yield Damage("waits", "who", row, f"is {r['who'][:60]!r}, which the job does not have")


def _places(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a row that another TaskManager wrote than the one to which the attempt was deployed."""
    for name in ("tasks", "channels", "latency"):
        for row, r in trial.distinct(name, "task", "attempt", "process"):
            if problem := _elsewhere(trial, r["task"], r["attempt"], r["process"]):
                yield Damage(name, "process", row, problem)
    for row, event in trial.events(*(TASK_EVENTS - OF_THE_JOBMASTER)):
        if problem := _elsewhere(trial, *attempt_of(event), event["process"]):
            problem = f"of {event['kind']} is {event['subject']}: process {problem}"
            yield Damage("events", "subject", row, problem)
    for row, r in trial.distinct("waits", "who", "attempt", "process"):
        if problem := _elsewhere(trial, r["who"], r["attempt"], r["process"]):
            yield Damage("waits", "who", row, f"is {r['who']}: process {problem}")


def _elsewhere(trial: CheckedTrial, task: str, attempt: int, process: str) -> str:
    event = trial.deployed.get((task, attempt))
    owner = event["data"].get("taskmanager") if event is not None else ""
    if not owner or owner == process:
        return ""
    return f"is {process}, but attempt {attempt} of {task} was deployed to {owner} (task.state in events)"


def _sampled(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a task that ran for longer than LONG_NS and finished, but has no sample."""
    found, running = _sampled_attempts(trial), dict[Attempt, int]()
    for _, event in trial.events("task.state") if found else ():
        one, state = attempt_of(event), event["data"].get("to")
        lasted = event["t_ns"] - running.get(one, event["t_ns"])
        if state == "RUNNING":
            running[one] = event["t_ns"]
        elif state == "FINISHED" and one not in found and lasted > LONG_NS:
            problem = f"lacks {one[0]}, which ran for {lasted / NS:.0f} s as attempt {one[1]} and finished"
            yield Damage("tasks", "task", -1, problem)


def _restarts(trial: CheckedTrial) -> list[Damage]:
    """Return restarts that have one number, that are missing, or that never ended although the job finished."""
    started, failures = trial.events("failover.started"), trial.events("failover.failure")
    numbers: dict[str, set[str]] = {"failover.started": set(), "failover.deployed": set()}
    for kind, seen in numbers.items():
        for row, event in trial.events(kind):
            if event["subject"] in seen:
                problem = f"of {kind} is {event['subject']}, which another one has too"
                return [Damage("events", "subject", row, problem)]
            seen.add(event["subject"])
    task, times = next(iter(Counter(task for task, _ in trial.deployed).most_common(1)), ("", 0))
    begun = sum(e["data"].get("restarted") is True for _, e in failures)
    # a failure may be merged into a restart that has already deployed
    most = max(len(started), len(failures))
    found = []
    if len(started) < begun:
        problem = (
            f"has {len(started)} failover.started, but {begun} failures restarted the job (failover.failure)"
        )
        found.append(no_row("events", problem))
    elif times - 1 > most:
        problem = f"has {len(started)} failover.started and {len(failures)} failover.failure, but {task} was deployed {times} times (task.state)"
        found.append(no_row("events", problem))
    if started and trial.changes("job.state", "FINISHED"):
        row, last = started[-1]
        if last["subject"] not in numbers["failover.deployed"]:
            problem = f"has no failover.deployed of restart {last['subject']}, but the job finished"
            found.append(Damage("events", "kind", row, problem))
    return found


def _restored(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield an attempt that restored a checkpoint that was not complete, or that did not restore the one that was."""
    done = {r["checkpoint"]: r["seq"] for r in trial.completed}
    kept = {e["checkpoint"] for _, e in trial.events("job.restored")}
    for row, event in trial.events("task.restored"):
        deployment = trial.deployed.get(attempt_of(event))
        if deployment is None or event["checkpoint"] in kept or event["checkpoint"] < 0:
            continue
        newest = max((number for number, seq in done.items() if seq < deployment["seq"]), default=-1)
        if event["checkpoint"] != newest:
            last = f"when {event['subject']} was deployed, the last complete one was {newest}"
            what = last if newest >= 0 else "none was complete"
            problem = f"of task.restored is {event['checkpoint']}, but {what} (checkpoints)"
            yield Damage("events", "checkpoint", row, problem)
    ran = {attempt_of(e) for e in trial.changes("task.state", "RUNNING")} & _sampled_attempts(trial)
    for task, attempt in sorted(ran & trial.deployed.keys() - trial.attempts_with("task.restored").keys()):
        if any(seq < trial.deployed[task, attempt]["seq"] for seq in done.values()):
            problem = f"has no task.restored of attempt {attempt} of {task}, which was deployed after a completed checkpoint"
            yield no_row("events", problem)


def _sampled_attempts(trial: CheckedTrial) -> set[Attempt]:
    return {(r["task"], r["attempt"]) for _, r in trial.distinct("tasks", "task", "attempt")}


def _lost(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a wait for the heartbeat of a TaskManager that expired and did not lose it."""
    lost = grouped(
        ((e["subject"], str(e["data"].get("detector"))), e["t_ns"])
        for _, e in trial.events("taskmanager.lost")
    )
    for row, r in trial.waits("heartbeat"):
        times = lost.get((r["what"], r["who"]), ())
        expired = r["who"] in GIVING_UP and r["outcome"] == Outcome.EXPIRED
        if expired and not trial.happened(r["process"], r["t_ns"], times):
            problem = f"is {r['outcome']!r}, but {r['who']} did not lose {r['what']} then (taskmanager.lost in events)"
            yield Damage("waits", "outcome", row, problem)
