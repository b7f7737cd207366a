"""The status of each kind, declared once.

The operator reads and writes these models, the runner and study pods write `RunReport` and `StudyReport` to the key
`status.json` of their ConfigMap, and api.crd_status derives the schema of the CRDs. Fields that have their default are left
out of the JSON. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from testbed_runtime.api.refusals import NOT_ADMITTED, QUOTA_EXCEEDED
from testbed_runtime.core.judgement.recovery import Price

STATUS_KEY = "status.json"
MAX_ROWS = 1_100
"""Trials of a run (100 of each of its variants, in most of them far fewer) or rows of a study."""
MAX_TARGETS = 256
MAX_MESSAGE = 32_768
"""Kubernetes' own bound of a condition's message."""
MAX_TEXT = 4_000
"""Characters of a text that a runner reports."""
MAX_ANSWER = 40
"""Lines of a run's answer that its status keeps."""
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


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """JSON with names in camelCase. Unknown fields are ignored when it is read."""


def rfc3339(now: float) -> str:
    """Return seconds since the epoch as the Kubernetes API writes times: whole seconds, UTC."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Condition(Model, frozen=True):
    """metav1.Condition."""

    type: Annotated[str, Meta(extra_json_schema={"maxLength": 316})]
    """Its name, such as `Ready`, `Stalled` or `Complete`."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Meta(extra_json_schema={"maxLength": 1024})]
    """Why, in a word; docs/kubernetes.md explains each."""
    message: Annotated[str, Meta(extra_json_schema={"maxLength": MAX_MESSAGE})]
    """Why, in a sentence."""
    observed_generation: int | None = None
    """The generation of the spec that it is about."""
    last_transition_time: Time = ""
    """When its status changed last."""

    @property
    def is_true(self) -> bool:
        return self.status == "True"


class Status(Model, frozen=True):
    """The fields that every kind has."""

    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    conditions: tuple[Condition, ...] = ()
    """The conditions, by type: status, reason and the time of the last change."""
    phase: str = ""
    """The state, in a word."""
    message: str = ""
    """The state, in a sentence."""

    def condition(self, type_: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == type_), None)

    def is_true(self, type_: str) -> bool:
        found = self.condition(type_)
        return found is not None and found.is_true

    @property
    def refusal(self) -> Condition | None:
        """The condition Stalled, while the API server refuses an object that is needed."""
        stalled = self.condition("Stalled")
        refused = stalled is not None and stalled.is_true and stalled.reason in {NOT_ADMITTED, QUOTA_EXCEEDED}
        return stalled if refused else None


class TestbedStatus(Status, frozen=True):
    __test__ = False

    selector: str = ""
    """Label selector of the TaskManager pods, for the scale subresource."""
    task_managers: int | None = None
    """TaskManager pods that exist."""
    ready_task_managers: int | None = None
    """TaskManagers that are registered and not paused."""
    incarnations: Mapping[str, int] = {}
    """Newest pod of each process, numbered from 1."""
    configuration: str = ""
    """Hash of the configuration that the pods of the observed generation are made from."""
    lost: Mapping[str, str] = {}
    """TaskManagers whose pod is gone or has ended, and since when."""
    members: tuple[str, ...] = ()
    """Processes whose pod was seen and was not deleted intentionally. A process in this list that has no pod is lost."""
    job_state: str = ""
    """State of the job at the JobManager."""
    tasks: str = ""
    """Running tasks of all tasks, as in `6/6`."""
    restarts: int | None = None
    """Failovers of the job."""
    checkpoints: int | None = None
    """Completed checkpoints of the job."""
    placement: Mapping[str, str] = {}
    """Subtask to TaskManager, of the newest attempt."""
    warnings: tuple[str, ...] = ()
    """Settings that are accepted but may be a mistake."""


class FaultStatus(Status, frozen=True):
    fault_id: str = ""
    """The id by which agents know it."""
    kind: str = ""
    """As in `network.latency`."""
    backend: str = ""
    """The mechanism that carries it out."""
    why: str = ""
    """Why this backend."""
    targets: tuple[str, ...] = ()
    """Targets, by logical name."""
    target: str = ""
    """`targets` as a text, as in `tm-0, tm-1`."""
    expected: str = ""
    """The effect that is expected."""
    deadline: Time | None = None
    """When it ends by itself."""
    injected_at: Time | None = None
    """When agents began it."""
    ended_at: Time | None = None
    """When the operator saw that it had ended."""
    remaining: str = ""
    """Time until its deadline, rounded up."""
    asked: Mapping[str, str] = {}
    """The requested values, in SI units."""
    measured: Mapping[str, str] = {}
    """The measured values, in SI units; `a.b` is field b of a."""
    verified: bool | None = None
    """The requested effect was measured."""
    planned_at: Time | None = None
    """When targets and backend were chosen, before anything was injected."""
    pods: Mapping[str, str] = {}
    """Process to the uid of its pod when it was planned."""
    held: tuple[str, ...] = ()
    """Agents that held it. One of these that no longer knows it has restarted."""
    reason: str = ""
    """Why it waits, or how it ended, in a word."""
    problem: str = ""
    """Why an agent refused it."""
    residue: Mapping[str, str] = {}
    """Residue after its end, by agent; empty: none."""


class ScenarioStatus(Status, frozen=True):
    variants: tuple[str, ...] = ()
    """Its variants."""
    warnings: tuple[str, ...] = ()
    """Settings that are accepted but may be a mistake."""


class TrialResult(Model, frozen=True):
    """A trial that has ended."""

    name: str
    """As in `main-1`; a repetition of a void trial ends in `-r2`."""
    job_state: str = ""
    """State of its job at the end."""
    voided: bool = False
    """Whether it does not count."""
    reason: str = ""
    """Why it does not count, or the error that ended it."""


class FaultResult(Model, frozen=True):
    """A fault of a run. `verified` and `residue` are None until they are measured."""

    name: str
    """Its name in the scenario."""
    backend: str = ""
    """The mechanism that injected it."""
    why: str = ""
    """Why this backend was chosen."""
    verified: bool | None = None
    """Whether its effect was measured."""
    residue: str | None = None
    """Residue of the faults; empty if they left none."""


class ActiveFault(Model, frozen=True):
    """A fault of the current trial that acts now."""

    name: str
    """Its name in the scenario."""
    kind: str
    """As in `network.latency`."""
    deadline: Time
    """When it ends by itself."""


class JobNow(Model, frozen=True):
    """The job of the current trial, when its JobManager last answered the runner."""

    running_tasks: int = 0
    """Tasks that are running."""
    total_tasks: int = 0
    """0: neither the tasks nor the other fields are known."""
    restarts: int = 0
    """Restarts of the job so far."""
    checkpoints: int = 0
    """Completed checkpoints."""
    counters: Mapping[str, float] = {}
    """Rates and lags of its tasks, as in the terminal's progress line."""


class RoundResult(Model, frozen=True):
    """A round of an outage: core.judgement.recovery.Round, with the seconds of each owner instead of its segments."""

    number: int
    """Its place in the outage, from 1."""
    seconds: float
    """Its length in seconds."""
    cause: str = ""
    """The failure that began it, in Flink's words."""
    ended_by: str = ""
    """`running`, `failure` or `open`."""
    owners: tuple[Price, ...] = ()
    """The options and causes that the seconds belong to; largest first."""


class OutageResult(Model, frozen=True):
    """core.judgement.recovery.Recovery, for a status."""

    summary: str
    """The outage in a line, as in the report."""
    seconds: float
    """Seconds from the effect of its cause until the lag is normal again."""
    fault: str = ""
    """The fault that caused it."""
    recovered: bool = True
    """Whether the job recovered from it."""
    reason: str = ""
    """Why it did not recover or could not be measured, in a word."""
    downtime_seconds: float | None = None
    """Seconds from the effect to the first new record at the last affected sink subtask."""
    unattributed_seconds: float = 0.0
    """Seconds that no recorded wait covers."""
    owners: tuple[Price, ...] = ()
    """The option or cause of each second of all rounds; largest first."""
    rounds: tuple[RoundResult, ...] = ()
    """Its rounds: each failure during a recovery begins another one."""


class RecoveryResult(Model, frozen=True):
    """The recovery of a trial, from recovery.json."""

    trial: str = ""
    """The name of the trial."""
    phases: Mapping[str, float] = {}
    """Seconds of each phase."""
    outages: tuple[OutageResult, ...] = ()
    """Its outages, in the order of time."""


class RunProgress(Status, frozen=True):
    """The part of a ScenarioRun's status that its runner reports."""

    verdict: str = ""
    """`Pass`, `Fail`, `Inconclusive` or `Error`, once it is complete."""
    reason: str = ""
    """Why the verdict is not `Pass`, in a word."""
    text: str = ""
    """The verdict in a sentence."""
    trial: str = ""
    """The current trial."""
    trial_phase: str = ""
    """The phase of the current trial."""
    trials_done: int = 0
    """Trials that finished and were not voided."""
    trials_total: int = 0
    """Trials that were requested."""
    remaining_seconds: float | None = None
    """Planned time until the end of the last trial."""
    job_state: str = ""
    """State of the job of the current trial."""
    job: JobNow = JobNow()
    """Numbers of the job of the current trial."""
    answer: tuple[str, ...] = ()
    """How long each trial was down, which wait cost each second, and which values would have helped: the lines of the terminal."""
    recovery: RecoveryResult = RecoveryResult()
    """The owners of the seconds of the last judged trial's outages."""
    delivery: Mapping[str, int] = {}
    """Counts of records of that trial: lost, duplicated, committed and so on."""
    trials: tuple[TrialResult, ...] = ()
    """The trials that have ended, also void ones."""
    active_faults: tuple[ActiveFault, ...] = ()
    """Faults of the current trial that act now."""
    faults: tuple[FaultResult, ...] = ()
    """The faults of the last trial that counts, as they were measured."""
    updated: Time | None = None
    """When the runner reported this."""


class RunReport(RunProgress, frozen=True):
    """`status.json` of a run."""

    evaluation_failure: str = ""
    """Why Spark failed, and the end of its log."""


class ScenarioRunStatus(RunProgress, frozen=True):
    progress: str = ""
    """Trials done of all, as in `1/3`."""
    remaining: str = ""
    """`remainingSeconds` as a text."""
    runner_starts: int = 0
    """How many runner pods there were."""
    runner_uid: str = ""
    """Uid of the newest runner pod."""
    recorder_starts: int = 0
    """How many recorder pods there were."""
    recorder_uid: str = ""
    """Uid of the newest recorder pod."""
    report: str = ""
    """ConfigMap with the report."""
    started_at: Time | None = None
    """When the operator began it."""
    completed_at: Time | None = None
    """When it ended."""


class StudyRow(Model, frozen=True):
    options: Mapping[str, str]
    """The values that it tries, by option."""
    verdict: str
    """The worst verdict of its runs; empty until all are complete."""
    best: bool
    """Whether it is the recommended row."""
    objectives: Mapping[str, str] = {}
    """The measured values, by objective. `(min)`: less is better."""
    runs: tuple[str, ...] = ()
    """The names of its ScenarioRuns."""
    reason: str = ""
    """Why it is not recommended."""
    reference: str = ""
    """`Default` or `Current`, for a row that is not of the grid."""
    front: bool = False
    """No other row is better in one objective and as good in the others."""
    costs: Mapping[str, str] = {}
    """Option to its price and its distance from its limit."""


class StudyProgress(Status, frozen=True):
    """The part of a TuningStudy's status that its pod reports."""

    runs_done: int = 0
    """Runs that are complete."""
    runs_total: int = 0
    """Runs of the grid."""
    best: str = ""
    """The best row: its option values, as in `key=value, key=value`, or the name of a reference."""
    answer: tuple[str, ...] = ()
    """The result in sentences, once the table is complete."""
    applied: str = ""
    """The Testbed to which the best row was applied."""
    table: tuple[StudyRow, ...] = ()
    """One row for each combination of values."""
    updated: Time | None = None
    """When the study's pod reported this."""


class StudyReport(StudyProgress, frozen=True):
    """`status.json` of a study."""

    reason: str = ""
    """How it ended, in a word; empty: with a complete table."""


class TuningStudyStatus(StudyProgress, frozen=True):
    progress: str = ""
    """Runs done of all, as in `4/12`."""
    pod_uid: str = ""
    """Uid of the study's newest pod."""
    pod_starts: int = 0
    """How many pods the study had."""
    started_at: Time | None = None
    """When the operator began it."""
    completed_at: Time | None = None
    """When it ended."""


def to_json(model: Model) -> dict[str, Any]:
    """Return the model as it is written to the API server or to `status.json`."""
    # lists, where to_builtins keeps tuples
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(model))
    return found


def read(model: type[M], value: Any) -> M:
    """Convert parsed JSON to a model. Raises ValueError if it does not match."""
    return msgspec.convert(value or {}, model)


def carried(progress: RunProgress | StudyProgress) -> dict[str, Any]:
    """Return the fields that the operator copies from a report into the status, by attribute.

    `phase`, `observedGeneration` and `conditions` are the operator's own."""
    common = RunProgress if isinstance(progress, RunProgress) else StudyProgress
    own = ("observed_generation", "conditions", "phase")
    return {f.name: getattr(progress, f.name) for f in msgspec.structs.fields(common) if f.name not in own}
