"""Compile a validated document into the plan that the runner, the hosts and the judge share.

Nothing behind this module reads a document again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed_runtime.api import models, to_core
from testbed_runtime.api.fields import NEVER
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.ids import JOB
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.core.job.keygroups import compute_default_max_parallelism
from testbed_runtime.core.judgement.samplesize import looks
from testbed_runtime.core.options import parse_duration
from testbed_runtime.core.trial.plan import CONTROL, FAULT, RunPlan, TestbedPlan, TrialPlan, Windows


def compile_run(
    scenario: models.Scenario,
    *,
    scenario_folder: Path,
    variants: Sequence[str] = (),
    control: bool = True,
) -> RunPlan:
    """Return the plan of a run: the first trial of each variant (of `variants`, if given), after its control trial, then the
    second of each, and so on: what changes with time changes all variants alike.

    A variant without faults gets no control trial, because it would be the same trial. Trial n of every variant has the
    same seed. `scenario_folder` contains the files that python operators name.

    Raises UserError for an unknown variant, or a python operator whose file does not exist."""
    spec = scenario.spec
    _check_variants(spec, variants)
    chosen = [s for s in to_core.settings(spec) if not variants or s.name in variants]
    beds = [_with_absolute_functions(setting.testbed, scenario_folder) for setting in chosen]
    pairs = list(zip(chosen, beds, strict=True))
    trials: list[TrialPlan] = []
    for number in range(1, spec.trials + 1):
        for setting, testbed in pairs:
            if number == 1 and control and setting.control and setting.faults:
                trials.append(_trial(spec, setting, testbed, CONTROL, 1))
            trials.append(_trial(spec, setting, testbed, FAULT, number))
    stop = spec.stop_early
    planned = looks(stop.min_trials, spec.trials) if stop else ()
    return RunPlan(seed=spec.seed, trials=tuple(trials), looks=planned)


def _check_variants(spec: models.ScenarioSpec, wanted: Sequence[str]) -> None:
    known = [v.name for v in spec.variants]
    for name in wanted:
        if name not in known:
            raise UserError(
                "--variant", f"there is no variant {name!r}", f"there are {', '.join(known) or 'none'}"
            )


def _trial(
    spec: models.ScenarioSpec, setting: to_core.Setting, testbed: models.TestbedSpec, role: str, number: int
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
        faults=tuple(to_core.fault(f, seed=seed) for f in setting.faults),
        expectations=tuple(to_core.expectation(e) for e in setting.expect),
    )


def compile_testbed(testbed: models.TestbedSpec, *, seed: int) -> TestbedPlan:
    """Return the plan of one testbed, as a trial or a Testbed resource describes it."""
    replace_lost = testbed.task_managers.replace_lost
    return TestbedPlan(
        flink_version=testbed.flink_version,
        configuration=dict(testbed.flink_configuration),
        job=job_graph(testbed.job, seed=seed),
        replicas=testbed.task_managers.replicas,
        slots=testbed.task_managers.slots,
        replace_lost_after_s=None if replace_lost == NEVER else parse_duration(replace_lost),
        proxy=testbed.pods.proxy,
        packet_faults=testbed.pods.packet_faults,
        resource=testbed.model_dump(mode="json", by_alias=True, exclude_unset=True),
    )


def _with_absolute_functions(testbed: models.TestbedSpec, folder: Path) -> models.TestbedSpec:
    """Look up `file.py:name` of python operators in the scenario's folder."""
    vertices = [_with_absolute_function(v, folder) for v in testbed.job.vertices]
    return testbed.model_copy(update={"job": testbed.job.model_copy(update={"vertices": vertices})})


def _with_absolute_function(vertex: models.Vertex, folder: Path) -> models.Vertex:
    if vertex.operator != "python":
        return vertex
    file, _, name = vertex.function.rpartition(":")
    path = (folder / file).resolve()
    if not path.is_file():
        raise UserError(
            f"job.vertices[{vertex.name}].function",
            f"there is no file {file!r} beside the scenario",
            f"put it into {folder}",
        )
    return vertex.model_copy(update={"function": f"{path}:{name}"})


def job_graph(job: models.Job, *, seed: int) -> JobGraph:
    """Return the job as the JobManager takes it."""
    return JobGraph(
        name=JOB,
        vertices=tuple(_vertex(v) for v in job.vertices),
        edges=tuple(JobEdge(e.from_, e.to, e.partitioning) for e in job.edges),
        seed=seed,
    )


def _vertex(vertex: models.Vertex) -> JobVertex:
    service_time_s = parse_duration(vertex.service_time)
    source = operator = sink = None
    if vertex.source is not None:
        source = SourceConfig(
            kind=vertex.source.kind,
            records_per_second=float(vertex.source.records_per_second),
            record_bytes=vertex.source.record_bytes,
            keys=vertex.source.keys,
            key_skew=float(vertex.source.key_skew),
            limit=vertex.source.limit,
            socket=vertex.source.socket,
        )
    if vertex.operator is not None:
        operator = OperatorConfig(
            kind=vertex.operator,
            service_time_s=service_time_s,
            window_s=parse_duration(vertex.window),
            function=vertex.function,
        )
    if vertex.sink is not None:
        sink = SinkConfig(
            kind=vertex.sink, delivery=vertex.delivery, path=vertex.path, service_time_s=service_time_s
        )
    return JobVertex(
        name=vertex.name,
        parallelism=vertex.parallelism,
        max_parallelism=vertex.max_parallelism or compute_default_max_parallelism(vertex.parallelism),
        slot_sharing_group=vertex.slot_sharing_group,
        source=source,
        operator=operator,
        sink=sink,
    )
