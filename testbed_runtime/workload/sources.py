"""Sources. Record n of a vertex is due at t0 + n / rate, across attempts, and depends only on (seed, vertex, n)."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from testbed_runtime.core.job.jobgraph import SourceConfig
from testbed_runtime.core.values import NS
from testbed_runtime.workload.records import (
    HEADER_BYTES,
    Block,
    Records,
    mix64,
    new_records,
    record_dtype,
    seal,
    with_text,
)

BATCH_RECORDS = 2048
"""Maximum records of one `take`: about 0.2 ms of numpy work for records of 100 bytes. This is less than the slice of 0.5 ms."""
AHEAD_RECORDS = 64
AHEAD_BATCHES = 16
AHEAD_BYTES = 1 << 18
"""A source generates this many batches plus records ahead, up to this size, because a small batch costs as much as a call of numpy.
This is safe: no writer changes a record that a source has emitted."""
COLUMNS_MOST = 16
"""A payload of up to this many words is written column by column, with one pass of numpy for each column."""
WORD_BYTES_MAX = 4096
"""Longer words are split at this size."""
LINES_BYTES_MAX = 1 << 20
"""Maximum bytes of unprocessed words from a socket. Reading pauses above it."""


class GeneratedSource:
    """One subtask of a source: the records n with n % parallelism == subtask. Sequence numbers start at 0, without gaps."""

    __slots__ = (
        "_config", "_cumulative", "_dtype", "_parallelism", "_period_ns", "_salt", "_subtask", "_t0_ns",
        "_vertex", "block", "block_start", "limit", "next_sequence",
    )  # fmt: skip

    def __init__(
        self, config: SourceConfig, *, vertex: int, subtask: int, parallelism: int, seed: int, t0_ns: int
    ) -> None:
        if config.records_per_second <= 0:
            raise ValueError("recordsPerSecond must be positive")
        self._config = config
        self._vertex = vertex
        self._subtask = subtask
        self._parallelism = parallelism
        self._t0_ns = t0_ns
        self._period_ns = NS / config.records_per_second
        self._dtype = record_dtype(config.record_bytes)
        salt = mix64(np.array([seed, vertex, subtask], dtype=np.uint64))
        self._salt = np.uint64(int(salt[0] ^ (salt[1] << np.uint64(1)) ^ (salt[2] << np.uint64(2))))
        self._cumulative = _zipf(config.keys, config.key_skew)
        self.block = Block(new_records(0, self._dtype, vertex, subtask))
        """The records that were made ahead."""
        self.block_start = 0
        """The number of the first record of the block."""
        self.next_sequence = 0
        self.limit = config.share(subtask, parallelism)
        """How many records it emits; -1 for no limit."""
        if config.splits:
            self.limit = 0  # each split that it is given raises it

    @property
    def exhausted(self) -> bool:
        return 0 <= self.limit <= self.next_sequence

    def next_due_ns(self) -> int:
        """When the next record is due, in nanoseconds of the loop's clock."""
        number = self.next_sequence * self._parallelism + self._subtask
        return self._t0_ns + int(number * self._period_ns)

    def lag_ns(self, now_ns: int) -> int:
        """Return how far emission is behind schedule."""
        return 0 if self.exhausted else max(0, now_ns - self.next_due_ns())

    def take(self, now_ns: int, most: int = BATCH_RECORDS) -> Records | None:
        """Return the records that are due, at most `most`, or None."""
        newest = int((now_ns - self._t0_ns) / self._period_ns)
        due = (newest - self._subtask) // self._parallelism + 1 - self.next_sequence
        if self.limit >= 0:
            due = min(due, self.limit - self.next_sequence)
        if due <= 0:
            return None
        first = self.next_sequence
        self.next_sequence += min(due, most)
        return self._ahead(first, min(due, most))

    def _ahead(self, first: int, count: int) -> Records:
        """Return records from the block that was generated ahead. Generate the next block if it does not contain them."""
        start = first - self.block_start
        if start < 0 or start + count > len(self.block):
            most = AHEAD_BYTES // self._dtype.itemsize
            if (ahead := AHEAD_BATCHES * count + AHEAD_RECORDS) > most:
                ahead = max(most // count, 1) * count  # whole batches, so that none is made twice
            self.block, self.block_start, start = Block(self.records(first, ahead)), first, 0
        return self.block.records[start : start + count]

    def records(self, first: int, count: int) -> Records:
        """Return records `first` … `first + count - 1`. They are always the same for the same source."""
        records = new_records(count, self._dtype, self._vertex, self._subtask)
        sequence = np.arange(first, first + count, dtype=np.uint64)
        numbers = sequence.astype(np.float64) * self._parallelism + self._subtask
        noise = mix64(sequence ^ self._salt)
        records["sequence"] = sequence
        records["due_ns"] = self._t0_ns + (numbers * self._period_ns).astype(np.int64)
        records["key"] = self._keys(noise)
        self._fill(records, noise)
        return seal(records)

    def _keys(self, noise: np.ndarray) -> np.ndarray:
        if self._cumulative is None:
            return np.asarray((noise >> np.uint64(16)) % np.uint64(max(1, self._config.keys)), dtype=np.int64)
        uniform = (noise >> np.uint64(11)).astype(np.float64) / float(1 << 53)
        return np.minimum(np.searchsorted(self._cumulative, uniform, side="right"), self._config.keys - 1)

    @staticmethod
    def _fill(records: Records, noise: np.ndarray) -> None:
        words, tail = records["words"], records["tail"]
        count, odd = words.shape[1], 2 * np.arange(words.shape[1], dtype=np.uint64) + 3
        if count <= COLUMNS_MOST:
            for column in range(count):
                np.multiply(noise, odd[column], out=words[:, column])
        else:
            np.multiply(noise[:, None], odd, out=words)
        if tail.shape[1]:
            whole = np.dtype((np.void, tail.shape[1]))
            low = noise.view(np.uint8).reshape(len(noise), 8)[:, : tail.shape[1]]
            tail.view(whole)[:] = low.view(whole)


def _zipf(keys: int, skew: float) -> np.ndarray | None:
    """Return the cumulative probabilities of keys 0 … keys-1, or None for uniform keys."""
    if skew <= 0 or keys <= 1:
        return None
    weights = 1.0 / np.arange(1, keys + 1, dtype=np.float64) ** skew
    return np.asarray(np.cumsum(weights) / weights.sum())


class WordSource:
    """Splits a byte stream into words: one record per word, due when it was read. Nothing can be replayed."""

    def __init__(self, config: SourceConfig, *, vertex: int, subtask: int) -> None:
        self._dtype = record_dtype(max(config.record_bytes, HEADER_BYTES + 8))
        self._vertex = vertex
        self._subtask = subtask
        self._partial = b""
        self._words: list[bytes] = []
        self._bytes = 0
        self._closed = False
        self.next_sequence = 0
        self.on_room: Callable[[], None] = lambda: None
        """Called when the source is no longer full."""

    @property
    def full(self) -> bool:
        """Whether reading must pause until words are taken."""
        return self._bytes >= LINES_BYTES_MAX

    @property
    def exhausted(self) -> bool:
        return self._closed and not self._words

    def feed(self, data: bytes) -> None:
        stream = self._partial + data
        words = stream.split()
        self._partial = b""
        if words and not stream[-1:].isspace() and len(words[-1]) < WORD_BYTES_MAX:
            self._partial = words.pop()
        self._words.extend(words)
        self._bytes += sum(map(len, words))

    def close(self) -> None:
        """End the stream. The rest of the last line is a word."""
        if self._partial:
            self._words.append(self._partial)
            self._partial = b""
        self._closed = True

    def take(self, now_ns: int, most: int = BATCH_RECORDS) -> Records | None:
        words, self._words = self._words[:most], self._words[most:]
        if not words:
            return None
        was_full = self.full
        self._bytes -= sum(map(len, words))
        if was_full and not self.full:
            self.on_room()
        records = np.zeros(len(words), self._dtype)
        records["vertex"] = self._vertex
        records["subtask"] = self._subtask
        records["count"] = 1
        records["sequence"] = np.arange(self.next_sequence, self.next_sequence + len(words), dtype=np.uint64)
        records["due_ns"] = now_ns
        records["key"] = [zlib.crc32(word) << 16 | len(word) & 0xFFFF for word in words]
        with_text(records, words)
        self.next_sequence += len(words)
        return seal(records)
