"""The status of each kind, declared once.

The operator reads and writes these models, the runner and study pods write `RunReport` and `StudyReport` to the key
`status.json` of their ConfigMap, and api.crd_status derives the schema of the CRDs. Fields that have their default are left
out of the JSON. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from testbed_runtime.core.judgement.recovery import Price

STATUS_KEY = "status.json"
MAX_ROWS = 1_100
"""Trials of a run (100 of each of its variants, in most of them far fewer) or rows of a study."""
MAX_TARGETS = 256
MAX_TEXT = 4_000
"""Characters of a text that a runner reports."""
MAX_TRIALS = 64
"""Trials that a run's status keeps; the newest."""
COMPLETE = "Complete"
"""The last phase of a Fault, a ScenarioRun and a TuningStudy, and the type of the condition that becomes True with
it."""
PLANNED, ACTIVE = "Planned", "Active"
"""Phases of a Fault: its targets and backend are chosen; an agent has begun it."""
SUSPENDED, EVALUATING = "Suspended", "Evaluating"
"""Phases of a ScenarioRun: `spec.suspend` is true (also of a TuningStudy); Spark evaluates its trials."""

RECORDER_LOST = "RecorderLost"
"""Reason of a run whose record was lost with the recorder's pod, and of the Event about it."""
REJECTED = "Rejected"
"""The phase of an object whose spec is refused: nothing was done, and nothing will be until the spec is corrected."""

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
M = TypeVar("M", bound="Model")


def about(text: str) -> Meta:
    """Attach a field's description, as `kubectl explain` shows it."""
    return Meta(description=text)


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """JSON with names in camelCase. Unknown fields are ignored when it is read."""


class Condition(Model, frozen=True):
    """metav1.Condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    """In CamelCase, never empty."""
    message: str
    observed_generation: int | None = None
    last_transition_time: Time = ""

    @property
    def is_true(self) -> bool:
        return self.status == "True"


class Status(Model, frozen=True):
    """The fields that every kind has."""

    observed_generation: Annotated[
        int | None, about("The generation of the spec that this status is about.")
    ] = None
    conditions: tuple[Condition, ...] = ()
    phase: Annotated[str, about("The state, in a word.")] = ""
    message: Annotated[str, about("The state, in a sentence.")] = ""

    def condition(self, type_: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == type_), None)

    def is_true(self, type_: str) -> bool:
        found = self.condition(type_)
        return found is not None and found.is_true


class TestbedStatus(Status, frozen=True):
    __test__ = False

    selector: Annotated[str, about("Label selector of the TaskManager pods, for the scale subresource.")] = ""
    task_managers: Annotated[int | None, about("TaskManager pods that exist.")] = None
    ready_task_managers: Annotated[int | None, about("TaskManagers that are registered and not paused.")] = (
        None
    )
    incarnations: Annotated[Mapping[str, int], about("Newest pod of each process, numbered from 1.")] = {}
    configuration: Annotated[
        str, about("Hash of the configuration that the pods of the observed generation are made from.")
    ] = ""
    lost: Annotated[
        Mapping[str, str], about("TaskManagers whose pod is gone or has ended, and since when.")
    ] = {}
    members: Annotated[
        tuple[str, ...],
        about("Processes whose pod was seen and was not deleted on purpose. One without a pod is lost."),
    ] = ()
    job_state: Annotated[str, about("State of the job at the JobManager.")] = ""
    tasks: Annotated[str, about("Running tasks of all tasks, as in `6/6`.")] = ""
    restarts: Annotated[int | None, about("Failovers of the job.")] = None
    checkpoints: Annotated[int | None, about("Completed checkpoints of the job.")] = None
    placement: Annotated[Mapping[str, str], about("Subtask to TaskManager, of the newest attempt.")] = {}
    warnings: Annotated[tuple[str, ...], about("Settings that are accepted but may be a mistake.")] = ()


class FaultStatus(Status, frozen=True):
    fault_id: Annotated[str, about("The id by which agents know it.")] = ""
    kind: Annotated[str, about("As in `network.latency`.")] = ""
    backend: Annotated[str, about("What carries it out.")] = ""
    why: Annotated[str, about("Why this backend.")] = ""
    targets: Annotated[tuple[str, ...], about("Targets, by logical name.")] = ()
    target: Annotated[str, about("`targets` as a text, as in `tm-0, tm-1`.")] = ""
    expected: Annotated[str, about("The effect that is expected.")] = ""
    deadline: Annotated[Time | None, about("When it ends by itself.")] = None
    injected_at: Annotated[Time | None, about("When agents began it.")] = None
    ended_at: Annotated[Time | None, about("When the operator saw that it had ended.")] = None
    remaining: Annotated[str, about("Time until its deadline, rounded up.")] = ""
    asked: Annotated[Mapping[str, str], about("The requested values, in SI units.")] = {}
    measured: Annotated[
        Mapping[str, str], about("The measured values, in SI units; `a.b` is field b of a.")
    ] = {}
    verified: Annotated[bool | None, about("The requested effect was measured.")] = None
    planned_at: Annotated[
        Time | None, about("When targets and backend were chosen, before anything was injected.")
    ] = None
    pods: Annotated[Mapping[str, str], about("Process to the uid of its pod when it was planned.")] = {}
    held: Annotated[
        tuple[str, ...],
        about("Agents that held it. One of these that no longer knows it has restarted."),
    ] = ()
    reason: Annotated[str, about("How it ended, in a word.")] = ""
    problem: Annotated[str, about("Why an agent refused it.")] = ""
    residue: Annotated[Mapping[str, str], about("Residue after its end, by agent; empty: none.")] = {}


class ScenarioStatus(Status, frozen=True):
    variants: Annotated[tuple[str, ...], about("Its variants.")] = ()
    warnings: Annotated[tuple[str, ...], about("Settings that are accepted but may be a mistake.")] = ()


class TrialResult(Model, frozen=True):
    name: str
    job_state: str = ""
    voided: bool = False
    reason: str = ""


class FaultResult(Model, frozen=True):
    """A fault of a run. `verified` and `residue` are None until they are measured."""

    name: str
    backend: str = ""
    why: str = ""
    verified: bool | None = None
    residue: str | None = None
    """Empty: nothing was left."""


class ActiveFault(Model, frozen=True):
    """A fault of the current trial that acts now."""

    name: str
    kind: Annotated[str, about("As in `network.latency`.")]
    deadline: Annotated[Time, about("When it ends by itself.")]


class RoundResult(Model, frozen=True):
    """A round of an outage: core.judgement.recovery.Round, with the seconds of each owner instead of its segments."""

    number: int
    seconds: float
    cause: Annotated[str, about("The failure that began it, in Flink's words.")] = ""
    ended_by: Annotated[str, about("`running`, `failure` or `open`.")] = ""
    owners: Annotated[tuple[Price, ...], about("Who the seconds belong to; largest first.")] = ()


class OutageResult(Model, frozen=True):
    """core.judgement.recovery.Recovery, for a status."""

    summary: Annotated[str, about("The outage in a line, as in the report.")]
    seconds: Annotated[float, about("From the effect of its cause until the lag is normal again.")]
    fault: Annotated[str, about("The fault that caused it.")] = ""
    recovered: bool = True
    reason: Annotated[str, about("Why it did not recover or could not be measured, in a word.")] = ""
    downtime_seconds: Annotated[
        float | None, about("From the effect to the first new record at the last affected sink subtask.")
    ] = None
    unattributed_seconds: Annotated[float, about("Seconds that no recorded wait covers.")] = 0.0
    owners: Annotated[
        tuple[Price, ...], about("The option or cause of each second of all rounds; largest first.")
    ] = ()
    rounds: tuple[RoundResult, ...] = ()


class RecoveryResult(Model, frozen=True):
    """The recovery of a trial, from recovery.json."""

    trial: str = ""
    phases: Annotated[Mapping[str, float], about("Seconds of each phase.")] = {}
    outages: tuple[OutageResult, ...] = ()


class RunProgress(Status, frozen=True):
    """The part of a ScenarioRun's status that its runner reports."""

    verdict: Annotated[str, about("`Pass`, `Fail`, `Inconclusive` or `Error`, once it is complete.")] = ""
    reason: Annotated[str, about("Why the verdict is not `Pass`, in a word.")] = ""
    text: Annotated[str, about("The verdict in a sentence.")] = ""
    trial: Annotated[str, about("The current trial.")] = ""
    trial_phase: Annotated[str, about("The phase of the current trial.")] = ""
    trials_done: Annotated[int, about("Trials that finished and were not voided.")] = 0
    trials_total: Annotated[int, about("Trials that were requested.")] = 0
    remaining_seconds: Annotated[float | None, about("Planned time until the end of the last trial.")] = None
    job_state: Annotated[str, about("State of the job of the current trial.")] = ""
    recovery: Annotated[
        RecoveryResult, about("What the seconds of the last judged trial's outages were spent on.")
    ] = RecoveryResult()
    delivery: Annotated[
        Mapping[str, int], about("Counts of records of that trial: lost, duplicated, committed and so on.")
    ] = {}
    trials: tuple[TrialResult, ...] = ()
    active_faults: Annotated[tuple[ActiveFault, ...], about("Faults of the current trial that act now.")] = ()
    faults: tuple[FaultResult, ...] = ()
    updated: Annotated[Time | None, about("When the runner reported this.")] = None


class RunReport(RunProgress, frozen=True):
    """`status.json` of a run."""

    evaluation_failure: str = ""
    """Why Spark failed, and the end of its log."""


class ScenarioRunStatus(RunProgress, frozen=True):
    progress: Annotated[str, about("Trials done of all, as in `1/3`.")] = ""
    remaining: Annotated[str, about("`remainingSeconds` as a text.")] = ""
    runner_starts: Annotated[int, about("How many runner pods there were.")] = 0
    runner_uid: Annotated[str, about("Uid of the newest runner pod.")] = ""
    recorder_starts: Annotated[int, about("How many recorder pods there were.")] = 0
    recorder_uid: Annotated[str, about("Uid of the newest recorder pod.")] = ""
    report: Annotated[str, about("ConfigMap with the report.")] = ""
    started_at: Time | None = None
    completed_at: Time | None = None


class StudyRow(Model, frozen=True):
    options: Mapping[str, str]
    verdict: str
    best: bool
    objectives: Mapping[str, str] = {}
    runs: tuple[str, ...] = ()
    reason: str = ""
    reference: Annotated[str, about("`Default` or `Current`, for a row that is not of the grid.")] = ""
    front: Annotated[bool, about("No other row is better in one objective and as good in the others.")] = (
        False
    )
    costs: Annotated[Mapping[str, str], about("Option to its price and its distance from its limit.")] = {}


class StudyProgress(Status, frozen=True):
    """The part of a TuningStudy's status that its pod reports."""

    runs_done: Annotated[int, about("Runs that are complete.")] = 0
    runs_total: Annotated[int, about("Runs of the grid.")] = 0
    best: Annotated[str, about("The best row: its option values, as in `key=value, key=value`.")] = ""
    answer: Annotated[tuple[str, ...], about("The result in sentences, once the table is complete.")] = ()
    applied: Annotated[str, about("The Testbed to which the best row was applied.")] = ""
    table: Annotated[tuple[StudyRow, ...], about("One row for each combination of values.")] = ()
    updated: Annotated[Time | None, about("When the study's pod reported this.")] = None


class StudyReport(StudyProgress, frozen=True):
    """`status.json` of a study."""

    reason: str = ""
    """How it ended, in a word; empty: with a complete table."""


class TuningStudyStatus(StudyProgress, frozen=True):
    progress: Annotated[str, about("Runs done of all, as in `4/12`.")] = ""
    pod_uid: Annotated[str, about("Uid of the study's newest pod.")] = ""
    pod_starts: Annotated[int, about("How many pods the study had.")] = 0
    started_at: Time | None = None
    completed_at: Time | None = None


MODELS: dict[str, type[Status]] = {
    "Testbed": TestbedStatus,
    "Fault": FaultStatus,
    "Scenario": ScenarioStatus,
    "ScenarioRun": ScenarioRunStatus,
    "TuningStudy": TuningStudyStatus,
}


def to_json(model: Model) -> dict[str, Any]:
    """Return the model as it is written to the API server or to `status.json`."""
    found: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(model)
    )  # lists, where to_builtins keeps tuples
    return found


def read(model: type[M], value: Any) -> M:
    """Return what was read as JSON as a model. Raises ValueError when it does not fit."""
    return msgspec.convert(value or {}, model)


def carried(progress: RunProgress | StudyProgress) -> dict[str, Any]:
    """Return the fields that the operator copies from a report into the status, by attribute.

    `phase`, `observedGeneration` and `conditions` are the operator's own. A field without a value stays as it was."""
    common = RunProgress if isinstance(progress, RunProgress) else StudyProgress
    own = ("observed_generation", "conditions", "phase")
    return {
        f.name: value
        for f in msgspec.structs.fields(common)
        if f.name not in own and (value := getattr(progress, f.name)) is not None
    }
