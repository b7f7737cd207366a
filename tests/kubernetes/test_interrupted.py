"""Ctrl-C on `headgate run --on kubernetes`: the run in the cluster stops, and the user sees its result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed_runtime.cli import exits
from testbed_runtime.cli.running import STOPPED
from tests.kubernetes.cluster import ROOT
from tests.kubernetes.rendering import CHART
from tests.kubernetes.spaces import Space

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
ENDED_LIMIT_S = 180
COMMAND_LIMIT_S = 180


def test_an_interrupted_run_is_healed_and_its_end_is_reported(space: Space, tmp_path: Path) -> None:
    """Exit code 130, the words of this place, and the ScenarioRun ends Inconclusive with the reason Healed."""
    command = [sys.executable, "-m", "testbed_runtime.cli.main", "run", str(CHART / "files" / "mini.yaml")]
    process = subprocess.Popen(
        [*command, "--on", "kubernetes", "--namespace", space.name, "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": space.cluster.kubeconfig},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process, process.stderr:
        # what begins with `run ` is printed when the ScenarioRun was created
        said = next((line for line in iter(process.stderr.readline, "") if line.startswith("run ")), "")
        process.send_signal(signal.SIGINT)
        said += process.stderr.read()
        process.wait(COMMAND_LIMIT_S)
    assert process.returncode == exits.INTERRUPTED, said
    assert STOPPED in said
    [name] = space.kubectl("get", "scenarioruns", "-o", "name").split()
    space.condition(name, "Complete", ENDED_LIMIT_S)
    status = space.get(name)["status"]
    assert (status["verdict"], status["reason"]) == ("Inconclusive", "Healed")
