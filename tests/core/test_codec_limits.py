"""The smallest and the largest values that a frame may have, and Flink's words for the next ones."""

from __future__ import annotations

import re
import struct

import pytest

from testbed_runtime.core.errors import LocalProtocolError, RemoteProtocolError
from testbed_runtime.core.exchange.arrivals import MAX_BUFFER_BYTES
from testbed_runtime.core.exchange.codec import DISCARD, ClientDecoder, ServerDecoder
from testbed_runtime.core.exchange.encoding import encode
from testbed_runtime.core.exchange.frames import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
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
from tests.core.test_codec import FRAMES, Memory, P, R, drain

V2, V1 = WireVersion.V2, WireVersion.V1_20
MAGIC = 0xBADC0FFE
MIB = 1024 * 1024


def raw(number: int, body: bytes, *, length: int | None = None, magic: int = MAGIC) -> bytes:
    """A frame with this id and body, and by default a header that fits."""
    return struct.pack(">iIB", 9 + len(body) if length is None else length, magic, number) + body


def numbers(*values: int) -> bytes:
    return struct.pack(f">{len(values)}i", *values)


def event_request(event: bytes) -> bytes:
    return raw(3, numbers(len(event)) + event + P.to_bytes() + R)


def request(first: int, last: int, credit: int) -> bytes:
    return raw(2, P.to_bytes() + numbers(first, last) + R + numbers(credit))


def buffer(
    version: WireVersion = V2, *, size: int = 4, data_type: int = 1, backlog: int = 0, partials: int = 0,
    compressed: int = 0, announced: int | None = None,
) -> bytes:  # fmt: skip
    """The header of a buffer without its payload."""
    some = numbers(partials) if version is V2 else b""
    body = R + numbers(9) + some + numbers(7, backlog) + bytes((data_type, compressed)) + numbers(size)
    payload = size + 4 * max(0, partials) if announced is None else announced
    return raw(0, body, length=9 + len(body) + payload)


def consumer(version: WireVersion = V2) -> ClientDecoder:
    return ClientDecoder(version, lambda *_: Memory())


SMALLEST = [
    (raw(6, numbers(1) + R), AddCredit(1, R)),
    (request(0, 0, 0), PartitionRequest(P, 0, 0, R, 0)),
    (request(3, 3, 1), PartitionRequest(P, 3, 3, R, 1)),
    (event_request(b""), TaskEventRequest(b"", P, R)),
    (event_request(b"e"), TaskEventRequest(b"e", P, R)),
    (raw(5, b""), CloseRequest()),
    (raw(10, numbers(1) + R), NewBufferSize(1, R)),
    (raw(11, numbers(0, 1) + R), SegmentId(0, 1, R)),
]


@pytest.mark.parametrize("step", [None, 1, 28])
@pytest.mark.parametrize(("data", "frame"), SMALLEST)
def test_the_smallest_values_of_a_consumers_frames_are_read(
    data: bytes, frame: Frame, step: int | None
) -> None:
    """A credit of one, a request without a first credit, an empty event."""
    assert drain(ServerDecoder(V2), data, step) == [frame]
    assert b"".join(encode(frame, V2)) == data


@pytest.mark.parametrize("step", [None, 1, 28])
@pytest.mark.parametrize(("data", "frame"), [*SMALLEST, (raw(7, R), ResumeConsumption(R))])
def test_bytes_behind_the_fields_of_a_consumers_frame_are_ignored(
    data: bytes, frame: Frame, step: int | None
) -> None:
    """NettyMessageDecoder of Flink cuts the frame by its length, and its messages read their own fields only."""
    longer = struct.pack(">i", len(data) + 3) + data[4:] + b"xyz"
    assert drain(ServerDecoder(V2), longer + data, step) == [frame, frame]


LEAST, MOST = -(2**31), 2**31 - 1
ANY_NUMBER = [
    *(PartitionRequest(P, MOST, MOST, R, credit) for credit in (LEAST, -1, 0, MOST)),
    TaskEventRequest(numbers(3) + b"\0\1a" + numbers(LEAST), P, R),
    CancelPartitionRequest(R),
    CloseRequest(),
    AddCredit(MOST, R),
    ResumeConsumption(R),
    AckAllUserRecordsProcessed(R),
    NewBufferSize(MOST, R),
    SegmentId(LEAST, MOST, R),
]


@pytest.mark.parametrize("frame", ANY_NUMBER)
def test_G_31_a_message_of_a_consumer_is_read_as_it_was_written(frame: Frame) -> None:
    """NettyMessageServerSideSerializationTest draws any number, also as the initial credit: reading does not judge it."""
    assert drain(ServerDecoder(V2), b"".join(map(bytes, encode(frame, V2)))) == [frame]


@pytest.mark.parametrize(
    "frame",
    [
        *(ErrorResponse("IllegalStateException", "", receiver) for receiver in (R, None)),
        *(ErrorResponse("IllegalStateException", "Illegal illegal illegal", receiver) for receiver in (R, None)),
        BacklogAnnouncement(MOST, R),
        *(BufferResponse(R, n, n, MOST, DataType.DATA_BUFFER, b"x", n < 0) for n in (LEAST, -1, 0, MOST)),
    ],
)  # fmt: skip
def test_G_32_a_message_of_a_producer_is_read_as_it_was_written(frame: Frame) -> None:
    """NettyMessageClientSideSerializationTest: also an error without a message, and compressed bytes."""
    assert drain(consumer(), b"".join(map(bytes, encode(frame, V2)))) == [frame]


def negative(frame: bytes, at: int) -> bytes:
    """Return a frame whose number at this position is -1."""
    return frame[:at] + numbers(-1) + frame[at + 4 :]


NO_CREDIT = "The announced credit should be greater than 0"
REFUSED_BY_A_PRODUCER = [
    (raw(6, numbers(0) + R), NO_CREDIT),
    (raw(6, numbers(-1) + R), NO_CREDIT),
    (raw(6, numbers(1) + R, magic=MAGIC + 1), "Network stream corrupted: received incorrect magic number."),
    (raw(6, numbers(1) + R, length=28), "ADD_CREDIT must have a body of 20 bytes, not 19"),
    (request(-1, 0, 0), "The subpartition range -1..0 is invalid"),
    (request(1, 0, 0), "The subpartition range 1..0 is invalid"),
    (negative(request(0, 0, 0), 9 + 52), "subtaskIndex must be greater than or equal to 0"),
    (negative(request(0, 0, 0), 9 + 56), "attemptNumber must be greater than or equal to 0"),
    (negative(event_request(b""), 13 + 52), "subtaskIndex must be greater than or equal to 0"),
    (raw(10, numbers(0) + R), "The new buffer size should be greater than 0"),
    (raw(11, numbers(0, 0) + R), "The segmentId should be greater than 0"),
    (raw(3, event_request(b"")[9:-1]), "TASK_EVENT_REQUEST must have a body of 80 bytes, not 79"),
    (raw(3, numbers(1) + event_request(b"")[13:]), "The event size 1 does not fit into its task event request"),
    (raw(3, numbers(-1) + event_request(b"")[13:]), "The event size -1 does not fit into its task event request"),
    (raw(4, R[1:]), "CANCEL_PARTITION_REQUEST must have a body of 16 bytes, not 15"),
    (raw(7, R[1:]), "RESUME_CONSUMPTION must have a body of 16 bytes, not 15"),
    (raw(8, b""), "ACK_ALL_USER_RECORDS_PROCESSED must have a body of 16 bytes, not 0"),
    (raw(0, b""), "Received unknown message from producer: 0"),
    (raw(9, numbers(1) + R), "Received unknown message from producer: 9"),
    (raw(12, numbers(1) + R), "Received unknown message from producer: 12"),
    (raw(5, b"", length=8), "The length field of current message must be non-negative"),
]  # fmt: skip


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize(("data", "text"), REFUSED_BY_A_PRODUCER)
def test_a_producer_refuses_the_next_values(data: bytes, text: str, step: int | None) -> None:
    """However the frame is cut, and whatever follows it."""
    for behind in (b"", bytes(40)):
        with pytest.raises(RemoteProtocolError, match=f"^{re.escape(text)}$"):
            drain(ServerDecoder(V2), data + behind, step)


def test_a_control_frame_has_at_most_one_mib() -> None:
    """A larger one is refused at its header, before its body is collected."""
    overhead = len(event_request(b""))
    (frame,) = drain(ServerDecoder(V2), event_request(bytes(MIB - overhead)))
    assert isinstance(frame, TaskEventRequest)
    assert len(frame.event) == MIB - overhead
    for decoder, number in ((ServerDecoder(V2), 3), (consumer(), 1), (consumer(), 9)):
        with pytest.raises(
            RemoteProtocolError, match=r"^A message of 1048577 bytes exceeds the limit of 1048576 bytes$"
        ):
            decoder.feed(raw(number, b"", length=MIB + 1))


@pytest.mark.parametrize("version", list(WireVersion))
@pytest.mark.parametrize("step", [None, 1, 46, 47, 48])
@pytest.mark.parametrize("size", [1, 2, 300])
@pytest.mark.parametrize("compressed", [0, 1])
@pytest.mark.parametrize("backlog", [0, 1])
def test_a_buffer_is_read_however_its_header_is_cut(
    version: WireVersion, step: int | None, size: int, compressed: int, backlog: int
) -> None:
    """Data buffers, and events behind them, with the smallest values."""
    payload = bytes(n % 251 for n in range(size))
    data = buffer(version, size=len(payload), compressed=compressed, backlog=backlog) + payload
    event = buffer(version, size=1, data_type=DataType.EVENT_BUFFER) + b"e"
    sent = BufferResponse(R, 9, 7, backlog, DataType.DATA_BUFFER, payload, compressed == 1)
    after = BufferResponse(R, 9, 7, 0, DataType.EVENT_BUFFER, b"e")
    assert drain(consumer(version), data + event + data, step) == [sent, after, sent]


@pytest.mark.parametrize("version", list(WireVersion))
@pytest.mark.parametrize("step", [None, 1])
def test_a_payload_may_be_empty(version: WireVersion, step: int | None) -> None:
    """Flink sends an empty data buffer when a record ended with the buffer before it."""
    kinds = DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END
    data = b"".join(buffer(version, size=0, data_type=kind) for kind in kinds)
    frames = [BufferResponse(R, 9, 7, 0, kind, b"") for kind in kinds]
    assert drain(consumer(version), data, step) == frames


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (buffer(backlog=-1), "Must be non-negative."),
        (buffer(data_type=14), "Received a buffer of unknown data type 14"),
        (buffer(partials=-1), "-1 partial buffers in one message are not allowed"),
        (buffer(partials=4097), "4097 partial buffers in one message are not allowed"),
        (buffer(size=-1, announced=-1), "A buffer size of -1 bytes is invalid"),
        (buffer(size=0, data_type=2), "Illegal buffer size, must be positive."),
        (buffer(size=-1, announced=-1, data_type=2), "Illegal buffer size, must be positive."),
        (buffer(size=MAX_BUFFER_BYTES + 1), "A buffer size of 67108865 bytes is invalid"),
        (buffer(size=MIB + 1, data_type=2), "A buffer size of 1048577 bytes is invalid"),
        (buffer(size=4, announced=5), "A buffer of 4 bytes was announced as one of 5 bytes"),
        (buffer(size=4, announced=3), "A buffer of 4 bytes was announced as one of 3 bytes"),
        (buffer(size=4, partials=2, announced=10), "A buffer of 4 bytes was announced as one of 2 bytes"),
        (raw(2, bytes(8)), "Received unknown message from producer: 2"),
        (raw(200, bytes(8)), "Received unknown message from producer: -56"),
        (raw(9, numbers(0) + R), "Must be positive."),
        (raw(9, numbers(1) + R[1:]), "BACKLOG_ANNOUNCEMENT must have a body of 20 bytes, not 19"),
    ],
)
@pytest.mark.parametrize("step", [None, 1])
def test_a_consumer_refuses_the_next_values(data: bytes, text: str, step: int | None) -> None:
    """Before memory is allocated."""
    decoder = ClientDecoder(V2, lambda *_: pytest.fail("allocated"))
    with pytest.raises(RemoteProtocolError, match=f"^{re.escape(text)}$"):
        drain(decoder, data, step)


@pytest.mark.parametrize("version", list(WireVersion))
@pytest.mark.parametrize("step", [None, 1])
def test_a_buffer_with_another_magic_number_is_refused(version: WireVersion, step: int | None) -> None:
    """Also if all of its bytes arrive at once, and everything else in it is right."""
    data = buffer(version) + b"abcd"
    broken = data[:4] + struct.pack(">I", MAGIC ^ 1) + data[8:]
    with pytest.raises(RemoteProtocolError, match="received incorrect magic number"):
        drain(consumer(version), broken, step)
    assert consumer(version).heads(memoryview(broken), 0) is None


@pytest.mark.parametrize("version", list(WireVersion))
def test_the_largest_buffer_is_allocated_with_its_size(version: WireVersion) -> None:
    """64 MiB for data. The decoder asks for them once the header is there, and again when it is fed."""
    asked: list[tuple[bytes, int, DataType]] = []
    decoder = ClientDecoder(version, lambda *wanted: asked.append(wanted))
    header = buffer(version, size=MAX_BUFFER_BYTES)
    assert decoder.feed(header) == len(header)
    assert decoder.next() is None
    assert decoder.stalled
    assert asked == [(R, MAX_BUFFER_BYTES, DataType.DATA_BUFFER)]
    assert decoder.feed(b"x") == 0
    assert len(asked) == 2


@pytest.mark.parametrize("version", list(WireVersion))
def test_the_largest_event_has_one_mib(version: WireVersion) -> None:
    """It needs no buffer of the channel."""
    decoder = ClientDecoder(version, lambda *_: None)
    header = buffer(version, size=MIB, data_type=DataType.EVENT_BUFFER)
    (frame,) = drain(decoder, header + bytes(MIB))
    assert isinstance(frame, BufferResponse)
    assert len(frame.data) == MIB


@pytest.mark.parametrize("step", [None, 1, 50])
@pytest.mark.parametrize("count", [1, 3, 4096])
def test_a_message_has_up_to_4096_partial_buffers(count: int, step: int | None) -> None:
    """Their sizes are between the header and the payload. A frame without them that follows has none."""
    sizes = tuple(range(count))
    data = buffer(size=2, partials=count) + numbers(*sizes) + b"ab" + buffer(size=1) + b"c"
    assert drain(consumer(), data, step if count < 10 else None) == [
        BufferResponse(R, 9, 7, 0, DataType.DATA_BUFFER, b"ab", partials=sizes),
        BufferResponse(R, 9, 7, 0, DataType.DATA_BUFFER, b"c"),
    ]


@pytest.mark.parametrize("step", [None, 1, 50])
@pytest.mark.parametrize("size", [0, 1, 2, 70])
def test_a_discarded_payload_is_skipped_to_its_end(size: int, step: int | None) -> None:
    """Nothing of it is taken for the next frame, with and without sizes of partial buffers."""
    decoder = ClientDecoder(V2, lambda *_: DISCARD)
    unwanted = buffer(size=size) + bytes(size) + buffer(size=size, partials=1) + numbers(5) + bytes(size)
    announced = raw(9, numbers(1) + R)
    assert drain(decoder, unwanted + announced, step) == [BacklogAnnouncement(1, R)]


def test_a_decoder_holds_one_frame() -> None:
    """It consumes nothing more until that frame has been taken."""
    credit, data = raw(6, numbers(1) + R), buffer() + b"abcd"
    for decoder, frame in ((ServerDecoder(V2), credit), (consumer(), data)):
        assert decoder.next() is None
        assert decoder.feed(frame + frame) == len(frame)
        assert decoder.feed(frame) == 0
        assert decoder.next() is not None
        assert decoder.next() is None
        assert decoder.feed(frame[:5]) == 5
        assert decoder.feed(b"ahead" + frame, 10) == len(frame) - 5
        assert decoder.next() is not None


def test_a_closed_decoder_recycles_only_what_it_owns() -> None:
    """A buffer belongs to the decoder until its frame is taken, and is returned once."""
    memory = Memory()
    for taken, recycled in ((True, 0), (False, 1)):
        decoder = ClientDecoder(V2, lambda *_: memory)
        decoder.feed(buffer() + b"abcd")
        if taken:
            assert decoder.next() is not None
        decoder.close()
        decoder.close()
        assert decoder.next() is None
        assert memory.recycled == recycled


@pytest.mark.parametrize("behind", [b"", b"x", bytes(60)])
def test_heads_are_found_only_where_a_frame_begins(behind: bytes) -> None:
    """Not with a part of a header or a payload read, nor while a frame waits to be taken."""
    data = buffer() + b"abcd"
    view = memoryview(data + behind)
    decoder = consumer()
    expected = (R, 9, [(47, 51, 7, 0, DataType.DATA_BUFFER, False)])
    assert decoder.heads(view, 0) == expected
    for read in (1, 9, 47, 50):
        started = consumer()
        assert started.feed(data[:read]) == read
        assert started.heads(view, 0) is None
    decoder.feed(data)
    assert decoder.heads(view, 0) is None
    decoder.next()
    assert decoder.heads(view, 0) == expected


THROWABLE = b"".join(encode(ErrorResponse("IOException", "boom"), V2))[9:-1]


@pytest.mark.parametrize(
    ("tail", "receiver"),
    [
        (b"\x00", None),
        (b"\x01" + R, R),
        (b"\x01" + bytes(16), bytes(16)),
        (b"\x02" + R, R),
        (b"\x00" + R, None),
        (b"\x01" + R + b"x", R),
    ],
)
def test_an_error_names_the_connection_or_a_channel(tail: bytes, receiver: bytes | None) -> None:
    """One byte says whether a receiver follows: it is false if it is 0. What is behind it is ignored."""
    assert drain(consumer(), raw(9, numbers(1) + R + b"x")) == [BacklogAnnouncement(1, R)]
    assert drain(consumer(), raw(1, THROWABLE + tail)) == [ErrorResponse("IOException", "boom", receiver)]


@pytest.mark.parametrize("tail", [b"", b"\x01", b"\x02", b"\x01" + R[1:]])
def test_an_error_with_a_truncated_receiver_is_refused(tail: bytes) -> None:
    """A byte behind the exception says that 16 more follow."""
    with pytest.raises(RemoteProtocolError, match=r"^An error response names no valid receiver$"):
        drain(consumer(), raw(1, THROWABLE + tail))


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (AddCredit(0, R), NO_CREDIT),
        (NewBufferSize(0, R), "The new buffer size should be greater than 0"),
        (SegmentId(0, 0, R), "The segmentId should be greater than 0"),
        (BacklogAnnouncement(0, R), "Must be positive."),
        (BufferResponse(R, 0, 0, -1, DataType.DATA_BUFFER, b"x"), "Must be non-negative."),
        (object(), "object is not a wire frame"),
    ],
)
def test_the_next_values_are_not_sent_either(frame: Frame, text: str) -> None:
    """The mistake shows where it was made, in Flink's words."""
    with pytest.raises(LocalProtocolError, match=f"^{re.escape(text)}$"):
        encode(frame, V2)


@pytest.mark.parametrize("frame", [ResumeConsumption(R), *FRAMES.values()])
@pytest.mark.parametrize("version", list(WireVersion))
def test_the_length_counts_the_whole_frame(frame: Frame, version: WireVersion) -> None:
    """The header included, in both layouts."""
    data = b"".join(encode(frame, version))
    assert struct.unpack_from(">iI", data) == (len(data), MAGIC)
