"""Every shipped scenario on this machine: real processes, real sockets, real faults, real Spark, and the numbers it promises.

A scenario runs once; the tests below read what it left. An Inconclusive run (a machine too busy to keep its baseline) is repeated
once, as `--inconclusive retry` does for a user.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.local.helpers import no_packets

PACKETS = "07-packet-loss"
ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted(p.parent.name for p in (ROOT / "scenarios").glob("0*/scenario.yaml"))
RUN_LIMIT_S = 420

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(RUN_LIMIT_S + 60)]


@dataclass(frozen=True)
class Finished:
    """A run that ended: exit code, what it printed, and its folder's documents."""

    code: int
    output: str
    folder: Path

    def document(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def value(self, trial: str, metric: str, phase: str = "") -> float:
        rows = [
            r
            for r in self.document("metrics.json")
            if r["trial"] == trial and r["metric"] == metric and r["phase"] == phase and r["quantile"] is None
        ]
        assert len(rows) == 1, f"{metric} of {trial}: {rows}"
        return rows[0]["value"]

    def text(self, trial: str, metric: str) -> str:
        return next(
            r["text"] for r in self.document("metrics.json") if r["trial"] == trial and r["metric"] == metric
        )


_RUNS: dict[str, Finished] = {}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for all runs of this module."""
    yield tmp_path_factory.mktemp("runs")
    _RUNS.clear()


def run(name: str, out: Path) -> Finished:
    """The scenario's run, made on the first call."""
    if name not in _RUNS:
        command = [sys.executable, "-m", "testbed_runtime.cli.main", "run", f"scenarios/{name}"]
        done = subprocess.run(
            [*command, "--inconclusive", "retry", "--out", str(out / name)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_S,
            check=False,
        )
        folders = (
            sorted((out / name).iterdir(), key=lambda p: p.stat().st_mtime) if (out / name).exists() else []
        )
        assert folders, done.stdout + done.stderr
        _RUNS[name] = Finished(done.returncode, done.stdout + done.stderr, folders[-1])
    return _RUNS[name]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_scenario_holds_and_leaves_everything_a_reader_wants(name: str, out: Path):
    """Exit code 0, a verdict, metrics, JUnit, Markdown, and a report without a reference to the network."""
    if name == PACKETS and (why := no_packets()):
        pytest.skip(why)
    finished = run(name, out)
    assert finished.code == 0, finished.output
    assert finished.document("verdict.json")["verdict"] == "Pass"
    for file in ("manifest.json", "metrics.json", "junit.xml", "report.md", "scenario.yaml"):
        assert (finished.folder / file).stat().st_size > 0
    page = (finished.folder / "report.html").read_text()
    assert 'src="http' not in page
    assert 'href="http' not in page


def test_a_dead_consumer_is_found_by_missing_heartbeats(out: Path):
    """Within (threshold - 1) … threshold heartbeat intervals + 0.25 s; nothing lost or doubled; at most 2 attempts."""
    finished = run("02-taskmanager-killed", out)
    assert 1.0 <= finished.value("downstream-1", "recovery.detect") <= 2.25
    for trial in ("downstream-1", "upstream-1"):
        assert finished.value(trial, "delivery.lost") == 0
        assert finished.value(trial, "delivery.duplicated") == 0
        assert 1 <= finished.value(trial, "restarts.attempts") <= 2


def test_a_dead_producer_is_found_by_its_closed_connection(out: Path):
    """The consumer sees the end of the TCP connection within 100 ms."""
    finished = run("02-taskmanager-killed", out)
    assert finished.value("upstream-1", "recovery.detect") <= 0.1


def test_a_pause_is_found_by_silence_and_its_zombie_commits_nothing(out: Path):
    """In (timeout - interval, timeout + 0.5 s], in one of Flink's two wordings; delivery stays exact."""
    finished = run("03-taskmanager-paused", out)
    assert 4.0 < finished.value("short-timeout-1", "recovery.detect") <= 5.5
    assert finished.text("short-timeout-1", "detection.text").endswith("timed out.")
    assert "eartbeat of TaskManager with id tm-" in finished.text("short-timeout-1", "detection.text")
    assert finished.value("short-timeout-1", "delivery.duplicated") == 0
    assert finished.value("long-timeout-1", "failovers.count") == 0


@pytest.mark.parametrize("generation", ["old", "new"])
def test_a_late_producer_is_waited_for_within_the_budget_and_fails_the_job_beyond_it(
    generation: str, out: Path
):
    """PartitionNotFoundException under the small budget, RUNNING under the large one."""
    finished = run("04-late-producer", out)
    assert finished.text(f"{generation}-small-1", "job.failure") == "PartitionNotFoundException"
    assert finished.text(f"{generation}-large-1", "job.state") == "RUNNING"
