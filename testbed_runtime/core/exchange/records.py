"""Records in buffers: a big-endian 32-bit length and the bytes. A record, and its length, may span buffers."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.core.exchange.frames import BytesLike

LENGTH_BYTES = 4
MAX_RECORD_BYTES = 64 * 1024 * 1024
"""Maximum size of a record. A larger length means that the stream is corrupted."""

_LENGTH = struct.Struct(">i")


def frame_record(data: BytesLike) -> bytes:
    """Return the length and the bytes of one record."""
    return _LENGTH.pack(len(data)) + data


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

    __slots__ = ("_carry", "records")

    def __init__(self) -> None:
        self._carry = bytearray()
        self.records = 0

    @property
    def pending(self) -> int:
        """The bytes of an incomplete record."""
        return len(self._carry)

    def clear(self) -> None:
        """Discard the incomplete record (its channel failed)."""
        self._carry.clear()

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
            found.append(memoryview(bytes(self._carry))[LENGTH_BYTES:])
            self._carry.clear()
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

    def feed_fixed(self, data: BytesLike, record_bytes: int) -> npt.NDArray[np.uint8]:
        """Return records of a fixed size as an array of shape (n, record_bytes), like `feed`, but always as a copy that the
        caller owns. Raises RemoteProtocolError if a record has another size."""
        view = memoryview(data)
        stride = LENGTH_BYTES + record_bytes
        missing = (stride - len(self._carry)) if self._carry else 0
        if missing > len(view):
            self._carry += view
            return np.empty((0, record_bytes), dtype=np.uint8)
        count = (len(view) - missing) // stride
        end = missing + count * stride
        first = 0
        if self._carry:
            self._carry += view[:missing]
            first = 1
        found = np.empty((first + count, record_bytes), dtype=np.uint8)
        if first:
            _copy_fixed(self._carry, found[:1])
            self._carry.clear()
        _copy_fixed(view[missing:end], found[first:])
        self._carry += view[end:]
        self.records += len(found)
        return found

    def _complete(self, view: memoryview) -> int:
        """Move the bytes of the incomplete record into the carry. Return how many were taken."""
        taken = 0
        if len(self._carry) < LENGTH_BYTES:
            taken = min(LENGTH_BYTES - len(self._carry), len(view))
            self._carry += view[:taken]
            if len(self._carry) < LENGTH_BYTES:
                return taken
        size = _checked(_LENGTH.unpack_from(self._carry)[0])
        more = min(LENGTH_BYTES + size - len(self._carry), len(view) - taken)
        self._carry += view[taken : taken + more]
        return taken + more

    def _carry_is_whole(self) -> bool:
        if len(self._carry) < LENGTH_BYTES:
            return False
        return len(self._carry) == LENGTH_BYTES + int(_LENGTH.unpack_from(self._carry)[0])


def _copy_fixed(framed: BytesLike, into: npt.NDArray[np.uint8]) -> None:
    """Copy records of a fixed size without their lengths, which must all match."""
    count, record_bytes = into.shape
    if not count:
        return
    stride = LENGTH_BYTES + record_bytes
    lengths = np.ndarray((count,), ">i4", framed, strides=(stride,))
    if (lengths != record_bytes).any():
        wrong = int(lengths[lengths != record_bytes][0])
        raise RemoteProtocolError(f"A record has {wrong} bytes instead of {record_bytes}")
    # copying whole records is four times cheaper than copying bytes
    whole = np.dtype((np.void, record_bytes))
    into.view(whole)[:, 0] = np.ndarray((count,), whole, framed, LENGTH_BYTES, (stride,))


def _checked(size: int) -> int:
    if not 0 <= size <= MAX_RECORD_BYTES:
        raise RemoteProtocolError(f"A record cannot have {size} bytes: the stream is corrupted")
    return size
