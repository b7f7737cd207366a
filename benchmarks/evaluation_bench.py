"""Measure the evaluation of recorded runs: seconds per stage, processor time and memory of the worker and its JVM.

    python benchmarks/histories.py /tmp/runs/million --rows 1000000
    python benchmarks/evaluation_bench.py /tmp/runs/small /tmp/runs/million

The first run includes the start of Spark. Memory is the proportional set size of all processes, sampled every half second.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed_runtime.evaluation.process import SparkWorker

SAMPLE_S = 0.5


def descendants(root: int) -> list[int]:
    """Return the processes below `root`."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(
                int(stat.parent.name)
            )
        except OSError:
            continue
    found, todo = [], [root]
    while todo:
        own = children.get(todo.pop(), [])
        found += own
        todo += own
    return found


def memory_mib(processes: list[int]) -> int:
    total = 0
    for pid in processes:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total // 1024


def cpu_s(processes: list[int]) -> float:
    """Return the processor time of processes and of their children that have ended."""
    ticks = 0
    for pid in processes:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(f) for f in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def watch(done: threading.Event, peaks: list[int]) -> None:
    while not done.wait(SAMPLE_S):
        peaks.append(memory_mib(descendants(os.getpid())))


async def measure(folders: list[Path]) -> None:
    worker = SparkWorker()
    worker.on_log = lambda _: None

    async def show(line: Mapping[str, Any]) -> None:
        print(f"  {line['seconds']:8.2f} s  {line['stage']}")

    try:
        for folder in folders:
            done, peaks = threading.Event(), [0]
            watcher = threading.Thread(target=watch, args=(done, peaks))
            watcher.start()
            print(folder.name)
            began, spent = time.monotonic(), cpu_s(descendants(os.getpid()))
            try:
                await worker.evaluate(folder, show)
            finally:
                seconds = time.monotonic() - began
                done.set()
                watcher.join()
            spent = cpu_s(descendants(os.getpid())) - spent
            print(f"  {seconds:8.2f} s  in all, {spent:.1f} s of processor time, {max(peaks)} MiB at most")
    finally:
        await worker.close()


if __name__ == "__main__":
    asyncio.run(measure([Path(argument) for argument in sys.argv[1:]]))
