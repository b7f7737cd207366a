"""An upgrade from the previous release by Helm with a run, a testbed and a fault under way, and two replicas of which one is lost."""

from __future__ import annotations

import asyncio
import copy
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed_runtime.api import naming
from testbed_runtime.kube.api import Api
from tests.kubernetes import spaces
from tests.kubernetes.cluster import ROOT, Cluster
from tests.kubernetes.conftest import BUILD_LIMIT_S
from tests.kubernetes.rendering import CHART
from tests.kubernetes.spaces import OPERATOR, OPERATOR_NAMESPACE, Space
from tests.kubernetes.test_faults import PAUSE, a_fault, a_testbed, phase
from tests.kubernetes.test_runs import SMALL, Followed, at, injections, nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive, pytest.mark.soak, pytest.mark.timeout(1800)]

PREVIOUS = "1362ac0"
"""The commit of the release before this one."""
RELEASE = "upgraded"
HELM_LIMIT = "100s"
IMAGES = ("headgate", "headgate-agent", "headgate-spark")
BUILT = re.compile(r"\b(headgate(?:-agent|-spark)?):([0-9a-f]{12})\b")
TAKEN_OVER_S = 60.0
LEASE = ("lease", "headgate-operator")


@dataclass(frozen=True, slots=True)
class Previous:
    """The previous release: its chart, and the tags by content of its images, which are in the cluster."""

    chart: Path
    tags: dict[str, str]


def build(folder: Path, *arguments: str) -> dict[str, str]:
    command = [sys.executable, "-m", "tools.images", "build", "--load", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return dict(BUILT.findall(done.stdout))


@pytest.fixture
def previous(installed: Cluster, images: str, tmp_path: Path) -> Iterator[Previous]:
    """Without the session's operator and definitions, which come back afterwards. Its build also takes the tag `dev`: it is given back."""
    if not installed.own:
        pytest.skip("images are loaded into the cluster of `make cluster` only")
    archived = subprocess.run(
        ["git", "-C", str(ROOT), "archive", PREVIOUS], capture_output=True, check=False, timeout=60
    )
    if archived.returncode:
        pytest.skip(f"needs the history of the repository with {PREVIOUS}")
    folder = tmp_path / "previous"
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as opened:
        opened.extractall(folder, filter="data")
    try:
        tags = build(folder)
    finally:
        build(ROOT)
    assert set(tags) == set(IMAGES)
    spaces.uninstall(installed)
    try:
        yield Previous(folder / "helm" / "headgate", tags)
    finally:
        spaces.install(installed, images)


def values(space: str, tags: dict[str, str]) -> list[str]:
    """A namespaced installation with the definitions of its chart."""
    names = {"headgate": "image", "headgate-agent": "agentImage", "headgate-spark": "sparkImage"}
    chosen = [f"watchNamespaces={{{space}}}", *(f"{names[n]}.tag={tag}" for n, tag in tags.items())]
    return [part for value in chosen for part in ("--set-string" if ".tag" in value else "--set", value)]


def helm(space: Space, chart: Path, tags: dict[str, str]) -> None:
    arguments = ("upgrade", "--install", RELEASE, str(chart), *values(space.name, tags))
    space.cluster.run("helm", "--namespace", space.name, *arguments, "--wait", "--timeout", HELM_LIMIT)


def definitions(chart: Path) -> dict[str, set[str]]:
    """Return the fields of each definition of a chart."""
    return _fields_of(yaml.safe_load(path.read_text()) for path in (chart / "files" / "crds").glob("*.yaml"))


def stored(cluster: Cluster) -> dict[str, set[str]]:
    """Return the same of the API server."""
    return _fields_of(o for o in cluster.get("crds")["items"] if o["spec"]["group"] == naming.GROUP)


def _fields_of(crds: Iterable[dict[str, Any]]) -> dict[str, set[str]]:
    return {
        crd["metadata"]["name"]: set(_fields(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))
        for crd in crds
    }


def _fields(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, below in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _fields(below, f"{path}.{name}")
    if isinstance(below := schema.get("items", schema.get("additionalProperties")), dict):
        yield from _fields(below, f"{path}[]")


async def test_an_upgrade_in_the_middle_of_a_run_disturbs_neither_the_run_nor_a_fault(
    previous: Previous, bare_space: Space, tmp_path: Path
):
    """New definitions, a new operator; the run's pods are the old ones, its second trial's testbed is made by the new operator. Each
    trial has one injection, the stand-alone fault ends at its deadline, and the testbed is ready again with the new image."""
    await asyncio.to_thread(helm, bare_space, previous.chart, previous.tags)
    older, newer = definitions(previous.chart), definitions(CHART)
    assert stored(bare_space.cluster) == older
    assert older != newer, "nothing changed between the releases: name an older one"
    bare_space.apply(a_testbed())
    bare_space.condition("testbed/bench", "Ready", 120)
    followed = Followed(bare_space, tmp_path)

    async def upgrade(space: Space, api: Api, name: str) -> None:
        del api, name
        space.apply(a_fault("held", duration="40 s", **PAUSE))
        await asyncio.to_thread(phase, space, "held", "Active", 30.0)
        await asyncio.to_thread(helm, space, CHART, dict.fromkeys(IMAGES, "dev"))

    document = copy.deepcopy(SMALL)
    document["spec"]["trials"] = 2
    document["spec"]["timeline"]["observation"] = "15 s"
    result = await followed.run(document, (at("baseline"), upgrade))
    assert result.verdict["verdict"] == "Pass", followed.story(result)
    assert followed.trials == [("main-1", False), ("main-2", False)], followed.story(result)
    assert await injections(followed) == {"main-1": 1, "main-2": 1}
    assert stored(bare_space.cluster) == newer
    status = (await asyncio.to_thread(phase, bare_space, "held", "Complete", 90.0))["conditions"]
    assert {c["type"] for c in status if c["status"] == "True"} >= {"Complete", "NoResidue"}, status
    began = [e for e in bare_space.get("events")["items"] if e["reason"] == "Injected"]
    assert sum(e.get("count") or 1 for e in began if e["involvedObject"]["name"] == "held") == 1, began
    bare_space.condition("testbed/bench", "Ready", 120)
    await nothing_left(followed)
    after = await Followed(bare_space, tmp_path).run(SMALL)
    assert after.verdict["verdict"] == "Pass", "a run of the new release alone"


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
    installed.kubectl(*where, "rollout", "status", OPERATOR, "--timeout=60s")
    labels = ("-l", "app.kubernetes.io/component=operator")
    yield [p["metadata"]["name"] for p in installed.get(*where, "pods", *labels)["items"]]
    installed.kubectl(*where, "scale", OPERATOR, "--replicas=1")
    installed.kubectl(*where, "rollout", "status", OPERATOR, "--timeout=60s")


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
    assert result.verdict["verdict"] == "Pass", followed.story(result)
    assert await injections(followed) == {"main-1": 1}
    await asyncio.to_thread(phase, space, "held", "Complete", TAKEN_OVER_S)
    assert holder(space.cluster) in set(two) - {first}, "the waiting replica did not take over"
    began = [e for e in space.get("events")["items"] if e["reason"] == "Injected"]
    assert sum(e.get("count") or 1 for e in began if e["involvedObject"]["name"] == "held") == 1, began
