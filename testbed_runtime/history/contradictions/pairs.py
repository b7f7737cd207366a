"""Compare rows that are written for the same thing: a wait and the event at its end, an event and what had to precede it.

A process that is killed loses its last rows. These rules hold where one JobManager recorded the job to its end, for attempts that
finished on TaskManagers that were not killed or lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.job.messages import TERMINAL_JOB_STATES
from testbed_runtime.core.trial.sampling import sampling_of
from testbed_runtime.core.values import NS
from testbed_runtime.core.versions import TASKS_INITIALIZE, has
from testbed_runtime.core.waits import JOBMASTER_NAME, RM_NAME, Outcome
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import (
    ATTEMPT,
    SPENT,
    TOLERANCE_NS,
    Attempt,
    Ints,
    Owned,
    Row,
    attempt_of,
    distinct,
    equal,
    first_true,
    ints,
    numbered,
    parsed,
    taskmanager_of,
    vertex_of,
)
from testbed_runtime.history.contradictions.executions import LONG_NS
from testbed_runtime.history.damage import Damage, first_of_each, no_row

EVENT_DATA: Mapping[str, Mapping[str, type]] = {
    "job.state": {"from": str, "to": str, "cause_class": str},
    "task.state": {"from": str, "to": str, "taskmanager": str, "cause_class": str},
    "source.end": {"next": int},
    "sink.first-record": {"latency_ns": int},
    "taskmanager.registered": {"slots": int},
    "taskmanager.lost": {"detector": str, "cause_class": str},
    "failover.started": {"cause_class": str, "region": list, "taskmanager": str, "detector": str},
    "failover.failure": {
        "cause_class": str, "task": str, "taskmanager": str, "detector": str, "ended": int, "restarted": bool,
    },
    "failover.attempt": {"attempt": int},
    "partition.request": {"partition": str, "request": int, "backoff_s": float},
    "network.buffers": {"used|leaked": int, "total|leaked": int},
    "network.pools": {"pools": list, "free": int, "others": int},
    "backpressure.sampled": {"samples": int, "backpressured": int},
    "rpc.timeout": {"method": str, "timeout_s": float, "peer": str},
    "iteration.superstep": {"superstep": int, "count": int, "ended": str},
    "latency.markers": {"source": str, "ns": list},
    "receive-queue.closed": {"dropped": int, "largest_bytes": int},
    "source.rate": {"records_per_second": float},
    "loop.stall": {"seconds": float},
}  # fmt: skip
"""The part of the data in `history.schema.EVENT_KINDS` that these events always have, also in runs of earlier versions (no `wait`). Names with | between
them are alternatives."""
ENDS_WITH = {"restore": "task.restored", "first-record": "sink.first-record"}
"""The event of a task that each of these waits of a task ends with."""
OF_RESTART = ("failover.started", "failover.failure", "failover.cancelled", "failover.slots", "failover.attempt")  # fmt: skip
"""Events of each restart that was deployed."""
WAIT_OF_RESTART = {"failover.cancelled": "cancellation", "failover.slots": "slot"}
"""The wait of the JobMaster that these events end."""

BUFFERS = "network.buffers"
ABOUT_BUFFERS = (BUFFERS, "network.pools")
"""Events of each TaskManager while it has tasks, when they change. The first is a change."""
UNSAMPLED = 20
"""A process that runs takes a sample of a task within this many intervals."""
SAMPLES = 10
"""If a task receives records during this many sampling intervals, at least one of its channels has a sample."""


def check_pairs(trial: CheckedTrial) -> list[Damage]:
    """Return the rows whose counterpart is missing, at most one for each rule."""
    found = [*_unrecorded(trial), *_emptied(trial)]
    if not trial.deployed or not trial.waits():
        return found
    found += first_of_each(_data(trial), _stalls(trial), _given_up(trial))
    if not trial.recorded_to_its_end:
        return found
    rules = (
        _ends, _sources, _inputs, _deployments, _restarts, _checkpoints, _losses, _peers, _unsampled, _unmeasured, _silent, _unbuffered,
        _causes,
    )  # fmt: skip
    return found + first_of_each(
        *(rule(trial) for rule in rules), *([_spent(trial)] if trial.one_clock else [])
    )


def _unrecorded(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield events that are missing as a whole: the states of the tasks or the end of the job."""
    waits, drained = trial.waits(), trial.drained
    if not trial.deployed and any(r["kind"] == "deployment" and r["option"] for _, r in waits):
        yield no_row("events", "has no task.state, but tasks were deployed (waits)")
    elif not trial.deployed and drained and any(r["process"].startswith("tm-") for _, r in waits):
        yield no_row("events", "has no task.state, but tasks waited and were drained (waits, manifest)")
    if not trial.deployed or not waits:
        return
    ended = {e["data"].get("to") for _, e in trial.events("job.state")} & TERMINAL_JOB_STATES
    if drained and not ended:
        yield no_row("events", "has no job.state at the end of the job, which was drained (manifest)")
    if not trial.events("trial.phase"):
        yield no_row("events", "has no trial.phase")


def _emptied(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield tables without rows although tasks finished, or ran, for which the JobManager had waited. The runner, if there was one,
    recorded the phases."""
    ended, ran = (trial.changes("task.state", state) for state in ("FINISHED", "RUNNING"))
    needed = {"waits", "tasks"} if ended else {"waits"} if ran else set()
    needed = needed if trial.events("trial.phase") else set()
    lacking = {name for name, table in trial.tables.items() if not len(table)}
    if needed and "channels" in lacking and trial.edges and _reading(trial):
        needed.add("channels")
    if trial.waits("checkpoint"):
        needed.add("checkpoints")
    for name in sorted(needed & lacking):
        yield Damage(
            name, "seq", -1, "has no rows, but tasks ran, finished or waited for them (events, waits)"
        )


def _reading(trial: CheckedTrial) -> bool:
    """Whether an attempt received records for so long that its channels were sampled. A short blocking result is read between
    two samples."""
    tasks, least_ns = trial.table("tasks"), SAMPLES * sampling_of(len(trial.tasks)).channels_s * NS
    spans: dict[tuple[str, str, int], tuple[int, int, int]] = {}
    for r in tasks.select([*ATTEMPT, "t_ns", "records_in"]).to_pylist() if len(tasks) else ():
        if r["records_in"]:
            owner, t_ns = (r["process"], r["task"], r["attempt"]), r["t_ns"]
            begun, grew, most = spans.get(owner, (t_ns, t_ns, 0))
            spans[owner] = (begun, t_ns, r["records_in"]) if r["records_in"] > most else (begun, grew, most)
    return any(grew - begun >= least_ns for begun, grew, _ in spans.values())


def _data(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield an event whose data lacks what every event of its kind has, or has it with another type."""
    for row, r in trial.distinct("events", "kind", "data"):
        for name, kind in EVENT_DATA.get(r["kind"], {}).items():
            found = parsed(r["data"])
            values = [found[one] for one in name.split("|") if one in found]
            problem = ""
            if not values:
                problem = f"no {name}"
            elif kind is int and _is(values[0], int) and values[0] < 0:
                problem = f"{values[0]} as {name}, which is below 0"
            elif not _is(values[0], kind):
                problem = f"{str(values[0])[:60]!r} as {name}, which is no {kind.__name__}"
            if problem:
                yield Damage("events", "data", row, f"of {r['kind']} has {problem}")


def _is(value: object, kind: type) -> bool:
    """Whether a value of a JSON object has this type. An integer is accepted as a float, a bool is not a number."""
    return type(value) is kind or (kind is float and type(value) is int)


def _ends(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a wait without the event that ends it, and such an event without its wait. A sink that received no record waited for its first
    one until it was closed."""
    for kind, ending in ENDS_WITH.items():
        ended, waited = trial.attempts_with(ending), trial.attempts_that_waited(kind)
        cancelled = [r for _, r in trial.waits(kind) if r["outcome"] == Outcome.CANCELLED]
        never = {(r["who"], r["attempt"]) for r in cancelled if kind == "first-record"}
        for task, attempt in sorted((waited.keys() - ended.keys() - never) & trial.finished):
            problem = f"is {kind!r}, but there is no {ending} of attempt {attempt} of {task} (events)"
            yield Damage("waits", "kind", waited[task, attempt], problem)
        for task, attempt in sorted(never & ended.keys() & trial.finished):
            problem = f"is 'cancelled', but {task} received its first record in attempt {attempt} ({ending} in events)"
            yield Damage("waits", "outcome", waited[task, attempt], problem)
        for task, attempt in sorted((ended.keys() - waited.keys()) & trial.finished):
            yield no_row("waits", f"has no {kind} of attempt {attempt} of {task} ({ending} in events)")


def _sources(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a source that finished without source.end, and a sink that finished without sink.end."""
    inner = {target for _, target, _ in trial.edges}
    sources = {vertex.name for vertex in trial.vertices} - inner
    sinks = {vertex.name for vertex in trial.vertices if vertex.role == "sink"} & inner
    for kind, names in (("source.end", sources), ("sink.end", sinks)):
        for task, attempt in sorted(trial.finished - trial.attempts_with(kind).keys()):
            if vertex_of(task) in names:
                problem = f"has no {kind} of attempt {attempt} of {task}, which finished (task.state)"
                yield no_row("events", problem)


def _inputs(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a task that finished although its gate was not connected, and one that received records without a request for a partition, which
    its process writes before, unless they came from a checkpoint. Another channel of its gate may never be connected."""
    inner = {target for _, target, _ in trial.edges}
    connected, requested = (trial.attempts_with(kind) for kind in ("gate.connected", "partition.request"))
    waited = trial.attempts_that_waited("partition")
    for task, attempt in sorted(trial.finished | _received(trial)):
        if vertex_of(task) not in inner:
            continue
        ended = (task, attempt) in trial.finished
        of = f"of attempt {attempt} of {task}, which {'finished (task.state)' if ended else 'received records (tasks)'}"
        if ended and (task, attempt) not in connected:
            yield no_row("events", f"has no gate.connected {of}")
        elif (task, attempt) not in requested:
            yield no_row("events", f"has no partition.request {of}")
        elif ended and (task, attempt) not in waited:
            yield no_row("waits", f"has no partition {of}")


def _received(trial: CheckedTrial) -> set[Attempt]:
    """Return the attempts that had received records when they were sampled, unless a checkpoint may have had them."""
    table = trial.table("tasks")
    some = distinct(table.filter(pc.greater(table.column("records_in"), 0)), "task", "attempt")
    return set() if trial.has_channel_state else {(r["task"], r["attempt"]) for _, r in some}


def _deployments(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield an attempt without a wait for its deployment, or that was deployed to a TaskManager that had not registered. One that
    ended while DEPLOYING may not have been submitted yet."""
    ended = [e for to in ("CANCELING", "CANCELED", "FAILED") for e in trial.changes("task.state", to)]
    unsubmitted = {attempt_of(e) for e in ended if e["data"].get("from") == "DEPLOYING"}
    registered = {e["subject"] for _, e in trial.events("taskmanager.registered")}
    waited = {(r["what"], r["attempt"]) for _, r in trial.waits("deployment")}
    for (task, attempt), event in sorted(trial.deployed.items()):
        if (owner := taskmanager_of(event)) not in registered:
            problem = f"has no taskmanager.registered of {owner}, to which {task} was deployed (task.state)"
            yield no_row("events", problem)
        if (task, attempt) not in waited | unsubmitted:
            yield no_row("waits", f"has no deployment of attempt {attempt} of {task} (task.state in events)")
    named = {name for _, r in trial.waits("registration") for name in (r["who"], r["what"])}
    used = {taskmanager_of(trial.deployed[key]) for key in trial.finished}
    used |= {r["process"] for _, r in trial.distinct("tasks", "process")}
    for name in sorted((registered & used) - named):
        yield no_row("waits", f"has no registration of {name} (taskmanager.registered in events)")


def _restarts(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a restart that was deployed without what precedes that, an event of a restart that did not start, and waits of one."""
    kinds = (*OF_RESTART, "failover.deployed")
    rows = {kind: {e["subject"]: row for row, e in trial.events(kind)} for kind in kinds}
    started = rows["failover.started"]
    for kind in OF_RESTART:
        if missing := rows["failover.deployed"].keys() - rows[kind].keys():
            yield no_row("events", f"has no {kind} of restart {min(missing)} (failover.deployed)")
    for kind, found in rows.items():
        if kind != "failover.failure" and (more := found.keys() - started.keys()):
            problem = f"of {kind} is {min(more)}, but no such restart started"
            yield Damage("events", "subject", found[min(more)], problem)
    for kind, wait in WAIT_OF_RESTART.items():
        ends = [r["t_ns"] for _, r in trial.waits(wait)]
        for _, event in trial.events(kind):
            if not trial.happened(event["process"], event["t_ns"], ends):
                problem = f"has no {wait} that restart {event['subject']} ended ({kind} in events)"
                yield no_row("waits", problem)
    for row, r in trial.waits("cancellation", "restart-delay", "fencing"):
        # a TaskManager records the attempt of the task that it cancels
        if not r["process"].startswith("tm-") and str(r["attempt"]) not in started:
            problem = f"of this {r['kind']} wait is {r['attempt']}, but no such restart started"
            yield Damage("waits", "attempt", row, problem)


def _causes(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a restart that started for another cause than the failures before it."""
    failures = grouped((event["subject"], event) for _, event in trial.events("failover.failure"))
    for row, event in trial.events("failover.started"):
        before, of = failures.get(event["subject"], [event]), f"of failover.started {event['subject']}"
        if event["text"] not in [e["text"] for e in before]:
            problem = f"{of} is not that of any failover.failure of it: {event['text'][:60]!r}"
            yield Damage("events", "text", row, problem)
        elif _blamed(event) not in map(_blamed, before):
            problem = f"{of} has another cause than each failover.failure of it"
            yield Damage("events", "data", row, problem)


def _blamed(event: Row) -> tuple[Any, ...]:
    return tuple(event["data"].get(name) for name in ("cause_class", "taskmanager", "detector"))


def _checkpoints(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield completed checkpoints without a wait for them."""
    done = Counter((r["process"], f"checkpoint {r['checkpoint']}") for r in trial.completed)
    for kind in ("checkpoint", "completion"):
        if missing := done - Counter((r["process"], r["what"]) for _, r in trial.waits(kind)):
            yield no_row("waits", f"has no {kind} for {min(missing)[1]}, which was completed (checkpoints)")


def _stalls(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a wait for a stalled process without its event, which is the row before, and an event without its wait, if the process
    wrote other rows after it. Their times may differ by another stall."""
    stalled = {(e["process"], e["seq"]): row for row, e in trial.events("loop.stall")}
    waited = [(r["process"], r["seq"] - 1) for _, r in trial.waits("stalled")]
    for process, seq in waited:
        if (process, seq) not in stalled:
            yield no_row("events", f"has no loop.stall of {process}, which has a wait of that kind (waits)")
    for (process, seq), row in stalled.items():
        if (process, seq) not in waited and _went_on(trial, process, seq):
            yield no_row("waits", f"has no stall of {process} (loop.stall in events, row {row})")


def _went_on(trial: CheckedTrial, process: str, seq: int) -> bool:
    """Whether the process wrote more than one row after this one."""
    tables = [t for t in trial.tables.values() if {"process", "seq"} <= {*t.column_names}]
    return any(bool((ints(t, "seq")[equal(t, "process", process)] > seq + 1).any()) for t in tables)


def _given_up(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a failure because of a TaskManager that a detector gave up, without the event of its loss, which is written before. A JobMaster
    that does not reach a TaskManager to deploy a task does not give it up."""
    lost = {event["subject"] for _, event in trial.events("taskmanager.lost")}
    for row, event in trial.events("failover.failure"):
        data = event["data"]
        detector, gone = data.get("detector"), str(data.get("taskmanager") or "")
        given_up = detector == RM_NAME or (detector == JOBMASTER_NAME and data.get("wait") == "heartbeat")
        if given_up and gone and gone not in lost:
            problem = f"has no taskmanager.lost of {gone}, which a failover.failure names (row {row})"
            yield no_row("events", problem)


def _losses(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a TaskManager that was lost without a wait for its heartbeat."""
    expired = [r for _, r in trial.waits("heartbeat") if r["outcome"] == Outcome.EXPIRED]
    for row, event in trial.events("taskmanager.lost"):
        data = event["data"]
        mine = (data.get("detector"), event["subject"])
        ends = [r["t_ns"] for r in expired if (r["who"], r["what"]) == mine]
        if data.get("wait") == "heartbeat" and not trial.happened(event["process"], event["t_ns"], ends):
            problem = f"of taskmanager.lost is not the end of a heartbeat of {event['subject']} (waits)"
            yield Damage("events", "t_ns", row, problem)


def _peers(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a channel that is on no edge of the job."""
    known, tasks = {(source, target) for source, target, _ in trial.edges}, trial.tasks
    for _, r in trial.distinct("channels", "side", "task", "peer") if known else ():
        ends = (r["task"], r["peer"]) if r["side"] == "producer" else (r["peer"], r["task"])
        if tuple(map(vertex_of, ends)) not in known or not tasks.issuperset(ends):
            problem = f"is {r['peer'][:60]!r} in a channel of {r['task']} ({r['side']}), but the job has no such edge"
            yield Damage("channels", "peer", -1, problem)


def _spent(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield an attempt whose busy, back-pressured and idle times add up to more than the time since its deployment."""
    table = trial.table("tasks")
    begun = ints(table, "t_ns") - sum(ints(table, c) for c in SPENT)
    attempts = trial.places("tasks", "task", "attempt")
    for key, rows in sorted(attempts.items(), key=lambda pair: int(pair[1][0])):
        row = int(rows[np.argmin(begun[rows])])
        early = trial.deployed[key]["t_ns"] - int(begun[row]) if key in trial.deployed else 0
        if early > TOLERANCE_NS:
            column = max(SPENT, key=lambda c: table.column(c)[row].as_py())
            problem = f"makes {key[0]} spend {early / NS:.1f} s more than passed since its deployment (task.state in events)"
            yield Damage("tasks", column, row, problem)


def _unsampled(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield an attempt that has no sample for a long time in which its process wrote rows about its channels or latencies. A task is
    sampled while it runs; its channels are sampled also while it reads restored input before that (INITIALIZING, which tasks of 1.12 do
    not report)."""
    reported = has(trial.options.flink_version, TASKS_INITIALIZE)
    began = trial.changes("task.state", "INITIALIZING") if reported else trial.deployed.values()
    initialized = {attempt_of(event) for event in began}
    running = {attempt_of(event): event["t_ns"] for event in trial.changes("task.state", "RUNNING")}
    interval_ns = int(sampling_of(len(trial.tasks)).sample_s * NS)
    late_ns, pause_ns = TOLERANCE_NS + interval_ns, TOLERANCE_NS + UNSAMPLED * interval_ns
    sampled = _times(trial.table("tasks"))
    for name in ("channels", "latency") if "tasks" in trial.tables else ():
        for (process, task, attempt), written in _times(trial.table(name)).items():
            since = running.get((task, attempt), written[-1] + 1 if (task, attempt) in initialized else 0)
            times = written[written >= since]
            if not len(times):
                continue
            samples = sampled.get((process, task, attempt), times[:1])
            after = np.searchsorted(samples, times)
            begun = np.where(after > 0, samples[np.maximum(after - 1, 0)], times[0])
            alone = times - begun > late_ns
            ended = samples[np.minimum(after, len(samples) - 1)]
            alone &= (after == len(samples)) | (ended - times > TOLERANCE_NS) & (ended - begun > pause_ns)
            for at in first_true(alone):
                problem = f"of the last sample of attempt {attempt} of {task} is {(times[at] - begun[at]) / NS:.1f} s before its next row in {name} ({process})"
                yield Damage("tasks", "t_ns", -1, problem)


def _times(table: pa.Table) -> dict[tuple[str, str, int], Ints]:
    """Map each attempt to the times of its rows, in ascending order."""
    owned = Owned.of(numbered([table], ATTEMPT), ints(table, "t_ns"))
    firsts = table.select(ATTEMPT).take(pa.array(owned.order[owned.starts])).to_pylist()
    times = np.split(ints(table, "t_ns")[owned.order], owned.starts[1:])
    return {(r["process"], r["task"], r["attempt"]): t for r, t in zip(firsts, times, strict=False)}


def _silent(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a TaskManager that wrote no row at all, although a task ran on it for longer than LONG_NS."""
    wrote = {r["process"] for name in trial.tables for _, r in trial.distinct(name, "process")}
    running: dict[str, int] = {}
    for _, event in trial.events("task.state"):
        data = event["data"]
        lasted = event["t_ns"] - running.get(event["subject"], event["t_ns"])
        if data.get("to") == "RUNNING":
            running[event["subject"]] = event["t_ns"]
        elif data.get("from") == "RUNNING" and lasted > LONG_NS and taskmanager_of(event) not in wrote:
            problem = f"lacks {taskmanager_of(event)}, on which {event['subject']} ran for {lasted / NS:.0f} s (task.state in events)"
            yield Damage("tasks", "process", -1, problem)


def _unbuffered(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a TaskManager that sampled a task many times, but did not record its network buffers or their pools. It reads them with
    every tenth sample."""
    wrote = {(r["kind"], r["process"]) for _, r in trial.distinct("events", "kind", "process")}
    known = {kind for kind, _ in wrote}  # earlier versions recorded no pools
    kinds = [kind for kind in ABOUT_BUFFERS if kind == BUFFERS or kind in known]
    samples = trial.places("tasks", *ATTEMPT) if trial.edges else {}
    for (process, task, _), rows in sorted(samples.items()):
        for kind in kinds if len(rows) >= UNSAMPLED else ():
            if (kind, process) not in wrote:
                problem = f"has no {kind} of {process}, which took {len(rows)} samples of {task} (tasks)"
                yield no_row("events", problem)


def _unmeasured(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a sink that finished and received records, and measured no latency."""
    if "latency" not in trial.tables:  # it is read in parts
        return
    measured = {(r["task"], r["attempt"]) for _, r in trial.distinct("latency", *ATTEMPT)}
    table = trial.table("tasks")
    received = equal(table, "role", "sink") & (ints(table, "records_in") > 0)
    for _, r in distinct(table.filter(pa.array(received)), *ATTEMPT):
        if (r["task"], r["attempt"]) in trial.finished - measured:
            problem = f"lacks attempt {r['attempt']} of {r['task']}, which received records (tasks)"
            yield Damage("latency", "task", -1, problem)
