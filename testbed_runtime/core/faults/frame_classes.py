"""What a frame is called in a fault (`frames.delay`, …) and in the history, and to which channel it belongs."""

from __future__ import annotations

import struct

from testbed_runtime.core.exchange.frames import (
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CloseRequest,
    DataType,
    Frame,
    PartitionRequest,
)

OTHER = "other"
_EVENT_TYPE = struct.Struct(">i")
_CHECKPOINT_BARRIER = 1
"""EventSerializer's number of a checkpoint barrier (wire.md): the at-least-once and unaligned ones show only there."""


def frame_class(frame: Frame) -> str:
    """`buffer`, `event`, `barrier`, `credit`, `backlog`, `request` or `other`."""
    if isinstance(frame, BufferResponse):
        return _class_of_buffer(frame)
    if isinstance(frame, AddCredit):
        return "credit"
    if isinstance(frame, BacklogAnnouncement):
        return "backlog"
    return "request" if isinstance(frame, PartitionRequest) else OTHER


def _class_of_buffer(frame: BufferResponse) -> str:
    if frame.data_type.is_buffer:
        return "buffer"
    if frame.data_type in (
        DataType.ALIGNED_CHECKPOINT_BARRIER,
        DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
    ):
        return "barrier"
    data = frame.data
    if len(data) >= _EVENT_TYPE.size and _EVENT_TYPE.unpack_from(data)[0] == _CHECKPOINT_BARRIER:
        return "barrier"
    return "event"


def channel_of(frame: Frame) -> bytes:
    """The receiver id; empty for a frame of the whole connection."""
    if isinstance(frame, CloseRequest) or frame.receiver is None:
        return b""
    return frame.receiver
