"""Flink's key groups: group → subtask by range. `workload.keys` has key → group."""

from __future__ import annotations

LOWER_BOUND_MAX_PARALLELISM = 128
UPPER_BOUND_MAX_PARALLELISM = 32768


def group_range(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """The key groups of a subtask. Raises ValueError when a parallelism is out of bounds or above the maximum."""
    _check(parallelism)
    _check(max_parallelism)
    if parallelism > max_parallelism:
        raise ValueError("Maximum parallelism must not be smaller than parallelism.")
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return range(start, end + 1)


def compute_default_max_parallelism(parallelism: int) -> int:
    """min(max(roundUpToPowerOfTwo(parallelism * 1.5), 128), 32768): 200 → 512, 400 → 1024. Raises ValueError out of bounds."""
    _check(parallelism)
    wanted = parallelism + parallelism // 2
    rounded = 1 << (wanted - 1).bit_length()
    return min(max(rounded, LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM)


def _check(parallelism: int) -> None:
    if not 0 < parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise ValueError(f"Operator parallelism not within bounds: {parallelism}")
