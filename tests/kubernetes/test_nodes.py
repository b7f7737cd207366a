"""Runs on two nodes, one of which is drained or lost. Needs `make cluster NODES=2`."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.api import naming
from testbed_runtime.kube.api import Api
from tests.kubernetes.cluster import Cluster, tool
from tests.kubernetes.spaces import OPERATOR, OPERATOR_NAMESPACE, Space, fresh
from tests.kubernetes.test_runs import SMALL, Followed, at, injections
from tools.cluster import settings

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive, pytest.mark.soak, pytest.mark.timeout(1800)]

OTHER = settings.SECOND.name
CUT = ("PREROUTING", "-t", "raw", "-i", "peer0", "-j", "DROP")
"""Everything that comes from the other node. A link that is down would lose its routes."""
SCHEDULED_S = 300.0


@pytest.fixture(scope="module")
def space(installed: Cluster) -> Iterator[Space]:
    """One namespace; the other node is as it was afterwards."""
    if not installed.own or OTHER not in installed.kubectl("get", "nodes", "-o", "name"):
        pytest.skip("needs the two nodes of `make cluster NODES=2`")
    with fresh(installed) as made:
        yield made
    tool("exec", "iptables", "-D", *CUT, check=False)  # a test that failed in between
    installed.kubectl("uncordon", OTHER)


@pytest.fixture(autouse=True)
def only_testbeds_there(space: Space) -> None:
    """The operator is on the first node, and so are the pods of runs that are created now."""
    space.cluster.kubectl("cordon", OTHER)
    where = ("-n", OPERATOR_NAMESPACE)
    pods = space.cluster.get(*where, "pods", "-l", "app.kubernetes.io/component=operator")["items"]
    for pod in pods:
        if pod["spec"].get("nodeName") == OTHER:
            space.cluster.kubectl(*where, "delete", "pod", pod["metadata"]["name"])
    space.cluster.kubectl(*where, "rollout", "status", OPERATOR, "--timeout=100s")


def on_the_other_node(observation: str) -> dict[str, Any]:
    document = copy.deepcopy(SMALL)
    document["spec"]["testbed"]["pods"] = {"nodeSelector": {"kubernetes.io/hostname": OTHER}}
    document["spec"]["timeline"]["observation"] = observation
    return document


async def open_the_other_node(space: Space, api: Api, name: str) -> None:
    """The run's own pods are on the first node by now, so only its testbed is hit."""
    del api
    for pod in (naming.runner_name(name), naming.recorder_name(name)):
        await asyncio.to_thread(
            space.until, f"pod/{pod}", lambda o: o["spec"].get("nodeName"), SCHEDULED_S, "a node"
        )
    await asyncio.to_thread(space.cluster.kubectl, "uncordon", OTHER)


async def drain(space: Space, api: Api, name: str) -> None:
    """Then it takes pods again: the next attempt needs it."""
    del api, name
    which = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
    await asyncio.to_thread(space.cluster.kubectl, "drain", OTHER, *which)
    await asyncio.to_thread(space.cluster.kubectl, "uncordon", OTHER)


async def lose(space: Space, api: Api, name: str) -> None:
    del space, api, name
    await asyncio.to_thread(tool, "exec", "iptables", "-I", *CUT)


async def find_again(space: Space, api: Api, name: str) -> None:
    del space, api, name
    await asyncio.to_thread(tool, "exec", "iptables", "-D", *CUT)


@pytest.mark.parametrize(
    ("observation", "acts", "reason"),
    [("9 s", [drain], "EvictionByEvictionAPI"), ("150 s", [lose, find_again], "NodeNotReady")],
    ids=["drained", "lost"],
)
async def test_a_trial_whose_node_goes_is_void_and_repeated(
    space: Space, tmp_path: Path, observation: str, acts: list[Any], reason: str
):
    """Its failover is none of the run's faults. The run passes on the node when it is back, with one injection in each trial."""
    followed = Followed(space, tmp_path)
    phases = (at("observation"), at("seal", "dispose"))
    moments = [(at("create"), open_the_other_node), *zip(phases, acts, strict=False)]
    result = await followed.run(on_the_other_node(observation), *moments)
    assert result.verdict["verdict"] == "Pass", followed.story(result)
    assert dict(followed.trials) == {"main-1": True, "main-1-r2": False}, followed.story(result)
    assert (await injections(followed)) == {"main-1": 1, "main-1-r2": 1}
    trials = space.get("scenariorun", followed.name)["status"]["trials"]
    assert reason in str(trials), trials
