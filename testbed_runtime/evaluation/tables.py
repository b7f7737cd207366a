"""History Parquet as DataFrames, with the explicit schema of `history.schema`; nothing is inferred from files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.history.reader import read_trial
from testbed_runtime.history.schema import COMMON, TABLES, Trial, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEALED = "sealed.json"
"""The file that the recorder writes last: the number of rows of each table, and problems."""
TABLE_COLUMN = "history_table"
"""The column of the wide frame that names each row's table."""


@dataclass(frozen=True, slots=True)
class TrialFiles:
    """The sealed history of one trial: its entry in the manifest and its folder."""

    run: str
    entry: Mapping[str, Any]
    folder: Path
    problems: tuple[str, ...] = ()
    """Problems that the recorder found when it sealed the trial."""

    @property
    def trial(self) -> str:
        return str(self.entry["trial"])


def spark_type(kind: pa.DataType) -> str:
    """Return the DDL name of an Arrow type of the schema."""
    if pa.types.is_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    names = {pa.string(): "string", pa.int64(): "bigint", pa.int32(): "int", pa.bool_(): "boolean",
             pa.binary(): "binary", pa.float64(): "double"}  # fmt: skip
    return names[kind]


def ddl(table: str) -> str:
    """The Spark schema of a history table."""
    return ", ".join(f"`{f.name}` {spark_type(f.type)}" for f in arrow_schema(table))


def wide_columns() -> dict[str, pa.DataType]:
    """Return every column of every table once. A name has one type in the whole schema."""
    columns = dict(COMMON)
    for table in TABLES:
        for name, kind in TABLES[table]:
            if columns.setdefault(name, kind) != kind:
                raise AssertionError(f"column {name} has two types in the history schema")
    return columns


def open_trials(run_folder: Path, manifest: Mapping[str, Any]) -> list[TrialFiles]:
    """Return the sealed trials of a run, after checking that every table is readable and complete.
    Raises HeadgateError with the file's path in the run and the problem."""
    run = str(manifest.get("run") or run_folder.name)
    entries = [e for e in manifest.get("trials", ()) if not e.get("voided") and not e.get("error")]
    folders = [(entry, run_folder / "history" / str(entry["trial"])) for entry in entries]
    if manifest.get("interrupted"):  # the trial that was interrupted has no seal
        folders = [(entry, folder) for entry, folder in folders if (folder / SEALED).exists()]
    return [_open_trial(run, entry, folder) for entry, folder in folders]


def _open_trial(run: str, entry: Mapping[str, Any], folder: Path) -> TrialFiles:
    shown = f"history/{folder.name}"
    try:
        sealed = json.loads((folder / SEALED).read_text())
        rows, problems = dict(sealed["rows"]), tuple(str(p) for p in sealed["problems"])
    except FileNotFoundError:
        raise HeadgateError(
            f"{shown} is not sealed: the run was cut off before this trial ended. Run the scenario again."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise HeadgateError(f"{shown}/{SEALED} is truncated or damaged. Run the scenario again.") from None
    for table in TABLES:
        _check_table(f"{shown}/{table}.parquet", table, folder / f"{table}.parquet", rows.get(table))
    read_trial(folder, run=run, trial=str(entry["trial"]), entry=entry)  # raises DamagedHistory
    return TrialFiles(run=run, entry=entry, folder=folder, problems=problems)


def _check_table(shown: str, table: str, path: Path, rows: int | None) -> None:
    """Check footer, columns and number of rows, and that every byte can be decoded."""
    if not path.exists():
        raise HeadgateError(f"{shown} is missing from a sealed trial. Restore it, or run the scenario again.")
    try:
        found = pq.ParquetFile(path)
        decoded = sum(batch.num_rows for batch in found.iter_batches())
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HeadgateError(f"{shown} is truncated or damaged: {first}") from None
    names = found.schema_arrow.names
    missing = [f.name for f in arrow_schema(table) if f.name not in names]
    if missing:
        raise HeadgateError(
            f"{shown} lacks {', '.join(missing)}: it was written by another version of headgate."
        )
    if rows is not None and decoded != rows:
        raise HeadgateError(
            f"{shown} has {decoded} rows, {rows} were sealed. Restore it, or run the scenario again."
        )


def frames(spark: SparkSession, trials: Sequence[TrialFiles]) -> dict[str, DataFrame]:
    """Return a DataFrame over all trials for each table. The partition columns `run` and `trial` come first (the files contain them).
    A table that no trial has is an empty DataFrame."""
    result = {}
    for table in TABLES:
        paths = [
            str(t.folder / f"{table}.parquet") for t in trials if (t.folder / f"{table}.parquet").exists()
        ]
        schema = ddl(table)
        result[table] = (
            spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)
        )
    return result


def wide(tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return all tables as one frame with null-extended columns, so that one grouping by (run, trial) sees a whole trial."""
    columns = wide_columns()
    selects = []
    for table in TABLES:
        own = set(arrow_schema(table).names)
        shown = (
            f"`{c}`" if c in own else f"cast(null as {spark_type(k)}) as `{c}`" for c, k in columns.items()
        )
        selects.append(f"select '{table}' as {TABLE_COLUMN}, {', '.join(shown)} from {{{table}}}")  # noqa: S608 - names of the schema
    spark = next(iter(tables.values())).sparkSession
    return spark.sql(" union all ".join(selects), None, **tables)


def trial_of(rows: pa.Table, problems: tuple[str, ...] = ()) -> Trial:
    """Return the tables of one trial from its rows of the wide frame: each with its own schema, sorted by time."""
    keys = rows.column(TABLE_COLUMN)
    tables = {}
    for table in TABLES:
        schema = arrow_schema(table)
        part = rows.filter(pc.equal(keys, table)).select(schema.names)
        tables[table] = part.cast(schema).sort_by(
            [("t_ns", "ascending"), ("process", "ascending"), ("seq", "ascending")]
        )
    return Trial(
        run=rows.column("run")[0].as_py(),
        trial=rows.column("trial")[0].as_py(),
        tables=tables,
        problems=problems,
    )
