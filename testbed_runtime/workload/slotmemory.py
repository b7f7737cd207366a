"""The memory that the state stores of one slot share: write buffers, and a cache of blocks (RocksDB's WriteBufferManager and LRU cache)."""

from __future__ import annotations

from collections import OrderedDict

from testbed_runtime.core.job.statememory import StateBackendConfig
from testbed_runtime.workload.sortedfile import Place, Row

ROW_BYTES = 256
"""Memory that counts for a row: its entry in a dict, a key of two integers, and a value of two integers and a short text."""

CachedBlock = dict[Place, Row]


class SlotMemory:
    """The memory of one slot. Each store has an equal share of the write buffer. Memory used by write buffers is not available to the
    cache."""

    def __init__(self, write_buffer: int, cache: int) -> None:
        self._write_buffer = write_buffer
        self._capacity = cache
        self._buffered: dict[str, int] = {}
        self._blocks: OrderedDict[tuple[str, int], tuple[CachedBlock, int]] = OrderedDict()
        self._cached = 0
        self.misses = 0

    @classmethod
    def of(cls, config: StateBackendConfig) -> SlotMemory:
        return cls(config.write_buffer, config.cache)

    @property
    def used(self) -> int:
        """Bytes of write buffers and blocks."""
        return self._cached + sum(self._buffered.values())

    @property
    def stores(self) -> int:
        """How many stores are open."""
        return len(self._buffered)

    def open(self, store: str) -> None:
        self._buffered[store] = 0

    def close(self, store: str) -> None:
        self._buffered.pop(store, None)

    def must_flush(self, store: str, rows: int) -> bool:
        """Record the size of a store's write buffer. Return whether it has to be written to a file."""
        self._buffered[store] = size = rows * ROW_BYTES
        self._evict()
        return size > self._write_buffer // len(self._buffered)

    def find(self, file: str, block: int) -> CachedBlock | None:
        found = self._blocks.get((file, block))
        if found is None:
            self.misses += 1
            return None
        self._blocks.move_to_end((file, block))
        return found[0]

    def keep(self, file: str, block: int, rows: CachedBlock) -> None:
        """Cache a block, and evict the least recently used blocks if there is no room."""
        size = len(rows) * ROW_BYTES
        self._blocks[file, block] = (rows, size)
        self._cached += size
        self._evict()

    def forget(self, file: str, blocks: int) -> None:
        """Drop the blocks of a file that was deleted."""
        for block in range(blocks):
            _, size = self._blocks.pop((file, block), ({}, 0))
            self._cached -= size

    def _evict(self) -> None:
        while self._blocks and self.used > self._capacity:
            _, (_, size) = self._blocks.popitem(last=False)
            self._cached -= size
