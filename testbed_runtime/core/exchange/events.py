"""Task events: the payload of an event BufferResponse (Flink's EventSerializer).

0        4
| kind   | fields …                 big-endian; Flink pads some events with zeros, which are ignored
"""

from __future__ import annotations

import enum
import struct
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import astuple, replace

from testbed_runtime.core.errors import FlinkError, LocalProtocolError, RemoteProtocolError
from testbed_runtime.core.exchange.frames import BytesLike, DataType

NO_TIMEOUT_MS = 2**63 - 1
"""Long.MAX_VALUE: an aligned barrier that never becomes unaligned."""
MAX_LOCATION_BYTES = 64 * 1024
"""Maximum size of a checkpoint location reference (Flink's are paths of at most a few KiB)."""

_KIND = struct.Struct(">i")
_BARRIER = struct.Struct(">iqqB")
_BARRIER_TAIL = struct.Struct(">Bq")


class EventKind(enum.IntEnum):
    """The first 32-bit integer of a serialised event."""

    END_OF_PARTITION = 0
    CHECKPOINT_BARRIER = 1
    END_OF_SUPERSTEP = 2
    OTHER = 3
    CANCEL_CHECKPOINT_MARKER = 4
    END_OF_OUTPUT_CHANNEL_STATE = 5
    EVENT_ANNOUNCEMENT = 6
    SUBTASK_CONNECTION_DESCRIPTOR = 7
    END_OF_DATA = 8
    END_OF_SEGMENT = 9
    RECOVERY_METADATA = 10
    WATERMARK = 11
    END_OF_INPUT_CHANNEL_STATE = 12


class SnapshotType(enum.IntEnum):
    CHECKPOINT = 0
    SAVEPOINT = 1
    SAVEPOINT_SUSPEND = 2
    SAVEPOINT_TERMINATE = 3
    FULL_CHECKPOINT = 4

    @property
    def is_savepoint(self) -> bool:
        """Whether this is a savepoint, which carries a format byte."""
        return self in (
            SnapshotType.SAVEPOINT,
            SnapshotType.SAVEPOINT_SUSPEND,
            SnapshotType.SAVEPOINT_TERMINATE,
        )


class SavepointFormat(enum.IntEnum):
    CANONICAL = 0
    NATIVE = 1


class AlignmentType(enum.IntEnum):
    AT_LEAST_ONCE = 0
    ALIGNED = 1
    UNALIGNED = 2
    FORCED_ALIGNED = 3


class StopMode(enum.IntEnum):
    DRAIN = 0
    NO_DRAIN = 1


class EndOfPartition(Struct, frozen=True):
    """The last element of a subpartition."""


class CheckpointBarrier(Struct, frozen=True):
    """A checkpoint barrier. `timestamp_ms` is the trigger's wall clock; `location` None is the default location."""

    checkpoint_id: int
    timestamp_ms: int
    alignment: AlignmentType = AlignmentType.ALIGNED
    alignment_timeout_ms: int = NO_TIMEOUT_MS
    snapshot_type: SnapshotType = SnapshotType.CHECKPOINT
    savepoint_format: SavepointFormat = SavepointFormat.CANONICAL
    location: bytes | None = None

    def __post_init__(self) -> None:
        """Raise FlinkError IllegalArgumentException as CheckpointOptions and CheckpointStorageLocationReference do."""
        if self.location == b"":
            raise FlinkError("IllegalArgumentException", "The location of a checkpoint has no bytes")
        if self.alignment is not AlignmentType.UNALIGNED:
            return
        if self.snapshot_type.is_savepoint:
            raise FlinkError("IllegalArgumentException", "Savepoint can't be unaligned")
        if self.alignment_timeout_ms != NO_TIMEOUT_MS:
            text = f"Unaligned checkpoint can't have timeout ({self.alignment_timeout_ms})"
            raise FlinkError("IllegalArgumentException", text)

    @property
    def is_timeoutable(self) -> bool:
        return self.alignment is AlignmentType.ALIGNED and 0 < self.alignment_timeout_ms < NO_TIMEOUT_MS

    @property
    def deadline(self) -> float:
        """Time in seconds at which an aligned checkpoint becomes unaligned."""
        return (self.timestamp_ms + self.alignment_timeout_ms) / 1000 if self.is_timeoutable else float("inf")

    def as_unaligned(self) -> CheckpointBarrier:
        """Return this barrier as one that overtakes data."""
        return replace(self, alignment=AlignmentType.UNALIGNED, alignment_timeout_ms=NO_TIMEOUT_MS)

    def with_unaligned_unsupported(self) -> CheckpointBarrier:
        """Return this barrier for a connection on which barriers must not overtake data."""
        may_overtake = self.alignment is AlignmentType.UNALIGNED or self.is_timeoutable
        return replace(self, alignment=AlignmentType.FORCED_ALIGNED) if may_overtake else self

    def with_unaligned_supported(self) -> CheckpointBarrier:
        """Return the barrier that `with_unaligned_unsupported` was called on."""
        if self.alignment is not AlignmentType.FORCED_ALIGNED:
            return self
        if self.alignment_timeout_ms == NO_TIMEOUT_MS:
            return self.as_unaligned()
        return replace(self, alignment=AlignmentType.ALIGNED)


class EndOfSuperstep(Struct, frozen=True):
    pass


class OtherEvent(Struct, frozen=True):
    """A user-defined event: a Java class name and the serialised fields of that class, including any padding."""

    class_name: str
    payload: bytes


class CancelCheckpointMarker(Struct, frozen=True):
    checkpoint_id: int


class EndOfOutputChannelState(Struct, frozen=True):
    """Marks the end of output channel state. Flink 1.20 to 2.1 call it EndOfChannelState."""


class EndOfInputChannelState(Struct, frozen=True):
    """Marks the end of input channel state. Exists from Flink 2.2 on."""


class EventAnnouncement(Struct, frozen=True):
    """Announces a barrier with this sequence number queued behind data. Created by the receiver, never sent."""

    sequence_number: int
    event: CheckpointBarrier


class SubtaskConnectionDescriptor(Struct, frozen=True):
    input_subtask: int
    output_subtask: int


class EndOfData(Struct, frozen=True):
    mode: StopMode = StopMode.DRAIN


class EndOfSegment(Struct, frozen=True):
    pass


class RecoveryMetadata(Struct, frozen=True):
    final_buffer_subpartition: int


class WatermarkEvent(Struct, frozen=True):
    """A generalised watermark of Flink 2.x; not interpreted."""

    payload: bytes


Event: TypeAlias = (
    EndOfPartition
    | CheckpointBarrier
    | EndOfSuperstep
    | OtherEvent
    | CancelCheckpointMarker
    | EndOfOutputChannelState
    | EndOfInputChannelState
    | EventAnnouncement
    | SubtaskConnectionDescriptor
    | EndOfData
    | EndOfSegment
    | RecoveryMetadata
    | WatermarkEvent
)

_FIXED: dict[type[Event], tuple[EventKind, struct.Struct]] = {
    EndOfPartition: (EventKind.END_OF_PARTITION, struct.Struct("")),
    EndOfSuperstep: (EventKind.END_OF_SUPERSTEP, struct.Struct("")),
    CancelCheckpointMarker: (EventKind.CANCEL_CHECKPOINT_MARKER, struct.Struct(">q")),
    EndOfOutputChannelState: (EventKind.END_OF_OUTPUT_CHANNEL_STATE, struct.Struct("")),
    SubtaskConnectionDescriptor: (EventKind.SUBTASK_CONNECTION_DESCRIPTOR, struct.Struct(">ii")),
    EndOfData: (EventKind.END_OF_DATA, struct.Struct(">B")),
    EndOfSegment: (EventKind.END_OF_SEGMENT, struct.Struct("")),
    RecoveryMetadata: (EventKind.RECOVERY_METADATA, struct.Struct(">i")),
    EndOfInputChannelState: (EventKind.END_OF_INPUT_CHANNEL_STATE, struct.Struct("")),
}
"""The events whose fields have a fixed size: kind, and layout of the fields."""
_FIXED_BY_KIND = {int(kind): (event, fields) for event, (kind, fields) in _FIXED.items()}


def encode_event(event: Event) -> bytes:
    """Return the payload of an event BufferResponse, without padding (Flink accepts that). Raises LocalProtocolError."""
    fixed = _FIXED.get(type(event))
    if fixed is not None:
        kind, fields = fixed
        return _KIND.pack(kind) + fields.pack(*astuple(event))
    match event:
        case CheckpointBarrier():
            return _encode_barrier(event)
        case EventAnnouncement(sequence_number, inner):
            return struct.pack(">ii", EventKind.EVENT_ANNOUNCEMENT, sequence_number) + _encode_barrier(inner)
        case OtherEvent(class_name, payload):
            return _KIND.pack(EventKind.OTHER) + encode_utf(class_name) + payload
        case WatermarkEvent(payload):
            return _KIND.pack(EventKind.WATERMARK) + payload
        case _:
            raise LocalProtocolError(f"{type(event).__name__} is never sent")


def encode_utf(text: str) -> bytes:
    """Encode a text as Java's DataOutput.writeUTF does: its length in 16 bits, then its bytes."""
    data = text.encode()
    if len(data) > 0xFFFF:
        raise LocalProtocolError(f"a class name has at most 65535 bytes, got {len(data)}")
    return struct.pack(">H", len(data)) + data


def decode_utf(data: BytesLike, position: int) -> tuple[str, int]:
    """Decode the text at a position. Return it and the position after it. Raises ValueError or struct.error."""
    view = memoryview(data)
    (length,) = struct.unpack_from(">H", view, position)
    end = position + 2 + length
    if end > len(view):
        raise ValueError("a text is truncated")
    return bytes(view[position + 2 : end]).decode(), end


def _encode_barrier(barrier: CheckpointBarrier) -> bytes:
    head = _BARRIER.pack(
        EventKind.CHECKPOINT_BARRIER, barrier.checkpoint_id, barrier.timestamp_ms, barrier.snapshot_type
    )
    if barrier.snapshot_type.is_savepoint:
        head += bytes((barrier.savepoint_format,))
    if barrier.location is None:
        head += _KIND.pack(-1)
    else:
        head += _KIND.pack(len(barrier.location)) + barrier.location
    return head + _BARRIER_TAIL.pack(barrier.alignment, barrier.alignment_timeout_ms)


def decode_event(data: BytesLike) -> Event:
    """Decode an event; bytes after its fields are padding. Raises RemoteProtocolError for missing or invalid fields."""
    if len(data) < _KIND.size:
        raise RemoteProtocolError("Incomplete event", "java.io.IOException")
    try:
        return _decode(bytes(data))
    except (struct.error, ValueError, IndexError, FlinkError) as error:
        raise RemoteProtocolError(f"An event of {len(data)} bytes cannot be read: {error}") from None


@lru_cache(maxsize=64)
def _decode(data: bytes) -> Event:
    """Decode an event. The same barrier arrives on every channel of a task."""
    view = memoryview(data)
    (kind,) = _KIND.unpack_from(view)
    if kind == EventKind.CHECKPOINT_BARRIER:
        return _decode_barrier(view)
    if kind == EventKind.END_OF_DATA:
        return EndOfData(StopMode(view[_KIND.size]))
    if kind in _FIXED_BY_KIND:
        event, fields = _FIXED_BY_KIND[kind]
        return event(*fields.unpack_from(view, _KIND.size))
    if kind == EventKind.EVENT_ANNOUNCEMENT:
        return EventAnnouncement(_KIND.unpack_from(view, 4)[0], _decode_barrier(view[8:]))
    if kind == EventKind.OTHER:
        name, position = decode_utf(view, 4)
        return OtherEvent(name, bytes(view[position:]))
    if kind == EventKind.WATERMARK:
        return WatermarkEvent(bytes(view[4:]))
    raise RemoteProtocolError("Corrupt byte stream for event", "java.io.IOException")


def _decode_barrier(view: memoryview) -> CheckpointBarrier:
    kind, checkpoint_id, timestamp, snapshot = _BARRIER.unpack_from(view)
    if kind != EventKind.CHECKPOINT_BARRIER:
        raise ValueError(f"expected a barrier, got kind {kind}")
    if snapshot >= len(SnapshotType):
        raise ValueError(f"Unknown checkpoint type code: {snapshot}")
    snapshot_type = SnapshotType(snapshot)
    position = _BARRIER.size
    savepoint_format = SavepointFormat.CANONICAL
    if snapshot_type.is_savepoint:
        if view[position] >= len(SavepointFormat):
            raise ValueError(f"Unknown savepoint format type code: {view[position]}")
        savepoint_format = SavepointFormat(view[position])
        position += 1
    (length,) = _KIND.unpack_from(view, position)
    position += _KIND.size
    if length < -1 or length > MAX_LOCATION_BYTES or position + length > len(view):
        raise ValueError(f"its location has an invalid length of {length}")
    location = None if length == -1 else bytes(view[position : position + length])
    position += max(length, 0)
    alignment, timeout = _BARRIER_TAIL.unpack_from(view, position)
    return CheckpointBarrier(
        checkpoint_id,
        timestamp,
        AlignmentType(alignment),
        timeout,
        snapshot_type,
        savepoint_format,
        location,
    )


_BARRIER_TYPES: dict[AlignmentType, DataType] = {
    AlignmentType.AT_LEAST_ONCE: DataType.EVENT_BUFFER,
    AlignmentType.ALIGNED: DataType.ALIGNED_CHECKPOINT_BARRIER,
    AlignmentType.UNALIGNED: DataType.PRIORITIZED_EVENT_BUFFER,
    AlignmentType.FORCED_ALIGNED: DataType.ALIGNED_CHECKPOINT_BARRIER,
}
_TYPES: dict[type[Event], DataType] = {
    EndOfPartition: DataType.END_OF_PARTITION,
    EndOfData: DataType.END_OF_DATA,
    EndOfSegment: DataType.END_OF_SEGMENT,
    EndOfOutputChannelState: DataType.RECOVERY_COMPLETION,
    RecoveryMetadata: DataType.RECOVERY_METADATA,
    EventAnnouncement: DataType.PRIORITIZED_EVENT_BUFFER,
}


def data_type_of(event: Event) -> DataType:
    """Return the event's data type: whether it has priority, and whether it blocks the producer after it."""
    if isinstance(event, CheckpointBarrier):
        if event.is_timeoutable:
            return DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
        return _BARRIER_TYPES[event.alignment]
    return _TYPES.get(type(event), DataType.EVENT_BUFFER)
