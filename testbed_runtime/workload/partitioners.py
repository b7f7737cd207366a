"""Assign records to subpartitions: hash, rebalance, forward, broadcast."""

from __future__ import annotations

import numpy as np

from testbed_runtime.workload.keys import key_groups, subtasks_of
from testbed_runtime.workload.records import Records, picked


class Partitioner:
    """Splits the batches of one result partition, keeping the order of records within each subpartition."""

    def __init__(
        self, partitioning: str, subpartitions: int, max_parallelism: int, *, start: int = 0
    ) -> None:
        if partitioning not in ("hash", "rebalance", "forward", "broadcast"):
            raise ValueError(f"unknown partitioning {partitioning!r}")
        self._partitioning = partitioning
        self._subpartitions = subpartitions
        self._max_parallelism = max_parallelism
        self._next = start % max(1, subpartitions)

    @property
    def spreads(self) -> bool:
        """Whether the records are divided among the subpartitions."""
        return self._partitioning in ("hash", "rebalance")

    @property
    def supports_unaligned(self) -> bool:
        """Whether barriers may overtake records. Like Flink, not on pointwise and broadcast connections."""
        return self._partitioning in ("hash", "rebalance")

    def split(self, records: Records) -> list[tuple[int, Records]]:
        """Return the non-empty subpartitions in order, each with its records."""
        if self._subpartitions == 1 or self._partitioning == "forward":
            return [(0, records)] if len(records) else []
        if self._partitioning == "broadcast":
            return [(index, records) for index in range(self._subpartitions)] if len(records) else []
        if self._partitioning == "rebalance":
            return self._deal(records)
        groups = key_groups(records["key"], self._max_parallelism)
        targets = subtasks_of(groups, self._subpartitions, self._max_parallelism)
        order = np.argsort(targets, kind="stable")
        ordered = picked(records, order)
        counts = np.bincount(targets, minlength=self._subpartitions).tolist()
        cuts = np.cumsum([0, *counts]).tolist()
        return [
            (index, ordered[cuts[index] : cuts[index + 1]])
            for index in range(self._subpartitions)
            if counts[index]
        ]

    def _deal(self, records: Records) -> list[tuple[int, Records]]:
        first, self._next = self._next, (self._next + len(records)) % self._subpartitions
        offsets = [(index - first) % self._subpartitions for index in range(self._subpartitions)]
        return [
            (index, picked(records, slice(offset, None, self._subpartitions)))
            for index, offset in enumerate(offsets)
            if offset < len(records)
        ]
