"""The kinds as resources in a cluster: `Testbed`, `Fault`, `ScenarioRun` and `TuningStudy`, built from the parts in api.models.

`Scenario` is api.models.Scenario, the same document as on one machine. CRDs are generated from these models (api.crds).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from testbed_runtime.api import limits, models
from testbed_runtime.api.fields import Duration, FractionText
from testbed_runtime.api.models import (
    Expectation,
    FaultBody,
    FaultSpec,
    Metadata,
    Name,
    OptionKey,
    OptionValue,
    Part,
    PathText,
    Scalar,
    Scenario,
    ScenarioSpec,
    TestbedSpec,
)
from testbed_runtime.api.naming import ApiVersion

RESOURCE_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
ResourceName = Annotated[str, StringConstraints(pattern=RESOURCE_NAME_PATTERN, max_length=253)]
RunName = Annotated[str, StringConstraints(pattern=models.NAME_PATTERN, max_length=limits.MAX_RUN_NAME)]
SECONDS_PER_WEEK = 7 * 24 * 3600
STAND_ALONE_NAME = "fault"
"""Default name of a stand-alone fault."""


class Reference(Part):
    """A reference to an object in the same namespace."""

    name: ResourceName
    """Name of an object of the same namespace."""


class RunMetadata(Metadata):
    """Metadata of kinds whose names are often generated."""

    name: RunName
    """At most 50 characters; `generateName` generates one."""


class TestbedResourceSpec(TestbedSpec):
    """A JobManager, TaskManagers and one job, as a resource of its own."""

    __test__ = False

    job_state: Literal["running", "suspended"] = "running"
    """`running`: the JobManager submits the job at its first start; `suspended`: the client that created the testbed submits it."""
    seed: int = Field(1, ge=0, le=limits.MAX_SEED)
    """The seed of the workload: the same seed makes the same records."""
    recorder: PathText = ""
    """`host:port/t/trial` of a run's recorder; empty: nothing is recorded. Set by the runner."""
    run: Annotated[str, StringConstraints(max_length=limits.MAX_OPTION_KEY)] = ""
    """The run that the testbed belongs to. Set by the runner."""
    trial: Annotated[str, StringConstraints(max_length=limits.MAX_OPTION_KEY)] = ""
    """The trial that the testbed serves. Set by the runner."""


class Testbed(Part):
    __test__ = False

    api_version: ApiVersion
    """The version of the schema."""
    kind: Literal["Testbed"]
    """The kind of object."""
    metadata: Metadata
    """The name: at most 40 characters, because it is part of the names of its pods."""
    spec: TestbedResourceSpec
    """The processes, their configuration and their job."""


class FaultResourceSpec(FaultBody):
    """A stand-alone fault: it begins when it is created; `plan: true` writes what would happen and injects nothing."""

    testbed_ref: Reference
    """The Testbed that the fault affects."""
    plan: bool = False
    """Write targets, backend and expected effect into the status, and inject nothing."""
    seed: int = Field(1, ge=0, le=limits.MAX_SEED)
    """Seed of the random choices: `mode: one`, drops and jitter."""

    def named(self, name: str = STAND_ALONE_NAME) -> FaultSpec:
        """Return it as a fault of a timeline, at 0 s, under `name`."""
        body = {field: getattr(self, field) for field in FaultBody.model_fields}
        return FaultSpec.model_construct(name=name, at="0 s", **body)


class Fault(Part):
    api_version: ApiVersion
    """The version of the schema."""
    kind: Literal["Fault"]
    """The kind of object."""
    metadata: Metadata
    """Its name."""
    spec: FaultResourceSpec
    """The effect, the processes that it hits, and how long it lasts. It begins when the object is created and ends at its deadline, even if the operator is gone."""


class Evaluation(Part):
    """`executors: 0` evaluates in the Spark driver's own process."""

    executors: int = Field(0, ge=0, le=limits.MAX_EXECUTORS)
    """The number of Spark executor pods; 0: evaluate in the driver's process."""
    history_claim: Annotated[str, StringConstraints(max_length=253)] = ""
    """The volume claim with the histories, which the driver and every executor mount. Required with executors."""


class ScenarioRunSpec(Part):
    """One execution of a copy of a Scenario's spec. Immutable but for `suspend` and `ttlSecondsAfterFinished`."""

    scenario: ScenarioSpec
    """A copy of the Scenario's spec. Later changes of the Scenario do not affect this run."""
    scenario_name: ResourceName = "scenario"
    """The Scenario that the copy was made from; shown in the report."""
    variants: list[Name] = Field([], max_length=limits.MAX_VARIANTS)
    """Run only these variants; empty: all."""
    control: bool = True
    """`false`: no control runs, whatever the Scenario says."""
    suspend: bool = False
    """Before the start: nothing is created. Later: the current trial ends as planned, and the next one waits."""
    ttl_seconds_after_finished: int | None = Field(None, ge=0, le=SECONDS_PER_WEEK)
    """Delete the run, its report and its history this long after its end. By default they are kept."""
    evaluation: Evaluation = Evaluation()
    """How the histories are evaluated."""


class ScenarioRun(Part):
    api_version: ApiVersion
    """The version of the schema."""
    kind: Literal["ScenarioRun"]
    """The kind of object."""
    metadata: RunMetadata
    """The name."""
    spec: ScenarioRunSpec
    """One execution: a copy of a Scenario's spec, and how to run it."""


class StudyOption(Part):
    """One Flink option and the values that are tried."""

    key: OptionKey
    """A Flink option."""
    values: Annotated[list[OptionValue], Field(min_length=1, max_length=limits.MAX_STUDY_VALUES)]
    """Its values, as strings in Flink's syntax."""


class Objective(Part):
    """A metric to minimize or maximize, measured in the runs or computed for the failure detector (`detector.…`)."""

    metric: Annotated[str, StringConstraints(min_length=1, max_length=limits.MAX_NAME * 2)]
    """The metric: see metrics; or `detector.false-failovers`, `detector.accuracy`, `detector.dead` or `detector.silent`, which are computed from `surroundings`. The mean over the trials counts; with several scenarios, that of the worst one."""
    direction: Literal["min", "max"] = "min"
    """Whether less (`min`) or more (`max`) is better."""
    quantile: Annotated[str, StringConstraints(max_length=limits.MAX_DURATION_TEXT)] | None = None
    """`0.99`, `p99` or `99 %`, for metrics that have quantiles."""
    phase: Annotated[str, StringConstraints(max_length=limits.MAX_NAME)] | None = None
    """`baseline`, `fault` or `observation`, for metrics that have phases."""
    limit: Scalar | None = None
    """A row that is worse than this is not recommended, such as `30 s`, or `1` for false failovers per day."""


class Disturbance(Part):
    """Harmless events of one TaskManager. Their durations are log-normal."""

    per_day: FractionText
    """Events per day of each TaskManager. A decimal number in quotes."""
    median: Duration
    """The median of their lengths."""
    p99: Duration
    """The 99th percentile of their lengths."""


class Surroundings(Part):
    """Events in production that hit living TaskManagers, for the objectives of the failure detector."""

    task_managers: int = Field(1, ge=1, le=limits.MAX_PRODUCTION_TASKMANAGERS)
    """TaskManagers of the production cluster."""
    pauses: Disturbance | None = None
    """Pauses of the process, such as garbage collections: connections stay, heartbeats are not answered."""
    unreachable: Disturbance | None = None
    """Outages in which connections to the TaskManager are refused."""


class Budget(Part):
    runs: int = Field(50, ge=1, le=limits.MAX_STUDY_RUNS)
    """The largest number of runs. A grid that needs more is refused before the first run."""
    parallel: int = Field(1, ge=1, le=limits.MAX_STUDY_PARALLEL)
    """The number of concurrent runs in a cluster. On one machine they run one after the other."""


class TuningStudySpec(Part):
    """A bounded grid: every combination of the options over every Scenario. `apply` writes the best row into a Testbed. Once it has begun, only
    `budget`, `apply` and `suspend` can change."""

    scenarios: Annotated[list[Reference], Field(min_length=1, max_length=limits.MAX_STUDY_SCENARIOS)]
    """Scenarios in this namespace; each is run with every combination of values. Each run copies it when it starts, so do not change it before the study is complete. On one machine: folders or files beside the study."""
    variants: list[Name] = Field([], max_length=limits.MAX_VARIANTS)
    """Run only these variants of them; empty: each scenario itself, without its variants."""
    options: Annotated[list[StudyOption], Field(min_length=1, max_length=limits.MAX_STUDY_OPTIONS)]
    """The grid: every combination of their values is tried."""
    objectives: Annotated[list[Objective], Field(min_length=1, max_length=limits.MAX_STUDY_OBJECTIVES)]
    """The metrics to optimize, the most important first: a later one only decides between equal results."""
    budget: Budget = Budget()
    """The limits of the study."""
    require: list[Expectation] = Field([], max_length=limits.MAX_EXPECTATIONS)
    """The conditions that a combination must satisfy to be the best, in addition to the expectations of its scenarios."""
    trials: int | None = Field(None, ge=1, le=limits.MAX_TRIALS)
    """Trials of each run, instead of the scenario's; more than one gives intervals. In virtual time, rows that the first trial rules out get no further ones."""
    references: list[Literal["Default", "Current"]] = Field([], max_length=2)
    """Also run Flink's defaults of the options (`Default`), or the scenarios as they are (`Current`), and compare the best row with them. A row of the grid that has the same values is shown as both. `headgate tune` in virtual time always runs both."""
    surroundings: Surroundings | None = None
    """Disturbances in production, from which the false failovers and the detection times of each row are computed."""
    apply: Reference | None = None
    """A Testbed whose flinkConfiguration is set to the values of the best row. Nothing is set if the best row is a reference with values outside the grid."""
    suspend: bool = False
    """Create no further run; runs that have started are completed."""


class TuningStudy(Part):
    api_version: ApiVersion
    """The version of the schema."""
    kind: Literal["TuningStudy"]
    """The kind of object."""
    metadata: RunMetadata
    """The name."""
    spec: TuningStudySpec
    """The options to try, the scenarios to run, and the objectives."""


KINDS: dict[str, type[Part]] = {
    model.__name__: model for model in (Testbed, Fault, Scenario, ScenarioRun, TuningStudy)
}
"""The model of each kind's whole object."""
