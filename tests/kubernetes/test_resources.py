"""Bad resources, suspension, TTL and deletion on a real cluster: what a user meets before and after a run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from testbed_runtime.api import naming
from tests.kubernetes import journal
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.spaces import Space, condition, fresh, give_back

pytestmark = pytest.mark.cluster
SOON_S = 120.0
PODS_S = 240.0
GONE_S = 110.0
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


@pytest.fixture(scope="module")
def space(installed: Cluster) -> Iterator[Space]:
    """One namespace for this file: every test has runs of its own names, and leaves none that works."""
    with fresh(installed) as made:
        yield made


def names_of(space: Space, plural: str, run: str = "") -> list[str]:
    """Return the names of the run's pods and of its testbeds' pods."""
    found = [o["metadata"]["name"] for o in space.get(plural)["items"]]
    return [name for name in found if name.startswith(f"{run}-" if run else "")]


def delete(space: Space, run: str) -> None:
    space.kubectl("delete", f"scenariorun/{run}", f"--timeout={GONE_S:.0f}s")


def test_a_run_that_makes_no_sense_is_not_accepted_and_creates_nothing(space: Space) -> None:
    """The command line's own text in the condition; Complete with Error; no pod, no Secret."""
    space.apply(wrong_run("nonsense"))
    found = space.condition("scenariorun/nonsense", "Accepted", SOON_S, status="False")
    assert "spec.scenario.faults[0].target.taskManagers.names[0]: 'tm-9' does not exist" in found["message"]
    assert condition(space.get("scenariorun/nonsense"), "Complete")
    assert not names_of(space, "pods", "nonsense")
    assert not names_of(space, "secrets", "nonsense")


def test_a_scenario_does_nothing(space: Space) -> None:
    """A GitOps tool may sync it: accepted, with no pod and no run."""
    before = {*names_of(space, "pods"), *names_of(space, "scenarioruns")}
    space.apply({
        "apiVersion": naming.API_VERSION, "kind": "Scenario", "metadata": {"name": "idle"}, "spec": SCENARIO,
    })  # fmt: skip
    space.condition("scenario/idle", "Accepted", SOON_S)
    assert {*names_of(space, "pods"), *names_of(space, "scenarioruns")} <= before


def test_a15_a_poison_resource_disturbs_no_other(space: Space) -> None:
    """Wrong ones before and after; the good one between them gets its pods."""
    space.apply(wrong_run("poison-a"), a_run("good"), wrong_run("poison-b"))
    space.condition("scenariorun/poison-b", "Accepted", SOON_S, status="False")
    space.until("pod/good-runner", lambda o: o["metadata"]["uid"], SOON_S, "a runner")
    space.kubectl("annotate", "scenariorun/good", f"{naming.ANNOTATION_HEAL}=now")
    space.condition("scenariorun/good", "Complete", SOON_S)
    give_back(space)  # the run stays, and with it the Spark that the next runs of this file would start anew


def test_a_suspended_run_creates_nothing_until_it_may(space: Space) -> None:
    """Then its recorder, its runner and the namespace's Spark are there."""
    space.apply(a_run("later", suspend=True))
    space.until("scenariorun/later", lambda o: (o.get("status") or {}).get("phase") == "Suspended", SOON_S)
    assert not names_of(space, "pods", "later")
    space.kubectl("patch", "scenariorun/later", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    for pod in ("later-recorder", "later-runner", "headgate-spark"):
        space.until(f"pod/{pod}", lambda o: o["metadata"]["uid"], SOON_S, "the pod")
    delete(space, "later")


def test_a_run_goes_when_its_time_has_passed(space: Space) -> None:
    """`ttlSecondsAfterFinished: 5` of one that was over at once."""
    made = wrong_run("short-lived")
    made["spec"]["ttlSecondsAfterFinished"] = 5
    space.apply(made)
    space.condition("scenariorun/short-lived", "Complete", SOON_S)
    space.gone("scenariorun/short-lived", SOON_S)


PHASES = [
    "Starting",
    "Testbed",
    "fault",
    *(pytest.param(p, marks=pytest.mark.soak) for p in ("baseline", "Evaluating")),
]


@pytest.mark.parametrize("when", PHASES)
def test_a_run_can_be_deleted_in_every_phase(space: Space, when: str) -> None:
    """It is gone within the finalizer's limit, with its pods, its Testbeds and their pods."""
    name = f"doomed-{when.lower()}"
    run = a_run(name)
    if when == "fault":  # long enough to be seen in it, however slowly its phase is reported
        run["spec"]["scenario"]["faults"][0]["duration"] = "20 s"
        run["spec"]["scenario"]["timeline"]["observation"] = "25 s"
    space.apply(run)
    if when == "Testbed":
        testbed = naming.trial_testbed_name(name, "main-1")
        space.until(f"testbed/{testbed}", lambda o: o["metadata"]["uid"], PODS_S, "its testbed")
    else:
        space.until(f"scenariorun/{name}", lambda o: _is_in(o, when), PODS_S, when)
    delete(space, name)
    assert not names_of(space, "testbeds", name)
    for pod in names_of(space, "pods", name):
        space.gone(f"pod/{pod}", SOON_S)


def _is_in(run: dict[str, Any], phase: str) -> bool:
    status = run.get("status") or {}
    return phase in (status.get("phase"), status.get("trialPhase"))


def test_heal_before_the_start_ends_a_run_without_creating_anything(space: Space) -> None:
    """Inconclusive, reason Healed."""
    made = a_run("healed", suspend=True)
    space.apply(made)
    space.until("scenariorun/healed", lambda o: (o.get("status") or {}).get("phase") == "Suspended", SOON_S)
    space.kubectl("annotate", "scenariorun/healed", f"{naming.ANNOTATION_HEAL}=now")
    space.condition("scenariorun/healed", "Complete", SOON_S)
    status = space.get("scenariorun/healed")["status"]
    assert (status["verdict"], status["reason"]) == ("Inconclusive", "Healed")
    assert not names_of(space, "pods", "healed")


@pytest.fixture
def powerless(space: Space) -> Iterator[Space]:
    """The runner's service account may nothing, so a runner ends as soon as it has started; the operator binds it again afterwards."""
    journal.no_rights_from_now_on(space.name)
    group = "rbac.authorization.k8s.io"
    space.apply({
        "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": {"name": naming.RUNNER_ACCOUNT},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": naming.RUNNER_ACCOUNT}, "subjects": [],
    })  # fmt: skip
    yield space
    space.kubectl("delete", "rolebinding", naming.RUNNER_ACCOUNT)


def test_heal_ends_a_run_whose_runner_does_not_start(powerless: Space) -> None:
    """Its container ends repeatedly, so only the operator can end the run: Inconclusive, Healed, within seconds."""
    powerless.apply(a_run("stuck"))
    powerless.until("pod/stuck-runner", _was_started_again, PODS_S, "a runner that ended")
    powerless.kubectl("annotate", "scenariorun/stuck", f"{naming.ANNOTATION_HEAL}=now")
    powerless.condition("scenariorun/stuck", "Complete", SOON_S)
    status = powerless.get("scenariorun/stuck")["status"]
    assert (status["verdict"], status["reason"]) == ("Inconclusive", "Healed")
    powerless.gone("pod/stuck-runner", SOON_S)
    delete(powerless, "stuck")


def _was_started_again(pod: dict[str, Any]) -> bool:
    return any(c["restartCount"] for c in (pod.get("status") or {}).get("containerStatuses") or ())
