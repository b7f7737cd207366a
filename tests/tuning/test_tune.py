"""`headgate tune` on this machine: real processes, from the study's file to its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.tuning.small import LARGE_BACKOFF, SMALL_BACKOFF, small_scenario, small_study

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 150.0
"""One or two runs of about 20 s, on a machine that may be busy."""
BOTH = [SMALL_BACKOFF, LARGE_BACKOFF]


@pytest.mark.scenario
@pytest.mark.parametrize("values", [[LARGE_BACKOFF], pytest.param(BOTH, marks=pytest.mark.soak)], ids=len)
def test_a_small_study_runs_to_its_table_and_names_the_best_row(tmp_path: Path, values: list[str]):
    """Real runs: the larger budget of retries is the best, the smaller one fails the job; exit code 0."""
    folder = tmp_path / "scenarios" / "late-producer"
    folder.mkdir(parents=True)
    (folder / "scenario.yaml").write_text(yaml.safe_dump(small_scenario()))
    study = small_study("backoff")
    study["spec"]["options"][0]["values"] = values
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    options = ["--scenarios", str(folder.parent), "--out", str(tmp_path / "runs"), "--quiet", "--real"]
    command = [sys.executable, "-m", "tests.warm_spark", "tune", str(file), *options]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"best: taskmanager.network.request-backoff.max={LARGE_BACKOFF}" in done.stdout
    table = (tmp_path / "runs" / "backoff.study.md").read_text()
    assert table in done.stdout
    assert f"| **{LARGE_BACKOFF}** | **Pass** |" in table
    assert table.count("| Fail |") == len(values) - 1
