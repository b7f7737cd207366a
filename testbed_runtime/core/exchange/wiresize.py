"""The size of a frame on the wire, for networks that carry frames without encoding them."""

from __future__ import annotations

from functools import cache

from testbed_runtime.core.exchange.encoding import INT, LAYOUTS, RECEIVER, REQUEST_TAIL, encode
from testbed_runtime.core.exchange.frames import (
    FRAME_HEADER_BYTES,
    BufferResponse,
    DataType,
    Frame,
    PartitionRequest,
    WireVersion,
)
from testbed_runtime.core.ids import RESULT_PARTITION_ID_BYTES, InputChannelID

FIXED_BYTES: dict[type[object], int] = {
    PartitionRequest: FRAME_HEADER_BYTES + RESULT_PARTITION_ID_BYTES + REQUEST_TAIL.size,
    **{frame: FRAME_HEADER_BYTES + layout.body.size for frame, layout in LAYOUTS.items()},
}
"""Sizes of the frames that have one."""


def wire_size(frame: Frame, version: WireVersion) -> int:
    """Return the number of bytes of an encoded frame. The usual frames are not encoded for it."""
    if type(frame) is BufferResponse:
        return header_bytes(version) + INT.size * len(frame.partials) + len(frame.data)
    size = FIXED_BYTES.get(type(frame))
    return sum(map(len, encode(frame, version))) if size is None else size


@cache
def header_bytes(version: WireVersion) -> int:
    """Return the number of bytes of a BufferResponse without its data."""
    empty = BufferResponse(InputChannelID(bytes(RECEIVER.size)), 0, 0, 0, DataType.DATA_BUFFER, b"")
    return sum(map(len, encode(empty, version)))
