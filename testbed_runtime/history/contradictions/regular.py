"""Find what is missing of the rows that processes write regularly, or always together.

A process that is killed loses its last rows, so a missing row counts only if the process wrote later ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from testbed_runtime.core.waits import JOBMASTER_NAME, RM_NAME
from testbed_runtime.history.columns import (
    NS,
    TOLERANCE_NS,
    deployments,
    equal,
    events,
    ints,
    numbered,
    parsed,
    sound,
)
from testbed_runtime.history.damage import Damage
from testbed_runtime.history.schema import Trial

MEMORY = ("network.buffers", "network.pools")
"""A TaskManager records each of them when its first task has run for a second, and later on a change."""
SAMPLED_NS = 5 * NS
"""A TaskManager that samples tasks for so long has recorded its network memory. Large simulated jobs are sampled every 2 s."""
SIDES = ("consumer", "producer")
CHANNELS = 20
"""With so many samples of one end of remote channels, there are some of the other end."""


DETECTED = ("heartbeat", "connection")
"""The waits that end with a lost TaskManager when the JobMaster notices a failure. It also notices others, for example of an ask."""


def check_regular(trial: Trial) -> list[Damage]:
    """Return the missing rows, at most one for each rule. A history without deployments or waits was not written by a JobManager."""
    if not deployments(trial) or not len(trial.table("waits")):
        return []
    rules = (_stalls(trial), _memory(trial), _ends(trial), _losses(trial))
    return [one for rule in rules for one in list(rule)[:1]]


def _stalls(trial: Trial) -> Iterator[Damage]:
    """Yield a wait for a stalled process without its event, which is written before, and an event without its wait."""
    table = trial.table("waits")
    if not sound(table, "process", "kind", "t_ns"):
        return
    waited = table.select(["process", "t_ns"]).filter(pa.array(equal(table, "kind", "stalled"))).to_pylist()
    stalled = [e for _, e in events(trial, "loop.stall")]
    for wait in waited:
        if not any(_together(wait, event) for event in stalled):
            problem = f"lacks the loop.stall of {wait['process']}, which has a wait of that kind (waits)"
            yield Damage("events", "kind", -1, problem)
    for row, event in events(trial, "loop.stall"):
        later = _written_after(trial, event["process"], event["seq"])
        if later and not any(_together(wait, event) for wait in waited):
            problem = f"lacks the stall of {event['process']} (loop.stall in events, row {row})"
            yield Damage("waits", "kind", -1, problem)


def _together(wait: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    return bool(wait["process"] == event["process"] and abs(wait["t_ns"] - event["t_ns"]) <= TOLERANCE_NS)


def _written_after(trial: Trial, process: str, seq: int) -> bool:
    """Whether a process wrote rows after its row with this number and the next one."""
    for table in trial.tables.values():
        if sound(table, "process", "seq"):
            mine = equal(table, "process", process)
            if mine.any() and ints(table, "seq")[mine].max() > seq + 1:
                return True
    return False


def _memory(trial: Trial) -> Iterator[Damage]:
    """Yield the kind of event about the network memory that a TaskManager with tasks never recorded."""
    tasks, recorded = trial.table("tasks"), trial.table("events")
    if not (sound(tasks, "process", "t_ns") and sound(recorded, "process", "kind")):
        return
    owners, times = numbered([tasks], ["process"]), ints(tasks, "t_ns")
    for owner in np.unique(owners):
        mine = owners == owner
        if np.ptp(times[mine]) < SAMPLED_NS:
            continue
        process = tasks.column("process")[int(np.flatnonzero(mine)[0])].as_py()
        known = equal(recorded, "process", process)
        for kind in MEMORY:
            if not (known & equal(recorded, "kind", kind)).any():
                yield Damage(
                    "events", "kind", -1, f"lacks every {kind} of {process}, which has samples in tasks"
                )


def _ends(trial: Trial) -> Iterator[Damage]:
    """Yield the end of remote channels that no process sampled, although the other end was sampled."""
    table = trial.table("channels")
    if not sound(table, "side", "local"):
        return
    remote = ~np.asarray(table.column("local").to_numpy(zero_copy_only=False), dtype=np.bool_)
    count = {side: int((remote & equal(table, "side", side)).sum()) for side in SIDES}
    for side, other in (SIDES, SIDES[::-1]):
        if not count[side] and count[other] >= CHANNELS:
            yield Damage("channels", "side", -1, f"is never {side}, but {count[other]} rows are of a {other}")


def _losses(trial: Trial) -> Iterator[Damage]:
    """Yield a failure because of a TaskManager that a detector gave up, without the event of its loss, which is written before."""
    lost = {event["subject"] for _, event in events(trial, "taskmanager.lost")}
    for row, event in events(trial, "failover.failure"):
        data = parsed(event["data"])
        detector, gone = data.get("detector"), data.get("taskmanager")
        given_up = detector == RM_NAME or (detector == JOBMASTER_NAME and data.get("wait") in DETECTED)
        if given_up and gone and gone not in lost:
            problem = f"lacks the taskmanager.lost of {gone}, which a failover.failure names (row {row})"
            yield Damage("events", "kind", -1, problem)
