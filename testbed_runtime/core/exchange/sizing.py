"""Compute how many network buffers a TaskManager, a gate and a partition get (NettyShuffleUtils, FLIP-49, FLIP-266)."""

from __future__ import annotations

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.options import (
    BY_KEY,
    EXCLUSIVE_BUFFERS,
    FLOATING_BUFFERS,
    REQUIRED_PER_GATE,
    SORT_MIN_BUFFERS,
    SORT_MIN_PARALLELISM,
    Options,
)
from testbed_runtime.core.processmemory import SEGMENT, process_memory, readable
from testbed_runtime.core.values import MAX_INT
from testbed_runtime.core.versions import REQUIRED_BUFFERS_LIMITED, SORTED_RESULTS_LIMITED, has

BUFFERS_TIMEOUT = "taskmanager.network.memory.buffers-request-timeout"
MAX_REQUIRED_BATCH = 1000
"""Default of the required buffers per gate for blocking and hybrid partitions."""


class GateBuffersSpec(Struct, frozen=True):
    """Buffers of an input gate: the bounds of its pool, and the exclusive buffers per channel."""

    min_floating: int
    max_floating: int
    exclusive_per_channel: int
    total: int


def max_required_buffers_per_gate(*, pipelined: bool = True, configured: int | None = None) -> int:
    if configured is not None:
        return configured
    return MAX_INT if pipelined else MAX_REQUIRED_BATCH


def most_required(options: Options, *, blocking: bool) -> int:
    """Return how many buffers a gate may require. Before 1.17 there is no limit."""
    if not has(options.flink_version, REQUIRED_BUFFERS_LIMITED):
        return MAX_INT
    configured = options.integer(REQUIRED_PER_GATE) if options.is_set(REQUIRED_PER_GATE) else None
    return max_required_buffers_per_gate(pipelined=not blocking, configured=configured)


def gate_buffers_spec(
    channels: int, exclusive: int, floating: int, *, max_required: int = MAX_INT
) -> GateBuffersSpec:
    """Return the buffers of a gate with `channels` channels and the configured exclusive and floating buffers. Raises FlinkError
    where InputGateSpecUtils does."""
    total = channels * exclusive + floating
    required = min(max_required, channels * exclusive + 1)
    if channels <= 0:
        raise FlinkError("IllegalArgumentException", "Must be positive.")
    if required < 1:
        raise FlinkError("IllegalArgumentException", "Require at least 1 buffer per gate.")
    effective = min(exclusive, (required - 1) // channels)
    held = effective * channels
    if required - held > total - held:
        raise FlinkError("IllegalStateException", "Wrong number of floating buffers.")
    return GateBuffersSpec(required - held, total - held, effective, total)


def result_partition_buffers(
    options: Options, subpartitions: int, *, bounded: bool = True, blocking: bool = False
) -> tuple[int, int]:
    """Return the required and maximum buffers of a partition's pool. A pipelined one has a limit if it is bounded, a blocking one
    if it is sorted."""
    if blocking and subpartitions >= options.integer(SORT_MIN_PARALLELISM):
        required = _sort_buffers(options)
        limited = has(options.flink_version, SORTED_RESULTS_LIMITED)
        return required, max(required, 4 * subpartitions) if limited else MAX_INT
    required = subpartitions + 1
    if blocking or not bounded:
        return required, MAX_INT
    exclusive, floating = options.integer(EXCLUSIVE_BUFFERS), options.integer(FLOATING_BUFFERS)
    return required, max(required, subpartitions * exclusive + floating)


def _sort_buffers(options: Options) -> int:
    """Return how many buffers a sorted result requires. Raises FlinkError IOException if it cannot sort with them."""
    required = options.integer(SORT_MIN_BUFFERS)
    if required < 2:
        option = f"Key: '{SORT_MIN_BUFFERS}' , default: {BY_KEY[SORT_MIN_BUFFERS].default_in(options.flink_version)} (fallback keys: [])"
        raise FlinkError("IOException", f"Too few sort buffers, please increase {option}.")
    return required


def network_buffer_count(options: Options) -> int:
    """Return the number of segments in a TaskManager's network pool. Raises MemoryRefused."""
    return process_memory(options).network // options.memory(SEGMENT)


def _configuration_text(total: int, segment_bytes: int) -> str:
    return (
        f"The total number of network buffers is currently set to {total} of {segment_bytes} bytes each. "
        "You can increase this number by setting the configuration keys 'taskmanager.memory.network.fraction', "
        "'taskmanager.memory.network.min', and 'taskmanager.memory.network.max'."
    )


def insufficient_buffers(required: int, available: int, total: int, segment_bytes: int) -> FlinkError:
    return FlinkError(
        "IOException",
        f"Insufficient number of network buffers: required {required}, but only {available} available. "
        + _configuration_text(total, segment_bytes),
    )


def request_timeout(
    total: int, segment_bytes: int, timeout_s: float, key: str = BUFFERS_TIMEOUT
) -> FlinkError:
    """Return the error of a request for exclusive buffers that timed out. `key` names its option in this version of Flink."""
    return FlinkError(
        "IOException",
        f"Timeout triggered when requesting exclusive buffers: {_configuration_text(total, segment_bytes)},  "
        f"or you may increase the timeout which is {round(timeout_s * 1000)}ms by setting the key '{key}'.",
    )


def usage_too_high(usage: int, total: int, requested: int, segment_bytes: int) -> str:
    return (
        f"Memory usage [{usage}%] is too high to satisfy all of the requests. This can severely impact network "
        "throughput. Please consider increasing available network memory, or decreasing configured size of network "
        f"buffer pools. (totalMemory={readable(total * segment_bytes)}, "
        f"requestedMemory={readable(requested * segment_bytes)}, "
        f"missingMemory={readable((requested - total) * segment_bytes)})"
    )


def usage_back_to_normal(usage: int) -> str:
    return f"Memory usage [{usage}%] went back to normal"
