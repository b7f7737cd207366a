"""Wiring: the host and the evaluator of an environment. The only module of the command line that knows the adapters."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from testbed_runtime.cli.folders import make_folder
from testbed_runtime.cli.loading import Loaded
from testbed_runtime.core.trial.plan import RunPlan
from testbed_runtime.evaluation.process import SparkWorker
from testbed_runtime.ports.hosts import Evaluator, TestbedHost
from testbed_runtime.process.machine import machine_facts
from testbed_runtime.runner.manifest import RunInfo
from testbed_runtime.runner.progress import Progress, evaluating


def local(
    folder: Path, progress: Progress, worker: SparkWorker, plan: RunPlan
) -> tuple[TestbedHost, Evaluator]:
    """Return a host of processes on this machine, and an evaluator that uses the command's Spark.

    If only a packet backend can inject some fault of the plan, each process gets its own network, which needs root. Raises
    HeadgateError before the run if Spark cannot run here."""
    from testbed_runtime.evaluation.session import require_spark
    from testbed_runtime.local import packets
    from testbed_runtime.local.testbed import LocalTestbedHost

    require_spark(os.environ)
    if not packets.needed(plan.faults):
        return LocalTestbedHost(folder), spark(progress, worker)
    offered = asyncio.run(packets.capabilities())
    available = packets.offers(offered)
    return LocalTestbedHost(folder, capabilities=offered, packets=available), spark(progress, worker)


def spark(progress: Progress, worker: SparkWorker) -> Evaluator:
    """Return an evaluator that reports its stages as progress."""
    from testbed_runtime.local.evaluator import SparkEvaluator

    return SparkEvaluator(worker, on_progress=lambda line: progress.on_event(evaluating(line)))


def new_run(out: Path, loaded: Loaded, environment: str) -> tuple[Path, RunInfo]:
    """Create a new folder for a run. Return it with the run's facts for the manifest."""
    now = datetime.now(UTC)
    name = f"{loaded.scenario.metadata.name}-{now:%Y%m%d-%H%M%S}"
    folder, count = out / name, 1
    while True:
        try:
            make_folder(folder)
            break
        except FileExistsError:
            count += 1
            folder = out / f"{name}-{count}"
    started = now.isoformat(timespec="seconds")
    # the processes of a local run record their machine's monotonic clock
    epoch_ns = time.time_ns() - time.monotonic_ns() if environment == "local" else None
    return folder, RunInfo(folder.name, environment, started, machine_facts(), epoch_ns)
