"""Records in buffers: a big-endian 32-bit length and the bytes. A record, and its length, may span buffers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import IO

import numpy as np
import numpy.typing as npt

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.core.exchange.frames import BytesLike

LENGTH_BYTES = 4
MAX_RECORD_BYTES = 64 * 1024 * 1024
"""Maximum size of a record. A larger length means that the stream is corrupted."""
SPILL_BYTES = 5 * 1024 * 1024
"""A record that is larger and spans buffers waits in a file for its end (Flink's SpillingAdaptiveSpanningRecordDeserializer).
"""

_LENGTH = struct.Struct(">i")


def frame_fixed(records: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Return all records of a one-dimensional array, each preceded by its length."""
    contiguous = np.ascontiguousarray(records)
    size = contiguous.dtype.itemsize
    framed = np.empty((len(contiguous), LENGTH_BYTES + size), dtype=np.uint8)
    framed[:, :LENGTH_BYTES] = np.frombuffer(_LENGTH.pack(size), dtype=np.uint8)
    framed[:, LENGTH_BYTES:] = contiguous.view(np.uint8).reshape(len(contiguous), size)
    return framed.reshape(-1)


class RecordDeserializer:
    """Splits the payloads of one channel into records. Holds at most one incomplete record."""

    __slots__ = ("_carry", "_file", "_filed", "_open_file", "records", "spilled")

    def __init__(self, open_file: Callable[[], IO[bytes]] | None = None) -> None:
        """`open_file` opens an empty file for reading and writing, which disappears when it is closed. Without it nothing is
        spilled."""
        self._carry = bytearray()
        self._open_file = open_file
        self._file: IO[bytes] | None = None
        self._filed = 0
        self.records = 0
        self.spilled = 0
        """Number of records that waited in a file for their end."""

    @property
    def pending(self) -> int:
        """The bytes of an incomplete record."""
        return len(self._carry) + self._filed

    @property
    def incomplete(self) -> bytes:
        """A copy of the incomplete record, including the part that waits in a file."""
        return bytes(self._carry) + self._in_file()

    def clear(self) -> None:
        """Discard the incomplete record (its channel failed)."""
        self._carry.clear()
        self._filed = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def feed(self, data: BytesLike) -> list[memoryview]:
        """Return the records that end in `data`. Raises RemoteProtocolError for an impossible length.

        A record that is entirely in `data` is a view, valid until the buffer is recycled; any other is a copy."""
        view = memoryview(data)
        found: list[memoryview] = []
        position = 0
        if self._carry:
            position = self._complete(view)
            if not self._carry_is_whole():
                return found
            found.append(self._whole())
        end = len(view)
        while end - position >= LENGTH_BYTES:
            size = _checked(_LENGTH.unpack_from(view, position)[0])
            start = position + LENGTH_BYTES
            if start + size > end:
                break
            found.append(view[start : start + size])
            position = start + size
        self._carry += view[position:]
        self.records += len(found)
        return found

    def feed_fixed(self, parts: Sequence[BytesLike], record_bytes: int) -> tuple[npt.NDArray[np.uint8], int]:
        """Return a copy of the records of a fixed size that end in these consecutive payloads, and their number. Each is
        preceded by its length, and the first length by LENGTH_BYTES, so that the first record is aligned to 8 bytes. Raises
        RemoteProtocolError if a record has another size."""
        stride = LENGTH_BYTES + record_bytes
        total = len(self._carry) + sum(map(len, parts))
        count = total // stride
        memory = np.empty(LENGTH_BYTES + count * stride, dtype=np.uint8)
        into, position, end = memory.data, LENGTH_BYTES, len(memory)
        if len(parts) == 1 and total == count * stride and not self._carry:
            into[LENGTH_BYTES:] = parts[0]
        else:
            carry, self._carry = self._carry, bytearray()
            for part in (carry, *parts):
                taken = min(len(part), end - position)
                into[position : position + taken] = part if taken == len(part) else memoryview(part)[:taken]
                position += taken
                if taken < len(part):
                    self._carry += memoryview(part)[taken:]
        if count == 1 and _LENGTH.unpack_from(into, LENGTH_BYTES)[0] == record_bytes:
            self.records += 1  # in a wide job most buffers have one record
            return memory, 1
        lengths = np.ndarray((count,), ">i4", memory, LENGTH_BYTES, (stride,))
        if lengths.tobytes() != _LENGTH.pack(record_bytes) * count:
            wrong = int(lengths[lengths != record_bytes][0])
            raise RemoteProtocolError(f"A record has {wrong} bytes instead of {record_bytes}")
        self.records += count
        return memory, count

    def _complete(self, view: memoryview) -> int:
        """Move the bytes of the incomplete record into the carry. Return how many were taken."""
        taken = 0
        if len(self._carry) < LENGTH_BYTES:
            taken = min(LENGTH_BYTES - len(self._carry), len(view))
            self._carry += view[:taken]
            if len(self._carry) < LENGTH_BYTES:
                return taken
        size = _checked(_LENGTH.unpack_from(self._carry)[0])
        more = min(LENGTH_BYTES + size - self.pending, len(view) - taken)
        if size > SPILL_BYTES and self._open_file is not None:
            self._spill(self._open_file, view[taken : taken + more])
        else:
            self._carry += view[taken : taken + more]
        return taken + more

    def _spill(self, open_file: Callable[[], IO[bytes]], data: memoryview) -> None:
        """Append to the record's file. Only the length stays in memory."""
        if self._file is None:
            self._file = open_file()
            self.spilled += 1
            self._filed = self._file.write(self._carry[LENGTH_BYTES:])
            del self._carry[LENGTH_BYTES:]
        self._filed += self._file.write(data)

    def _carry_is_whole(self) -> bool:
        if len(self._carry) < LENGTH_BYTES:
            return False
        return self.pending == LENGTH_BYTES + int(_LENGTH.unpack_from(self._carry)[0])

    def _whole(self) -> memoryview:
        """Return the record that has become complete."""
        if self._file is None:
            record = memoryview(bytes(self._carry))[LENGTH_BYTES:]
        else:
            record = memoryview(self._in_file())
        self.clear()
        return record

    def _in_file(self) -> bytes:
        """Return what waits in the file, whose position is its end again."""
        if self._file is None:
            return b""
        self._file.seek(0)
        return self._file.read()


def _checked(size: int) -> int:
    if not 0 <= size <= MAX_RECORD_BYTES:
        raise RemoteProtocolError(f"A record cannot have {size} bytes: the stream is corrupted")
    return size
