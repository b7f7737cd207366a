"""Compile a validated document into the plan that the runner, the hosts and the judge share.

Nothing behind this module reads a document again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from testbed_runtime.api import fields, models
from testbed_runtime.api.iteration_rules import WrittenIteration, data_edges, iterations
from testbed_runtime.core.errors import UserError, nearest_each
from testbed_runtime.core.faults.kinds import FAMILIES
from testbed_runtime.core.faults.model import Fault, Target
from testbed_runtime.core.faults.vocabulary import Type
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.ids import JOB, JOBMANAGER
from testbed_runtime.core.job.functions import is_in_cluster
from testbed_runtime.core.job.jobgraph import (
    FUNCTIONS,
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.core.job.keygroups import compute_default_max_parallelism
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.judgement.samplesize import looks
from testbed_runtime.core.trial.plan import (
    CONTROL,
    FAULT,
    Role,
    RunPlan,
    TestbedPlan,
    TrialPlan,
    parse_replace_lost,
)
from testbed_runtime.core.trial.timeline import Windows
from testbed_runtime.core.values import parse_duration

MAIN_VARIANT = "main"
"""The variant of a scenario without variants."""


def compile_run(
    scenario: models.Scenario, *, scenario_folder: Path, variants: Sequence[str] = (), control: bool = True
) -> RunPlan:
    """Return the plan of a run: the first trial of each variant (of `variants`, if given), after its control trial, then the
    second trial of each, and so on. In this order, changes over time affect all variants alike.

    A variant without faults gets no control trial, because it would be the same trial. Trial n of every variant has the
    same seed. `scenario_folder` contains the files that python operators name.

    Raises UserError for an unknown variant, or a python operator whose file does not exist."""
    spec = scenario.spec
    _check_variants(spec, variants)
    chosen = [s for s in merged_variants(spec) if not variants or s.name in variants]
    beds = [_with_absolute_functions(setting.testbed, scenario_folder) for setting in chosen]
    pairs = list(zip(chosen, beds, strict=True))
    trials: list[TrialPlan] = []
    for number in range(1, spec.trials + 1):
        for setting, testbed in pairs:
            if number == 1 and control and setting.control and setting.faults:
                trials.append(_trial(spec, setting, testbed, CONTROL, 1))
            trials.append(_trial(spec, setting, testbed, FAULT, number))
    return RunPlan(seed=spec.seed, trials=tuple(trials), looks=planned_looks(spec))


def planned_looks(spec: models.ScenarioSpec) -> tuple[int, ...]:
    """Return the numbers of trials after which a run evaluates its comparisons to stop early. Empty for a run that may not stop early."""
    stop = spec.stop_early
    return looks(stop.min_trials, spec.trials) if stop else ()


def _check_variants(spec: models.ScenarioSpec, wanted: Sequence[str]) -> None:
    known = [v.name for v in spec.variants]
    if unknown := [name for name in dict.fromkeys(wanted) if name not in known]:
        hint = nearest_each(unknown, known) if known else "the scenario has no variants: omit --variant"
        named = ", ".join(map(repr, unknown))
        problem = f"variant {named} does not exist" if len(unknown) == 1 else f"variants {named} do not exist"
        raise UserError("--variant", problem, hint)


def _trial(
    spec: models.ScenarioSpec, setting: MergedVariant, testbed: models.TestbedSpec, role: Role, number: int
) -> TrialPlan:
    seed = spec.seed + number - 1
    return TrialPlan(
        variant=setting.name,
        role=role,
        number=number,
        seed=seed,
        testbed=compile_testbed(testbed, seed=seed),
        windows=Windows(
            warm_up_s=parse_duration(spec.timeline.warm_up),
            baseline_s=parse_duration(spec.timeline.baseline),
            observation_s=parse_duration(spec.timeline.observation),
            drain_s=parse_duration(spec.timeline.drain),
        ),
        faults=tuple(compile_fault(f, seed=seed) for f in setting.faults),
        expectations=tuple(compile_expectation(e) for e in setting.expect),
    )


class MergedVariant(Struct, frozen=True):
    """One variant, merged with the scenario: the source of its control trial and its trials."""

    name: str
    testbed: models.TestbedSpec
    faults: tuple[models.FaultSpec, ...]
    expect: tuple[models.Expectation, ...]
    control: bool


def merged_variants(spec: models.ScenarioSpec) -> list[MergedVariant]:
    """Return the merged variants in the order of the document. A document without variants has one called `main`."""
    return [_merged(spec, variant) for variant in spec.variants] or [without_variants(spec)]


def without_variants(spec: models.ScenarioSpec) -> MergedVariant:
    """Return the scenario's own settings."""
    return MergedVariant(MAIN_VARIANT, spec.testbed, tuple(spec.faults), tuple(spec.expect), spec.control)


def _merged(spec: models.ScenarioSpec, variant: models.Variant) -> MergedVariant:
    changes: dict[str, Any] = {
        "flink_configuration": {**spec.testbed.flink_configuration, **variant.flink_configuration}
    }
    for part in ("flink_version", "task_managers", "job"):
        if getattr(variant, part) is not None:
            changes[part] = getattr(variant, part)
    return MergedVariant(
        name=variant.name,
        testbed=spec.testbed.model_copy(update=changes),
        faults=tuple(spec.faults if variant.faults is None else variant.faults),
        expect=merge_expectations((e for e in spec.expect if e.versus != variant.name), variant.expect),
        control=spec.control if variant.control is None else variant.control,
    )


def merge_expectations(
    base: Iterable[models.Expectation], own: Iterable[models.Expectation]
) -> tuple[models.Expectation, ...]:
    """Merge expectations. A variant's items about a metric, quantile, phase and other variant replace the scenario's items about the same.
    All others are added. An item that is repeated counts once."""
    merged = grouped((e.key, e) for e in base) | grouped((e.key, e) for e in own)
    return tuple(dict.fromkeys(e for about_the_same in merged.values() for e in about_the_same))


def compile_fault(spec: models.FaultSpec, *, seed: int | None = None) -> Fault:
    """Return the fault as core.faults knows it, with its parameters in SI units. `seed` is the trial's seed, which decides
    where within `jitter` the fault begins. Without a seed, the fault begins at the end of `jitter`."""
    before_submit = spec.at == fields.AT_DEPLOY
    share = 1.0 if seed is None else Random(f"{seed}/{spec.name}/at").random()  # noqa: S311
    return Fault(
        name=spec.name,
        kind=spec.kind.name,
        at_s=0.0 if before_submit else parse_duration(spec.at) + share * parse_duration(spec.jitter),
        duration_s=parse_duration(spec.duration),
        target=_target(spec.target, spec.kind.family),
        plane=spec.plane,
        direction=spec.direction,
        params=_params(spec),
        on_target_restart=spec.on_target_restart,
        before_submit=before_submit,
    )


def _params(spec: models.FaultSpec) -> dict[str, Any]:
    """Return the kind's parameters by Parameter.key, without optional parameters that are not set."""
    params: dict[str, Any] = {}
    for parameter in spec.kind.parameters:
        value = getattr(spec.parameters, parameter.name)
        if value is not None:
            params[parameter.key] = parse_duration(value) if parameter.type is Type.DURATION else value
    return params


def _target(target: models.TargetSpec | None, family: str) -> Target:
    if target is None:
        return Target(names=(JOBMANAGER,)) if FAMILIES[family].jobmanager_only else Target()
    peers = target.peers or models.Peers()
    chosen = target.task_managers or models.TaskManagerSelection()
    return Target(
        names=tuple(chosen.names) if target.task_managers else (JOBMANAGER,),
        running=chosen.running or "",
        mode=chosen.mode,
        value=chosen.value or 0,
        peers=tuple(peers.names),
        peers_running=peers.running or "",
    )


def compile_expectation(item: models.Expectation) -> Expectation:
    """Return an expectation as core.judgement judges it. If it is invalid, its `problem` says why."""
    return Expectation.from_item(item.model_dump(exclude_none=True))


def compile_testbed(testbed: models.TestbedSpec, *, seed: int) -> TestbedPlan:
    """Return the plan of one testbed, as a trial or a Testbed resource describes it."""
    return TestbedPlan(
        flink_version=testbed.flink_version,
        configuration=dict(testbed.flink_configuration),
        job=job_graph(testbed.job, seed=seed),
        replicas=testbed.task_managers.replicas,
        slots=testbed.task_managers.slots,
        replace_lost_s=parse_replace_lost(testbed.task_managers.replace_lost),
        proxy=testbed.pods.proxy,
        packet_faults=testbed.pods.packet_faults,
        resource=testbed.model_dump(mode="json", by_alias=True, exclude_unset=True),
    )


def _with_absolute_functions(testbed: models.TestbedSpec, folder: Path) -> models.TestbedSpec:
    """Look up `file.py:name` of python operators in the scenario's folder. A file in a ConfigMap is looked up in the pods."""
    vertices = [_with_absolute_paths(v, folder) for v in testbed.job.vertices]
    return testbed.model_copy(update={"job": testbed.job.model_copy(update={"vertices": vertices})})


def _with_absolute_paths(vertex: models.Vertex, folder: Path) -> models.Vertex:
    where = f"job.vertices[{vertex.name}]"
    if vertex.iteration is not None and vertex.iteration.criterion:
        criterion = _absolute(vertex.iteration.criterion, folder, f"{where}.iteration.criterion")
        iteration = vertex.iteration.model_copy(update={"criterion": criterion})
        return vertex.model_copy(update={"iteration": iteration})
    if vertex.operator not in FUNCTIONS:
        return vertex
    return vertex.model_copy(update={"function": _absolute(vertex.function, folder, f"{where}.function")})


def _absolute(function: str, folder: Path, where: str) -> str:
    if is_in_cluster(function):
        return function
    file, _, name = function.rpartition(":")
    path = (folder / file).resolve()
    if not path.is_file():
        raise UserError(
            where, f"the file {file!r} does not exist beside the scenario", f"put it into {folder}"
        )
    return f"{path}:{name}"


def job_graph(job: models.Job, *, seed: int) -> JobGraph:
    """Return the job as the JobManager takes it."""
    loops = iterations(job)
    vertices = [_vertex(v, loops) for v in job.vertices]
    edges = [JobEdge(e.from_, e.to, e.partitioning, e.result, e.deployment) for e in data_edges(job)]
    for loop in loops:
        vertices.append(_synchronization(loop))
        edges.append(JobEdge(loop.head.name, loop.config.sync, "rebalance"))
    return JobGraph(name=JOB, vertices=tuple(vertices), edges=tuple(edges), seed=seed)


def _synchronization(loop: WrittenIteration) -> JobVertex:
    """Return the synchronisation task of an iteration. It runs in a slot of the head."""
    return JobVertex(
        loop.config.sync,
        parallelism=1,
        max_parallelism=compute_default_max_parallelism(1),
        slot_sharing_group=loop.head.slot_sharing_group,
        synchronizes=loop.config,
    )


def _vertex(vertex: models.Vertex, loops: Sequence[WrittenIteration]) -> JobVertex:
    service_time_s = parse_duration(vertex.service_time)
    source = operator = sink = None
    if vertex.source is not None:
        # not strict, because decimals are strings in a document
        source = msgspec.convert(vertex.source, SourceConfig, from_attributes=True, strict=False)
    if vertex.operator is not None:
        operator = OperatorConfig(
            kind=vertex.operator,
            service_time_s=service_time_s,
            window_s=parse_duration(vertex.window),
            function=vertex.function,
            state_ttl_s=parse_duration(vertex.state_ttl),
        )
    if vertex.sink is not None:
        sink = SinkConfig(
            kind=vertex.sink, delivery=vertex.delivery, path=vertex.path, service_time_s=service_time_s
        )
    return JobVertex(
        name=vertex.name,
        parallelism=vertex.parallelism,
        max_parallelism=vertex.max_parallelism or compute_default_max_parallelism(vertex.parallelism),
        max_parallelism_computed=vertex.max_parallelism is None,
        slot_sharing_group=vertex.slot_sharing_group,
        inputs=vertex.inputs,
        source=source,
        operator=operator,
        sink=sink,
        iteration=next((loop.config for loop in loops if loop.head.name == vertex.name), None),
        feeds_back=next((loop.config for loop in loops if loop.tail and loop.tail.name == vertex.name), None),
    )
