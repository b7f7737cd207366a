"""Encode frames, and the layouts that both directions share (Flink's NettyMessage)."""

from __future__ import annotations

import enum
import struct
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple

from testbed_runtime.core.errors import LocalProtocolError
from testbed_runtime.core.exchange.frames import (
    FRAME_HEADER_BYTES,
    MAGIC,
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    BytesLike,
    CancelPartitionRequest,
    CloseRequest,
    DataType,
    ErrorResponse,
    Frame,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    SegmentId,
    TaskEventRequest,
    WireVersion,
)
from testbed_runtime.core.exchange.javaser import encode_throwable
from testbed_runtime.core.exchange.subpartition import Run
from testbed_runtime.core.ids import InputChannelID

HEADER = struct.Struct(">iIB")
RECEIVER = struct.Struct(">16s")
NUMBER_RECEIVER = struct.Struct(">i16s")
REQUEST_TAIL = struct.Struct(">ii16si")
INT = struct.Struct(">i")
BUFFER = {
    WireVersion.V2: struct.Struct(">16siiiiBBi"),
    WireVersion.V1_20: struct.Struct(">16siiiBBi"),
}
WHOLE = {version: struct.Struct(">iIB" + layout.format[1:]) for version, layout in BUFFER.items()}
WHOLE_V2, WHOLE_V1 = WHOLE.values()
_V2 = WireVersion.V2
CREDIT = struct.Struct(">iIBi16s")
"""A complete AddCredit, the most common frame besides BufferResponse."""
BUFFER_TYPES = frozenset({int(t) for t in DataType if t.is_buffer})
TYPES: Final = tuple(DataType)
BEHIND_BYTES = 6
"""Bytes of type, compressed and size: the part of a buffer's header after sequence number and backlog."""
NUMBERED = {
    version: struct.Struct(f">{layout.size - BEHIND_BYTES - 8}sii{BEHIND_BYTES}s")
    for version, layout in WHOLE.items()
}
"""The header of a buffer in three parts: the fields before sequence number and backlog, these two fields, and
the fields after them."""


class Id(enum.IntEnum):
    BUFFER_RESPONSE = 0
    ERROR_RESPONSE = 1
    PARTITION_REQUEST = 2
    TASK_EVENT_REQUEST = 3
    CANCEL_PARTITION_REQUEST = 4
    CLOSE_REQUEST = 5
    ADD_CREDIT = 6
    RESUME_CONSUMPTION = 7
    ACK_ALL_USER_RECORDS_PROCESSED = 8
    BACKLOG_ANNOUNCEMENT = 9
    NEW_BUFFER_SIZE = 10
    SEGMENT_ID = 11


class Layout(Struct, frozen=True):
    """A frame whose body has its fields in order, the receiver last."""

    number: Id
    body: struct.Struct
    refusal: str = ""
    """Flink's text if the number before the receiver is not positive. Empty if any value is allowed."""


LAYOUTS: dict[type[Frame], Layout] = {
    CancelPartitionRequest: Layout(Id.CANCEL_PARTITION_REQUEST, RECEIVER),
    CloseRequest: Layout(Id.CLOSE_REQUEST, struct.Struct("")),
    AddCredit: Layout(Id.ADD_CREDIT, NUMBER_RECEIVER, "The announced credit should be greater than 0"),
    ResumeConsumption: Layout(Id.RESUME_CONSUMPTION, RECEIVER),
    AckAllUserRecordsProcessed: Layout(Id.ACK_ALL_USER_RECORDS_PROCESSED, RECEIVER),
    BacklogAnnouncement: Layout(Id.BACKLOG_ANNOUNCEMENT, NUMBER_RECEIVER, "Must be positive."),
    NewBufferSize: Layout(
        Id.NEW_BUFFER_SIZE, NUMBER_RECEIVER, "The new buffer size should be greater than 0"
    ),
    SegmentId: Layout(Id.SEGMENT_ID, struct.Struct(">ii16s"), "The segmentId should be greater than 0"),
}
"""The frames of a fixed size, except PartitionRequest."""


def encode(frame: Frame, version: WireVersion) -> list[BytesLike]:
    """Return header and payload separately, so that the segment is not copied. Raises LocalProtocolError for frames that
    Flink would refuse."""
    if type(frame) is BufferResponse:
        return _encode_buffer(frame, version)
    if type(frame) is AddCredit:
        _require_positive(frame.credit, LAYOUTS[AddCredit])
        return [CREDIT.pack(CREDIT.size, MAGIC, 6, frame.credit, frame.receiver)]
    return [_encode_control(frame)]


def encode_run(
    receiver: InputChannelID, subpartition: int, run: Run, version: WireVersion
) -> list[BytesLike]:
    """Encode several data buffers of a channel, like `encode` for each of them."""
    parts: list[BytesLike] = []
    if run.size:
        ahead, behind = _around_numbers(receiver, subpartition, run.size, version)
        number, total = NUMBERED[version].pack, run.sequence + run.backlog
        for sequence, buffer in enumerate(run.buffers, run.sequence):
            parts += number(ahead, sequence, total - sequence, behind), buffer.view()
        return parts
    is_v2 = version is _V2
    layout = WHOLE_V2 if is_v2 else WHOLE_V1
    head, pack, append = layout.size, layout.pack, parts.append
    sequence, backlog = run.sequence, run.backlog
    for buffer in run.buffers:
        data = buffer.view()
        size = len(data)
        if is_v2:
            header = pack(
                head + size, MAGIC, 0, receiver, subpartition, 0, sequence, backlog, buffer.data_type,
                buffer.compressed, size,
            )  # fmt: skip
        else:
            header = pack(
                head + size, MAGIC, 0, receiver, subpartition, sequence, backlog, buffer.data_type,
                buffer.compressed, size,
            )  # fmt: skip
        append(header)
        append(data)
        sequence += 1
        backlog -= 1
    return parts


@lru_cache(maxsize=4096)  # channels of a process that send at the same time; another one costs a microsecond
def _around_numbers(
    receiver: InputChannelID, subpartition: int, size: int, version: WireVersion
) -> tuple[bytes, bytes]:
    """Return the bytes that the header of a usual data buffer has before sequence number and backlog, and
    after them."""
    layout, partials = WHOLE[version], (0,) if version is _V2 else ()
    header = layout.pack(
        layout.size + size, MAGIC, 0, receiver, subpartition, *partials, 0, 0, DataType.DATA_BUFFER, False, size
    )  # fmt: skip
    return header[: -BEHIND_BYTES - 8], header[-BEHIND_BYTES:]


def _framed(number: Id, body: bytes) -> bytes:
    return HEADER.pack(FRAME_HEADER_BYTES + len(body), MAGIC, number) + body


def _require_positive(value: int, layout: Layout) -> None:
    if layout.refusal and value <= 0:
        raise LocalProtocolError(layout.refusal)


def _encode_control(frame: Frame) -> bytes:
    layout = LAYOUTS.get(type(frame))
    if layout is not None:
        values = astuple(frame)
        if layout.refusal:
            _require_positive(values[-2], layout)
        return _framed(layout.number, layout.body.pack(*values))
    match frame:
        case PartitionRequest(partition, first, last, receiver, credit):
            tail = REQUEST_TAIL.pack(first, last, receiver, credit)
            return _framed(Id.PARTITION_REQUEST, partition.to_bytes() + tail)
        case TaskEventRequest(event, partition, receiver):
            body = INT.pack(len(event)) + event + partition.to_bytes() + receiver
            return _framed(Id.TASK_EVENT_REQUEST, body)
        case ErrorResponse(class_name, message, optional):
            receiver_bytes = b"\x00" if optional is None else b"\x01" + optional
            return _framed(Id.ERROR_RESPONSE, encode_throwable(class_name, message) + receiver_bytes)
        case _:
            raise LocalProtocolError(f"{type(frame).__name__} is not a wire frame")


def _encode_buffer(frame: BufferResponse, version: WireVersion) -> list[BytesLike]:
    receiver, sequence, backlog, partials = (
        frame.receiver,
        frame.sequence_number,
        frame.backlog,
        frame.partials,
    )
    size = len(frame.data)
    if backlog < 0:
        raise LocalProtocolError("Must be non-negative.")
    layout = WHOLE_V2 if version is WireVersion.V2 else WHOLE_V1
    length = layout.size + 4 * len(partials) + size
    if version is WireVersion.V2:
        header = layout.pack(
            length, MAGIC, 0, receiver, frame.subpartition, len(partials), sequence, backlog, frame.data_type, frame.compressed, size
        )  # fmt: skip
        if partials:
            header += struct.pack(f">{len(partials)}i", *partials)
    elif partials:
        raise LocalProtocolError("Partial buffers require wire version 2.0 or later")
    else:
        header = layout.pack(
            length,
            MAGIC,
            0,
            receiver,
            frame.subpartition,
            sequence,
            backlog,
            frame.data_type,
            frame.compressed,
            size,
        )
    return [header, frame.data] if size else [header]
