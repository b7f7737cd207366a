"""A testbed in virtual time: `ports.hosts.TestbedHost` for the same runner that drives real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from testbed_runtime.api.models import TestbedSpec
from testbed_runtime.api.to_core import job_graph, output_paths
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.job.livecounters import LiveCounters
from testbed_runtime.core.options import Options, parse_duration
from testbed_runtime.faults.agent import FaultAgent
from testbed_runtime.faults.channel.mechanism import ChannelBackend
from testbed_runtime.faults.registry import SIMULATION, Capabilities
from testbed_runtime.history.sealing import write_trial
from testbed_runtime.history.writer import MemoryHistory
from testbed_runtime.jobmanager.client import JobClient
from testbed_runtime.ports.hosts import FaultHandle, JobStatus, Testbed, TrialContext
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.process.clock import SeededRandom
from testbed_runtime.simulation.backends import (
    InProcessControl,
    SimPeers,
    SimProcessBackend,
)
from testbed_runtime.simulation.network import SimNetworkBackend, Weather
from testbed_runtime.simulation.processes import (
    BOOT_ID,
    JOBMANAGER,
    JOBMANAGER_ADDRESS,
    Processes,
    World,
)
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.store.outputs import OUTPUTS, keep_outputs
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from testbed_runtime.transport.simulated import SimulatedFabric

JOB_NAME = "job"
REGISTER_LIMIT_S = 60.0
NEVER = "Never"


class SimTestbed:
    """Made by SimTestbedHost."""

    __test__ = False

    def __init__(self, spec: TestbedSpec, context: TrialContext, run_folder: Path) -> None:
        self.spec = spec
        self.context = context
        self._folder = run_folder / "history" / context.trial
        self._outputs = run_folder / OUTPUTS / context.trial
        self._records = MemoryHistory(run=context.run, trial=context.trial, boot_id=BOOT_ID)
        network: Random = SeededRandom(context.seed).stream("network")
        self._weather = Weather()
        switchboard = Switchboard(self._weather.latency_s)
        self._blobs = MemoryBlobStore()
        world = World(
            options=Options(spec.flink_configuration, flink_version=spec.flink_version),
            seed=context.seed,
            slots=spec.task_managers.slots,
            fabric=SimulatedFabric(network),
            switchboard=switchboard,
            blobs=self._blobs,
            history=self._records,
        )
        self._sink = world.sink("runner")
        self._supervisor = world.sink("supervisor-faults")
        self.processes = Processes(world)
        people = SimPeers(self.processes)
        self.agent = FaultAgent(
            {
                "channel": ChannelBackend(InProcessControl(self.processes), people),
                "proxy": SimNetworkBackend(world.fabric, switchboard, self._weather, self.processes),
                "supervisor": SimProcessBackend(self.processes),
            },
            SIMULATION,
            seed=context.seed,
        )
        self._live = LiveCounters()
        self._journal_next = 0
        self._rpc = MemoryRpc("runner", switchboard, flink_version=spec.flink_version)
        self._client = JobClient(self._rpc, JOBMANAGER_ADDRESS, job=JOB_NAME)
        self._sealed = False

    async def open(self) -> None:
        """Until every TaskManager is registered."""
        await self._rpc.start()
        await self.processes.start(JOBMANAGER)
        for ordinal in range(self.spec.task_managers.replicas):
            await self.processes.start(f"tm-{ordinal}")
        after = self.spec.task_managers.replace_lost
        self.processes.replace_after_s = None if after == NEVER else parse_duration(after)
        await self._client.until_registered(self.spec.task_managers.replicas, limit_s=REGISTER_LIMIT_S)

    # ---- ports.hosts.Testbed

    @property
    def history(self) -> HistorySink | None:
        return self._sink

    async def submit(self) -> None:
        graph = job_graph(self.spec, name=JOB_NAME, seed=self.context.seed)
        await self._client.submit(graph, self.spec.flink_configuration)

    async def job_status(self) -> JobStatus:
        """Counters come straight from the TaskManagers that run, not from their last heartbeat."""
        status = await self._client.status()
        now = asyncio.get_running_loop().time()
        counters = self._live.update(self.processes.counters(), now)
        return replace(status, counters={**status.counters, **counters})

    async def stop_job(self, *, timeout_s: float) -> bool:
        return await self._client.stop_with_drain(timeout_s=timeout_s)

    async def inject(
        self, fault: Any, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        assert isinstance(fault, Fault)
        return await self.agent.inject(fault, fault_id=fault_id, targets=targets, lease_s=lease_s)

    async def renew(self, fault_id: str) -> None:
        await self.agent.renew(fault_id)

    async def heal(self, fault_id: str) -> None:
        await self.agent.heal(fault_id)

    async def residue(self) -> Mapping[str, Any]:
        return await self.agent.residue()

    async def check(self) -> None:
        """Nothing is lost here but by faults."""

    async def finish_history(self) -> str:
        if not self._sealed:
            self._sealed = True
            await self.processes.close()
            await keep_outputs(self._blobs, output_paths(self.spec.job), self._outputs)
            for item in self.agent.journal.since(0):
                self._supervisor.append(str(item["table"]), **item["row"])
            self._folder.mkdir(parents=True, exist_ok=True)
            write_trial(self._folder, self._records.trial())
        return str(self._folder)

    async def close(self) -> None:
        """Idempotent."""
        await self.agent.close()
        await self.processes.close()
        await self._rpc.close()


class SimTestbedHost:
    """A `ports.hosts.TestbedHost` in virtual time. `run_folder` gets `history/<trial>/`."""

    __test__ = False
    place = "simulation"
    capabilities: Capabilities = SIMULATION

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder

    async def create(self, testbed: Any, *, context: TrialContext, use_proxy: bool) -> SimTestbed:
        """`use_proxy` makes no difference: every simulated link can be shaped."""
        del use_proxy
        assert isinstance(testbed, TestbedSpec)
        made = SimTestbed(testbed, context, self._run_folder)
        try:
            await made.open()
        except HeadgateError:
            await made.close()
            raise
        return made

    async def dispose(self, testbed: Testbed) -> None:
        assert isinstance(testbed, SimTestbed)
        await testbed.close()
