"""Runs on a cluster of two nodes (`make cluster NODES=2`): a node is drained, and a node is cut off."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.kube.api import Api
from tests.kubernetes.cluster import Cluster, pod, tool
from tests.kubernetes.spaces import Space
from tests.kubernetes.test_install import RESTRICTED_POD
from tests.kubernetes.test_runs import SMALL, Act, Followed, at, injections, left_behind, nothing_left
from tools.cluster import settings

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive, pytest.mark.soak, pytest.mark.timeout(700)]

FIRST, SECOND = settings.FIRST.name, settings.SECOND.name
LABEL = "headgate.dev/test-node"
CUT_S = 60.0
"""Longer than the 40 s after which a silent node is not Ready."""


@pytest.fixture
def on_the_second(installed: Cluster) -> Iterator[Cluster]:
    """Pods that select LABEL are on the second node first; both nodes are ready afterwards."""
    names = {node["metadata"]["name"] for node in installed.get("nodes")["items"]}
    if not installed.own or SECOND not in names:
        pytest.skip("needs the second node of `make cluster NODES=2`")
    installed.kubectl("label", "node", SECOND, f"{LABEL}=yes", "--overwrite")
    yield installed
    tool("exec", "ip", "link", "set", settings.SECOND_LINK, "up")
    installed.kubectl("uncordon", SECOND)
    installed.kubectl("label", "node", FIRST, SECOND, f"{LABEL}-")
    installed.kubectl("wait", "--for=condition=Ready", f"node/{SECOND}", "--timeout=90s")


def the_run() -> dict[str, Any]:
    document = copy.deepcopy(SMALL)
    document["spec"]["testbed"]["pods"] = {"nodeSelector": {LABEL: "yes"}}
    return document


def nodes_of(space: Space) -> dict[str, str]:
    return {p["metadata"]["name"]: p["spec"].get("nodeName", "") for p in space.get("pods")["items"]}


async def drain(space: Space, api: Api, name: str) -> None:
    """As before the maintenance of a node: every pod on it is evicted, new ones go to the first node."""
    del api
    assert SECOND in {node for pod, node in nodes_of(space).items() if pod.startswith(name)}
    kubectl = space.cluster.kubectl
    await asyncio.to_thread(kubectl, "label", "node", FIRST, f"{LABEL}=yes", "--overwrite")
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=100s")
    await asyncio.to_thread(kubectl, "drain", SECOND, *options)


async def cut_off(space: Space, api: Api, name: str) -> None:
    """The node's link goes down, its processes go on; then it is back."""
    del api
    assert SECOND in {node for pod, node in nodes_of(space).items() if pod.startswith(name)}
    await asyncio.to_thread(tool, "exec", "ip", "link", "set", settings.SECOND_LINK, "down")
    await asyncio.sleep(CUT_S)
    await asyncio.to_thread(tool, "exec", "ip", "link", "set", settings.SECOND_LINK, "up")
    # the kernel removes routes over a link that goes down
    route = ("ip", "route", "replace", settings.SECOND.pods, "via", settings.SECOND.address)
    await asyncio.to_thread(tool, "exec", *route)


@pytest.mark.parametrize("act", [drain, cut_off])
@pytest.mark.parametrize("phase", ["baseline", "fault"])
async def test_a_run_whose_node_goes_is_repeated_or_inconclusive_with_the_reason(
    on_the_second: Cluster, space: Space, tmp_path: Path, act: Act, phase: str
):
    """All processes of the testbed are on that node. The trial does not count; no trial has a second injection."""
    del on_the_second
    followed = Followed(space, tmp_path)
    result = await followed.run(the_run(), (at(phase), act))
    verdict, reason = result.verdict["verdict"], result.verdict.get("reason", "")
    assert dict(followed.trials).get("main-1", True), f"the trial counts: {followed.story(result)}"
    if verdict == "Pass":
        counted = [trial for trial, voided in followed.trials if not voided]
        injected = await injections(followed)
        assert [injected[trial] for trial in counted] == [1], followed.story(result)
        await nothing_left(followed)
    else:
        assert (verdict, bool(reason)) == ("Inconclusive", True), followed.story(result)
        assert result.verdict["summary"], followed.story(result)
        assert left_behind(followed) == []


def test_pods_of_two_nodes_reach_each_other_and_the_names_of_services(on_the_second: Cluster, space: Space):
    """They use the pod's own address: no translation between nodes."""
    said = {}
    for number, node in enumerate((FIRST, SECOND)):
        name = f"on-{number}"
        command = ["sh", "-c", "while :; do echo $POD_IP | nc -l -p 7000; done"]
        said[name] = node
        space.apply(_plain(name, node, command))
    for name in said:
        space.condition(f"pod/{name}", "Ready", 60)
    address = {name: space.get(f"pod/{name}")["status"]["podIP"] for name in said}
    for asks, answers in (("on-0", "on-1"), ("on-1", "on-0")):
        got = space.kubectl("exec", asks, "--", "nc", "-w", "3", address[answers], "7000")
        assert got.strip() == address[answers]
        space.kubectl("exec", asks, "--", "nslookup", "kubernetes.default.svc.cluster.local")


def _plain(name: str, node: str, command: list[str]) -> dict[str, Any]:
    made = pod(name, command, nodeName=node, **copy.deepcopy(RESTRICTED_POD))
    made["spec"]["containers"][0]["env"] = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    ]
    return made
