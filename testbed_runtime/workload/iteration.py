"""The records that an iteration keeps: the result of a superstep on its way back, and the solution set. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO

import numpy as np

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.blocking import ResultFile
from testbed_runtime.workload.records import Records, record_dtype

BACK_CHANNEL_BYTES = 4 << 20
"""Maximum bytes of a superstep's result in memory, for each subtask. The rest is in a file."""
SOLUTION_SET_BYTES = 64 << 20
"""Maximum bytes of a solution set, for each subtask. All of it is in memory."""
BATCH_BYTES = 1 << 16
"""Records are read from a file, and from a solution set, in pieces of about this size."""

IDENTITY_BYTES = 16
"""The first bytes of a record: vertex and subtask of its source, its count and its sequence number."""


def records_of(data: bytes, record_bytes: int) -> Records:
    """Return the records in these bytes, as a copy that may be changed."""
    return np.frombuffer(bytearray(data), dtype=record_dtype(record_bytes))


class UpdateBuffer:
    """The records that a tail feeds back in one superstep (Flink's SerializedUpdateBuffer): first in memory, then in a file.

    It takes any number of records without waiting, so that a tail never waits for its head."""

    def __init__(self, open_file: Callable[[], IO[bytes]], *, most_bytes: int = BACK_CHANNEL_BYTES) -> None:
        """`open_file` opens an empty file that disappears when it is closed. It is called for a result that is too large."""
        self._open_file = open_file
        self._most_bytes = most_bytes
        self._parts: list[bytes] = []
        self._bytes = 0
        self._record_bytes = 0
        self._file: ResultFile | None = None

    def add(self, records: Records) -> None:
        """Copy the records. All of them have the same size. Raises FlinkError IOException if they cannot be written."""
        data = records.tobytes()
        self._record_bytes = records.dtype.itemsize
        if self._file is None and self._bytes + len(data) <= self._most_bytes:
            self._parts.append(data)
            self._bytes += len(data)
            return
        if self._file is None:
            self._file = ResultFile(self._open_file(), "The back channel of an iteration")
        self._file.append(data)

    def batches(self) -> Iterator[Records]:
        """Return the records in the order in which they were added. Call it when all have been added."""
        for part in self._parts:
            yield records_of(part, self._record_bytes)
        if self._file is not None:
            step = max(1, BATCH_BYTES // self._record_bytes) * self._record_bytes
            for offset in range(0, self._file.size, step):
                data = self._file.read(offset, min(step, self._file.size - offset))
                yield records_of(data, self._record_bytes)

    def close(self) -> None:
        """Drop the records. Idempotent."""
        self._parts.clear()
        if self._file is not None:
            self._file.close()


class SolutionSet:
    """The records of a delta iteration by key, as Flink's unmanaged solution set: in memory, one record for each key."""

    def __init__(self, *, most_bytes: int = SOLUTION_SET_BYTES) -> None:
        self._most_bytes = most_bytes
        self._entries: dict[int, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, records: Records) -> int:
        """Insert or replace the entries with the keys of these records. Return how many were replaced. Raises FlinkError if they
        do not fit."""
        size, data, known = records.dtype.itemsize, records.tobytes(), len(self._entries)
        for number, key in enumerate(records["key"].tolist()):
            entry = data[number * size : (number + 1) * size]
            former = self._entries.get(key)
            if former is not None and former[:IDENTITY_BYTES] != entry[:IDENTITY_BYTES]:
                del self._entries[key]  # another record goes to the end; an update keeps its place
            self._entries[key] = entry
        new = len(self._entries) - known
        self._bytes += new * size
        if self._bytes > self._most_bytes:
            text = f"Memory ran out. A solution set has at most {self._most_bytes} bytes for each subtask."
            raise FlinkError("RuntimeException", text)
        return len(records) - new

    def get(self, key: int) -> Records | None:
        """Return a copy of the entry with this key, as one record, or None."""
        entry = self._entries.get(key)
        return None if entry is None else records_of(entry, len(entry))

    def batches(self) -> Iterator[Records]:
        """Return the current entries in the order in which their records arrived first. An update does not move its record."""
        part: list[bytes] = []
        for entry in list(self._entries.values()):
            part.append(entry)
            if len(part) * len(entry) >= BATCH_BYTES:
                yield records_of(b"".join(part), len(entry))
                part = []
        if part:
            yield records_of(b"".join(part), len(part[0]))

    def clear(self) -> None:
        self._entries.clear()
