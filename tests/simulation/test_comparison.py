"""Comparisons of whole runs in virtual time: what is the same is indistinguishable, what differs is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.judgement.comparison import comparison
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.results import read_rows
from testbed_runtime.runner.conclude import groups_of
from tests.simulation.simulating import run_document

TRIALS = 20


def document(seed: int, *variants: dict[str, Any]) -> dict[str, Any]:
    """A killed consumer, found by two failed heartbeats; when it dies is drawn by the trial's seed."""
    return {
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": "heartbeats"},
        "spec": {
            "seed": seed,
            "trials": TRIALS,
            "control": False,
            "testbed": {
                "taskManagers": {"replicas": 3, "slots": 1},
                "flinkConfiguration": {
                    "heartbeat.interval": "1 s",
                    "heartbeat.timeout": "5 s",
                    "heartbeat.rpc-failure-threshold": "2",
                    "execution.checkpointing.interval": "1 s",
                    "restart-strategy.type": "fixed-delay",
                    "restart-strategy.fixed-delay.delay": "0 s",
                },
                "job": {
                    "vertices": [
                        {"name": "source", "slotSharingGroup": "src", "source": {"recordsPerSecond": 20}},
                        {"name": "sink", "slotSharingGroup": "snk", "sink": "ledger"},
                    ],
                    "edges": [{"from": "source", "to": "sink", "partitioning": "rebalance"}],
                },
            },
            "timeline": {"warmUp": "2 s", "baseline": "3 s", "observation": "9 s", "drain": "5 s"},
            "faults": [
                {
                    "name": "dead",
                    "jitter": "2 s",
                    "duration": "1 s",
                    "target": {"taskManagers": {"running": "sink", "mode": "one"}},
                    "process": {"kill": {}},
                }
            ],
            "variants": list(variants),
        },
    }


FAST = {
    "name": "fast",
    "flinkConfiguration": {"heartbeat.interval": "500 ms"},
    "expect": [{"metric": "recovery.detect", "versus": "slow", "improvesBy": "30 %"}],
}


@pytest.mark.virtual
def test_equal_settings_are_indistinguishable_and_a_shorter_heartbeat_is_better_by_its_interval(
    tmp_path: Path,
):
    """A/A with the same seeds and with other seeds; 1 s × 2 against 0.5 s × 2 finds the loss 0.75 s earlier on average."""
    result, _ = run_document(document(7, {"name": "slow"}, {"name": "again"}, FAST), tmp_path / "one")
    table = json.loads((tmp_path / "one" / "comparison.json").read_text())
    answers = {(c["group"], c["metric"]): c for c in table["contrasts"]}
    assert {a["answer"] for (group, _), a in answers.items() if group == "again"} == {"indistinguishable"}
    detect = answers["fast", "recovery.detect"]
    assert (detect["answer"], detect["paired"], detect["trials"]) == ("better", True, TRIALS)
    found = detect["improvement"]
    # a loss is found by the second failed heartbeat: 1.5 intervals after it on average
    assert found["low"] <= 0.75 <= found["high"]
    assert found["high"] - found["low"] < 0.5
    item = next(i for i in result.verdict.judged if i.variant == "fast" and i.metric == "recovery.detect")
    assert item.verdict == "Pass"
    assert item.measured.startswith("better by ")

    run_document(document(1007, {"name": "other"}), tmp_path / "two")
    folders = [tmp_path / "one", tmp_path / "two"]
    manifests = [read_manifest(folder) for folder in folders]
    both = [groups_of(m, read_rows(f, m)) for f, m in zip(folders, manifests, strict=True)]
    groups = [g for found in both for g in found if g.name in ("slow", "other")]
    apart = comparison(groups)
    assert not apart.contrasts[0].paired
    assert {c.answer for c in apart.contrasts} == {"indistinguishable"}
