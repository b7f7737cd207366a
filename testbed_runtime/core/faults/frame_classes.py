"""The class of a frame, as faults (`frames.delay`, …) and the history name it, and the channel that it belongs to."""

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

FRAME_CLASSES = ("buffer", "event", "barrier", "credit", "backlog", "request")
"""The classes that a fault can name."""
OTHER = "other"
_CLASSES: dict[type[Frame], str] = {
    AddCredit: "credit",
    BacklogAnnouncement: "backlog",
    PartitionRequest: "request",
}
_EVENT_TYPE = struct.Struct(">i")
_CHECKPOINT_BARRIER = 1
"""EventSerializer.CHECKPOINT_BARRIER_EVENT. At-least-once and unaligned barriers are recognised only by this
number."""


def frame_class(frame: Frame) -> str:
    """Return one of FRAME_CLASSES, or OTHER."""
    if type(frame) is BufferResponse:
        return _class_of_buffer(frame)
    return _CLASSES.get(type(frame), OTHER)


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
    """Return the receiver id of the frame. Empty for a frame of the whole connection."""
    if isinstance(frame, CloseRequest) or frame.receiver is None:
        return b""
    return frame.receiver
