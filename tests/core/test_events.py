"""Task events against Flink's own bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfInputChannelState,
    EndOfOutputChannelState,
    EndOfPartition,
    EndOfSegment,
    EndOfSuperstep,
    Event,
    EventAnnouncement,
    OpaqueEvent,
    OtherEvent,
    RecoveryMetadata,
    SavepointFormat,
    SnapshotType,
    StopMode,
    SubtaskConnectionDescriptor,
    WatermarkEvent,
    data_type_of,
    decode_event,
    encode_event,
)
from testbed_runtime.core.exchange.frames import DataType

VECTORS = Path(__file__).parent.parent / "data" / "wire-vectors-2.x.txt"
TIME = 0x18BCFE56805
LOCATION = b"\x00\x05sp-1\x01"[:6]

EVENTS: dict[str, Event] = {
    "EndOfPartition": EndOfPartition(),
    "EndOfData.drain": EndOfData(StopMode.DRAIN),
    "EndOfData.nodrain": EndOfData(StopMode.NO_DRAIN),
    "barrier.aligned": CheckpointBarrier(5, TIME),
    "barrier.timeout": CheckpointBarrier(5, TIME, alignment_timeout_ms=30_000),
    "barrier.unaligned": CheckpointBarrier(5, TIME, AlignmentType.UNALIGNED),
    "barrier.atleastonce": CheckpointBarrier(5, TIME, AlignmentType.AT_LEAST_ONCE),
    "barrier.full": CheckpointBarrier(5, TIME, snapshot_type=SnapshotType.FULL_CHECKPOINT),
    "barrier.savepoint": CheckpointBarrier(5, TIME, snapshot_type=SnapshotType.SAVEPOINT, location=LOCATION),
    "barrier.terminate": CheckpointBarrier(
        5,
        TIME,
        snapshot_type=SnapshotType.SAVEPOINT_TERMINATE,
        savepoint_format=SavepointFormat.NATIVE,
        location=LOCATION,
    ),
    "CancelCheckpointMarker": CancelCheckpointMarker(7),
    "EndOfSuperstep": EndOfSuperstep(),
    "SubtaskConnectionDescriptor": SubtaskConnectionDescriptor(1, 2),
    "Ping": OtherEvent("interop.Ping", b"\x00\x00\x00\x2a"),
}


def vectors() -> dict[str, tuple[int, bytes]]:
    found = {}
    for line in VECTORS.read_text().splitlines():
        if line.startswith("event "):
            _, name, number, text = line.split()
            found[name] = (int(number), bytes.fromhex(text))
    return found


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_has_the_bytes_and_the_type_that_flink_gives_it(name: str) -> None:
    """Each of Flink's vectors in both directions, and its data type."""
    number, data = vectors()[name]
    assert encode_event(EVENTS[name]) == data
    assert decode_event(data) == EVENTS[name]
    assert data_type_of(EVENTS[name]) == number


@pytest.mark.parametrize("name", [n for n in EVENTS if n != "Ping"])
@pytest.mark.parametrize("padding", [1, 4, 100])
def test_padding_behind_an_event_is_ignored(name: str, padding: int) -> None:
    """Flink sends the whole backing array."""
    assert decode_event(vectors()[name][1] + bytes(padding)) == EVENTS[name]


def test_a_users_event_keeps_its_padding_as_payload() -> None:
    """Only its class knows where its fields end."""
    event = decode_event(vectors()["Ping"][1] + bytes(106))
    assert isinstance(event, OtherEvent)
    assert event.class_name == "interop.Ping"
    assert event.payload == b"\x00\x00\x00\x2a" + bytes(106)


@pytest.mark.parametrize(
    ("event", "data_type"),
    [
        (EndOfSegment(), DataType.END_OF_SEGMENT),
        (EndOfOutputChannelState(), DataType.RECOVERY_COMPLETION),
        (EndOfInputChannelState(), DataType.EVENT_BUFFER),
        (RecoveryMetadata(3), DataType.RECOVERY_METADATA),
        (EventAnnouncement(4, CheckpointBarrier(1, 2)), DataType.PRIORITIZED_EVENT_BUFFER),
        (CheckpointBarrier(1, 2, AlignmentType.FORCED_ALIGNED), DataType.ALIGNED_CHECKPOINT_BARRIER),
        (CheckpointBarrier(1, 2, alignment_timeout_ms=0), DataType.ALIGNED_CHECKPOINT_BARRIER),
        (WatermarkEvent(b"\x01\x02"), DataType.EVENT_BUFFER),
        (OpaqueEvent(99, b"xyz"), DataType.EVENT_BUFFER),
    ],
)
def test_the_other_events_come_back_as_they_were(event: Event, data_type: DataType) -> None:
    """Unknown kinds are kept as well."""
    assert decode_event(encode_event(event)) == event
    assert data_type_of(event) == data_type


@pytest.mark.parametrize("name", [n for n in EVENTS if len(vectors()[n][1]) > 4 and n != "Ping"])
def test_an_event_cut_short_is_an_error_of_the_peer(name: str) -> None:
    """Every proper prefix is refused."""
    data = vectors()[name][1]
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_event(data[:end])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\0\0", "Incomplete event"),
        (b"\0\0\0\1" + bytes(16) + b"\5", "Unknown checkpoint type code: 5"),
        (b"\0\0\0\1" + bytes(16) + b"\3\2", "Unknown savepoint format type code: 2"),
    ],
)
def test_an_event_that_flink_cannot_read_is_refused_with_its_text(data: bytes, text: str) -> None:
    """EventSerializer.fromSerializedEvent."""
    with pytest.raises(RemoteProtocolError, match=text):
        decode_event(data)


@given(data=st.binary(max_size=60))
def test_no_bytes_make_decoding_fail_otherwise(data: bytes) -> None:
    """Whatever comes, the only failure is RemoteProtocolError."""
    for prefix in (b"", b"\x00\x00\x00\x01", b"\x00\x00\x00\x03", b"\x00\x00\x00\x06"):
        try:
            decode_event(prefix + data)
        except RemoteProtocolError:
            continue


@given(
    event=st.builds(
        CheckpointBarrier,
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.sampled_from(AlignmentType),
        st.integers(0, 2**63 - 1),
        st.sampled_from([SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_SUSPEND]),
        location=st.none() | st.binary(max_size=100),
    )
)
def test_every_barrier_comes_back(event: CheckpointBarrier) -> None:
    """All alignments are covered, with and without a location."""
    assert decode_event(encode_event(event) + b"\x00\x00\x00") == event
