"""The options of the state backend: its kind, incremental checkpoints or not, and its share of managed memory.

The sizes are those of Flink's RocksDBMemoryControllerUtils: the write buffers are charged to the cache, whose capacity is
smaller than the memory because a write buffer may exceed its limit by half.
"""

from __future__ import annotations

from msgspec import Struct

from testbed_runtime.core.options import Options
from testbed_runtime.core.processmemory import process_memory

UNMANAGED_WRITE_BUFFER, UNMANAGED_CACHE = 64 * 1024**2, 8 * 1024**2
"""Bytes of each store if it does not use managed memory: RocksDB's defaults."""


class StateBackendConfig(Struct, frozen=True):
    """The configuration of the state backend of one TaskManager. Sizes are bytes."""

    on_disk: bool
    """`state.backend.type: rocksdb`."""
    incremental: bool
    shared: bool
    """The stores of a slot share its managed memory."""
    slot_memory: int
    """Managed memory of a slot; 0 without `shared`."""
    write_buffer: int
    """Bytes of rows that are not in a file yet. When there are more, they are written to a file."""
    cache: int
    """Capacity of the block cache, write buffers included."""
    transfer_threads: int

    @classmethod
    def of(cls, options: Options, slots: int, managed_memory: int | None = None) -> StateBackendConfig:
        """Return the sizes for a TaskManager, by default with the managed memory that Flink derives. Raises MemoryRefused if
        the sizes of its process do not fit."""
        prefix = "state.backend.rocksdb."
        managed = options.boolean(prefix + "memory.managed")
        on_disk = options.string("state.backend.type") == "rocksdb"
        total = 0
        if on_disk and managed:
            total = (process_memory(options).managed if managed_memory is None else managed_memory) // slots
        ratio = options.number(prefix + "memory.write-buffer-ratio")
        return cls(
            on_disk=on_disk,
            incremental=options.boolean("execution.checkpointing.incremental"),
            shared=managed,
            slot_memory=total,
            write_buffer=mutable_limit(int(2 * total * ratio / 3)) if managed else UNMANAGED_WRITE_BUFFER,
            cache=int((3 - ratio) * total / 3) if managed else UNMANAGED_CACHE,
            transfer_threads=options.integer(prefix + "checkpoint.transfer.thread.num"),
        )


def mutable_limit(write_buffer: int) -> int:
    """Return the bytes of write buffers beyond which RocksDB writes one to a file."""
    return write_buffer * 7 // 8
