"""Task events against Flink's own bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError, LocalProtocolError, RemoteProtocolError
from testbed_runtime.core.exchange.events import (
    MAX_LOCATION_BYTES,
    NO_TIMEOUT_MS,
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
    ],
)
def test_the_other_events_come_back_as_they_were(event: Event, data_type: DataType) -> None:
    """Those that Headgate does not send are kept too."""
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
        (b"\0\0\0\x0d", "Corrupt byte stream for event"),
        (b"\xff\xff\xff\xff", "Corrupt byte stream for event"),
        (b"\0\0\0\1" + bytes(16) + b"\5", "Unknown checkpoint type code: 5"),
        (b"\0\0\0\1" + bytes(16) + b"\3\2", "Unknown savepoint format type code: 2"),
    ],
)
def test_an_event_that_flink_cannot_read_is_refused_with_its_text(data: bytes, text: str) -> None:
    """EventSerializer.fromSerializedEvent."""
    with pytest.raises(RemoteProtocolError, match=text):
        decode_event(data)


@given(data=st.binary(max_size=60))
def test_any_bytes_are_refused_or_are_an_event_that_is_written_as_it_was_read(data: bytes) -> None:
    """The only failure is RemoteProtocolError; what is read starts the bytes, and the rest is padding."""
    for kind in range(-1, 15):
        whole = kind.to_bytes(4, "big", signed=True) + data
        try:
            event = decode_event(whole)
        except RemoteProtocolError:
            continue
        assert whole.startswith(encode_event(event))


@given(
    event=st.builds(
        CheckpointBarrier,
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.sampled_from([a for a in AlignmentType if a is not AlignmentType.UNALIGNED]),
        st.integers(0, 2**63 - 1),
        st.sampled_from([SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_SUSPEND]),
        location=st.none() | st.binary(max_size=100),
    )
)
def test_every_barrier_comes_back(event: CheckpointBarrier) -> None:
    """All alignments of a savepoint are covered, with and without a location."""
    assert decode_event(encode_event(event) + b"\x00\x00\x00") == event


def test_F_174_a_savepoint_is_never_unaligned_and_an_unaligned_barrier_has_no_timeout() -> None:
    """CheckpointOptionsTest.testSavepointNeedsAlignment. Nor is such a barrier read."""
    with pytest.raises(FlinkError, match="Savepoint can't be unaligned"):
        CheckpointBarrier(1, 2, AlignmentType.UNALIGNED, snapshot_type=SnapshotType.SAVEPOINT)
    with pytest.raises(FlinkError, match=r"Unaligned checkpoint can't have timeout \(10\)"):
        CheckpointBarrier(1, 2, AlignmentType.UNALIGNED, 10)
    aligned = bytearray(encode_event(CheckpointBarrier(1, 2, alignment_timeout_ms=10)))
    aligned[-9] = AlignmentType.UNALIGNED
    with pytest.raises(RemoteProtocolError, match="can't have timeout"):
        decode_event(bytes(aligned))


@pytest.mark.parametrize(
    ("timeout_ms", "times_out"), [(0, False), (10, True), (NO_TIMEOUT_MS - 1, True), (NO_TIMEOUT_MS, False)]
)
def test_F_175_an_aligned_barrier_times_out_after_its_timeout(timeout_ms: int, times_out: bool) -> None:
    """CheckpointOptionsTest.testCheckpointIsTimeoutable. The timeout counts from the barrier's timestamp, in seconds. Flink's largest
    long means never."""
    barrier = CheckpointBarrier(1, 2_000, alignment_timeout_ms=timeout_ms)
    assert barrier.is_timeoutable is times_out
    assert barrier.deadline == ((2_000 + timeout_ms) / 1000 if times_out else float("inf"))
    assert not barrier.as_unaligned().is_timeoutable
    assert not barrier.with_unaligned_unsupported().is_timeoutable


@pytest.mark.parametrize(
    ("barrier", "forced"),
    [
        (CheckpointBarrier(1, 2), False),
        (CheckpointBarrier(1, 2, snapshot_type=SnapshotType.SAVEPOINT), False),
        (CheckpointBarrier(1, 2, AlignmentType.AT_LEAST_ONCE), False),
        (CheckpointBarrier(1, 2, AlignmentType.UNALIGNED), True),
        (CheckpointBarrier(1, 2, alignment_timeout_ms=10), True),
    ],
)
def test_F_176_a_barrier_that_may_not_overtake_is_aligned_by_force_and_back(
    barrier: CheckpointBarrier, forced: bool
) -> None:
    """CheckpointOptionsTest.testForceAlignmentIsReversable. On a pointwise connection; behind it, the barrier is what it was."""
    assert barrier.with_unaligned_supported() == barrier
    sent = barrier.with_unaligned_unsupported()
    assert sent.alignment is (AlignmentType.FORCED_ALIGNED if forced else barrier.alignment)
    assert sent.alignment_timeout_ms == barrier.alignment_timeout_ms
    assert sent.with_unaligned_supported() == barrier


def test_only_the_largest_timeout_makes_a_forced_barrier_unaligned_again() -> None:
    """CheckpointOptions.withUnalignedSupported."""
    forced = CheckpointBarrier(1, 2, AlignmentType.FORCED_ALIGNED, 0)
    assert forced.with_unaligned_supported() == CheckpointBarrier(1, 2, AlignmentType.ALIGNED, 0)


def test_the_location_of_a_barrier_has_a_limit() -> None:
    """A longer one is refused with its length, and so are one without bytes and one that its event does not hold."""
    largest = CheckpointBarrier(1, 2, location=bytes(MAX_LOCATION_BYTES))
    assert decode_event(encode_event(largest)) == largest
    with pytest.raises(FlinkError, match="no bytes"):
        replace(largest, location=b"")
    head, tail = encode_event(CheckpointBarrier(1, 2))[:-13], bytes(9)
    for length, room in ((MAX_LOCATION_BYTES + 1, MAX_LOCATION_BYTES + 1), (-2, 0), (20, 10)):
        with pytest.raises(RemoteProtocolError, match=f"its location has an invalid length of {length}$"):
            decode_event(head + struct.pack(">i", length) + bytes(room) + tail)
    with pytest.raises(RemoteProtocolError, match="The location of a checkpoint has no bytes"):
        decode_event(head + struct.pack(">i", 0) + tail)


@pytest.mark.parametrize("size", [0, 1, 65_535])
def test_the_name_of_a_users_event_has_up_to_65535_bytes(size: int) -> None:
    """DataOutput.writeUTF has 16 bits for the length."""
    event = OtherEvent("n" * size, b"xy")
    data = encode_event(event)
    assert len(data) == 4 + 2 + size + 2
    assert decode_event(data) == event
    for end in (4, 5, 4 + 2 + size - 1):
        if end < 4 + 2 + size:
            with pytest.raises(RemoteProtocolError, match=f"An event of {end} bytes cannot be read"):
                decode_event(data[:end])


def test_a_longer_name_of_a_users_event_is_not_sent() -> None:
    """The mistake is the sender's."""
    with pytest.raises(LocalProtocolError, match=r"^a class name has at most 65535 bytes, got 65536$"):
        encode_event(OtherEvent("n" * 65_536, b""))
    with pytest.raises(LocalProtocolError, match=r"^object is never sent$"):
        encode_event(object())  # type: ignore[arg-type]
