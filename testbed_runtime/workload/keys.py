"""Flink's key groups for numpy arrays: key → group by murmur of its hash, and the subtask that owns a group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def key_hashes(keys: Ints) -> npt.NDArray[np.int32]:
    """Return Java's `Long.hashCode` of each key."""
    raw = keys.astype(np.uint64)
    return np.asarray((raw ^ (raw >> np.uint64(32))).astype(np.uint32).view(np.int32))


def key_groups(keys: Ints, max_parallelism: int) -> Ints:
    """Return the key group of each key: the murmur hash of its hash code, modulo `max_parallelism`."""
    return murmur_hashes(key_hashes(keys)) % max_parallelism


def murmur_hashes(codes: npt.NDArray[np.int32]) -> Ints:
    """Return Flink's `MathUtils.murmurHash(int)` of each code: non-negative."""
    code = codes.view(np.uint32) * np.uint32(0xCC9E2D51)
    code = _rotate(code, 15) * np.uint32(0x1B873593)
    code = _rotate(code, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    code ^= np.uint32(4)
    code = (code ^ (code >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    code = (code ^ (code >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    code ^= code >> np.uint32(16)
    signed = code.view(np.int32).astype(np.int64)
    return np.asarray(np.where(signed == -(2**31), 0, np.abs(signed)), dtype=np.int64)


def _rotate(values: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return np.asarray((values << np.uint32(bits)) | (values >> np.uint32(32 - bits)), dtype=np.uint32)


def subtasks_of(groups: Ints, parallelism: int, max_parallelism: int) -> Ints:
    """Return the subtask that owns each key group."""
    return groups * parallelism // max_parallelism
