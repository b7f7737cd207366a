"""The ledger of a sink: per source a bitmap of sequence numbers, with counts of duplicates, reordering and corruption.

Bitmaps come in chunks of CHUNK_RECORDS numbers. `take()` goes into a checkpoint acknowledgement. A record that the job sends
on several paths arrives several times: its number is then in several bitmaps of one chunk. The checker knows the job, adds up
the bitmaps of all commits, and decides whether that is too often (checking.delivery).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from testbed_runtime.core.job.messages import CHUNK_RECORDS, Chunk, SinkCommit

CHUNK_BYTES = CHUNK_RECORDS // 8
MAX_BITMAPS = 256
"""Bitmaps of one chunk in one commit (128 KiB), so that the memory of a sink is bounded, however often it gets the same records. A
job sends a record to one subtask far less often."""


@dataclass(slots=True)
class _Chunk:
    bits: int = 0
    """Bit i is the number base + i. An integer is small if a chunk has few numbers, as many chunks of a job
    with many sinks have."""
    again: list[int] = field(default_factory=list)
    """The numbers that arrived at least a second time, at least a third time, and so on."""
    duplicated: int = 0
    """How often a number arrived that was in MAX_BITMAPS bitmaps."""
    out_of_order: int = 0
    corrupted: int = 0

    def mark(self, bits: int) -> None:
        """Add distinct numbers."""
        bits, self.bits = self.bits & bits, self.bits | bits
        for place, known in enumerate(self.again):
            if not bits:
                return
            bits, self.again[place] = known & bits, known | bits
        if bits and len(self.again) + 1 < MAX_BITMAPS:
            self.again.append(bits)
        else:
            self.duplicated += bits.bit_count()

    def taken(self, source: str, base: int) -> Iterator[Chunk]:
        """Yield a chunk of the commit for each bitmap. The first has the counts, except that none has more numbers out of order
        than numbers."""
        duplicated, late, corrupted = self.duplicated, self.out_of_order, self.corrupted
        for bits in (self.bits, *self.again):
            mine = min(late, bits.bit_count() + duplicated)
            yield source, base, Ledger.bitmap(bits).hex(), duplicated, mine, corrupted
            duplicated, late, corrupted = 0, late - mine, 0


class Ledger:
    """The ledger of one sink attempt. It grows with the records of a checkpoint interval, one bit each."""

    __slots__ = ("_chunks", "_last", "_weight")

    def __init__(self) -> None:
        self._chunks: dict[tuple[str, int], _Chunk] = {}
        self._last: dict[tuple[str, int], int] = {}
        self._weight = 0

    def add(
        self,
        source: str,
        sequence: NDArray[np.int64],
        *,
        lane: int = 0,
        intact: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add a batch in the order of arrival. `source` is `vertex-subtask`; `lane` names one first-in-first-out path from it
        to here (an input channel): order is judged within a lane. `intact` False: the checksum is wrong, so the number
        is not reliable and the record only counts as corrupted."""
        if intact is not None and not intact.all():
            self._corrupt(source, int(len(intact) - intact.sum()))
            sequence = sequence[intact]
        if len(sequence) == 0:
            return
        ascending = self._check_order(source, lane, sequence)
        first = int(sequence[0]) // CHUNK_RECORDS * CHUNK_RECORDS
        if ascending and int(sequence[-1]) < first + CHUNK_RECORDS:
            self._mark(source, first, sequence - first)
            return
        bases = (sequence // CHUNK_RECORDS) * CHUNK_RECORDS
        if ascending:
            cuts = (np.flatnonzero(bases[1:] != bases[:-1]) + 1).tolist()
            for start, end in pairwise([0, *cuts, len(bases)]):
                self._mark(source, int(bases[start]), sequence[start:end] - bases[start])
            return
        for base in np.unique(bases).tolist():
            distinct, times = np.unique(sequence[bases == base] - base, return_counts=True)
            while len(distinct):
                self._mark(source, base, distinct)
                times -= 1
                distinct, times = distinct[times > 0], times[times > 0]

    def add_one(self, source: str, number: int, *, lane: int = 0, intact: bool = True) -> None:
        """Add one record, as `add` does."""
        if not intact:
            self._corrupt(source, 1)
            return
        last = self._last.get((source, lane), -1)
        self._last[source, lane] = number
        offset = number % CHUNK_RECORDS
        chunk = self._chunk(source, number - offset)
        chunk.out_of_order += number < last
        chunk.mark(1 << offset)

    def add_weight(self, weight: int) -> None:
        """Add records that each represent many source records (windows), by the sum of their counts."""
        self._weight += weight

    def take(self) -> SinkCommit:
        """Return everything since the last `take`, by source and number. Order is checked across takes."""
        taken = (chunk.taken(*key) for key, chunk in sorted(self._chunks.items()))
        weight, self._weight = self._weight, 0
        self._chunks = {}
        return SinkCommit(chunks=tuple(chain.from_iterable(taken)), weight=weight)

    @staticmethod
    def bitmap(bits: int) -> bytes:
        """Return the bits as CHUNK_BYTES bytes. Bit i, least significant first, is the sequence number base +
        i."""
        return bits.to_bytes(CHUNK_BYTES, "little")

    def _chunk(self, source: str, base: int) -> _Chunk:
        chunk = self._chunks.get((source, base))
        if chunk is None:
            chunk = self._chunks[source, base] = _Chunk()
        return chunk

    def _mark(self, source: str, base: int, distinct: NDArray[np.int64]) -> None:
        """Mark ascending numbers, relative to `base`."""
        first, last = int(distinct[0]), int(distinct[-1])
        if last - first == len(distinct) - 1:
            bits = ((1 << len(distinct)) - 1) << first
        else:
            marks = np.zeros(last - first + 1, dtype=np.bool_)
            marks[distinct - first] = True
            bits = int.from_bytes(np.packbits(marks, bitorder="little").tobytes(), "little") << first
        self._chunk(source, base).mark(bits)

    def _check_order(self, source: str, lane: int, sequence: NDArray[np.int64]) -> bool:
        """Return whether the numbers ascend strictly, so that none is repeated."""
        last = self._last.get((source, lane), -1)
        self._last[source, lane] = int(sequence[-1])
        falls = np.count_nonzero(sequence[1:] <= sequence[:-1])
        if int(sequence[0]) >= last and not falls:
            return True
        steps = np.diff(sequence, prepend=last)
        for position in np.flatnonzero(steps < 0).tolist():
            number = int(sequence[position])
            base = number - number % CHUNK_RECORDS
            self._chunks.setdefault((source, base), _Chunk()).out_of_order += 1
        return False

    def _corrupt(self, source: str, count: int) -> None:
        key = next((k for k in self._chunks if k[0] == source), (source, 0))
        self._chunks.setdefault(key, _Chunk()).corrupted += count
