"""Stand-alone Faults in pods of a real cluster: injected, measured, ended; healed before they go; the operator killed in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from testbed_runtime.api import naming
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.spaces import OPERATOR, OPERATOR_NAMESPACE, Space, condition, fresh

pytestmark = pytest.mark.cluster
READY_S = 300.0
"""A testbed's pods on a machine that is shared."""
START_S = 90.0
END_S = 150.0
BENCH = "bench"
TM_0 = {"taskManagers": {"names": ["tm-0"]}}
PAUSED = "pod/bench-tm-0"
SEEN_LATE = timedelta(seconds=3)
"""Times in a status are whole seconds, and of when the operator looked."""


def a_testbed(name: str = BENCH, **spec: Any) -> dict[str, Any]:
    job = {
        "vertices": [
            {"name": "source", "slotSharingGroup": "in", "source": {"recordsPerSecond": 500}},
            {"name": "sink", "slotSharingGroup": "out", "sink": "ledger"},
        ],
        "edges": [{"from": "source", "to": "sink"}],
    }
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "Testbed",
        "metadata": {"name": name},
        "spec": {
            "taskManagers": {"replicas": 2, "replaceLost": "2 s"},
            "flinkConfiguration": {"heartbeat.timeout": "60 s"},
            "job": job,
            "pods": {"proxy": True},
            **spec,
        },
    }


def a_fault(name: str, **spec: Any) -> dict[str, Any]:
    wanted = {"testbedRef": {"name": BENCH}, "duration": "6 s", "target": TM_0, **spec}
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "Fault",
        "metadata": {"name": name},
        "spec": wanted,
    }


PAUSE = {"process": {"pause": {}}}
LATENCY = {"network": {"latency": {"delay": "50 ms", "mode": "one-way"}}}
FRAMES = {"frames": {"delay": {"frameClass": "buffer", "delay": "50 ms"}}}


@pytest.fixture(scope="module")
def bench(installed: Cluster) -> Iterator[Space]:
    """A namespace with one ready testbed for the tests of this file; each leaves it ready."""
    with fresh(installed) as space:
        space.apply(a_testbed())
        space.condition("testbed/bench", "Ready", READY_S)
        yield space


@pytest.fixture
def calm(bench: Space) -> Iterator[Space]:
    """The testbed is ready again and no fault is left, before and after."""
    bench.condition("testbed/bench", "Ready", READY_S)
    yield bench
    bench.kubectl("delete", "faults", "--all", "--timeout=90s")


def phase(space: Space, name: str, wanted: str, limit: float) -> dict[str, Any]:
    found = space.until(
        f"fault/{name}", lambda o: (o.get("status") or {}).get("phase") == wanted, limit, wanted
    )
    return dict(found["status"])


def moment(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [(PAUSE, "supervisor"), (LATENCY, "proxy"), (FRAMES, "channel")],
    ids=["process", "proxy", "channel"],
)
def test_a4_a_fault_takes_effect_and_leaves_nothing(calm: Space, kind: dict[str, Any], backend: str) -> None:
    """An unprivileged backend carries it; effect and residue were measured in the pods."""
    name = f"by-{backend}"
    calm.apply(a_fault(name, **kind))
    active = phase(calm, name, "Active", START_S)
    assert active["backend"] == backend
    assert active["targets"] == ["tm-0"]
    longer = '{"spec": {"duration": "9 s"}}'
    words = calm.cluster.refused("-n", calm.name, "patch", "fault", name, "--type=merge", "-p", longer)
    assert "delete the fault, which ends it, and create another" in words
    phase(calm, name, "Complete", END_S)
    found = calm.get(f"fault/{name}")
    assert condition(found, "EffectVerified"), found["status"]
    assert condition(found, "NoResidue"), found["status"]
    assert found["status"]["measured"]


def test_a_plan_injects_nothing(calm: Space) -> None:
    """Targets, backend and the expected effect in the status; the TaskManager goes on."""
    calm.apply(a_fault("only-planned", plan=True, **PAUSE))
    status = phase(calm, "only-planned", "Complete", START_S)
    assert status["reason"] == "Planned"
    assert status["targets"] == ["tm-0"]
    assert "injectedAt" not in status


def test_deleting_faults_heals_them(calm: Space) -> None:
    """`kubectl delete faults --all`: two long ones are gone long before their end, and the TaskManager is ready again."""
    calm.apply(a_fault("long-pause", duration="300 s", **PAUSE))
    calm.apply(
        a_fault("long-latency", duration="300 s", target={"taskManagers": {"names": ["tm-1"]}}, **LATENCY)
    )
    phase(calm, "long-pause", "Active", START_S)
    phase(calm, "long-latency", "Active", START_S)
    calm.condition(PAUSED, "Ready", START_S, status="False")
    calm.kubectl("delete", "faults", "--all", "--timeout=90s")
    calm.condition(PAUSED, "Ready", START_S)


@pytest.mark.disruptive
def test_a1_an_operator_that_is_killed_in_mid_fault_ends_nothing_and_doubles_nothing(calm: Space) -> None:
    """The fault ends at its deadline; the restarted operator concludes it, verified and without residue."""
    calm.apply(a_fault("survivor", duration="12 s", **PAUSE))
    before = phase(calm, "survivor", "Active", START_S)
    calm.cluster.kubectl(
        "-n", OPERATOR_NAMESPACE, "delete", "pod", "-l", "app.kubernetes.io/name=headgate", "--force", "--grace-period=0"
    )  # fmt: skip
    after = phase(calm, "survivor", "Complete", END_S)
    assert after["deadline"] == before["deadline"]
    found = calm.get("fault/survivor")
    assert condition(found, "EffectVerified"), found["status"]
    assert condition(found, "NoResidue"), found["status"]


@pytest.fixture
def away(calm: Space) -> Iterator[Callable[[], None]]:
    """Takes the operator away, in an orderly way, until the end of the test."""
    scale = ("-n", OPERATOR_NAMESPACE, "scale", OPERATOR)
    which = ("-n", OPERATOR_NAMESPACE, "pod", "-l", "app.kubernetes.io/name=headgate")

    def leave() -> None:
        calm.cluster.kubectl(*scale, "--replicas=0")
        calm.cluster.kubectl("wait", "--for=delete", *which, f"--timeout={START_S:.0f}s")

    yield leave
    calm.cluster.kubectl(*scale, "--replicas=1")
    calm.cluster.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", OPERATOR, f"--timeout={END_S:.0f}s")


@pytest.mark.disruptive
def test_a2_a_fault_that_is_not_healed_ends_at_its_deadline(calm: Space, away: Callable[[], None]) -> None:
    """Without an operator its finalizer is taken off by hand and the object deleted: the agent holds the deadline, not before."""
    calm.apply(a_fault("stripped", duration="15 s", **PAUSE))
    active = phase(calm, "stripped", "Active", START_S)
    calm.condition(PAUSED, "Ready", START_S, status="False")
    away()
    calm.kubectl("patch", "fault/stripped", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    calm.kubectl("delete", "fault/stripped", "--timeout=60s")
    ready = calm.condition(PAUSED, "Ready", END_S)
    lasted = moment(ready["lastTransitionTime"]) - moment(active["injectedAt"])
    assert lasted >= timedelta(seconds=15) - SEEN_LATE, f"it went on after {lasted}"


def test_a6_a_second_fault_of_the_same_kind_is_refused_with_both_names(calm: Space) -> None:
    """Accepted=False, reason Overlap."""
    calm.apply(a_fault("first", duration="60 s", **PAUSE))
    phase(calm, "first", "Active", START_S)
    calm.apply(a_fault("second", **PAUSE))
    refused = calm.condition("fault/second", "Accepted", START_S, status="False")
    assert refused["reason"] == "Overlap"
    assert "first" in refused["message"]
    assert "second" in refused["message"]
    second = calm.get("fault", "second")
    assert not condition(second, "Complete"), "kubectl wait --for=condition=Complete must not succeed"
    assert not condition(second, "NoResidue")


def test_a_pod_is_deleted_and_comes_again(calm: Space) -> None:
    """pod.delete: another pod of the same name, by replaceLost; the fault says that the old one is gone."""
    was = calm.get("pod/bench-tm-1")["metadata"]["uid"]
    calm.apply(a_fault("pod-loss", target={"taskManagers": {"names": ["tm-1"]}}, pod={"delete": {}}))
    phase(calm, "pod-loss", "Complete", END_S)
    assert condition(calm.get("fault/pod-loss"), "EffectVerified")
    calm.until("pod/bench-tm-1", lambda o: o["metadata"]["uid"] != was, END_S, "another pod")
