"""Assign records to subpartitions: hash, rebalance, forward, broadcast."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from testbed_runtime.core.exchange.partition import EVERY
from testbed_runtime.core.exchange.records import LENGTH_BYTES
from testbed_runtime.workload.keys import Ints, key_groups, subtasks_of
from testbed_runtime.workload.records import Block, Records, framed, picked

Part: TypeAlias = "tuple[int, memoryview, int]"
"""A subpartition (or EVERY one), the bytes for it, and the number of records."""

SMALL_KEYS = 1 << 16
"""Keys below this have a table of their subtasks: a lookup instead of fifteen passes over a batch."""


@cache
def _targets_of_small_keys(subpartitions: int, max_parallelism: int) -> Ints:
    return subtasks_of(key_groups(np.arange(SMALL_KEYS), max_parallelism), subpartitions, max_parallelism)


class _Division:
    """Records, grouped by subpartition."""

    def __init__(self, records: Records, targets: Ints) -> None:
        self.targets = targets.tolist()
        self._stride = LENGTH_BYTES + records.dtype.itemsize
        # numpy sorts 16 bits by radix: 2,048 records in a fifth of the time
        order = np.argsort(targets.astype(np.uint16), kind="stable")
        self._data = framed(picked(records, order))
        arranged, cuts = order.tolist(), np.flatnonzero(np.diff(targets[order])) + 1
        self._places: dict[int, tuple[int, list[int]]] = {
            self.targets[arranged[first]]: (first, arranged[first:end])
            for first, end in pairwise([0, *cuts.tolist(), len(arranged)])
        }
        """The place of the first record of each subpartition in the data, and the numbers of its records."""

    def parts(self) -> list[Part]:
        return [self._part(target, 0, len(numbers)) for target, (_, numbers) in self._places.items()]

    def parts_between(self, start: int, end: int) -> list[Part]:
        """Return the parts of the records with these numbers."""
        found = []
        for target in sorted(set(self.targets[start:end])):
            _, numbers = self._places[target]
            found.append(self._part(target, bisect_left(numbers, start), bisect_left(numbers, end)))
        return found

    def _part(self, target: int, low: int, high: int) -> Part:
        first, _ = self._places[target]
        return target, self._data[(first + low) * self._stride : (first + high) * self._stride], high - low


class Partitioner:
    """Splits the batches of one result partition, keeping the order of records within each subpartition."""

    __slots__ = ("_divided", "_division", "_max_parallelism", "_next", "_only", "_subpartitions", "spreads")

    def __init__(
        self, partitioning: str, subpartitions: int, max_parallelism: int, *, start: int = 0
    ) -> None:
        if partitioning not in ("hash", "rebalance", "forward", "broadcast"):
            raise ValueError(f"unknown partitioning {partitioning!r}")
        self.spreads = partitioning in ("hash", "rebalance")
        """Whether the records are divided among the subpartitions."""
        self._subpartitions = subpartitions
        self._max_parallelism = max_parallelism
        self._only = 0 if partitioning == "forward" or subpartitions == 1 else None
        """The subpartition that gets every record, or EVERY one. None if the records are divided."""
        if partitioning == "broadcast" and subpartitions > 1:
            self._only = EVERY
        self._next: int | None = start % max(1, subpartitions) if partitioning == "rebalance" else None
        """The subpartition of the next record, if they get the records in turn. None if the key decides."""
        self._divided: Block | None = None
        self._division: _Division | None = None
        """The last block that was divided, and its division."""

    @property
    def supports_unaligned(self) -> bool:
        """Whether barriers may overtake records. Like Flink, not on pointwise and broadcast connections."""
        return self.spreads

    def parts(self, records: Records) -> list[Part]:
        """Return the non-empty subpartitions in order, each with the bytes of its records on the wire and their number. If all
        subpartitions get the same records, return them once, for EVERY subpartition."""
        if not len(records):
            return []
        if self._only is not None:
            return [(self._only, framed(records), len(records))]
        if self._next is not None:
            return self._dealt(records, self._next)
        targets = self._targets(records["key"])
        if len(records) == 1 or np.count_nonzero(targets == targets[0]) == len(records):
            return [(int(targets[0]), framed(records), len(records))]
        return _Division(records, targets).parts()

    def parts_of(self, block: Block, start: int, end: int) -> list[Part]:
        """Like `parts`, for some records of a block. The block is grouped by subpartition once, not for each of its parts."""
        if self._only is not None:
            return [(self._only, block.framed(start, end), end - start)]
        if self._next is not None or end - start == len(block):
            return self.parts(block.records[start:end])
        if self._division is None or self._divided is not block:
            self._divided = block
            self._division = _Division(block.records, self._targets(block.records["key"]))
        if end - start == 1:
            return [(self._division.targets[start], block.framed(start, end), 1)]
        return self._division.parts_between(start, end)

    def _targets(self, keys: Ints) -> Ints:
        """Return the subtask that owns each key. Small keys, such as those of generated records, are looked up in a table."""
        if int(np.maximum.reduce(keys.view(np.uint64))) < SMALL_KEYS:
            return _targets_of_small_keys(self._subpartitions, self._max_parallelism)[keys]
        return subtasks_of(
            key_groups(keys, self._max_parallelism), self._subpartitions, self._max_parallelism
        )

    def _dealt(self, records: Records, first: int) -> list[Part]:
        """Return the parts of records that the subpartitions get in turn, beginning with `first`."""
        self._next = (first + len(records)) % self._subpartitions
        offsets = [(index - first) % self._subpartitions for index in range(self._subpartitions)]
        dealt = [
            (index, picked(records, slice(offset, None, self._subpartitions)))
            for index, offset in enumerate(offsets)
            if offset < len(records)
        ]
        return [(index, framed(part), len(part)) for index, part in dealt]
