"""Cut the histories of a run into pieces that one worker reads at a time, and read such a piece with the columns that are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.checking.baseline import with_noise
from testbed_runtime.checking.reduced import columns
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.evaluation.tables import TrialFiles
from testbed_runtime.history.contradictions.owners import check_owners
from testbed_runtime.history.crosschecks import check_across
from testbed_runtime.history.damage import Damage
from testbed_runtime.history.digests import changed, recounted
from testbed_runtime.history.numbers import NUMBERS
from testbed_runtime.history.reader import open_table, read_rows, read_seal, require_rows
from testbed_runtime.history.schema import TABLES, Trial
from testbed_runtime.history.validation import (
    DamagedHistory,
    check_causality,
    check_counters,
    check_order,
    check_repeated,
    check_rows,
    check_sealed,
    check_times,
)

SPLIT_ROWS = 500_000
"""Maximum rows of one piece. A trial with more rows is split; a smaller trial is judged by the task that reads it."""
BUCKET_ROWS = 250_000
"""About the number of rows of `channels` that one worker judges at a time."""
NOISE_TABLES = ("tasks", "events", "checkpoints")
"""The tables from which the noise of a control trial follows."""
SAMPLED = ("frames", "channels", "tasks", "latency")
"""Tables that grow with the size of a job. Only they are split."""


class Split(Struct, frozen=True):
    """Some row groups of some tables of one trial. `trial` is its index among the trials."""

    trial: int
    groups: Mapping[str, tuple[int, ...] | None]
    """Row groups per table; None: all of them."""
    whole: bool
    """Whether the piece is the whole trial."""
    buckets: int = 1
    """Number of buckets into which the trial's channels are split."""


def plan(trials: Sequence[TrialFiles]) -> list[Split]:
    """Return the pieces of all trials. Reads the footers of large trials only."""
    return [split for index, trial in enumerate(trials) for split in _of_trial(index, trial)]


def with_control_noise(trials: Sequence[TrialFiles]) -> list[TrialFiles]:
    """Return the trials, each fault trial's entry with the noise of its control trial, which widens what counts as steady.
    Raises HeadgateError for a control trial that is damaged."""
    by_id = {files.trial: files for files in trials}

    def read_control(entry: TrialEntry) -> Trial:
        files = by_id[entry.trial]
        return Trial(files.run, files.trial, read(Split(0, dict.fromkeys(NOISE_TABLES), whole=False), files))

    entries = with_noise([files.entry for files in trials], read_control)
    return [replace(files, entry=entry) for files, entry in zip(trials, entries, strict=True)]


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
    with open_table(trial.folder, table) as file:
        rows = file.metadata.num_rows
        require_rows(trial.folder, table, rows, trial.rows[table])
        if more := recounted(table, read_seal(trial.folder).blocks.get(table), rows):
            raise DamagedHistory(trial.trial, more)
        return file.metadata


def read(split: Split, trial: TrialFiles) -> dict[str, pa.Table]:
    """Return the validated rows of a piece, with the columns of `reduced.columns`.
    Raises HeadgateError with the path of a file that is missing or unreadable, and DamagedHistory with table, column and row."""
    tables: dict[str, pa.Table] = {}
    found: list[Damage] = []
    blocks = read_seal(trial.folder).blocks
    for table, groups in split.groups.items():
        wanted = columns(table, whole=split.whole)
        tables[table], first_row = read_rows(trial.folder, table, trial.rows[table], wanted, groups)
        problems = check_rows(table, tables[table], run=trial.run, trial=trial.trial)
        if not split.whole:
            problems += _together(trial, {table: tables[table]})
            problems = problems or changed(table, blocks.get(table, ()), tables[table], first_row)
        found += [replace(p, row=p.row + first_row) if p.row >= 0 else p for p in problems]
    if split.whole:
        whole = Trial(trial.run, trial.trial, tables)
        found += _together(trial, tables) + check_owners(whole) + check_causality(whole)
        found = found or check_across(whole, trial.entry) or check_sealed(whole, blocks)
    if found:
        raise DamagedHistory(trial.trial, found)
    return tables


def _together(trial: TrialFiles, tables: Mapping[str, pa.Table]) -> list[Damage]:
    rows = Trial(trial.run, trial.trial, tables)
    return check_repeated(rows) + check_order(rows) + check_times(rows, trial.entry)


def check_assembled(trial: Trial, entry: TrialEntry) -> None:
    """Check a reduced trial for damage that no single piece of it could show. Raises DamagedHistory. Latencies and channels are
    already merged, so they are not checked."""
    counts = [c for c in trial.tables[NUMBERS].to_pylist() if c["repeated_in"]]
    again = [f"{c['rows'] - c['distinct']} rows of {c['process']} are repeated" for c in counts]
    repeated = [Damage(c["repeated_in"], "seq", -1, what) for c, what in zip(counts, again, strict=True)]
    fell = list(check_counters(trial.table("tasks"))) + check_causality(trial)
    kept = {name: table for name, table in trial.tables.items() if name != "latency"}
    fell = fell or check_across(Trial(trial.run, trial.trial, kept), entry)
    if found := repeated + [replace(damage, row=-1) for damage in fell]:
        raise DamagedHistory(trial.trial, found)
