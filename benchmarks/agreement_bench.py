"""Compare the simulator with real processes: verdict and `recovery.total` of every variant of the shipped scenarios.

    python benchmarks/agreement_bench.py [--runs 1] [scenarios/02-taskmanager-killed ...]

Each scenario is simulated once and run `--runs` times on real processes, without control trials. The error of a variant is
the simulated total against the median of the real ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.results import read_rows

ROOT = Path(__file__).resolve().parents[1]
RUN_LIMIT_S = 900
METRIC = "recovery.total"
RESOLUTION_S = 0.1
"""Sinks are sampled at this interval: a shorter total is as good as none."""

Totals = dict[str, list[float]]
"""Seconds of each trial with a recovery, by variant."""
Verdicts = dict[str, list[str]]


class NotPossibleError(Exception):
    """The command refused the scenario, for example packet faults in virtual time."""


def headgate(command: str, scenario: Path) -> tuple[Verdicts, Totals]:
    """Run the command in a process of its own and read the verdict of each variant and its totals."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-control"] if command == "run" else []
        words = [
            str(Path(sys.executable).with_name("headgate")),
            command,
            str(scenario),
            "--quiet",
            "--out",
            folder,
            *options,
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
        found = list(Path(folder).glob("*/verdict.json"))
        if not found:
            raise NotPossibleError(done.stderr.strip()[-300:])
        verdict = json.loads(found[0].read_text())
        rows = read_rows(found[0].parent, read_manifest(found[0].parent))
    totals: Totals = defaultdict(list)
    for row in rows:
        variant = row.trial.rpartition("-")[0]
        if row.metric == METRIC and row.value is not None and not variant.endswith("-control"):
            totals[variant].append(row.value)
    return {v["variant"]: [v["verdict"]] for v in verdict["variants"]}, totals


def compare(scenario: Path, runs: int) -> list[tuple[bool, float | None]]:
    """Print a row for each variant. Return whether the verdicts are the same, and the relative error of the total."""
    verdicts, simulated = headgate("simulate", scenario)
    real_verdicts: Verdicts = defaultdict(list)
    real: Totals = defaultdict(list)
    for _ in range(runs):
        seen, totals = headgate("run", scenario)
        for variant in seen:
            real_verdicts[variant] += seen[variant]
            real[variant] += totals[variant]
    rows: list[tuple[bool, float | None]] = []
    for variant, (verdict,) in verdicts.items():
        error = None
        if simulated[variant] and (middle := statistics.median(real[variant] or [0.0])) >= RESOLUTION_S:
            error = abs(statistics.median(simulated[variant]) - middle) / middle
        print(
            f"| {scenario.name} | {variant} | {_seconds(real[variant])}, {', '.join(real_verdicts[variant])} "
            f"| {_seconds(simulated[variant])}, {verdict} | {'–' if error is None else f'{error:.0%}'} |",
            flush=True,
        )
        rows.append((set(real_verdicts[variant]) == {verdict}, error))
    return rows


def _seconds(totals: Sequence[float]) -> str:
    return " ".join(f"{total:.2f}" for total in totals) + " s" if totals else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", type=Path)
    parser.add_argument("--runs", type=int, default=1)
    asked = parser.parse_args()
    shipped = sorted(p.parent for p in (ROOT / "scenarios").glob("[0-9]*/scenario.yaml"))
    print("| scenario | variant | real | simulated | error |\n|---|---|---|---|---|", flush=True)
    rows = []
    for scenario in asked.scenarios or shipped:
        try:
            rows += compare(scenario, asked.runs)
        except NotPossibleError as error:
            print(f"| {scenario.name} | not compared: {error} | | | |", flush=True)
    errors = [error for _, error in rows if error is not None]
    same = sum(agreed for agreed, _ in rows)
    print(f"\n{same} of {len(rows)} variants have the same verdict.", end=" ")
    if errors:
        print(f"The median error of {len(errors)} totals is {statistics.median(errors):.1%}.")


if __name__ == "__main__":
    main()
