"""`make cluster` twice is as good as once, and `make cluster-down` leaves the machine as it was."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.kubernetes.cluster import DOWN_LIMIT_S, LAYOUT, UP_LIMIT_S, Cluster, left, pod, tool, traces
from tools.cluster import groups, processes, settings, state

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive]


@pytest.mark.timeout(UP_LIMIT_S)
@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_down_leaves_nothing_of_a_cluster_with_running_pods(nothing_up, nodes: int):
    """Processes, mounts, links, addresses, routes, packet rules, control groups, sockets, files, kernel settings: all as before."""
    tool("build", limit=UP_LIMIT_S)
    before = traces()
    tool("up", "--bare", "--nodes", str(nodes), limit=UP_LIMIT_S)
    cluster = Cluster(str(LAYOUT.kubeconfig), own=True, started=True)
    there = [node["metadata"]["name"] for node in cluster.get("nodes")["items"]]
    assert len(there) == nodes
    cluster.apply("default", *(pod(f"on-{n}", ["/bin/sleep", "3600"], nodeName=n) for n in there))
    cluster.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout=110s")
    during = left(before, traces())
    assert {"links", "addresses", "routes", "groups", "processes", "files"} <= set(during)
    tool("down", limit=DOWN_LIMIT_S)
    assert left(before, traces()) == {}
    assert "no cluster is running" in tool("down").stdout


def test_down_removes_the_control_groups_of_a_node_that_ended_without_it(nothing_up):
    """They outlive every process of it; a folder that knows of no node (another user's home, say) is no reason to keep them."""
    before = traces()
    groups.create()
    mounted = groups.mounts(Path("/proc/self/mountinfo").read_text())
    (made, *_) = [point / settings.CGROUP for point, _ in mounted if (point / settings.CGROUP).is_dir()]
    (made / "kubepods").mkdir()
    assert "removed the control groups" in tool("down").stdout
    assert left(before, traces()) == {}


@pytest.mark.timeout(UP_LIMIT_S)
def test_up_again_is_a_matter_of_course_and_mends_a_node_that_was_killed(nothing_up):
    """A second `up` finds the first; after `kill -9` of the node it starts a new one."""
    before = traces()
    tool("up", "--bare", limit=UP_LIMIT_S)
    first = state.read(LAYOUT)
    assert first is not None
    assert first.process is not None
    assert "already running" in tool("up", "--bare").stdout
    assert state.read(LAYOUT) == first
    os.kill(processes.children(first.process.pid)[0], signal.SIGKILL)
    processes.end(first.process)
    assert tool("status", check=False).returncode == 1
    tool("up", "--bare")
    assert state.read(LAYOUT) != first
    tool("down", limit=DOWN_LIMIT_S)
    assert left(before, traces()) == {}
