"""A TuningStudy in a real cluster: real runs by its pod, its table, the best row applied, the pod lost in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed_runtime.api import naming
from testbed_runtime.api.kinds import TuningStudySpec
from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.tuning.grid import planned_runs
from tests.kubernetes.cluster import ROOT
from tests.kubernetes.spaces import Space
from tests.tuning.small import LARGE_BACKOFF, SMALL_BACKOFF, small_scenario, small_study

pytestmark = pytest.mark.cluster
FIRST_LIMIT_S = 240.0
"""Limit until the first run is at work: study pod, recorder, runner and Spark start."""
STUDY_LIMIT_S = 400.0
"""Two runs one after the other, about 25 s each, on a machine that is shared."""
STUDY = "backoff"
POD = f"pod/{STUDY}-study"


def bed() -> dict[str, Any]:
    """The Testbed that wants the best row; one vertex, so that it costs two pods and the store."""
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "Testbed",
        "metadata": {"name": "prod"},
        "spec": {
            "taskManagers": {"replicas": 1},
            "flinkConfiguration": {"heartbeat.timeout": "20 s"},
            "job": {
                "vertices": [
                    {"name": "source", "parallelism": 1, "source": {"recordsPerSecond": 10}},
                    {"name": "sink", "parallelism": 1, "sink": "ledger"},
                ],
                "edges": [{"from": "source", "to": "sink"}],
            },
        },
    }


def tune(space: Space, study: dict[str, Any], folder: Path) -> subprocess.Popen[str]:
    """`headgate tune --on kubernetes`, following."""
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    command = [sys.executable, "-m", "testbed_runtime.cli.main", "tune", str(file)]
    return subprocess.Popen(
        [*command, "--on", "kubernetes", "--namespace", space.name],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": space.cluster.kubeconfig},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def made(space: Space) -> dict[str, str]:
    """Runs of the study: name → uid."""
    listed = space.get("scenarioruns", "-l", f"{naming.LABEL_STUDY}={STUDY}")["items"]
    return {run["metadata"]["name"]: run["metadata"]["uid"] for run in listed}


@pytest.mark.timeout(FIRST_LIMIT_S + STUDY_LIMIT_S + 60)
def test_a_study_whose_pod_is_lost_tells_its_table_and_applies_the_best_row(space: Space, tmp_path: Path):
    """Two real runs one after the other, which takes its time, each made once; the row whose backoff outlasts the late producer is the
    best, and a Testbed gets it."""
    study = small_study(STUDY, apply={"name": "prod"})
    first, second = (run.name for run in planned_runs(STUDY, TuningStudySpec.model_validate(study["spec"])))
    space.apply(small_scenario(), bed())
    with tune(space, study, tmp_path) as following:
        space.until(f"scenariorun/{first}", at_work, FIRST_LIMIT_S, "the first run is at work")
        before = made(space)
        space.kubectl("delete", POD, "--grace-period=0", "--force", "--wait=true")
        space.condition(f"tuningstudy/{STUDY}", "Complete", STUDY_LIMIT_S)
        said, _ = following.communicate(timeout=60)
    after = made(space)
    assert sorted(after) == sorted([first, second])
    assert after[first] == before[first], "a run was made again by the second pod"

    status = space.get("tuningstudy", STUDY)["status"]
    assert (status["progress"], status["podStarts"], status["applied"]) == ("2/2", 2, "prod"), status
    table = {row["options"]["taskmanager.network.request-backoff.max"]: row for row in status["table"]}
    assert (table[SMALL_BACKOFF]["verdict"], table[SMALL_BACKOFF].get("best", False)) == ("Fail", False), (
        status
    )
    assert (table[LARGE_BACKOFF]["verdict"], table[LARGE_BACKOFF]["best"]) == ("Pass", True), status
    assert float(table[LARGE_BACKOFF]["objectives"]["partition.retries (min)"]) >= 1, status
    applied = space.get("testbed", "prod")["spec"]["flinkConfiguration"]
    assert applied == {
        "heartbeat.timeout": "20 s",
        "taskmanager.network.request-backoff.max": LARGE_BACKOFF,
    }
    assert following.returncode == 0, said
    assert f"best: taskmanager.network.request-backoff.max={LARGE_BACKOFF}" in said


def at_work(run: dict[str, Any]) -> bool:
    return bool((run.get("status") or {}).get("phase") == "Running")


def test_a_study_that_makes_no_sense_is_refused_in_the_words_of_the_command_line(space: Space):
    """Accepted=False before any pod is made; once it is mended, it is accepted."""
    study = small_study(STUDY, suspend=True)
    study["spec"]["options"][0]["key"] = "taskmanager.network.request-backof.max"
    [error] = validate_kind(study).errors
    assert "did you mean taskmanager.network.request-backoff.max?" in str(error)
    space.apply(study)
    refused = space.condition(f"tuningstudy/{STUDY}", "Accepted", 20, status="False")
    assert refused["message"] == str(error)
    assert json.loads(space.kubectl("get", "pods", "-o", "json"))["items"] == []
    space.apply(small_study(STUDY, suspend=True))
    space.condition(f"tuningstudy/{STUDY}", "Accepted", 60)
