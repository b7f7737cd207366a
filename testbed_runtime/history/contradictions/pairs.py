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

from testbed_runtime.core.job.messages import TERMINAL_JOB_STATES
from testbed_runtime.core.trial.sampling import sampling_of
from testbed_runtime.core.waits import JOBMASTER_NAME, RM_NAME, Outcome
from testbed_runtime.history.columns import (
    ATTEMPT,
    NS,
    TOLERANCE_NS,
    Attempt,
    Deployed,
    Ints,
    Owned,
    Waits,
    changes,
    deployments,
    distinct,
    ended_process,
    equal,
    events,
    first_true,
    ints,
    numbered,
    parsed,
    places_of,
    sound,
    tolerance_ns,
    waits_of,
)
from testbed_runtime.history.contradictions.exchange import has_channel_state
from testbed_runtime.history.contradictions.executions import LONG_NS, recorded_to_its_end
from testbed_runtime.history.damage import Damage, first_of_each, no_row
from testbed_runtime.history.manifest import edges, tasks_of, vertices
from testbed_runtime.history.schema import Trial

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
OF_RESTART = (
    "failover.started",
    "failover.failure",
    "failover.cancelled",
    "failover.slots",
    "failover.attempt",
)
"""Events of each restart that was deployed."""
WAIT_OF_RESTART = {"failover.cancelled": "cancellation", "failover.slots": "slot"}
"""The wait of the JobMaster that these events end."""

BUFFERS = "network.buffers"
ABOUT_BUFFERS = (BUFFERS, "network.pools")
"""Events of each TaskManager while it has tasks, when they change. The first is a change."""
UNSAMPLED = 20
"""A process that runs takes a sample of a task within this many intervals."""
SAMPLES = 10
"""A task that receives records during so many intervals between samples of its channels has at least one."""

Row = Mapping[str, Any]


def check_pairs(trial: Trial, entry: Mapping[str, Any], *, one_clock: bool) -> list[Damage]:
    """Return the rows whose counterpart is missing, at most one for each rule."""
    deployed, waits = deployments(trial), waits_of(trial)
    found = list(_unrecorded(trial, entry, waits, deployed)) + list(_emptied(trial, entry, waits))
    if not deployed or not waits:
        return found
    found += first_of_each((_data(trial), _stalls(trial, waits), _given_up(trial)))
    if not recorded_to_its_end(trial):
        return found
    ended = {(e["subject"], e["attempt"]) for e in changes(trial, "task.state", "FINISHED")}
    gone = {e["subject"] for _, e in events(trial, "taskmanager.lost")}
    gone |= {ended_process(e) for _, e in events(trial, "process.exit") if parsed(e["data"]).get("signal")}
    finished = {
        a for a in ended & deployed.keys() if str(parsed(deployed[a]["data"]).get("taskmanager")) not in gone
    }
    rules = [
        _ends(trial, waits, finished), _sources(trial, entry, finished), _inputs(trial, entry, waits, finished), _deployments(trial, waits, deployed, finished),
        _restarts(trial, waits), _checkpoints(trial, waits), _losses(trial, waits), _peers(trial, entry), _unsampled(trial, entry), _unmeasured(trial, finished),
        _silent(trial, deployed), _unbuffered(trial, entry), _causes(trial),
    ]  # fmt: skip
    if one_clock:
        rules.append(_spent(trial, deployed))
    return found + first_of_each(rules)


def _unrecorded(trial: Trial, entry: Mapping[str, Any], waits: Waits, deployed: Deployed) -> Iterator[Damage]:
    """Yield events that are missing as a whole: the states of the tasks or the end of the job."""
    if not deployed and any(r["kind"] == "deployment" and r["option"] for _, r in waits):
        yield no_row("events", "has no task.state, but tasks were deployed (waits)")
    elif (
        not deployed
        and entry.get("drained") is True
        and any(r["process"].startswith("tm-") for _, r in waits)
    ):
        yield no_row("events", "has no task.state, but tasks waited and were drained (waits, manifest)")
    if not deployed or not waits:
        return
    ended = {parsed(e["data"]).get("to") for _, e in events(trial, "job.state")} & TERMINAL_JOB_STATES
    if entry.get("drained") is True and not ended:
        yield no_row("events", "has no job.state at the end of the job, which was drained (manifest)")
    if not events(trial, "trial.phase"):
        yield no_row("events", "has no trial.phase")


def _emptied(trial: Trial, entry: Mapping[str, Any], waits: Waits) -> Iterator[Damage]:
    """Yield tables without rows although tasks finished. The runner, if there was one, recorded the phases."""
    ended = changes(trial, "task.state", "FINISHED")
    needed = {"waits", "tasks"} if ended and events(trial, "trial.phase") else set()
    if needed and any(edges(entry)) and "channels" in trial.tables and not len(trial.table("channels")):
        needed |= {"channels"} if _reading(trial, entry) else set()
    if any(r["kind"] == "checkpoint" for _, r in waits):
        needed.add("checkpoints")
    for name in sorted(needed & trial.tables.keys()):
        if not len(trial.table(name)):
            yield Damage(
                name, "seq", -1, "has no rows, but tasks finished or waited for them (events, waits)"
            )


def _reading(trial: Trial, entry: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Return the attempts that received records for so long that their channels were sampled. A short blocking result is read between
    two samples."""
    tasks, least_ns = trial.table("tasks"), SAMPLES * sampling_of(len(tasks_of(entry))).channels_s * NS
    if not sound(tasks, "t_ns", "records_in", *ATTEMPT):
        return []
    spans: dict[tuple[str, str, int], tuple[int, int, int]] = {}
    for r in tasks.select([*ATTEMPT, "t_ns", "records_in"]).to_pylist():
        if r["records_in"]:
            owner, t_ns = (r["process"], r["task"], r["attempt"]), r["t_ns"]
            begun, grew, most = spans.get(owner, (t_ns, t_ns, 0))
            spans[owner] = (begun, t_ns, r["records_in"]) if r["records_in"] > most else (begun, grew, most)
    return [owner for owner, (begun, grew, _) in spans.items() if grew - begun >= least_ns]


def _data(trial: Trial) -> Iterator[Damage]:
    """Yield an event whose data lacks what every event of its kind has, or has it with another type."""
    for row, r in distinct(trial, "events", "kind", "data"):
        expected = EVENT_DATA.get(r["kind"], {})
        found = parsed(r["data"]) if expected else {}
        for name, kind in expected.items():
            values = [found[one] for one in name.split("|") if one in found]
            if not values:
                yield Damage("events", "data", row, f"of {r['kind']} has no {name}")
            elif kind is int and _is(values[0], int) and values[0] < 0:
                yield Damage(
                    "events", "data", row, f"of {r['kind']} has {values[0]} as {name}, which is below 0"
                )
            elif not _is(values[0], kind):
                problem = f"of {r['kind']} has {str(values[0])[:60]!r} as {name}, which is no {kind.__name__}"
                yield Damage("events", "data", row, problem)


def _is(value: object, kind: type) -> bool:
    """Whether a value of a JSON object has this type. An integer is accepted as a float, a bool is not a number."""
    return type(value) is kind or (kind is float and type(value) is int)


def _ends(trial: Trial, waits: Waits, finished: set[Attempt]) -> Iterator[Damage]:
    """Yield a wait without the event that ends it, and such an event without its wait. A sink that received no record waited for its first
    one until it was closed."""
    for kind, ending in ENDS_WITH.items():
        of_kind = [(row, r) for row, r in waits if r["kind"] == kind]
        ended = {(e["subject"], e["attempt"]): row for row, e in events(trial, ending)}
        closed = {(r["who"], r["attempt"]) for _, r in of_kind if r["outcome"] == Outcome.CANCELLED}
        waited = {(r["who"], r["attempt"]): row for row, r in of_kind}
        never = closed if kind == "first-record" else set()
        for task, attempt in sorted((waited.keys() - ended.keys() - never) & finished):
            problem = f"is {kind!r}, but there is no {ending} of attempt {attempt} of {task} (events)"
            yield Damage("waits", "kind", waited[task, attempt], problem)
        for task, attempt in sorted(never & ended.keys() & finished):
            problem = f"is 'cancelled', but {task} received its first record in attempt {attempt} ({ending} in events)"
            yield Damage("waits", "outcome", waited[task, attempt], problem)
        for task, attempt in sorted((ended.keys() - waited.keys()) & finished):
            yield no_row("waits", f"has no {kind} of attempt {attempt} of {task} ({ending} in events)")


def _sources(trial: Trial, entry: Mapping[str, Any], finished: set[Attempt]) -> Iterator[Damage]:
    """Yield a source that finished without source.end, and a sink that finished without sink.end."""
    inner = {target for _, target, _ in edges(entry)}
    sources = {v["name"] for v in vertices(entry)} - inner
    sinks = {v["name"] for v in vertices(entry) if v.get("role") == "sink"} & inner
    for kind, names in (("source.end", sources), ("sink.end", sinks)):
        ended = {(e["subject"], e["attempt"]) for _, e in events(trial, kind)}
        for task, attempt in sorted(finished - ended):
            if task.rpartition("-")[0] in names:
                problem = f"has no {kind} of attempt {attempt} of {task}, which finished (task.state)"
                yield no_row("events", problem)


def _inputs(trial: Trial, entry: Mapping[str, Any], waits: Waits, finished: set[Attempt]) -> Iterator[Damage]:
    """Yield a task that finished although its gate was not connected, and one that received records without a request for a partition, which
    its process writes before, unless they came from a checkpoint. Another channel of its gate may never be connected."""
    inner = {target for _, target, _ in edges(entry)}
    connected = {(e["subject"], e["attempt"]) for _, e in events(trial, "gate.connected")}
    requested = {(e["subject"], e["attempt"]) for _, e in events(trial, "partition.request")}
    waited = {(r["who"], r["attempt"]) for _, r in waits if r["kind"] == "partition"}
    received = set[Attempt]() if has_channel_state(trial) else _received(trial)
    for task, attempt in sorted(finished | received):
        ended = (task, attempt) in finished
        of = f"of attempt {attempt} of {task}, which {'finished (task.state)' if ended else 'received records (tasks)'}"
        if task.rpartition("-")[0] not in inner:
            continue
        if ended and (task, attempt) not in connected:
            yield no_row("events", f"has no gate.connected {of}")
        elif (task, attempt) not in requested:
            yield no_row("events", f"has no partition.request {of}")
        elif ended and (task, attempt) not in waited:
            yield no_row("waits", f"has no partition {of}")


def _received(trial: Trial) -> set[Attempt]:
    """Return the attempts that had received records when they were sampled."""
    table = trial.table("tasks")
    if not sound(table, "records_in", "task", "attempt"):
        return set()
    some = table.select(["task", "attempt"]).filter(pc.greater(table.column("records_in"), 0))
    return {(r["task"], r["attempt"]) for r in some.group_by(["task", "attempt"]).aggregate([]).to_pylist()}


def _deployments(trial: Trial, waits: Waits, deployed: Deployed, finished: set[Attempt]) -> Iterator[Damage]:
    """Yield an attempt without a wait for its deployment, or that was deployed to a TaskManager that had not registered. One that
    ended while DEPLOYING may not have been submitted yet."""
    unsubmitted = {
        (e["subject"], e["attempt"])
        for _, e in events(trial, "task.state")
        if (data := parsed(e["data"])).get("from") == "DEPLOYING"
        and data.get("to") in ("CANCELING", "CANCELED", "FAILED")
    }
    registered = {e["subject"]: row for row, e in events(trial, "taskmanager.registered")}
    waited = {(r["what"], r["attempt"]) for _, r in waits if r["kind"] == "deployment"}
    for (task, attempt), event in sorted(deployed.items()):
        data = parsed(event["data"])
        if str(data.get("taskmanager")) not in registered:
            problem = f"has no taskmanager.registered of {data.get('taskmanager')}, to which {task} was deployed (task.state)"
            yield no_row("events", problem)
        if (task, attempt) not in waited | unsubmitted:
            yield no_row("waits", f"has no deployment of attempt {attempt} of {task} (task.state in events)")
    named = {name for _, r in waits if r["kind"] == "registration" for name in (r["who"], r["what"])}
    used = {str(parsed(deployed[key]["data"]).get("taskmanager")) for key in finished}
    used |= {r["process"] for _, r in distinct(trial, "tasks", "process")}
    for name in sorted((registered.keys() & used) - named):
        yield no_row("waits", f"has no registration of {name} (taskmanager.registered in events)")


def _restarts(trial: Trial, waits: Waits) -> Iterator[Damage]:
    """Yield a restart that was deployed without what precedes that, an event of a restart that did not start, and waits of one."""
    rows = {
        kind: {e["subject"]: row for row, e in events(trial, kind)}
        for kind in (*OF_RESTART, "failover.deployed")
    }
    started = rows["failover.started"]
    for kind in OF_RESTART:
        if missing := rows["failover.deployed"].keys() - rows[kind].keys():
            yield no_row("events", f"has no {kind} of restart {min(missing)} (failover.deployed)")
    for kind, found in rows.items():
        if kind != "failover.failure" and (more := found.keys() - started.keys()):
            yield Damage(
                "events",
                "subject",
                found[min(more)],
                f"of {kind} is {min(more)}, but no such restart started",
            )
    for kind, wait in WAIT_OF_RESTART.items():
        ends = [r["t_ns"] for _, r in waits if r["kind"] == wait]
        for _, event in events(trial, kind):
            allowed = tolerance_ns(trial, event["process"], event["t_ns"])
            if min((abs(end - event["t_ns"]) for end in ends), default=allowed + 1) > allowed:
                yield no_row(
                    "waits", f"has no {wait} that restart {event['subject']} ended ({kind} in events)"
                )
    for row, r in waits:
        if r["kind"] not in ("cancellation", "restart-delay", "fencing") or r["process"].startswith("tm-"):
            continue  # a TaskManager records the attempt of the task that it cancels
        if str(r["attempt"]) not in started:
            yield Damage(
                "waits",
                "attempt",
                row,
                f"of this {r['kind']} wait is {r['attempt']}, but no such restart started",
            )


def _causes(trial: Trial) -> Iterator[Damage]:
    """Yield a restart that started for another cause than the failures before it."""
    failures: dict[str, list[tuple[Any, ...]]] = {}
    said: dict[str, list[str]] = {}
    for _, event in events(trial, "failover.failure"):
        failures.setdefault(event["subject"], []).append(_blamed(event))
        said.setdefault(event["subject"], []).append(event["text"])
    for row, event in events(trial, "failover.started"):
        if event["text"] not in said.get(event["subject"], [event["text"]]):
            problem = (
                f"of failover.started {event['subject']} is not that of any failover.failure of it: "
                f"{event['text'][:60]!r}"
            )
            yield Damage("events", "text", row, problem)
        elif _blamed(event) not in failures.get(event["subject"], [_blamed(event)]):
            problem = (
                f"of failover.started {event['subject']} has another cause than each failover.failure of it"
            )
            yield Damage("events", "data", row, problem)


def _blamed(event: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(parsed(event["data"]).get(name) for name in ("cause_class", "taskmanager", "detector"))


def _checkpoints(trial: Trial, waits: Waits) -> Iterator[Damage]:
    """Yield completed checkpoints without a wait for them."""
    table = trial.table("checkpoints")
    if not sound(table, "state", "process", "checkpoint"):
        return
    rows = table.select(["state", "process", "checkpoint"]).to_pylist()
    done = Counter((r["process"], f"checkpoint {r['checkpoint']}") for r in rows if r["state"] == "completed")
    for kind in ("checkpoint", "completion"):
        waited = Counter((r["process"], r["what"]) for _, r in waits if r["kind"] == kind)
        if missing := done - waited:
            yield no_row("waits", f"has no {kind} for {min(missing)[1]}, which was completed (checkpoints)")


def _stalls(trial: Trial, waits: Waits) -> Iterator[Damage]:
    """Yield a wait for a stalled process without its event, which is the row before, and an event without its wait, if the process
    wrote other rows after it. Their times may differ by another stall."""

    def together(wait: Row, event: Row) -> bool:
        return (wait["process"], wait["seq"]) == (event["process"], event["seq"] + 1)

    stalled = events(trial, "loop.stall")
    waited = [r for _, r in waits if r["kind"] == "stalled"]
    for wait in waited:
        if not any(together(wait, event) for _, event in stalled):
            problem = f"has no loop.stall of {wait['process']}, which has a wait of that kind (waits)"
            yield no_row("events", problem)
    for row, event in stalled:
        if not any(together(wait, event) for wait in waited) and _went_on(trial, event):
            problem = f"has no stall of {event['process']} (loop.stall in events, row {row})"
            yield no_row("waits", problem)


def _went_on(trial: Trial, event: Row) -> bool:
    """Whether the process wrote more than one row after this event."""
    last = 0
    for table in trial.tables.values():
        if sound(table, "process", "seq"):
            last = max(
                last, int(ints(table, "seq")[equal(table, "process", event["process"])].max(initial=0))
            )
    return last > int(event["seq"]) + 1


def _given_up(trial: Trial) -> Iterator[Damage]:
    """Yield a failure because of a TaskManager that a detector gave up, without the event of its loss, which is written before. A JobMaster
    that does not reach a TaskManager to deploy a task does not give it up."""
    lost = {event["subject"] for _, event in events(trial, "taskmanager.lost")}
    for row, event in events(trial, "failover.failure"):
        data = parsed(event["data"])
        detector, gone = data.get("detector"), str(data.get("taskmanager") or "")
        given_up = detector == RM_NAME or (detector == JOBMASTER_NAME and data.get("wait") == "heartbeat")
        if given_up and gone and gone not in lost:
            problem = f"has no taskmanager.lost of {gone}, which a failover.failure names (row {row})"
            yield no_row("events", problem)


def _losses(trial: Trial, waits: Waits) -> Iterator[Damage]:
    """Yield a TaskManager that was lost without a wait for its heartbeat."""
    expired = [r for _, r in waits if r["kind"] == "heartbeat" and r["outcome"] == Outcome.EXPIRED]
    for row, event in events(trial, "taskmanager.lost"):
        data = parsed(event["data"])
        mine = [r for r in expired if (r["who"], r["what"]) == (data.get("detector"), event["subject"])]
        if data.get("wait") == "heartbeat" and not any(
            abs(r["t_ns"] - event["t_ns"]) <= tolerance_ns(trial, event["process"], event["t_ns"])
            for r in mine
        ):
            yield Damage(
                "events",
                "t_ns",
                row,
                f"of taskmanager.lost is not the end of a heartbeat of {event['subject']} (waits)",
            )


def _peers(trial: Trial, entry: Mapping[str, Any]) -> Iterator[Damage]:
    """Yield a channel that is on no edge of the job."""
    known = {(source, target) for source, target, _ in edges(entry)}
    tasks, table = tasks_of(entry), trial.table("channels")
    if not known or not sound(table, "side", "task", "peer"):
        return
    pairs = table.select(["side", "task", "peer"]).group_by(["side", "task", "peer"]).aggregate([])
    for r in pairs.to_pylist():
        ends = (r["task"], r["peer"]) if r["side"] == "producer" else (r["peer"], r["task"])
        if tuple(end.rpartition("-")[0] for end in ends) not in known or not tasks.issuperset(ends):
            problem = f"is {r['peer'][:60]!r} in a channel of {r['task']} ({r['side']}), but the job has no such edge"
            yield Damage("channels", "peer", -1, problem)
            return


def _spent(trial: Trial, deployed: Deployed) -> Iterator[Damage]:
    """Yield an attempt that was busy, back-pressured and idle for longer than since its deployment."""
    table = trial.table("tasks")
    columns = ("busy_ns", "backpressured_ns", "idle_ns")
    if not sound(table, "task", "attempt", "t_ns", *columns):
        return
    begun = ints(table, "t_ns") - sum(ints(table, c) for c in columns)
    attempts = places_of(trial, "tasks", "task", "attempt")
    for key, rows in sorted(attempts.items(), key=lambda pair: int(pair[1][0])):
        row = int(rows[np.argmin(begun[rows])])
        early = deployed[key]["t_ns"] - int(begun[row]) if key in deployed else 0
        if early > TOLERANCE_NS:
            column = max(columns, key=lambda c: table.column(c)[row].as_py())
            problem = f"makes {key[0]} spend {early / NS:.1f} s more than passed since its deployment (task.state in events)"
            yield Damage("tasks", column, row, problem)
            return


def _unsampled(trial: Trial, entry: Mapping[str, Any]) -> Iterator[Damage]:
    """Yield an attempt without a sample for long, although its process wrote rows about its channels or latencies then."""
    interval_ns = int(sampling_of(len(tasks_of(entry))).sample_s * NS)
    late_ns, pause_ns = TOLERANCE_NS + interval_ns, TOLERANCE_NS + UNSAMPLED * interval_ns
    sampled = _times(trial.table("tasks"))
    for name in ("channels", "latency") if "tasks" in trial.tables else ():
        for owner, times in _times(trial.table(name)).items():
            samples = sampled.get(owner, times[:1])
            after = np.searchsorted(samples, times)
            begun = np.where(after > 0, samples[np.maximum(after - 1, 0)], times[0])
            alone = times - begun > late_ns
            ended = samples[np.minimum(after, len(samples) - 1)]
            alone &= (after == len(samples)) | (ended - times > TOLERANCE_NS) & (ended - begun > pause_ns)
            if alone.any():
                process, task, attempt = owner
                at = first_true(alone)
                problem = f"of the last sample of attempt {attempt} of {task} is {(times[at] - begun[at]) / NS:.1f} s before its next row in {name} ({process})"
                yield Damage("tasks", "t_ns", -1, problem)
                return


def _times(table: pa.Table) -> dict[tuple[str, str, int], Ints]:
    """Map each attempt to the times of its rows, in ascending order."""
    if not sound(table, "t_ns", *ATTEMPT):
        return {}
    owned = Owned.of(numbered([table], ATTEMPT), ints(table, "t_ns"))
    firsts = table.select(ATTEMPT).take(pa.array(owned.order[owned.starts])).to_pylist()
    times = np.split(ints(table, "t_ns")[owned.order], owned.starts[1:])
    return {(r["process"], r["task"], r["attempt"]): t for r, t in zip(firsts, times, strict=True)}


def _silent(trial: Trial, deployed: Deployed) -> Iterator[Damage]:
    """Yield a TaskManager with a task that ran for long, and without any row."""
    wrote = {r["process"] for name in trial.tables for _, r in distinct(trial, name, "process")}
    running: dict[str, int] = {}
    for _, event in events(trial, "task.state"):
        data = parsed(event["data"])
        there, begun = str(data.get("taskmanager")), running.get(event["subject"], event["t_ns"])
        if data.get("to") == "RUNNING":
            running[event["subject"]] = event["t_ns"]
        elif data.get("from") == "RUNNING" and event["t_ns"] - begun > LONG_NS and there not in wrote:
            problem = f"lacks {there}, on which {event['subject']} ran for {(event['t_ns'] - begun) / NS:.0f} s (task.state in events)"
            yield Damage("tasks", "process", -1, problem)
            return


def _unbuffered(trial: Trial, entry: Mapping[str, Any]) -> Iterator[Damage]:
    """Yield a TaskManager that sampled a task for long, and did not record its network buffers or their pools. It looks at them with
    every tenth sample, the first time before it has taken so many."""
    table = trial.table("tasks")
    if not any(edges(entry)) or not sound(table, *ATTEMPT):
        return
    wrote = {(r["kind"], r["process"]) for _, r in distinct(trial, "events", "kind", "process")}
    known = {kind for kind, _ in wrote}  # earlier versions recorded no pools
    kinds = [kind for kind in ABOUT_BUFFERS if kind == BUFFERS or kind in known]
    for (process, task, _), rows in sorted(places_of(trial, "tasks", *ATTEMPT).items()):
        for kind in kinds if len(rows) >= UNSAMPLED else ():
            if (kind, process) not in wrote:
                problem = f"has no {kind} of {process}, which took {len(rows)} samples of {task} (tasks)"
                yield no_row("events", problem)


def _unmeasured(trial: Trial, finished: set[Attempt]) -> Iterator[Damage]:
    """Yield a sink that finished and received records, and measured no latency."""
    measured = {(r["task"], r["attempt"]) for _, r in distinct(trial, "latency", *ATTEMPT)}
    table = trial.table("tasks")
    read_in_parts = "latency" not in trial.tables
    if read_in_parts or not sound(table, "role", *ATTEMPT, "records_in"):
        return
    received = np.flatnonzero(equal(table, "role", "sink") & (ints(table, "records_in") > 0))
    for row in received[
        np.unique(numbered([table.take(pa.array(received))], ATTEMPT), return_index=True)[1]
    ].tolist():
        task, attempt = (table.column(c)[row].as_py() for c in ("task", "attempt"))
        if (task, attempt) in finished - measured:
            yield Damage(
                "latency", "task", -1, f"lacks attempt {attempt} of {task}, which received records (tasks)"
            )
            return
