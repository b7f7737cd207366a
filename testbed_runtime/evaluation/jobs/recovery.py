"""Recovery over all trials: each phase with its seconds, its share of the whole, and the option that bounded it.

python -m testbed_runtime.evaluation.jobs.recovery RUN_FOLDER…
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from testbed_runtime.core.judgement.metrics import RECOVERY_PHASES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from testbed_runtime.evaluation.run import Evaluation


def recovery(metrics: DataFrame, variants: Mapping[tuple[str, str], str]) -> DataFrame:
    """Metric rows → run, variant, trial, position, phase, seconds, share, bounded_by, reason; one row a phase that is
    defined. `variants`: (run, trial) → variant. `share` is of the sum of the trial's phases."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - its name in every Spark program

    names = {f"recovery.{phase}": position for position, phase in enumerate(RECOVERY_PHASES)}
    position = F.create_map(*(F.lit(part) for pair in names.items() for part in pair))
    labels = F.create_map(
        *(F.lit(part) for (run, trial), v in variants.items() for part in (f"{run}/{trial}", v))
    )
    of_trial = Window.partitionBy("run", "trial")
    return (
        metrics.where(F.col("metric").isin(*names))
        .select(
            "run",
            labels[F.concat_ws("/", "run", "trial")].alias("variant"),
            "trial",
            position[F.col("metric")].alias("position"),
            F.expr("substring(metric, length('recovery.') + 1)").alias("phase"),
            F.col("value").alias("seconds"),
            F.try_divide(F.col("value"), F.sum("value").over(of_trial)).alias(
                "share"
            ),  # null: nothing took time
            "bounded_by",
            "reason",
        )
        .orderBy("run", "trial", "position")
    )


def of_run(evaluation: Evaluation) -> DataFrame:
    """The job on an opened run."""
    return recovery(evaluation.metrics(), evaluation.variants())


if __name__ == "__main__":
    from testbed_runtime.evaluation.run import print_job

    sys.exit(print_job(of_run, sys.argv[1:]))
