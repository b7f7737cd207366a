"""Runs one after the other for hours: what they leave in the cluster, and what they cost the operator."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pytest

from testbed_runtime.api import naming
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.spaces import OPERATOR_NAMESPACE, Space
from tests.kubernetes.test_runs import SMALL, Followed, nothing_left

LOG = logging.getLogger(__name__)
HOURS_S = float(os.environ.get("HEADGATE_LOOP_S", "7200"))
"""How long runs are started. Shorter for a try."""
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.disruptive,
    pytest.mark.soak,
    pytest.mark.timeout(int(HOURS_S) + 2400),
]

KINDS = "pods,configmaps,secrets,services,serviceaccounts,roles,rolebindings,leases,jobs,persistentvolumeclaims,headgate"
WARM_RUNS = 5
"""After these, the operator has imported and cached what it needs."""
MIN_RUNS = WARM_RUNS + 12
"""Runs even if the time is shorter: three in each quarter, so that no single sample decides."""
GROWTH_MAX_BYTES = 3 * 1024 * 1024
"""Between the first and the last quarter of the runs after the warm ones: medians, since a sample depends on the moment. An open
connection to the API server has 256 KiB, and benchmarks/operator-memory.md has 0.6 MB."""
GONE_S = 700.0
"""Spark's pod is kept for a while after the last run, because a warm one is faster."""


@dataclass(slots=True)
class Footprint:
    """The operator's memory in bytes and its open files, after each run."""

    pods: set[str] = field(default_factory=set)
    memory: list[float] = field(default_factory=list)
    files: list[float] = field(default_factory=list)

    def take(self, cluster: Cluster) -> None:
        where = ("-n", OPERATOR_NAMESPACE)
        [pod] = cluster.get(*where, "pods", "-l", "app.kubernetes.io/component=operator")["items"]
        [status] = pod["status"]["containerStatuses"]
        self.pods.add(f"{pod['metadata']['name']} {status['restartCount']}")
        text = cluster.kubectl(
            "get",
            "--raw",
            f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod['metadata']['name']}:{naming.HEALTH_PORT}/proxy/metrics",
        )
        self.memory.append(_metric(text, "process_resident_memory_bytes"))
        self.files.append(_metric(text, "process_open_fds"))


def _metric(text: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found, f"no {name} in {text}"
    return float(found[1])


def growth(samples: list[float]) -> float:
    """Return the median of the last quarter minus the one of the first."""
    quarter = max(1, len(samples) // 4)
    return median(samples[-quarter:]) - median(samples[:quarter])


def objects(space: Space) -> set[str]:
    return set(space.kubectl("get", KINDS, "-o", "name").split())


async def settled(space: Space) -> set[str]:
    """Return the objects of the namespace when no pod is left: what the operator keeps for the next run."""
    async with asyncio.timeout(GONE_S):
        while any(name.startswith("pod/") for name in objects(space)):
            await asyncio.sleep(5)
    return objects(space)


async def run_and_delete(space: Space, out: Path) -> str:
    """Return the verdict. On a busy machine it may be Inconclusive, which is no concern of this test."""
    followed = Followed(space, out)
    result = await followed.run(SMALL)
    assert result.verdict.verdict in ("Pass", "Inconclusive"), followed.story(result)
    await nothing_left(followed)
    which = ("delete", "scenariorun", followed.name, "--wait=true", "--timeout=90s")
    await asyncio.to_thread(space.kubectl, *which)
    return str(result.verdict.verdict)


async def test_runs_in_a_loop_leave_nothing_behind_and_do_not_make_the_operator_grow(
    space: Space, tmp_path: Path
):
    """Each run is deleted after its verdict. At the end there are the objects of the first run's end, and one operator that never restarted."""
    footprint = Footprint()
    verdicts = [await run_and_delete(space, tmp_path / "first")]
    before = await settled(space)
    ends = time.monotonic() + HOURS_S
    while time.monotonic() < ends or len(footprint.memory) < MIN_RUNS:
        verdicts.append(await run_and_delete(space, tmp_path / str(len(footprint.memory))))
        footprint.take(space.cluster)
        LOG.info(
            "run %d: %.1f MB, %.0f files",
            len(footprint.memory),
            footprint.memory[-1] / 1e6,
            footprint.files[-1],
        )
    assert len(footprint.pods) == 1, footprint.pods
    warm = footprint.memory[WARM_RUNS:]
    assert growth(warm) < GROWTH_MAX_BYTES, [round(m / 1e6, 1) for m in footprint.memory]
    assert growth(footprint.files[WARM_RUNS:]) <= 1, footprint.files
    assert verdicts.count("Pass") > len(verdicts) / 2, verdicts
    assert await settled(space) <= before
