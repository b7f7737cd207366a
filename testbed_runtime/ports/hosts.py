"""The interfaces of testbeds and their hosts, through which the runner works on this machine, in a cluster and in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from testbed_runtime.core.job.messages import JobStatusReply
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.trial.plan import TestbedPlan
from testbed_runtime.ports.storage import HistorySink

if TYPE_CHECKING:
    from testbed_runtime.core.faults.model import Fault
    from testbed_runtime.faults.registry import Capabilities

JOB_PATH = "/v1/job"
"""Path on a JobManager's control endpoint: the newest job as one JSON object, `job_summary`."""
CREATE_LIMIT_S = 90.0
"""Time limit for starting a testbed of processes: enough for a hundred processes on two cores."""
STOP_GRACE_S = 5.0
"""Grace period in which a process that is stopped flushes its history."""
CLOSE_LIMIT_S = 20.0
"""Time limit for each step of closing a testbed (heal, seal, dispose), also after Ctrl-C."""


class ProcessState(Struct, frozen=True):
    name: str
    pid: int | None
    incarnation: int
    state: str
    """`running`, `paused`, `exited`, `killed`."""
    ready: Mapping[str, Any] = field(default_factory=dict)
    """The addresses that the process reported when it became ready."""
    exit_code: int | None = None
    stderr_tail: str = ""
    asked: bool = False
    """Whether Headgate ended it: by a fault or a stop."""


class TrialContext(Struct, frozen=True):
    """The trial that a testbed serves. It is part of every row of the history."""

    run: str
    trial: str
    """`TrialPlan.trial`."""
    seed: int


class FaultHandle(Struct, frozen=True):
    """A fault that a backend has accepted."""

    fault: str
    backend: str
    why: str
    targets: tuple[str, ...] = ()


class Testbed(Protocol):
    """A running testbed: one job, its processes, the fault API."""

    @property
    def history(self) -> HistorySink | None:
        """The recorder of the runner's own rows (`trial.phase`), which come from process `runner`."""

    async def paths(self) -> Mapping[str, Mapping[str, Any]]:
        """Measure the network before the trial. Return the result of `faults.probes.path_of` by path (`tm-0->tm-1`, `loopback`).

        Paths that cannot be measured are left out. `{}` if the network has no latency."""

    async def job_status(self) -> JobStatusReply:
        """Return the status of the job. Its placement has the logical names of TaskManagers."""

    async def submit(self) -> None:
        """Submit the job of the plan. Return when the Dispatcher has accepted it."""

    async def stop_job(self, *, timeout_s: float) -> bool:
        """Drain the job with a final checkpoint. Return False if it does not finish in time. Raises StopRefused at once if the
        job cannot take a checkpoint."""

    async def inject(
        self, fault: Fault, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        """Inject a fault. The runner has already resolved `targets`: names of processes, or `a->b` links."""

    async def renew(self, fault_id: str) -> None:
        """Renew the fault's lease. Raises HeadgateError if the fault is no longer active."""

    async def heal(self, fault_id: str) -> None:
        """End a fault. Does nothing if it has already ended."""

    async def residue(self) -> Mapping[str, Any]:
        """Measure the residue of ended faults. `{}` means that there is none."""

    async def check(self) -> None:
        """Raise HeadgateError if a process that every trial needs was lost and no fault explains it: the JobManager, the
        recorder, the proxy, the supervisor. A lost TaskManager is handled by failover.

        Raises TestbedDisrupted if somebody else removed a process: the trial is void."""

    async def finish_history(self) -> str:
        """Flush and seal. Return the folder of this trial's Parquet tables."""


class TestbedHost(Protocol):
    """An environment in which testbeds run."""

    @property
    def capabilities(self) -> Capabilities:
        """The fault backends that are available, and why the others are not."""

    @property
    def create_limit_s(self) -> float:
        """Time limit of `create`."""

    @property
    def close_limit_s(self) -> float:
        """Time limit of each step of closing a testbed: heal, seal, dispose."""

    async def create(self, testbed: TestbedPlan, *, context: TrialContext) -> Testbed:
        """Start a testbed and wait until all TaskManagers are registered."""

    async def dispose(self, context: TrialContext) -> None:
        """Remove everything that belongs to this trial: processes, ports, faults, resources.

        Works after a failed `create` too. If testbeds outlive their runner in this environment, also remove what an earlier
        runner left behind. Idempotent."""


class Evaluator(Protocol):
    """Evaluates the sealed histories of the trials of a run that count."""

    async def evaluate(self, folder: Path) -> list[MetricRow]:
        """Return the metric rows, after the results are in the run's folder. Raises HeadgateError."""
        ...
