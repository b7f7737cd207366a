"""Two replicas of the operator: one acts, and the other one takes over when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed_runtime.kube.api import Api
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.spaces import OPERATOR, OPERATOR_NAMESPACE, Space
from tests.kubernetes.test_faults import PAUSE, a_fault, a_testbed, phase
from tests.kubernetes.test_runs import SMALL, Followed, at, injections

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive, pytest.mark.soak, pytest.mark.timeout(1200)]

TAKEN_OVER_S = 120.0
LEASE = ("lease", "headgate-operator")


def holder(cluster: Cluster) -> str:
    spec = cluster.get("-n", OPERATOR_NAMESPACE, *LEASE)["spec"]
    return str(spec.get("holderIdentity") or "")


async def kill_leader(space: Space, api: Api, name: str) -> None:
    """The replica that acts, without a word: its Lease has to run out."""
    del api, name
    pod = await asyncio.to_thread(holder, space.cluster)
    arguments = ("-n", OPERATOR_NAMESPACE, "delete", "pod", pod, "--force", "--grace-period=0")
    await asyncio.to_thread(space.cluster.kubectl, *arguments)


@pytest.fixture
def two(installed: Cluster) -> Iterator[list[str]]:
    """Two replicas; gives the names of their pods."""
    where = ("-n", OPERATOR_NAMESPACE)
    installed.kubectl(*where, "scale", OPERATOR, "--replicas=2")
    installed.kubectl(*where, "rollout", "status", OPERATOR, "--timeout=110s")
    labels = ("-l", "app.kubernetes.io/component=operator")
    yield [p["metadata"]["name"] for p in installed.get(*where, "pods", *labels)["items"]]
    installed.kubectl(*where, "scale", OPERATOR, "--replicas=1")
    installed.kubectl(*where, "rollout", "status", OPERATOR, "--timeout=110s")


async def test_of_two_replicas_one_acts_and_the_other_takes_over(
    two: list[str], space: Space, tmp_path: Path
):
    """The one that acts is killed within a run's fault and a stand-alone fault: the other one goes on, and nothing is injected twice."""
    space.apply(a_testbed())
    space.condition("testbed/bench", "Ready", 120)
    first = holder(space.cluster)
    assert first in two
    followed = Followed(space, tmp_path)

    async def while_it_holds(space: Space, api: Api, name: str) -> None:
        space.apply(a_fault("held", duration="30 s", **PAUSE))
        await asyncio.to_thread(phase, space, "held", "Active", 30.0)
        await kill_leader(space, api, name)

    result = await followed.run(SMALL, (at("fault"), while_it_holds))
    assert result.verdict.verdict == "Pass", followed.story(result)
    assert await injections(followed) == {"main-1": 1}
    await asyncio.to_thread(phase, space, "held", "Complete", TAKEN_OVER_S)
    assert holder(space.cluster) in set(two) - {first}, "the waiting replica did not take over"
    began = [e for e in space.get("events")["items"] if e["reason"] == "Injected"]
    assert sum(e.get("count") or 1 for e in began if e["involvedObject"]["name"] == "held") == 1, began
