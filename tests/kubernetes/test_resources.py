"""Bad resources, suspension, TTL and deletion on a real cluster: what a user meets before and after a run."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest

from testbed_runtime.spec import naming
from tests.kubernetes.spaces import Space, condition

pytestmark = pytest.mark.cluster
SOON_S = 30.0
PODS_S = 90.0
GONE_S = 80.0
SCENARIO: dict[str, Any] = {
    "testbed": {
        "taskManagers": {"replicas": 2},
        "job": {
            "vertices": [
                {"name": "source", "slotSharingGroup": "in", "source": {"recordsPerSecond": 200}},
                {"name": "sink", "slotSharingGroup": "out", "sink": "ledger"},
            ],
            "edges": [{"from": "source", "to": "sink"}],
        },
    },
    "timeline": {"warmUp": "1 s", "baseline": "2 s", "observation": "5 s"},
    "faults": [
        {
            "name": "hold",
            "at": "0 s",
            "duration": "2 s",
            "target": {"taskManagers": {"names": ["tm-0"]}},
            "process": {"pause": {}},
        }
    ],
    "control": False,
}


def a_run(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "ScenarioRun",
        "metadata": {"name": name},
        "spec": {"scenario": copy.deepcopy(SCENARIO), **spec},
    }


def wrong_run(name: str) -> dict[str, Any]:
    made = a_run(name)
    made["spec"]["scenario"]["faults"][0]["target"]["taskManagers"]["names"] = ["tm-9"]
    return made


def pods_of(space: Space, run: str) -> list[str]:
    return [p["metadata"]["name"] for p in space.get("pods", "-l", f"{naming.LABEL_RUN}={run}")["items"]]


def test_a_run_that_makes_no_sense_is_not_accepted_and_creates_nothing(space: Space) -> None:
    """The command line's own text in the condition; Complete with Error; no pod, no Secret."""
    space.apply(wrong_run("nonsense"))
    found = space.condition("scenariorun/nonsense", "Accepted", SOON_S, status="False")
    assert "spec.scenario.faults[0].target.taskManagers.names[0]: there is no 'tm-9'" in found["message"]
    assert condition(space.get("scenariorun/nonsense"), "Complete")
    assert not pods_of(space, "nonsense")
    assert not space.get("secrets")["items"]


def test_a_scenario_does_nothing(space: Space) -> None:
    """A GitOps tool may sync it: accepted, with no pod and no run."""
    space.apply({
        "apiVersion": naming.API_VERSION, "kind": "Scenario", "metadata": {"name": "idle"}, "spec": SCENARIO,
    })  # fmt: skip
    space.condition("scenario/idle", "Accepted", SOON_S)
    assert not space.get("pods")["items"]
    assert not space.get("scenarioruns")["items"]


def test_a15_a_poison_resource_disturbs_no_other(space: Space) -> None:
    """Wrong ones before and after; the good one between them gets its pods."""
    space.apply(wrong_run("poison-a"), a_run("good"), wrong_run("poison-b"))
    space.condition("scenariorun/poison-b", "Accepted", SOON_S, status="False")
    space.until("pod/good-runner", lambda o: o["metadata"]["uid"], SOON_S, "a runner")


def test_a_suspended_run_creates_nothing_until_it_may(space: Space) -> None:
    """Then its recorder, its runner and the namespace's Spark are there."""
    space.apply(a_run("later", suspend=True))
    space.until("scenariorun/later", lambda o: (o.get("status") or {}).get("phase") == "Suspended", SOON_S)
    assert not pods_of(space, "later")
    space.kubectl("patch", "scenariorun/later", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    for pod in ("later-recorder", "later-runner", "headgate-spark"):
        space.until(f"pod/{pod}", lambda o: o["metadata"]["uid"], SOON_S, "the pod")


def test_a_run_goes_when_its_time_has_passed(space: Space) -> None:
    """`ttlSecondsAfterFinished: 5` of one that was over at once."""
    made = wrong_run("short-lived")
    made["spec"]["ttlSecondsAfterFinished"] = 5
    space.apply(made)
    space.condition("scenariorun/short-lived", "Complete", SOON_S)
    space.gone("scenariorun/short-lived", SOON_S)


@pytest.mark.parametrize("when", ["Starting", "Testbed", "Running"])
def test_a_run_can_be_deleted_in_every_phase(space: Space, when: str) -> None:
    """It is gone within the finalizer's limit, with its pods, its Testbeds and their pods."""
    space.apply(a_run("doomed"))
    if when == "Testbed":
        _until_some(space, "testbeds")
    elif when == "Running":
        space.until(
            "scenariorun/doomed", lambda o: (o.get("status") or {}).get("trialPhase") == "baseline", PODS_S
        )
    else:
        space.until("scenariorun/doomed", lambda o: (o.get("status") or {}).get("phase") == when, SOON_S)
    space.kubectl("delete", "scenariorun/doomed", f"--timeout={GONE_S:.0f}s")
    assert not space.get("testbeds")["items"]
    for pod in pods_of(space, "doomed"):
        space.gone(f"pod/{pod}", SOON_S)


def test_heal_before_the_start_ends_a_run_without_creating_anything(space: Space) -> None:
    """Inconclusive, reason Healed."""
    made = a_run("healed", suspend=True)
    space.apply(made)
    space.until("scenariorun/healed", lambda o: (o.get("status") or {}).get("phase") == "Suspended", SOON_S)
    space.kubectl("annotate", "scenariorun/healed", f"{naming.ANNOTATION_HEAL}=now")
    space.condition("scenariorun/healed", "Complete", SOON_S)
    status = space.get("scenariorun/healed")["status"]
    assert (status["verdict"], status["reason"]) == ("Inconclusive", "Healed")
    assert not pods_of(space, "healed")


def _until_some(space: Space, plural: str) -> None:
    ends = time.monotonic() + PODS_S
    while not space.get(plural)["items"]:
        assert time.monotonic() < ends, f"no {plural} within {PODS_S} s\n{space.story()}"
        space.kubectl(
            "wait",
            "--for=jsonpath={.status.phase}=Running",
            "scenariorun",
            "--all",
            "--timeout=2s",
            check=False,
        )
