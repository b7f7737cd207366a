"""`headgate tune` on this machine: real processes, from the study's file to its table."""

from __future__ import annotations

import json
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


def prepared(tmp_path: Path) -> Path:
    """Write a study folder with its scenario beside the study, as a single file."""
    folder = tmp_path / "backoff"
    folder.mkdir()
    (folder / "late.yaml").write_text(yaml.safe_dump(small_scenario()))
    (folder / "study.yaml").write_text(yaml.safe_dump(small_study("backoff")))
    return folder


def test_a_study_is_searched_in_virtual_time(tmp_path: Path):
    """The folder is enough to name it. Rows, references, costs and the fault that broke a row are in the table and in the JSON file;
    two processes share the work, and no history stays."""
    out = tmp_path / "runs"
    options = ["tune", str(prepared(tmp_path)), "--out", str(out), "--jobs", "2"]
    found = subprocess.run(
        [sys.executable, "-m", "testbed_runtime.cli.main", *options],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"| **{LARGE_BACKOFF}** | **Pass** |" in found.stdout
    assert f"- best: taskmanager.network.request-backoff.max={LARGE_BACKOFF}" in found.stdout
    assert "| Flink's defaults, front |" in found.stdout
    assert (
        "request-backoff.max=400 ms: Fail: late-producer (fault late): job.state equals RUNNING"
        in found.stdout
    )
    data = json.loads((out / "backoff.study.json").read_text())
    assert [row["verdict"] for row in data["rows"]] == ["Fail", "Pass", "Pass"]
    assert [row["reference"] for row in data["rows"]] == ["", "", "Default"]
    assert len(list(out.glob("backoff.study/*/verdict.json"))) == 3
    assert not list(out.glob("backoff.study/*/history"))


@pytest.mark.scenario
def test_the_best_row_is_confirmed_in_real_runs(tmp_path: Path):
    """The search is virtual; then one real run, whose values are beside the virtual ones."""
    options = ["--out", str(tmp_path / "runs"), "--quiet", "--jobs", "1", "--confirm", "1"]
    command = [sys.executable, "-m", "tests.warm_spark", "tune", str(prepared(tmp_path)), *options]
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
    confirmed = f"- confirmed in real runs: taskmanager.network.request-backoff.max={LARGE_BACKOFF}: Pass"
    assert confirmed in done.stdout
    assert "(virtual time: " in done.stdout
