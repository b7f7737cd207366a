"""A shipped scenario on this machine: real processes, real sockets, real faults, real Spark, and the numbers it promises.

Each scenario has a file named after it, and runs once for all tests of that file. An Inconclusive run (the machine was too busy for
a stable baseline) is repeated once, as `--inconclusive retry` does for a user.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN_LIMIT_S = 420
MARKS = [pytest.mark.scenario, pytest.mark.timeout(RUN_LIMIT_S + 60)]

SHORT: dict[str, tuple[str, ...]] = {
    "01-latency-spike": (),
    "02-taskmanager-killed": ("--no-control",),
    "04-late-producer": ("--variant", "old-small"),
    "06-no-fault": (),
    "08-jobmanager-paused": ("--variant", "leadership-lost"),
    "10-network-buffers": (),
    "13-unaligned-checkpoints": ("--variant", "unaligned"),
    "07-packet-loss": ("--variant", "loss", "--no-control"),
}
"""How `make test` runs a scenario: without what another one tests too. The others, and all of these, run in `make soak`; every
variant that needs no packets also runs in virtual time (tests/simulation/test_scenarios.py)."""

WITH_OWN_SPARK = ("06-no-fault",)
"""Run exactly as a user does. The others share a Spark."""


@dataclass(frozen=True)
class Finished:
    """A finished run: its exit code, its output, and the documents in its folder."""

    code: int
    output: str
    folder: Path

    @property
    def trials(self) -> list[str]:
        return [entry["trial"] for entry in self.document("manifest.json")["trials"]]

    def document(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def value(self, trial: str, metric: str, phase: str = "") -> float:
        return self.row(trial, metric, phase)["value"]

    def row(self, trial: str, metric: str, phase: str = "") -> Any:
        rows = [
            r
            for r in self.document("metrics.json")
            if r["trial"] == trial and r["metric"] == metric and r["phase"] == phase and r["quantile"] is None
        ]
        assert len(rows) == 1, f"{metric} of {trial}: {rows}"
        return rows[0]

    def text(self, trial: str, metric: str) -> str:
        return next(
            r["text"] for r in self.document("metrics.json") if r["trial"] == trial and r["metric"] == metric
        )


def run(name: str, out: Path, *options: str) -> Finished:
    """Run `headgate run scenarios/<name>`, whatever its verdict. `name` may be the path of another document."""
    program = "testbed_runtime.cli.main" if name in WITH_OWN_SPARK else "tests.warm_spark"
    command = [sys.executable, "-m", program, "run", str(Path("scenarios") / name)]
    done = subprocess.run(
        [*command, *options, "--inconclusive", "retry", "--out", str(out)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        check=False,
    )
    folders = sorted(out.iterdir(), key=lambda p: p.stat().st_mtime) if out.exists() else []
    assert folders, done.stdout + done.stderr
    return Finished(done.returncode, done.stdout + done.stderr, folders[-1])


def shortcomings(finished: Finished) -> list[str]:
    """List what is not as it should be: a Pass with exit code 0, metrics, JUnit, Markdown, and a report that needs no network."""
    found = [] if finished.code == 0 else [f"exit code {finished.code}: {finished.output}"]
    verdict = finished.document("verdict.json")
    if verdict["verdict"] != "Pass":
        found.append(f"{verdict['verdict']}: {verdict['summary']}")
    files = ("manifest.json", "metrics.json", "junit.xml", "report.md", "scenario.yaml", "report.html")
    found += [f"no {name}" for name in files if not _filled(finished.folder / name)]
    page = finished.folder / "report.html"
    if _filled(page) and re.search(r'(src|href)="http', page.read_text()):
        found.append("report.html needs the network")
    return found


def _filled(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0
