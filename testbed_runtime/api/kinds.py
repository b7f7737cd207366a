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
    Scalar,
    Scenario,
    ScenarioSpec,
    TestbedSpec,
)

RESOURCE_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
ResourceName = Annotated[str, StringConstraints(pattern=RESOURCE_NAME_PATTERN, max_length=253)]
RunName = Annotated[str, StringConstraints(pattern=models.NAME_PATTERN, max_length=limits.MAX_RUN_NAME)]
SECONDS_PER_WEEK = 7 * 24 * 3600
STAND_ALONE_NAME = "fault"
"""Name of a stand-alone fault that was given none."""


class Reference(Part):
    """A reference to an object in the same namespace."""

    name: ResourceName


class RunMetadata(Metadata):
    """Metadata of kinds whose names are often generated."""

    name: RunName


class TestbedResourceSpec(TestbedSpec):
    """A JobManager, TaskManagers and one job, as a resource of its own."""

    __test__ = False

    job_state: Literal["running", "suspended"] = "running"
    seed: int = Field(1, ge=0, le=limits.MAX_SEED)
    recorder: Annotated[str, StringConstraints(max_length=limits.MAX_PATH)] = ""
    """`host:port/t/trial` of a run's recorder; empty: nothing is recorded."""
    run: Annotated[str, StringConstraints(max_length=limits.MAX_OPTION_KEY)] = ""
    trial: Annotated[str, StringConstraints(max_length=limits.MAX_OPTION_KEY)] = ""


class Testbed(Part):
    __test__ = False

    api_version: Literal["headgate.dev/v1alpha1"]
    kind: Literal["Testbed"]
    metadata: Metadata
    spec: TestbedResourceSpec


class FaultResourceSpec(FaultBody):
    """A stand-alone fault: it begins when it is created; `plan: true` writes what would happen and injects nothing."""

    testbed_ref: Reference
    plan: bool = False
    seed: int = Field(1, ge=0, le=limits.MAX_SEED)

    def named(self, name: str = STAND_ALONE_NAME) -> FaultSpec:
        """Return it as a fault of a timeline, at 0 s, under `name`."""
        body = {field: getattr(self, field) for field in FaultBody.model_fields}
        return FaultSpec.model_construct(name=name, at="0 s", **body)


class Fault(Part):
    api_version: Literal["headgate.dev/v1alpha1"]
    kind: Literal["Fault"]
    metadata: Metadata
    spec: FaultResourceSpec


class Evaluation(Part):
    """`executors: 0` evaluates in the Spark driver's own process."""

    executors: int = Field(0, ge=0, le=limits.MAX_EXECUTORS)
    history_claim: Annotated[str, StringConstraints(max_length=253)] = ""
    """A claim that the driver and every executor can mount; needed when there are executors."""


class ScenarioRunSpec(Part):
    """One execution of a copy of a Scenario's spec. Immutable but for `suspend` and `ttlSecondsAfterFinished`."""

    scenario: ScenarioSpec
    scenario_name: ResourceName = "scenario"
    variants: list[Name] = Field([], max_length=limits.MAX_VARIANTS)
    control: bool = True
    suspend: bool = False
    ttl_seconds_after_finished: int | None = Field(None, ge=0, le=SECONDS_PER_WEEK)
    evaluation: Evaluation = Evaluation()


class ScenarioRun(Part):
    api_version: Literal["headgate.dev/v1alpha1"]
    kind: Literal["ScenarioRun"]
    metadata: RunMetadata
    spec: ScenarioRunSpec


class StudyOption(Part):
    """One Flink option and the values that are tried."""

    key: OptionKey
    values: Annotated[list[OptionValue], Field(min_length=1, max_length=limits.MAX_STUDY_VALUES)]


class Objective(Part):
    """A metric to minimize or maximize, measured in the runs or computed for the failure detector (`detector.…`)."""

    metric: Annotated[str, StringConstraints(min_length=1, max_length=limits.MAX_NAME * 2)]
    direction: Literal["min", "max"] = "min"
    quantile: Annotated[str, StringConstraints(max_length=limits.MAX_DURATION_TEXT)] | None = None
    phase: Annotated[str, StringConstraints(max_length=limits.MAX_NAME)] | None = None
    limit: Scalar | None = None


class Disturbance(Part):
    """Events of one TaskManager that are no failure. Their lengths are log-normal."""

    per_day: FractionText
    median: Duration
    p99: Duration


class Surroundings(Part):
    """Events in production that hit living TaskManagers, for the objectives of the failure detector."""

    task_managers: int = Field(1, ge=1, le=limits.MAX_PRODUCTION_TASKMANAGERS)
    pauses: Disturbance | None = None
    unreachable: Disturbance | None = None


class Budget(Part):
    runs: int = Field(50, ge=1, le=limits.MAX_STUDY_RUNS)
    parallel: int = Field(1, ge=1, le=limits.MAX_STUDY_PARALLEL)


class TuningStudySpec(Part):
    """A bounded grid: every combination of the options over every Scenario. `apply` writes the best row into a Testbed."""

    scenarios: Annotated[list[Reference], Field(min_length=1, max_length=limits.MAX_STUDY_SCENARIOS)]
    variants: list[Name] = Field([], max_length=limits.MAX_VARIANTS)
    options: Annotated[list[StudyOption], Field(min_length=1, max_length=limits.MAX_STUDY_OPTIONS)]
    objectives: Annotated[list[Objective], Field(min_length=1, max_length=limits.MAX_STUDY_OBJECTIVES)]
    budget: Budget = Budget()
    require: list[Expectation] = Field([], max_length=limits.MAX_EXPECTATIONS)
    trials: int | None = Field(None, ge=1, le=limits.MAX_TRIALS)
    references: list[Literal["Default", "Current"]] = Field([], max_length=2)
    surroundings: Surroundings | None = None
    apply: Reference | None = None
    suspend: bool = False


class TuningStudy(Part):
    api_version: Literal["headgate.dev/v1alpha1"]
    kind: Literal["TuningStudy"]
    metadata: RunMetadata
    spec: TuningStudySpec


KINDS: dict[str, type[Part]] = {
    "Testbed": Testbed,
    "Fault": Fault,
    "Scenario": Scenario,
    "ScenarioRun": ScenarioRun,
    "TuningStudy": TuningStudy,
}
"""The model of each kind's whole object."""

__all__ = [
    "KINDS",
    "Budget",
    "Disturbance",
    "Evaluation",
    "Fault",
    "FaultResourceSpec",
    "Objective",
    "Reference",
    "Scenario",
    "ScenarioRun",
    "ScenarioRunSpec",
    "StudyOption",
    "Surroundings",
    "Testbed",
    "TestbedResourceSpec",
    "TuningStudy",
    "TuningStudySpec",
]
