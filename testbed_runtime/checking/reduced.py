"""Reduce a trial to what `checking` reads. Every metric of the reduced trial equals that of the whole one.

    tasks       the columns that checking reads
    latency     one histogram per time window, summed over the sinks
    channels    one judged row per channel (`credit`)
    frames      no metric reads them; they are validated, and count towards the numbering of rows
    others      unchanged: they are small

A large trial is reduced in parts, and `assemble` merges them: `reduce_rows` of all rows, or of any split of them, gives the same trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from testbed_runtime.checking.credit import CHANNELS_SCHEMA, CREDIT, by_channel
from testbed_runtime.checking.latency import merge_sinks
from testbed_runtime.history.numbers import COUNTS_SCHEMA, NUMBERS, add_up, count_part
from testbed_runtime.history.schema import COMMON, TABLES, Trial, arrow_schema

WHOLE = ("events", "checkpoints", "faults", "waits", "delivery")
"""Tables that are kept unchanged."""
COLUMNS: dict[str, tuple[str, ...]] = {
    "tasks": (
        "process", "seq", "t_ns", "task", "vertex", "role", "attempt", "records_in", "records_out", "bytes_in", "bytes_out", "busy_ns",
        "backpressured_ns", "idle_ns", "lag_ns",
    ),
    "channels": ("t_ns", "process", "boot_id", "side", "task", "attempt", "peer", "local", "credit", "announced", "used"),
    "latency": tuple(arrow_schema("latency").names),
    "frames": (),
    **{name: tuple(arrow_schema(name).names) for name in WHOLE},
}  # fmt: skip
"""The columns that checking reads of each table."""


def columns(table: str, *, whole: bool = False) -> list[str]:
    """Return the columns to read of a table: the common ones, and those that any metric depends on. Both are
    validated. For a `whole` trial, all columns of frames are included, to be validated too."""
    kept = arrow_schema(table).names if table == "tasks" or (whole and table == "frames") else COLUMNS[table]
    return list(dict.fromkeys([*(name for name, _ in COMMON), *kept]))


def reduce_rows(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Reduce some rows of a trial; `tables` has at least `columns` of each. Channels stay as they are."""
    parts = {name: rows.select(COLUMNS[name]) for name, rows in tables.items() if name != "frames"}
    if "latency" in parts:
        parts["latency"] = merge_sinks(parts["latency"])
    return {**parts, NUMBERS: count_part(tables)}


def assemble(run: str, trial: str, parts: Mapping[str, Sequence[pa.Table]], problems: Sequence[str]) -> Trial:
    """Return the reduced trial that the parts add up to. Its channels have been judged, or all their rows are
    among the parts."""
    known = {name: tables for name, tables in parts.items() if tables}
    found = {name: pa.concat_tables(own, promote_options="permissive") for name, own in known.items()}
    tables = {name: found[name] for name in WHOLE if name in found}
    if "tasks" in found:
        schema = arrow_schema("tasks")
        tables["tasks"] = found["tasks"].cast(pa.schema([schema.field(name) for name in COLUMNS["tasks"]]))
    if "latency" in found:
        tables["latency"] = merge_sinks(found["latency"])
    tables[NUMBERS] = add_up(found[NUMBERS]) if NUMBERS in found else COUNTS_SCHEMA.empty_table()
    judged = [found[CREDIT]] if CREDIT in found else []
    judged += [by_channel(found["channels"])] if "channels" in found else []
    tables[CREDIT] = pa.concat_tables([CHANNELS_SCHEMA.empty_table(), *judged])
    return Trial(run, trial, tables, tuple(problems))


def reduced(trial: Trial) -> Trial:
    """Return the reduced form of a trial that is in memory."""
    parts = reduce_rows({name: trial.table(name) for name in TABLES})
    return assemble(trial.run, trial.trial, {name: [rows] for name, rows in parts.items()}, trial.problems)


def channel_buckets(rows: pa.Table, buckets: int) -> list[pa.Table]:
    """Split rows of `channels` so that all rows of a channel, of both sides, are in the same bucket of every split."""
    ends = [_codes(rows.column(name), buckets) for name in ("task", "peer")]
    chosen = (ends[0] + ends[1]) % buckets
    return [rows.filter(pa.array(chosen == bucket)) for bucket in range(buckets)]


def _codes(column: pa.ChunkedArray, buckets: int) -> npt.NDArray[np.int64]:
    """Return a number for each task name that does not depend on the other rows."""
    encoded = pc.dictionary_encode(column).combine_chunks()
    names = [name.encode() for name in encoded.dictionary.to_pylist()]
    numbers = [sum((i + 1) * b for i, b in enumerate(name)) % buckets for name in names]
    places = encoded.indices.to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.int64] = np.asarray(numbers or [0], dtype=np.int64)[places]
    return found
