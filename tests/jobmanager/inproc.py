"""A JobManager and TaskManagers in one loop, for tests of whole jobs."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager

import numpy as np

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.core.job.messages import RequestJobStatus, StopWithDrain, SubmitJob
from testbed_runtime.core.options import Options
from testbed_runtime.history.writer import MemoryHistory
from testbed_runtime.jobmanager.process import JobManager
from testbed_runtime.ports.interception import NO_INTERCEPTION
from testbed_runtime.process.clock import LoopClock, SeededIds, SeededRandom
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.process import TaskManager
from testbed_runtime.transport.mailbox import SleepingCpu
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from tests.transport.inprocess_network import InProcessNetwork

CONFIGURATION = {
    "heartbeat.interval": "200 ms",
    "heartbeat.timeout": "2 s",
    "execution.checkpointing.interval": "300 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "restart-strategy.fixed-delay.attempts": "3",
    "taskmanager.memory.segment-size": "4 kb",
    "execution.buffer-timeout.interval": "20 ms",
}


class Judging:
    """Compares what a job in memory emitted with what it delivered, from its history."""

    def rows(self, table):
        return self.history.trial().rows(table)

    def events(self, kind):
        return [row for row in self.rows("events") if row["kind"] == kind]

    def delivered(self):
        """source → Counter of sequence numbers, over all commits."""
        found = {}
        for row in self.rows("delivery"):
            bits = np.unpackbits(np.frombuffer(row["bitmap"], np.uint8), bitorder="little")
            found.setdefault(row["source"], Counter()).update((np.flatnonzero(bits) + row["base"]).tolist())
        return found

    def emitted(self):
        """source → how many records it ever emitted."""
        return {row["subject"]: json.loads(row["data"])["next"] for row in self.events("source.end")}

    def assert_exact(self):
        delivered, emitted = self.delivered(), self.emitted()
        assert emitted
        assert sorted(delivered) == sorted(emitted)
        for source, count in emitted.items():
            numbers = delivered[source]
            assert len(numbers) == count, f"{source}: {count - len(numbers)} lost"
            assert max(numbers.values()) == 1, f"{source}: duplicates"
            assert max(numbers) == count - 1
        for row in self.rows("delivery"):
            assert (row["duplicated"], row["out_of_order"], row["corrupted"]) == (0, 0, 0)


class Testbed(Judging):
    """The processes of a testbed as objects, and a client."""

    __test__ = False

    def __init__(
        self,
        taskmanagers=3,
        slots=2,
        network=None,
        blobs=None,
        version="2.x",
        interception=NO_INTERCEPTION,
        calls=None,
        **configuration,
    ):
        self.interception, self.calls = interception, calls
        self.configuration = {k: v for k, v in {**CONFIGURATION, **configuration}.items() if v}
        self.options = Options(self.configuration, flink_version=version)
        self.board = Switchboard()
        self.network = network or InProcessNetwork()
        self.blobs = blobs or MemoryBlobStore()
        self.history = MemoryHistory()
        self.clock = LoopClock("sim")
        self.count = taskmanagers
        self.slots = slots
        self.taskmanagers = {}
        self.rpcs = {}
        self.job = ""

    def sink(self, name):
        loop = asyncio.get_running_loop()
        return self.history.sink(name, lambda: int(loop.time() * 1e9))

    async def start(self):
        rpc = MemoryRpc("jobmanager", self.board, interceptor=self.calls)
        self.manager = JobManager(
            rpc,
            self.blobs,
            self.sink("jobmanager-1"),
            self.clock,
            ids=SeededIds(1),
            random=SeededRandom(1),
            options=self.options,
        )
        await self.manager.start()
        self.jobmanager_address = rpc.address
        self.client = MemoryRpc("client", self.board)
        await self.client.start()
        for ordinal in range(self.count):
            await self.add(ordinal)
        for taskmanager in self.taskmanagers.values():
            await taskmanager.registered()

    async def add(self, ordinal, incarnation=1):
        name = f"tm-{ordinal}"
        rpc = self.rpcs[name] = MemoryRpc(name, self.board)
        taskmanager = TaskManager(
            TaskManagerID(ordinal, incarnation),
            options=self.options,
            rpc=rpc,
            network=self.network,
            blobs=self.blobs,
            history=self.sink(f"{name}-{incarnation}"),
            clock=self.clock,
            cpu=SleepingCpu(),
            random=SeededRandom(ordinal),
            jobmanager=self.jobmanager_address,
            slots=self.slots,
            interception=self.interception,
        )
        await rpc.start()
        await taskmanager.start(("127.0.0.1", 0))
        self.taskmanagers[name] = taskmanager

    async def ask(self, message):
        return await self.client.ask(
            "jobmanager", self.jobmanager_address, "dispatcher", message, timeout_s=5.0
        )

    async def submit(self, graph):
        self.job = (await self.ask(SubmitJob(graph, self.configuration))).reason

    async def status(self):
        return await self.ask(RequestJobStatus(self.job))

    async def until(self, wanted, timeout_s=20.0):
        """Wait until `wanted(status)`, and return the status."""
        deadline = self.clock.now() + timeout_s
        while True:
            status = await self.status()
            if wanted(status):
                return status
            assert self.clock.now() < deadline, status
            await asyncio.sleep(0.02)

    async def drain(self):
        await self.ask(StopWithDrain(self.job))
        return await self.until(lambda s: s.state not in ("RUNNING", "CREATED", "RESTARTING"))

    async def close(self):
        for taskmanager in self.taskmanagers.values():
            await taskmanager.close()
        await asyncio.sleep(0.05)
        leaks = {name: t.segments_in_use for name, t in self.taskmanagers.items() if t.segments_in_use}
        for rpc in self.rpcs.values():
            await rpc.close()
        await self.manager.close()
        await self.client.close()
        assert not leaks, f"network buffers were not given back: {leaks}"
        left = [t.get_name() for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert not left, f"tasks were left behind: {left}"


@asynccontextmanager
async def a_testbed(**settings):
    bed = Testbed(**settings)
    await bed.start()
    try:
        yield bed
    finally:
        await bed.close()


def graph(rate=2000.0, limit=0, sink=None, operator=None, edges=("hash", "forward"), groups=("a", "b", "b")):
    """source → work → sink, two subtasks each."""
    return JobGraph(
        "job",
        (
            JobVertex(
                "source",
                2,
                128,
                groups[0],
                source=SourceConfig(records_per_second=rate, keys=50, limit=limit),
            ),
            JobVertex("work", 2, 128, groups[1], operator=operator or OperatorConfig("keyed-count")),
            JobVertex("sink", 2, 128, groups[2], sink=sink or SinkConfig()),
        ),
        (JobEdge("source", "work", edges[0]), JobEdge("work", "sink", edges[1])),
        seed=7,
    )


async def run_and_drain(bed, job, checkpoints=2):
    await bed.submit(job)
    await bed.until(lambda s: s.completed_checkpoints >= checkpoints)
    status = await bed.drain()
    assert status.state == "FINISHED", status
