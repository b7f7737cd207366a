"""Estimate how long a run takes: the trials' phases, and what a machine needs to start, drain, stop and evaluate them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed_runtime.core.trial.plan import TrialPlan

SIMULATION, KUBERNETES = "simulation", "kubernetes"
"""Environments of a `TestbedHost` whose times differ from those of processes on this machine."""
PROCESS_CPU_S = 1.1
"""CPU seconds until a process of the testbed is ready; most of it is importing modules."""
OTHER_PROCESSES = 3
"""Number of processes that a testbed starts besides its TaskManagers and the proxy: supervisor, recorder, JobManager."""
CLOSE_S = 3.0
"""Seconds for a drain with a final checkpoint, sealing the history, and stopping the processes."""
SPARK_CPU_S = 36.0
"""CPU seconds until Spark has started and planned its first query."""
TRIAL_CPU_S = 8.0
"""CPU seconds to evaluate a trial."""
POD_START_S = 12.0
"""Seconds for scheduling the pods of a testbed, pulling their image and starting their containers."""


def run_seconds(trials: Sequence[TrialPlan], *, environment: str, machine: Mapping[str, Any]) -> float:
    """Return the seconds of a run of these trials. In virtual time only the phases count.

    `machine` holds `cores` and `load_1min`: other programs lengthen everything that computes."""
    phases = sum(trial.planned_s for trial in trials)
    if environment == SIMULATION or not trials:
        return phases
    cores = max(int(machine.get("cores") or 1), 1)
    slowdown = 1.0 + float(machine.get("load_1min") or 0.0) / cores
    processes = sum(t.testbed.replicas + OTHER_PROCESSES + t.testbed.proxy for t in trials)
    cpu = PROCESS_CPU_S * processes / cores + (SPARK_CPU_S + TRIAL_CPU_S * len(trials)) / min(cores, 2)
    waiting = CLOSE_S + (POD_START_S if environment == KUBERNETES else 0.0)
    return phases + waiting * len(trials) + cpu * slowdown
