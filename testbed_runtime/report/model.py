"""The contents of the page, the Markdown and the JUnit file of a run. `report.build` fills it in."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from testbed_runtime.core.judgement.comparison import Comparison
from testbed_runtime.core.judgement.recovery import TrialRecovery
from testbed_runtime.core.judgement.series import TrialSeries
from testbed_runtime.core.judgement.verdict import Judged, VariantVerdict, Verdict

FULL_TRIALS = 12
"""Maximum trials that a page shows in full."""


class Cell(Struct, frozen=True):
    """A number in a table, and its ratio to the control run (None: there is nothing to compare with)."""

    shown: str
    value: float | None = None
    against_control: float | None = None


class PhaseLatency(Struct, frozen=True):
    """Throughput and latency in one phase of one trial. `cells` holds p50, p95, p99, as in LATENCY_QUANTILES."""

    phase: str
    title: str
    throughput: Cell
    cells: tuple[Cell, ...]

    @property
    def has_data(self) -> bool:
        return any(cell.value is not None for cell in (self.throughput, *self.cells))


class TrialView(Struct, frozen=True):
    """One trial as the page shows it."""

    trial: str
    variant: str
    role: str
    job_state: str
    flags: tuple[str, ...]
    series: TrialSeries | None
    latencies: tuple[PhaseLatency, ...]
    baseline_rate: float | None
    duration_s: float = 0.0
    """Seconds between the start of its first phase and the end of its last one."""
    pressure: tuple[tuple[str, str, str], ...] = ()
    """(phase, by time, by sampling): the back-pressure of every vertex in words, by both measures."""
    answer: TrialRecovery | None = None
    """Its recoveries as rounds; None if the run has no record of them."""

    @property
    def is_control(self) -> bool:
        return self.role == "control"


class FaultView(Struct, frozen=True):
    """A fault of a trial, or of several trials in which it had the same effect and residue, in words."""

    trial: str
    name: str
    kind: str
    when: str
    at_s: float | None
    asked: str
    measured: str
    after: str
    effect: str
    residue: str
    backend: str
    why: str
    text: str


class Setting(Struct, frozen=True):
    """One configuration key: its value per variant, its default, and whether any value differs from the default."""

    key: str
    values: tuple[str, ...]
    default: str
    differs: bool
    by_variant: bool


class RunView(Struct, frozen=True):
    """Everything that the page, the Markdown and the JUnit file show."""

    name: str
    hypothesis: str
    source: str
    place: str
    seed: str
    started: str
    verdict: Verdict
    summary: str
    variants: tuple[VariantVerdict, ...]
    first: tuple[str, ...]
    trials: tuple[TrialView, ...]
    expectations: tuple[Judged, ...]
    faults: tuple[FaultView, ...]
    settings: tuple[Setting, ...]
    environment: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    controls: Mapping[str, str]
    """The control trial that each variant is compared with."""
    comparison: Comparison = Comparison()

    @property
    def fault_trials(self) -> tuple[TrialView, ...]:
        return tuple(t for t in self.trials if not t.is_control)

    @property
    def compact(self) -> bool:
        """Whether there are so many trials that the page shows distributions first, and single trials without their tables."""
        return len(self.trials) > FULL_TRIALS
