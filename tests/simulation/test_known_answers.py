"""Known answers: real shells in virtual time, each case with one cause whose seconds are known beforehand.

For each: the rounds, the owner of the largest share, its seconds within 0.1 s of the truth, margins, and a total that adds up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.judgement.recovery import RECOVERY_FILE, Recovery, TrialRecovery
from tests.simulation.simulating import run_document

pytestmark = pytest.mark.virtual

TOLERANCE_S = 0.1
UNATTRIBUTED_MAX = 0.01
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
    """What is run, and the answer. `owner` is an option's key, or a text that the largest price contains."""

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


def fault(
    name: str, duration: str, target: Mapping[str, Any], at: str = "0 s", **kind: Any
) -> dict[str, Any]:
    return {"name": name, "at": at, "duration": duration, "target": target, **kind}


CASES = [
    Case(
        "worked-example",
        [
            fault("late", "79 s", ALL, registration={"delay": {"delay": "25 s"}}),
            fault("kill", "1 s", SOURCE, at="500 ms", process={"kill": {}}),
        ],
        BACKOFF, 3 * 22.7, rounds=4, failovers=4, version="1.12", managers={"replicas": 4, "replaceLost": "10 s"},
        observation="120 s",
    ),
]  # fmt: skip


def document(case: Case) -> dict[str, Any]:
    """The scenario of a case: two sources, two counts with their sinks, and a spare TaskManager unless it says otherwise."""
    configuration = {
        "execution.checkpointing.interval": "2 s",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "20",
        "restart-strategy.fixed-delay.delay": "0 s",
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


def answer(case: Case, folder: Path) -> tuple[TrialRecovery, dict[str, Any]]:
    """Run the case. Return its answer and its metrics without phase and quantile."""
    run_document(document(case), folder)
    (found,) = json.loads((folder / RECOVERY_FILE).read_text()).values()
    rows = json.loads((folder / "metrics.json").read_text())
    return TrialRecovery.from_json(found), {
        row["metric"]: row["value"] for row in rows if not row["phase"] and row["quantile"] is None
    }


def check_sums(found: Recovery) -> None:
    """Segments have no gaps and do not overlap, rounds follow each other, and prices add up."""
    segments = [s for r in found.rounds for s in r.segments]
    if segments:
        assert (segments[0].start_ns, segments[-1].end_ns) == (found.effect_ns, found.end_ns)
    assert all(a.end_ns == b.start_ns for a, b in zip(segments, segments[1:], strict=False))
    assert all(a.end_ns == b.start_ns for a, b in zip(found.rounds, found.rounds[1:], strict=False))
    owned = sum(p.seconds for p in found.prices) + found.unattributed_s
    assert owned == pytest.approx(found.total_s, abs=1e-6)
    assert found.unattributed_s <= UNATTRIBUTED_MAX * found.total_s


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_answer_names_what_happened(case: Case, tmp_path: Path):
    """Rounds, the owner of the largest share, its seconds, its margin, and a total that adds up."""
    trial, metrics = answer(case, tmp_path)
    found = trial.start if case.start else max(trial.recoveries, key=lambda r: r.total_s)
    assert found is not None
    check_sums(found)
    largest = found.prices[0]
    assert case.owner in (largest.option or largest.text)
    assert largest.seconds == pytest.approx(case.seconds, abs=case.tolerance)
    assert len(found.rounds) == case.rounds
    if case.failovers is not None:
        assert metrics["failovers.count"] == case.failovers
    if case.margin is not None:
        margins = {m.option: m.waited_s for m in found.margins}
        assert margins[case.margin[0]] == pytest.approx(case.margin[1], abs=case.tolerance)
