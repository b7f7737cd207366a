"""A warm Spark that evaluates one run after the other: `python -m testbed_runtime.evaluation.worker`

One JSON object a line on stdin: `{"folder"}`. On stdout, one a line: `{"ready": true}` when Spark is there, then for each folder its
stages (`{"stage", "done", "of", "seconds"}`) and at last `{"result": "done"}` or `{"result": "failed", "error"}`. It ends when stdin does. The environment
`HEADGATE_SPARK_MASTER` and `HEADGATE_SPARK_SETTINGS` (JSON) say where executors are; without them all is done in this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation import ERROR_PREFIX, session
from testbed_runtime.evaluation.main import Progress, histories, judge, terminate
from testbed_runtime.evaluation.run import EXIT_ERROR, one_line, scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "HEADGATE_SPARK_MASTER"
SETTINGS = "HEADGATE_SPARK_SETTINGS"


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def serve(spark: SparkSession) -> None:
    """Until stdin ends. Bad input fails its own evaluation; a Spark that is gone ends the worker."""
    for line in sys.stdin:
        try:
            evaluate(spark, Path(json.loads(line)["folder"]))
        except HeadgateError as error:
            say({"result": "failed", "error": str(error)})
        except Exception as error:
            say({"result": "failed", "error": one_line(error)})
            spark.range(1).count()  # raises when the JVM is gone: a new worker comes
        else:
            say({"result": "done"})
        spark.catalog.clearCache()


def evaluate(spark: SparkSession, folder: Path) -> None:
    """Raises HeadgateError; writes metrics.json and timeseries.json into the folder."""
    progress = Progress()
    of_folder = histories([folder], progress)
    progress.stage("spark", trials=sum(map(len, of_folder.values())))
    judge(spark, of_folder, progress)


def main() -> int:
    """0 when stdin ended; 2 when Spark does not start or has died, with one line on stderr."""
    signal.signal(signal.SIGTERM, terminate)
    more = json.loads(os.environ.get(SETTINGS) or "{}")
    try:
        with (
            scratch_folder() as scratch,
            session.spark_session(scratch, master=os.environ.get(MASTER, ""), more=more) as spark,
        ):
            spark.range(1).count()  # the first job loads a third of Spark's classes
            say({"ready": True})
            serve(spark)
    except Exception as error:
        sys.stderr.write(ERROR_PREFIX + one_line(error) + "\n")
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
