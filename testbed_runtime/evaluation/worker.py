"""A warm Spark that evaluates one run after another: `python -m testbed_runtime.evaluation.worker`

Requests are JSON objects on stdin, one a line: `{"folder": PATH}` evaluates a run (with `"catalogue": PATH` also into a run
catalogue), `{"trends": PATH}` reads a run catalogue, `{}` only starts Spark. Answers are JSON objects on stdout, one a line: the
stages (`{"stage", "done", "of", "seconds"}`) or the rows of a catalogue's jobs (`{"job", "row"}`), then `{"result": "done"}` or
`{"result": "failed", "error"}`.
Spark starts with the first request that needs it. The worker exits when stdin ends. The environment variables
`HEADGATE_SPARK_MASTER` and `HEADGATE_SPARK_SETTINGS` (JSON) choose executors; without them Spark runs inside this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.verdict import EXIT_ERROR
from testbed_runtime.evaluation import ERROR_PREFIX, trends
from testbed_runtime.evaluation.catalogue import damaged_part
from testbed_runtime.evaluation.evaluate import evaluate
from testbed_runtime.evaluation.session import one_line, scratch_folder, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "HEADGATE_SPARK_MASTER"
SETTINGS = "HEADGATE_SPARK_SETTINGS"
EXIT_TERMINATED = 143
"""128 + SIGTERM."""
CHILDREN_END_S = 5.0
"""How long the JVM may take after SIGTERM to delete its files and end."""


class SparkUnavailable(Exception):
    """Spark did not start: no request can be served."""


def serve(spark: Callable[[], SparkSession], requests: Iterable[str], answers: TextIO) -> None:
    """Answer each request. Bad input only fails its own evaluation. If Spark does not start or has died, an error is raised."""

    def answer(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    for line in requests:
        request = json.loads(line)
        try:
            if "folder" in request:
                into = request.get("catalogue")
                evaluate(spark, Path(request["folder"]), answer, into=Path(into) if into else None)
            elif "trends" in request:
                for found in _trends(spark, Path(request["trends"])):
                    answer(found)
            else:
                spark().range(1).count()  # the first job loads a third of Spark's classes
        except SparkUnavailable:
            raise
        except Exception as error:
            if not isinstance(error, HeadgateError):
                # raises when the JVM is gone: the parent starts a new worker, and may ask again
                spark().range(1).count()
            answer({"result": "failed", "error": one_line(error)})
        else:
            answer({"result": "done"})


def _trends(spark: Callable[[], SparkSession], catalogue: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of every job over a catalogue. It has no prices while no run has had a recovery. Raises HeadgateError with the path of
    a damaged file."""
    for name in trends.JOBS:
        if (catalogue / name).is_dir():
            try:
                rows = trends.trend(spark(), catalogue, name).toArrow().to_pylist()
            except SparkUnavailable:
                raise
            except Exception as error:
                if damaged := damaged_part(catalogue, name):
                    raise HeadgateError(damaged) from error
                raise
            yield from ({"job": name, "row": row} for row in rows)


@contextmanager
def lazily(start: Callable[[], AbstractContextManager[SparkSession]]) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that starts Spark at its first call. Spark stops with the block."""
    with ExitStack() as stack:

        @cache
        def get() -> SparkSession:
            try:
                return stack.enter_context(start())
            except Exception as error:
                raise SparkUnavailable(one_line(error)) from error

        yield get


@contextmanager
def own_spark() -> Iterator[SparkSession]:
    """The Spark that this process's environment describes."""
    more = json.loads(os.environ.get(SETTINGS) or "{}")
    with (
        scratch_folder() as scratch,
        spark_session(scratch, master=os.environ.get(MASTER, ""), more=more) as spark,
    ):
        yield spark


def terminate(*_: object) -> None:
    """End the JVM before cleaning up: one that is still starting would miss this process's end and run forever."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.getpgrp() == os.getpid():  # otherwise the group belongs to another process
        os.killpg(0, signal.SIGTERM)
        deadline = time.monotonic() + CHILDREN_END_S
        with suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    time.sleep(0.02)
    sys.exit(EXIT_TERMINATED)


def main() -> int:
    """Return 0 when stdin ended, or 2 with one line on stderr when Spark did not start or has died."""
    signal.signal(signal.SIGTERM, terminate)
    try:
        with lazily(own_spark) as spark:
            serve(spark, sys.stdin, sys.stdout)
    except Exception as error:
        text = str(error) if isinstance(error, SparkUnavailable) else one_line(error)
        sys.stderr.write(ERROR_PREFIX + text + "\n")
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
