"""Whether a job can start from a checkpoint that another run has kept (`execution.state-recovery.path`, `flink run -s`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex
from testbed_runtime.core.job.rescaling import POINTWISE, can_rescale
from testbed_runtime.core.versions import CHANNEL_STATE_RESCALES, has

STATE_RECOVERY = "execution.state-recovery.path"
IN_CLUSTER = "configmap://"
"""Beginning of the option's value in a cluster, where the checkpoint is in ConfigMaps with this name.
References to Python functions use it too."""
_ROLLBACK = "Failed to rollback to checkpoint/savepoint {}. "


def max_parallelism_mismatch(checkpoint: int, name: str, kept: int, wanted: int) -> str:
    """Return Flink's text for key groups that another max parallelism would distribute differently."""
    return (
        f"{_ROLLBACK.format(checkpoint)}Max parallelism mismatch between checkpoint/savepoint state and new program. "
        f"Cannot map operator {name} with max parallelism {kept} to new program with max parallelism {wanted}. This "
        "indicates that the program has been changed in a non-compatible way after the checkpoint/savepoint."
    )


def with_max_parallelism(wanted: JobGraph, kept: JobGraph) -> JobGraph:
    """Return the job with the max parallelism of the state that its vertices restore, where it was only computed
    (StateAssignmentOperation.checkParallelismPreconditions)."""
    old = {vertex.name: vertex.max_parallelism for vertex in kept.vertices if _is_stateful(vertex)}
    vertices = (
        replace(vertex, max_parallelism=old[vertex.name])
        if vertex.max_parallelism_computed and vertex.name in old
        else vertex
        for vertex in wanted.vertices
    )
    return replace(wanted, vertices=tuple(vertices))


def restore_problems(checkpoint: int, *, drained: bool, kept: JobGraph, wanted: JobGraph) -> list[str]:
    """Return why a job cannot start from a checkpoint of the job `kept`: first Flink's reasons, then
    Headgate's own. `drained`: it is the last checkpoint of a job that was stopped with a drain."""
    old, new = {v.name: v for v in kept.vertices}, {v.name: v for v in wanted.vertices}
    problems = []
    for name, vertex in old.items():
        if not _is_stateful(vertex):
            continue
        if name not in new or not _is_stateful(new[name]):
            problems.append(
                f"{_ROLLBACK.format(checkpoint)}Cannot map checkpoint/savepoint state for operator {name} to the new "
                "program, because the operator is not available in the new program."
            )
        elif not new[name].max_parallelism_computed and vertex.max_parallelism != new[name].max_parallelism:
            problems.append(
                max_parallelism_mismatch(checkpoint, name, vertex.max_parallelism, new[name].max_parallelism)
            )
        elif vertex.max_parallelism < new[name].parallelism:
            problems.append(
                f"The state for task {name} can not be restored. The maximum parallelism ({vertex.max_parallelism}) of the "
                f"restored state is lower than the configured parallelism ({new[name].parallelism}). Please reduce the "
                "parallelism of the task to be lower or equal to the maximum parallelism."
            )
    for name, vertex in new.items():
        problems += _own_problems(name, old.get(name), vertex, drained=drained)
    return problems


def _own_problems(name: str, old: JobVertex | None, new: JobVertex, *, drained: bool) -> list[str]:
    """Return Headgate's own reasons. The number of a record decides when it is due and which subtask emits
    it, so a source must be the same."""
    if new.source is not None and new.source.splits:
        return [f"{name}: input splits are not part of a checkpoint, so they would be read again"]
    if new.source is not None and (
        old is None or (new.source, new.parallelism) != (old.source, old.parallelism)
    ):
        return [f"{name}: a source needs the parallelism and the settings that it had"]
    if new.sink is not None and new.sink.kind == "file":
        return [f"{name}: the files that a file sink has staged are not kept with the checkpoint"]
    if new.operator is None or not new.operator.keyed:
        return []
    was = old.operator if old is not None else new.operator
    if was is None or (was.kind, was.window_s) != (new.operator.kind, new.operator.window_s):
        return [f"{name}: a {new.operator.kind} cannot read the state of another operator"]
    if new.operator.kind == "window" and not drained:
        return [
            f"{name}: its open windows hold records that no history of this run has, because the checkpoint was not taken "
            "by a stop with a drain"
        ]
    return []


def has_same_exchanges(kept: JobGraph, wanted: JobGraph) -> bool:
    """Whether both jobs have the same channels."""
    return _shapes(kept.edges) == _shapes(wanted.edges) and _parallelism(kept) == _parallelism(wanted)


def in_flight_problems(
    in_flight: Mapping[JobEdge, int], *, kept: JobGraph, wanted: JobGraph, flink_version: str
) -> list[str]:
    """Return why the data in flight of a checkpoint of the job `kept` cannot be restored. `in_flight` has the bytes of each of its
    exchanges that has any."""
    problems, before, after = [], _parallelism(kept), _parallelism(wanted)
    for edge, size in in_flight.items():
        what = f"{edge.source} → {edge.target}: the checkpoint has {size} bytes of data in flight. "
        if _shapes(kept.inputs(edge.target)) != _shapes(wanted.inputs(edge.target)) or _shapes(
            kept.outputs(edge.source)
        ) != _shapes(wanted.outputs(edge.source)):
            problems.append(f"{what}Both vertices need the connections that they had")
        elif any(before[name] != after[name] for name in (edge.source, edge.target)):
            if not has(flink_version, CHANNEL_STATE_RESCALES):
                problems.append(
                    f"{what}Flink {flink_version} restores it at the same parallelism only; the first version that rescales "
                    f"it is {CHANNEL_STATE_RESCALES.since}"
                )
            elif not can_rescale(edge.partitioning):
                problems.append(what + POINTWISE)
    return problems


def _shapes(edges: Iterable[JobEdge]) -> list[tuple[str, str, str]]:
    return [(edge.source, edge.target, edge.partitioning) for edge in edges]


def _parallelism(graph: JobGraph) -> dict[str, int]:
    return {vertex.name: vertex.parallelism for vertex in graph.vertices}


def _is_stateful(vertex: JobVertex) -> bool:
    return vertex.source is not None or (vertex.operator is not None and vertex.operator.keyed)
