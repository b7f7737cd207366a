"""`headgate tune` on this machine: real processes, from the study's file to its table."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from testbed_runtime.api.validate import InvalidScenario
from testbed_runtime.cli.study_runs import StudyRuns, Task, simulate_all
from testbed_runtime.cli.tune import find_scenarios, load_study, scenario_folders
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.verdict import RunVerdict, Verdict
from testbed_runtime.runner.engine import RunRequest
from testbed_runtime.simulation import entry
from tests.tuning.small import LARGE_BACKOFF, SMALL_BACKOFF, small_scenario, small_study

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 150.0
"""One or two runs of about 20 s, on a machine that may be busy."""
BOTH = [SMALL_BACKOFF, LARGE_BACKOFF]


def tune(module: str, *arguments: str, cwd: Path) -> str:
    """Run `headgate tune` with these arguments through a module, and return what it printed. It must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", module, "tune", *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    output = tune("tests.warm_spark", str(file), *options, cwd=ROOT)
    assert f"best: taskmanager.network.request-backoff.max={LARGE_BACKOFF}" in output
    table = (tmp_path / "runs" / "backoff.study.md").read_text()
    assert table.partition("\n\n")[2].strip() in output
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
    options = ["--out", str(out), "--jobs", "2"]
    output = tune("testbed_runtime.cli.main", str(prepared(tmp_path)), *options, cwd=tmp_path)
    assert f"| **{LARGE_BACKOFF}** | **Pass** |" in (out / "backoff.study.md").read_text()
    rows = [line.split() for line in output.splitlines()]
    assert [*LARGE_BACKOFF.split(), "Pass"] in [row[: len(LARGE_BACKOFF.split()) + 1] for row in rows]
    assert f"- best: taskmanager.network.request-backoff.max={LARGE_BACKOFF}" in output
    assert any(line.endswith("Flink's defaults, front") for line in output.splitlines())
    assert (
        "request-backoff.max=400 ms: Fail: late-producer (fault `late`): job.state equals RUNNING" in output
    )
    data = json.loads((out / "backoff.study.json").read_text())
    assert [row["verdict"] for row in data["rows"]] == ["Fail", "Pass", "Pass"]
    assert [row["reference"] for row in data["rows"]] == ["", "", "Default"]
    assert len(list(out.glob("backoff.study/*/verdict.json"))) == 3
    assert not list(out.glob("backoff.study/*/history"))


def with_heartbeats(folder: Path, timeouts: list[str]) -> Path:
    """Let a prepared study try timeouts beside the scenario's interval of 5 s, which is below Flink's default of 10 s."""
    scenario = yaml.safe_load((folder / "late.yaml").read_text())
    scenario["spec"]["testbed"]["flinkConfiguration"]["heartbeat.interval"] = "5 s"
    (folder / "late.yaml").write_text(yaml.safe_dump(scenario))
    options = [
        {"key": "taskmanager.network.request-backoff.max", "values": [LARGE_BACKOFF]},
        {"key": "heartbeat.timeout", "values": timeouts},
        {"key": "restart-strategy.failure-rate.delay", "values": ["2 s"]},
    ]
    study = small_study("backoff", options=options, budget={"runs": len(timeouts)})
    study["spec"]["objectives"].append({"metric": "detector.false-failovers"})
    study["spec"]["surroundings"] = {"pauses": {"perDay": "24", "median": "300 ms", "p99": "8 s"}}
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    return folder


def test_a_row_that_flink_refuses_is_an_error_in_the_table_and_the_others_run(tmp_path: Path):
    """A timeout below the interval: the reason names the option. A studied option without an effect is a warning."""
    folder = with_heartbeats(prepared(tmp_path), ["1 s", "20 s"])
    done = subprocess.run(
        [sys.executable, "-m", "testbed_runtime.cli.main", "tune", str(folder), "--jobs", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "heartbeat.timeout=1 s: Error: late-producer (fault `late`): " in done.stdout
    assert "[heartbeat.timeout]: Flink does not start: The heartbeat timeout should be larger" in done.stdout
    assert "best: Flink's defaults" in done.stdout
    assert " in virtual time, up to 1 at a time\n1/" in done.stderr
    assert "[restart-strategy.failure-rate.delay]: has no effect, in Flink too" in done.stderr


def test_a_study_without_any_row_that_can_run_is_refused(tmp_path: Path):
    """The references alone answer nothing: exit code 2, with the option and the fix."""
    folder = with_heartbeats(prepared(tmp_path), ["1 s", "2 s"])
    study, _ = load_study(folder)
    with pytest.raises(InvalidScenario, match=r"make it a few times heartbeat.interval"):
        StudyRuns(
            study=study,
            scenarios=find_scenarios(study, scenario_folders(folder)),
            out=tmp_path,
            jobs=1,
            quiet=True,
        ).search({})


@pytest.mark.scenario
def test_the_best_row_is_confirmed_in_real_runs(tmp_path: Path):
    """The search is virtual; then one real run, whose values are beside the virtual ones."""
    options = ["--out", str(tmp_path / "runs"), "--quiet", "--jobs", "1", "--confirm", "1"]
    output = tune("tests.warm_spark", str(prepared(tmp_path)), *options, cwd=ROOT)
    confirmed = f"- confirmed in real runs: taskmanager.network.request-backoff.max={LARGE_BACKOFF}: Pass"
    assert confirmed in output
    assert "(virtual time: " in output


@pytest.mark.parametrize(
    ("error", "raised"), [(HeadgateError("no such host"), False), (KeyError("bug"), True)]
)
def test_a_run_that_cannot_be_carried_out_is_a_row_and_a_bug_ends_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: bool
):
    """A bug must not look like the result of an option's value. The history is deleted in both cases."""

    def fails(request: RunRequest, progress: object) -> None:
        (request.folder / "history").mkdir()
        raise error

    monkeypatch.setattr(entry, "simulate", fails)
    task = Task(
        number=3, document=small_scenario(), scenario_folder=tmp_path, folder=tmp_path / "run", variants=()
    )
    with pytest.raises(KeyError) if raised else nullcontext():
        (done,) = simulate_all([task], jobs=1, on_done=lambda done: None)
        assert (done.number, done.verdict) == (3, RunVerdict(verdict=Verdict.ERROR, summary="no such host"))
    assert not (task.folder / "history").exists()
