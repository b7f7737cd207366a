"""Processes and testbeds: what the runner drives, on this machine, in a cluster, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from testbed_runtime.ports.storage import HistorySink


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process of ours. `name` is the ordinal name (`tm-0`, `jobmanager`, `recorder`, `proxy`)."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessState:
    name: str
    pid: int | None
    incarnation: int
    state: str
    """`running`, `paused`, `exited`, `killed`."""
    ready: Mapping[str, Any] = field(default_factory=dict)
    """What the process said when it was ready (its addresses)."""
    exit_code: int | None = None
    stderr_tail: str = ""
    asked: bool = False
    """Somebody of ours ended it: a fault, or a stop."""


class ProcessHost(Protocol):
    """Starts, kills, pauses, resumes processes; ends them all when its owner is gone."""

    async def start(self, spec: ProcessSpec, *, timeout_s: float = 20.0) -> ProcessState:
        """Until it says it is ready. Raises HeadgateError with the tail of its stderr."""

    async def kill(self, name: str) -> None: ...

    async def pause(self, name: str) -> None: ...

    async def resume(self, name: str) -> None: ...

    async def stop(self, name: str, *, grace_s: float = 3.0) -> None: ...

    def states(self) -> Sequence[ProcessState]: ...


@dataclass(frozen=True, slots=True)
class TrialContext:
    """Which trial a testbed serves; goes into every row of the history."""

    run: str
    trial: str
    """`<variant>-<n>` or `<variant>-control-<n>`; the variant of a scenario without variants is `main`."""
    seed: int


@dataclass(frozen=True, slots=True)
class JobStatus:
    state: str
    cause_class: str = ""
    cause: str = ""
    restarts: int = 0
    running_tasks: int = 0
    total_tasks: int = 0
    completed_checkpoints: int = 0
    placement: Mapping[str, str] = field(default_factory=dict)
    """Subtask (`count-0`) → TaskManager's ordinal name (`tm-2`), of the newest attempt."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """For live progress: records_per_s, credits, lag_s, …"""


@dataclass(frozen=True, slots=True)
class FaultHandle:
    """A fault that a backend holds."""

    fault: str
    backend: str
    why: str
    targets: tuple[str, ...] = ()


class Testbed(Protocol):
    """A running testbed: one job, its processes, the fault API."""

    @property
    def history(self) -> HistorySink | None:
        """Where the runner writes its own rows (`trial.phase`), as process `runner`."""

    async def job_status(self) -> JobStatus: ...

    async def submit(self) -> None:
        """Submit the job of the scenario and return when the Dispatcher has it."""

    async def stop_job(self, *, timeout_s: float) -> bool:
        """Drain with a final checkpoint. False: not within the limit."""

    async def inject(
        self, fault: Any, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        """`fault` is a `faults.model.Fault`, targets are logical names already resolved by the runner
        (TaskManagers' ordinal names, or `a->b` links)."""

    async def renew(self, fault_id: str) -> None:
        """Raises HeadgateError when the fault is not there any more."""

    async def heal(self, fault_id: str) -> None:
        """Harmless when the fault already ended."""

    async def residue(self) -> Mapping[str, Any]:
        """What is left of faults, measured now: `{}` is clean."""

    async def check(self) -> None:
        """Raises HeadgateError when something that the trial cannot do without is gone and no fault took it away: the
        JobManager, the recorder, the proxy, the supervisor. A lost TaskManager is what failovers are for."""

    async def finish_history(self) -> str:
        """Flush and seal; the folder of this trial's Parquet tables."""


class TestbedHost(Protocol):
    """Where testbeds come from."""

    place: str
    """`local`, `kubernetes`, `simulation`."""
    capabilities: Any
    """A `faults.registry.Capabilities`: which backends there are, and why the others are not."""

    async def create(self, testbed: Any, *, context: TrialContext, use_proxy: bool) -> Testbed:
        """`testbed` is a `api.models.TestbedSpec` with the variant's configuration already merged.
        Returns when all TaskManagers are registered."""

    async def dispose(self, testbed: Testbed) -> None:
        """Everything of it ends: processes, ports, faults. Idempotent, and safe after a failed create."""


@runtime_checkable
class RecoveringHost(Protocol):
    """A TestbedHost whose testbeds outlive the runner that made them."""

    async def abandon(self, context: TrialContext) -> None:
        """What an earlier runner left of this trial is gone when it returns. Harmless when there is nothing."""


@runtime_checkable
class MeasuringTestbed(Protocol):
    """A Testbed that can say what its network is like before anything is done to it."""

    async def paths(self) -> Mapping[str, Mapping[str, Any]]:
        """By the name of the path (`tm-0->tm-1`, `loopback`): `faults.api.path_of`. What cannot be measured is left out."""


class Evaluator(Protocol):
    """Turns the sealed histories of a run into metric rows (`checking.metrics.METRIC_FIELDS`)."""

    async def evaluate(self, run_folder: str, trials: Sequence[str]) -> list[dict[str, Any]]: ...


class Probe(Protocol):
    """Measures a path without adding a frame that Flink does not know."""

    async def round_trips(self, source: str, destination: str, count: int) -> list[float]:
        """Seconds, one value per answered probe."""
