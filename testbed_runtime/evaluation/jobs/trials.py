"""Every trial judged by `checking`: one grouping by (run, trial), one call of the pure functions per group."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.core.judgement.metrics import METRIC_FIELDS
from testbed_runtime.evaluation.tables import TrialFiles, trial_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROW_DDL = ", ".join(f"{name} {kind}" for name, kind in METRIC_FIELDS)
"""A metric row."""
JUDGED_DDL = f"struct<rows: array<struct<{ROW_DDL}>>, series: string, answer: string>"

Key = tuple[str, str]


def known(trials: Sequence[TrialFiles]) -> dict[Key, tuple[dict[str, Any], tuple[str, ...]]]:
    """(run, trial) → what the manifest and the recorder say of it: small, and travels with the function."""
    return {(t.run, t.trial): (dict(t.entry), t.problems) for t in trials}


def judge(rows: pa.Table, entry: Mapping[str, Any], problems: tuple[str, ...]) -> dict[str, Any]:
    """One trial: its metric rows, and as JSON text its time series and its `trial_recovery`."""
    trial = trial_of(rows, problems)
    answer = trial_recovery(trial, entry)
    return {
        "rows": list(trial_metrics(trial, entry, recovery=answer)),
        "answer": json.dumps(answer.to_json()),
        "series": json.dumps(trial_timeseries(trial, entry)),
    }


def judged(history: DataFrame, trials: Sequence[TrialFiles]) -> DataFrame:
    """`history` is `tables.wide(…)`; one row a trial: run, trial, rows (array of metric rows), series and answer (JSON).

    A grouped-aggregate Arrow function instead of `applyInArrow`, which would need pandas for no reason.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its name in every Spark program
    from pyspark.sql.pandas.functions import arrow_udf

    entries = known(trials)

    def whole_trial(rows: pa.Array) -> Any:  # these hints make it a grouped aggregate
        table = pa.Table.from_struct_array(rows)
        entry, problems = entries[table.column("run")[0].as_py(), table.column("trial")[0].as_py()]
        return judge(table, entry, problems)

    whole = arrow_udf(whole_trial, JUDGED_DDL)  # type: ignore[call-overload]
    return (
        history.groupBy("run", "trial")
        .agg(whole(F.struct("*")).alias("judged"))
        .select("run", "trial", "judged.rows", "judged.series", "judged.answer")
    )


def metric_rows(of_trials: DataFrame) -> DataFrame:
    """`judged(…)` as one metric row a line."""
    from pyspark.sql import functions as F  # noqa: N812 - its name in every Spark program

    return of_trials.select(F.inline("rows"))
