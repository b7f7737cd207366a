"""Turn sealed histories into metric rows.

Reads `manifest.json` and `history/<trial>/*.parquet` of a run, and writes `metrics.json`, `timeseries.json`,
`recovery.json` and `trace.json` beside them. The run's rows also go into the catalogue of its folder.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import asdict

from testbed_runtime.checking.metrics import control_metrics
from testbed_runtime.checking.trace import TRIALS_MAX, trace, trace_events
from testbed_runtime.core.documents import METRICS_FILE, RECOVERY_FILE, SCHEMA, TIMESERIES_FILE, TRACE_FILE
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.recovery import TrialRecovery
from testbed_runtime.evaluation import catalogue, splits, tables
from testbed_runtime.evaluation.pipeline import JudgedTrial, judged
from testbed_runtime.files import write_whole
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.history.schema import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGES = ("histories", "spark", "trials", "results")
"""One line is sent for each stage that begins."""
Answer = Callable[[dict[str, Any]], None]
"""Sends one JSON object to the process that asked."""


def evaluate(
    spark: Callable[[], SparkSession], folder: Path, answer: Answer, *, into: Path | None = None
) -> None:
    """Evaluate a run. Spark is started only after every trial has been found sealed. `into`: the catalogue to write to.

    Raises HeadgateError, and then keeps earlier results."""
    started = time.monotonic()

    def stage(name: str, **more: Any) -> None:
        seconds = round(time.monotonic() - started, 2)
        answer({"stage": name, "done": STAGES.index(name), "of": len(STAGES), "seconds": seconds, **more})

    stage("histories")
    manifest = read_manifest(folder)
    trials = tables.open_trials(folder, manifest)
    if not trials:
        raise HeadgateError(
            "There is no trial to evaluate: every one was voided, or the run ended before its first."
        )
    trials = splits.with_control_noise(trials)
    stage("spark", trials=len(trials))
    session = spark()
    stage("trials", trials=len(trials))
    found = judged(session, trials)
    for one in found:
        if one.error:
            raise HeadgateError(one.error)
    stage("results")
    entries = [t.entry for t in trials]
    rows = [row for of_trial in found for row in of_trial.rows]
    rows += control_metrics(rows, entries)
    write_results(folder, trials, found, rows)
    if into is not None:
        known = [(t.trial, f.answer) for t, f in zip(trials, found, strict=True) if f.answer]
        answers = {trial: TrialRecovery.from_json(json.loads(text)) for trial, text in known}
        try:
            catalogue.write_run(into, manifest, rows, answers)
        except (OSError, pa.ArrowException) as error:  # the results are complete without the catalogue
            sys.stderr.write(f"The run was not added to the catalogue {into}: {error}\n")


def write_results(
    folder: Path,
    trials: Sequence[tables.TrialFiles],
    found: Sequence[JudgedTrial],
    rows: Sequence[MetricRow],
) -> None:
    """Write the results in the order of the manifest, so that the same history gives the same bytes. A trial that could not be judged
    has only its row."""
    known = [(t, f) for t, f in zip(trials, found, strict=True) if f.answer]
    series = ",\n".join(f.series for _, f in known)
    answers = ",\n".join(f"{json.dumps(t.trial)}: {f.answer}" for t, f in known)
    lines = ",\n".join(json.dumps(asdict(row), allow_nan=False) for row in rows)
    texts = {
        TIMESERIES_FILE: f'{{"schema": {SCHEMA}, "trials": [\n{series}\n]}}\n',
        RECOVERY_FILE: f"{{\n{answers}\n}}\n",
        TRACE_FILE: json.dumps(trace(_traced(known)), allow_nan=False),
        METRICS_FILE: f"[\n{lines}\n]\n",
    }
    for name, text in texts.items():
        write_whole(folder / name, text.encode(), durable=False)


def _traced(
    known: Sequence[tuple[tables.TrialFiles, JudgedTrial]],
) -> Iterator[list[dict[str, Any]]]:
    """Yield the trace of each of the first trials. Their waits were validated when the trial was judged."""
    for number, (files, one) in enumerate(known, start=1):
        if number > TRIALS_MAX:
            return
        waits = pq.ParquetFile(files.folder / "waits.parquet").read()
        answer = TrialRecovery.from_json(json.loads(one.answer))
        yield trace_events(Trial(files.run, files.trial, {"waits": waits}), answer, pid=number)
