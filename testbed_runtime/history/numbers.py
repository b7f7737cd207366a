"""Count the rows of each process by their numbers: how many rows there are, how many numbers are distinct,
and the highest number.

Rows of all tables share one numbering per process. Parts of a history are counted one by one and added up
exactly: a part holds the numbers that it has seen, as a bitmap where they are dense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from testbed_runtime.core.grouping import grouped
from testbed_runtime.history.columns import Ints, ints, places
from testbed_runtime.history.schema import TABLES, Trial

NUMBERS = "numbers"
"""Name of the table of counts among the tables of a reduced trial."""
KEY = ("process", "boot_id")
PARTS_SCHEMA = pa.schema(
    [
        ("process", pa.string()),
        ("boot_id", pa.string()),
        ("table", pa.string()),
        ("rows", pa.int64()),
        ("first", pa.int64()),
        ("bitmap", pa.binary()),  # bit i (LSB first): the number first + i; null if the numbers are sparse
        ("numbers", pa.list_(pa.int64())),  # the distinct numbers, if there is no bitmap
    ]
)
COUNTS_SCHEMA = pa.schema(
    [
        ("process", pa.string()),
        ("boot_id", pa.string()),
        ("rows", pa.int64()),
        ("distinct", pa.int64()),
        ("highest", pa.int64()),
        # the first table with a number that the process used before, else empty
        ("repeated_in", pa.string()),
        ("tables", pa.list_(pa.string())),  # in which the process has rows
    ]
)
SPARSE = 64
"""With fewer than one of SPARSE numbers, a bitmap takes more space than the numbers themselves."""


def count_part(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the numbers of some rows (PARTS_SCHEMA). Each table has the columns of KEY and `seq`."""
    parts = []
    for name, table in tables.items():
        for (process, boot_id), seqs in by_key(table):
            distinct = _distinct(seqs)
            span = int(distinct[-1] - distinct[0]) + 1
            dense = span <= SPARSE * len(distinct)
            present = np.zeros(span if dense else 0, dtype=np.bool_)
            if dense:
                present[distinct - distinct[0]] = True
            bitmap = np.packbits(present, bitorder="little").tobytes() if dense else None
            counted = {"table": name, "rows": len(seqs), "first": int(distinct[0])}
            held = {"bitmap": bitmap, "numbers": None if dense else distinct}
            parts.append({"process": process, "boot_id": boot_id, **counted, **held})
    return pa.Table.from_pylist(parts, schema=PARTS_SCHEMA)


def add_up(parts: pa.Table) -> pa.Table:
    """Return the counts of each process (COUNTS_SCHEMA), sorted by process, from the parts of a whole history."""
    of_process = grouped(((part["process"], part["boot_id"]), part) for part in parts.to_pylist())
    counts = [
        {"process": process, "boot_id": boot_id, **_add(sorted(found, key=lambda p: str(p["table"])))}
        for (process, boot_id), found in sorted(of_process.items())
    ]
    return pa.Table.from_pylist(counts, schema=COUNTS_SCHEMA)


def _add(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    distinct = np.zeros(0, dtype=np.int64)
    rows, repeated_in, tables = 0, "", []
    for table, several in groupby(parts, key=lambda p: str(p["table"])):
        mine = list(several)
        tables.append(table)
        rows += sum(p["rows"] for p in mine)
        distinct = _distinct(np.concatenate([distinct, *(_numbers(p) for p in mine)]))
        if rows > len(distinct) and not repeated_in:
            repeated_in = table
    counts = {"rows": rows, "distinct": len(distinct), "highest": int(distinct[-1])}
    return {**counts, "repeated_in": repeated_in, "tables": tables}


def counts_of(trial: Trial) -> pa.Table:
    """Return the counts of a trial: those of a reduced trial, otherwise counted from its rows."""
    found = trial.tables.get(NUMBERS)
    return add_up(count_part({t: trial.table(t) for t in TABLES})) if found is None else found


def by_key(rows: pa.Table) -> Iterator[tuple[tuple[str, str], Ints]]:
    """Yield ((process, boot_id), numbers) for each process in the rows."""
    numbers = ints(rows, "seq")
    for (process, boot_id), where in places(rows, *KEY).items():
        yield (process, boot_id), numbers[where]


def _numbers(part: Mapping[str, Any]) -> Ints:
    if part["bitmap"] is None:
        return np.asarray(part["numbers"], dtype=np.int64)
    bits = np.unpackbits(np.frombuffer(part["bitmap"], dtype=np.uint8), bitorder="little")
    return np.asarray(np.flatnonzero(bits) + part["first"], dtype=np.int64)


def _distinct(numbers: Ints) -> Ints:
    """Return the distinct numbers in ascending order; several times faster than np.unique if they are dense."""
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < SPARSE * len(numbers):
        present = np.zeros(high - low + 1, dtype=np.bool_)
        present[numbers - low] = True
        return np.asarray(np.flatnonzero(present) + low, dtype=np.int64)
    ascending = np.sort(numbers)
    return np.asarray(ascending[np.diff(ascending, prepend=ascending[0] - 1) > 0], dtype=np.int64)
