"""The generated record: a fixed header and a payload, as one numpy structured dtype per record size.

0       2        4      8         16   24      32        40    44    46   48
| vertex| subtask| count| sequence| key| due_ns| checksum| path| text| pad| payload …      little-endian

The checksum covers every field except `path`, which each task on the way updates.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from operator import mul
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.core.exchange.frames import BytesLike
from testbed_runtime.core.exchange.records import (
    LENGTH_BYTES,
    MAX_RECORD_BYTES,
    RecordDeserializer,
    frame_fixed,
)
from testbed_runtime.core.job.jobgraph import MIN_RECORD_BYTES

HEADER_BYTES = MIN_RECORD_BYTES

Records: TypeAlias = "npt.NDArray[np.void]"
"""A one-dimensional array of `record_dtype(record_bytes)`."""
U64: TypeAlias = "npt.NDArray[np.uint64]"

_HEADER: list[tuple[str, str]] = [
    ("vertex", "<u2"),
    ("subtask", "<u2"),
    ("count", "<u4"),
    ("sequence", "<u8"),
    ("key", "<i8"),
    ("due_ns", "<i8"),
    ("checksum", "<u8"),
    ("path", "<u4"),
    ("text", "<u2"),
    ("pad", "<u2"),
]
_PATH_MULTIPLIER = np.uint32(0x9E3779B1)
_MULTIPLIERS = (
    0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0x8CB92BA72F3D8DD7,
)  # fmt: skip
"""Factors of the checksum for the sequence number, the origin with the count, the key, the due time, the length of the text, and
the last bytes."""
_MULTIPLIERS_U64 = tuple(map(np.uint64, _MULTIPLIERS))
_MASK = 2**64 - 1
_HEAD = struct.Struct("<HHIQqqQIHH")
SMALL_RECORD_BYTES = 512
"""Up to this size the checksum of one record is cheaper without numpy."""


@cache
def record_dtype(record_bytes: int) -> np.dtype[np.void]:
    """Return the dtype of records of `record_bytes` bytes (without the 4-byte length). Raises ValueError if the header does
    not fit."""
    if record_bytes < HEADER_BYTES:
        raise ValueError(f"a record needs at least {HEADER_BYTES} bytes, got {record_bytes}")
    words, tail = divmod(record_bytes - HEADER_BYTES, 8)
    return np.dtype([*_HEADER, ("words", "<u8", (words,)), ("tail", "u1", (tail,))])


@cache
def _words_dtype(record_bytes: int) -> np.dtype[np.void]:
    """Return a dtype with the header fields that are checked for every record. `origin` is vertex and subtask, `last` the last eight bytes."""
    fields: dict[str, tuple[str, int]] = {
        "origin": ("<u4", 0), "origin_count": ("<u8", 0), "sequence": ("<u8", 8), "key": ("<u8", 16), "due_ns": ("<u8", 24),
        "path": ("<u4", 40), "path_text_pad": ("<u8", 40), "text": ("<u2", 44), "last": ("<u8", record_bytes - 8),
    }  # fmt: skip
    formats = [kind for kind, _ in fields.values()]
    offsets = [offset for _, offset in fields.values()]
    return np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": record_bytes})


def one_way(records: Records) -> bool:
    """Return whether all records come from one source on one path, as is usual for the records of one buffer."""
    if len(records) == 1:
        return True
    head = records.view(_words_dtype(records.dtype.itemsize))
    origins, paths = head["origin"], head["path"]
    count = np.count_nonzero
    return int(count(origins == origins[0])) == int(count(paths == paths[0])) == len(records)


@cache
def _odd_numbers(count: int) -> U64:
    """Return odd multipliers, one per payload word, so that swapping two words changes the sum."""
    return mix64(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


def mix64(values: U64) -> U64:
    """Apply splitmix64's finaliser, which turns a counter into uniform 64-bit values."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


def checksums(records: Records) -> U64:
    """Return the expected checksum of each record."""
    size = records.dtype.itemsize
    head = records.view(_words_dtype(size))
    of_sequence, of_origin, of_key, of_due, of_text, of_last = _MULTIPLIERS_U64
    total = head["sequence"] * of_sequence
    total ^= head["origin_count"] * of_origin
    total += head["key"] * of_key
    total ^= head["due_ns"] * of_due
    total += head["text"] * of_text
    words, tail = records["words"], records["tail"]
    if words.shape[1]:
        total += words @ _odd_numbers(words.shape[1])
        if tail.shape[1]:
            total += head["last"] * of_last
    elif tail.shape[1]:
        total += tail.astype(np.uint64) @ _odd_numbers(8)[: tail.shape[1]]
    return np.asarray(total ^ (total >> np.uint64(32)), dtype=np.uint64)


class Head(Struct, frozen=True, gc=False):
    """The header of a record. `weight` is its field `count`."""

    vertex: int
    subtask: int
    weight: int
    sequence: int
    key: int
    due_ns: int
    checksum: int
    path: int
    text: int
    pad: int


def head_of(records: Records) -> tuple[Head, bool]:
    """Return the header of the only record, and whether it has the expected checksum. In a wide job most batches are single
    records, for which a pass of numpy costs ten times as much as the arithmetic."""
    data = records.tobytes()
    head = Head(*_HEAD.unpack_from(data))
    if len(data) > SMALL_RECORD_BYTES:
        return head, bool(intact(records)[0])
    words, multipliers = _single_words(len(data))
    of_sequence, of_origin, of_key, of_due, of_text, of_last = _MULTIPLIERS
    total = head.sequence * of_sequence
    total ^= (head.vertex | head.subtask << 16 | head.weight << 32) * of_origin
    total += (head.key & _MASK) * of_key
    total = (total ^ (head.due_ns & _MASK) * of_due) + head.text * of_text
    total += sum(map(mul, words.unpack_from(data, HEADER_BYTES), multipliers))
    if multipliers and words.size < len(data) - HEADER_BYTES:
        total += int.from_bytes(data[-8:], "little") * of_last
    total &= _MASK
    return head, head.checksum == total ^ (total >> 32)


@cache
def _single_words(record_bytes: int) -> tuple[struct.Struct, tuple[int, ...]]:
    """Return the format of the payload that `checksums` multiplies, and its multipliers."""
    words, tail = divmod(record_bytes - HEADER_BYTES, 8)
    layout = struct.Struct(f"<{words}Q" if words else f"<{tail}B")
    return layout, tuple(_odd_numbers(max(words, 8)).tolist()[: words or tail])


def seal(records: Records) -> Records:
    """Write the checksums in place."""
    records["checksum"] = checksums(records)
    return records


def intact(records: Records) -> npt.NDArray[np.bool_]:
    """Return which records have the expected checksum."""
    return np.asarray(records["checksum"] == checksums(records))


def stamp_path(records: Records, vertex: int, subtask: int) -> None:
    """Mix this task into the records' paths in place. Records of one source on one path stay in order."""
    salt, paths = (vertex << 16 | subtask) & 0xFFFFFFFF, records["path"]
    if len(paths) == 1:
        paths[0] = ((int(paths[0]) ^ salt) * int(_PATH_MULTIPLIER) + 1) & 0xFFFFFFFF
    else:
        records["path"] = (paths ^ np.uint32(salt)) * _PATH_MULTIPLIER + np.uint32(1)


def text_of(record: np.void) -> str:
    """Return the text of a word record; empty without one."""
    return text_bytes(record).decode("utf-8", "replace")


def text_bytes(record: np.void) -> bytes:
    return record.tobytes()[HEADER_BYTES : HEADER_BYTES + int(record["text"])]


def with_text(records: Records, texts: list[bytes]) -> None:
    """Write a text into each record's payload in place, truncated to what fits (before `seal`)."""
    room = records.dtype.itemsize - HEADER_BYTES
    raw = records.view(np.uint8).reshape(len(records), records.dtype.itemsize)
    for row, text in enumerate(texts):
        cut = text[:room]
        raw[row, HEADER_BYTES : HEADER_BYTES + len(cut)] = np.frombuffer(cut, np.uint8)
        records["text"][row] = len(cut)


def new_records(count: int, dtype: np.dtype[np.void], vertex: int, subtask: int) -> Records:
    """Return records of one source, laid out in memory as on the wire: each preceded by its length (see `framed`). The fields
    that follow from a record's number are not initialised: sequence, key, due_ns, checksum, payload."""
    stride = LENGTH_BYTES + dtype.itemsize
    memory = np.empty(LENGTH_BYTES + count * stride, dtype=np.uint8)  # so that the first record is aligned
    rows = memory[LENGTH_BYTES:].reshape(count, stride)
    rows[:, :LENGTH_BYTES] = np.frombuffer(dtype.itemsize.to_bytes(LENGTH_BYTES, "big"), dtype=np.uint8)
    records = rows[:, LENGTH_BYTES:].view(dtype)[:, 0]
    head = records.view(_words_dtype(dtype.itemsize))
    head["origin_count"] = vertex | subtask << 16 | 1 << 32
    head["path_text_pad"] = 0
    return records


def latency_marker(record_bytes: int, vertex: int, subtask: int, now_ns: int) -> Records:
    """Return a latency marker of a source: an element of the stream in the form of a record, with a count of 0 and the time of
    its emission instead of a due time."""
    marker = new_records(1, record_dtype(record_bytes), vertex, subtask)
    marker.view(_words_dtype(record_bytes))["origin_count"] = vertex | subtask << 16
    for name in ("sequence", "key", "words", "tail"):
        marker[name] = 0
    marker["due_ns"] = now_ns
    return seal(marker)


def marker_positions(records: Records) -> list[int]:
    """Return the positions of the latency markers among the records. Damaged records are not markers."""
    found = np.flatnonzero(records["count"] == 0)
    return [int(place) for place in found if intact(records[place : place + 1])[0]]


def framed(records: Records) -> memoryview:
    """Return the bytes of the records on the wire: a view if they are laid out like this already, as those of `new_records`
    and of a reader are, else a copy."""
    memory, size = records.base, records.dtype.itemsize
    stride = LENGTH_BYTES + size
    if records.strides != (stride,) or not isinstance(memory, np.ndarray) or memory.dtype != np.uint8:
        return frame_fixed(records).data
    size = len(records) * stride
    if (start := len(memory) - size) > LENGTH_BYTES:  # the records are a view of only a part of the memory
        start = records.ctypes.data - memory.ctypes.data - LENGTH_BYTES
    return memory.data[start : start + size]


def picked(records: Records, which: npt.NDArray[np.int64] | slice) -> Records:
    """Return a copy of the records at these positions, whole and with their lengths: cheaper than field by field."""
    stride = LENGTH_BYTES + records.dtype.itemsize
    rows = np.frombuffer(framed(records), dtype=np.dtype((np.void, stride)))[which]
    memory = np.empty(len(rows) * stride, dtype=np.uint8)
    memory.view(rows.dtype)[:] = rows
    return memory.reshape(-1, stride)[:, LENGTH_BYTES:].view(records.dtype)[:, 0]


class Block:
    """Records that a source made together and hands out in order, a part at a time."""

    __slots__ = ("data", "records", "stride")

    def __init__(self, records: Records) -> None:
        self.records = records
        self.data = framed(records).toreadonly()
        """The bytes never change, so buffers may refer to them."""
        self.stride = LENGTH_BYTES + records.dtype.itemsize

    def __len__(self) -> int:
        return len(self.records)

    def framed(self, start: int, end: int) -> memoryview:
        """Return the bytes of some records on the wire."""
        return self.data[start * self.stride : end * self.stride]


class RecordReader:
    """Turns buffers of one channel into records, which may span buffers. All records of a channel have the size of the
    first."""

    __slots__ = ("_deserializer", "_head", "_size")

    def __init__(self) -> None:
        self._deserializer = RecordDeserializer()
        self._head = b""
        self._size = 0

    @property
    def incomplete(self) -> bytes:
        """The bytes of an incomplete record: after a restore, feed them first."""
        return self._head + self._deserializer.incomplete

    def feed(self, parts: Sequence[BytesLike]) -> Records | None:
        """Return a copy of the records that are complete after these consecutive payloads, or None. Raises
        RemoteProtocolError for an invalid length."""
        if not self._size:
            data = b"".join((self._head, *parts))
            if len(data) < LENGTH_BYTES:
                self._head = data
                return None
            self._head, parts = b"", (data,)
            self._size = int.from_bytes(data[:LENGTH_BYTES], "big")
            if not HEADER_BYTES <= self._size <= MAX_RECORD_BYTES:
                raise RemoteProtocolError(f"A record has {self._size} bytes: the stream is corrupted")
        memory, count = self._deserializer.feed_fixed(parts, self._size)
        if not count:
            return None
        stride = LENGTH_BYTES + self._size
        return np.ndarray((count,), record_dtype(self._size), memory, 2 * LENGTH_BYTES, (stride,))
