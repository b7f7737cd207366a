"""What a scenario asks for, as a list of trials. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from testbed_runtime.api import models, to_core
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.options import parse_duration
from testbed_runtime.core.trial.timeline import PlannedFault, Timeline

FAULT, CONTROL = "fault", "control"


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """One trial. `attempt` counts from 1; a voided trial is repeated as the next attempt under a new id."""

    variant: str
    role: str
    number: int
    seed: int
    testbed: models.TestbedSpec
    timeline: models.Timeline
    faults: tuple[Fault, ...]
    """Of the variant; a control trial keeps them for its phases and injects none."""
    attempt: int = 1

    @property
    def trial(self) -> str:
        """`<variant>-<n>`, `<variant>-control-<n>`; a repetition adds `-r<attempt>`."""
        role = f"-{CONTROL}" if self.role == CONTROL else ""
        again = f"-r{self.attempt}" if self.attempt > 1 else ""
        return f"{self.variant}{role}-{self.number}{again}"

    def repeated(self) -> TrialPlan:
        return replace(self, attempt=self.attempt + 1)

    def schedule(self) -> Timeline:
        """A fresh schedule of this trial."""
        return Timeline(
            warm_up_s=parse_duration(self.timeline.warm_up),
            baseline_s=parse_duration(self.timeline.baseline),
            observation_s=parse_duration(self.timeline.observation),
            faults=[PlannedFault(f.name, f.at_s, f.duration_s, f.before_submit) for f in self.faults],
            control=self.role == CONTROL,
        )

    @property
    def drain_limit_s(self) -> float:
        return parse_duration(self.timeline.drain)

    @property
    def planned_s(self) -> float:
        """From the running job to the drain."""
        return self.schedule().planned_s


def plan_trials(
    spec: models.ScenarioSpec, *, only: Sequence[str] = (), control: bool = True
) -> list[TrialPlan]:
    """For each variant (of `only`, when given) its control run first, then its trials.

    A variant without faults needs no control run: it is one. Trial n of every variant and its control share a seed."""
    trials: list[TrialPlan] = []
    for setting in to_core.settings(spec):
        if only and setting.name not in only:
            continue
        faults = tuple(to_core.fault(f) for f in setting.faults)
        if control and setting.control and faults:
            trials.append(_trial(spec, setting, faults, CONTROL, 1))
        trials += [_trial(spec, setting, faults, FAULT, n) for n in range(1, spec.trials + 1)]
    return trials


def _trial(
    spec: models.ScenarioSpec, setting: to_core.Setting, faults: tuple[Fault, ...], role: str, number: int
) -> TrialPlan:
    return TrialPlan(
        variant=setting.name,
        role=role,
        number=number,
        seed=spec.seed + number - 1,
        testbed=setting.testbed,
        timeline=spec.timeline,
        faults=faults,
    )
