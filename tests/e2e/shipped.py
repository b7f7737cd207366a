"""A shipped scenario on this machine: real processes, real sockets, real faults, real Spark, and the numbers it promises.

A file for each scenario, whose name says which; it is run once for all its tests (and beside another one's: `--dist loadfile`). An Inconclusive run (a
machine too busy to keep its baseline) is repeated once, as `--inconclusive retry` does for a user.
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


@dataclass(frozen=True)
class Finished:
    """A run that ended: exit code, what it printed, and its folder's documents."""

    code: int
    output: str
    folder: Path

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


def run(name: str, out: Path) -> Finished:
    """`headgate run scenarios/<name>`, whatever it comes to."""
    command = [sys.executable, "-m", "testbed_runtime.cli.main", "run", f"scenarios/{name}"]
    done = subprocess.run(
        [*command, "--inconclusive", "retry", "--out", str(out)],
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


def wanting(finished: Finished) -> list[str]:
    """What is not as a reader wants it: a Pass with exit code 0, metrics, JUnit, Markdown, and a report without a reference to the network."""
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
