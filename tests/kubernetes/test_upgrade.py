"""An upgrade from the images and the chart of an earlier commit, while a run is under way and a stand-alone Fault is active."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed_runtime.kube.api import Api
from tests.kubernetes.cluster import ROOT, Cluster
from tests.kubernetes.rendering import CHART
from tests.kubernetes.spaces import Space
from tests.kubernetes.test_faults import PAUSE, a_fault, a_testbed, phase
from tests.kubernetes.test_install import HELM_LIMIT, RELEASE, alone, helm
from tests.kubernetes.test_runs import SMALL, Followed, at, injections

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive, pytest.mark.soak, pytest.mark.timeout(3600)]

IN_AN_IMAGE = ("testbed_runtime", "operator", "pyproject.toml", "tools/images/lay_out.py")
BUILD_LIMIT_S = 1800
IMAGE = re.compile(r"\b(headgate(?:-agent|-spark)?):([0-9a-f]{12})\b")
VALUES = {"headgate": "image", "headgate-agent": "agentImage", "headgate-spark": "sparkImage"}

__all__ = ["alone"]


def git(*arguments: str, cwd: Path = ROOT) -> str:
    return subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=True).stdout


def earlier_commit() -> str:
    """Return the previous release, as it is given, or the commit before the last one that changed an image."""
    changed = git("log", "-1", "--format=%H", "--", *IN_AN_IMAGE).strip()
    return os.environ.get("HEADGATE_UPGRADE_FROM") or f"{changed}~1"


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout of the earlier commit."""
    folder = tmp_path_factory.mktemp("earlier") / "headgate"
    try:
        commit = earlier_commit()
        git("worktree", "add", "--detach", str(folder), commit)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the earlier commit cannot be checked out: {getattr(error, 'stderr', error)}")
    yield folder
    git("worktree", "remove", "--force", str(folder))


def loaded(checkout: Path) -> list[str]:
    """Build and load the images of a checkout; return the values of the chart that select them by content."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "tools.images", "build", "--load"],
        cwd=checkout, env=environment, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    tags = dict(IMAGE.findall(done.stdout))
    assert set(tags) == set(VALUES), done.stdout
    return [part for name, tag in tags.items() for part in ("--set-string", f"{VALUES[name]}.tag={tag}")]


def installed_from(cluster: Cluster, space: Space, chart: Path, images: list[str]) -> None:
    where = ("--set", f"watchNamespaces={{{space.name}}}", "--set", "crds.install=false")
    command = ("upgrade", "--install", RELEASE, str(chart), *where, *images)
    helm(cluster, space.name, *command, "--wait", "--timeout", HELM_LIMIT)


async def test_an_upgrade_lets_a_run_and_a_fault_end_as_they_would_have(
    earlier: Path, bare_space: Space, alone: Cluster, tmp_path: Path
):
    """One trial, one injection, Pass; the Fault ends at its deadline in the same pods; a run after the upgrade passes, too.

    Each run is evaluated by Spark of its own version. A changed Testbed is replaced, whose pods would not all understand each other."""
    before, after = loaded(earlier), loaded(ROOT)
    assert before != after, (
        f"{earlier_commit()} has the same images: set HEADGATE_UPGRADE_FROM to an earlier commit"
    )
    installed_from(alone, bare_space, earlier / "helm" / "headgate", before)
    bare_space.apply(a_testbed())
    bare_space.condition("testbed/bench", "Ready", 300)

    async def upgrade(space: Space, api: Api, name: str) -> None:
        del api, name
        space.apply(a_fault("held", duration="90 s", **PAUSE))
        await asyncio.to_thread(phase, space, "held", "Active", 60.0)
        await asyncio.to_thread(installed_from, alone, space, CHART, after)
        found = await asyncio.to_thread(space.get, "fault", "held")
        assert found["status"]["phase"] == "Active", "the upgrade outlasted the Fault"

    document = copy.deepcopy(SMALL)
    document["spec"]["faults"][0]["duration"] = "15 s"
    document["spec"]["timeline"] |= {"baseline": "8 s", "observation": "30 s"}
    followed = Followed(bare_space, tmp_path)
    pods = _pods(bare_space)
    result = await followed.run(document, (at("baseline"), upgrade))
    assert result.verdict.verdict == "Pass", followed.story(result)
    assert followed.trials == [("main-1", False)]
    assert await injections(followed) == {"main-1": 1}
    await asyncio.to_thread(phase, bare_space, "held", "Complete", 120.0)
    bare_space.condition("fault/held", "EffectVerified", 10)
    assert _pods(bare_space) == pods, "the upgrade replaced pods of a Testbed"
    again = Followed(bare_space, tmp_path)
    result = await again.run(SMALL)
    assert result.verdict.verdict == "Pass", again.story(result)
    assert _tag(bare_space, "headgate-spark") == _given(after, "sparkImage")
    changed = {"spec": {"flinkConfiguration": {"heartbeat.timeout": "61 s"}}}
    bare_space.kubectl("patch", "testbed", "bench", "--type=merge", "-p", json.dumps(changed))
    bare_space.condition("testbed/bench", "Ready", 300)
    rolled = [name for name in pods if not name.endswith(("-store", "-proxy"))]
    assert {_tag(bare_space, name) for name in rolled} == {_given(after, "image")}
    helm(alone, bare_space.name, "uninstall", RELEASE, "--wait", "--timeout", HELM_LIMIT)


def _pods(space: Space) -> dict[str, str]:
    """The stand-alone Testbed's pods, by name and uid."""
    found = space.get("pods", "-l", "headgate.dev/testbed=bench")["items"]
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def _tag(space: Space, pod: str) -> str:
    image: str = space.get("pod", pod)["spec"]["containers"][0]["image"]
    return image.rpartition(":")[2]


def _given(values: list[str], image: str) -> str:
    [tag] = [value.removeprefix(f"{image}.tag=") for value in values if value.startswith(f"{image}.tag=")]
    return tag
