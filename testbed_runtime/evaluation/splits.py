"""Cut the histories of a run into pieces that one worker reads at a time, and read such a piece with the columns that are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from testbed_runtime.checking.reduced import columns
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation.tables import TrialFiles
from testbed_runtime.history.schema import TABLES, arrow_schema

SPLIT_ROWS = 500_000
"""Rows of one piece. A trial with more rows is split; the others are judged where they are read."""
BUCKET_ROWS = 250_000
"""Rows of `channels` that one worker judges at a time."""
SAMPLED = ("frames", "channels", "tasks", "latency")
"""Tables that grow with the size of a job. Only they are split."""


@dataclass(frozen=True, slots=True)
class Split:
    """Some row groups of some tables of one trial. `trial` is its index among the trials."""

    trial: int
    groups: Mapping[str, tuple[int, ...] | None]
    """Row groups per table; None: all of them."""
    whole: bool
    """This is the whole trial."""
    buckets: int = 1
    """Into how many buckets the trial's channels are split."""


def plan(trials: Sequence[TrialFiles]) -> list[Split]:
    """Return the pieces of all trials. Reads the footers of large trials only."""
    return [split for index, trial in enumerate(trials) for split in _of_trial(index, trial)]


def _of_trial(index: int, trial: TrialFiles) -> Iterator[Split]:
    if sum(trial.rows.values()) <= SPLIT_ROWS:
        yield Split(index, dict.fromkeys(TABLES), whole=True)
        return
    buckets = max(1, -(-trial.rows.get("channels", 0) // BUCKET_ROWS))
    yield Split(index, {t: None for t in TABLES if t not in SAMPLED}, whole=False)
    for table in SAMPLED:
        groups: list[int] = []
        rows = 0
        found = _footer(trial, table)
        for number in range(found.num_row_groups):
            groups.append(number)
            rows += found.row_group(number).num_rows
            if rows >= SPLIT_ROWS:
                yield Split(index, {table: tuple(groups)}, whole=False, buckets=buckets)
                groups, rows = [], 0
        if groups:
            yield Split(index, {table: tuple(groups)}, whole=False, buckets=buckets)


def _footer(trial: TrialFiles, table: str) -> pq.FileMetaData:
    with _opened(trial, table) as file:
        if file.metadata.num_rows != trial.rows.get(table, file.metadata.num_rows):
            raise _miscounted(trial, table, file.metadata.num_rows)
        return file.metadata


def read(split: Split, trial: TrialFiles) -> dict[str, pa.Table]:
    """Return the rows of a piece, with the columns that checking reads.
    Raises HeadgateError with the path of a file that is missing, damaged or incomplete."""
    return {table: _read(trial, table, groups) for table, groups in split.groups.items()}


def _read(trial: TrialFiles, table: str, groups: tuple[int, ...] | None) -> pa.Table:
    with _opened(trial, table) as file:
        missing = [f.name for f in arrow_schema(table) if f.name not in file.schema_arrow.names]
        if missing:
            raise HeadgateError(
                f"{trial.shown(table)} lacks {', '.join(missing)}: it was written by another version of headgate."
            )
        wanted = range(file.num_row_groups) if groups is None else groups
        try:
            rows = file.read_row_groups(list(wanted), columns=columns(table), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(trial, table, error) from None
    if groups is None and len(rows) != trial.rows.get(table, len(rows)):
        raise _miscounted(trial, table, len(rows))
    return rows


def _opened(trial: TrialFiles, table: str) -> pq.ParquetFile:
    path = Path(trial.folder) / f"{table}.parquet"
    schema = arrow_schema(table)
    words = [f.name for f in schema if pa.types.is_string(f.type)] if table in SAMPLED else []
    try:
        return pq.ParquetFile(path, read_dictionary=words, memory_map=True)
    except FileNotFoundError:
        raise HeadgateError(
            f"{trial.shown(table)} is missing from a sealed trial. Restore it, or run the scenario again."
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise _damaged(trial, table, error) from None


def _damaged(trial: TrialFiles, table: str, error: Exception) -> HeadgateError:
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return HeadgateError(f"{trial.shown(table)} is truncated or damaged: {first}")


def _miscounted(trial: TrialFiles, table: str, rows: int) -> HeadgateError:
    return HeadgateError(
        f"{trial.shown(table)} has {rows} rows, {trial.rows[table]} were sealed. Restore it, or run the scenario again."
    )
