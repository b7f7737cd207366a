"""The size of a frame on the wire, for networks that carry frames without encoding them."""

from __future__ import annotations

from functools import cache

from testbed_runtime.core.exchange.encoding import encode
from testbed_runtime.core.exchange.frames import (
    FRAME_HEADER_BYTES,
    AckAllUserRecordsProcessed,
    AddCredit,
    BufferResponse,
    CancelPartitionRequest,
    DataType,
    Frame,
    PartitionRequest,
    ResumeConsumption,
    WireVersion,
)
from testbed_runtime.core.ids import RESULT_PARTITION_ID_BYTES, InputChannelID

_RECEIVER_BYTES = 16
_INT_BYTES = 4
FIXED_BYTES: dict[type[object], int] = {
    AddCredit: FRAME_HEADER_BYTES + _INT_BYTES + _RECEIVER_BYTES,
    PartitionRequest: FRAME_HEADER_BYTES + RESULT_PARTITION_ID_BYTES + 3 * _INT_BYTES + _RECEIVER_BYTES,
    ResumeConsumption: FRAME_HEADER_BYTES + _RECEIVER_BYTES,
    CancelPartitionRequest: FRAME_HEADER_BYTES + _RECEIVER_BYTES,
    AckAllUserRecordsProcessed: FRAME_HEADER_BYTES + _RECEIVER_BYTES,
}
"""Sizes of the frames that every channel needs."""


def wire_size(frame: Frame, version: WireVersion) -> int:
    """Return the number of bytes of an encoded frame. The usual frames are not encoded for it."""
    if type(frame) is BufferResponse:
        return header_bytes(version) + _INT_BYTES * len(frame.partials) + len(frame.data)
    size = FIXED_BYTES.get(type(frame))
    return sum(map(len, encode(frame, version))) if size is None else size


@cache
def header_bytes(version: WireVersion) -> int:
    """Return the number of bytes of a BufferResponse without its data."""
    empty = BufferResponse(InputChannelID(bytes(_RECEIVER_BYTES)), 0, 0, 0, DataType.DATA_BUFFER, b"")
    return sum(map(len, encode(empty, version)))
