"""Measure what `pipeline.object-reuse` saves, and what a storm of window timers costs.

    python benchmarks/operator_bench.py [--rounds 5] [--records 200000]

Every figure is CPU time of operators between buffers in and buffers out, the median of all rounds; the cases of a comparison take
turns in every round. A storm: every key has a window that ends at the same instant, so all of their timers fire at once, and
the task processes nothing else meanwhile. It is compared with a window that counts the same records without an end.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from testbed_runtime.core.job.jobgraph import SourceConfig
from testbed_runtime.workload.keyedstate import SubtaskContext
from testbed_runtime.workload.operators import Operator, PythonFunction, TumblingWindow
from testbed_runtime.workload.records import RecordReader, Records, framed
from testbed_runtime.workload.sources import GeneratedSource

BUFFER_RECORDS = 315
KEYS = (1, 1_000, 10_000, 100_000)
CONTEXT = SubtaskContext(1, "work", 0, 1, 128, 0, ("source", "work", "sink"))
FUNCTIONS = {"returns the record": lambda record: record, "computes a new key": lambda record: record.key * 7}
WINDOW_S = 3600.0
"""Longer than the records span: no timer fires before it is asked to."""


def buffers(records: int, keys: int) -> list[bytes]:
    """Return the records of a source, whose keys are uniform, in buffers."""
    config = SourceConfig(records_per_second=1e6, keys=keys, record_bytes=100)
    source = GeneratedSource(config, vertex=0, subtask=0, parallelism=1, seed=7, t0_ns=0)
    return [
        bytes(framed(source.records(first, BUFFER_RECORDS)))
        for first in range(0, records - BUFFER_RECORDS + 1, BUFFER_RECORDS)
    ]


def cpu_s(call: Callable[..., object], *arguments: object) -> float:
    begun = time.process_time()
    call(*arguments)
    return time.process_time() - begun


def processed(operator: Operator, data: list[bytes]) -> int:
    """Process buffers as a task does. Return the bytes that come out."""
    reader, out = RecordReader(), 0
    for buffer in data:
        found: Records | None = reader.feed([buffer])
        made = operator.process(found) if found is not None else None
        out += len(framed(made)) if made is not None else 0
    return out


def fire(window: TumblingWindow) -> None:
    due_ns = window.next_timer_ns()
    panes = None if due_ns is None else window.on_time(due_ns)
    assert panes is not None
    framed(panes)


def object_reuse(rounds: int, records: int) -> None:
    data = buffers(records, 1000)
    count = len(data) * BUFFER_RECORDS
    for name, function in FUNCTIONS.items():
        spent: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(rounds):
            for reuse, found in spent.items():
                operator = PythonFunction(CONTEXT, function, "bench.py:f", reuse=reuse)
                found.append(cpu_s(processed, operator, data))
        new, reused = (statistics.median(found) / count * 1e9 for found in spent.values())
        ratio = statistics.median(a / b for a, b in zip(*spent.values(), strict=True))
        print(
            f"object reuse, a function that {name}: {new:.0f} → {reused:.0f} ns per record, {ratio:.2f} times as fast"
        )


def timer_storms(rounds: int, records: int) -> None:
    for keys in KEYS:
        data = buffers(records, keys)
        count = len(data) * BUFFER_RECORDS
        counted, fired, timers = [], [], 0
        for _ in range(rounds):
            operator = TumblingWindow(CONTEXT, WINDOW_S)
            counted.append(cpu_s(processed, operator, data))
            timers = len(operator.state.rows())
            fired.append(cpu_s(fire, operator))
        stall, share = statistics.median(fired), [c / (c + f) for c, f in zip(counted, fired, strict=True)]
        print(
            f"timers: {timers:>7,} fire at once after {count:,} records: {stall * 1e3:8.2f} ms in which nothing else is "
            f"processed, {stall / timers * 1e6:6.2f} µs each; throughput {statistics.median(share):.2f} of that without"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=200_000)
    asked = parser.parse_args()
    object_reuse(asked.rounds, asked.records)
    timer_storms(asked.rounds, asked.records)


if __name__ == "__main__":
    main()
