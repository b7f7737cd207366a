"""A segment: rows of one table of one process as an Arrow IPC stream, framed so that truncation is detected.

    0       4        8       12       20      21
    | magic | length | crc32 | number | table | body …      integers big-endian; length counts the body only

Segments are numbered from 0 per stream without gaps, so that duplicates and gaps are detected when they are appended.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import pyarrow as pa
from msgspec import Struct

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.history.schema import TABLES

MAGIC = b"HGS1"
_HEADER = struct.Struct(">4sIIQB")
_CHECKED = struct.Struct(">QB")
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Maximum body size. A longer one means a damaged or foreign file (real ones are below 4 MiB)."""


class Segment(Struct, frozen=True):
    number: int
    table: int
    """Index in TABLES."""
    body: bytes

    @property
    def size(self) -> int:
        """Size in bytes, including the header."""
        return _HEADER.size + len(self.body)

    @property
    def table_name(self) -> str:
        return tuple(TABLES)[self.table]

    def to_bytes(self) -> bytes:
        crc = zlib.crc32(self.body, zlib.crc32(_CHECKED.pack(self.number, self.table)))
        return _HEADER.pack(MAGIC, len(self.body), crc, self.number, self.table) + self.body

    def rows(self) -> pa.Table:
        """Decode the body. Raises pa.ArrowInvalid if `encode_table` did not write it."""
        with pa.ipc.open_stream(self.body) as reader:
            return reader.read_all()


def encode_table(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body


class Scan(Struct, frozen=True):
    """The complete segments found in a sequence of bytes, and how many bytes they take."""

    segments: tuple[Segment, ...]
    good_bytes: int
    problem: str
    """Why the rest is not a segment; empty if there is no rest."""


def scan(data: bytes | memoryview) -> Scan:
    """Return all complete segments at the start of `data`, up to the first truncated or foreign one."""
    segments: list[Segment] = []
    offset = 0
    view = memoryview(data)
    while offset < len(view):
        found = _parse(view, offset)
        if isinstance(found, str):
            return Scan(tuple(segments), offset, found)
        segments.append(found)
        offset += found.size
    return Scan(tuple(segments), offset, "")


def _parse(view: memoryview, offset: int) -> Segment | str:
    left = len(view) - offset
    if left < _HEADER.size:
        return f"truncated in a header after {left} bytes"
    magic, length, crc, number, table = _HEADER.unpack_from(view, offset)
    if magic != MAGIC or table >= len(TABLES) or length > MAX_BODY_BYTES:
        return "not a segment"
    if left < _HEADER.size + length:
        return f"truncated in a body of {length} bytes after {left - _HEADER.size} bytes"
    body = bytes(view[offset + _HEADER.size : offset + _HEADER.size + length])
    if zlib.crc32(body, zlib.crc32(_CHECKED.pack(number, table))) != crc:
        return "the checksum is wrong"
    return Segment(number, table, body)


def parse_batch(data: bytes) -> tuple[Segment, ...]:
    """Return the segments of a batch. Raises RemoteProtocolError unless it consists of complete segments only."""
    found = scan(data)
    if found.problem:
        raise RemoteProtocolError(f"history segment at byte {found.good_bytes}: {found.problem}")
    return found.segments


def in_order(segments: tuple[Segment, ...], expected: int) -> Iterator[Segment]:
    """Yield the new segments, given the next expected number. Raises RemoteProtocolError at a gap."""
    for segment in segments:
        if segment.number > expected:
            raise RemoteProtocolError(f"expected history segment {expected}, got {segment.number}")
        if segment.number == expected:
            expected += 1
            yield segment
