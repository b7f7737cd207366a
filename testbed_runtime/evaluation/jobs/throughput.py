"""Throughput and latency before, during and after the fault, against the trial's own baseline and against the control run.

Wide aggregates over all trials at once, in Spark SQL. Counters are cumulative per attempt: what lies between two samples is
spread evenly over the time between them, so that a phase gets its share of a sample that straddles its edge.

    python -m testbed_runtime.evaluation.jobs.throughput RUN_FOLDER…
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from testbed_runtime.core.judgement.metrics import QUANTILES
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from testbed_runtime.evaluation.run import Evaluation

PHASES_DDL = (
    "run string, variant string, trial string, role string, phase string, start_ns bigint, end_ns bigint"
)
"""One row a window of a trial: `baseline`, `fault`, `observation`, and the empty name for the whole of the last two."""
BASELINE = "baseline"
CONTROL = "control"
BOUNDS_S = tuple(bound / 1e9 for bound in LATENCY_BOUNDS_NS)
"""Upper bounds of the buckets in seconds; one more bucket holds what is above."""

_INCREMENTS = """
    select run, trial, t_ns as until_ns,
           coalesce(lag(t_ns) over attempt, t_ns) as from_ns,
           records_in - coalesce(lag(records_in) over attempt, 0) as records
    from {tasks} where role = 'sink'
    window attempt as (partition by run, trial, task, attempt order by t_ns, seq)
"""
"""Records that arrived at a sink subtask's attempt between two samples; the first sample counts where it was taken."""

_PER_SECOND = """
    with started as (
        select run, trial, min(start_ns) as t0_ns from {phases} group by run, trial
    ), slices as (
        select i.run, i.trial, i.from_ns - t0_ns as from_ns, i.until_ns - t0_ns as until_ns, records,
               explode(sequence((i.from_ns - t0_ns) div 1000000000, (i.until_ns - t0_ns) div 1000000000)) as second
        from {increments} i join started s on i.run = s.run and i.trial = s.trial where i.until_ns >= t0_ns
    )
    select run, trial, second, sum(records * if(until_ns = from_ns, 1.0D,
               (least(until_ns, (second + 1) * 1000000000) - greatest(from_ns, second * 1000000000)) / (until_ns - from_ns)
           )) as records_per_second
    from slices where second >= 0 group by run, trial, second order by run, trial, second
"""

_BY_PHASE = """
    select p.run, p.variant, p.trial, p.role, p.phase,
           coalesce(sum(i.records * if(i.until_ns = i.from_ns, 1.0D,
               (least(i.until_ns, p.end_ns) - greatest(i.from_ns, p.start_ns)) / (i.until_ns - i.from_ns)
           )), 0.0D) / nullif((p.end_ns - p.start_ns) / 1e9D, 0.0D) as value
    from {phases} p left join {increments} i
      on i.run = p.run and i.trial = p.trial
         and i.until_ns > p.start_ns and (i.from_ns < p.end_ns or i.until_ns <= p.end_ns)
    where p.end_ns > p.start_ns
    group by p.run, p.variant, p.trial, p.role, p.phase, p.start_ns, p.end_ns
"""

_LATENCY = """
    with inside as (
        select p.run, p.variant, p.trial, p.role, p.phase, l.buckets, l.max_ns
        from {latency} l join {phases} p
          on l.run = p.run and l.trial = p.trial
             and l.window_start_ns + l.window_ns div 2 >= p.start_ns
             and l.window_start_ns + l.window_ns div 2 < p.end_ns
    ), largest as (
        select run, trial, phase, max(max_ns) as max_ns from inside group by run, trial, phase
    ), counts as (
        select run, variant, trial, role, phase, b.bucket, sum(b.n) as n
        from inside lateral view posexplode(buckets) b as bucket, n
        where b.n > 0
        group by run, variant, trial, role, phase, b.bucket
    ), running as (
        select *, sum(n) over (partition by run, trial, phase order by bucket) as upto,
               sum(n) over (partition by run, trial, phase) as total
        from counts
    ), candidates as (
        select r.*, q.quantile, g.max_ns, q.quantile * total as wanted,
               row_number() over (partition by r.run, r.trial, r.phase, q.quantile order by r.bucket) as place
        from running r join largest g on g.run = r.run and g.trial = r.trial and g.phase = r.phase
             lateral view explode(:quantiles) q as quantile
        where r.upto >= q.quantile * total
    )
    select run, variant, trial, role, phase, quantile,
           case when quantile >= 1 or bucket >= size(:bounds) then max_ns / 1e9D
                when total * (1 - quantile) < 1 then null
                else least(max_ns / 1e9D, lower + (wanted - (upto - n)) / n * (element_at(:bounds, bucket + 1) - lower))
           end as value
    from (
        select *, if(bucket = 0, 0.0D, element_at(:bounds, greatest(bucket, 1))) as lower from candidates where place = 1
    )
"""
"""Linear within a bucket, null below 1 / (1 - q) records: as `checking.latency.Histogram.quantile`."""


def _increments(tasks: DataFrame) -> DataFrame:
    return tasks.sparkSession.sql(_INCREMENTS, tasks=tasks)


def throughput_per_second(tasks: DataFrame, phases: DataFrame) -> DataFrame:
    """run, trial, second (since the first phase began), records_per_second at the sinks."""
    return tasks.sparkSession.sql(_PER_SECOND, increments=_increments(tasks), phases=phases)


def throughput_by_phase(tasks: DataFrame, phases: DataFrame) -> DataFrame:
    """run, variant, trial, role, phase, value: records per second at the sinks, mean over the phase."""
    return tasks.sparkSession.sql(_BY_PHASE, increments=_increments(tasks), phases=phases)


def latency_by_phase(latency: DataFrame, phases: DataFrame) -> DataFrame:
    """run, variant, trial, role, phase, quantile, value: seconds, of the merged histograms.
    A window belongs to the phase that holds its middle."""
    from pyspark.sql import functions as F  # noqa: N812 - its name in every Spark program

    constants = {"bounds": F.array(*map(F.lit, BOUNDS_S)), "quantiles": F.array(*map(F.lit, QUANTILES))}
    return latency.sparkSession.sql(_LATENCY, args=constants, latency=latency, phases=phases)


def throughput(tasks: DataFrame, latency: DataFrame, phases: DataFrame) -> DataFrame:
    """Both, side by side with what they are held against: run, variant, trial, role, metric (`throughput` in records/s,
    `latency` in seconds), phase, quantile, value, baseline (same trial), control (mean of the variant's control trials,
    same phase), relative_to_baseline, relative_to_control. Null where there is nothing to compare with."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - its name in every Spark program

    rows = (
        throughput_by_phase(tasks, phases)
        .withColumn("metric", F.lit("throughput"))
        .withColumn("quantile", F.lit(None).cast("double"))
        .unionByName(latency_by_phase(latency, phases).withColumn("metric", F.lit("latency")))
    )
    same_trial = Window.partitionBy("run", "trial", "metric", "quantile")
    same_phase = Window.partitionBy("run", "variant", "phase", "metric", "quantile")
    compared = rows.withColumn(
        "baseline", F.max(F.when(F.col("phase") == BASELINE, F.col("value"))).over(same_trial)
    ).withColumn("control", F.avg(F.when(F.col("role") == CONTROL, F.col("value"))).over(same_phase))
    return compared.select(
        "run", "variant", "trial", "role", "metric", "phase", "quantile", "value", "baseline", "control",
        F.try_divide("value", "baseline").alias("relative_to_baseline"),
        F.try_divide("value", "control").alias("relative_to_control"),
    ).orderBy("run", "variant", "trial", "metric", "phase", "quantile")  # fmt: skip


def of_run(evaluation: Evaluation) -> DataFrame:
    """The job on an opened run."""
    tables: Mapping[str, DataFrame] = evaluation.tables
    return throughput(tables["tasks"], tables["latency"], evaluation.phases())


if __name__ == "__main__":
    from testbed_runtime.evaluation.run import print_job

    sys.exit(print_job(of_run, sys.argv[1:]))
