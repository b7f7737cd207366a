"""Compare times that several processes took from one clock: rows with one boot id are of one machine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import JOBMASTER_NAME
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import (
    CAUSAL_NS,
    OWN_CLOCK,
    TOLERANCE_NS,
    Attempt,
    attempt_of,
    ended_process,
    equal,
    first_true,
    ints,
)
from testbed_runtime.history.damage import Damage, first_of_each

SAMPLES = 20
"""Minimum samples of a task. In fewer, the lag can be 0 by chance."""
LATE_NS = 10_000_000
"""If the slowest record of a typical window is later than this, the sink has a lag."""
RESTARTING = frozenset(("cancellation", "restart-delay"))
"""Waits of the JobMaster whose attempt is the number of a restart."""


def check_clocks(trial: CheckedTrial) -> list[Damage]:
    """Return the contradictions between the times of processes that share a clock, at most one for each rule."""
    rules = (_lags, _after_exit, _before_deployment)
    return first_of_each(*(rule(trial) for rule in rules)) if trial.one_clock else []


def _lags(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a sink that was never late, although the latencies of its records say so."""
    tasks, latency = trial.table("tasks"), trial.table("latency")
    slowest, samples = ints(latency, "max_ns"), trial.places("tasks", "task")
    lag, counted = ints(tasks, "lag_ns"), equal(tasks, "role", "sink") & (ints(tasks, "records_in") > 0)
    for (task,), windows in sorted(trial.places("latency", "task").items()):
        mine = samples.get((task,), windows[:0])
        mine = mine[counted[mine]]
        late = float(np.median(slowest[windows]))
        if len(mine) >= SAMPLES and not lag[mine].any() and late >= LATE_NS:
            problem = f"is 0 in every sample of {task}, whose records were {late / NS:.3f} s late (max_ns in latency)"
            yield Damage("tasks", "lag_ns", int(mine[0]), problem)


def _after_exit(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield rows that a process wrote after it had ended."""
    exits = {ended_process(e): e["t_ns"] for _, e in trial.events("process.exit")}
    for name in OWN_CLOCK if exits else ():
        table = trial.table(name)
        newest = table.select(["process", "t_ns"]).group_by("process").aggregate([("t_ns", "max")])
        for r in newest.to_pylist():
            late = r["t_ns_max"] - exits.get(r["process"], r["t_ns_max"])
            if late > CAUSAL_NS:
                last = equal(table, "process", r["process"]) & (ints(table, "t_ns") == r["t_ns_max"])
                problem = f"is {late / NS:.1f} s after {r['process']} ended (process.exit in events)"
                yield Damage(name, "t_ns", first_true(last)[0], problem)


def _before_deployment(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield waits of an attempt that began before the JobManager scheduled it, and waits for a restart that began before it."""
    begun: dict[Attempt, int] = {}
    for event in trial.changes("task.state", "SCHEDULED"):
        begun.setdefault(attempt_of(event), event["t_ns"])
    for _, event in trial.events("failover.started"):
        if event["subject"].isdigit():
            begun.setdefault((JOBMASTER_NAME, int(event["subject"])), event["t_ns"])
    for row, r in trial.waits():
        if r["who"] == JOBMASTER_NAME and r["kind"] not in (*RESTARTING, "deployment"):
            continue
        of = r["what"] if r["kind"] == "deployment" else r["who"]
        early = begun.get((of, r["attempt"]), r["start_ns"]) - r["start_ns"]
        if early > TOLERANCE_NS:
            attempt = f"attempt {r['attempt']} of {of}"
            problem = f"of this {r['kind']} wait is {early / NS:.1f} s before {attempt} began"
            yield Damage("waits", "start_ns", row, problem)
