"""The run catalogue: metric rows and recovery prices of all evaluated runs, as a partitioned Parquet dataset.

    <folder of the runs>/catalogue/metrics/run=<run>/trial=<trial>/part.parquet      one row per metric row
    <folder of the runs>/catalogue/prices/run=<run>/trial=<trial>/part.parquet       one row per price of a recovery

A run that is evaluated again replaces its partitions. The schema only grows: a column that an older run lacks is null, and one
that a newer version added is ignored. `evaluation.trends` reads it with Spark, for `headgate trend FOLDER`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import asdict, fields

from testbed_runtime.core.errors import first_line
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.recovery import TrialRecovery
from testbed_runtime.core.trial.manifest import RunManifest, TrialEntry
from testbed_runtime.core.waits import GROWN, named_today

FOLDER = ".catalogue"
"""Name of the dataset's folder beside the folders of the runs."""
METRICS, PRICES = "metrics", "prices"
PARTITIONS = ("run", "trial")
_TRIAL = [
    ("scenario", pa.string()),
    ("environment", pa.string()),
    ("started", pa.string()),  # ISO 8601
    ("variant", pa.string()),
    ("role", pa.string()),  # control | fault
    ("number", pa.int64()),
    ("flink_version", pa.string()),
]


def _metric_columns() -> Iterator[tuple[str, pa.DataType]]:
    own = (f for f in fields(MetricRow) if f.name not in PARTITIONS)
    return ((f.name, pa.string() if f.type is str else pa.float64()) for f in own)


SCHEMAS: Mapping[str, pa.Schema] = {
    METRICS: pa.schema([*_TRIAL, *_metric_columns()]),
    PRICES: pa.schema(
        [
            *_TRIAL,
            ("recovery", pa.int64()),  # from 1 in each trial
            ("fault", pa.string()),
            ("total_s", pa.float64()),
            ("unattributed_s", pa.float64()),
            ("kind", pa.string()),
            ("option", pa.string()),  # empty: the owner is a cause or a resource
            ("value", pa.string()),
            ("owner", pa.string()),  # in words
            ("seconds", pa.float64()),
            ("waits", pa.int64()),
            ("from_events_s", pa.float64()),  # part of total_s
        ]
    ),
}
"""The columns of each table without those of the partitions. Add columns at the end and remove none."""
WITH_PARTITIONS = {
    name: pa.schema([*((p, pa.string()) for p in PARTITIONS), *schema]) for name, schema in SCHEMAS.items()
}


def folder_of(run_folder: Path) -> Path:
    """Return the catalogue that the runs beside `run_folder` share."""
    return run_folder.resolve().parent / FOLDER


def write_run(
    catalogue: Path, manifest: RunManifest, rows: Iterable[MetricRow], recoveries: Mapping[str, TrialRecovery]
) -> None:
    """Write an evaluated run, and replace what an earlier evaluation of it wrote.

    `rows`: the metric rows of all trials. `recoveries`: trial id → recovery."""
    of_trial = grouped((row.trial, row) for row in rows)
    entries = {entry.trial: _trial_columns(manifest, entry) for entry in manifest.trials}
    prices = {trial: [{**entries[trial], **p} for p in _prices(found)] for trial, found in recoveries.items()}
    metrics = {trial: [{**entries[trial], **asdict(r)} for r in found] for trial, found in of_trial.items()}
    _replace(catalogue, METRICS, manifest.run, metrics)
    _replace(catalogue, PRICES, manifest.run, prices)


def damaged_part(catalogue: Path, name: str) -> str:
    """Return which file of a table cannot be read, and what to do. Empty if each of them can be."""
    schema = SCHEMAS[name]
    for part in sorted((catalogue / name).rglob("*.parquet")):
        try:
            stored = pq.ParquetFile(part).read().schema
        except (pa.ArrowException, OSError, ValueError) as error:
            problem = first_line(error)
        else:
            other = (f for f in stored if f.name in schema.names and f.type != schema.field(f.name).type)
            problem = next((f"column {f.name} has the type {f.type}" for f in other), "")
        if problem:
            return f"{part} is damaged: {problem}. Evaluate its run again, or delete the file."
    return ""


def _trial_columns(manifest: RunManifest, entry: TrialEntry) -> dict[str, Any]:
    return {
        "scenario": manifest.name,
        "environment": manifest.environment,
        "started": manifest.started,
        "variant": entry.variant,
        "role": entry.role,
        "number": entry.number,
        "flink_version": entry.flink_version,
    }


def _prices(found: TrialRecovery) -> Iterable[dict[str, Any]]:
    for number, recovery in enumerate(found.recoveries, 1):
        common = {
            "recovery": number,
            "fault": recovery.fault,
            "total_s": recovery.total_s,
            "unattributed_s": recovery.unattributed_s,
            "from_events_s": recovery.from_events_s,
        }
        for price in recovery.prices:
            option = named_today(price.option)  # one row for jobs of several versions
            value = price.value.partition(GROWN)[0]  # and for all delays that grew from it
            own = {"option": option, "value": value, "owner": price.text, "waits": price.count}
            yield {**common, **asdict(price), **own}


def _replace(catalogue: Path, name: str, run: str, trials: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write all partitions of a run to a hidden folder, then put it in the place of the old one."""
    into = catalogue / name / f"run={run}"
    unfinished = into.with_name(f".{run}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    schema = SCHEMAS[name]
    for trial, rows in trials.items():
        if rows:
            part = unfinished / f"trial={trial}"
            part.mkdir(parents=True)
            columns = [{field: row.get(field) for field in schema.names} for row in rows]
            pq.write_table(pa.Table.from_pylist(columns, schema), part / "part.parquet", compression="zstd")
    shutil.rmtree(into, ignore_errors=True)
    if unfinished.exists():
        unfinished.replace(into)
