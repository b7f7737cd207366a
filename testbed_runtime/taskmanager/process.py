"""A TaskManager: the network environment, the TaskExecutor and its stall meter, on ports; several fit into one loop."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from functools import partial
from typing import IO

import msgspec
from msgspec import Struct

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.statememory import StateBackendConfig
from testbed_runtime.core.options import LOCAL_BACKUP, LOCAL_RECOVERY, Options
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.ports.execution import Clock, Cpu, RandomSource
from testbed_runtime.ports.interception import NO_INTERCEPTION, Interception
from testbed_runtime.ports.network import Address, Network, Resolver
from testbed_runtime.ports.rpc import Rpc
from testbed_runtime.ports.storage import BlobStore, HistorySink, StateFileStore
from testbed_runtime.process.clock import StallMeter
from testbed_runtime.store.statefiles import MemoryStateFiles
from testbed_runtime.taskmanager.backchannel import IterationBroker
from testbed_runtime.taskmanager.environment import NetworkEnvironment
from testbed_runtime.taskmanager.localstate import LocalState
from testbed_runtime.taskmanager.services import REAL_PACE, Pace, TaskServices
from testbed_runtime.taskmanager.statefiles import StateBackend
from testbed_runtime.taskmanager.task import Task
from testbed_runtime.taskmanager.taskexecutor import TaskExecutor, TaskExecutorConfig
from testbed_runtime.taskmanager.work import Cores

RETURN_STEPS, RETURN_STEP_S = 50, 0.01
"""How long an ending TaskManager waits for its network buffers before it counts those that leaked."""


class LocalFiles(Struct, frozen=True):
    """The files that a TaskManager keeps on its own disk. By default they are in memory."""

    copies: BlobStore | None = None
    """The local copies of snapshots (`execution.state-recovery.from-local`)."""
    state: StateFileStore = msgspec.field(default_factory=MemoryStateFiles)
    """The state that is not in memory (`state.backend.type`)."""
    open: Callable[[], IO[bytes]] = io.BytesIO
    """Opens the file of a blocking result, which disappears when it is closed."""


class TaskManager:
    """`start` listens and starts to register; `close` ends everything. `rpc` is started and closed by its owner."""

    def __init__(
        self,
        resource_id: TaskManagerID,
        *,
        options: Options,
        rpc: Rpc,
        network: Network,
        blobs: BlobStore,
        history: HistorySink,
        clock: Clock,
        cpu: Cpu,
        random: RandomSource,
        jobmanager: Address,
        slots: int,
        resolver: Resolver | None = None,
        interception: Interception = NO_INTERCEPTION,
        on_fatal: Callable[[str], None] | None = None,
        pace: Pace = REAL_PACE,
        files: LocalFiles | None = None,
        cores: Cores | None = None,
    ) -> None:
        """`cores` are those of virtual time; `jobmanager` is the Rpc address of the JobManager; `on_fatal(text)` is called when
        this process has to end."""
        files = files or LocalFiles()
        self.resource_id = resource_id
        self._rpc = rpc
        self._jobmanager = jobmanager
        self._slots = slots
        self._history = history
        self._clock = clock
        self._on_fatal = on_fatal or self._note_fatal
        self.environment = NetworkEnvironment(
            resource_id,
            options,
            network,
            clock=clock,
            entropy=random.stream(f"channels-{resource_id}"),
            resolver=resolver,
            interception=interception,
            memory=not pace.lazy,
            open_file=files.open,
        )
        self._waits = WaitLog(history, str(resource_id), clock.now)
        back_channel = partial(self.environment.open_file, "the back channel of an iteration")
        self.iterations = IterationBroker(back_channel)
        copies = files.copies if options.boolean(LOCAL_BACKUP) else None
        self._services = TaskServices(
            options,
            clock,
            cpu,
            blobs,
            history,
            network,
            self.environment,
            self._waits,
            StateBackend(StateBackendConfig.of(options, slots), files.state),
            self.iterations,
            pace,
            LocalState(copies, restores=options.boolean(LOCAL_RECOVERY)),
            cores,
        )
        self._executor: TaskExecutor | None = None
        self._stalls = StallMeter(self._on_stall, lambda: not pace.lazy)
        self.data_address: Address = ("", 0)

    @property
    def cores(self) -> Cores | None:
        """The simulated cores; None if work costs no processor time."""
        return self._services.cores

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self.executor.tasks

    @property
    def executor(self) -> TaskExecutor:
        assert self._executor is not None, "the TaskManager has not been started"
        return self._executor

    @property
    def segments_in_use(self) -> int:
        """Number of network buffers in use: 0 when no task runs and every result was consumed."""
        return self.environment.segments_in_use

    async def start(self, data_bind: Address) -> None:
        """Raises UserError when the data port is in use. It registers in the background: `registered` waits for that."""
        self.data_address = await self.environment.start(data_bind)
        config = TaskExecutorConfig(
            self.resource_id, self._jobmanager, self.data_address, self._slots, self._clock.boot_id
        )
        self._executor = TaskExecutor(config, self._rpc, self._services, on_fatal=self._on_fatal)
        self._executor.start()
        self._stalls.start()

    def counters(self) -> dict[str, float]:
        """Return the live counters; empty before the start."""
        return {} if self._executor is None else self._executor.counters()

    @property
    def is_registered(self) -> bool:
        """Whether it is registered at the ResourceManager now."""
        return self._executor is not None and self._executor.resourcemanager.is_registered

    async def registered(self) -> None:
        """Wait until it is registered at the ResourceManager."""
        await self.executor.resourcemanager.registered()

    async def close(self) -> None:
        self._stalls.close()
        if self._executor is not None:
            await self._executor.close()
        await self.environment.close()
        await self._all_returned()
        self._history.append(
            "events",
            kind="network.buffers",
            subject=str(self.resource_id),
            data={"leaked": self.segments_in_use},
        )
        self._waits.close()

    async def _all_returned(self) -> None:
        """Wait for the network buffers of closed connections: they return when the loop runs again."""
        for _ in range(RETURN_STEPS):
            if not self.segments_in_use:
                return
            await asyncio.sleep(RETURN_STEP_S)

    def expect_pause(self) -> None:
        """Measure the pause that begins now. Needed only in virtual time: a real process checks for stalls continuously."""
        self._stalls.expect_pause()

    def _on_stall(self, seconds: float) -> None:
        self._history.append(
            "events",
            kind="loop.stall",
            subject=str(self.resource_id),
            text=f"The event loop stood still for {seconds:.3f} s.",
            data={"seconds": seconds},
        )
        self._waits.stalled(str(self.resource_id), seconds)
        self.executor.extend(seconds)

    def _note_fatal(self, text: str) -> None:
        self._history.append("events", kind="note", subject=str(self.resource_id), text=text)
