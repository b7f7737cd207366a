"""Compare the rows of each checkpoint with each other, with its waits, and with what it committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

import numpy as np

from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import Outcome
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import (
    ROUNDING_NS,
    Owned,
    Row,
    committed_records,
    first_true,
    ints,
    numbered,
    vertex_of,
)
from testbed_runtime.history.contradictions.exchange import PLAIN_KINDS
from testbed_runtime.history.damage import Damage, first_of_each

USUAL_NS = 2_000_000
"""Durations are whole milliseconds, and their rows are written immediately: the usual difference is smaller than this."""
USUAL_MIN = 3
"""Minimum checkpoints of a trial, or waits for them, from which the usual difference is known."""
INCREMENTAL = "execution.checkpointing.incremental"
UNALIGNED = "execution.checkpointing.unaligned.enabled"

COMMIT = ("process", "task", "attempt", "checkpoint")
"""The rows of one commit have these columns in common."""


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint of one JobManager. It may trigger the same number again after it lost its leadership."""

    triggered: Row
    acknowledged: dict[str, Row] = field(default_factory=dict)
    finalizing: Row | None = None
    ended: Row | None = None

    @property
    def completed(self) -> Row | None:
        """Its end, if it was completed."""
        return self.ended if self.ended is not None and self.ended["state"] == "completed" else None


def check_checkpoints(trial: CheckedTrial) -> list[Damage]:
    """Return the contradictions of checkpoints, at most one for each rule."""
    if not trial.rows("checkpoints"):
        return []
    found, damage = _collected(trial)
    rules = (_usual, _durations, _complete, _sizes, _aligned, _commits, _waits)
    return first_of_each(damage, *(rule(trial, found) for rule in rules), _weights(trial))


def _collected(trial: CheckedTrial) -> tuple[list[Checkpoint], list[Damage]]:
    """Return the checkpoints, the rows of one that was not triggered, and the tasks that acknowledged one a second time: the JobMaster
    takes only the first. Each row has its place as `row`."""
    rows = [r | {"row": row} for row, r in trial.rows("checkpoints")]
    newest: dict[tuple[str, int], Checkpoint] = {}
    found: list[Checkpoint] = []
    damage: list[Damage] = []
    for r in sorted(rows, key=lambda r: (r["process"], r["seq"])):
        key = (r["process"], r["checkpoint"])
        if r["state"] == "triggered":
            newest[key] = Checkpoint(r)
            found.append(newest[key])
        elif (one := newest.get(key)) is None:
            if r["state"] != "failed":
                problem = f"is {r['checkpoint']}, which was not triggered before it was {r['state']}"
                damage.append(Damage("checkpoints", "checkpoint", r["row"], problem))
        elif r["state"] == "finalizing":
            one.finalizing = r
        elif r["state"] != "acknowledged":
            one.ended = r
        elif one.acknowledged.setdefault(r["task"], r) is not r:
            problem = f"is {r['task']}, which had acknowledged checkpoint {r['checkpoint']}"
            damage.append(Damage("checkpoints", "task", r["row"], problem))
    return found, damage


def _usual(trial: CheckedTrial, found: list[Checkpoint]) -> Iterator[Damage]:
    """Yield a duration if those of most checkpoints are not the time since they were triggered. A process may have been interrupted
    between the two readings of its clock, so that a single checkpoint shows nothing."""
    off: list[tuple[int, Row]] = []
    usual: list[float] = []
    for one in found:
        rows = [r for r in (*one.acknowledged.values(), one.finalizing, one.ended) if r is not None]
        mine = [(abs(r["duration_ns"] - (r["t_ns"] - one.triggered["t_ns"])), r) for r in rows]
        usual += [float(np.median([ns for ns, _ in mine]))] if mine else []
        off += mine
    if len(usual) >= USUAL_MIN and trial.deployed and np.median(usual) > USUAL_NS:
        _, r = max(off, key=itemgetter(0))
        problem = f"is {r['duration_ns'] / NS:g} s for checkpoint {r['checkpoint']}, and most are not the time since it was triggered"
        yield Damage("checkpoints", "duration_ns", r["row"], problem)


def _durations(trial: CheckedTrial, found: list[Checkpoint]) -> Iterator[Damage]:
    """Yield durations that are not the time since the checkpoint was triggered, and alignments that took longer."""
    for one in found:
        since_ns = one.triggered["t_ns"]
        for r in (r for r in (*one.acknowledged.values(), one.ended) if r is not None):
            took = r["t_ns"] - since_ns
            if abs(r["duration_ns"] - took) > trial.tolerance_ns(r["process"], since_ns, r["t_ns"]):
                problem = f"is {r['duration_ns'] / NS:g} s, but {took / NS:.3f} s passed since checkpoint {r['checkpoint']} was triggered"
                yield Damage("checkpoints", "duration_ns", r["row"], problem)
            if r["alignment_ns"] > r["duration_ns"] + ROUNDING_NS:
                problem = f"is {r['alignment_ns'] / NS:g} s, longer than the checkpoint ({r['duration_ns'] / NS:g} s)"
                yield Damage("checkpoints", "alignment_ns", r["row"], problem)


def _complete(trial: CheckedTrial, found: list[Checkpoint]) -> Iterator[Damage]:
    """Yield completed checkpoints that a task has not acknowledged, unless it had finished, and acknowledgements of no task."""
    tasks = trial.tasks
    finished = grouped((event["subject"], event) for event in trial.changes("task.state", "FINISHED"))
    for one in found if tasks else ():
        for task, r in one.acknowledged.items():
            if task not in tasks:
                problem = f"is {task[:60]!r}, which the job does not have"
                yield Damage("checkpoints", "task", r["row"], problem)
        if (end := one.completed) is None:
            continue
        for task in sorted(tasks - one.acknowledged.keys()):
            ends = finished.get(task, ())
            if not any(e["process"] != end["process"] or e["seq"] < end["seq"] for e in ends):
                problem = f"says that checkpoint {end['checkpoint']} was completed, but {task} has not acknowledged it"
                yield Damage("checkpoints", "state", end["row"], problem)


def _sizes(trial: CheckedTrial, found: list[Checkpoint]) -> Iterator[Damage]:
    """Yield completed checkpoints that are smaller than their parts, or larger although every part was stored in full."""
    exact, tasks = not trial.options.boolean(INCREMENTAL), trial.tasks
    for one in found:
        for r in one.acknowledged.values():
            if r["persisted_bytes"] > r["state_bytes"]:
                problem = f"is {r['persisted_bytes']}, more than state_bytes"
                yield Damage("checkpoints", "persisted_bytes", r["row"], problem)
        if (end := one.completed) is None:
            continue
        parts = sum(r["state_bytes"] for r in one.acknowledged.values())
        larger = exact and one.acknowledged.keys() >= tasks and end["state_bytes"] > parts
        if end["state_bytes"] < parts or larger:
            stated, number = end["state_bytes"], end["checkpoint"]
            problem = f"is {stated}, but the parts of checkpoint {number} have {parts} bytes"
            yield Damage("checkpoints", "state_bytes", end["row"], problem)


def _aligned(trial: CheckedTrial, found: list[Checkpoint]) -> Iterator[Damage]:
    """Yield records in flight in a checkpoint of a job whose barriers overtake nothing."""
    if trial.options.boolean(UNALIGNED):
        return
    for r in (r for one in found for r in one.acknowledged.values()):
        if amount := r["persisted_bytes"]:
            problem = f"is {amount} in an aligned checkpoint, which has no records in flight ({UNALIGNED} in the manifest)"
            yield Damage("checkpoints", "persisted_bytes", r["row"], problem)


def _commits(trial: CheckedTrial, found: list[Checkpoint]) -> Iterator[Damage]:
    """Yield commits of a checkpoint that was not complete or not the last one, and of an attempt that was not the last one. A
    JobManager may commit again what an earlier one completed, whose last rows are lost. Without periodic checkpoints, a sink commits
    when its input ends."""
    if not trial.recorded_to_its_end:
        return
    managers = {c.triggered["process"] for c in found}
    periodic = trial.options.duration("execution.checkpointing.interval") > 0
    exactly_once = {vertex.name for vertex in trial.vertices if vertex.delivery == "exactly-once"}
    done = {end["checkpoint"]: end["seq"] for c in found if (end := c.completed) is not None}
    deployed = grouped((task, (e["seq"], attempt)) for (task, attempt), e in trial.deployed.items())
    completed = sorted(done.items(), key=itemgetter(1))
    following = {number: seq for (number, _), (_, seq) in pairwise(completed)}
    columns = trial.table("delivery").select(["process", "seq", "checkpoint", "task", "attempt"]).to_pydict()
    for row, (process, seq, number, task, attempt) in enumerate(zip(*columns.values(), strict=True)):
        if process not in managers:
            continue
        if following.get(number, seq) < seq:
            problem = f"is {number}, but a later one had been completed when {task} committed (checkpoints)"
            yield Damage("delivery", "checkpoint", row, problem)
        last = max((one for at, one in deployed.get(task, ()) if at < seq), default=attempt)
        if attempt != last:
            problem = f"is {attempt}, but attempt {last} of {task} was the last one deployed then (task.state in events)"
            yield Damage("delivery", "attempt", row, problem)
        if number < 0 and periodic and vertex_of(task) in exactly_once:
            problem = (
                f"is {number}, but {task} commits exactly once, with a checkpoint (delivery in the manifest)"
            )
            yield Damage("delivery", "checkpoint", row, problem)
        if number >= 0 and done.get(number, seq) >= seq:
            problem = f"is {number}, which was not completed when {task} committed (checkpoints)"
            yield Damage("delivery", "checkpoint", row, problem)


def _weights(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield commits whose weight is not the number of their records. A record of a window stands for several."""
    table = trial.table("delivery")
    if not trial.kinds or trial.kinds - PLAIN_KINDS or not len(table):
        return
    owned = Owned.of(numbered([table], COMMIT), np.arange(len(table), dtype=np.int64))
    found = np.add.reduceat(committed_records(table)[owned.order], owned.starts)
    stated = np.add.reduceat(ints(table, "weight")[owned.order], owned.starts)
    for at in first_true(found != stated):
        row = int(owned.order[owned.starts[at]])
        task = table.column("task")[row].as_py()
        problem = f"of this commit of {task} adds up to {stated[at]}, but it has {found[at]} records (bitmap)"
        yield Damage("delivery", "weight", row, problem)


def _waits(trial: CheckedTrial, found: list[Checkpoint]) -> Iterator[Damage]:
    """Yield waits for a checkpoint whose start, end or outcome differs from the rows of the checkpoint."""
    of = grouped(((c.triggered["process"], f"checkpoint {c.triggered['checkpoint']}"), c) for c in found)
    off: list[tuple[int, int]] = []
    for row, r in trial.waits("checkpoint", "completion"):
        if r["outcome"] == Outcome.OPEN:
            continue
        earlier = [c for c in of.get((r["process"], r["what"]), ()) if c.triggered["seq"] < r["seq"]]
        if not earlier:
            yield Damage("waits", "what", row, f"is {r['what']!r}, which {r['process']} did not trigger")
            continue
        one, whole = earlier[-1], r["kind"] == "checkpoint"
        allowed = trial.tolerance_ns(r["process"], r["start_ns"])
        begun = one.triggered if whole else one.finalizing
        off += [(abs(r["start_ns"] - begun["t_ns"]), row)] if begun is not None else []
        if begun is None or abs(r["start_ns"] - begun["t_ns"]) > allowed:
            began = "triggered" if whole else "acknowledged"
            yield Damage("waits", "start_ns", row, f"of {r['what']} is not the time at which it was {began}")
        elif whole and one.ended is None:
            # a JobManager that lost the leadership cancels its waits without one
            if r["outcome"] == Outcome.COMPLETED or r["cause"]:
                problem = f"has no end of {r['what']}, for which {r['who']} waited: {r['outcome']} (waits)"
                yield Damage("checkpoints", "state", one.triggered["row"], problem)
        elif whole and one.ended is not None:
            if abs(r["t_ns"] - one.ended["t_ns"]) > allowed:
                problem = f"of {r['what']} is not the time at which it was {one.ended['state']}"
                yield Damage("waits", "t_ns", row, problem)
            if (r["outcome"] == Outcome.COMPLETED) != (one.completed is not None):
                problem = f"is {r['outcome']!r}, but {r['what']} was {one.ended['state']} (checkpoints)"
                yield Damage("waits", "outcome", row, problem)
    if len(off) >= USUAL_MIN and trial.deployed and np.median([ns for ns, _ in off]) > USUAL_NS:
        ns, row = max(off)
        problem = f"is {ns / NS:g} s off the time at which its checkpoint was triggered or acknowledged, as most are"
        yield Damage("waits", "start_ns", row, problem)
