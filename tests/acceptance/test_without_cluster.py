"""Complaints of users of other chaos tools that can be checked without a cluster. Each test has the complaint's number.

The others of A1–A16 are tests of the same name in tests/kubernetes and tests/faults."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from testbed_runtime.cli import commands, running
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.judgement.verdict import Verdict
from testbed_runtime.faults.registry import LOCAL, choose_backend
from tests.core.test_verdict import CONTROL, TRIAL, control_row, good_rows, judged
from tests.simulation.simulating import run_document

KILLED = Path(__file__).resolve().parents[2] / "scenarios" / "02-taskmanager-killed" / "scenario.yaml"


def killed_consumer(name: str = "killed", **expect: Any) -> dict[str, Any]:
    """The variant `downstream` of 02 with one expectation more."""
    document = yaml.safe_load(KILLED.read_text())
    document["metadata"]["name"] = name
    variant = document["spec"]["variants"][0]
    if expect:
        variant["expect"].append(expect)
    document["spec"]["variants"] = [variant]
    return document


def test_A7_without_privilege_a_fault_runs_on_a_weaker_backend_and_says_why():
    """No sch_netem, no NET_ADMIN, no runtime socket: the proxy carries a latency and names what was not there."""
    backend, why = choose_backend(KINDS["network.latency"], LOCAL)
    assert backend == "proxy"
    assert "netem" in why
    assert "nfqueue" in why


@pytest.mark.parametrize(
    "value", [None, float("nan"), float("inf"), float("-inf")], ids=["empty", "NaN", "inf", "-inf"]
)
def test_A8_a_measurement_that_says_nothing_is_never_a_pass(value: float | None):
    """An empty, NaN or infinite effect or recovery is Inconclusive, with a reason."""
    for metric in ("fault_verified", "recovery_detect"):
        found = judged(good_rows(**{metric: value}))
        assert found.verdict is Verdict.INCONCLUSIVE, metric
        assert found.reason, metric


@pytest.mark.timeout(120)
def test_A9_a_first_scenario_that_fails_is_not_forgiven_by_a_last_one_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Exit code 1 for both together; JUnit has both. The runs are simulated, the rest of `headgate ci` is real."""
    monkeypatch.setattr(
        running,
        "run_loaded",
        lambda loaded, _, settings: running.simulate_loaded(loaded, out=settings.out, quiet=settings.quiet),
    )
    for name, document in (
        ("1-fails", killed_consumer("fails", metric="recovery.detect", max="1 ms")),
        ("2-passes", killed_consumer("passes")),
    ):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "scenario.yaml").write_text(yaml.safe_dump(document))
    said = CliRunner().invoke(
        commands.build(), ["ci", str(tmp_path / "all"), "--out", str(tmp_path / "runs"), "--quiet"]
    )
    assert said.exit_code == 1, said.output
    suites = ET.parse(tmp_path / "runs" / "junit.xml").getroot()
    names = {suite.get("name", "") for suite in suites.iter("testsuite")}
    assert any("fails" in name for name in names), names
    assert any("passes" in name for name in names), names


@pytest.mark.timeout(60)
def test_A10_a_threshold_that_was_breached_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A Fail is an answer: `--inconclusive retry` runs nothing a second time."""
    (tmp_path / "scenario.yaml").write_text(
        yaml.safe_dump(killed_consumer("fails", metric="recovery.detect", max="1 ms"))
    )
    runs = []

    def once(loaded: Any, _: Any, settings: running.RunSettings) -> Any:
        runs.append(loaded.path)
        return running.simulate_loaded(loaded, out=settings.out, quiet=settings.quiet)

    monkeypatch.setattr(running, "_on_this_machine", once)
    said = CliRunner().invoke(
        commands.build(),
        ["run", str(tmp_path), "--inconclusive", "retry", "--quiet", "--out", str(tmp_path / "runs")],
    )
    assert (said.exit_code, len(runs)) == (1, 1), said.output


def test_A11_a_recovery_longer_than_asked_fails_even_when_it_came(tmp_path: Path):
    """The job recovers and delivers everything: still Fail, and only for that."""
    result, _ = run_document(
        killed_consumer(metric="recovery.detect", max="500 ms"), tmp_path, variants=["downstream"]
    )
    verdict = json.loads((result.folder / "verdict.json").read_text())
    broken = [e["text"] for e in verdict["expectations"] if e["verdict"] == "Fail"]
    assert verdict["verdict"] == "Fail"
    assert len(broken) == 1
    assert "recovery.detect" in broken[0]
    assert all(e["verdict"] == "Pass" for e in verdict["expectations"] if "delivery" in e["text"])


def test_A12_an_unstable_control_run_gives_no_verdict_on_the_fault():
    """Whatever the trial looked like, it may be the machine: Inconclusive, with the reason."""
    found = judged([*good_rows(recovery_detect=9.0), control_row(0)], trials=(CONTROL, TRIAL))
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, m.CONTROL_UNSTABLE)
