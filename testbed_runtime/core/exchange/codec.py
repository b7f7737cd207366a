"""Decode frames, incrementally and with bounded memory (Flink's NettyMessage).

0        4        8   9
| length | magic  |id | body …        length counts the whole frame; all integers big-endian

A decoder holds at most one complete frame. `feed` consumes bytes up to the end of the next frame and returns how many,
`next` returns the frame. A reader's loop:

    while view:
        view = view[decoder.feed(view):]
        frame = decoder.next()
        if frame is None: break        # all bytes consumed, or stalled without a buffer (legacy mode)
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.core.exchange.arrivals import MAX_BUFFER_BYTES, UNREAD_BYTES, Arrivals, Head
from testbed_runtime.core.exchange.encoding import (
    BUFFER,
    BUFFER_TYPES,
    CREDIT,
    HEADER,
    INT,
    LAYOUTS,
    RECEIVER,
    REQUEST_TAIL,
    TYPES,
    WHOLE,
    Id,
)
from testbed_runtime.core.exchange.frames import (
    FRAME_HEADER_BYTES,
    MAGIC,
    AddCredit,
    BufferResponse,
    BytesLike,
    ClientFrame,
    DataType,
    ErrorResponse,
    Frame,
    PartitionRequest,
    ServerFrame,
    TaskEventRequest,
    WireVersion,
)
from testbed_runtime.core.exchange.javaser import decode_throwable, simple_name
from testbed_runtime.core.exchange.layouts import KNOWN_TYPES, check_layout
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.ids import RESULT_PARTITION_ID_BYTES, InputChannelID, ResultPartitionID

MAX_CONTROL_FRAME_BYTES = 1024 * 1024
"""Maximum size of any frame except BufferResponse. The largest are Java stack traces (some KiB) and task events."""
MAX_EVENT_BYTES = 1024 * 1024
"""Maximum size of an event payload. Flink's are below 200 bytes, plus the path of a savepoint's location."""
MAX_PARTIALS = 4096
"""Maximum number of partial buffers in one frame."""

BAD_MAGIC = "Network stream corrupted: received incorrect magic number."
NEGATIVE_LENGTH = "The length field of current message must be non-negative"


class Discard(enum.Enum):
    """Returned by `allocate` for an unknown or released channel: the payload is discarded."""

    DISCARD = "discard"


DISCARD: Final = Discard.DISCARD


Allocate: TypeAlias = Callable[[InputChannelID, int, DataType], Buffer | Discard | None]
"""Returns memory for a payload, of at least the given size."""


class _Decoder:
    """Collects a frame: 9 header bytes, then the complete body (control frames are small)."""

    __slots__ = ("_body_bytes", "_gathered", "_id", "_ready", "version")

    def __init__(self, version: WireVersion) -> None:
        self.version = version
        self._gathered = bytearray()
        self._id = -1
        self._body_bytes = 0
        self._ready: Frame | None = None

    def _take(self, view: memoryview, position: int, wanted: int) -> int:
        """Collect input until `wanted` bytes are there. Return the new position."""
        end = min(len(view), position + wanted - len(self._gathered))
        self._gathered += view[position:end]
        return end

    def _header(self, view: memoryview, position: int) -> int:
        """Read the frame's header. Raises RemoteProtocolError for an invalid one."""
        position = self._take(view, position, FRAME_HEADER_BYTES)
        if len(self._gathered) < FRAME_HEADER_BYTES:
            return position
        length, magic, self._id = HEADER.unpack(self._gathered)
        self._gathered.clear()
        self._body_bytes = length - FRAME_HEADER_BYTES
        if magic != MAGIC:
            raise RemoteProtocolError(BAD_MAGIC, "java.lang.IllegalStateException")
        if self._body_bytes < 0:
            raise RemoteProtocolError(NEGATIVE_LENGTH)
        if self._id != Id.BUFFER_RESPONSE and length > MAX_CONTROL_FRAME_BYTES:
            raise RemoteProtocolError(
                f"A message of {length} bytes exceeds the limit of {MAX_CONTROL_FRAME_BYTES} bytes"
            )
        return position

    def _finish(self, frame: Frame | None) -> None:
        self._ready = frame
        self._id = -1
        self._gathered.clear()


def _unknown(number: int) -> RemoteProtocolError:
    signed = (number ^ 128) - 128  # Java's byte
    return RemoteProtocolError(
        f"Received unknown message from producer: {signed}", "java.net.ProtocolException"
    )


class ServerDecoder(_Decoder):
    """Decodes what a producer receives: ClientFrames."""

    __slots__ = ()

    def feed(self, data: BytesLike, start: int = 0) -> int:
        """Consume data[start:], at most up to the end of a frame, and return the number of bytes. After a
        RemoteProtocolError the connection must be closed."""
        if self._ready is not None:
            return 0
        if self._id < 0 and not self._gathered and len(data) - start >= CREDIT.size:
            length, magic, number, credit, receiver = CREDIT.unpack_from(data, start)
            if number == 6 and magic == MAGIC and length == CREDIT.size and credit > 0:
                self._ready = AddCredit(credit, InputChannelID(receiver))
                return CREDIT.size
        view = memoryview(data)
        position = start
        if self._id < 0:
            position = self._header(view, start)
            if self._id < 0:
                return position - start
            if self._id not in _CLIENT_IDS:
                raise _unknown(self._id)
        position = self._take(view, position, self._body_bytes)
        if len(self._gathered) == self._body_bytes:
            self._finish(_decode_control(self._id, bytes(self._gathered)))
        return position - start

    def next(self) -> ClientFrame | None:
        """Return the complete frame, or None if more bytes are needed."""
        frame, self._ready = self._ready, None
        return frame  # type: ignore[return-value]


_BY_NUMBER = {int(layout.number): (frame, layout) for frame, layout in LAYOUTS.items()}
_EVENT_REQUEST_MIN = INT.size + RESULT_PARTITION_ID_BYTES + RECEIVER.size
_LEAST_BODIES: dict[int, int] = {
    **{number: layout.body.size for number, (_, layout) in _BY_NUMBER.items()},
    Id.PARTITION_REQUEST: RESULT_PARTITION_ID_BYTES + REQUEST_TAIL.size,
    Id.TASK_EVENT_REQUEST: _EVENT_REQUEST_MIN,
}
"""Least sizes of control frames' bodies. Flink ignores bytes behind them."""
_CLIENT_IDS = _LEAST_BODIES.keys() - {Id.BACKLOG_ANNOUNCEMENT}


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise RemoteProtocolError(text)


def _partition(body: bytes) -> ResultPartitionID:
    """Return the id at the beginning of a body. Flink refuses negative numbers in the id of its producer."""
    found = ResultPartitionID.from_bytes(body[:RESULT_PARTITION_ID_BYTES])
    _require(found.producer.subtask >= 0, "subtaskIndex must be greater than or equal to 0")
    _require(found.producer.attempt >= 0, "attemptNumber must be greater than or equal to 0")
    return found


def _decode_control(number: int, body: bytes) -> Frame:
    least = _LEAST_BODIES[number]
    if len(body) < least:
        text = f"{Id(number).name} must have a body of {least} bytes, not {len(body)}"
        raise RemoteProtocolError(text, "java.lang.IndexOutOfBoundsException")
    if number == Id.PARTITION_REQUEST:
        partition = _partition(body)
        first, last, receiver, credit = REQUEST_TAIL.unpack_from(body, RESULT_PARTITION_ID_BYTES)
        _require(0 <= first <= last, f"The subpartition range {first}..{last} is invalid")
        return PartitionRequest(partition, first, last, InputChannelID(receiver), credit)
    if number == Id.TASK_EVENT_REQUEST:
        return _decode_task_event(body)
    frame, layout = _BY_NUMBER[number]
    values = layout.body.unpack_from(body)
    _require(not layout.refusal or values[-2] > 0, layout.refusal)
    return frame(*values)


def _decode_task_event(body: bytes) -> TaskEventRequest:
    (size,) = INT.unpack_from(body)
    _require(
        0 <= size <= len(body) - _EVENT_REQUEST_MIN,
        f"The event size {size} does not fit into its task event request",
    )
    end = 4 + size
    receiver_at = end + RESULT_PARTITION_ID_BYTES
    partition = _partition(body[end:])
    return TaskEventRequest(body[4:end], partition, InputChannelID(body[receiver_at : receiver_at + 16]))


class ClientDecoder(_Decoder):
    """Decodes what a consumer receives: ServerFrames.

    Payloads of data buffers are written directly into the buffer from `allocate(receiver, size, data_type)`. If it returns
    None (legacy mode), the decoder stops in the middle of its input until it is fed again. With DISCARD, the payload is
    discarded, and `next` returns no frame for it."""

    __slots__ = (
        "_allocate",
        "_arrivals",
        "_buffer",
        "_filled",
        "_head",
        "_head_bytes",
        "_layout",
        "_partials",
        "_partials_bytes",
        "_payload",
        "_skip",
        "_stalled",
        "_whole",
        "_whole_bytes",
        "buffer",
    )

    def __init__(self, version: WireVersion, allocate: Allocate) -> None:
        super().__init__(version)
        self._allocate = allocate
        self._layout = BUFFER[version]
        self._head_bytes = self._layout.size
        self._arrivals = Arrivals(version)
        self._whole = WHOLE[version]
        self._whole_bytes = self._whole.size
        self._head: tuple[InputChannelID, int, int, int, DataType, bool, int] | None = None
        self._partials: tuple[int, ...] = ()
        self._partials_bytes = 0
        self._buffer: Buffer | None = None
        self._payload: memoryview | None = None
        self._filled = 0
        self._skip = 0
        self._stalled = False
        self.buffer: Buffer | None = None
        """The buffer of the frame that `next` returned last, now owned by its receiver; None for events."""

    @property
    def stalled(self) -> bool:
        """Whether `allocate` returned no buffer: feed the rest again when the channel has one."""
        return self._stalled

    def next(self) -> ServerFrame | None:
        """Return the complete frame, or None if more bytes (or a buffer) are needed."""
        frame, self._ready = self._ready, None
        if frame is not None:
            self.buffer, self._buffer = self._buffer, None
        return frame  # type: ignore[return-value]

    def close(self) -> None:
        """Return the buffer of an incomplete or unclaimed frame, because the connection is closed."""
        if self._buffer is not None:
            self._payload = None
            self._buffer.recycle()
            self._buffer = None
        self._ready = None

    def heads(self, view: memoryview, start: int) -> tuple[InputChannelID, int, list[Head]] | None:
        """Return receiver, subpartition and heads of the complete data buffers of one channel with which view[start:] begins, or
        None if it begins differently. Consumes nothing: `feed` would return the same, one by one."""
        if self._id >= 0 or self._gathered or self._ready is not None:
            return None
        return self._arrivals.find(view, start)

    @property
    def lacks_little(self) -> bool:
        """Whether the rest of the input, behind the heads found last, is a usual data buffer without a few of its last bytes."""
        return 0 < self._arrivals.missing <= UNREAD_BYTES

    def feed(self, data: BytesLike, start: int = 0) -> int:
        """Consume data[start:], at most up to the end of a frame and less when stalled. Return the number of bytes.
        Raises RemoteProtocolError."""
        view = data if type(data) is memoryview else memoryview(data)
        position = start
        if self._id < 0 and not self._gathered and self._ready is None:
            position = self._usual(view, start)
            if self._stalled:
                return position - start
        while self._ready is None:
            if position == len(view) and self._needs_bytes():
                break
            position = self._step(view, position)
            if self._stalled:
                break
        return position - start

    def _usual(self, view: memoryview, start: int) -> int:
        """Handle the common case in one step: the input contains the whole header of a data buffer, often its payload too.

        Return the new position, or `start` if the input is different or invalid; the slow path then handles it."""
        body = start + self._whole_bytes
        if len(view) < body:
            return start
        if self.version is WireVersion.V2:
            (length, magic, number, receiver, subpartition, partials, sequence, backlog, type_number, compressed,
             size) = self._whole.unpack_from(view, start)  # fmt: skip
        else:
            (length, magic, number, receiver, subpartition, sequence, backlog, type_number, compressed,
             size) = self._whole.unpack_from(view, start)  # fmt: skip
            partials = 0
        if (
            magic != MAGIC
            or number != 0
            or partials
            or backlog < 0
            or type_number not in BUFFER_TYPES
            or not 0 <= size <= MAX_BUFFER_BYTES
            or length != self._whole_bytes + size
        ):
            return start
        data_type = TYPES[type_number]
        end: int = body + size
        given = self._allocate(receiver, size, data_type) if end <= len(view) else None
        if given is None or given is DISCARD:
            self._id = 0
            self._head = (receiver, subpartition, sequence, backlog, data_type, compressed != 0, size)
            if end <= len(view):
                self._opened(given, data_type, size)
            return body
        self._buffer = given
        payload = given.fill_view(size)
        payload[:] = view[body:end]
        self._ready = BufferResponse(
            receiver, subpartition, sequence, backlog, data_type, payload.toreadonly(), compressed != 0
        )
        return end

    def _needs_bytes(self) -> bool:
        """Whether the next step needs input. False if the next step is an empty payload or the allocation of a buffer."""
        if self._id != Id.BUFFER_RESPONSE:
            return True
        if self._head is None or len(self._gathered) < self._partials_bytes:
            return True
        return self._skip > 0 or (self._payload is not None and self._filled < len(self._payload))

    def _step(self, view: memoryview, position: int) -> int:
        if self._id < 0:
            position = self._header(view, position)
            if self._id >= 0 and self._id not in _SERVER_IDS:
                raise _unknown(self._id)
            return position
        if self._id != Id.BUFFER_RESPONSE:
            return self._control(view, position)
        if self._head is None:
            return self._buffer_head(view, position)
        if len(self._gathered) < self._partials_bytes:
            return self._take(view, position, self._partials_bytes)
        if self._skip:
            return self._discard(view, position)
        if self._payload is None and not self._open_payload():
            return position
        return self._fill(view, position)

    def _control(self, view: memoryview, position: int) -> int:
        position = self._take(view, position, self._body_bytes)
        if len(self._gathered) == self._body_bytes:
            body = bytes(self._gathered)
            self._finish(
                _decode_error(body) if self._id == Id.ERROR_RESPONSE else _decode_control(self._id, body)
            )
        return position

    def _buffer_head(self, view: memoryview, position: int) -> int:
        position = self._take(view, position, self._head_bytes)
        if len(self._gathered) < self._head_bytes:
            return position
        check_layout(self.version, self._gathered, self._body_bytes)
        partials = 0
        if self.version is WireVersion.V2:
            receiver, subpartition, partials, *rest = self._layout.unpack(self._gathered)
        else:
            receiver, subpartition, *rest = self._layout.unpack(self._gathered)
        sequence, backlog, type_number, compressed, size = rest
        self._gathered.clear()
        _require(backlog >= 0, "Must be non-negative.")
        _require(
            type_number < KNOWN_TYPES[self.version], f"Received a buffer of unknown data type {type_number}"
        )
        _require(0 <= partials <= MAX_PARTIALS, f"{partials} partial buffers in one message are not allowed")
        data_type = TYPES[type_number]
        limit = MAX_BUFFER_BYTES if data_type.is_buffer else MAX_EVENT_BYTES
        _require(size > 0 or data_type.is_buffer, "Illegal buffer size, must be positive.")
        _require(0 <= size <= limit, f"A buffer size of {size} bytes is invalid")
        announced = self._body_bytes - self._head_bytes - 4 * partials
        _require(announced == size, f"A buffer of {size} bytes was announced as one of {announced} bytes")
        self._head = (receiver, subpartition, sequence, backlog, data_type, compressed != 0, size)
        self._partials_bytes = 4 * partials
        return position

    def _open_payload(self) -> bool:
        """Allocate memory for the payload. Return False if stalled or if there is nothing to fill."""
        assert self._head is not None
        receiver, _, _, _, data_type, _, size = self._head
        if self._partials_bytes:
            self._partials = struct.unpack(f">{self._partials_bytes // 4}i", self._gathered)
        return self._opened(self._allocate(receiver, size, data_type), data_type, size)

    def _opened(self, given: Buffer | Discard | None, data_type: DataType, size: int) -> bool:
        if given is DISCARD:
            self._skip = size
            if not size:
                self._end_discard()
            return False
        if data_type.is_buffer:
            self._stalled = given is None
            if given is None:
                return False
            self._buffer = given
            self._payload = given.fill_view(size)
        else:
            self._payload = memoryview(bytearray(size))
        self._filled = 0
        return True

    def _fill(self, view: memoryview, position: int) -> int:
        assert self._payload is not None
        assert self._head is not None
        count = min(len(view) - position, len(self._payload) - self._filled)
        self._payload[self._filled : self._filled + count] = view[position : position + count]
        self._filled += count
        if self._filled == len(self._payload):
            receiver, subpartition, sequence, backlog, data_type, compressed, _ = self._head
            payload, partials = self._payload.toreadonly(), self._partials
            self._reset_buffer()
            self._finish(
                BufferResponse(
                    receiver, subpartition, sequence, backlog, data_type, payload, compressed, partials
                )
            )
        return position + count

    def _discard(self, view: memoryview, position: int) -> int:
        count = min(len(view) - position, self._skip)
        self._skip -= count
        if not self._skip:
            self._end_discard()
        return position + count

    def _end_discard(self) -> None:
        self._reset_buffer()
        self._finish(None)

    def _reset_buffer(self) -> None:
        self._head = None
        self._payload = None
        self._partials = ()
        self._partials_bytes = 0


_SERVER_IDS = frozenset({int(Id.BUFFER_RESPONSE), int(Id.ERROR_RESPONSE), int(Id.BACKLOG_ANNOUNCEMENT)})


def _decode_error(body: bytes) -> ErrorResponse:
    throwable, end = decode_throwable(body)
    tail = body[end:]
    _require(len(tail) >= 1 and (not tail[0] or len(tail) >= 17), "An error response names no valid receiver")
    receiver = InputChannelID(tail[1:17]) if tail[0] else None
    return ErrorResponse(simple_name(throwable.class_name), throwable.message, receiver)
