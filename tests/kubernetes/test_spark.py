"""Spark in a real cluster: evaluations that fail for real, and executors in pods of their own."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
import yaml

from testbed_runtime.api import naming
from tests.kubernetes.cluster import ROOT
from tests.kubernetes.spaces import Space, condition

pytestmark = pytest.mark.cluster
RUN_LIMIT_S = 400.0
"""A run of half a minute, on a machine that is shared."""
EXECUTORS_LIMIT_S = 600.0
"""Spark starts with its executors, then the same."""
EVENT_LIMIT_S = 120.0
"""The status comes first, its Events follow."""
CLAIM = "histories"
TOO_LARGE = "500Ti"
"""Never bound: the access modes are known before, and no volume is used up."""
DAMAGE = """
import pathlib, sys, time
history = pathlib.Path(sys.argv[1]) / "history"
while not (sealed := list(history.glob("*/sealed.json"))):
    time.sleep(0.02)
events = sealed[0].with_name("events.parquet")
events.write_bytes(events.read_bytes()[:-100])
print("damaged", events.name)
"""
KILLER = """
import os, pathlib, signal, time
print("begun", flush=True)
ends = time.monotonic() + float(%r)
while time.monotonic() < ends:
    for name in pathlib.Path("/proc").glob("[0-9]*/comm"):
        try:
            if name.read_text().strip() == "java":
                os.kill(int(name.parent.name), signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.1)
"""


def a_run(name: str, **spec: Any) -> dict[str, Any]:
    """The small scenario of `helm test`, without its fault and as short as it may be."""
    scenario = yaml.safe_load((ROOT / "helm" / "headgate" / "files" / "mini.yaml").read_text())["spec"]
    del scenario["faults"]
    scenario["timeline"] = {"warmUp": "1 s", "baseline": "1 s", "observation": "1 s"}
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "ScenarioRun",
        "metadata": {"name": name},
        "spec": {"scenario": scenario, "scenarioName": "mini", **spec},
    }


def with_executors(name: str) -> dict[str, Any]:
    return a_run(name, evaluation={"executors": 1, "historyClaim": CLAIM})


def claim(size: str = "1Gi") -> dict[str, Any]:
    """Return a claim on a static volume of the test cluster: one node at a time, bound once."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
    }


def test_a_damaged_history_is_an_error_and_the_end_of_sparks_log_is_in_an_event(space: Space):
    """A table is cut short at the recorder between its seal and the evaluation: verdict Error, in the run and in an Event."""
    space.apply(a_run("torn"))
    recorder = naming.recorder_name("torn")
    space.condition(f"pod/{recorder}", "Ready", RUN_LIMIT_S)
    said = space.kubectl("exec", recorder, "--", "python", "-c", DAMAGE, naming.DATA_FOLDER)
    assert said.split() == ["damaged", "events.parquet"]
    space.condition("scenariorun/torn", "Complete", RUN_LIMIT_S)
    status = space.get("scenariorun", "torn")["status"]
    assert (status["verdict"], status["reason"]) == ("Error", "RunFailed"), status
    words = "events.parquet: is truncated or damaged"
    assert words in status["text"], status
    space.event("EvaluationFailed", words, EVENT_LIMIT_S)


@pytest.mark.soak
def test_a_spark_that_cannot_live_is_an_error_with_the_end_of_its_log(space: Space):
    """Each driver is killed, as by a limit of memory: the evaluation is tried three times, then the verdict is Error and an Event has Spark's words."""
    space.apply(a_run("bare"))
    space.condition("pod/headgate-spark", "Ready", RUN_LIMIT_S)
    command = ["-n", space.name, "exec", "headgate-spark", "--", "python", "-c", KILLER % RUN_LIMIT_S]
    killing = subprocess.Popen(
        [space.cluster.program("kubectl"), *command],
        env={**os.environ, "KUBECONFIG": space.cluster.kubeconfig},
        stdout=subprocess.PIPE,
        text=True,
    )
    with killing:
        try:
            assert killing.stdout is not None
            assert killing.stdout.readline() == "begun\n"
            space.condition("scenariorun/bare", "Complete", RUN_LIMIT_S)
        finally:
            killing.kill()
    assert space.get("scenariorun", "bare")["status"]["verdict"] == "Error"
    space.event("EvaluationFailed", "before its work was done. The end of its log:", EVENT_LIMIT_S)


def test_executors_without_their_claim_are_reported_by_a_condition(space: Space):
    """And with a claim that one node mounts, what that means."""
    space.apply(with_executors("wide"))
    missing = space.condition("scenariorun/wide", "HistoryReachable", EVENT_LIMIT_S, status="False")
    assert missing["reason"] == "NoClaim"
    assert f"the claim '{CLAIM}' does not exist" in missing["message"]
    space.apply(claim(TOO_LARGE))
    there = space.condition("scenariorun/wide", "HistoryReachable", EVENT_LIMIT_S, status="Unknown")
    assert (there["reason"], "ReadWriteOnce" in there["message"]) == ("OneNode", True), there
    space.kubectl("delete", "scenariorun", "wide", "--timeout=80s")


@pytest.mark.soak
@pytest.mark.timeout(EXECUTORS_LIMIT_S + 120)
def test_executors_evaluate_a_run_from_a_volume_that_they_share(space: Space):
    """Pods of Spark's own making do the work, with the rights of headgate-spark, and go with the run's driver."""
    space.apply(claim(), with_executors("wide"))
    space.condition("scenariorun/wide", "Complete", EXECUTORS_LIMIT_S)
    run = space.get("scenariorun", "wide")
    assert run["status"]["verdict"] == "Pass", (run["status"], space.story())
    assert condition(run, "HistoryReachable", "Unknown")
    involved = {e["involvedObject"]["name"] for e in space.get("events")["items"] if e["reason"] == "Started"}
    assert any(name.startswith("wide-spark-exec-") for name in involved), involved
    space.gone("pod/wide-spark", 110)
    space.kubectl("wait", "--for=delete", "pods", "-l", "spark-role=executor", "--timeout=110s")
