"""The frames of Flink's network protocol (NettyMessage), one immutable class each.

0        4        8   9
| length | magic  |id | body …        length counts the whole frame; all integers big-endian
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from msgspec import Struct

from testbed_runtime.core.ids import InputChannelID, ResultPartitionID

MAGIC = 0xBADC0FFE
FRAME_HEADER_BYTES = 9

BytesLike: TypeAlias = "bytes | bytearray | memoryview"
"""A memoryview must have single bytes as items, so that its length is its size in bytes."""
LAST_SEQUENCE_NUMBER = 2**31 - 1


def next_sequence_number(number: int) -> int:
    """Return the number of the next element of a channel. As Java's int it continues at −2³¹ after 2³¹ − 1."""
    return number + 1 if number != LAST_SEQUENCE_NUMBER else -LAST_SEQUENCE_NUMBER - 1


class WireVersion(enum.Enum):
    """The frame layout. BufferResponse has `partials` in 2.x but not in 1.20, whose layout is also used for 1.12."""

    V1_20 = "1.20"
    V2 = "2.x"

    __hash__ = object.__hash__  # that of an enum is a call of Python, for each frame


class DataType(enum.IntEnum):
    """Flink's Buffer.DataType ordinals and their properties (plain attributes, because they are read for every buffer)."""

    is_buffer: bool
    """Whether the type needs credit. Everything else except NONE is an event, which needs none."""
    is_event: bool
    has_priority: bool
    is_blocking_upstream: bool
    """The producer sends only priority events until ResumeConsumption."""
    requires_announcement: bool

    NONE = 0
    DATA_BUFFER = 1
    EVENT_BUFFER = 2
    PRIORITIZED_EVENT_BUFFER = 3
    ALIGNED_CHECKPOINT_BARRIER = 4
    TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER = 5
    RECOVERY_COMPLETION = 6
    END_OF_SEGMENT = 7
    DATA_BUFFER_WITH_CLEAR_END = 8
    END_OF_DATA = 9
    END_OF_PARTITION = 10
    RECOVERY_METADATA = 11
    ALIGNED_WATERMARK_EVENT = 12
    UNALIGNED_WATERMARK_EVENT = 13

    def __init__(self, value: int) -> None:
        name = self.name
        self.is_buffer = name in ("DATA_BUFFER", "DATA_BUFFER_WITH_CLEAR_END")
        self.is_event = not self.is_buffer and value != 0
        self.has_priority = name == "PRIORITIZED_EVENT_BUFFER"
        self.requires_announcement = name == "TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER"
        self.is_blocking_upstream = self.requires_announcement or name in (
            "ALIGNED_CHECKPOINT_BARRIER",
            "RECOVERY_COMPLETION",
            "ALIGNED_WATERMARK_EVENT",
        )


class BufferResponse(Struct, frozen=True, gc=False):
    """Producer to consumer. `data` may be a view into a segment, valid until the sender's on_sent or the receiver's
    recycle."""

    receiver: InputChannelID
    subpartition: int
    sequence_number: int
    backlog: int
    data_type: DataType
    data: BytesLike
    compressed: bool = False
    partials: tuple[int, ...] = ()


class ErrorResponse(Struct, frozen=True):
    """Producer to consumer, encoded as a Java-serialised Throwable. Without a receiver it ends the whole connection."""

    class_name: str
    message: str
    receiver: InputChannelID | None = None


class PartitionRequest(Struct, frozen=True):
    partition: ResultPartitionID
    first_subpartition: int
    last_subpartition: int
    receiver: InputChannelID
    initial_credit: int


class TaskEventRequest(Struct, frozen=True):
    event: bytes
    partition: ResultPartitionID
    receiver: InputChannelID


class CancelPartitionRequest(Struct, frozen=True):
    receiver: InputChannelID


class CloseRequest(Struct, frozen=True):
    pass


class AddCredit(Struct, frozen=True, gc=False):
    credit: int
    receiver: InputChannelID


class ResumeConsumption(Struct, frozen=True):
    receiver: InputChannelID


class AckAllUserRecordsProcessed(Struct, frozen=True):
    receiver: InputChannelID


class BacklogAnnouncement(Struct, frozen=True):
    backlog: int
    receiver: InputChannelID


class NewBufferSize(Struct, frozen=True):
    buffer_size: int
    receiver: InputChannelID


class SegmentId(Struct, frozen=True):
    subpartition: int
    segment: int
    receiver: InputChannelID


ClientFrame: TypeAlias = (
    PartitionRequest
    | TaskEventRequest
    | CancelPartitionRequest
    | CloseRequest
    | AddCredit
    | ResumeConsumption
    | AckAllUserRecordsProcessed
    | NewBufferSize
    | SegmentId
)
ServerFrame: TypeAlias = BufferResponse | ErrorResponse | BacklogAnnouncement
Frame: TypeAlias = ClientFrame | ServerFrame
