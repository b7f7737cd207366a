"""From sealed histories to metric rows.

Reads `manifest.json` and `history/<trial>/*.parquet` of a run, and writes `metrics.json`, `timeseries.json` and
`recovery.json` beside them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed_runtime.checking.metrics import control_metrics
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.recovery import RECOVERY_FILE
from testbed_runtime.evaluation import tables
from testbed_runtime.evaluation.jobs import recovery, throughput
from testbed_runtime.evaluation.run import Evaluation, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGES = ("histories", "spark", "trials", "recovery", "throughput", "results")
Answer = Callable[[dict[str, Any]], None]
"""Sends one JSON object to the process that asked."""


class Progress:
    """One line for each stage that begins."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._started = time.monotonic()
        self._done = 0

    def stage(self, name: str, **more: Any) -> None:
        """Report that `name` begins now."""
        seconds = round(time.monotonic() - self._started, 2)
        self._answer({"stage": name, "done": self._done, "of": len(STAGES), "seconds": seconds, **more})
        self._done += 1


def evaluate(spark: Callable[[], SparkSession], folder: Path, answer: Answer) -> None:
    """Evaluate a run. Spark is asked for only once the histories are sound. Raises HeadgateError, and keeps earlier results then."""
    progress = Progress(answer)
    progress.stage("histories")
    trials = tables.open_trials(folder, read_manifest(folder))
    if not trials:
        raise HeadgateError(
            "There is no trial to evaluate: every one was voided, or the run ended before its first."
        )
    progress.stage("spark", trials=len(trials))
    session = spark()
    try:
        _judge(session, folder, trials, progress)
    finally:
        session.catalog.clearCache()


def _judge(
    spark: SparkSession, folder: Path, trials: Sequence[tables.TrialFiles], progress: Progress
) -> None:
    opened = Evaluation.open(spark, trials)
    progress.stage("trials", trials=len(trials))
    judged = opened.judged.toArrow().to_pylist()
    progress.stage("recovery")
    phases = recovery.of_run(opened).toArrow().to_pylist()
    progress.stage("throughput")
    compared = throughput.of_run(opened).toArrow().to_pylist()
    progress.stage("results")
    _write_results(
        folder,
        entries=[t.entry for t in trials],
        judged=judged,
        recovery_rows=phases,
        throughput_rows=compared,
    )


def _write_results(
    folder: Path,
    *,
    entries: Sequence[Mapping[str, Any]],
    judged: Sequence[dict[str, Any]],
    recovery_rows: Sequence[dict[str, Any]],
    throughput_rows: Sequence[dict[str, Any]],
) -> None:
    """Write in the order of the manifest, so that the same history gives the same bytes."""
    by_trial = {row["trial"]: row for row in judged}
    order = [str(entry["trial"]) for entry in entries if entry["trial"] in by_trial]
    rows = [row for trial in order for row in by_trial[trial]["rows"]]
    rows += control_metrics(rows, entries)
    series = [json.loads(by_trial[trial]["series"]) for trial in order]
    write_json(folder / "timeseries.json", {"schema": 1, "trials": series, "recovery": list(recovery_rows),
                                            "throughput": list(throughput_rows)})  # fmt: skip
    answers = {trial: json.loads(by_trial[trial]["answer"]) for trial in order}
    write_json(folder / RECOVERY_FILE, answers)
    write_json(folder / "metrics.json", rows)


def write_json(path: Path, document: Any) -> None:
    """Write the whole file or none of it."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    temporary.replace(path)
