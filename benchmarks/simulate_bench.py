"""Cost of `headgate simulate` by the size of the job: CPU seconds, memory, and CPU per virtual second.

    python benchmarks/simulate_bench.py [small] [hundred] [thousand]

Every job is a source, a keyed count (hash, all-to-all) and a sink (forward), loses one TaskManager, and runs on one core. Each size is
measured in a process of its own, so that its peak memory is that of the job.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.runner.engine import RunRequest
from testbed_runtime.runner.manifest import RunInfo
from testbed_runtime.runner.progress import Silent
from testbed_runtime.simulation.entry import simulate
from testbed_runtime.simulation.loop import rare_collections

SIZES: dict[str, tuple[int, int, int, int, str, tuple[str, str, str]]] = {
    "small": (9, 1, 8, 4000, "1 s", ("5 s", "5 s", "40 s")),
    "hundred": (11, 10, 33, 4000, "10 s", ("10 s", "10 s", "40 s")),
    "thousand": (101, 4, 333, 300, "3 min", ("60 s", "60 s", "480 s")),
}
"""TaskManagers, slots, parallelism, records per second, checkpoint interval, and warm-up, baseline and observation."""


def document(name: str) -> dict[str, Any]:
    replicas, slots, parallelism, rate, interval, (warm_up, baseline, observation) = SIZES[name]
    return {
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": f"bench-{name}"},
        "spec": {
            "hypothesis": "One dead TaskManager costs one failover.",
            "seed": 7,
            "testbed": {
                "flinkVersion": "2.x",
                "taskManagers": {"replicas": replicas, "slots": slots, "replaceLost": "Never"},
                "flinkConfiguration": {
                    "execution.checkpointing.interval": interval,
                    "taskmanager.memory.flink.size": "16 gb",
                    "restart-strategy.type": "fixed-delay",
                    "restart-strategy.fixed-delay.attempts": "3",
                    "restart-strategy.fixed-delay.delay": "0 s",
                },
                "job": {
                    "vertices": [
                        {
                            "name": "source",
                            "parallelism": parallelism,
                            "source": {"recordsPerSecond": rate, "recordBytes": 100, "keys": 100000},
                        },
                        {"name": "count", "parallelism": parallelism, "operator": "keyed-count"},
                        {"name": "sink", "parallelism": parallelism, "sink": "ledger"},
                    ],
                    "edges": [
                        {"from": "source", "to": "count", "partitioning": "hash"},
                        {"from": "count", "to": "sink", "partitioning": "forward"},
                    ],
                },
            },
            "timeline": {
                "warmUp": warm_up,
                "baseline": baseline,
                "observation": observation,
                "drain": "60 s",
            },
            "faults": [
                {
                    "name": "dead",
                    "at": "0 s",
                    "duration": "5 s",
                    "target": {"taskManagers": {"running": "sink", "mode": "one"}},
                    "process": {"kill": {}},
                }
            ],
            "control": False,
            "expect": [{"metric": "delivery.lost", "equals": 0}],
        },
    }


def measure(name: str) -> dict[str, Any]:
    scenario = validate(document(name)).valid()
    with tempfile.TemporaryDirectory() as folder:
        plan = compile_run(scenario, scenario_folder=Path(folder), control=False)
        virtual_s = sum(float(text.split()[0]) for text in SIZES[name][5])
        begin = time.process_time()
        request = RunRequest(plan, document(name), RunInfo("run", "simulation", ""), Path(folder) / "run")
        with rare_collections():  # as the command does
            result = simulate(request, Silent())
            cpu_s = time.process_time() - begin
    return {
        "size": name,
        "subtasks": 3 * SIZES[name][2],
        "virtual_s": virtual_s,
        "cpu_s": round(cpu_s, 1),
        "cpu_per_virtual_s": round(cpu_s / virtual_s, 3),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "verdict": result.verdict.verdict,
    }


def main() -> None:
    names = sys.argv[1:] or list(SIZES)
    if len(names) == 1:
        print(json.dumps(measure(names[0])))
        return
    for name in names:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
