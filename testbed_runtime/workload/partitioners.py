"""Assign records to subpartitions: hash, rebalance, forward, broadcast."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from testbed_runtime.core.exchange.partition import EVERY
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
    """A block of records, grouped by subpartition."""

    def __init__(self, block: Block, targets: Ints) -> None:
        self.block = block
        self._targets = targets.tolist()
        order = np.argsort(targets, kind="stable")
        self._data = framed(picked(block.records, order))
        arranged, cuts = order.tolist(), np.flatnonzero(np.diff(targets[order])) + 1
        self._places: dict[int, tuple[int, list[int]]] = {
            self._targets[arranged[first]]: (first, arranged[first:end])
            for first, end in pairwise([0, *cuts.tolist(), len(arranged)])
        }
        """The place of the first record of each subpartition in the data, and the numbers of its records in the block."""

    def parts(self, start: int, end: int) -> list[Part]:
        stride, data = self.block.stride, self._data
        if end - start == 1:
            return [(self._targets[start], self.block.framed(start, end), 1)]
        found = []
        for target in sorted(set(self._targets[start:end])):
            place, numbers = self._places[target]
            low, high = bisect_left(numbers, start), bisect_left(numbers, end)
            found.append((target, data[(place + low) * stride : (place + high) * stride], high - low))
        return found


class Partitioner:
    """Splits the batches of one result partition, keeping the order of records within each subpartition."""

    __slots__ = (
        "_division", "_is_shared", "_is_single", "_max_parallelism", "_next", "_partitioning",
        "_subpartitions",
    )  # fmt: skip

    def __init__(
        self, partitioning: str, subpartitions: int, max_parallelism: int, *, start: int = 0
    ) -> None:
        if partitioning not in ("hash", "rebalance", "forward", "broadcast"):
            raise ValueError(f"unknown partitioning {partitioning!r}")
        self._partitioning = partitioning
        self._subpartitions = subpartitions
        self._max_parallelism = max_parallelism
        self._next = start % max(1, subpartitions)
        self._is_shared = partitioning == "broadcast" and subpartitions > 1
        """Whether several subpartitions get every record."""
        self._is_single = partitioning == "forward" or subpartitions == 1
        """Whether one subpartition gets every record."""
        self._division: _Division | None = None

    @property
    def spreads(self) -> bool:
        """Whether the records are divided among the subpartitions."""
        return self._partitioning in ("hash", "rebalance")

    @property
    def supports_unaligned(self) -> bool:
        """Whether barriers may overtake records. Like Flink, not on pointwise and broadcast connections."""
        return self._partitioning in ("hash", "rebalance")

    def parts(self, records: Records) -> list[Part]:
        """Return the non-empty subpartitions in order, each with the bytes of its records on the wire and their number. If all
        subpartitions get the same records, return them once, for EVERY subpartition."""
        if self._is_single and len(records):
            return [(0, framed(records), len(records))]
        if self._is_shared and len(records):
            return [(EVERY, framed(records), len(records))]
        return [(index, framed(part), len(part)) for index, part in self.split(records)]

    def parts_of(self, block: Block, start: int, end: int) -> list[Part]:
        """Like `parts`, for some records of a block. The block is grouped by subpartition once, not for each of its parts."""
        if self._is_single:
            return [(0, block.framed(start, end), end - start)]
        if self._is_shared:
            return [(EVERY, block.framed(start, end), end - start)]
        if self._partitioning == "rebalance" or end - start == len(block):
            return self.parts(block.records[start:end])
        if self._division is None or self._division.block is not block:
            self._division = _Division(block, self._targets(block.records["key"]))
        return self._division.parts(start, end)

    def split(self, records: Records) -> list[tuple[int, Records]]:
        """Return the non-empty subpartitions in order, each with its records."""
        if not len(records):
            return []
        if self._is_single:
            return [(0, records)]
        if self._is_shared:
            return [(index, records) for index in range(self._subpartitions)]
        if self._partitioning == "rebalance":
            return self._deal(records)
        targets = self._targets(records["key"])
        if len(records) == 1 or np.count_nonzero(targets == targets[0]) == len(records):
            return [(int(targets[0]), records)]
        order = np.argsort(targets, kind="stable")
        ordered = picked(records, order)
        counts = np.bincount(targets, minlength=self._subpartitions).tolist()
        cuts = np.cumsum([0, *counts]).tolist()
        return [
            (index, ordered[cuts[index] : cuts[index + 1]])
            for index in range(self._subpartitions)
            if counts[index]
        ]

    def _targets(self, keys: Ints) -> Ints:
        """Return the subtask that owns each key. Small keys, such as those of generated records, are looked up in a table."""
        if int(np.maximum.reduce(keys.view(np.uint64))) < SMALL_KEYS:
            return _targets_of_small_keys(self._subpartitions, self._max_parallelism)[keys]
        return subtasks_of(
            key_groups(keys, self._max_parallelism), self._subpartitions, self._max_parallelism
        )

    def _deal(self, records: Records) -> list[tuple[int, Records]]:
        first, self._next = self._next, (self._next + len(records)) % self._subpartitions
        offsets = [(index - first) % self._subpartitions for index in range(self._subpartitions)]
        return [
            (index, picked(records, slice(offset, None, self._subpartitions)))
            for index, offset in enumerate(offsets)
            if offset < len(records)
        ]
