"""What the engine tells while it works. The command line renders it; tests collect it. Telling never blocks or raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class RunStarted:
    run: str
    folder: str
    trials: int
    planned_s: float
    """Of all trials together, without starting and stopping them."""


@dataclass(frozen=True, slots=True)
class TrialStarted:
    trial: str
    number: int
    """From 1, of RunStarted.trials (repetitions of voided trials come on top)."""
    planned_s: float


@dataclass(frozen=True, slots=True)
class PhaseEntered:
    trial: str
    phase: str
    """`create`, those of core.timeline, `seal`, `dispose`."""
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class Sample:
    """The job as it is now."""

    trial: str
    phase: str
    remaining_s: float | None
    job_state: str
    running_tasks: int
    total_tasks: int
    restarts: int
    checkpoints: int
    counters: Mapping[str, float] = field(default_factory=dict)
    """records_per_s, credits, lag_s, …"""


@dataclass(frozen=True, slots=True)
class Happened:
    """Something for people: a fault injected or healed, a job that changed its state, a trial that is void."""

    trial: str
    text: str


@dataclass(frozen=True, slots=True)
class TrialEnded:
    trial: str
    job_state: str
    drained: bool
    voided: bool
    error: str = ""
    reason: str = ""
    """Why it is void."""


@dataclass(frozen=True, slots=True)
class Evaluating:
    text: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    verdict: str
    folder: str
    report: str = ""


ProgressEvent: TypeAlias = (
    RunStarted | TrialStarted | PhaseEntered | Sample | Happened | TrialEnded | Evaluating | RunEnded
)


class Progress(Protocol):
    def on_event(self, event: ProgressEvent) -> None: ...


class Silent:
    """Nobody listens."""

    def on_event(self, event: ProgressEvent) -> None:
        """Forget it."""


class Collected:
    """Keeps everything, for tests and for the simulator."""

    def __init__(self) -> None:
        self.events: list[ProgressEvent] = []

    def on_event(self, event: ProgressEvent) -> None:
        self.events.append(event)
