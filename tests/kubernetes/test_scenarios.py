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
from tests.kubernetes.spaces import PRIVILEGED, RESTRICTED, Space, fresh, give_back

RUN_LIMIT_S = 400
WHOLE_LIMIT_S = 1500
VARIANTS = {
    "01-latency-spike": (),
    "02-taskmanager-killed": ("downstream",),
    "03-taskmanager-paused": ("short-timeout",),
    "04-late-producer": ("old-small",),
    "05-slow-ask": ("busy-small",),
    "10-network-buffers": ("fraction-02",),
    "19-tls": ("tls",),
}
"""Run on every change. Virtual time and `make soak` run the others: 19 expects what 06 does, and test_packets measures the loss of 07."""
SHIPPED = sorted(p.parent.name for p in (ROOT / "scenarios").glob("[0-9]*/scenario.yaml"))
PACKETS = "07-packet-loss"
"""The one whose pods have the agent with NET_ADMIN."""
pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def space(installed: Cluster) -> Iterator[Space]:
    """One namespace for all of them: its Spark pod stays warm."""
    with fresh(installed) as made:
        yield made


def run(space: Space, scenario: str, out: Path, *options: str, limit: float = RUN_LIMIT_S) -> Path:
    """Give the folder of the run, or of its repetition. The exit code has to be that of a Pass."""
    command = [sys.executable, "-m", "testbed_runtime.cli.main", "run", str(ROOT / "scenarios" / scenario)]
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
    return max(out.glob("[!.]*"), key=lambda folder: folder.stat().st_mtime)


@pytest.mark.parametrize("scenario", VARIANTS)
def test_a_shipped_scenario_passes_in_pods(scenario: str, space: Space, tmp_path: Path):
    """The verdict is Pass, the report is on this machine, and nothing of the trials is left in the cluster."""
    variants = [word for name in VARIANTS[scenario] for word in ("--variant", name)]
    folder = run(space, scenario, tmp_path, "--no-control", "--inconclusive", "retry", *variants)
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "Pass"
    assert (folder / "report.html").stat().st_size > 10_000
    assert space.get("testbeds")["items"] == []
    give_back(space)


@pytest.mark.soak
@pytest.mark.timeout(WHOLE_LIMIT_S + 600)
@pytest.mark.parametrize("scenario", SHIPPED)
def test_a_whole_scenario_passes_in_pods(scenario: str, installed, tmp_path: Path):
    """All variants with their control runs."""
    with fresh(installed, level=PRIVILEGED if scenario == PACKETS else RESTRICTED) as space:
        run(space, scenario, tmp_path, "--inconclusive", "retry", limit=WHOLE_LIMIT_S)


@pytest.mark.soak
def test_a_run_in_pods_goes_on_from_a_checkpoint_that_this_machine_has_kept(space: Space, tmp_path: Path):
    """No record is lost, and none comes twice, whatever the verdict of the first run was. The ConfigMaps with the checkpoint go
    with the run."""
    here = [sys.executable, "-m", "testbed_runtime.cli.main", "run", "--out", str(tmp_path / "here")]
    first = [*here, "scenarios/18-incremental-state", "--variant", "incremental", "--quiet"]
    subprocess.run(first, cwd=ROOT, stdin=subprocess.DEVNULL, check=False, timeout=RUN_LIMIT_S)
    (kept,) = (tmp_path / "here").glob("*/files/incremental-1")
    where = ("--variant", "rescaled", "--from-checkpoint", str(kept))
    folder = run(space, "examples/restored.yaml", tmp_path / "pods", *where)
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "Pass"
    name = folder.name
    options = space.get("scenariorun", name)["spec"]["scenario"]["testbed"]["flinkConfiguration"]
    assert options["execution.state-recovery.path"] == f"configmap://{name}-checkpoint-0"
    space.kubectl("delete", "scenariorun", name, "--wait=false")
    space.gone(f"configmap/{name}-checkpoint-0", RUN_LIMIT_S)


def test_a_python_function_runs_in_pods(space: Space, tmp_path: Path):
    """The command brings its file. The job goes on after the TaskManager of the function was killed, and the file is deleted with the run."""
    folder = run(space, "examples/python-function.yaml", tmp_path, "--inconclusive", "retry")
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "Pass"
    config_map = f"configmap/{folder.name}-functions"
    assert "def bucket(" in space.kubectl("get", config_map, "-o", "yaml")
    space.kubectl("delete", "scenariorun", folder.name, "--wait=false")
    space.gone(config_map, RUN_LIMIT_S)


@pytest.mark.soak
@pytest.mark.parametrize("example", ["bulk-iteration", "delta-iteration"])
def test_an_iteration_passes_in_pods(example: str, space: Space, tmp_path: Path):
    """Supersteps between pods, of which one is killed: the iteration starts again from its sources, and each record arrives once."""
    folder = run(space, f"examples/{example}.yaml", tmp_path, "--inconclusive", "retry")
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "Pass"
