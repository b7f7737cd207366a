"""Flink's key groups: key → group by murmur of its hash, group → subtask by range."""

from __future__ import annotations

LOWER_BOUND_MAX_PARALLELISM = 128
UPPER_BOUND_MAX_PARALLELISM = 32768

_MASK = 0xFFFFFFFF


def murmur_hash(code: int) -> int:
    """Flink's `MathUtils.murmurHash(int)`: non-negative."""
    code = (code * 0xCC9E2D51) & _MASK
    code = _rotate_left(code, 15)
    code = (code * 0x1B873593) & _MASK
    code = _rotate_left(code, 13)
    code = (code * 5 + 0xE6546B64) & _MASK
    code ^= 4
    code ^= code >> 16
    code = (code * 0x85EBCA6B) & _MASK
    code ^= code >> 13
    code = (code * 0xC2B2AE35) & _MASK
    code ^= code >> 16
    signed = code - 2**32 if code >= 2**31 else code
    return 0 if signed == -(2**31) else abs(signed)


def key_group(key_hash: int, max_parallelism: int) -> int:
    """The key group of a key whose hashCode is `key_hash`."""
    return murmur_hash(key_hash) % max_parallelism


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
    rounded = 1 << (wanted - 1).bit_length() if wanted > 1 else 1
    return min(max(rounded, LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM)


def _check(parallelism: int) -> None:
    if not 0 < parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise ValueError(f"Operator parallelism not within bounds: {parallelism}")


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
