"""Runs on two nodes, one of which is drained, lost, or has another clock. Needs `make cluster NODES=2`."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.api import naming
from testbed_runtime.kube.api import Api
from tests.kubernetes.cluster import LAYOUT, Cluster, tool
from tests.kubernetes.spaces import OPERATOR, OPERATOR_NAMESPACE, Space, fresh
from tests.kubernetes.test_runs import SMALL, Followed, at, injections
from tools.cluster import components, settings, up
from tools.images import archive

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive, pytest.mark.soak, pytest.mark.timeout(1800)]

OTHER = settings.SECOND.name
CUT = ("PREROUTING", "-t", "raw", "-i", "peer0", "-j", "DROP")
"""Everything that comes from the other node. A link that is down would lose its routes."""
SCHEDULED_S = 300.0
AHEAD_S = 0.05
IMAGE = re.compile(r"(\S*)headgate:dev$")
CLOCK = f"""
import os, pathlib, time
if os.environ.get("POD_NAME", "").endswith("{{pods}}"):
    exact = time.clock_gettime_ns
    time.clock_gettime_ns = lambda clock: exact(clock) + (clock == time.CLOCK_REALTIME) * {int(AHEAD_S * 1e9)}
    from testbed_runtime.process import clock
    clock.BOOT_ID = pathlib.Path("/opt/headgate/boot_id")
"""
"""Python imports it at its start, before Headgate's code asks for the time. Two nodes have two kernels, so two boot ids."""


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
    which = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=110s")
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
    assert result.verdict.verdict == "Pass", followed.story(result)
    assert dict(followed.trials) == {"main-1": True, "main-1-r2": False}, followed.story(result)
    assert (await injections(followed)) == {"main-1": 1, "main-1-r2": 1}
    trials = space.get("scenariorun", followed.name)["status"]["trials"]
    assert reason in str(trials), trials


def ctr(*words: str, stdin: bytes = b"") -> str:
    """Run containerd's client on the other node."""
    address = ["--address", components.CONTAINERD_SOCKET, "--namespace", "k8s.io"]
    command = up.inside(LAYOUT, ["ctr", *address, *words], OTHER)
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout.decode()


def content(digest: str) -> dict[str, Any]:
    return dict(json.loads(ctr("content", "get", digest)))


@pytest.fixture
def set_clock(space: Space, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Set the clock of the other node's pods whose name has this end 50 ms ahead: its image of Headgate gets one more file.

    The nodes of this machine share one kernel, which has one clock."""
    del space
    rows = [line.split() for line in ctr("images", "ls").splitlines()]
    [(name, library, digest)] = [(r[0], found[1], r[2]) for r in rows if (found := IMAGE.match(r[0]))]
    manifest = content(digest)
    layers = tuple(archive.Blob(one["digest"], one["size"]) for one in manifest["layers"])
    base = archive.Base(content(manifest["config"]["digest"]), layers)

    def set_clock_of(pods: str) -> None:
        folder = tmp_path / "layer"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(CLOCK.format(pods=pods))
        (folder / "boot_id").write_text("another-kernel\n")
        made = archive.Made("headgate", ("headgate:dev",), base, archive.layer(folder, "/opt/headgate"))
        archive.thin(made, library, tmp_path / "image.tar")
        ctr("images", "import", "-", stdin=(tmp_path / "image.tar").read_bytes())

    yield set_clock_of
    unchanged = next(r[0] for r in rows if r[2] == digest and r[0] != name)
    ctr("images", "tag", "--force", unchanged, name)


LATENCY = {"metric": "latency", "quantile": "0.5", "phase": "baseline"}
"""About 50 ms with equal clocks: half the buffer timeout."""
CLOCKS = {"metric": "clocks.difference", "min": f"{AHEAD_S - 0.01} s", "max": f"{AHEAD_S + 0.01} s"}
RECOVERY = {"metric": "recovery.total", "max": "60 s"}


@pytest.mark.parametrize(
    ("pods", "more", "verdict", "reason"),
    [
        ("", [], "Pass", ""),
        ("tm-1", [{**LATENCY, "max": "2 s"}], "Pass", ""),
        ("tm-1", [{**LATENCY, "max": "80 ms"}], "Inconclusive", "ClocksDiffer"),
    ],
    ids=["a node of the testbed", "a TaskManager, far bound", "a TaskManager, close bound"],
)
async def test_clocks_that_differ_between_nodes_never_decide_a_verdict(
    space: Space,
    tmp_path: Path,
    set_clock: Callable[[str], None],
    pods: str,
    more: list[dict[str, Any]],
    verdict: str,
    reason: str,
):
    """They are 50 ms apart, which is measured. The verdict is the one of equal clocks, or Inconclusive with the reason."""
    set_clock(pods)
    document = on_the_other_node("9 s")
    document["spec"]["expect"] += [CLOCKS, RECOVERY, *more]
    followed = Followed(space, tmp_path)
    result = await followed.run(document, (at("create"), open_the_other_node))
    assert (result.verdict.verdict, result.verdict.reason) == (verdict, reason), followed.story(result)
    decided = [one for one in result.verdict.judged if one.metric == "clocks.difference"]
    assert [one.verdict for one in decided] == ["Pass"], decided
