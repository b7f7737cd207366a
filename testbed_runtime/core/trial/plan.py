"""The plan of a run: which testbeds to create, what to do to them, and what to expect of them.

`api.compile` makes it once from a validated document. The runner, the hosts, the manifest and the judge read it; none of
them reads the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.exchange.tls import is_encrypted
from testbed_runtime.core.ids import task_manager_names
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.job.restore import STATE_RECOVERY
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.options import Options
from testbed_runtime.core.trial.timeline import Timeline, Windows
from testbed_runtime.core.values import parse_duration

if TYPE_CHECKING:
    from testbed_runtime.core.faults.model import Fault

RETENTION = "execution.checkpointing.externalized-checkpoint-retention"
Role = Literal["fault", "control"]
"""The role of a trial. The control trial has no faults."""
FAULT: Role = "fault"
CONTROL: Role = "control"
"""Roles of a trial. A control trial has the same phases and injects nothing."""


REAL_PARALLELISM_MAX = 512
REAL_TASK_MANAGERS_MAX = 128
"""Largest job of real processes: more do not run on one machine or in a small cluster. Virtual time takes larger ones."""
NEVER = "Never"
"""`replaceLost: Never`."""


def parse_replace_lost(text: str) -> float | None:
    """Return the delay after which a lost TaskManager is replaced; None: never."""
    return None if text == NEVER else parse_duration(text)


class TestbedPlan(Struct, frozen=True, kw_only=True):
    """One testbed: a JobManager, TaskManagers and one job."""

    __test__ = False  # pytest would take it for a test class

    flink_version: str
    configuration: Mapping[str, str]
    """Flink options, those of the variant merged into those of the scenario."""
    job: JobGraph
    replicas: int
    slots: int
    """Slots of each TaskManager."""
    replace_lost_s: float | None
    """Delay before a lost TaskManager is replaced. None: never."""
    proxy: bool = False
    """Whether all connections pass through a proxy. The runner decides it, from the backends of the environment."""
    frame_faults: bool = True
    """Whether a fault may hold or drop frames, so that every process counts its frames. The runner decides it."""
    packet_faults: bool = False
    """Whether each pod gets a container that can inject packet faults."""
    resource: Mapping[str, Any]
    """The `spec` of the Testbed resource that creates this testbed in a cluster."""

    @property
    def task_managers(self) -> tuple[str, ...]:
        """Their names, in order."""
        return task_manager_names(self.replicas)

    @property
    def recovery_path(self) -> str:
        """The folder of the kept checkpoint that the job starts from; empty: it starts without one."""
        return Options(self.configuration).text(STATE_RECOVERY)

    @property
    def tls(self) -> bool:
        """Whether the TaskManagers encrypt what they exchange, and so need a certificate."""
        return is_encrypted(self.configuration)

    @property
    def output_paths(self) -> list[str]:
        """The prefixes in the testbed's store that outlive it: those under which the file sinks publish, and that of the
        job's checkpoints if they are retained."""
        retention = Options(self.configuration).text(RETENTION)
        kept = ["jobs"] if retention == "RETAIN_ON_CANCELLATION" else []
        return kept + [v.sink.path or v.name for v in self.job.vertices if v.sink and v.sink.kind == "file"]


def plan_to_json(plan: TestbedPlan) -> Any:
    """Return the plan as JSON for the pods, without the resource that it was compiled from."""
    return msgspec.json.decode(msgspec.json.encode(replace(plan, resource={})))


def plan_from_json(data: Any) -> TestbedPlan | None:
    """Read what `plan_to_json` wrote. None: nothing, or the plan of another version, whose fields may mean something else."""
    try:
        plan = msgspec.convert(data, TestbedPlan)
    except msgspec.ValidationError:
        return None
    return plan if plan_to_json(plan) == data else None


class TrialPlan(Struct, frozen=True, kw_only=True):
    """One trial. `attempt` counts from 1: a void trial is repeated as the next attempt under a new id."""

    variant: str
    role: Role
    number: int
    seed: int
    testbed: TestbedPlan
    windows: Windows
    faults: tuple[Fault, ...]
    """The variant's faults; a control trial has them too, for the lengths of its phases."""
    expectations: tuple[Expectation, ...]
    attempt: int = 1

    @property
    def trial(self) -> str:
        """The trial's id: `<variant>-<n>` or `<variant>-control-<n>`, with `-r<attempt>` for a repetition."""
        role = f"-{CONTROL}" if self.role == CONTROL else ""
        repetition = f"-r{self.attempt}" if self.attempt > 1 else ""
        return f"{self.variant}{role}-{self.number}{repetition}"

    def schedule(self) -> Timeline:
        """Return a new schedule of this trial."""
        return Timeline(self.windows, self.faults, control=self.role == CONTROL)

    @property
    def planned_s(self) -> float:
        """Seconds from the running job to the drain."""
        return self.schedule().planned_s


class RunPlan(Struct, frozen=True, kw_only=True):
    """One run of a scenario: its trials in order."""

    seed: int
    trials: tuple[TrialPlan, ...]
    looks: tuple[int, ...] = ()
    """After how many trials of each variant the run looks whether its comparisons are decided, and stops then."""

    def is_look(self, index: int) -> bool:
        """Return whether the run looks at its comparisons before the trial with this index."""
        before = self.trials[index - 1].number if index else self.trials[index].number
        return self.trials[index].number != before and before in self.looks

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Every fault that some trial injects."""
        return tuple(fault for trial in self.trials if trial.role == FAULT for fault in trial.faults)
