"""Tests on a real cluster run only on request (`make test-cluster`, `-m cluster`): a cluster needs a machine of its own.

`cluster`: the given one, the running one, or one that is started now. `images`: this checkout's, loaded. `installed`: with the operator.
`space`: a restricted namespace of one test; when the test fails, its report includes what happened in it.

Under pytest-xdist all processes share one cluster and one operator, which stay for the tests that are `disruptive` (a call without xdist).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator

import pytest

from tests.kubernetes import journal
from tests.kubernetes.cluster import DOWN_LIMIT_S, ROOT, Cluster, connect, disconnect, is_up, lacking, tool
from tests.kubernetes.spaces import OPERATOR_NAMESPACE, Space, fresh, install, names, settle, uninstall
from tools.cluster import up

REQUIRED = os.environ.get("HEADGATE_REQUIRE_CLUSTER") == "1"
TEST_LIMIT_S = 1200
"""Limit for a test that has none of its own, with several pods on a busy machine."""
BUILD_LIMIT_S = 1200  # the first time: a base, Python packages, Java and PySpark
# start and stop clusters of their own, so before the shared one is up
FIRST = (
    "test_local_cluster_goes",
    "test_registry",
)
MEANWHILE = ("test_local_cluster", "test_chart", "test_kinds")
"""Need no images: the other workers run them while the first one loads the images."""
LONGEST = (
    "test_scenarios",
    *MEANWHILE,
    "test_runs",
    "test_testbed",
    "test_walkthrough",
    "test_tuning",
    "test_resources",
    "test_faults",
    "test_pod_loss",
    "test_ci_page",
    "test_images",
)
"""Start first, in this order, so that no worker is left with one at the end. What needs no cluster comes last."""
LAST = "test_rbac"  # compares the rights with the calls of all other tests
PARALLEL = "PYTEST_XDIST_WORKER" in os.environ
BEFORE = "headgate.dev/before-the-tests"
"""Annotation of the operator's namespace: the names that were in the cluster before the tests installed it, as JSON."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        journal.begin()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Selecting tests by other marks does not start a cluster by accident. `make soak` includes all long tests."""
    for item in items:
        if item.get_closest_marker("cluster") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_LIMIT_S))
    chosen = config.option.markexpr
    if chosen == "soak" or ("cluster" in chosen and "not cluster" not in chosen):
        items.sort(key=_rank)
        return
    skip = pytest.mark.skip(reason="needs a real Kubernetes: make test-cluster")
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(skip)


def _rank(item: pytest.Item) -> tuple[bool, bool, bool, int]:
    file = item.path.stem
    length = LONGEST.index(file) if file in LONGEST else len(LONGEST)
    late = item.get_closest_marker("cluster") is None and file not in MEANWHILE
    return file not in FIRST, file == LAST, late, length


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note which files run, for test_rbac."""
    journal.ran(item.path.name for item in session.items if item.get_closest_marker("cluster"))


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


@pytest.fixture
def nothing_up() -> Iterator[None]:
    """No cluster runs before and after. Such a test starts and ends one of its own; one that is there is somebody's."""
    if reason := up.refusal(sys.platform, os.geteuid()):
        pytest.skip(reason)
    if is_up():
        pytest.skip("a cluster is up: `make cluster-down` first")
    # leftovers of a node that ended together with the process that started it
    tool("down", limit=DOWN_LIMIT_S)
    yield
    tool("down", limit=DOWN_LIMIT_S)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Stopped after the last test if the tests started it. Without a cluster, tests are skipped with the reason, or fail where one is required."""
    reason = None if is_up() else lacking()
    if reason and REQUIRED:
        pytest.fail(f"HEADGATE_REQUIRE_CLUSTER=1, but {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)
    connected = connect()
    yield connected
    if not PARALLEL:
        disconnect(connected)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], str]], str]:
    """Do something in one of xdist's processes only; the others wait for its result."""

    def do(name: str, action: Callable[[], str]) -> str:
        base = tmp_path_factory.getbasetemp()
        result = (base.parent if PARALLEL else base) / f"once-{name}"
        with result.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not result.exists():
                result.write_text(action())
            return result.read_text()

    return do


@pytest.fixture(scope="session")
def images(cluster: Cluster, once: Callable[[str, Callable[[], str]], str]) -> str:
    """Load this checkout's images into the cluster. Returns the reference by content of `headgate`.

    The tests do not load into a given cluster: push the images as headgate:dev and so on where its nodes find them. With
    HEADGATE_IMAGES_LOADED=1 nothing is built either, and the images in the cluster are used.
    """
    if not (cluster.own or is_up()) or os.environ.get("HEADGATE_IMAGES_LOADED") == "1":
        return "headgate:dev"
    return once("images", _load_images)


def _load_images() -> str:
    command = [sys.executable, "-m", "tools.images", "build", "--load"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    found = re.search(r"(headgate:[0-9a-f]+)", done.stdout)
    assert found is not None, done.stdout
    return found[1]


@pytest.fixture(scope="session")
def installed(
    cluster: Cluster, images: str, once: Callable[[str, Callable[[], str]], str]
) -> Iterator[Cluster]:
    """Install this checkout's definitions and operator. Afterwards, remove what the tests installed, and check that all of it is gone."""
    before = set(json.loads(once("installed", lambda: json.dumps(sorted(_installed(cluster, images))))))
    yield cluster
    settle(cluster)
    if f"namespace/{OPERATOR_NAMESPACE}" not in before and not PARALLEL:
        uninstall(cluster)
        assert names(cluster) - before == set(), "the manifests left something behind"


def _installed(cluster: Cluster, images: str) -> set[str]:
    """Return the names that were there before the tests installed the operator, in this call of pytest or in an earlier one."""
    before = names(cluster)
    install(cluster, images)
    namespace = cluster.get("namespace", OPERATOR_NAMESPACE)["metadata"]
    if noted := namespace.get("annotations", {}).get(BEFORE):
        return set(json.loads(noted))
    if f"namespace/{OPERATOR_NAMESPACE}" not in before:
        cluster.kubectl("annotate", "namespace", OPERATOR_NAMESPACE, f"{BEFORE}={json.dumps(sorted(before))}")
    return before


@pytest.fixture
def space(installed: Cluster) -> Iterator[Space]:
    """A namespace with a running operator."""
    with fresh(installed) as made:
        yield made


@pytest.fixture
def bare_space(cluster: Cluster, images: str) -> Iterator[Space]:
    """A namespace of a cluster with the images. The operator may be missing."""
    del images
    with fresh(cluster) as made:
        yield made
