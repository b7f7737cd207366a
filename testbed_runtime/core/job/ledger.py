"""The ledger of a sink: per source a bitmap of sequence numbers, with counts of duplicates, reordering and corruption.

Bitmaps come in chunks of CHUNK_RECORDS numbers. `take()` goes into a checkpoint acknowledgement. A number that two
commits contain is found by the checker, which adds the bitmaps up (checking.delivery).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from testbed_runtime.core.job.messages import CHUNK_RECORDS, SinkCommit

CHUNK_BYTES = CHUNK_RECORDS // 8


@dataclass(slots=True)
class _Chunk:
    bits: int = 0
    """Bit i is the number base + i. An integer is small if a chunk has few numbers, as many chunks of a job
    with many sinks have."""
    duplicated: int = 0
    out_of_order: int = 0
    corrupted: int = 0


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
            offsets = sequence[bases == base] - base
            distinct = np.unique(offsets)
            self._mark(source, base, distinct, repeated=len(offsets) - len(distinct))

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
        chunk.duplicated += chunk.bits >> offset & 1
        chunk.bits |= 1 << offset

    def add_weight(self, weight: int) -> None:
        """Add records that each represent many source records (windows), by the sum of their counts."""
        self._weight += weight

    def take(self) -> SinkCommit:
        """Return everything since the last `take`, by source and number. Order is checked across takes."""
        chunks = tuple(
            (
                source,
                base,
                self.bitmap(chunk.bits).hex(),
                chunk.duplicated,
                chunk.out_of_order,
                chunk.corrupted,
            )
            for (source, base), chunk in sorted(self._chunks.items())
        )
        weight, self._weight = self._weight, 0
        self._chunks = {}
        return SinkCommit(chunks=chunks, weight=weight)

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

    def _mark(self, source: str, base: int, distinct: NDArray[np.int64], *, repeated: int = 0) -> None:
        """Mark ascending numbers, relative to `base`."""
        chunk = self._chunk(source, base)
        first, last = int(distinct[0]), int(distinct[-1])
        if last - first == len(distinct) - 1:
            bits = ((1 << len(distinct)) - 1) << first
        else:
            marks = np.zeros(last - first + 1, dtype=np.bool_)
            marks[distinct - first] = True
            bits = int.from_bytes(np.packbits(marks, bitorder="little").tobytes(), "little") << first
        chunk.duplicated += repeated + (chunk.bits & bits).bit_count()
        chunk.bits |= bits

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
