"""Compare what tasks sent with what their consumers received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from testbed_runtime.core.exchange.records import LENGTH_BYTES
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.job.flowcontrol import FlowControl
from testbed_runtime.core.job.jobgraph import MIN_RECORD_BYTES
from testbed_runtime.core.options import LATENCY_INTERVAL
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import first_true, ints, vertex_of
from testbed_runtime.history.damage import Damage, first_of_each

FRAMED_MIN = MIN_RECORD_BYTES + LENGTH_BYTES
"""The smallest record in a buffer."""
PLAIN_KINDS = frozenset(("generated", "map", "keyed-count", "ledger", "file"))
"""Vertices that keep the size of a record."""
OF_ITERATIONS = frozenset(("iteration", "synchronization"))
"""Vertices that exchange records without bytes: the feedback of an iteration."""
LOOSE = 2
"""The counters of a sender and a receiver may differ by this factor: a task has read more than it has processed, or records were lost."""
TOTAL_MIN = 100
"""Minimum difference in records or bytes. A smaller one is not damage."""

Totals = Mapping[str, Mapping[str, int]]
"""The counters of each task at its end."""


def check_exchange(trial: CheckedTrial) -> list[Damage]:
    """Return the contradictions between tasks that exchange records."""
    tasks = trial.table("tasks")
    if not trial.kinds or "" in trial.kinds or not len(tasks):
        return []
    rules = [_totals(trial), _committed(trial), _ends(trial)]
    return first_of_each(*rules) + ([] if trial.kinds & OF_ITERATIONS else _bytes(trial))


def _bytes(trial: CheckedTrial) -> list[Damage]:
    """Return more records than fit into their bytes, and more bytes than the records of an attempt have."""
    tasks = trial.table("tasks")
    received, into = ints(tasks, "records_in"), ints(tasks, "bytes_in")
    for row in first_true(received * FRAMED_MIN > into):
        problem = f"is {received[row]}, too many for {into[row]} bytes (bytes_in)"
        return [Damage("tasks", "records_in", row, problem)]
    if trial.kinds - PLAIN_KINDS or trial.options.is_set(LATENCY_INTERVAL):
        return []
    size = LENGTH_BYTES + max(vertex.record_bytes for vertex in trial.vertices)
    channels = sum(trial.parallelism.values())
    owned, found = trial.attempts("tasks"), []
    queued = FlowControl.read(trial.options).queued  # it reads more than it processes
    measures = [] if queued else [("records_in", "bytes_in", 1)]
    measures.append(("records_out", "bytes_out", max(_copies(trial).values(), default=1)))
    for records, amount, most in measures:
        counted, moved = ints(tasks, records)[owned.order], ints(tasks, amount)[owned.order]
        before = owned.last(moved < owned.spread(moved[owned.ends]))
        beyond = (before >= 0) & (moved[before] > LOOSE * most * size * (counted[owned.ends] + channels))
        for owner in first_true(beyond):
            last = int(counted[owned.ends[owner]])
            problem = f"is {moved[before[owner]]}, too many for {last} records ({records})"
            found.append(Damage("tasks", amount, int(owned.order[before[owner]]), problem))
    return found


def _carried(trial: CheckedTrial) -> list[tuple[str, str, int]]:
    """Return the source, the target and how often the edge carries each record."""
    many = trial.parallelism
    return [(origin, to, many[to] if how == "broadcast" else 1) for origin, to, how in trial.edges]


def _copies(trial: CheckedTrial) -> Counter[str]:
    """Map each vertex to how often it sends a record, over all its edges."""
    found = Counter[str]()
    for source, _, copies in _carried(trial):
        found[source] += copies
    return found


def _totals(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a vertex whose last attempts received much more or less than those before it sent. Both have finished, no channel state
    was restored, and no result can be read again. A few lost records are not damage: delivery judges them."""
    marked = trial.options.is_set(LATENCY_INTERVAL)
    if marked or trial.has_blocking_edges or trial.has_channel_state:
        return
    totals, copies = last_samples(trial), _copies(trial)
    dropped = trial.events("receive-queue.closed")  # records that it has read
    measures = [] if dropped else [("records_in", "records_out", False)]
    measures.append(("bytes_in", "bytes_out", True))
    parallelism = trial.parallelism
    looped = {vertex.name for vertex in trial.vertices if vertex.kind in OF_ITERATIONS}
    for target, subtasks in parallelism.items():
        incoming = [(source, many) for source, to, many in _carried(trial) if to == target]
        ends = {target, *(s for s, _ in incoming)}
        ended = all(f"{v}-{i}" in totals for v in ends for i in range(parallelism[v]))
        if not incoming or not ended or looped & ends:
            continue
        for received, sent, share in measures:
            senders = [(v, i, many) for v, many in incoming for i in range(parallelism[v])]
            own = [(totals[f"{v}-{i}"][sent] * many, copies[v] if share else 1) for v, i, many in senders]
            expected = sum(amount // among for amount, among in own)
            found = sum(totals[f"{target}-{i}"][received] for i in range(subtasks))
            if max(found, expected) > LOOSE * min(found, expected) + TOTAL_MIN:
                problem = f"adds up to {found} for {target}, but {', '.join(s for s, _ in incoming)} sent {expected} ({sent})"
                yield Damage("tasks", received, int(totals[f"{target}-0"]["row"]), problem)


def _dropped(trial: CheckedTrial) -> bool:
    """Whether records were dropped or rejected. A rejected acknowledgement is none: the next checkpoint commits its records."""
    rejected = (event["data"] for _, event in trial.events("stale.rejected"))
    dropped = trial.events("receive-queue.closed", "function.dropped")
    return bool(dropped) or any(data.get("what") != "acknowledgement" for data in rejected)


def _committed(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield the commits of a sink that finished, if a whole one is missing, or if they have much less or much more than it received. A
    few records more or less are not damage: delivery judges a sink that writes a record twice, or never. A record of a window stands
    for several."""
    read = "delivery" in trial.tables and trial.recorded_to_its_end
    if not trial.drained or _dropped(trial) or not read:
        return
    weights = trial.table("delivery").select(["task", "attempt", "weight"])
    summed = weights.group_by(["task", "attempt"]).aggregate([("weight", "sum")]).to_pylist()
    commits = {(r["task"], r["attempt"]): r["weight_sum"] for r in summed}
    plain = trial.kinds <= PLAIN_KINDS
    uncovered = trial.options.ends_uncovered  # then a sink may finish without a commit
    sending, without = {source for source, _, _ in trial.edges}, _without_commits(trial)
    # the end of an iteration
    sending |= {vertex.name for vertex in trial.vertices if vertex.role not in ("", "sink")}
    for task, last in last_samples(trial).items():
        received, stated = last["records_in"], commits.get((task, last["attempt"]), 0)
        lacking = received > 0 and not stated and (task in without or not uncovered)
        if plain:
            much = not uncovered and received > LOOSE * stated + TOTAL_MIN
            lacking = stated < received and (task in without or much)
        beyond = plain and stated > LOOSE * received + TOTAL_MIN
        if (lacking or beyond) and vertex_of(task) not in sending:
            problem = f"adds up to {stated} for {task}, which received {received} records and finished (records_in in tasks)"
            yield Damage("delivery", "weight", -1, problem)


def _without_commits(trial: CheckedTrial) -> set[str]:
    """Return the tasks whose last attempts received records before a completed checkpoint, and have no commit of it."""
    samples, rows = trial.table("tasks"), [r for _, r in trial.rows("checkpoints")]
    completed = {(r["process"], r["checkpoint"]) for r in trial.completed}
    commits = {(r["task"], r["checkpoint"]) for _, r in trial.distinct("delivery", "task", "checkpoint")}
    deployed = {task: (attempt, e["t_ns"]) for (task, attempt), e in sorted(trial.deployed.items())}
    of_task = grouped((r["task"], r) for r in sorted(rows, key=lambda r: r["t_ns"]))
    of_attempt = trial.places("tasks", "task", "attempt")
    t_ns, records_in = ints(samples, "t_ns"), ints(samples, "records_in")
    nothing = np.empty(0, dtype=np.int64)
    found: set[str] = set()
    for task in {task for task, checkpoint in commits if checkpoint >= 0} & set(deployed):
        attempt, since = deployed[task]
        mine = of_attempt.get((task, attempt), nothing)
        times, received = t_ns[mine], records_in[mine]
        for r in of_task.get(task, ()):
            if r["t_ns"] < since or (r["process"], r["checkpoint"]) not in completed:
                continue
            between = received[(times > since) & (times < r["t_ns"])]
            if len(between) and between.max() > between.min() and (task, r["checkpoint"]) not in commits:
                found.add(task)
            since = r["t_ns"]
    return found


def _ends(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield commits by a task that is not a sink, and commits of records that name a sink or an unknown task as their source."""
    sending = {source for source, _, _ in trial.edges}
    tasks = trial.tasks
    senders = {task for task in tasks if vertex_of(task) in sending}
    ends = {"source": (senders, "sends no records"), "task": (tasks - senders, "is not a sink")}
    for column, (known, what) in ends.items():
        for row, r in trial.distinct("delivery", column):
            if r[column] not in known:
                yield Damage("delivery", column, row, f"is {r[column][:60]!r}, which {what}")


def last_samples(trial: CheckedTrial) -> Totals:
    """Return the last samples of the tasks whose last attempt finished, and whose process wrote events after that: a task that finished
    has written its last sample before."""
    tasks = trial.table("tasks")
    newest = {e["subject"]: (e["attempt"], e["data"].get("to")) for _, e in trial.events("task.state")}
    owned = trial.attempts("tasks")
    last = owned.order[owned.ends]
    events = trial.table("events").select(["process", "seq"]).group_by("process").aggregate([("seq", "max")])
    wrote = {r["process"]: r["seq_max"] for r in events.to_pylist()}
    columns = ("process", "task", "attempt", "seq", "records_in", "records_out", "bytes_in", "bytes_out")
    found: dict[str, Mapping[str, int]] = {}
    for row, r in zip(last.tolist(), tasks.select(columns).take(pa.array(last)).to_pylist(), strict=True):
        if newest.get(r["task"]) == (r["attempt"], "FINISHED") and wrote.get(r["process"], -1) > r["seq"]:
            found[r["task"]] = r | {"row": row}
    return found
