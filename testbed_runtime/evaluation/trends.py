"""Jobs over many runs at once, in Spark SQL on the run catalogue. `headgate trend FOLDER` shows their results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.metrics import LOWER_BOUNDS
from testbed_runtime.evaluation import catalogue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_METRICS = """
    select scenario, variant, metric, phase, quantile, run, started, count(value) as trials,
           count_if(reason in ({bounds})) as bounded,
           percentile(value, 0.5) as median, min(value) as least, max(value) as most,
           percentile(value, 0.5) - lag(percentile(value, 0.5)) over earlier as change
    from {rows} where role = 'fault' and value is not null
    group by scenario, variant, metric, phase, quantile, run, started
    window earlier as (partition by scenario, variant, metric, phase, quantile order by started, run)
    order by scenario, variant, metric, phase, quantile, started, run
"""
_PRICES = """
    with outages as (select run, trial, recovery, any_value(total_s) as total_s from {rows} group by run, trial, recovery),
    everything as (select sum(total_s) as total_s from outages)
    select option, value, any_value(kind) as kind, if(option = '', owner, '') as cause, count(distinct run) as runs,
           count(distinct run, trial, recovery) as recoveries, sum(waits) as waits, sum(seconds) as seconds,
           max(seconds) as most_s, try_divide(sum(seconds), any_value(e.total_s)) as share
    from {rows} cross join everything e group by option, value, if(option = '', owner, '') order by seconds desc, option, cause
"""
JOBS = {catalogue.METRICS: _METRICS, catalogue.PRICES: _PRICES}


def trend(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    """Return the result of a job of JOBS over every run of a catalogue: `metrics` gives a row per run with the median,
    its change since the run before, and how many of its trials had only a lower bound, `prices` a row per option and cause with its seconds over all recoveries."""
    source = folder / name
    if not source.is_dir():
        raise HeadgateError(f"{folder} has no {name}: evaluate a run first")
    rows = spark.read.schema(_ddl(catalogue.WITH_PARTITIONS[name])).parquet(str(source))
    bounds = ", ".join(f"'{reason}'" for reason in sorted(LOWER_BOUNDS))
    return spark.sql(JOBS[name].replace("{bounds}", bounds), None, rows=rows)


def _ddl(schema: pa.Schema) -> str:
    kinds = {pa.string(): "string", pa.float64(): "double", pa.int64(): "bigint"}
    return ", ".join(f"`{field.name}` {kinds[field.type]}" for field in schema)
