"""Print the ratios that Headgate's speed is judged by, each measured against its own limit in the same run (`make bench`).

    python benchmarks/bench.py [--rounds 3] [--megabytes 300] [--records 2000000] [--flink-records 16000000] [--without-flink]

Every ratio is one of CPU time, so that other work on the machine hardly changes it; the medians of all rounds count. That to a
real Flink is also given by wall clock. A row that falls short says which part of the cost is left.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import flink_bench
import tls_bench
import transport_bench

from testbed_runtime.core.job.jobgraph import SourceConfig
from testbed_runtime.local.testbed import write_certificate
from testbed_runtime.workload.keyedstate import SubtaskContext
from testbed_runtime.workload.operators import PythonFunction
from testbed_runtime.workload.records import RecordReader, framed
from testbed_runtime.workload.sources import GeneratedSource

RECORD = struct.Struct("<4sHHIQqqQIHH52s")
"""A generated record of 100 bytes with its length, for the bare loop."""
BUFFER_RECORDS = 315
FLOATING = (transport_bench.FLOATING, 32)
"""Floating buffers per gate of the exchange. They decide how many buffers a turn of the loop moves (benchmarks/transport.md)."""
GATES = {"asyncio": (0.50, 0.65), "uvloop": (0.60, 0.80)}
"""Gate and goal of the exchange's share of a raw socket, by loop."""
JOB_BENCH = Path(__file__).with_name("job_bench.py")
UNITS = ("records/s of CPU", "records/s")
JOB_LEFT = "numpy calls per run of buffers at source and sink (benchmarks/job.md)"


@dataclass(frozen=True)
class Row:
    what: str
    ratios: list[float]
    gate: float
    goal: float
    left: str
    """The cost that is left, if the row falls short."""

    def __str__(self) -> str:
        ratio = statistics.median(self.ratios)
        result = "goal met" if ratio >= self.goal else "gate met" if ratio >= self.gate else "FALLS SHORT"
        spread = f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"
        why = "" if ratio >= self.gate else f"\n    because of {self.left}"
        return f"{self.what:<66} {ratio:5.2f} ({spread})  gate {self.gate:.2f}, goal {self.goal:.2f}: {result}{why}"


def exchange_ratios(rounds: int, megabytes: int) -> dict[tuple[str, int], list[float]]:
    """Return the whole exchange's share of the raw socket's MB per second of CPU time, for each round, by loop and floating buffers."""
    buffers = megabytes * 1_000_000 // transport_bench.SEGMENT
    ratios: dict[tuple[str, int], list[float]] = {
        (loop, floating): [] for loop in ("asyncio", "uvloop") for floating in FLOATING
    }
    for _ in range(rounds):
        raw = transport_bench.measure("raw", "blocking", buffers)
        for (loop, floating), found in ratios.items():
            setup = transport_bench.Setup(floating=floating)
            found.append(transport_bench.measure("exchange", loop, buffers, setup).cpu / raw.cpu)
    return ratios


def tls_ratios(rounds: int, megabytes: int) -> list[float]:
    """Return the exchange's MB per second of CPU time with TLS (AES-GCM), as a share of those without, for each round."""
    buffers, ratios = megabytes * 1_000_000 // transport_bench.SEGMENT, []
    with tempfile.TemporaryDirectory() as folder:
        certificate = Path(folder) / "certificate.pem"
        write_certificate(certificate)
        encrypted = transport_bench.Setup("tls", "gcm", str(certificate))
        for number in range(rounds):
            found = {}
            for setup in (transport_bench.Setup(), encrypted)[:: 1 if number % 2 == 0 else -1]:
                found[setup.way] = tls_bench.exchange("asyncio", buffers, setup).cpu
            ratios.append(found["tls"] / found["plain"])
    return ratios


def seconds(call: Callable[[], object], repeats: int = 60) -> float:
    """Return the CPU time of one call: the best of several runs."""
    best = float("inf")
    for _ in range(7):
        begun = time.process_time()
        for _ in range(repeats):
            call()
        best = min(best, (time.process_time() - begun) / repeats)
    return best


def function_ratios(rounds: int) -> list[float]:
    """Return how fast a Python operator is, which is given buffers and returns the bytes of buffers, against a bare loop that
    unpacks each record, calls the function, and packs it again. The function computes a new key."""
    config = SourceConfig(records_per_second=1e6, keys=1000, record_bytes=RECORD.size - 4)
    source = GeneratedSource(config, vertex=0, subtask=0, parallelism=1, seed=7, t0_ns=0)
    data = bytes(framed(source.records(0, BUFFER_RECORDS)))
    context = SubtaskContext(1, "work", 0, 1, 128, 0, ("source", "work", "sink"))
    operator = PythonFunction(context, lambda record: record.key * 7, "bench.py:f")

    def new_key(key: int) -> int:
        return key * 7

    def bare() -> bytes:
        made = []
        for a, b, c, d, e, key, g, h, i, j, k, payload in RECORD.iter_unpack(data):
            made.append(RECORD.pack(a, b, c, d, e, new_key(key), g, h, i, j, k, payload))
        return b"".join(made)

    def ours() -> memoryview:
        records = RecordReader().feed([data])
        assert records is not None
        made = operator.process(records)
        assert made is not None
        return framed(made)

    return [seconds(bare) / seconds(ours) for _ in range(rounds)]


def job_rates(records: int) -> dict[str, float]:
    """Return the rates of a job with a source and a sink: of the slower TaskManager, which bounds the job."""
    arguments = ["--records", str(records), "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, JOB_BENCH, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return slower([json.loads(line) for line in done.stdout.splitlines()])


def slower(vertices: list[dict[str, float | str]]) -> dict[str, float]:
    return {unit: min(float(vertex[unit]) for vertex in vertices) for unit in UNITS}


def against_flink(asked: argparse.Namespace) -> None:
    """Run Flink's job and ours in turn, and print both rates and their ratios."""
    found: dict[str, list[dict[str, float]]] = {"Headgate": [], "Flink": []}
    reason = classes = ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            classes = "" if asked.without_flink else flink_bench.class_path(Path(folder))
            reason = "--without-flink" if asked.without_flink else ""
        except flink_bench.NoFlinkError as error:
            reason = str(error)
        for number in range(asked.rounds):
            found["Headgate"].append(job_rates(asked.records))
            if classes:
                place = Path(folder) / str(number)
                place.mkdir()
                rows = flink_bench.measure(asked.flink_records, RECORD.size - 4, classes, place)
                found["Flink"].append(slower(rows))
    for name, rounds in found.items():
        if rounds:
            cpu, wall = (statistics.median(rates[unit] for rates in rounds) for unit in UNITS)
            print(
                f"100 B records, source → sink, {name:<8} {cpu:,.0f}/s of CPU time, {wall:,.0f}/s of wall clock"
            )
    if reason:
        print(f"    Flink did not run, so there is no ratio: {reason}")
        return
    pairs = list(zip(found["Headgate"], found["Flink"], strict=True))
    for unit, clock in zip(UNITS, ("CPU", "wall clock"), strict=True):
        ratios = [ours[unit] / theirs[unit] for ours, theirs in pairs]
        print(Row(f"100 B records, source → sink, of a real Flink, by {clock}", ratios, 0.50, 1.0, JOB_LEFT))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--flink-records", type=int, default=16_000_000)
    parser.add_argument("--without-flink", action="store_true", help="do not compare with a real Flink")
    asked = parser.parse_args()
    layers = "a turn of both loops for every few buffers of a small credit (benchmarks/transport.md)"
    for (loop, floating), ratios in exchange_ratios(asked.rounds, asked.megabytes).items():
        what = f"32 KiB buffers, credit 2 + {floating}, one connection, of a raw socket, {loop}"
        print(Row(what, ratios, *GATES[loop], layers))
    what = "32 KiB buffers with credit and TLS (AES-GCM), of the same without TLS"
    copies = "encryption, and four more copies of each byte (docs/decisions/0012-tls.md)"
    print(Row(what, tls_ratios(asked.rounds, asked.megabytes), 0.35, 0.50, copies))
    what = "a Python function per record, of a bare loop"
    print(
        Row(what, function_ratios(asked.rounds), 0.40, 0.60, "the UserRecord that is created for each record")
    )
    against_flink(asked)


if __name__ == "__main__":
    main()
