"""Tests on a real cluster run only when they are asked for (`make test-cluster`, `-m cluster`): starting one takes a machine of its own.

`cluster`: the given one, the one that is up, or one that is started now. `images`: this checkout's, loaded. `installed`: with the operator.
`space`: a restricted namespace of one test; when the test fails, its report tells what went on in it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterator

import pytest

from tests.kubernetes.cluster import ROOT, Cluster, connect, disconnect, is_up, lacking
from tests.kubernetes.spaces import OPERATOR_NAMESPACE, Space, fresh, install, names, settle, uninstall

REQUIRED = os.environ.get("HEADGATE_REQUIRE_CLUSTER") == "1"
BUILD_LIMIT_S = 1200  # the first time: a base, Python packages, Java and PySpark
FIRST = (
    "test_local_cluster_goes"  # starts and ends a cluster of its own: before the one of all the others is up
)
LAST = "test_rbac"  # compares the rights with the calls of all the others


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whoever selects by other marks does not start a cluster by accident; `make soak` means all that is long."""
    if "cluster" in config.option.markexpr or config.option.markexpr == "soak":
        items.sort(key=lambda item: (FIRST not in item.nodeid, LAST in item.nodeid))
        return
    skip = pytest.mark.skip(reason="needs a real Kubernetes: make test-cluster")
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test's report says what its namespace looked like."""
    report = yield
    space = getattr(item, "funcargs", {}).get("space")
    if report.when == "call" and report.failed and isinstance(space, Space):
        report.sections.append((f"namespace {space.name}", space.story()))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Taken away after the last test if it was started for them. Without any: skipped with the reason, or failed where one is required."""
    reason = None if is_up() else lacking()
    if reason and REQUIRED:
        pytest.fail(f"HEADGATE_REQUIRE_CLUSTER=1, but {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)
    connected = connect()
    yield connected
    disconnect(connected)


@pytest.fixture(scope="session")
def images(cluster: Cluster) -> str:
    """The images of this checkout are in the cluster; gives the reference by content of `headgate`.

    A given cluster is not ours to load into: push the images as headgate:dev and so on where its nodes find them. Nothing is built either with
    HEADGATE_IMAGES_LOADED=1: what is there is what is meant.
    """
    if not (cluster.own or is_up()) or os.environ.get("HEADGATE_IMAGES_LOADED") == "1":
        return "headgate:dev"
    command = [sys.executable, "-m", "tools.images", "build", "--load"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    found = re.search(r"(headgate:[0-9a-f]+)", done.stdout)
    assert found is not None, done.stdout
    return found[1]


@pytest.fixture(scope="session")
def installed(cluster: Cluster, images: str) -> Iterator[Cluster]:
    """Definitions and the operator of this checkout, Ready. What was not there before is taken away, and nothing may be left of it."""
    before = names(cluster)
    install(cluster, images)
    yield cluster
    settle(cluster)
    if f"namespace/{OPERATOR_NAMESPACE}" not in before:
        uninstall(cluster)
        assert names(cluster) - before == set(), "what the manifests installed is not all gone"


@pytest.fixture
def space(installed: Cluster) -> Iterator[Space]:
    """With an operator at work."""
    with fresh(installed) as made:
        yield made


@pytest.fixture
def bare_space(cluster: Cluster, images: str) -> Iterator[Space]:
    """With the images, whatever became of the operator."""
    del images
    with fresh(cluster) as made:
        yield made
