"""The options of the state backend: its kind, incremental checkpoints or not, and its share of managed memory.

The sizes are those of Flink's RocksDBMemoryControllerUtils: the write buffers are charged to the cache, whose capacity is
smaller than the memory because a write buffer may exceed its limit by half.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from testbed_runtime.core.errors import OptionRefused, require_option
from testbed_runtime.core.options import BY_KEY, Options
from testbed_runtime.core.processmemory import process_memory
from testbed_runtime.core.values import java_double
from testbed_runtime.core.versions import TRANSFERS_SHARE_THREADS, has

ROCKSDB = "state.backend.rocksdb."
WRITE_BUFFER_RATIO = f"{ROCKSDB}memory.write-buffer-ratio"
HIGH_PRIORITY_RATIO = f"{ROCKSDB}memory.high-prio-pool-ratio"
FIXED_PER_SLOT = f"{ROCKSDB}memory.fixed-per-slot"
TRANSFER_THREADS = f"{ROCKSDB}checkpoint.transfer.thread.num"
UNDEFINED_THREADS = -1
"""Flink's UNDEFINED_NUMBER_OF_TRANSFER_THREADS, which stands for the default."""
UNMANAGED_WRITE_BUFFER, UNMANAGED_CACHE = 64 * 1024**2, 8 * 1024**2
"""Bytes of each store if it does not use managed memory: RocksDB's defaults."""


def _on_disk(options: Options) -> bool:
    return options.string("state.backend.type") == "rocksdb"


def share_problems(options: Options) -> Iterator[tuple[str, str, str]]:
    """Yield the key, problem and hint of each share of the memory that is not between 0 and 1."""
    for key in (WRITE_BUFFER_RATIO, HIGH_PRIORITY_RATIO):
        if not 0 <= options.number(key) <= 1:
            yield key, "must be between 0 and 1", f"the default is {BY_KEY[key].default}"


def check_state_memory(options: Options) -> None:
    """Raise OptionRefused as Flink's RocksDBMemoryConfiguration.validate does: write buffers and high-priority blocks must leave
    a part of the cache. Flink checks this for `rocksdb` only, with and without managed memory. Shares that are not between 0
    and 1 are left to `share_problems`."""
    if not _on_disk(options) or any(share_problems(options)):
        return
    ratio, high = options.number(WRITE_BUFFER_RATIO), options.number(HIGH_PRIORITY_RATIO)
    text = f"Invalid configuration: writeBufferRatio {java_double(ratio)} with highPriPoolRatio {java_double(high)}"
    only_high = options.is_set(HIGH_PRIORITY_RATIO) and not options.is_set(WRITE_BUFFER_RATIO)
    hint = "make one of the two ratios smaller: 2w / (3 − w) + h must be below 1 (w: write-buffer-ratio, h: high-prio-pool-ratio)"
    key = HIGH_PRIORITY_RATIO if only_high else WRITE_BUFFER_RATIO
    require_option(2 * ratio / (3 - ratio) + high < 1, text, key, hint)


def transfer_problem(options: Options) -> str:
    """Return why Headgate cannot have this number of transfer threads, or an empty string if it can."""
    shared = has(options.flink_version, TRANSFERS_SHARE_THREADS)
    if not shared or options.integer(TRANSFER_THREADS) >= UNDEFINED_THREADS:
        return ""
    return "must be at least -1: Flink uses the threads of cluster.io-pool.size for less, which Headgate does not have"


def _transfer_threads(options: Options) -> int:
    """Return how many files are transferred at a time: the default of the version if the option is -1, and one if it is 0 or,
    until 1.19, less than -1."""
    threads = options.integer(TRANSFER_THREADS)
    if threads == UNDEFINED_THREADS:
        threads = int(BY_KEY[TRANSFER_THREADS].default_in(options.flink_version))
    return max(1, threads)


class StateBackendConfig(Struct, frozen=True):
    """The configuration of the state backend of one TaskManager. Sizes are bytes."""

    on_disk: bool
    """`state.backend.type: rocksdb`."""
    incremental: bool
    shared: bool
    """The stores of a slot share its memory, managed or fixed."""
    slot_memory: int
    """That memory; 0 without `shared`."""
    write_buffer: int
    """Bytes of rows that are not in a file yet. When there are more, they are written to a file."""
    cache: int
    """Capacity of the block cache, write buffers included."""
    transfer_threads: int

    @classmethod
    def of(cls, options: Options, slots: int, managed_memory: int | None = None) -> StateBackendConfig:
        """Return the sizes for a TaskManager, by default with the managed memory that Flink derives. Raises MemoryRefused if
        the sizes of its process do not fit, and OptionRefused (`share_problems`, `check_state_memory`)."""
        for key, problem, hint in share_problems(options):
            raise OptionRefused("IllegalArgumentException", problem, key, hint)
        check_state_memory(options)
        fixed = options.is_set(FIXED_PER_SLOT)
        shared = fixed or options.boolean(f"{ROCKSDB}memory.managed")
        on_disk = _on_disk(options)
        total = 0
        if on_disk and fixed:
            total = options.memory(FIXED_PER_SLOT)
        elif on_disk and shared:
            total = (process_memory(options).managed if managed_memory is None else managed_memory) // slots
        ratio = options.number(WRITE_BUFFER_RATIO)
        return cls(
            on_disk=on_disk,
            incremental=options.boolean("execution.checkpointing.incremental"),
            shared=shared,
            slot_memory=total,
            write_buffer=mutable_limit(int(2 * total * ratio / 3)) if shared else UNMANAGED_WRITE_BUFFER,
            cache=int((3 - ratio) * total / 3) if shared else UNMANAGED_CACHE,
            transfer_threads=_transfer_threads(options),
        )


def mutable_limit(write_buffer: int) -> int:
    """Return the bytes of write buffers beyond which RocksDB writes one to a file."""
    return write_buffer * 7 // 8
