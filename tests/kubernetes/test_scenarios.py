"""Every shipped scenario as pods on a real Kubernetes, by `headgate run --on kubernetes`: the same documents, the same numbers asked.

One variant each and no control run, where the local run has them; `make soak` runs all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import ROOT, Cluster
from tests.kubernetes.spaces import PRIVILEGED, RESTRICTED, Space, fresh

RUN_LIMIT_S = 400
WHOLE_LIMIT_S = 1500
VARIANTS = {
    "01-latency-spike": (),
    "02-taskmanager-killed": ("downstream",),
    "03-taskmanager-paused": ("short-timeout",),
    "04-late-producer": ("old-small",),
    "05-slow-ask": ("busy-small",),
    "06-no-fault": (),
    "07-packet-loss": ("loss",),
    "10-network-buffers": ("fraction-02",),
}
"""Run on every change. Virtual time and `make soak` run the others."""
ONE_MACHINE = "19-tls"
"""Refused in pods, which have no certificate (tests/api/test_validate.py)."""
SHIPPED = sorted(
    p.parent.name for p in (ROOT / "scenarios").glob("[0-9]*/scenario.yaml") if p.parent.name != ONE_MACHINE
)
PACKETS = "07-packet-loss"
"""The one whose pods have the agent with NET_ADMIN."""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(RUN_LIMIT_S + 60)]


@pytest.fixture(scope="module")
def space(installed: Cluster) -> Iterator[Space]:
    """One namespace for all of them: its Spark pod stays warm."""
    with fresh(installed) as made:
        yield made


def run(space: Space, scenario: str, out: Path, *options: str, limit: float = RUN_LIMIT_S) -> Path:
    """Give the run's folder; the exit code has to be that of a Pass."""
    command = [sys.executable, "-m", "testbed_runtime.cli.main", "run", f"scenarios/{scenario}"]
    done = subprocess.run(
        [*command, "--on", "kubernetes", "--namespace", space.name, "--out", str(out), *options],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": space.cluster.kubeconfig},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return max(out.iterdir(), key=lambda folder: folder.stat().st_mtime)


def _params() -> list[object]:
    """The packet agents' requests take half of a node of two processors: that scenario runs when no other test needs pods."""
    return [pytest.param(s, marks=[pytest.mark.disruptive] if s == PACKETS else []) for s in sorted(VARIANTS)]


@pytest.mark.parametrize("scenario", _params())
def test_a_shipped_scenario_passes_in_pods(scenario: str, space: Space, tmp_path: Path):
    """The verdict is Pass, the report is on this machine, and nothing of the trials is left in the cluster."""
    space.admit(PRIVILEGED if scenario == PACKETS else RESTRICTED)
    variants = [word for name in VARIANTS[scenario] for word in ("--variant", name)]
    folder = run(space, scenario, tmp_path, "--no-control", "--inconclusive", "retry", *variants)
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "Pass"
    assert (folder / "report.html").stat().st_size > 10_000
    assert space.get("testbeds")["items"] == []
    space.kubectl(
        "delete", "scenariorun", "--all", "--wait=false"
    )  # its recorder would keep its share of the processors


@pytest.mark.soak
@pytest.mark.timeout(WHOLE_LIMIT_S + 60)
@pytest.mark.parametrize("scenario", SHIPPED)
def test_a_whole_scenario_passes_in_pods(scenario: str, installed, tmp_path: Path):
    """All variants with their control runs."""
    with fresh(installed, level=PRIVILEGED if scenario == PACKETS else RESTRICTED) as space:
        run(space, scenario, tmp_path, "--inconclusive", "retry", limit=WHOLE_LIMIT_S)
