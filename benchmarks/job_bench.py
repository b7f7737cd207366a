"""Measure records per second of a whole job, source → sink over TCP, with one TaskManager per process.

    python benchmarks/job_bench.py [--records 3000000] [--record-bytes 100] [--rounds 3] [--loop asyncio|uvloop]
    python benchmarks/job_bench.py --timeouts 0 1 10 100 500 -1 --rate 1000 --records 4000
    python benchmarks/job_bench.py --timeouts 0 1 10 100 500 -1 --parallelism 12 --markers 50
    python benchmarks/job_bench.py --markers 0 1000 100 10 1
    python benchmarks/job_bench.py --tls cbc gcm none

Without --rate the source is always behind, so the job runs as fast as the slower of its processes. The job is
complete: JobManager, RPC over HTTP, checkpoints, credit over a TCP connection, checksums, the sink's ledger, the history (in
memory). The figures of each task are records per second of wall clock, and per second of CPU time (the busier process bounds
the rate; this hardly depends on what else the machine does). Both are measured between the first and the last sample in which
the task made progress. A sink also reports the records in each buffer, and its latencies; those of latency markers, if there
are any (--markers), count from their emission and therefore mean something at saturation too. --tls encrypts the connections, with
Flink's default cipher suite (cbc) or with AES-GCM. With several timeouts, marker intervals or cipher suites, which take turns in every
round, a table of medians follows: records per second of wall clock at the sinks, CPU time
of all TaskManagers per record, buffers per 1,000 records.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import json
import math
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import uvloop

from testbed_runtime.core.exchange.tls import ALGORITHMS, INTERNAL, TlsSettings
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
from testbed_runtime.local.testbed import write_certificate
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.process.clock import LoopClock, SeededIds, SeededRandom
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.meter import TaskMeter
from testbed_runtime.taskmanager.process import TaskManager
from testbed_runtime.transport.mailbox import SleepingCpu
from testbed_runtime.transport.rpc_http import HttpRpc
from testbed_runtime.transport.tcp import TcpNetwork
from testbed_runtime.transport.tls import DataTls
from testbed_runtime.workload.latency import LatencyHistogram

LIMIT_S = 300.0
SAMPLE_S = 0.05
UNREACHED = 50e6
"""Records per second; more than any source reaches."""
CIPHERS = {"cbc": "TLS_RSA_WITH_AES_128_CBC_SHA", "gcm": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}
Case: TypeAlias = tuple[int, int, str]
"""Buffer timeout and interval of markers in ms, and the key of the cipher suite."""
FACTORIES = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def options_of(asked: argparse.Namespace) -> dict[str, str]:
    """Return the job's options; a buffer timeout of -1 disables the flusher."""
    timeout_ms = asked.timeouts[0]
    return {
        "metrics.latency.interval": f"{asked.markers[0]} ms",
        "execution.checkpointing.interval": f"{asked.checkpoints} s",
        "execution.buffer-timeout.interval": f"{max(0, timeout_ms)} ms",
        "execution.buffer-timeout.enabled": str(timeout_ms >= 0).lower(),
        "taskmanager.memory.network.min": "256 mb",
        "taskmanager.memory.network.max": "256 mb",
        **({INTERNAL: "true", ALGORITHMS: CIPHERS[asked.tls[0]]} if asked.tls[0] != "none" else {}),
    }


def sink_of(history: MemoryHistory, name: str) -> HistorySink:
    loop = asyncio.get_running_loop()
    return history.sink(name, lambda: int(loop.time() * 1e9))


def rpc_of(name: str) -> HttpRpc:
    return HttpRpc(name, ("127.0.0.1", 0), "bench")


async def taskmanager(ordinal: int, port: int, asked: argparse.Namespace) -> None:
    """Run one TaskManager until stdin closes. Print what `Measured` has, as JSON."""
    latencies: list[np.ndarray] = []
    marked: list[int] = []
    exact = {
        TaskMeter: ("marked", lambda _, _source, latency_ns: marked.append(latency_ns)),
        LatencyHistogram: ("add", lambda _, found: latencies.append(found)),  # instead of buckets
    }
    for measured, (method, append) in exact.items():
        setattr(measured, method, append)
    rpc, name = rpc_of(f"tm-{ordinal}"), TaskManagerID(ordinal, 1)
    settings = TlsSettings.read(Options(options_of(asked)))
    manager = TaskManager(
        name,
        options=Options(options_of(asked)),
        rpc=rpc,
        network=TcpNetwork(tls=DataTls.load(asked.certificate, settings) if settings else None),
        blobs=MemoryBlobStore(),
        history=sink_of(MemoryHistory(), str(name)),
        clock=LoopClock("bench"),
        cpu=SleepingCpu(),
        random=SeededRandom(ordinal),
        jobmanager=("127.0.0.1", port),
        slots=max(asked.parallelism, asked.sinks),
    )
    await rpc.start()
    await manager.start(("127.0.0.1", 0))
    await manager.registered()
    print("ready", flush=True)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    profile = cProfile.Profile()
    if asked.profile:
        profile.enable()
    vertex, buffers, sent = "", 0, 0
    first: list[float] | None = None
    last: list[float] | None = None
    while not ended.done():
        await asyncio.wait([ended], timeout=SAMPLE_S)
        seen = 0
        for task in manager.tasks:
            vertex = task.meter.vertex
            seen += max(task.meter.records_in, task.meter.records_out)
            buffers = max(buffers, sum(c.buffers_in for t in manager.tasks for c in t.input.channels))
        outputs = [s for task in manager.tasks for p in task.partitions for s in p.subpartitions]
        sent = max(sent, sum(sum(s.sent) for s in outputs))
        if seen > (last or [0])[0]:
            received_now = sum(task.meter.records_in for task in manager.tasks if task.meter.role == "sink")
            last = [seen, time.perf_counter(), time.process_time(), received_now]
            first = first or last
    profile.disable()
    if asked.profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)
    if first is last or first is None or last is None:
        sys.exit(
            f"The job made progress in fewer than two samples of {SAMPLE_S:g} s: give it more --records."
        )
    records, wall, cpu, received = (b - a for a, b in zip(first, last, strict=True))
    found = {"vertex": vertex, "records/s": records / wall, "records/s of CPU": records / cpu}
    found |= {"wall s": wall, "CPU s": cpu, "received": received, "buffers sent": sent}
    if marked:
        found |= {f"markers p{p} ms": float(np.percentile(marked, p)) / 1e6 for p in (50, 99)}
    if latencies:
        every = np.concatenate(latencies) / 1e6
        found["records in a buffer"] = len(every) / buffers
        found |= {f"latency p{p} ms": float(np.percentile(every, p)) for p in (50, 90, 99)}
    print(json.dumps(found), flush=True)
    await manager.close()
    await rpc.close()


async def start_process(ordinal: int, port: int, asked: argparse.Namespace) -> asyncio.subprocess.Process:
    arguments = ["--taskmanager", str(ordinal), str(port), "--loop", asked.loop]
    arguments += ["--timeouts", str(asked.timeouts[0]), "--parallelism", str(asked.parallelism)]
    arguments += ["--sinks", str(asked.sinks)]
    arguments += ["--tls", asked.tls[0], "--certificate", asked.certificate]
    arguments += ["--markers", str(asked.markers[0]), "--checkpoints", str(asked.checkpoints)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        *arguments,
        *(["--profile"] if asked.profile else []),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    await process.stdout.readline()
    return process


def job(asked: argparse.Namespace) -> JobGraph:
    rate = asked.rate or UNREACHED
    source = SourceConfig(
        records_per_second=rate, keys=1000, limit=asked.records, record_bytes=asked.record_bytes
    )
    width = asked.parallelism
    vertices = [JobVertex("source", width, 128, "a", source=source)]
    edges = []
    if asked.operator:
        work = OperatorConfig(asked.operator, function=asked.function)
        vertices.append(JobVertex("work", width, 128, "b", operator=work))
    vertices.append(JobVertex("sink", asked.sinks or width, 128, "c", sink=SinkConfig()))
    for up, down in itertools.pairwise(vertices):
        edges.append(JobEdge(up.name, down.name, "hash"))
    return JobGraph("bench", tuple(vertices), tuple(edges), seed=7)


async def run(asked: argparse.Namespace) -> list[dict[str, float]]:
    """Return what each TaskManager measured. Raise if a record was lost."""
    options = options_of(asked)
    history, rpc, client = MemoryHistory(), rpc_of("jobmanager"), rpc_of("client")
    manager = JobManager(
        rpc,
        MemoryBlobStore(),
        sink_of(history, "jobmanager-1"),
        LoopClock("bench"),
        ids=SeededIds(1),
        random=SeededRandom(1),
        options=Options(options),
    )
    await manager.start()
    await client.start()
    count = 3 if asked.operator else 2
    processes = [await start_process(ordinal, rpc.address[1], asked) for ordinal in range(count)]

    async def ask(message: Any) -> Any:
        return await client.ask("jobmanager", rpc.address, "dispatcher", message, timeout_s=10.0)

    submitted = (await ask(SubmitJob(job(asked), options))).reason
    async with asyncio.timeout(LIMIT_S):
        while (await ask(RequestJobStatus(submitted))).state != "FINISHED":  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the JobManager offers nothing to await
    rows = history.trial().rows("delivery")
    delivered = sum(int.from_bytes(row["bitmap"], "little").bit_count() for row in rows)
    assert delivered == asked.records, f"{delivered} of {asked.records} records were delivered"
    printed = [(await process.communicate(b""))[0] for process in processes]
    await manager.close()
    await client.close()
    if any(process.returncode for process in processes):
        sys.exit("A TaskManager failed; its error is printed above.")
    return [json.loads(row) for row in printed]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", choices=sorted(FACTORIES), default="asyncio")
    parser.add_argument("--operator", default="", help="an operator between source and sink, e.g. map")
    parser.add_argument("--function", default="", help="the function of a python operator, file.py:name")
    parser.add_argument("--profile", action="store_true", help="where the time of each TaskManager goes")
    parser.add_argument("--timeouts", nargs="+", type=int, default=[100], help="buffer timeouts in ms")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="records per second of all sources; 0: no limit"
    )
    parser.add_argument("--parallelism", type=int, default=1, help="of each vertex; all-to-all channels")
    parser.add_argument(
        "--markers", nargs="+", type=int, default=[0], help="intervals of latency markers in ms"
    )
    parser.add_argument("--checkpoints", type=int, default=1, help="interval of checkpoints in s")
    parser.add_argument("--sinks", type=int, default=0, help="parallelism of the sink, if it is another one")
    parser.add_argument("--tls", nargs="+", choices=("none", *CIPHERS), default=["none"])
    parser.add_argument("--certificate", default="", help=argparse.SUPPRESS)
    parser.add_argument("--taskmanager", nargs=2, type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.taskmanager:
        with asyncio.Runner(loop_factory=FACTORIES[asked.loop]) as runner:
            ordinal, port = asked.taskmanager
            runner.run(taskmanager(ordinal, port, asked))
        return
    with tempfile.TemporaryDirectory() as folder:
        if asked.tls != ["none"]:
            asked.certificate = str(Path(folder) / "certificate.pem")
            write_certificate(Path(asked.certificate))
        measure(asked)


def measure(asked: argparse.Namespace) -> None:
    """Run all cases in turn, and print what they measured."""
    cases = list(itertools.product(asked.timeouts, asked.markers, asked.tls))
    every: dict[Case, list[list[dict[str, float]]]] = {case: [] for case in cases}
    for case in cases * (1 if asked.profile else asked.rounds):
        this = argparse.Namespace(
            **{**vars(asked), "timeouts": case[:1], "markers": case[1:2], "tls": case[2:]}
        )
        with asyncio.Runner(loop_factory=FACTORIES[asked.loop]) as runner:
            measured = sorted(runner.run(run(this)), key=lambda row: row["vertex"])
        every[case].append(measured)
        said = {"loop": asked.loop, "timeout ms": case[0], "markers ms": case[1], "tls": case[2]}
        for row in measured:
            print(json.dumps(said | rounded(row)), flush=True)
    if len(cases) > 1:
        print_table(every)


def print_table(every: dict[Case, list[list[dict[str, float]]]]) -> None:
    """Print the medians of all rounds, and throughput and CPU per record relative to the last case of the same round."""
    print(
        "timeout ms  markers ms   tls   records/s  µs CPU/record  buffers/1000  marker p50  p99 ms   rate  CPU (of the last)"
    )
    bases = [figures(rows) for rows in list(every.values())[-1]]
    for (timeout_ms, markers_ms, tls), rounds in every.items():
        found = [figures(rows) for rows in rounds]
        middle = [statistics.median(values) for values in zip(*found, strict=True)]
        ratios = [
            statistics.median(one[i] / base[i] for one, base in zip(found, bases, strict=True))
            for i in (0, 1)
        ]
        print(
            f"{timeout_ms:>10}{markers_ms:>12}{tls:>6}{middle[0]:>12,.0f}{middle[1]:>15.2f}{middle[2]:>14.2f}{middle[3]:>12.1f}"
            f"{middle[4]:>8.1f}{ratios[0]:>7.2f}{ratios[1]:>6.2f}"
        )


def figures(rows: list[dict[str, float]]) -> tuple[float, ...]:
    """Return records per second at the sinks, µs of CPU per record in all processes, buffers per 1,000 records, and the worst
    p50 and p99 of the markers in ms."""
    received = sum(row["received"] for row in rows)
    cpu, sent = (sum(row[name] for row in rows) for name in ("CPU s", "buffers sent"))
    markers = (max(row.get(f"markers p{p} ms", math.nan) for row in rows) for p in (50, 99))
    return (
        received / max(row["wall s"] for row in rows),
        1e6 * cpu / received,
        1000 * sent / received,
        *markers,
    )


def rounded(row: Mapping[str, float | str]) -> dict[str, float | str]:
    return {k: v if isinstance(v, str) else float(f"{v:.3g}") for k, v in row.items()}


if __name__ == "__main__":
    main()
