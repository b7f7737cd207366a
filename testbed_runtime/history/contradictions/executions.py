"""Compare the rows of attempts with what the JobManager deployed, and with the restarts that it recorded.

A JobManager that was killed loses its last rows. These rules hold where one JobManager recorded the job to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from testbed_runtime.core.job.messages import TERMINAL_JOB_STATES
from testbed_runtime.core.waits import JOBMASTER_NAME, RM_NAME, Outcome
from testbed_runtime.history.columns import (
    ATTEMPT,
    NS,
    TOLERANCE_NS,
    Deployed,
    Owned,
    changes,
    deployments,
    distinct,
    events,
    first_true,
    ints,
    numbered,
    parsed,
    sound,
    tolerance_ns,
)
from testbed_runtime.history.damage import Damage, no_row
from testbed_runtime.history.manifest import tasks_of
from testbed_runtime.history.schema import Trial

GIVING_UP = (JOBMASTER_NAME, RM_NAME)
LONG_NS = 5 * NS
"""A task that ran for longer than this, and finished, has written samples."""
WITH_ATTEMPTS = ("tasks", "channels", "latency", "delivery")
TASK_EVENTS = frozenset((
    "task.restored", "source.end", "gate.connected", "sink.first-record", "sink.end", "function.dropped", "partition.request",
    "latency.markers", "receive-queue.closed", "input-split",
))  # fmt: skip
"""Events of an attempt that was deployed."""
OF_THE_JOBMASTER = frozenset(("input-split",))
"""Those that its TaskManager does not write."""


def check_executions(trial: Trial, entry: Mapping[str, Any]) -> list[Damage]:
    """Return the contradictions between attempts and deployments, at most one for each rule."""
    states = events(trial, "task.state")
    if not states or not recorded_to_its_end(trial):
        return []
    deployed = deployments(trial)
    running = {(e["subject"], e["attempt"]) for e in changes(trial, "task.state", "RUNNING")}
    known = tasks_of(entry) | {task for task, _ in deployed}
    rules = (
        _attempts(trial, deployed), _attempts_of_events(trial, deployed), _attempts_of_waits(trial, deployed, known),
        _places(trial, deployed), _sampled(trial, states), _restarts(trial, deployed), _restored(trial, deployed, running),
        _lost(trial), _older(trial),
    )  # fmt: skip
    return [damage for rule in rules for damage in rule]


def recorded_to_its_end(trial: Trial) -> bool:
    """Whether one JobManager has written all events of the job, until the job ended."""
    changes = events(trial, "job.state", "task.state", "failover.started", "leadership")
    ends = [
        e
        for _, e in changes
        if e["kind"] == "job.state" and parsed(e["data"]).get("to") in TERMINAL_JOB_STATES
    ]
    return (
        bool(ends)
        and len({e["process"] for _, e in changes}) == 1
        and not any(e["kind"] == "leadership" for _, e in changes)
    )


def _attempts(trial: Trial, deployed: Deployed) -> Iterator[Damage]:
    """Yield a row of an attempt that was not deployed."""
    for name in WITH_ATTEMPTS:
        for row, r in distinct(trial, name, "task", "attempt"):
            if (r["task"], r["attempt"]) not in deployed:
                yield Damage(name, "attempt", row, _never(r["task"], r["attempt"]))
                break


def _older(trial: Trial) -> Iterator[Damage]:
    """Yield a sample of an attempt that its TaskManager took long after those of a later attempt of the task had begun."""
    table = trial.table("tasks")
    if not sound(table, *ATTEMPT, "seq", "t_ns"):
        return
    owned = Owned.of(numbered([table], ("process", "task")), ints(table, "seq"))
    attempt, t_ns = ints(table, "attempt")[owned.order], ints(table, "t_ns")[owned.order]
    for start, size in zip(owned.starts.tolist(), owned.sizes.tolist(), strict=True):
        mine, times = attempt[start : start + size], t_ns[start : start + size]
        newest = np.maximum.accumulate(mine)
        since = times[np.searchsorted(newest, newest)]
        if (at := first_true((mine < newest) & (times - since > TOLERANCE_NS))) >= 0:
            row = int(owned.order[start + at])
            task = table.column("task")[row].as_py()
            problem = f"is {mine[at]}, but {task} had been sampled in attempt {newest[at]} for {(times[at] - since[at]) / NS:.1f} s"
            yield Damage("tasks", "attempt", row, problem)
            return


def _never(task: str, attempt: int) -> str:
    return f"is {attempt}, but no attempt {attempt} of {task} was deployed (task.state in events)"


def _attempts_of_events(trial: Trial, deployed: Deployed) -> Iterator[Damage]:
    for row, event in events(trial, *TASK_EVENTS):
        if event["attempt"] >= 0 and (event["subject"], event["attempt"]) not in deployed:
            problem = f"of {event['kind']} {_never(event['subject'], event['attempt'])}"
            yield Damage("events", "attempt", row, problem)
            return


def _attempts_of_waits(trial: Trial, deployed: Deployed, known: set[str]) -> Iterator[Damage]:
    """Yield the wait of a task in an attempt that was not deployed. Other waits have the number of a restart."""
    table = trial.table("waits")
    if not sound(table, "who", "attempt", "process"):
        return
    for row, r in enumerate(table.select(["who", "attempt", "process"]).to_pylist()):
        if r["attempt"] < 0 or r["who"] == JOBMASTER_NAME or (r["who"], r["attempt"]) in deployed:
            continue
        if r["who"] in known:
            yield Damage("waits", "attempt", row, _never(r["who"], r["attempt"]))
        else:
            yield Damage("waits", "who", row, f"is {r['who'][:60]!r}, which the job does not have")
        return


def _places(trial: Trial, deployed: Deployed) -> Iterator[Damage]:
    """Yield a row that another TaskManager wrote than the one to which the attempt was deployed."""
    for name in ("tasks", "channels", "latency"):
        for row, r in distinct(trial, name, "task", "attempt", "process"):
            if there := _elsewhere(deployed, r["task"], r["attempt"], r["process"]):
                yield Damage(name, "process", row, there)
                return
    for row, event in events(trial, *(TASK_EVENTS - OF_THE_JOBMASTER)):
        if there := _elsewhere(deployed, event["subject"], event["attempt"], event["process"]):
            yield Damage(
                "events", "subject", row, f"of {event['kind']} is {event['subject']}: process {there}"
            )
            return
    for row, r in distinct(trial, "waits", "who", "attempt", "process"):
        if there := _elsewhere(deployed, r["who"], r["attempt"], r["process"]):
            yield Damage("waits", "who", row, f"is {r['who']}: process {there}")
            return


def _elsewhere(deployed: Deployed, task: str, attempt: int, process: str) -> str:
    event = deployed.get((task, attempt))
    there = parsed(event["data"]).get("taskmanager") if event is not None else ""
    if not there or there == process:
        return ""
    return f"is {process}, but attempt {attempt} of {task} was deployed to {there} (task.state in events)"


def _sampled(trial: Trial, states: list[tuple[int, dict[str, Any]]]) -> Iterator[Damage]:
    """Yield a task that ran for long and finished, and has no sample."""
    found = _sampled_attempts(trial)
    if not found:
        return
    running: dict[tuple[str, int], int] = {}
    for _, event in states:
        key, state = (event["subject"], event["attempt"]), parsed(event["data"]).get("to")
        if state == "RUNNING":
            running[key] = event["t_ns"]
        elif (
            state == "FINISHED"
            and key not in found
            and event["t_ns"] - running.get(key, event["t_ns"]) > LONG_NS
        ):
            problem = f"lacks {key[0]}, which ran for {(event['t_ns'] - running[key]) / NS:.0f} s as attempt {key[1]} and finished"
            yield Damage("tasks", "task", -1, problem)
            return


def _restarts(trial: Trial, deployed: Deployed) -> Iterator[Damage]:
    """Yield restarts that have one number, that are missing, or that never ended although the job finished."""
    started, failures = events(trial, "failover.started"), events(trial, "failover.failure")
    for kind in ("failover.started", "failover.deployed"):
        seen: set[str] = set()
        for row, event in events(trial, kind):
            if event["subject"] in seen:
                yield Damage(
                    "events", "subject", row, f"of {kind} is {event['subject']}, which another one has too"
                )
                return
            seen.add(event["subject"])
    attempts: dict[str, int] = {}
    for task, _ in deployed:
        attempts[task] = attempts.get(task, 0) + 1
    task = max(attempts, key=lambda t: attempts[t], default="")
    begun = sum(parsed(e["data"]).get("restarted") is True for _, e in failures)
    # a failure may be merged into a restart that has already deployed
    most = max(len(started), len(failures))
    if len(started) < begun:
        problem = (
            f"has {len(started)} failover.started, but {begun} failures restarted the job (failover.failure)"
        )
        yield no_row("events", problem)
    elif task and attempts[task] - 1 > most:
        problem = f"has {len(started)} failover.started and {len(failures)} failover.failure, but {task} was deployed {attempts[task]} times (task.state)"
        yield no_row("events", problem)
    finished = changes(trial, "job.state", "FINISHED")
    if not started or not finished:
        return
    row, last = started[-1]
    if not any(e["subject"] == last["subject"] for _, e in events(trial, "failover.deployed")):
        problem = f"has no failover.deployed of restart {last['subject']}, but the job finished"
        yield Damage("events", "kind", row, problem)


def _restored(trial: Trial, deployed: Deployed, running: set[tuple[str, int]]) -> Iterator[Damage]:
    """Yield an attempt that restored a checkpoint that was not complete, or that did not restore the one that was."""
    done: dict[int, int] = {}
    for r in trial.table("checkpoints").to_pylist():
        if r["state"] == "completed":
            done[r["checkpoint"]] = r["seq"]
    kept = {e["checkpoint"] for _, e in events(trial, "job.restored")}
    restored = events(trial, "task.restored")
    for row, event in restored:
        deployment = deployed.get((event["subject"], event["attempt"]))
        if deployment is None or event["checkpoint"] in kept or event["checkpoint"] < 0:
            continue
        newest = max((number for number, seq in done.items() if seq < deployment["seq"]), default=-1)
        if event["checkpoint"] != newest:
            what = (
                f"when {event['subject']} was deployed, the last complete one was {newest}"
                if newest >= 0
                else "none was complete"
            )
            problem = f"of task.restored is {event['checkpoint']}, but {what} (checkpoints)"
            yield Damage("events", "checkpoint", row, problem)
            return
    names = {(e["subject"], e["attempt"]) for _, e in restored}
    sampled = _sampled_attempts(trial) & running
    for key, deployment in sorted(deployed.items()):
        if key in sampled and key not in names and any(seq < deployment["seq"] for seq in done.values()):
            problem = f"has no task.restored of attempt {key[1]} of {key[0]}, which was deployed after a completed checkpoint"
            yield no_row("events", problem)
            return


def _sampled_attempts(trial: Trial) -> set[tuple[str, int]]:
    return {(r["task"], r["attempt"]) for _, r in distinct(trial, "tasks", "task", "attempt")}


def _lost(trial: Trial) -> Iterator[Damage]:
    """Yield a wait for the heartbeat of a TaskManager that expired and did not lose it."""
    table = trial.table("waits")
    if not sound(table, "process", "who", "what", "kind", "outcome", "t_ns"):
        return
    lost = [
        (e["subject"], parsed(e["data"]).get("detector"), e["t_ns"])
        for _, e in events(trial, "taskmanager.lost")
    ]
    for row, r in enumerate(table.select(["process", "who", "what", "kind", "outcome", "t_ns"]).to_pylist()):
        if r["kind"] != "heartbeat" or r["who"] not in GIVING_UP or r["outcome"] != Outcome.EXPIRED:
            continue
        apart = [abs(t - r["t_ns"]) for s, d, t in lost if s == r["what"] and d == r["who"]]
        allowed = tolerance_ns(trial, r["process"], r["t_ns"])
        if min(apart, default=allowed + 1) > allowed:
            problem = f"is {r['outcome']!r}, but {r['who']} did not lose {r['what']} then (taskmanager.lost in events)"
            yield Damage("waits", "outcome", row, problem)
            return
