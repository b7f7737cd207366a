"""Measure the processor time of a real Flink over buffer timeouts, and fit the prices of the simulator's cost model.

    python benchmarks/flink_timeout_bench.py --out runs.jsonl [--timeouts 1 10 100 -1] [--parallelism 16] [--rate 0] [--rounds 1]
    python benchmarks/flink_timeout_bench.py --fit runs.jsonl

A source and a sink of the same parallelism, connected all-to-all, in two TaskManagers (flink_bench.py); about half of the channels
are remote. One cluster runs a job for each timeout and round, in turns, after one that only compiles the code. Each line of the output is one job:
records, buffers and processor time by kind of thread, between the first and the last sample after the warm-up. `--fit` is described
in benchmarks/cost.md. Without Maven, a JDK or the network it says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from flink_bench import NoFlinkError, class_path, cluster

JOB = "dev.headgate.bench.Channels"
START_LIMIT_S = 120.0
COMPILING_TIMEOUT_MS = 5
WIRE_BYTES = 109
"""A record of 100 bytes with its length, the length of the array, and the tag of a stream element."""
Sampled = dict[str, Any]
"""The counters of one TaskManager."""
KINDS = ("source", "sink", "netty", "flusher", "other")


def samples(folder: Path) -> list[list[Sampled]]:
    return [[json.loads(line) for line in p.read_text().splitlines()] for p in sorted(folder.glob("tm-*"))]


def run_job(java: list[str], rest: int, asked: argparse.Namespace, timeout: int, folder: Path) -> Sampled:
    """Run the job for the warm-up and the measurement. Return what both TaskManagers did meanwhile."""
    folder.mkdir()
    words = [rest, asked.parallelism, asked.record_bytes, timeout, asked.rate, folder]
    made = subprocess.run(
        [*java, JOB, *map(str, words)], check=True, capture_output=True, timeout=START_LIMIT_S
    )
    job = made.stdout.decode().split()[-1]
    deadline = time.monotonic() + START_LIMIT_S
    while not (found := samples(folder)) or min(map(len, found)) < 2 or len(found) < 2:
        if time.monotonic() > deadline:
            raise SystemExit(f"the job does not start: {found}")
        time.sleep(0.5)
    time.sleep(asked.warm_up)
    first = min(map(len, samples(folder)))
    time.sleep(asked.seconds)
    found = samples(folder)
    cancel = urllib.request.Request(f"http://127.0.0.1:{rest}/jobs/{job}?mode=cancel", method="PATCH")
    urllib.request.urlopen(cancel).close()
    row = {"timeout_ms": timeout, "parallelism": asked.parallelism, "rate": asked.rate}
    row["seconds"] = statistics.mean((s[-1]["wall"] - s[first]["wall"]) / 1e9 for s in found)
    names = ("records_out", "records_in", "buffers", "cpu", *(f"cpu_{kind}" for kind in KINDS))
    names += tuple(f"wakeups_{kind}" for kind in KINDS)
    for name in names:
        row[name] = sum(s[-1].get(name, 0) - s[first].get(name, 0) for s in found)
    placed = [(s[-1]["sources"], s[-1]["sinks"]) for s in found]
    row["remote_channels"] = placed[0][0] * placed[1][1] + placed[1][0] * placed[0][1]
    latencies = [value / 1000 for s in found for line in s[first:] for value in line["latencies"]]
    row["latency_ms"] = [round(float(np.quantile(latencies, q)), 2) for q in (0.5, 0.9, 0.99)]
    return row


def measure(asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with cluster(class_path(folder), folder, slots=asked.parallelism) as (java, rest):
            compiling = argparse.Namespace(**vars(asked) | {"rate": 0.0})
            run_job(java, rest, compiling, COMPILING_TIMEOUT_MS, folder / "compiling")
            for number in range(asked.rounds):
                for timeout in asked.timeouts:
                    row = run_job(java, rest, asked, timeout, folder / f"job-{number}-{timeout}")
                    with Path(asked.out).open("a") as out:
                        print(json.dumps(row), file=out)
                    records = row["records_in"]
                    print(
                        f"{timeout:>5} ms {records / row['seconds']:>9.0f} records/s  "
                        f"{row['cpu'] / records:>8.0f} ns of CPU/record  "
                        f"{1000 * row['buffers'] / records:>7.2f} buffers/1000  "
                        + " ".join(f"{k} {row[f'cpu_{k}'] / records:.0f}" for k in KINDS)
                        + "  wake-ups/1000 "
                        + " ".join(f"{k} {1000 * row[f'wakeups_{k}'] / records:.2f}" for k in KINDS)
                        + f"  latency {row['latency_ms']} ms",
                        flush=True,
                    )
                    time.sleep(3)


def fit(rows: list[Sampled]) -> dict[str, float]:
    """Return the prices in seconds that fit the runs best, by the squares of the relative errors of the time per record.

    Records, bytes and the buffers of busy cores from the runs at saturation, buffers of free cores from the others."""
    each = [row for row in rows if row["timeout_ms"] == 0]
    rows = [row for row in rows if row["timeout_ms"] != 0]
    busy, free = [r for r in rows if not r["rate"]], [r for r in rows if r["rate"]]
    timed = [row for row in rows if row["timeout_ms"] > 0]
    record_in, shared_in = solve(busy, "sink", per_record(busy), per_buffer(busy))
    network_record, network_shared = solve(busy, "netty", per_record(busy), per_buffer(busy))
    [buffer_in] = solve(free, "sink", per_buffer(free), less=record_in)
    [network_buffer] = solve(free, "netty", per_buffer(free), less=network_record)
    runs = [
        row["parallelism"] * row["seconds"] / (row["timeout_ms"] / 1000) / row["records_in"] for row in timed
    ]
    flush, flushed = solve(timed, "flusher", runs, per_buffer(timed))
    ends = 2 * statistics.mean(row["remote_channels"] / row["parallelism"] ** 2 for row in rows)
    record_out = source_s(busy)
    return {
        "record_out_s": record_out,
        "record_in_s": record_in,
        "buffer_in_s": buffer_in,
        "shared_in_s": shared_in,
        "flushed_s": flushed,
        "flush_s": flush,
        "flush_record_s": source_s(each) - record_out,
        "network_buffer_s": network_buffer / ends,
        "network_shared_s": network_shared / ends,
        "network_byte_s": network_record / ends / WIRE_BYTES,
    }


def source_s(rows: list[Sampled]) -> float:
    """Return the median processor time of the sources for each record."""
    return float(statistics.median(row["cpu_source"] / row["records_in"] for row in rows)) / 1e9


def per_record(rows: list[Sampled]) -> list[float]:
    return [1.0] * len(rows)


def per_buffer(rows: list[Sampled]) -> list[float]:
    return [row["buffers"] / row["records_in"] for row in rows]


def solve(rows: list[Sampled], kind: str, *amounts: list[float], less: float = 0.0) -> list[float]:
    """Return the price in seconds of each amount (per record). `less` is the part of each record with a known price."""
    measured = np.array([row[f"cpu_{kind}"] / row["records_in"] / 1e9 for row in rows])
    weighted = np.array(amounts).T / measured[:, None]
    return [float(price) for price in np.linalg.lstsq(weighted, 1 - less / measured, rcond=None)[0]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timeouts", type=int, nargs="+", default=[0, 1, 10, 100, 500, -1])
    parser.add_argument("--parallelism", type=int, default=16)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument(
        "--rate", type=float, default=0.0, help="records per second of all sources; 0: no limit"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--out", default="/dev/null")
    parser.add_argument("--fit", nargs="+", help="files that --out has written: only fit the prices")
    asked = parser.parse_args()
    if asked.fit:
        rows = [json.loads(line) for name in asked.fit for line in Path(name).read_text().splitlines()]
        print(json.dumps({name: float(f"{price:.3g}") for name, price in fit(rows).items()}, indent=1))
        return
    try:
        measure(asked)
    except NoFlinkError as error:
        parser.exit(1, f"Flink cannot run here: {error}\n")


if __name__ == "__main__":
    main()
