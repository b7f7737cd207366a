"""A segment: the rows of one table of one process as an Arrow IPC stream, framed so that a torn tail is recognised.

    0       4        8       12       20      21
    | magic | length | crc32 | number | table | body …      integers big-endian; length counts the body only

Numbers count from 0 per stream of segments, without gaps: whoever appends refuses duplicates and gaps by them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.history.schema import TABLES

MAGIC = b"HGS1"
_HEADER = struct.Struct(">4sIIQB")
_CHECKED = struct.Struct(">QB")
MAX_BODY_BYTES = 64 * 1024 * 1024
"""A longer body is a torn or foreign file (ours are below 4 MiB)."""


@dataclass(frozen=True, slots=True)
class Segment:
    number: int
    table: int
    """Index into TABLES."""
    body: bytes

    @property
    def size(self) -> int:
        """Bytes with the frame."""
        return _HEADER.size + len(self.body)

    @property
    def table_name(self) -> str:
        return tuple(TABLES)[self.table]

    def to_bytes(self) -> bytes:
        crc = zlib.crc32(self.body, zlib.crc32(_CHECKED.pack(self.number, self.table)))
        return _HEADER.pack(MAGIC, len(self.body), crc, self.number, self.table) + self.body

    def rows(self) -> pa.Table:
        """Raises pa.ArrowInvalid when the body is not what `encode_table` wrote."""
        with pa.ipc.open_stream(self.body) as reader:
            return reader.read_all()


def encode_table(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body


@dataclass(frozen=True, slots=True)
class Scan:
    """What a run of bytes holds: whole segments, and how many bytes of them are good."""

    segments: tuple[Segment, ...]
    good_bytes: int
    problem: str
    """Empty, or why the rest is not a segment."""


def scan(data: bytes | memoryview) -> Scan:
    """All whole segments from the start of `data`, up to the first torn or foreign one."""
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
        return f"cut off in a header, {left} bytes are left"
    magic, length, crc, number, table = _HEADER.unpack_from(view, offset)
    if magic != MAGIC or table >= len(TABLES) or length > MAX_BODY_BYTES:
        return "not a segment"
    if left < _HEADER.size + length:
        return f"cut off in a body of {length} bytes, {left - _HEADER.size} are there"
    body = bytes(view[offset + _HEADER.size : offset + _HEADER.size + length])
    if zlib.crc32(body, zlib.crc32(_CHECKED.pack(number, table))) != crc:
        return "the checksum is wrong"
    return Segment(number, table, body)


def parse_batch(data: bytes) -> tuple[Segment, ...]:
    """The segments of a message from a process. Raises RemoteProtocolError unless all of it is whole segments."""
    found = scan(data)
    if found.problem:
        raise RemoteProtocolError(f"history segment at byte {found.good_bytes}: {found.problem}")
    return found.segments


def in_order(segments: tuple[Segment, ...], expected: int) -> Iterator[Segment]:
    """Those that are new, given the number that is expected next. Raises RemoteProtocolError at a gap."""
    for segment in segments:
        if segment.number > expected:
            raise RemoteProtocolError(f"history segment {segment.number} came, {expected} was expected")
        if segment.number == expected:
            expected += 1
            yield segment
