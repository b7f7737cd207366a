"""A run as the runner would leave it, synthetic: a paused TaskManager under a short and a long heartbeat timeout.

Everything follows from one rate function, so that throughput, lag and latency agree with one another.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq

from testbed_runtime.core.judgement.metrics import RECOVERY_PHASES
from testbed_runtime.core.trial.manifest import MANIFEST_SCHEMA, TrialEntry
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, TABLES, Trial
from testbed_runtime.history.writer import MemoryHistory
from tests.manifests import trial_entry
from tests.ordered import in_order

NS = 1_000_000_000
RATE = 20_000.0
START_S = 1_000.0
WARM_UP_S, BASELINE_S, FAULT_S, OBSERVATION_S, DRAIN_S = 3.0, 4.0, 8.0, 9.0, 1.4
FAULT_AT = WARM_UP_S + BASELINE_S
END_S = FAULT_AT + FAULT_S + OBSERVATION_S
RUN = "taskmanager-paused-20261121T074900"
NOISE_S = (0.004, 0.012)
"""The lag of a sample, beyond that of the job. Each window has records with both."""
COSTS = dict(zip(RECOVERY_PHASES, (4.62, 0.18, 0.42, 0.09, 0.24, 0.13, 0.06, 3.4, 3.0), strict=True))
"""Seconds of each phase of the short-timeout recovery."""


@dataclass(frozen=True)
class Plan:
    """One trial: its name, and what the sinks receive at each moment (records per second)."""

    trial: str
    variant: str
    role: str
    rate: Callable[[float], float]
    failover: bool = False


def steady(_: float) -> float:
    return RATE


def short_timeout(t: float) -> float:
    """Detected after 4.62 s, restarted within 1.1 s, caught up at 2.65 times the rate."""
    down = FAULT_AT + sum(COSTS[p] for p in RECOVERY_PHASES[:6])
    if t < FAULT_AT + 0.3:
        return RATE
    if t < down:
        return 0.0
    behind = (down - FAULT_AT - 0.3) * RATE
    return 2.65 * RATE if t < down + behind / (1.65 * RATE) else RATE


def long_timeout(t: float) -> float:
    """The whole pause, then catching up."""
    if FAULT_AT + 0.3 <= t < FAULT_AT + FAULT_S:
        return 0.0
    behind = (FAULT_S - 0.3) * RATE
    caught_up = FAULT_AT + FAULT_S + behind / (1.65 * RATE)
    return 2.65 * RATE if FAULT_AT + FAULT_S <= t < caught_up else RATE


PLANS = (
    Plan("short-timeout-control-1", "short-timeout", "control", steady),
    Plan("short-timeout-1", "short-timeout", "fault", short_timeout, failover=True),
    Plan("long-timeout-control-1", "long-timeout", "control", steady),
    Plan("long-timeout-1", "long-timeout", "fault", long_timeout),
)


def ns(t: float) -> int:
    return round((START_S + t) * NS)


def phases() -> list[dict[str, Any]]:
    edges = [0.0, WARM_UP_S, FAULT_AT, FAULT_AT + FAULT_S, END_S, END_S + DRAIN_S]
    names = ("warmUp", "baseline", "fault", "observation", "drain")
    return [
        {"name": n, "start_ns": ns(a), "end_ns": ns(b)}
        for n, a, b in zip(names, edges, edges[1:], strict=False)
    ]


def entry(plan: Plan) -> TrialEntry:
    return trial_entry(entry_data(plan))


def entry_data(plan: Plan) -> dict[str, Any]:
    """Return the entry as the file has it."""
    timeout = "5 s" if plan.variant == "short-timeout" else "12 s"
    fault = {
        "name": "long-gc", "kind": "process.pause", "at_s": 0.0, "duration_s": FAULT_S, "targets": ["tm-1"], "params": {},
        "backend": "supervisor", "why": "the only backend of process.pause",
    }  # fmt: skip
    return {
        "trial": plan.trial, "variant": plan.variant, "role": plan.role, "number": 1, "seed": 7, "flinkVersion": "2.x",
        "configuration": {
            "heartbeat.interval": "1 s", "heartbeat.timeout": timeout, "execution.checkpointing.interval": "1 s",
            "restart-strategy.type": "exponential-delay",
        },
        "faults": [fault] if plan.role == "fault" else [],
        "phases": phases(), "voided": False, "drained": True, "job_state": "RUNNING",
        "job": {
            "vertices": [
                {"name": "source", "parallelism": 2, "role": "source", "recordsPerSecond": RATE},
                {"name": "count", "parallelism": 2, "role": "operator", "kind": "keyed-count"},
                {"name": "sink", "parallelism": 2, "role": "sink", "kind": "ledger"},
            ],
            "edges": [
                {"from": "source", "to": "count", "partitioning": "hash"},
                {"from": "count", "to": "sink", "partitioning": "forward"},
            ],
        },
    }  # fmt: skip


def manifest() -> dict[str, Any]:
    return {
        "schema": MANIFEST_SCHEMA,
        "run": RUN,
        "scenario": {
            "apiVersion": "headgate.dev/v1alpha1",
            "kind": "Scenario",
            "metadata": {"name": "taskmanager-paused"},
            "spec": {
                "hypothesis": "A pause longer than heartbeat.timeout costs one failover and loses nothing.",
                "source": "B7",
                "seed": 7,
            },
        },
        "place": "local",
        "seed": 7,
        "expectations": {plan.variant: [] for plan in PLANS},
        "started": "2026-11-21T07:49:00+00:00",
        "machine": {
            "python": "3.11.2",
            "kernel": "6.1.0",
            "cores": 2,
            "memory_bytes": 25_000_000_000,
            "uvloop": True,
        },
        "trials": [entry_data(p) for p in PLANS],
        "interrupted": False,
    }


def history(plan: Plan) -> Trial:
    """The record of one trial."""
    memory = MemoryHistory(run=RUN, trial=plan.trial, boot_id="boot-1")
    random = Random(plan.trial)
    manager = memory.sink("jobmanager-1", lambda: 0)
    sources = [memory.sink(f"tm-{i}-1", lambda: 0) for i in range(2)]
    sinks = [memory.sink(f"tm-{i + 2}-1", lambda: 0) for i in range(2)]
    _samples(plan, sources, sinks, random)
    _job(plan, manager)
    _delivery(manager, sources, _checkpoints(plan, manager))
    _channels(sources, sinks)
    if plan.role == "fault":
        _fault(memory.sink("supervisor", lambda: 0))
    return in_order(memory.trial())


def _samples(plan: Plan, sources: list[Any], sinks: list[Any], random: Random) -> None:
    """Tasks every 100 ms, latency every 250 ms; records of each sink's second attempt start from nought."""
    restart = FAULT_AT + sum(COSTS[p] for p in RECOVERY_PHASES[:5]) if plan.failover else None
    arrived, base, measured, worst, attempt, step = 0.0, 0.0, 0, 0.0, 0, 0.1
    for tick in range(1, round((END_S + DRAIN_S) / step) + 1):
        t = tick * step
        gained = plan.rate(t) * step if t <= END_S + 0.2 else 0.0
        arrived = min(arrived + gained, RATE * min(t, END_S))
        if restart is not None and attempt == 0 and t >= restart:
            attempt, base, measured = 1, arrived, 0
        if not (plan.failover and FAULT_AT + COSTS["detect"] < t < (restart or 0)):
            lag = max(min(t, END_S) - arrived / RATE, 0.0) + random.uniform(*NOISE_S)
            for index in range(2):
                common = {
                    "attempt": attempt,
                    "busy_ns": ns(t) // 3,
                    "idle_ns": ns(t) - ns(t) // 3,
                    "t_ns": ns(t) + index * 1_000_000,
                }
                sinks[index].append("tasks", task=f"sink-{index}", vertex="sink", role="sink", lag_ns=int(lag * NS),
                                    records_in=int((arrived - base) / 2), bytes_in=int((arrived - base) * 52), **common)  # fmt: skip
                sources[index].append("tasks", task=f"source-{index}", vertex="source", role="source", lag_ns=0,
                                      records_out=int((min(arrived + 2_000, RATE * min(t, END_S)) - base) / 2), **common)  # fmt: skip
        received = int((arrived - base) / 2)
        behind = max(min(t, END_S) - arrived / RATE, 0.0)
        worst = max(worst, behind) if received > measured else behind
        if tick % 5 in (0, 2) and received > measured:
            _latency(sinks, t, received - measured, (behind, worst), attempt, random)
            measured, worst = received, 0.0


def _channels(sources: list[Any], sinks: list[Any]) -> None:
    """One channel, both sides, with credit to spare."""
    for second in range(1, int(END_S)):
        shared = {
            "attempt": 0,
            "local": False,
            "announced": 40 * second + 2,
            "used": 40 * second,
            "t_ns": ns(second),
        }
        sources[0].append("channels", side="producer", task="count-0", peer="sink-0", credit=2, **shared)
        sinks[0].append(
            "channels", side="consumer", task="sink-0", peer="count-0", credit=0, exclusive=2, **shared
        )


def _latency(
    sinks: list[Any], t: float, records: int, lags: tuple[float, float], attempt: int, random: Random
) -> None:
    """`lags`: at the end of the window, and the worst in it."""
    for index, sink in enumerate(sinks):
        buckets = [0] * (len(LATENCY_BOUNDS_NS) + 1)
        largest = 0
        for number in range(40):  # forty values stand for all records of the window
            late = NOISE_S[number] if number < len(NOISE_S) else random.lognormvariate(-3.4, 0.45)
            value = int((lags[number == 1] + late) * NS)
            largest = max(largest, value)
            position = next(
                (i for i, b in enumerate(LATENCY_BOUNDS_NS) if value <= b), len(LATENCY_BOUNDS_NS)
            )
            buckets[position] += (records + number) // 40
        sink.append("latency", task=f"sink-{index}", attempt=attempt, window_start_ns=ns(t) - NS // 4, window_ns=NS // 4,
                    count=sum(buckets), buckets=buckets, max_ns=largest, t_ns=ns(t))  # fmt: skip


def _job(plan: Plan, manager: Any) -> None:
    def event(t: float, kind: str, subject: str = "", text: str = "", **more: Any) -> None:
        data = more.pop("data", {})
        manager.append("events", kind=kind, subject=subject, text=text, data=data, t_ns=ns(t), **more)

    event(-0.9, "job.state", "job", data={"from": "CREATED", "to": "RUNNING", "cause_class": ""})
    event(-0.5, "sink.first-record", "sink-0", attempt=0)
    for phase in phases():
        manager.append("events", kind="trial.phase", subject=phase["name"], t_ns=phase["start_ns"])
    if plan.failover:
        at = FAULT_AT + COSTS["detect"]
        text = "Heartbeat of TaskManager with id tm-1-1 timed out."
        cause = {"cause_class": "TimeoutException", "detector": "JobMaster", "wait": "heartbeat"}
        event(at, "taskmanager.lost", "tm-1-1", text, data=cause)
        manager.append(
            "waits", wait="jobmanager-1/1", kind="heartbeat", who="JobMaster", what="tm-1-1", attempt=-1, t_ns=ns(at),
            start_ns=ns(at - 5), option="heartbeat.timeout", value="5 s", budget_ns=5 * NS, outcome="expired",
        )  # fmt: skip
        event(
            at,
            "job.state",
            "job",
            text,
            data={
                "from": "RUNNING",
                "to": "RESTARTING",
                "cause_class": "TimeoutException",
                "wait": "heartbeat",
            },
        )
        region = ["source-0", "source-1", "count-0", "count-1", "sink-0", "sink-1"]
        event(at, "failover.started", "1", text, data={**cause, "region": region, "taskmanager": "tm-1-1"})
        milestones = {}
        for phase in RECOVERY_PHASES[1:7]:
            at += COSTS[phase]
            milestones[phase] = at
        event(milestones["cancel"], "failover.cancelled", "1")
        event(milestones["slots"], "failover.slots", "1")
        event(milestones["slots"], "failover.attempt", "1", data={"attempt": 1})
        for task in region:
            event(milestones["restore"], "task.restored", task, attempt=1, checkpoint=6)
        event(milestones["deploy"], "failover.deployed", "1")
        event(
            milestones["deploy"],
            "job.state",
            "job",
            data={"from": "RESTARTING", "to": "RUNNING", "cause_class": ""},
        )
        for task in ("count-0", "count-1", "sink-0", "sink-1"):
            event(milestones["reconnect"], "gate.connected", task, attempt=1)
        event(milestones["first-record"], "sink.first-record", "sink-0", attempt=1)
        event(
            FAULT_AT + FAULT_S + 0.2,
            "stale.rejected",
            "count-1",
            attempt=0,
            data={"what": "acknowledgement", "count": 1},
        )
    for index in range(2):
        event(
            END_S + 0.3,
            "source.end",
            f"source-{index}",
            attempt=int(plan.failover),
            data={"next": int(RATE * END_S / 2)},
        )
    event(END_S + DRAIN_S, "job.state", "job", data={"from": "RUNNING", "to": "FINISHED", "cause_class": ""})


def _checkpoints(plan: Plan, manager: Any) -> int:
    """Return the number of the last completed one."""
    number = 0
    for second in range(1, int(END_S) + 2):
        blocked = FAULT_AT - 0.2 < second < FAULT_AT + (6.0 if plan.failover else FAULT_S)
        if plan.role == "fault" and blocked:
            continue
        number += 1
        manager.append("checkpoints", checkpoint=number, state="triggered", t_ns=ns(second))
        for task in ("source-0", "source-1", "count-0", "count-1", "sink-0", "sink-1"):
            manager.append("checkpoints", checkpoint=number, state="acknowledged", task=task, duration_ns=100_000_000,
                           state_bytes=8_000, t_ns=ns(second + 0.1))  # fmt: skip
        manager.append("checkpoints", checkpoint=number, state="completed", duration_ns=140_000_000, state_bytes=48_000,
                       t_ns=ns(second + 0.14))  # fmt: skip
    if plan.role == "fault":
        reason = (
            "Checkpoint Coordinator is suspending."
            if plan.failover
            else "Checkpoint expired before completing."
        )
        manager.append("checkpoints", checkpoint=number + 1, state="failed", reason=reason,
                       t_ns=ns(FAULT_AT + COSTS["detect"]))  # fmt: skip
    return number


def _delivery(manager: Any, sources: list[Any], checkpoint: int) -> None:
    """Every record once, committed by the final checkpoint."""
    total = int(RATE * END_S / 2)
    for index in range(len(sources)):
        for base in range(0, total, 4096):
            here = min(4096, total - base)
            bitmap = ((1 << here) - 1).to_bytes(512, "little")
            manager.append("delivery", task=f"sink-{index}", attempt=0, checkpoint=checkpoint, source=f"source-{index}", base=base,
                           bitmap=bitmap, weight=0, t_ns=ns(END_S + DRAIN_S))  # fmt: skip


def _fault(supervisor: Any) -> None:
    for t, state, measured in (
        (0.0, "asked", {}),
        (0.012, "injected", {}),
        (0.03, "verified", {"pids": {"tm-1": 4711}, "states": {"tm-1": "T"}, "after_s": 0.018}),
        (FAULT_S + 0.004, "ended", {}),
        (FAULT_S + 0.05, "clean", {"states": {"tm-1": "R"}}),
    ):
        supervisor.append("faults", fault="long-gc", state=state, kind="process.pause", backend="supervisor",
                          targets=["tm-1"], asked={"duration_s": FAULT_S}, measured=measured, t_ns=ns(FAULT_AT + t))  # fmt: skip


def write_run(folder: Path) -> dict[str, Any]:
    """The run's folder as the runner leaves it: manifest, sealed histories. Returns the manifest."""
    document = manifest()
    for plan in PLANS:
        trial = history(plan)
        into = folder / "history" / plan.trial
        into.mkdir(parents=True)
        for table in TABLES:
            pq.write_table(trial.table(table), into / f"{table}.parquet")
        rows = {table: trial.table(table).num_rows for table in TABLES}
        (into / "sealed.json").write_text(
            json.dumps({"schema": 1, "rows": rows, "streams": {}, "problems": []})
        )
    (folder / "manifest.json").write_text(json.dumps(document, indent=1))
    return document
