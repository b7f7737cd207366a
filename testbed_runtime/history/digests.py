"""Digests of the columns of a sealed table. They show that a value was changed after the trial, whatever its
new value.

A digest depends on the values in their order, not on how Parquet stores them: a file that was rewritten with
the same rows has the same digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Struct

from testbed_runtime.history.damage import Damage

DIGEST_HEX = 16
"""Number of hexadecimal digits. They are enough to detect damage. Digests do not protect against changes by
somebody who computes them again."""
IDENTITY = frozenset(("run", "trial"))
"""Columns that are compared with the names of the run and the trial."""
CHANGED = "is not what was sealed: it was changed after the trial"


class Block(Struct, frozen=True):
    """Consecutive rows of a table: their number, and the digest of each column."""

    rows: Annotated[int, Meta(ge=0)]
    digests: dict[str, str]


def block_of(rows: pa.Table) -> Block:
    """Return the digests of the columns of some rows."""
    return Block(len(rows), {c: digest(rows.column(c)) for c in rows.column_names if c not in IDENTITY})


def changed(table: str, blocks: Sequence[Block], rows: pa.Table, first: int = 0) -> list[Damage]:
    """Return the columns of some rows of a table that differ from its sealed blocks. `first` is the number of
    the first row. Blocks of which only a part is available are not compared."""
    found: dict[str, Damage] = {}
    start = -first
    for block in blocks:
        end = start + block.rows
        if start >= 0 and end <= len(rows):
            for column in block.digests.keys() & set(rows.column_names) - found.keys():
                if digest(rows.column(column).slice(start, block.rows)) != block.digests[column]:
                    problem = f"{CHANGED} (rows {first + start} to {first + end - 1})"
                    found[column] = Damage(table, column, -1, problem)
        start = end
    return [found[column] for column in rows.column_names if column in found]


def recounted(table: str, blocks: Sequence[Block] | None, rows: int) -> list[Damage]:
    """Return a finding if the table has more or fewer rows than its sealed blocks. `blocks` None: an earlier
    version sealed the table."""
    if blocks is None or rows == (sealed := sum(block.rows for block in blocks)):
        return []
    return [Damage(table, "seq", -1, f"is there {rows} times, but {sealed} rows were sealed")]


def digest(column: pa.ChunkedArray) -> str:
    """Return the digest of the values of a column."""
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    found = hashlib.sha256()
    for part in _parts(array):
        found.update(part)
    return found.hexdigest()[:DIGEST_HEX]


def _parts(array: pa.Array) -> Iterator[Any]:
    """Yield the lengths and the values of an array as contiguous bytes, and which are null if any is."""
    if array.null_count:
        yield np.ascontiguousarray(array.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_list(array.type):
        yield _ints(pc.fill_null(pc.list_value_length(array), 0))
        yield from _parts(array.flatten())
    elif pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        array = array.fill_null("" if pa.types.is_string(array.type) else b"")
        yield _ints(pc.binary_length(array))
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
        yield memoryview(data)[ends[0] : ends[-1]] if data is not None and len(array) else b""
    else:
        zero = False if pa.types.is_boolean(array.type) else 0
        yield np.ascontiguousarray(array.fill_null(zero).to_numpy(zero_copy_only=False))


def _ints(lengths: pa.Array) -> Any:
    return np.asarray(lengths, dtype=np.int64)
