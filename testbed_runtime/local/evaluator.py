"""Evaluation on one machine: a Spark process that stays warm for all runs of a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed_runtime.core.documents import LOGS_FOLDER
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.evaluation.catalogue import folder_of
from testbed_runtime.evaluation.process import SparkEnded, SparkWorker
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.results import read_rows

OnProgress = Callable[[Mapping[str, Any]], None]


class SparkEvaluator:
    """`ports.hosts.Evaluator` over a SparkWorker, which the caller closes.

    `on_progress` gets each progress line (`stage`, `done`, `of`, `seconds`). Spark's log is stored as `<run>/logs/evaluation.log`.
    """

    def __init__(self, worker: SparkWorker, *, on_progress: OnProgress | None = None) -> None:
        self._worker = worker
        self._on_progress = on_progress

    async def evaluate(self, folder: Path) -> list[MetricRow]:
        log = folder / LOGS_FOLDER / "evaluation.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as file:
            self._worker.on_log = lambda line: print(line, file=file, flush=True)
            try:
                await self._worker.evaluate(folder, self._progress, catalogue=folder_of(folder))
            except SparkEnded as error:
                raise HeadgateError(
                    f"The evaluation failed: {error.reason}" if error.reason else str(error)
                ) from None
            finally:
                self._worker.on_log = lambda _: None  # ignore what Spark logs between two evaluations
        return read_rows(folder, read_manifest(folder))

    async def _progress(self, line: Mapping[str, Any]) -> None:
        if self._on_progress is not None:
            self._on_progress(line)
