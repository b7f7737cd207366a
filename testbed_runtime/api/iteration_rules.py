"""Iterations of a document: which vertices belong to one, and what is wrong with it.

The head is the vertex with `iteration`, the tail the one from which an edge with `feedback: true` leads to it. The step function is a
chain of operators from head to tail."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from testbed_runtime.api import limits, models
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.jobgraph import BULK, DELTA, SYNC_SUFFIX, IterationConfig
from testbed_runtime.core.job.results import BLOCKING, EAGER, FIRST_RECORD
from testbed_runtime.core.values import parse_duration
from testbed_runtime.core.versions import NO_DATASET, has

CYCLE_HINT = "remove an edge, or make it an iteration: feedback: true on the edge back, iteration on the vertex where it ends"
_INSIDE = {
    BULK: ("map", "keyed-count", "python"),
    DELTA: ("map", "keyed-count", "python", "flat-map", "solution-set-join"),
}
"""The operators that a step function of each kind may have."""
_DELTA_ONLY = set(_INSIDE[DELTA]) - set(_INSIDE[BULK])


class WrittenIteration(Struct, frozen=True):
    """An iteration as it is written in the document. `tail` is None without a feedback edge. `chain` leads from the first vertex after the
    head to the tail, and is empty unless they are connected."""

    head: models.Vertex
    tail: models.Vertex | None
    chain: tuple[models.Vertex, ...]

    @property
    def config(self) -> IterationConfig:
        written = self.head.iteration or models.Iteration(max_iterations=1)
        return IterationConfig(
            self.head.name,
            written.kind,
            written.max_iterations,
            written.criterion,
            self.chain[0].name if self.chain else "",
            self.head.name + SYNC_SUFFIX,
        )


def data_edges(job: models.Job) -> list[models.Edge]:
    """Return the edges without the feedback edges: those that the exchange carries."""
    return [edge for edge in job.edges if not edge.feedback]


def iterations(job: models.Job) -> list[WrittenIteration]:
    """Return all iterations, including incomplete ones."""
    vertices = {v.name: v for v in job.vertices}
    found = []
    for head in job.vertices:
        if head.iteration is None:
            continue
        tails = [
            vertices[e.from_] for e in job.edges if e.feedback and e.to == head.name and e.from_ in vertices
        ]
        tail = tails[0] if tails else None
        found.append(WrittenIteration(head, tail, _chain(job, head, tail, vertices) if tail else ()))
    return found


def _chain(
    job: models.Job, head: models.Vertex, tail: models.Vertex, vertices: dict[str, models.Vertex]
) -> tuple[models.Vertex, ...]:
    """Walk back from the tail to the head. Empty if that leads elsewhere."""
    chain = [tail]
    while len(chain) <= len(vertices):
        origins = [e.from_ for e in data_edges(job) if e.to == chain[0].name]
        if origins == [head.name]:
            return tuple(chain)
        if len(origins) != 1 or origins[0] not in vertices:
            return ()
        chain.insert(0, vertices[origins[0]])
    return ()


def problems(testbed: models.TestbedSpec, path: str) -> Iterator[UserError]:
    """Yield the problems of a job's iterations. Its vertices and edges have already been checked."""
    job, where = testbed.job, f"{path}.job"
    found = iterations(job)
    index = {v.name: f"{where}.vertices[{i}]" for i, v in enumerate(job.vertices)}
    yield from _feedback_edges(job, where)
    inside = {
        v.name for one in found if one.head.iteration for v in one.chain if one.head.iteration.kind == DELTA
    }
    for vertex in job.vertices:
        if vertex.operator in _DELTA_ONLY and vertex.name not in inside:
            text = f"{vertex.operator} works only between the head and the tail of a delta iteration"
            yield UserError(f"{index[vertex.name]}.operator", text, "use operator: python")
    if not found:
        return
    if has(testbed.flink_version, NO_DATASET):
        text = f"Flink {testbed.flink_version} has no iterations: 2.0 removed the DataSet API"
        yield UserError(f"{path}.flinkVersion", text, 'write flinkVersion: "1.20"')
    for vertex in job.vertices:
        if vertex.source is not None and (vertex.source.kind != "generated" or not vertex.source.limit):
            text = "a job with an iteration never ends with an unbounded source"
            yield UserError(f"{index[vertex.name]}.source", text, "add a limit to a generated source")
    for one in found:
        yield from _one(job, one, index[one.head.name], index)


def _feedback_edges(job: models.Job, where: str) -> Iterator[UserError]:
    heads = {v.name for v in job.vertices if v.iteration is not None}
    for number, edge in enumerate(job.edges):
        path = f"{where}.edges[{number}]"
        if not edge.feedback:
            continue
        if edge.to not in heads:
            text = f"the feedback edge leads to {edge.to!r}, which is not the head of an iteration"
            yield UserError(
                path, text, f"add iteration: {{maxIterations: 10}} to {edge.to}, as its only role"
            )
        plain = models.Edge(from_=edge.from_, to=edge.to, feedback=True)
        if edge != plain:
            text = "a feedback edge stays in the memory of one subtask, so it has no partitioning, result or deployment"
            yield UserError(path, text, "leave them out")


def _one(job: models.Job, one: WrittenIteration, path: str, index: dict[str, str]) -> Iterator[UserError]:
    head, tail, config = one.head, one.tail, one.config
    feedback = [e for e in job.edges if e.feedback and e.to == head.name]
    if len(feedback) != 1 or tail is None:
        text = f"{len(feedback)} edges with feedback: true lead to {head.name!r} instead of one"
        yield UserError(
            path, text, "add an edge from the last vertex of the step function, with feedback: true"
        )
        return
    if not one.chain:
        text = f"the step function from {head.name!r} to {tail.name!r} is not a chain"
        yield UserError(
            path,
            text,
            f"connect them so that each vertex between them has one input, the first one {head.name}",
        )
        return
    if config.sync in index or len(config.sync) > limits.MAX_NAME:
        text = f"its synchronisation task is called {config.sync!r}, which is another vertex or too long"
        yield UserError(f"{path}.name", text, "choose another name")
    if config.criterion and (config.kind != BULK or ":" not in config.criterion):
        text = (
            "a criterion is a function of a bulk iteration; a delta iteration ends when its workset is empty"
        )
        yield UserError(f"{path}.iteration.criterion", text, "write file.py:name, or leave it out")
    if (tail.parallelism, tail.slot_sharing_group) != (head.parallelism, head.slot_sharing_group):
        text = f"the tail {tail.name!r} does not run in the slots of the head {head.name!r}"
        hint = f"give it parallelism: {head.parallelism} and slotSharingGroup: {head.slot_sharing_group}"
        yield UserError(index[tail.name], text, hint)
    if head.function or parse_duration(head.service_time):
        text = f"{head.name!r} is the head of an iteration, which passes records on and calls no function"
        yield UserError(path, text, "move function and serviceTime to a vertex of the step function")
    yield from _inside(job, one, index)
    yield from _edges(job, one, path)
    if config.kind == DELTA:
        yield from _delta(job, one, index)


def _inside(job: models.Job, one: WrittenIteration, index: dict[str, str]) -> Iterator[UserError]:
    """Yield a problem for each vertex of the step function that is no suitable operator, or has other outputs than the next vertex."""
    tail, kind = one.chain[-1], one.config.kind
    for vertex in one.chain:
        where = index[vertex.name]
        if vertex.operator is None:
            text = f"{vertex.name!r} is inside the iteration of {one.head.name!r} and no operator"
            yield UserError(where, text, "iterations cannot be nested; use an operator")
        elif vertex.operator not in _INSIDE[kind]:
            text = f"{vertex.operator} does not work inside a {kind} iteration"
            yield UserError(f"{where}.operator", text, f"use {', '.join(_INSIDE[kind])}")
        elif vertex.operator == "solution-set-join" and vertex is not tail:
            text = "only the tail of a delta iteration can be a solution-set-join"
            yield UserError(f"{where}.operator", text, "use python or flat-map")
        outputs = [e.to for e in data_edges(job) if e.from_ == vertex.name]
        if len(outputs) != (0 if vertex is tail else 1):
            text = f"{vertex.name!r} has other outputs than the next vertex of the step function"
            yield UserError(
                where, text, f"results leave an iteration at its head: use an edge from {one.head.name}"
            )


def _edges(job: models.Job, one: WrittenIteration, path: str) -> Iterator[UserError]:
    """Check the edges: the head must feed the step function and at least one other vertex, and records inside are never copied or stored."""
    inside = {v.name for v in one.chain}
    results = [e for e in data_edges(job) if e.from_ == one.head.name and e.to not in inside]
    if not results:
        text = f"the result of the iteration goes nowhere: {one.head.name!r} has no edge out of the iteration"
        yield UserError(path, text, f"add an edge from {one.head.name} to a sink")
    for number, edge in enumerate(job.edges):
        where = f"{path.rpartition('.vertices')[0]}.edges[{number}]"
        if edge in results and edge.deployment == FIRST_RECORD:
            text = "the result of an iteration has no first record before its end"
            yield UserError(f"{where}.deployment", text, "write eager, or a blocking result")
        if edge.to in inside and (
            edge.partitioning == "broadcast" or edge.result == BLOCKING or edge.deployment != EAGER
        ):
            text = "an edge inside an iteration is pipelined and eager, and sends each record once"
            yield UserError(where, text, "write partitioning: hash, rebalance or forward, and nothing else")


def _delta(job: models.Job, one: WrittenIteration, index: dict[str, str]) -> Iterator[UserError]:
    """Check that each candidate of a delta iteration reaches the subtask that has the entry with its key."""
    head, tail = one.head, one.chain[-1]
    if tail.operator != "solution-set-join":
        text = f"the tail of the delta iteration of {head.name!r} is {tail.operator}"
        yield UserError(f"{index[tail.name]}.operator", text, "use solution-set-join, with its function")
    if head.max_parallelism != tail.max_parallelism:
        text = f"{tail.name!r} has other key groups than {head.name!r}"
        yield UserError(f"{index[tail.name]}.maxParallelism", text, "write the same, or leave both out")
    for number, edge in enumerate(job.edges):
        if not edge.feedback and edge.to in (head.name, tail.name) and edge.partitioning != "hash":
            where = f"{index[head.name].rpartition('.vertices')[0]}.edges[{number}].partitioning"
            text = "head and tail of a delta iteration must get their records by key"
            yield UserError(where, text, "write hash")
