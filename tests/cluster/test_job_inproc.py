"""A whole job in one event loop: JobManager, three TaskManagers, an in-process network, Rpc in memory."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager

import numpy as np
import pytest

from testbed_runtime.cluster.blobstore import MemoryBlobStore
from testbed_runtime.cluster.clock import LoopClock, SeededIds, SeededRandom
from testbed_runtime.cluster.jobmanager import JobManager
from testbed_runtime.cluster.taskmanager import TaskManager
from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.core.messages import CancelJob, RequestJobStatus, StopWithDrain, SubmitJob
from testbed_runtime.core.options import Options
from testbed_runtime.history.writer import MemoryHistory
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.transport.inproc import InProcessNetwork
from testbed_runtime.transport.mailbox import SleepingCpu
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard

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


class Testbed:
    """The processes of a testbed as objects, and a client."""

    __test__ = False

    def __init__(self, taskmanagers=3, slots=2, network=None, version="2.x", **configuration):
        self.configuration = {**CONFIGURATION, **configuration}
        self.options = Options(self.configuration, flink_version=version)
        self.board = Switchboard()
        self.network = network or InProcessNetwork()
        self.blobs = MemoryBlobStore()
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
        rpc = MemoryRpc("jobmanager", self.board)
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
        """Until `wanted(status)`; the status."""
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

    # ---- judging

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


def test_a_job_runs_takes_checkpoints_drains_and_delivers_exactly_once():
    """The whole way on a virtual clock: everything emitted was committed once."""

    async def main():
        async with a_testbed() as bed:
            await run_and_drain(bed, graph())
            bed.assert_exact()
            assert sum(bed.emitted().values()) > 500
            assert {r["subject"] for r in bed.events("gate.connected")} == {
                "work-0",
                "work-1",
                "sink-0",
                "sink-1",
            }
            assert {r["subject"] for r in bed.events("sink.first-record")} == {"sink-0", "sink-1"}
            assert {r["role"] for r in bed.rows("tasks")} == {"source", "operator", "sink"}
            assert {r["side"] for r in bed.rows("channels")} == {"producer", "consumer"}
            for row in bed.rows("channels"):
                assert row["local"] or row["used"] <= row["announced"]
            counted = sum(r["count"] for r in bed.rows("latency"))
            assert counted == sum(bed.emitted().values())

    run_virtual(main())


async def test_the_same_job_runs_in_real_time():
    """Nothing depends on the virtual clock."""
    async with a_testbed() as bed:
        await run_and_drain(bed, graph(rate=4000.0))
        bed.assert_exact()


@pytest.mark.parametrize(
    "edges", [("rebalance", "rebalance"), ("hash", "hash"), ("rebalance", "hash"), ("forward", "rebalance")]
)
def test_every_partitioning_keeps_records_whole_and_in_order(edges):
    """Order is judged per way through the job."""

    async def main():
        async with a_testbed() as bed:
            await run_and_drain(bed, graph(edges=edges, operator=OperatorConfig("map")))
            bed.assert_exact()

    run_virtual(main())


def test_broadcast_delivers_every_record_to_every_consumer():
    """Two consumers: every number twice."""

    async def main():
        async with a_testbed() as bed:
            await run_and_drain(bed, graph(edges=("broadcast", "forward"), operator=OperatorConfig("map")))
            for source, count in bed.emitted().items():
                assert set(bed.delivered()[source].values()) == {2}
                assert len(bed.delivered()[source]) == count

    run_virtual(main())


def test_a_bounded_source_ends_the_job_after_a_covering_checkpoint():
    """The last records are committed by the final checkpoint."""

    async def main():
        async with a_testbed() as bed:
            await bed.submit(graph(limit=1000))
            status = await bed.until(lambda s: s.state == "FINISHED")
            assert status.state == "FINISHED"
            assert sum(bed.emitted().values()) == 1000
            bed.assert_exact()

    run_virtual(main())


def test_a_bounded_job_without_checkpoints_commits_at_its_end():
    """No interval: the end of the input is the commit."""

    async def main():
        async with a_testbed(**{"execution.checkpointing.interval": "0 ms"}) as bed:
            await bed.submit(graph(limit=1000))
            await bed.until(lambda s: s.state == "FINISHED")
            bed.assert_exact()

    run_virtual(main())


def test_windows_deliver_every_record_once_by_weight():
    """One output record stands for many: the weights add up to what was emitted."""

    async def main():
        async with a_testbed() as bed:
            await run_and_drain(bed, graph(operator=OperatorConfig("window", window_s=0.5)), checkpoints=4)
            total = {(r["task"], r["checkpoint"]): r["weight"] for r in bed.rows("delivery")}
            assert sum(total.values()) == sum(bed.emitted().values())

    run_virtual(main())


def test_a_failing_function_fails_its_task_and_the_job_starts_again_without_loss(tmp_path):
    """The cause names the function; what was committed before is not committed again."""
    (tmp_path / "user.py").write_text(
        "from pathlib import Path\n"
        "once = Path(__file__).with_name('once')\n"
        "def f(record):\n"
        "    if record.source == 'source-0' and record.sequence == 700 and not once.exists():\n"
        "        once.touch()\n"
        "        raise ValueError('seven hundred')\n"
        "    return record\n"
    )

    async def main():
        async with a_testbed() as bed:
            await bed.submit(graph(operator=OperatorConfig("python", function=f"{tmp_path}/user.py:f")))
            await bed.until(lambda s: s.restarts == 1 and s.state == "RUNNING")
            seen = (await bed.status()).completed_checkpoints
            await bed.until(lambda s: s.completed_checkpoints > seen + 1)
            assert (await bed.drain()).state == "FINISHED"
            bed.assert_exact()
            [started] = bed.events("failover.started")
            assert started["text"] == "seven hundred (raised by user.py:f on record 700 of source-0)"
            assert {r["subject"] for r in bed.events("task.restored")} >= {"source-0", "work-1", "sink-0"}

    run_virtual(main())


def test_a_killed_taskmanager_costs_a_failover_and_no_record():
    """Its successor takes over; state and sources go on from the checkpoint."""

    async def main():
        async with a_testbed(taskmanagers=4, slots=1, **{"heartbeat.timeout": "1 s"}) as bed:
            await bed.submit(graph())
            await bed.until(lambda s: s.completed_checkpoints >= 2)
            victim = (await bed.status()).placement["work-0"]
            name = victim.rsplit("-", 1)[0]
            gone = bed.taskmanagers.pop(name)
            await bed.rpcs.pop(name).close()
            await gone.close()
            await bed.add(int(name[3:]), incarnation=2)
            await bed.until(lambda s: s.restarts >= 1 and s.state == "RUNNING")
            seen = (await bed.status()).completed_checkpoints
            await bed.until(lambda s: s.completed_checkpoints > seen + 1)
            assert (await bed.drain()).state == "FINISHED"
            bed.assert_exact()

    run_virtual(main())


def test_a_cancelled_job_gives_everything_back():
    """No task, no buffer, no slot is left (the testbed's end checks the first two)."""

    async def main():
        async with a_testbed() as bed:
            await bed.submit(graph())
            await bed.until(lambda s: s.completed_checkpoints >= 1)
            await bed.ask(CancelJob(bed.job))
            await bed.until(lambda s: s.state == "CANCELED")
            await asyncio.sleep(0.5)
            assert all(t.executor.free_slots == 2 for t in bed.taskmanagers.values())
            assert all(not t.tasks for t in bed.taskmanagers.values())
            assert all(t.segments_in_use == 0 for t in bed.taskmanagers.values())

    run_virtual(main())


def test_an_at_least_once_sink_commits_as_it_goes():
    """Rows with checkpoint -1; after a drain nothing is missing."""

    async def main():
        async with a_testbed() as bed:
            await run_and_drain(bed, graph(sink=SinkConfig(delivery="at-least-once")))
            bed.assert_exact()
            assert {r["checkpoint"] for r in bed.rows("delivery")} == {-1}

    run_virtual(main())


def test_one_seed_gives_one_history():
    """Two runs of the same job on a virtual clock record the same."""

    def once():
        kept = []

        async def main():
            async with a_testbed() as bed:
                await run_and_drain(bed, graph())
                kept.append(bed)

        run_virtual(main())
        return [
            {k: v for k, v in row.items() if k not in ("run", "trial")}
            for table in ("events", "tasks", "channels", "delivery", "latency", "checkpoints")
            for row in kept[0].rows(table)
        ]

    assert once() == once()
