"""Rules of a job that a schema cannot express: names, edges, cycles, inputs and outputs, slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from testbed_runtime.api import iteration_rules, models
from testbed_runtime.api.compile import job_graph
from testbed_runtime.api.iteration_rules import CYCLE_HINT, data_edges
from testbed_runtime.core.errors import UserError, nearest
from testbed_runtime.core.job.failover import Link, Regions
from testbed_runtime.core.job.functions import FORM, FunctionReference, is_in_cluster
from testbed_runtime.core.job.jobgraph import FUNCTIONS
from testbed_runtime.core.job.keygroups import compute_default_max_parallelism
from testbed_runtime.core.job.results import BLOCKING, COMBINATIONS
from testbed_runtime.core.job.slots import needed_slots
from testbed_runtime.core.values import parse_duration

IN_PODS_HINT = (
    "`headgate run --on kubernetes` brings the file into the cluster; or create a ConfigMap with it "
    f"(`kubectl create configmap NAME --from-file=FILE`) and write {FORM}"
)


def problems(testbed: models.TestbedSpec, path: str) -> list[UserError]:
    """Return all problems of the job of the testbed at `path` (`spec.testbed`)."""
    job, where = testbed.job, f"{path}.job"
    names = [v.name for v in job.vertices]
    found = [*repeated_names(names, f"{where}.vertices", "vertex"), *_edges(job, where)]
    if not found:
        found += iteration_rules.problems(testbed, path)
        found += [*_shape(job, where), *_roles(job, where), *_cycle(job, where), *_blocking(job, where)]
        found += _waiting_for_itself(job, where)
        found += _record_sizes(job, where)
    return [*found, *_slots(testbed, path)]


def functions_of_scenario(spec: models.ScenarioSpec) -> list[UserError]:
    """Return an error for each Python function of a ScenarioRun's scenario that pods cannot load."""
    jobs = {"spec.scenario.testbed.job": spec.testbed.job}
    jobs |= {
        f"spec.scenario.variants[{i}].job": v.job for i, v in enumerate(spec.variants) if v.job is not None
    }
    return [error for where, job in jobs.items() for error in functions_in_pods(job, where)]


def functions_in_pods(job: models.Job, path: str) -> Iterator[UserError]:
    """Yield an error for each Python function of the job at `path` that pods cannot load. Pods have the files of
    their image (absolute paths) and those in ConfigMaps."""
    for index, vertex in enumerate(job.vertices):
        where = f"{path}.vertices[{index}]"
        named = {f"{where}.function": vertex.function if vertex.operator in FUNCTIONS else ""}
        if vertex.iteration is not None:
            named[f"{where}.iteration.criterion"] = vertex.iteration.criterion
        for field, function in named.items():
            if not function or function.startswith("/"):
                continue
            if not is_in_cluster(function):
                problem = f"{function!r} is in a file beside the scenario, which pods do not have"
                yield UserError(field, problem, IN_PODS_HINT)
            elif FunctionReference.parse(function) is None:
                yield UserError(field, f"{function!r} is not a function in a ConfigMap", f"write {FORM}")


def repeated_names(names: Sequence[str], path: str, what: str) -> Iterator[UserError]:
    """Yield an error for each item of the list at `path` that has the name of an earlier one."""
    for index, name in enumerate(names):
        if name in names[:index]:
            hint = f"give each {what} its own name"
            yield UserError(f"{path}[{index}].name", f"{name!r} is a duplicate", hint)


def _edges(job: models.Job, path: str) -> Iterator[UserError]:
    vertices = {v.name: v for v in job.vertices}
    seen: set[tuple[str, str]] = set()
    for index, edge in enumerate(job.edges):
        where = f"{path}.edges[{index}]"
        missing = [
            (end, name) for end, name in (("from", edge.from_), ("to", edge.to)) if name not in vertices
        ]
        for end, name in missing:
            yield UserError(f"{where}.{end}", f"vertex {name!r} does not exist", nearest(name, vertices))
        if (edge.from_, edge.to) in seen:
            yield UserError(where, f"the edge {edge.from_} → {edge.to} is a duplicate", "keep one of them")
        seen.add((edge.from_, edge.to))
        refused = COMBINATIONS[edge.result, edge.deployment]
        if refused is not None:
            given = f"result {edge.result} with deployment {edge.deployment}"
            yield UserError(where, f"{given}: {refused.reason}", refused.hint)
        if not missing and edge.partitioning == "forward":
            yield from _forward(vertices[edge.from_], vertices[edge.to], where)
        if not missing and edge.partitioning != "hash":
            yield from _keyed(vertices[edge.to], edge.partitioning, where)


def has_blocking(job: models.Job) -> bool:
    return any(edge.result == BLOCKING for edge in job.edges)


def _blocking(job: models.Job, path: str) -> Iterator[UserError]:
    """Check vertices around blocking results. A blocking result is complete only when its sources have ended, and subtasks that have ended
    may run again."""
    if not has_blocking(job):
        return
    for index, vertex in enumerate(job.vertices):
        if vertex.sink == "file":
            yield UserError(
                f"{path}.vertices[{index}].sink",
                "a file sink publishes its lines when it ends, and again if a lost blocking result makes it run again",
                "use sink: ledger, or results that are not blocking",
            )
        if vertex.source is not None and vertex.source.kind == "generated" and not vertex.source.limit:
            problem = "a job with a blocking result never ends with an unbounded source"
            yield UserError(f"{path}.vertices[{index}].source", problem, "add a limit")


def _waiting_for_itself(job: models.Job, path: str) -> Iterator[UserError]:
    """Yield an error for each blocking result whose producers wait for its consumers: vertices that pipelined results connect
    start together, when all their blocking inputs are complete."""
    links = [Link((e.from_, 0), (e.to, 0), pipelined=e.result != BLOCKING) for e in data_edges(job)]
    regions = Regions([(v.name, 0) for v in job.vertices], links)
    for index, edge in enumerate(job.edges):
        if edge.result != BLOCKING:
            continue
        behind = regions.to_restart([(edge.to, 0)], available=lambda producer, consumer: True)
        if (edge.from_, 0) in behind:
            problem = f"{edge.from_!r} and {edge.to!r} wait for each other: other results connect them too"
            yield UserError(
                f"{path}.edges[{index}].result", problem, "make all results between them blocking"
            )


def _forward(source: models.Vertex, target: models.Vertex, where: str) -> Iterator[UserError]:
    if source.parallelism != target.parallelism:
        yield UserError(
            f"{where}.partitioning",
            f"forward needs equal parallelism, {source.name} has {source.parallelism} and {target.name} {target.parallelism}",
            "write rebalance, or make them equal",
        )


def _keyed(target: models.Vertex, partitioning: str, where: str) -> Iterator[UserError]:
    """Check that the subtasks of an operator with keyed state get only their own keys, which is not known of another edge. A restore drops
    the state of all others."""
    if target.operator in ("window", "keyed-count") and target.parallelism > 1:
        wide = f"the {target.operator} {target.name!r} has parallelism {target.parallelism}"
        problem = f"is {partitioning}, but {wide} and needs hash directly before it, as keyed state in Flink needs keyBy"
        hint = f"write hash, or parallelism: 1 for the {target.operator}"
        yield UserError(f"{where}.partitioning", problem, hint)


def _shape(job: models.Job, path: str) -> Iterator[UserError]:
    """Check inputs and outputs: sources must have no input and sinks no output, and all other vertices must have both."""
    targets, sources = {e.to for e in data_edges(job)}, {e.from_ for e in job.edges}
    for index, vertex in enumerate(job.vertices):
        where, name = f"{path}.vertices[{index}]", vertex.name
        if vertex.source is not None and name in targets:
            yield UserError(where, f"the source {name!r} has an input", "remove the edge")
        if vertex.source is None and name not in targets:
            yield UserError(where, f"{name!r} has no input", f"add an edge with to: {name}")
        if vertex.sink is not None and name in sources:
            yield UserError(where, f"the sink {name!r} has an output", "remove the edge")
        if vertex.sink is None and name not in sources:
            yield UserError(
                where, f"{name!r} has no output", f"add an edge with from: {name}, or make it a sink"
            )


def _roles(job: models.Job, path: str) -> Iterator[UserError]:
    for index, vertex in enumerate(job.vertices):
        where = f"{path}.vertices[{index}]"
        if vertex.source is not None and vertex.source.kind == "socket" and ":" not in vertex.source.socket:
            yield UserError(f"{where}.source.socket", "a socket source needs an address", "write host:port")
        if vertex.source is not None and vertex.source.splits and vertex.source.limit % vertex.source.splits:
            problem = f"{vertex.source.limit} records cannot be split into {vertex.source.splits} equal parts"
            yield UserError(f"{where}.source.splits", problem, "choose a number that divides the limit")
        if vertex.source is not None and vertex.source.splits and not vertex.source.limit:
            yield UserError(f"{where}.source.splits", "an unbounded source has no splits", "add a limit")
        if vertex.operator in FUNCTIONS and ":" not in vertex.function:
            text = f"a {vertex.operator} operator needs its function"
            yield UserError(f"{where}.function", text, "write file.py:name")
        if vertex.operator != "keyed-count" and parse_duration(vertex.state_ttl):
            yield UserError(
                f"{where}.stateTtl", "only `operator: keyed-count` has state that expires", "leave it out"
            )
        if vertex.sink == "file" and not vertex.path:
            yield UserError(f"{where}.path", "a file sink needs a path", "write path: words.txt")
        elif vertex.sink == "file" and not set(vertex.path.split("/")).isdisjoint({"", ".", ".."}):
            problem = f"{vertex.path!r} is outside the results folder"
            yield UserError(f"{where}.path", problem, "write a relative path: words.txt")
        if vertex.max_parallelism is not None and vertex.max_parallelism < vertex.parallelism:
            problem = f"{vertex.max_parallelism} is less than the parallelism {vertex.parallelism}"
            hint = f"leave it out ({compute_default_max_parallelism(vertex.parallelism)} is computed)"
            yield UserError(f"{where}.maxParallelism", problem, hint)


def _record_sizes(job: models.Job, path: str) -> Iterator[UserError]:
    """Check that the records that each task reads have the same size."""
    sizes = {v.name: {v.source.record_bytes} if v.source else set() for v in job.vertices}
    for _ in job.vertices:  # once for each vertex, because no path is longer
        for edge in data_edges(job):
            sizes[edge.to] |= sizes[edge.from_]
    inputs = {v.name: [e.from_ for e in data_edges(job) if e.to == v.name] for v in job.vertices}
    for index, vertex in enumerate(job.vertices):
        found = sizes[vertex.name]
        if len(found) > 1 and all(len(sizes[name]) == 1 for name in inputs[vertex.name]):
            text = f"{vertex.name!r} gets records of {' and '.join(map(str, sorted(found)))} bytes, and can read only one size"
            hint = "write the same recordBytes for the sources that lead to it"
            yield UserError(f"{path}.vertices[{index}]", text, hint)


def _cycle(job: models.Job, path: str) -> list[UserError]:
    """Find cycles: drop vertices without an input from the rest or without an output to it, until none is left to drop."""
    edges, rest, before = data_edges(job), {v.name for v in job.vertices}, 0
    while len(rest) != before:
        before = len(rest)
        rest &= {e.to for e in edges if e.from_ in rest}
        rest &= {e.from_ for e in edges if e.to in rest}
    names = ", ".join(v.name for v in job.vertices if v.name in rest)
    return [UserError(f"{path}.edges", f"there is a cycle among {names}", CYCLE_HINT)] if rest else []


class TooFewSlots(UserError):
    """The TaskManagers have fewer slots than the job needs."""


def _slots(testbed: models.TestbedSpec, path: str) -> Iterator[UserError]:
    managers = testbed.task_managers
    available, needed = managers.replicas * managers.slots, len(needed_slots(job_graph(testbed.job, seed=0)))
    if needed > available:
        yield TooFewSlots(
            f"{path}.taskManagers",
            f"the job needs {needed} slots (the largest parallelism of each slotSharingGroup, added up), but there are {available}"
            f" ({managers.replicas} × {managers.slots})",
            "add replicas or slots, or let groups share",
        )
