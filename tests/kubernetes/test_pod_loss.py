"""Pods that go, evicted or deleted, by a Fault and in a run; with a claim for the checkpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed_runtime.api import naming
from tests.kubernetes.spaces import Space
from tests.kubernetes.test_testbed import NAME, a_testbed, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

FAULT_LIMIT_S = 120
RUN_LIMIT_S = 400
STEPS = """
import json, pathlib, sys
import pyarrow.parquet as pq
(path,) = pathlib.Path(sys.argv[1]).rglob("waits.parquet")
rows = pq.read_table(path, columns=["kind", "what", "outcome"]).to_pylist()
print(json.dumps([[r["what"], r["kind"], r["outcome"]] for r in rows if r["kind"] in ("pending", "image")]))
"""
"""Prints what the pods that replaced others waited for, from the record of the run."""
STORED: dict[str, Any] = {"pods": {"storage": {"size": "64Mi"}}}


def test_a_fault_evicts_a_pod_by_its_own_subresource(space: Space) -> None:
    """The eviction is asked for, not a deletion: budgets are respected. The pod is recreated, and the claim holds the checkpoints."""
    space.apply(a_testbed(NAME, replicas=2, replace_lost="1s", **STORED))
    running(space, replicas=2)
    [claim] = space.get("persistentvolumeclaims")["items"]
    assert claim["status"]["phase"] == "Bound"
    before = space.get("pod", f"{NAME}-tm-1")["metadata"]["uid"]
    space.apply(
        {
            "apiVersion": naming.API_VERSION,
            "kind": "Fault",
            "metadata": {"name": "push"},
            "spec": {
                "testbedRef": {"name": NAME},
                "duration": "20s",
                "target": {"taskManagers": {"names": ["tm-1"]}},
                "pod": {"evict": {}},
            },
        }
    )
    space.condition("fault/push", "Complete", FAULT_LIMIT_S)
    space.condition("fault/push", "EffectVerified", FAULT_LIMIT_S)
    space.until(f"pod/{NAME}-tm-1", lambda o: o["metadata"]["uid"] != before, FAULT_LIMIT_S, "another pod")


def test_a_run_in_which_pods_are_evicted_and_deleted_loses_nothing(space: Space) -> None:
    """The runner does it with its own rights; both faults are verified by the pods that are gone."""
    testbed = a_testbed(NAME, replicas=2, replace_lost="1s")["spec"]
    faults = [
        {"name": kind, "at": at, "duration": "15s", "target": {"taskManagers": {"names": [manager]}}, "pod": {kind: {}}}
        for kind, at, manager in (("evict", "0s", "tm-0"), ("delete", "16s", "tm-1"))
    ]  # fmt: skip
    scenario = {
        "testbed": testbed,
        "timeline": {"warmUp": "1s", "baseline": "2s", "observation": "45s", "drain": "60s"},
        "faults": faults,
        "control": False,
        "trials": 1,
        "expect": [{"metric": "delivery.lost", "equals": 0}],
    }
    run = {
        "apiVersion": naming.API_VERSION,
        "kind": "ScenarioRun",
        "metadata": {"name": "loss"},
        "spec": {"scenario": scenario, "scenarioName": "loss"},
    }
    space.apply(run)
    space.condition("scenariorun/loss", "Complete", RUN_LIMIT_S)
    status = space.get("scenariorun/loss")["status"]
    assert status["verdict"] == "Pass", f"{status}\n{space.story()}"
    assert {f["name"]: f["verified"] for f in status["faults"]} == {"evict": True, "delete": True}
    assert all(line.startswith("main-1: ") for line in status["answer"]), status["answer"]
    assert any(": down " in line for line in status["answer"]), status["answer"]
    recorder = naming.recorder_name("loss")
    said = json.loads(space.kubectl("exec", recorder, "--", "python", "-c", STEPS, naming.DATA_FOLDER))
    second = naming.first_incarnation(2)
    assert sorted(said) == [
        [f"{manager}-{second}", step, "completed"]
        for manager in ("tm-0", "tm-1")
        for step in ("image", "pending")
    ]
    owners = {owner["kind"] for outage in status["recovery"]["outages"] for owner in outage["owners"]}
    # the others may take less than a second, the resolution of Kubernetes
    assert "start" in owners, status["recovery"]
