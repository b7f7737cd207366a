"""A small testbed in virtual time without runner, probes and evaluation: thousands of runs in a minute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.options import Options
from testbed_runtime.core.versions import LATEST
from testbed_runtime.history.writer import MemoryHistory
from testbed_runtime.jobmanager.client import POLL_S, JobClient
from testbed_runtime.simulation.processes import BOOT_ID, JOBMANAGER_ADDRESS, Processes, World
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.process import TaskManager
from testbed_runtime.taskmanager.services import Pace
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from testbed_runtime.transport.simulated import SimulatedFabric
from tests.jobmanager.inproc import Judging
from tests.simulation.simulating import Complaints

CONFIGURATION = {
    "heartbeat.interval": "300 ms",
    "heartbeat.timeout": "1 s",
    "execution.checkpointing.interval": "100 ms",
    "execution.checkpointing.tolerable-failed-checkpoints": "100000",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "50 ms",
    "restart-strategy.fixed-delay.attempts": "100000",
    "taskmanager.memory.segment-size": "1 kb",
    "taskmanager.memory.network.min": "1 mb",
    "taskmanager.memory.network.max": "1 mb",
    "execution.buffer-timeout.interval": "10 ms",
}
QUIET = Pace(sample_s=5.0, channel_stride=2, lazy=True)
DRAIN_LIMIT_S = 120.0


class SmallWorld(Judging):
    """The processes, their network and their store; `submit`, then let faults happen, then `drain`."""

    def __init__(
        self,
        *,
        seed: int = 1,
        taskmanagers: int = 3,
        slots: int = 2,
        pace: Pace = QUIET,
        blobs: MemoryBlobStore | None = None,
        configuration: Mapping[str, str] | None = None,
        version: str = LATEST,
    ) -> None:
        self.configuration = {k: v for k, v in {**CONFIGURATION, **(configuration or {})}.items() if v}
        self.history = MemoryHistory(run="small", trial=f"seed-{seed}", boot_id=BOOT_ID)
        self.fabric = SimulatedFabric(Random(seed))
        self.blobs = blobs or MemoryBlobStore()
        self._switchboard = Switchboard()
        world = World(
            options=Options(self.configuration, flink_version=version),
            seed=seed,
            slots=slots,
            fabric=self.fabric,
            switchboard=self._switchboard,
            blobs=self.blobs,
            history=self.history,
            pace=pace,
            frame_faults=False,
        )
        self.names = [f"tm-{ordinal}" for ordinal in range(taskmanagers)]
        self.processes = Processes(world)
        self._rpc = MemoryRpc("client", self._switchboard)
        self.client = JobClient(self._rpc, JOBMANAGER_ADDRESS)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.history.table(table).to_pylist()

    async def open(self) -> None:
        await self._rpc.start()
        for name in (JOBMANAGER, *self.names):
            await self.processes.start(name)
        self.processes.replace_lost_s = 0.3
        await self.client.until_registered(len(self.names), limit_s=30.0)

    async def submit(self, graph: JobGraph) -> None:
        await self.client.submit(graph, self.configuration)

    async def drain(self, *, poll_s: float = POLL_S) -> None:
        assert await self.client.stop_with_drain(timeout_s=DRAIN_LIMIT_S, poll_s=poll_s), (
            "the job did not drain"
        )

    async def close(self) -> dict[str, int]:
        """End every process. Return the network buffers in use, by TaskManager."""
        for _ in range(5):
            await asyncio.sleep(0.2)  # a TaskManager releases its last results after the job has finished
            leaks = self._segments_in_use()
            if not any(leaks.values()):
                break
        await self.processes.close()
        await self._rpc.close()
        return leaks

    def _segments_in_use(self) -> dict[str, int]:
        shells = {n: self.processes.get(n) for n in self.processes.names()}
        return {
            name: process.shell.segments_in_use
            for name, process in shells.items()
            if process is not None and isinstance(process.shell, TaskManager)
        }

    def checkpoints(self, state: str) -> list[Mapping[str, Any]]:
        """Return the rows of checkpoints in a state, without those of tasks unless they acknowledged."""
        return [row for row in self.rows("checkpoints") if row["state"] == state]


@asynccontextmanager
async def small_world(**settings: Any) -> AsyncIterator[SmallWorld]:
    """A world that leaks no buffer, and about which asyncio has nothing to complain."""
    world = SmallWorld(**settings)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    with Complaints() as complaints:
        await world.open()
        yield world
        leaks = await world.close()
    assert not any(leaks.values()), f"network buffers were not given back: {leaks}"
    assert not complaints.texts, complaints.texts
