"""Known answers: regions that fail together, and delays that are ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.documents import RECOVERY_FILE
from testbed_runtime.core.judgement.recovery import Recovery, TrialRecovery
from tests.simulation.simulating import run_document
from tests.simulation.test_known_answers import (
    DETECTION_S,
    KILL,
    QUICK,
    REACHABILITY,
    SINK,
    TOLERANCE_S,
    Case,
    check_sums,
    document,
    fault,
)

pytestmark = pytest.mark.virtual


def recoveries(found: dict[str, Any], folder: Path) -> tuple[Recovery, ...]:
    """Run the document. Return its recoveries with an outage, whose seconds add up."""
    run_document(found, folder)
    (recorded,) = json.loads((folder / RECOVERY_FILE).read_text()).values()
    costly = tuple(r for r in TrialRecovery.from_json(recorded).recoveries if r.total_s > 0)
    for one in costly:
        check_sums(one)
    return costly


def owned(found: Recovery) -> dict[str, float]:
    """Map each owner that matters to its seconds."""
    return {p.option or p.text: round(p.seconds, 1) for p in found.prices if p.seconds > 0.25}


def test_regions_that_fail_in_one_millisecond_leave_a_sound_history(tmp_path: Path):
    """A TaskManager with two slots runs two regions. Both restart on the spare one."""
    case = Case("together", [fault("kill", "1 s", SINK, **KILL)], "", 0.0, options=QUICK, managers={"replicas": 4, "slots": 2})  # fmt: skip
    found = document(case)
    source, _, sink = found["spec"]["testbed"]["job"]["vertices"]
    shared = {"parallelism": 6, "slotSharingGroup": "main"}
    found["spec"]["testbed"]["job"] = {
        "vertices": [source | shared, sink | shared],
        "edges": [{"from": "source", "to": "sink", "partitioning": "forward"}],
    }
    (recovery,) = recoveries(found, tmp_path)
    assert owned(recovery) == {REACHABILITY: DETECTION_S}


@pytest.mark.parametrize(
    ("version", "kind"), [("1.18", "fixed-delay.delay"), ("1.20", "exponential-delay.initial-backoff")]
)
def test_the_delay_of_a_strategy_that_is_not_chosen_is_ignored(version: str, kind: str, tmp_path: Path):
    """Without restart-strategy.type, Flink takes the defaults of the strategy, so the delay is 1 s."""
    key = f"restart-strategy.{kind}"
    case = Case(
        "ignored",
        [fault("kill", "1 s", SINK, **KILL)],
        "",
        0.0,
        version=version,
        options=QUICK | {key: "300 ms"},
    )
    found = document(case)
    configuration = found["spec"]["testbed"]["flinkConfiguration"]
    found["spec"]["testbed"]["flinkConfiguration"] = {
        k: v for k, v in configuration.items() if k == key or not k.startswith("restart-strategy")
    }
    (recovery,) = recoveries(found, tmp_path)
    assert owned(recovery) == {REACHABILITY: DETECTION_S, key: pytest.approx(1.0, abs=TOLERANCE_S)}
