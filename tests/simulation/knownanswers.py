"""The scenario of the known answers, and the checks of an answer. Shared by all `test_known_answers*`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.documents import RECOVERY_FILE
from testbed_runtime.core.judgement.recovery import Recovery, TrialRecovery
from testbed_runtime.taskmanager.stream import StreamTask
from tests.simulation.simulating import run_document

TOLERANCE_S = 0.1
UNATTRIBUTED_MAX = 0.01
"""Share of a recovery without an owner, and share whose owner only events tell."""
FAULT_S = 4.1
"""Deployment, warm-up and baseline: the time since the start of the trial, with which the timers of processes start."""
DETECTION_S = 1.9
"""A process killed at 4.1 s receives no call from 5 s on. The second failed call, at 6 s, is the reachability threshold."""
LATER_S = DETECTION_S - 0.5
"""The same, for a process that is killed 0.5 s later."""
DRAWN_CHECKPOINTS = "2.2"
"""The last version whose first checkpoint comes at a drawn moment, and so not just before the kill."""
TOLERATED_S = 0.2
"""Lag above that of the baseline with which a job counts as caught up."""
SLOW_FILE = """from tests.simulation.simulating import stand_still

stand_still(3.0)


def keep(record):
    return record
"""
BACKOFF = "taskmanager.network.request-backoff.max"
REACHABILITY = "heartbeat.interval × heartbeat.rpc-failure-threshold"
SOURCE, SINK = (
    {"taskManagers": {"running": "source", "mode": "one"}},
    {"taskManagers": {"running": "sink", "mode": "one"}},
)
ALL: dict[str, Any] = {"taskManagers": {}}
QUICK = {"heartbeat.interval": "1 s", "heartbeat.timeout": "5 s"}


@dataclass(frozen=True)
class Case:
    """A run and its answer. `owner` is an option's key, or a text that the largest price contains."""

    name: str
    faults: Sequence[Mapping[str, Any]]
    owner: str
    seconds: float
    rounds: int = 1
    failovers: int | None = None
    version: str = "2.x"
    managers: Mapping[str, Any] = field(default_factory=lambda: {"replicas": 5})
    options: Mapping[str, str] = field(default_factory=dict)
    observation: str = "12 s"
    margin: tuple[str, float] | None = None
    """Option and the seconds that were waited."""
    start: bool = False
    """The answer is the first start."""
    tolerance: float = TOLERANCE_S
    vertex: Mapping[str, Any] = field(default_factory=dict)
    value: str = ""
    """The value of the owner's option, as the report shows it."""
    hangs: bool = False
    """The first attempt of `count-0` does not end when it is cancelled."""


def fault(
    name: str, duration: str, target: Mapping[str, Any], at: str = "0 s", **kind: Any
) -> dict[str, Any]:
    return {"name": name, "at": at, "duration": duration, "target": target, **kind}


LATE_10 = fault("late", "30 s", ALL, registration={"delay": {"delay": "10 s", "vertex": "source"}})
KILL = {"process": {"kill": {}}}
PAUSE: dict[str, Any] = {"process": {"pause": {}}}
CUT: dict[str, Any] = {"network": {"partition": {}}}
NO_SPARE = {"replicas": 4}
JOBMANAGER = {"jobManager": {}}
HEARTBEAT, SLOT = "heartbeat.timeout", "slot.request.timeout"
ASK = "pekko.ask.timeout"
DELAY, EXPONENTIAL = "restart-strategy.fixed-delay.delay", "restart-strategy.exponential-delay"
ELECTION = "high-availability.kubernetes.leader-election"
RENEW, LEASE = f"{ELECTION}.renew-deadline", f"{ELECTION}.lease-duration"
LEADER = {
    "heartbeat.interval": "1 s", "heartbeat.timeout": "60 s", "high-availability.type": "kubernetes",
    f"{ELECTION}.retry-period": "1 s", RENEW: "5 s",
    "execution.checkpointing.tolerable-failed-checkpoints": "100",
}  # fmt: skip
"""The JobManager renews its lease each full second of virtual time, the last time 0.1 s before the fault."""


def document(case: Case) -> dict[str, Any]:
    """The scenario of a case: two sources, two counts with their sinks, and a spare TaskManager unless it says otherwise."""
    configuration = {
        "execution.checkpointing.interval": "2 s",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "20",
        DELAY: "0 s",
    }
    count = {"name": "count", "parallelism": 2, "slotSharingGroup": "main", "operator": "keyed-count"}
    source = {"recordsPerSecond": 200, "recordBytes": 100, "keys": 100}
    return {
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": case.name},
        "spec": {
            "hypothesis": "The answer is known.",
            "seed": 7,
            "testbed": {
                "flinkVersion": case.version,
                "taskManagers": {"slots": 1, "replaceLost": "Never", **case.managers},
                "flinkConfiguration": {**configuration, **case.options},
                "job": {
                    "vertices": [
                        {"name": "source", "parallelism": 2, "slotSharingGroup": "src", "source": source},
                        {**count, **case.vertex},
                        {"name": "sink", "parallelism": 2, "slotSharingGroup": "main", "sink": "ledger"},
                    ],
                    "edges": [
                        {"from": "source", "to": "count", "partitioning": "hash"},
                        {"from": "count", "to": "sink", "partitioning": "forward"},
                    ],
                },
            },
            "timeline": {
                "warmUp": "2 s",
                "baseline": "2 s",
                "observation": case.observation,
                "drain": "30 s",
            },
            "faults": list(case.faults),
            "control": False,
            "trials": 1,
        },
    }


def hanging(close: Callable[[StreamTask], Awaitable[None]]) -> Callable[[StreamTask], Awaitable[None]]:
    """Return a `close` that never ends in the first attempt of `count-0`, as that of a broken connector."""

    async def hang(task: StreamTask) -> None:
        descriptor = task._run.descriptor
        if (descriptor.vertex.name, descriptor.subtask, descriptor.attempt_number) == ("count", 0, 0):
            await asyncio.get_running_loop().create_future()
        await close(task)

    return hang


def run(found: dict[str, Any], folder: Path) -> TrialRecovery:
    """Run a document with one trial. Return its answer."""
    folder.mkdir(exist_ok=True)
    run_document(found, folder)
    (recorded,) = json.loads((folder / RECOVERY_FILE).read_text()).values()
    return TrialRecovery.from_json(recorded)


def answer(case: Case, folder: Path) -> tuple[TrialRecovery, dict[str, Any]]:
    """Run the case. Return its answer and its metrics without phase and quantile."""
    (folder / "slow.py").write_text(SLOW_FILE)
    trial = run(document(case), folder)
    rows = json.loads((folder / "metrics.json").read_text())
    return trial, {
        row["metric"]: row["value"] for row in rows if not row["phase"] and row["quantile"] is None
    }


def check_sums(found: Recovery) -> None:
    """Segments have no gaps and do not overlap, rounds follow each other, and prices add up."""
    segments = [s for r in found.rounds for s in r.segments]
    if segments:
        assert (segments[0].start_ns, segments[-1].end_ns) == (found.effect_ns, found.end_ns)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(segments))
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found.rounds))
    owned = sum(p.seconds for p in found.prices) + found.unattributed_s
    assert owned == pytest.approx(found.total_s, abs=1e-6)
    assert found.unattributed_s <= UNATTRIBUTED_MAX * found.total_s
    assert found.from_events_s <= UNATTRIBUTED_MAX * found.total_s


def check_answer(case: Case, folder: Path) -> None:
    """Run a case. Check its rounds, the owner of the largest share, its seconds, its margin, and a total that adds up."""
    trial, metrics = answer(case, folder)
    found = trial.start if case.start else max(trial.recoveries, key=lambda r: r.total_s)
    assert found is not None
    check_sums(found)
    owners = [(p.option or p.words, p.seconds) for p in found.prices]
    owner, seconds = owners[0] if owners else ("", 0.0)
    assert case.owner in owner
    assert seconds == pytest.approx(case.seconds, abs=case.tolerance)
    assert len(found.rounds) == case.rounds
    if case.value:
        assert found.prices[0].value == case.value
    if case.failovers is not None:
        assert metrics["failovers.count"] == case.failovers
    if case.margin is not None:
        margins = {m.option: m.waited_s for m in found.margins}
        assert margins[case.margin[0]] == pytest.approx(case.margin[1], abs=case.tolerance)


def owners(found: Recovery, number: int) -> dict[str, float]:
    """Return the seconds of each kind of wait in one round."""
    seconds: dict[str, float] = {}
    for segment in found.rounds[number].segments:
        seconds[segment.kind] = seconds.get(segment.kind, 0.0) + segment.seconds
    return seconds


def vertex(name: str, group: str, **what: Any) -> dict[str, Any]:
    return {"name": name, "parallelism": 1, "slotSharingGroup": group, **what}


def regions(names: str) -> dict[str, Any]:
    """A job of several regions: none restarts with another one."""
    return {
        "vertices": [
            *(vertex(f"source-of-{r}", f"s{r}", source={"recordsPerSecond": 200}) for r in names),
            *(vertex(f"sink-of-{r}", f"m{r}", sink="ledger") for r in names),
        ],
        "edges": [{"from": f"source-of-{r}", "to": f"sink-of-{r}", "partitioning": "hash"} for r in names],
    }


REGIONS = regions("ab")


def of_region(name: str) -> dict[str, Any]:
    return {"taskManagers": {"running": f"sink-of-{name}", "mode": "one"}}


def answered(found: dict[str, Any], folder: Path) -> TrialRecovery:
    """Run a document, and check that its answer adds up."""
    trial = run(found, folder)
    for one in (trial.start, *trial.recoveries):
        if one is not None and one.total_s > TOLERANCE_S:
            check_sums(one)
    return trial


def of_case(case: Case, folder: Path, job: dict[str, Any] | None = None) -> TrialRecovery:
    written = document(case)
    if job is not None:
        written["spec"]["testbed"]["job"] = job
    return answered(written, folder)


def longest(case: Case, folder: Path, job: dict[str, Any] | None = None) -> Recovery:
    """Run a case. Return its longest recovery."""
    return max(of_case(case, folder, job).recoveries, key=lambda r: r.total_s)


def seconds(found: Recovery | None, *words: str) -> float:
    """Return the seconds of every owner with one of these words."""
    assert found is not None
    return sum(p.seconds for p in found.prices if any(word in p.words for word in words))


def taskmanager(name: str) -> dict[str, Any]:
    return {"taskManagers": {"names": [name]}}
