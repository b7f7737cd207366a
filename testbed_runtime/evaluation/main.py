"""From sealed histories to metric rows: `python -m testbed_runtime.evaluation.main RUN_FOLDER…`

Reads `manifest.json` and `history/<trial>/*.parquet` of each run, writes `metrics.json`, `timeseries.json` and `throughput.json`
beside them, and prints one JSON object a line: `{"stage", "done", "of", "seconds"}`. Exit code 0; 2 with one line on stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed_runtime.checking.metrics import control_metrics
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation import ERROR_PREFIX, session, tables
from testbed_runtime.evaluation.jobs import recovery, throughput
from testbed_runtime.evaluation.run import (
    EXIT_ERROR,
    Evaluation,
    one_line,
    read_manifest,
    scratch_folder,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGES = ("histories", "spark", "trials", "recovery", "throughput", "results")
EXIT_TERMINATED = 143
"""128 + SIGTERM."""
CHILDREN_END_S = 5.0
"""From SIGTERM to the end of the JVM: it deletes what it wrote first."""


class Progress:
    """One JSON line a stage on stdout; whoever started us shows it."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._done = 0

    def stage(self, name: str, **more: Any) -> None:
        """`name` begins now."""
        line = {
            "stage": name,
            "done": self._done,
            "of": len(STAGES),
            "seconds": round(time.monotonic() - self._started, 2),
            **more,
        }
        self._done += 1
        with suppress(BrokenPipeError):
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


def write_json(path: Path, document: Any) -> None:
    """Whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    temporary.replace(path)


def evaluate(run_folders: Sequence[Path], progress: Progress) -> None:
    """Evaluate all runs in one Spark. Raises HeadgateError; leaves earlier results alone then."""
    of_folder = histories(run_folders, progress)
    progress.stage("spark", trials=sum(map(len, of_folder.values())))
    with scratch_folder() as scratch, session.spark_session(scratch) as spark:
        judge(spark, of_folder, progress)


def histories(run_folders: Sequence[Path], progress: Progress) -> dict[Path, list[tables.TrialFiles]]:
    """The sealed trials of each run. Raises HeadgateError when there is none, or one is damaged."""
    progress.stage("histories")
    of_folder = {folder: tables.open_trials(folder, read_manifest(folder)) for folder in run_folders}
    if not any(of_folder.values()):
        raise HeadgateError(
            "There is no trial to evaluate: every one was voided, or the run ended before its first."
        )
    return of_folder


def judge(spark: SparkSession, of_folder: Mapping[Path, list[tables.TrialFiles]], progress: Progress) -> None:
    """Judge opened runs in a Spark that is there, and write the results beside their histories."""
    trials = [t for found in of_folder.values() for t in found]
    opened = Evaluation.open(spark, trials)
    progress.stage("trials", trials=len(trials))
    judged = opened.judged.toArrow().to_pylist()
    progress.stage("recovery")
    phases = recovery.of_run(opened).toArrow().to_pylist()
    progress.stage("throughput")
    compared = throughput.of_run(opened).toArrow().to_pylist()
    progress.stage("results")
    for folder, found in of_folder.items():
        mine = {(t.run, t.trial) for t in found}
        _write_results(
            folder,
            entries=[t.entry for t in found],
            judged=[row for row in judged if (row["run"], row["trial"]) in mine],
            recovery_rows=[row for row in phases if (row["run"], row["trial"]) in mine],
            throughput_rows=[row for row in compared if (row["run"], row["trial"]) in mine],
        )


def _write_results(
    folder: Path,
    *,
    entries: Sequence[Mapping[str, Any]],
    judged: Sequence[dict[str, Any]],
    recovery_rows: Sequence[dict[str, Any]],
    throughput_rows: Sequence[dict[str, Any]],
) -> None:
    """In the order of the manifest, so that the same history gives the same bytes."""
    by_trial = {row["trial"]: row for row in judged}
    order = [str(entry["trial"]) for entry in entries if entry["trial"] in by_trial]
    rows = [row for trial in order for row in by_trial[trial]["rows"]]
    rows += control_metrics(rows, entries)
    series = [json.loads(by_trial[trial]["series"]) for trial in order]
    write_json(folder / "timeseries.json", {"schema": 1, "trials": series, "recovery": list(recovery_rows),
                                            "throughput": list(throughput_rows)})  # fmt: skip
    write_json(folder / "metrics.json", rows)


def terminate(*_: object) -> None:
    """The JVM ends before we clean up behind it: one that is still starting would hear of our end too late, and stay for ever."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.getpgrp() == os.getpid():  # else the group is somebody else's
        os.killpg(0, signal.SIGTERM)
        deadline = time.monotonic() + CHILDREN_END_S
        with suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    time.sleep(0.02)
    sys.exit(EXIT_TERMINATED)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 with a message of one line on stderr."""
    if not arguments:
        sys.stderr.write("Give the folder of at least one run.\n")
        return EXIT_ERROR
    signal.signal(signal.SIGTERM, terminate)
    try:
        evaluate([Path(a) for a in arguments], Progress())
    except Exception as error:
        if os.environ.get("HEADGATE_DEBUG") == "1":
            raise
        sys.stderr.write(ERROR_PREFIX + one_line(error) + "\n")
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
