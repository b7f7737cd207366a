"""Immutable files of keyed state, sorted by window and key, in blocks that are read one at a time.

0       4        6                                                     -8          -4
| HGSF  | version| msgpack of Block, its CRC-32 | … | msgpack of the index | its size | its CRC-32 |      big endian
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from testbed_runtime.core.errors import FlinkError

MAGIC = b"HGSF"
VERSION = 1
_HEADER = struct.Struct(">4sH")
_TAIL = struct.Struct(">II")
_CRC = struct.Struct(">I")
BLOCK_ROWS = 128
"""About 4 KiB, the size of RocksDB's blocks."""
FILE_BYTES = 16 * 1024**2
"""A file is complete with the block that reaches this size, which is far below the object limit of a checkpoint store."""
REMOVED = -1
"""The count of a row that hides older rows of its key."""

Place = tuple[int, int]
"""Window, key."""
Row = tuple[int, int, bytes]
"""Count, time of the last write in ns (0 without TTL), text."""


class Block(Struct, frozen=True):
    """Parallel arrays of little-endian 64-bit integers. `stamps` and `texts` are empty if all are 0 or empty."""

    windows: bytes
    keys: bytes
    counts: bytes
    stamps: bytes = b""
    texts: tuple[bytes, ...] = ()

    def rows(self) -> Rows:
        windows, keys, counts = (
            np.frombuffer(part, dtype="<i8") for part in (self.windows, self.keys, self.counts)
        )
        stamps = np.frombuffer(self.stamps, dtype="<i8") if self.stamps else np.zeros(len(keys), np.int64)
        return Rows(windows, keys, counts, stamps, objects(self.texts or [b""] * len(keys)))

    def part(self, start: int, end: int) -> Block:
        """Return the rows from `start` to `end`."""
        cut = slice(start * 8, end * 8)
        stamps = self.stamps[cut] if any(self.stamps[cut]) else b""
        texts = self.texts[start:end] if any(self.texts[start:end]) else ()
        return Block(self.windows[cut], self.keys[cut], self.counts[cut], stamps, texts)


class BlockIndex(Struct, frozen=True):
    """Position of a block, and its first row."""

    window: int
    key: int
    offset: int
    size: int
    rows: int

    @property
    def first(self) -> Place:
        return self.window, self.key


class Index(Struct, frozen=True):
    blocks: tuple[BlockIndex, ...]
    last: Place
    """The last row of the file."""
    newest_ns: int
    """The newest stamp."""


def objects(values: Sequence[object]) -> npt.NDArray[np.object_]:
    """Return a column of Python objects."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


class Rows(Struct, frozen=True):
    """Rows as columns."""

    windows: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    stamps: npt.NDArray[np.int64]
    texts: npt.NDArray[np.object_]

    @classmethod
    def of(cls, rows: Sequence[tuple[Place, Row]]) -> Rows:
        return cls(
            np.array([place[0] for place, _ in rows], dtype=np.int64),
            np.array([place[1] for place, _ in rows], dtype=np.int64),
            np.array([row[0] for _, row in rows], dtype=np.int64),
            np.array([row[1] for _, row in rows], dtype=np.int64),
            objects([row[2] for _, row in rows]),
        )

    @classmethod
    def concat(cls, parts: Sequence[Rows]) -> Rows:
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__struct_fields__)
        )

    def __len__(self) -> int:
        return len(self.keys)

    def chosen(self, which: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice) -> Rows:
        return Rows(*(getattr(self, name)[which] for name in self.__struct_fields__))

    def merged(self) -> Rows:
        """Sort by window and key. Of the rows of one key the last one stays."""
        order = np.lexsort((self.keys, self.windows))  # stable: rows of a key keep their order
        rows = self.chosen(order)
        last = np.ones(len(rows), dtype=np.bool_)
        last[:-1] = (rows.windows[1:] != rows.windows[:-1]) | (rows.keys[1:] != rows.keys[:-1])
        return rows.chosen(last)

    def pairs(self) -> Iterator[tuple[Place, Row]]:
        places = zip(self.windows.tolist(), self.keys.tolist(), strict=True)
        rows = zip(self.counts.tolist(), self.stamps.tolist(), self.texts.tolist(), strict=True)
        return zip(places, rows, strict=True)

    def block(self) -> Block:
        columns = [column.astype("<i8").tobytes() for column in (self.windows, self.keys, self.counts)]
        stamps = self.stamps.astype("<i8").tobytes() if self.stamps.any() else b""
        texts = tuple(self.texts.tolist()) if any(self.texts.tolist()) else ()
        return Block(columns[0], columns[1], columns[2], stamps, texts)


def encode_files(rows: Rows) -> Iterator[bytes]:
    """Yield the files of sorted rows."""
    start = 0
    while start < len(rows):
        parts, index, size = [_HEADER.pack(MAGIC, VERSION)], [], _HEADER.size
        newest, begin = 0, start
        while start < len(rows) and size < FILE_BYTES:
            some = rows.chosen(slice(start, start + BLOCK_ROWS))
            data = msgspec.msgpack.encode(some.block())
            data += _CRC.pack(zlib.crc32(data))
            index.append(BlockIndex(int(some.windows[0]), int(some.keys[0]), size, len(data), len(some)))
            newest = max(newest, int(some.stamps.max()))
            parts.append(data)
            size += len(data)
            start += len(some)
        assert start > begin
        last = int(rows.windows[start - 1]), int(rows.keys[start - 1])
        tail = msgspec.msgpack.encode(Index(tuple(index), last, newest))
        parts += [tail, _TAIL.pack(len(tail), zlib.crc32(tail))]
        yield b"".join(parts)


def decode_index(head: bytes, tail: bytes) -> Index:
    """Decode the index of a file from its first bytes and from its end, which is the whole index at least. Raises FlinkError
    IOException if they are damaged."""
    try:
        size, checksum = _TAIL.unpack_from(tail, len(tail) - _TAIL.size)
        encoded = tail[-_TAIL.size - size : -_TAIL.size]
        if _HEADER.unpack_from(head) != (MAGIC, VERSION) or zlib.crc32(encoded) != checksum:
            raise _damaged("its header or its index is damaged")
        return msgspec.msgpack.decode(encoded, type=Index)
    except (struct.error, msgspec.MsgspecError) as error:
        raise _damaged(str(error)) from error


def index_bytes(tail: bytes) -> int:
    """Return how many bytes the index takes, from the last TAIL_BYTES of a file."""
    return int(_TAIL.unpack(tail)[0]) + _TAIL.size if len(tail) == _TAIL.size else 0


HEAD_BYTES, TAIL_BYTES = _HEADER.size, _TAIL.size


def decode_block(data: bytes) -> Rows:
    """Raises FlinkError IOException if the block is damaged."""
    encoded = data[: -_CRC.size]
    if len(data) < _CRC.size or zlib.crc32(encoded) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        raise _damaged("the checksum of a block is wrong")
    return msgspec.msgpack.decode(encoded, type=Block).rows()


def _damaged(why: str) -> FlinkError:
    return FlinkError("IOException", f"Could not read a file of keyed state: {why}.")
