"""The cases of flink_recovery_bench.py: faults, topology and options, each declared once for Flink and for Headgate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from testbed_runtime.core.options import BY_KEY

RATE = 2000
WARM_UP_S = 5.0
OPTIONS = {
    "heartbeat.interval": "1 s",
    "heartbeat.timeout": "5 s",
    "slot.request.timeout": "12 s",
    "slotmanager.requirement-check.delay": "50 ms",
}
CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}


def written(options: dict[str, str], version: str) -> dict[str, str]:
    """Write durations as this version of Flink reads them."""
    return {
        key: BY_KEY[key].written(text, version) if key in BY_KEY else text for key, text in options.items()
    }


def fixed(delay: str = "1 s", attempts: int = 20) -> dict[str, str]:
    return CHECKPOINTS | {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": str(attempts),
        "restart-strategy.fixed-delay.delay": delay,
    }


def expiring(tolerable: int) -> dict[str, str]:
    """Checkpoints expire while a TaskManager is paused."""
    return {
        "execution.checkpointing.timeout": "2500 ms",
        "execution.checkpointing.tolerable-failed-checkpoints": str(tolerable),
    }


EXPONENTIAL = CHECKPOINTS | {
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "1 s",
    "restart-strategy.exponential-delay.backoff-multiplier": "2.0",
    "restart-strategy.exponential-delay.max-backoff": "10 s",
    "restart-strategy.exponential-delay.jitter-factor": "0",
}
RATE_LIMITED = CHECKPOINTS | {
    "restart-strategy.type": "failure-rate",
    "restart-strategy.failure-rate.max-failures-per-interval": "2",
    "restart-strategy.failure-rate.failure-rate-interval": "1 min",
    "restart-strategy.failure-rate.delay": "1 s",
}


@dataclass(frozen=True)
class Fault:
    """`target`: a subtask of a vertex (its TaskManager), the TaskManager without a task (`spare`), or the JobManager."""

    what: str
    """kill, pause, cut (nothing passes) or throw (the count, at one record)."""
    target: str
    subtask: int = 0
    seconds: float = 0.0
    """The length of a pause or a cut."""
    at: float = 0.0
    peers: str = ""
    """The other end of a cut: `jobmanager` or `taskmanagers`; without it, all others."""
    times: int = 1
    """How often the record throws."""


kill, pause, cut = (partial(Fault, what) for what in ("kill", "pause", "cut"))
throw = partial(Fault, "throw", "count")


@dataclass(frozen=True)
class Case:
    faults: tuple[Fault, ...]
    spares: int = 1
    """TaskManagers without a task."""
    replaced: float | None = None
    """After so many seconds a JVM is started for a killed TaskManager. Headgate's replacement registers when Flink's did."""
    parallelism: int = 1
    forward: bool = False
    """Without keys: each source with its count and sink is a region of its own."""
    finishes: bool = False
    """A second source has ended before the fault."""
    busy_ms: int = 0
    """The count takes so long for a record."""
    options: dict[str, str] = field(default_factory=fixed)
    cluster: dict[str, str] = field(default_factory=dict)
    """Options of the cluster, which Flink reads when it starts."""

    @property
    def suspects(self) -> bool:
        """Whether Headgate's default, not to deploy to slots that may be dead, may matter."""
        return "pekko.ask.timeout" in self.cluster or any(
            fault.what == "kill" and fault.target == "source" for fault in self.faults
        )

    @property
    def taskmanagers(self) -> int:
        return 2 * self.parallelism + self.spares


SOON = 0.01
"""Just after a fault that begins at 0 s."""
CASES = {
    "killed-consumer": Case((kill("count"),)),
    "killed-producer": Case((kill("source"),)),
    "killed-producer-quick": Case((kill("source"),), options=fixed("200 ms")),
    "killed-both": Case((kill("source"), kill("count")), spares=2),
    "killed-again": Case((kill("count"), kill("source", at=3.5)), spares=2, options=fixed("5 s")),
    "killed-region": Case((kill("count"),), parallelism=2, forward=True),
    "killed-regions": Case(
        (kill("count"), kill("source", subtask=1, at=1)), parallelism=2, forward=True, spares=2
    ),
    "killed-regions-exponential": Case(
        (kill("count"), kill("source", subtask=1, at=1)),
        parallelism=2,
        forward=True,
        spares=2,
        options=EXPONENTIAL,
    ),
    "killed-finished": Case((kill("count"),), finishes=True),
    "lost-consumer": Case((cut("count", seconds=15), kill("count", at=SOON))),
    "lost-producer": Case((cut("source", seconds=15), kill("source", at=SOON))),
    "lost-exchange": Case((cut("source", seconds=9, peers="taskmanagers"), kill("source", at=SOON))),
    "paused-long": Case((pause("count", seconds=9),)),
    "paused-short": Case((pause("count", seconds=3),)),
    "paused-alone": Case((pause("count", seconds=9),), spares=0),
    "paused-producer": Case((pause("source", seconds=9),)),
    "paused-jobmanager": Case((pause("jobmanager", seconds=9),)),
    "paused-jobmanager-short": Case((pause("jobmanager", seconds=3),)),
    "paused-and-killed": Case((pause("jobmanager", seconds=3), kill("count", at=0.5))),
    "paused-then-killed": Case((pause("count", seconds=3.2), kill("count", at=3))),
    "cut-short": Case((cut("count", seconds=3),)),
    "cut-long": Case((cut("count", seconds=12),)),
    "cut-alone": Case((cut("count", seconds=10),), spares=0),
    "cut-exchange": Case((cut("count", seconds=9, peers="taskmanagers"),)),
    "cut-rpc": Case((cut("count", seconds=9, peers="jobmanager"),)),
    "cut-jobmanager": Case((cut("jobmanager", seconds=9),)),
    "replaced": Case((kill("count"),), spares=0, replaced=0),
    "replaced-late": Case((kill("count"),), spares=0, replaced=13),
    "never-replaced": Case((kill("count"),), spares=0, options=fixed(attempts=1)),
    "throws-fixed": Case((throw(times=3),)),
    "throws-exponential": Case((throw(times=3),), options=EXPONENTIAL),
    "throws-and-killed": Case((throw(), kill("source", at=0.3)), options=fixed("3 s")),
    "exhausted-fixed": Case((throw(times=3),), options=fixed(attempts=2)),
    "exhausted-rate": Case((throw(times=4),), options=RATE_LIMITED),
    "no-restart": Case((throw(),), options=CHECKPOINTS | {"restart-strategy.type": "none"}),
    "checkpoint-expired": Case((pause("count", seconds=3.9),), options=fixed() | expiring(0)),
    "checkpoint-tolerated": Case((pause("count", seconds=3.9),), options=fixed() | expiring(3)),
    "unaligned": Case(
        (kill("count"),),
        busy_ms=1,
        options=fixed() | {"execution.checkpointing.unaligned.enabled": "true"},
    ),
    "paused-spare": Case(
        (kill("count"), pause("spare", seconds=4.5, at=SOON)), cluster={"pekko.ask.timeout": "1500 ms"}
    ),
    "paused-spare-long": Case(
        (kill("count"), pause("spare", seconds=9, at=SOON)), cluster={"pekko.ask.timeout": "1500 ms"}
    ),
    "paused-deployment": Case(
        (throw(), pause("source", seconds=3.9, at=1)),
        options=fixed("2 s"),
        cluster={"pekko.ask.timeout": "1500 ms"},
    ),
    "paused-cancel": Case(
        (pause("count", subtask=1, seconds=3.9), throw(at=0.3)),
        parallelism=2,
        options=fixed("200 ms"),
        cluster={"pekko.ask.timeout": "800 ms"},
    ),
    "standalone": Case(
        (kill("count"),),
        spares=0,
        options=fixed(attempts=1),
        cluster={"resourcemanager.standalone.start-up-time": "5000"},
    ),
}


FUNCTION = """
from pathlib import Path

THROWN = Path(__file__).with_name("thrown")

def throw(record):
    if record.sequence == {at} and (not THROWN.exists() or THROWN.stat().st_size < {times}):
        with THROWN.open("a") as file:
            file.write("x")
        raise RuntimeError("record {at}")
    return record
"""


def function(case: Case) -> str:
    """Return the Python function that throws."""
    [fault] = [fault for fault in case.faults if fault.what == "throw"] or [throw(times=0)]
    return FUNCTION.format(at=int((WARM_UP_S + fault.at) * RATE / case.parallelism), times=fault.times)


def fault_document(name: str, fault: Fault, parallelism: int) -> dict[str, Any]:
    """Return a fault as a scenario has it. At the start, Headgate's tasks have the slots in order."""
    milliseconds = max(round(fault.seconds * 1000), 1000 if fault.what == "kill" else 0)
    document: dict[str, Any] = {
        "name": name,
        "at": f"{round(fault.at * 1000)} ms",
        "duration": f"{milliseconds} ms",
    }
    if fault.target == "jobmanager" and fault.what != "cut":
        return document | {"jobmanager": {fault.what: {}}}
    target: dict[str, Any] = {"jobManager": {}}
    if fault.target != "jobmanager":
        number = {"source": 0, "count": parallelism, "spare": 2 * parallelism}[fault.target] + fault.subtask
        target = {"taskManagers": {"names": [f"tm-{number}"]}}
    if fault.what != "cut":
        return document | {"target": target, "process": {fault.what: {}}}
    planes = {"jobmanager": "rpc", "taskmanagers": "data", "": "both"}
    return document | {
        "target": target,
        "plane": planes[fault.peers],
        "network": {"partition": {}},
    }


def vertices(case: Case) -> Iterator[dict[str, Any]]:
    parallel = {"parallelism": case.parallelism}
    source = {"recordsPerSecond": RATE, "recordBytes": 100, "keys": 1000}
    yield parallel | {"name": "source", "slotSharingGroup": "source", "source": source}
    if case.finishes:
        yield {"name": "short", "slotSharingGroup": "source", "source": source | {"limit": RATE}}
    main: dict[str, Any] = parallel | {"slotSharingGroup": "main"}
    busy = {"serviceTime": f"{case.busy_ms} ms"}
    yield main | busy | {"name": "count", "operator": "map" if case.forward else "keyed-count"}
    if any(fault.what == "throw" for fault in case.faults):
        yield main | {"name": "throws", "operator": "python", "function": "throws.py:throw"}
    yield main | {"name": "sink", "sink": "ledger"}


def scenario(name: str, case: Case, version: str, *, fenced: bool) -> dict[str, Any]:
    """Return the case as a scenario. `fenced`: Headgate's default, not to deploy to slots that may be dead."""
    first = "forward" if case.forward else "hash"
    found = list(vertices(case))
    names = [vertex["name"] for vertex in found if vertex["name"] != "short"]
    edges = [
        {"from": one, "to": other, "partitioning": first if one == "source" else "forward"}
        for one, other in pairwise(names)
    ]
    if case.finishes:
        edges.append({"from": "short", "to": "count", "partitioning": "hash"})
    fence = {"headgate.restart.fence-dead-slots": str(fenced).lower()}
    replaced = "Never" if case.replaced is None else f"{round(case.replaced * 1000)} ms"
    testbed = {
        "flinkVersion": version,
        "taskManagers": {"replicas": case.taskmanagers, "slots": 1, "replaceLost": replaced},
        "flinkConfiguration": written(OPTIONS | case.options | case.cluster, version) | fence,
        "job": {"vertices": found, "edges": edges},
    }
    faults = [
        fault_document(f"{fault.what}-{number}", fault, case.parallelism)
        for number, fault in enumerate(case.faults)
        if fault.what != "throw"
    ]
    timeline = {
        "warmUp": f"{WARM_UP_S - 2:g} s",
        "baseline": "2 s",
        "observation": "60 s" if case.replaced else "25 s",
        "drain": "30 s",
    }
    return {
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": name},
        "spec": {"testbed": testbed, "timeline": timeline, "faults": faults, "control": False},
    }
