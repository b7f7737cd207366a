"""One run opened for evaluation: its manifest, its sealed trials, their tables as DataFrames."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed_runtime.checking.common import windows
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation import session
from testbed_runtime.evaluation.jobs import trials as trials_job
from testbed_runtime.evaluation.jobs.throughput import PHASES_DDL
from testbed_runtime.evaluation.tables import TrialFiles, frames, open_trials, wide
from testbed_runtime.history.schema import Trial

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXIT_ERROR = 2
"""The exit code of a failure that a message explains."""
TEXT_MAX = 600
"""The longest message in characters."""


def read_manifest(run_folder: Path) -> dict[str, Any]:
    """Return the manifest. Raises HeadgateError when the folder is not a run, or the manifest is damaged."""
    path = run_folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise HeadgateError(f"{run_folder} is not the folder of a run: it has no manifest.json.") from None
    except (OSError, ValueError) as error:
        raise HeadgateError(f"{path} is truncated or damaged: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("trials", []), list):
        raise HeadgateError(f"{path} is not a manifest of headgate.")
    return manifest


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An opened run. `tables` maps names to DataFrames. `judged` has one row for each trial and is cached: several results need it."""

    spark: SparkSession
    trials: tuple[TrialFiles, ...]
    tables: Mapping[str, DataFrame]
    judged: DataFrame

    @classmethod
    def open(cls, spark: SparkSession, trials: Sequence[TrialFiles]) -> Evaluation:
        opened = frames(spark, trials)
        judged = trials_job.judged(wide(opened), trials).cache()
        return cls(spark, tuple(trials), opened, judged)

    def metrics(self) -> DataFrame:
        """Return the metric rows of all trials."""
        return trials_job.metric_rows(self.judged)

    def variants(self) -> dict[tuple[str, str], str]:
        """Return the variant of each (run, trial)."""
        return {(t.run, t.trial): _variant(t) for t in self.trials}

    def phases(self) -> DataFrame:
        """Return the windows that metrics are about, one row each (`jobs.throughput.PHASES_DDL`). The empty phase is the
        time from the first fault to the drain. `checking` uses the same windows."""
        rows = [
            (t.run, _variant(t), t.trial, str(t.entry.get("role", "fault")), name, window.start, window.end)
            for t in self.trials
            for name, window in windows(Trial(t.run, t.trial, {}), t.entry).by_phase()
            if window is not None
        ]
        return self.spark.createDataFrame(rows, PHASES_DDL)


def _variant(trial: TrialFiles) -> str:
    return str(trial.entry.get("variant") or "main")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a temporary folder for the files that Spark writes."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-spark-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def print_job(job: Callable[[Evaluation], DataFrame], arguments: Sequence[str]) -> int:
    """The `main` of a job: print its rows for the given run folders, one JSON object a line."""
    if not arguments:
        sys.stderr.write("Give the folder of at least one run.\n")
        return EXIT_ERROR
    try:
        trials = [t for folder in arguments for t in _trials(Path(folder))]
        with scratch_folder() as scratch, session.spark_session(scratch) as spark:
            for row in job(Evaluation.open(spark, trials)).toArrow().to_pylist():
                sys.stdout.write(json.dumps(row) + "\n")
    except Exception as error:
        sys.stderr.write(one_line(error) + "\n")
        return EXIT_ERROR
    return 0


def _trials(folder: Path) -> list[TrialFiles]:
    found = open_trials(folder, read_manifest(folder))
    if not found:
        raise HeadgateError(f"{folder} has no trial to evaluate.")
    return found


def one_line(error: BaseException) -> str:
    """Return an error as one line. Of a failed Spark job, that is the Python error inside."""
    if isinstance(error, HeadgateError):
        return str(error)[:TEXT_MAX]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Traceback (most recent call last):" in lines:
        after = lines[lines.index("Traceback (most recent call last):") + 1 :]
        named = [line for line in after if not line.startswith(("File ", "^", "~")) and ": " in line]
        return (named[0] if named else lines[0])[:TEXT_MAX]
    if type(error).__name__ in (
        "Py4JNetworkError",
        "ConnectionRefusedError",
        "Py4JError",
        "ConnectionResetError",
    ):
        return "The Spark driver has ended before its work was done (killed, or out of memory)."
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:TEXT_MAX]
