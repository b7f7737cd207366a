"""Measure records per second of a whole job in one process over TCP: source → sink, two TaskManagers in one event loop.

    python benchmarks/job_bench.py [--records 1000000] [--record-bytes 100] [--rounds 3] [--loop asyncio|uvloop]

The source is always behind (its rate is never reached), so the job runs as fast as one core allows. The job is complete:
JobManager, RPC mailboxes, checkpoints, credit over a TCP connection, checksums, the sink's ledger, the history.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import json
import pstats
import time

import uvloop

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.core.job.messages import RequestJobStatus, SubmitJob
from testbed_runtime.core.options import Options
from testbed_runtime.history.writer import MemoryHistory
from testbed_runtime.jobmanager.process import JobManager
from testbed_runtime.process.clock import LoopClock, SeededIds, SeededRandom
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.process import TaskManager
from testbed_runtime.transport.mailbox import SleepingCpu
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from testbed_runtime.transport.tcp import TcpNetwork

OPTIONS = {"execution.checkpointing.interval": "1 s", "execution.buffer-timeout.interval": "100 ms"}
LIMIT_S = 300.0
UNREACHED = 50e6
"""Records per second; more than any source reaches."""
FACTORIES = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Bench:
    """A JobManager and `count` TaskManagers with one slot each, in this event loop."""

    def __init__(self, count: int) -> None:
        self.options, self.board, self.clock = Options(OPTIONS), Switchboard(), LoopClock("bench")
        self.count = count
        self.history = MemoryHistory()
        self.closing: list[JobManager | TaskManager | MemoryRpc] = []

    def sink(self, name):
        loop = asyncio.get_running_loop()
        return self.history.sink(name, lambda: int(loop.time() * 1e9))

    async def start(self) -> None:
        rpc, blobs, network = MemoryRpc("jobmanager", self.board), MemoryBlobStore(), TcpNetwork()
        manager = JobManager(
            rpc,
            blobs,
            self.sink("jobmanager-1"),
            self.clock,
            ids=SeededIds(1),
            random=SeededRandom(1),
            options=self.options,
        )
        await manager.start()
        self.address, self.client = rpc.address, MemoryRpc("client", self.board)
        await self.client.start()
        for ordinal in range(self.count):
            own = MemoryRpc(f"tm-{ordinal}", self.board)
            taskmanager = TaskManager(
                TaskManagerID(ordinal, 1),
                options=self.options,
                rpc=own,
                network=network,
                blobs=blobs,
                history=self.sink(f"tm-{ordinal}-1"),
                clock=self.clock,
                cpu=SleepingCpu(),
                random=SeededRandom(ordinal),
                jobmanager=rpc.address,
                slots=1,
            )
            await own.start()
            await taskmanager.start(("127.0.0.1", 0))
            await taskmanager.registered()
            self.closing += [taskmanager, own]
        self.closing += [manager, self.client]

    async def ask(self, message):
        return await self.client.ask("jobmanager", self.address, "dispatcher", message, timeout_s=10.0)

    async def close(self) -> None:
        for part in self.closing:
            await part.close()


def job(records: int, record_bytes: int, operator: str) -> JobGraph:
    source = SourceConfig(records_per_second=UNREACHED, keys=1000, limit=records, record_bytes=record_bytes)
    vertices = [JobVertex("source", 1, 128, "a", source=source)]
    edges = []
    if operator:
        vertices.append(JobVertex("work", 1, 128, "b", operator=OperatorConfig(operator)))
    vertices.append(JobVertex("sink", 1, 128, "c", sink=SinkConfig()))
    for up, down in itertools.pairwise(vertices):
        edges.append(JobEdge(up.name, down.name, "hash"))
    return JobGraph("bench", tuple(vertices), tuple(edges), seed=7)


async def run(records: int, record_bytes: int, operator: str) -> tuple[float, float]:
    """Return (wall clock, CPU) seconds from the submission until the job finished. The final checkpoint waits for the next tick
    of the interval, which takes up to a second of wall clock and no CPU."""
    bench = Bench(3 if operator else 2)
    await bench.start()
    wall, cpu = time.perf_counter(), time.process_time()
    submitted = (await bench.ask(SubmitJob(job(records, record_bytes, operator), OPTIONS))).reason
    async with asyncio.timeout(LIMIT_S):
        while (await bench.ask(RequestJobStatus(submitted))).state != "FINISHED":  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # the JobManager offers nothing to await
    taken = time.perf_counter() - wall, time.process_time() - cpu
    rows = bench.history.trial().rows("delivery")
    delivered = sum(int.from_bytes(row["bitmap"], "little").bit_count() for row in rows)
    assert delivered == records, f"{delivered} of {records} records were delivered"
    await bench.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", choices=sorted(FACTORIES), default="asyncio")
    parser.add_argument("--operator", default="", help="an operator between source and sink, e.g. map")
    parser.add_argument("--profile", action="store_true", help="where the time of one round goes")
    asked = parser.parse_args()
    profile = cProfile.Profile() if asked.profile else None
    for _ in range(1 if profile else asked.rounds):
        with asyncio.Runner(loop_factory=FACTORIES[asked.loop]) as runner:
            if profile:
                profile.enable()
            wall, cpu = runner.run(run(asked.records, asked.record_bytes, asked.operator))
            if profile:
                profile.disable()
        rates = {"records/s": round(asked.records / wall), "records/s of CPU": round(asked.records / cpu)}
        print(json.dumps({"loop": asked.loop, **rates}), flush=True)
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
