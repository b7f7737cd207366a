"""A testbed in virtual time: `ports.hosts.TestbedHost` for the same runner that drives real processes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qsl

from msgspec.structs import replace

from testbed_runtime.core.documents import FILES_FOLDER, HISTORY_FOLDER
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.ids import JOBMANAGER, RUNNER
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.job.livecounters import LiveCounters
from testbed_runtime.core.job.messages import JobStatusReply
from testbed_runtime.core.options import Options
from testbed_runtime.core.trial.plan import TestbedPlan
from testbed_runtime.core.trial.sampling import sampling_of
from testbed_runtime.faults.agent import FaultAgent
from testbed_runtime.faults.backend import Unreachable
from testbed_runtime.faults.channel.backend import ChannelBackend
from testbed_runtime.faults.channel.process import BASE
from testbed_runtime.faults.process.backend import STOPPED, ProcessBackend
from testbed_runtime.faults.registry import SIMULATION, Capabilities
from testbed_runtime.history.sealing import write_trial
from testbed_runtime.history.writer import MemoryHistory
from testbed_runtime.jobmanager.client import JobClient
from testbed_runtime.jobmanager.recovery import KeptCheckpoint
from testbed_runtime.ports.hosts import FaultHandle, TrialContext
from testbed_runtime.ports.network import Address
from testbed_runtime.process.clock import SeededRandom
from testbed_runtime.runner.ownedhost import OwnedTestbedHost
from testbed_runtime.simulation.hugepages import HugePages
from testbed_runtime.simulation.network import RpcConditions, SimNetworkBackend
from testbed_runtime.simulation.processes import BOOT_ID, JOBMANAGER_ADDRESS, Processes, World
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.store.outputs import keep_outputs
from testbed_runtime.taskmanager.services import Pace
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from testbed_runtime.transport.simulated import SimulatedFabric

REGISTER_LIMIT_S = 60.0
COUNT_EVERY = 5
"""The live counters are read once in this many samples, because only the display of progress needs them."""
SAMPLED_CHANNELS = 4096
"""Number of channels that are sampled in a large job."""


class SimPeers:
    """A faults.backend.Peers in which a control address is the process's name."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def names(self) -> Sequence[str]:
        return self._processes.names()

    def control(self, name: str) -> Address | None:
        return (name, 0) if self._processes.get(name) is not None else None


class InProcessControl:
    """The counterpart of `faults.http.ControlClient`: calls go directly to the ChannelFaults of the process."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    async def call(self, method: str, address: Address, path: str, body: Any = None) -> Mapping[str, Any]:
        """Raises Unreachable for a process that is gone or paused, as a real connection would."""
        process = self._processes.get(address[0])
        if process is None or process.state != "running":
            raise Unreachable(f"{address[0]} does not answer")
        # in the process's context, so that the timers of the rule stop while the process is paused, and end with it
        path, _, query = path.removeprefix(BASE).partition("?")
        context = process.rpc.context.copy()
        return context.run(process.faults.handle, method, path, dict(parse_qsl(query)), body)

    async def close(self) -> None:
        """Do nothing: no connection is open."""


class SimProcessTable:
    """The ProcessTable of simulated processes. The incarnation is used as the process id."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.paused = processes.paused
        self.signal_kill = processes.kill
        self.pause = processes.pause
        self.resume = processes.resume

    def pid(self, name: str) -> int | None:
        process = self._processes.get(name)
        return None if process is None else process.incarnation

    def state(self, name: str, pid: int) -> str:
        process = self._processes.get(name)
        if process is None or process.incarnation != pid:
            return ""
        return STOPPED if process.state == "paused" else "S"

    async def restart(self, name: str) -> None:
        if self._processes.get(name) is None:
            await self._processes.start(name)


def pace_of(job: JobGraph) -> Pace:
    """Return how often to sample a job. In a large one only some of the channels are sampled."""
    sampling = sampling_of(sum(vertex.parallelism for vertex in job.vertices))
    every = sampling.channel_every
    stride = max(every, math.ceil(job.channels / SAMPLED_CHANNELS)) if every > 1 else 1
    return Pace(sample_s=sampling.sample_s, channel_stride=stride, channel_every=every, lazy=True)


class SimTestbed:
    """Made by SimTestbedHost."""

    __test__ = False

    def __init__(self, plan: TestbedPlan, context: TrialContext, run_folder: Path) -> None:
        self.plan = plan
        self._folder = run_folder / HISTORY_FOLDER / context.trial
        self._outputs = run_folder / FILES_FOLDER / context.trial
        self._records = MemoryHistory(run=context.run, trial=context.trial, boot_id=BOOT_ID)
        network: Random = SeededRandom(context.seed).stream("network")
        self._rpc_conditions = RpcConditions()
        self._pace = pace_of(plan.job)
        switchboard = Switchboard(self._rpc_conditions.latency_s)
        self._blobs = MemoryBlobStore()
        world = World(
            options=Options(plan.configuration, flink_version=plan.flink_version),
            seed=context.seed,
            slots=plan.slots,
            fabric=SimulatedFabric(network),
            switchboard=switchboard,
            blobs=self._blobs,
            history=self._records,
            pace=self._pace,
            frame_faults=plan.frame_faults,
        )
        self.history = world.sink(RUNNER)
        self._supervisor = world.sink("supervisor-faults")
        self.processes = Processes(world)
        peers = SimPeers(self.processes)
        self.agent = FaultAgent(
            {
                "channel": ChannelBackend(InProcessControl(self.processes), peers),
                "proxy": SimNetworkBackend(world.fabric, switchboard, self._rpc_conditions, self.processes),
                "supervisor": ProcessBackend(SimProcessTable(self.processes)),
            },
            SIMULATION,
            seed=context.seed,
        )
        self._live = LiveCounters()
        self._status: JobStatusReply | None = None
        self._asked_at = self._counted_at = -math.inf
        self._pages = HugePages()
        self._rpc = MemoryRpc(RUNNER, switchboard, flink_version=plan.flink_version)
        self._client = JobClient(self._rpc, JOBMANAGER_ADDRESS)
        self._sealed = False

    async def open(self) -> None:
        """Start all processes and wait until every TaskManager has registered."""
        if path := self.plan.recovery_path:
            kept = await KeptCheckpoint.read(MemoryBlobStore.of_folder(path), path)
            await kept.bring(self._blobs, self.plan.job, self.plan.flink_version)
        await self._rpc.start()
        for name in (JOBMANAGER, *self.plan.task_managers):
            await self.processes.start(name)
        self.processes.replace_lost_s = self.plan.replace_lost_s
        await self._client.until_registered(self.plan.replicas, limit_s=REGISTER_LIMIT_S)

    # ---- ports.hosts.Testbed

    async def paths(self) -> Mapping[str, Mapping[str, Any]]:
        """Return no paths: the simulated network has no latency of its own."""
        return {}

    async def submit(self) -> None:
        self._status = None
        await self._client.submit(self.plan.job, self.plan.configuration)

    async def job_status(self) -> JobStatusReply:
        """Return the status with counters read from the running TaskManagers, not from their last heartbeats. The status may be as old as
        a sample of the job, because the answer for a large job names thousands of tasks."""
        now = asyncio.get_running_loop().time()
        if self._status is None or now >= self._asked_at + self._pace.sample_s:
            status = await self._client.status()
            self._asked_at = now
            self._pages.tend()
            if now >= self._counted_at + COUNT_EVERY * self._pace.sample_s:
                self._counted_at = now
                self._live.update(self.processes.counters(), now)
            self._status = replace(status, counters={**status.counters, **self._live.values})
        return self._status

    async def stop_job(self, *, timeout_s: float) -> bool:
        drained = await self._client.stop_with_drain(timeout_s=timeout_s, poll_s=self._pace.sample_s / 2)
        self._status = None
        return drained

    async def inject(
        self, fault: Fault, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        return await self.agent.inject(fault, fault_id=fault_id, targets=targets, lease_s=lease_s)

    async def renew(self, fault_id: str) -> None:
        await self.agent.renew(fault_id)

    async def heal(self, fault_id: str) -> None:
        await self.agent.heal(fault_id)

    async def residue(self) -> Mapping[str, Any]:
        return await self.agent.residue()

    async def check(self) -> None:
        """Do nothing: only faults end simulated processes."""

    async def finish_history(self) -> str:
        if not self._sealed:
            self._sealed = True
            await self.processes.close()
            await keep_outputs(self._blobs, self.plan.output_paths, self._outputs)
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


class SimTestbedHost(OwnedTestbedHost[SimTestbed]):
    """The `ports.hosts.TestbedHost` in virtual time. `run_folder` gets `history/<trial>/`."""

    capabilities: Capabilities = SIMULATION

    def make(self, testbed: TestbedPlan, context: TrialContext) -> SimTestbed:
        """`testbed.proxy` makes no difference: every simulated link can be shaped."""
        return SimTestbed(testbed, context, self.run_folder)
