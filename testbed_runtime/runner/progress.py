"""Progress events of a run. The command line renders them; tests collect them. Reporting never blocks or raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from testbed_runtime.api.status import JobNow


class RunStarted(Struct, frozen=True):
    run: str
    folder: str
    trials: int
    planned_s: float
    """Estimate of the whole run (`runner.estimate`); 0 if it is unknown."""
    virtual: bool = False
    """Whether the time is virtual, so that it passes faster than a clock."""


class TrialStarted(Struct, frozen=True):
    trial: str
    number: int
    """1 to RunStarted.trials; repetitions of void trials keep the number."""
    planned_s: float


class PhaseEntered(Struct, frozen=True):
    trial: str
    phase: str
    """`create`, the phases of core.trial.timeline (`ended` instead of `drain` for a job that has ended), `seal`, `dispose`."""
    remaining_s: float | None
    control: bool = False
    """Whether it is a control trial, which spends the phase `fault` without a fault."""


SHOWN_COUNTERS = ("records_per_s", "credits", "lag_s")
"""The counters of a sample that are shown, the most important first."""


class Sample(Struct, frozen=True):
    """The current state of the job."""

    remaining_s: float | None
    job_state: str
    job: JobNow


class Notice(Struct, frozen=True):
    """A message for the user: a fault was injected or healed, the job changed its state, the trial became void."""

    text: str


class Suspended(Struct, frozen=True):
    """The run waits between two trials until it is resumed."""

    text: str


class FaultChanged(Struct, frozen=True):
    """A fault began, or ended."""

    fault: str
    kind: str
    ends_in_s: float | None
    """Seconds until its deadline; None once it has ended."""


class TrialEnded(Struct, frozen=True):
    trial: str
    job_state: str
    drained: bool
    voided: bool
    error: str = ""
    reason: str = ""
    """Why the trial is void."""


class Evaluating(Struct, frozen=True):
    text: str


STAGES = {
    "fetch": "fetching the recorded histories",
    "histories": "reading the recorded histories",
    "spark": "starting Spark",
    "spark-again": "starting Spark again, because it ended",
    "trials": "computing the metrics of each trial",
    "results": "writing the results",
}
"""Texts for the stages of an evaluation (those of `evaluation.evaluate`, and those that `kube.spark.service` adds)."""


def evaluating(line: Mapping[str, Any]) -> Evaluating:
    """Return the event for a line that an evaluation sends while it is running: a stage, or the number of runs that it waits for."""
    stage = str(line.get("stage", ""))
    waits = "waiting until Spark has evaluated other runs"
    return Evaluating(f"  {waits if 'waiting' in line else STAGES.get(stage, stage)}")


class RunEnded(Struct, frozen=True):
    verdict: str
    folder: str
    report: str = ""


ProgressEvent: TypeAlias = (
    RunStarted
    | TrialStarted
    | PhaseEntered
    | Sample
    | Notice
    | Suspended
    | FaultChanged
    | TrialEnded
    | Evaluating
    | RunEnded
)


class Progress(Protocol):
    def on_event(self, event: ProgressEvent) -> None: ...


class Silent:
    """Ignores all events."""

    def on_event(self, event: ProgressEvent) -> None:
        """Do nothing."""
