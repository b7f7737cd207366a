"""The event loop and the Spark that all runs of one command share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from testbed_runtime.cli.interrupting import CLEANED_UP, run_interruptible
from testbed_runtime.evaluation.process import SparkWorker

T = TypeVar("T")


class Session:
    """One event loop and one Spark for all runs of a command. Spark starts with the first evaluation and ends with the `with` block."""

    def __init__(self) -> None:
        self.spark = SparkWorker()
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._runner as runner:
            runner.run(self.spark.close())

    def run(self, main: Coroutine[Any, Any, T], *, became: str = CLEANED_UP) -> T:
        """Run to its end, on the loop that all runs share. Raises Interrupted with the text `became` after Ctrl-C or SIGTERM."""
        return run_interruptible(main, became=became, runner=self._runner)
