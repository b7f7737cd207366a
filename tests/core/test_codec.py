"""Frames against Flink's own bytes, whole and cut anywhere."""

from __future__ import annotations

import struct
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed_runtime.core.errors import LocalProtocolError, RemoteProtocolError
from testbed_runtime.core.exchange import codec
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
from testbed_runtime.core.ids import InputChannelID, ResultPartitionID

VECTORS = Path(__file__).parent.parent / "data" / "wire-vectors-2.x.txt"
R = InputChannelID(bytes(range(0x10, 0x20)))
P = ResultPartitionID.parse(
    "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf#1@b0b1b2b3b4b5b6b7b8b9babbbcbdbebf_c0c1c2c3c4c5c6c7c8c9cacbcccdcecf_2_3"
)
PING = bytes.fromhex("00000003000c696e7465726f702e50696e670000002a")
FRAMES: dict[str, Frame] = {
    "BufferResponse.data": BufferResponse(R, 9, 7, 11, DataType.DATA_BUFFER, b"\x01\x02\x03\x04\x05"),
    "BufferResponse.compressed": BufferResponse(
        R, 9, 8, 0, DataType.DATA_BUFFER_WITH_CLEAR_END, b"\x01\x02\x03", compressed=True
    ),
    "PartitionRequest": PartitionRequest(P, 4, 5, R, 2),
    "TaskEventRequest": TaskEventRequest(PING, P, R),
    "CancelPartitionRequest": CancelPartitionRequest(R),
    "CloseRequest": CloseRequest(),
    "AddCredit": AddCredit(3, R),
    "ResumeConsumption": ResumeConsumption(R),
    "AckAllUserRecordsProcessed": AckAllUserRecordsProcessed(R),
    "BacklogAnnouncement": BacklogAnnouncement(6, R),
    "NewBufferSize": NewBufferSize(4096, R),
    "SegmentId": SegmentId(4, 1, R),
}
ERRORS = {
    "ErrorResponse.fatal": ErrorResponse("IOException", "boom"),
    "ErrorResponse.channel": ErrorResponse("PartitionNotFoundException", f"Partition {P} not found.", R),
}
CLIENT_FRAMES = {
    n: f for n, f in FRAMES.items() if not isinstance(f, BufferResponse | ErrorResponse | BacklogAnnouncement)
}
SERVER_FRAMES = {n: f for n, f in FRAMES.items() if n not in CLIENT_FRAMES}


def vectors(version: WireVersion) -> dict[str, bytes]:
    """Flink's own frames; those of 1.20 are the same without `partials`."""
    found: dict[str, bytes] = {}
    for line in VECTORS.read_text().splitlines():
        if not line.startswith("frame "):
            continue
        _, name, text = line.split()
        data = bytes.fromhex(text)
        if version is WireVersion.V1_20 and name.startswith("BufferResponse"):
            data = struct.pack(">i", len(data) - 4) + data[4:29] + data[33:]
        found[name] = data
    return found


class Memory:
    """A buffer to receive into."""

    def __init__(self) -> None:
        self.memory = bytearray()
        self.recycled = 0

    def fill_view(self, size: int) -> memoryview:
        self.memory = bytearray(size)
        return memoryview(self.memory)

    def recycle(self) -> None:
        self.recycled += 1


def drain(decoder, data: bytes, step: int | None = None) -> list[Frame]:
    """Feed in pieces of `step` bytes; all frames, with payloads as bytes."""
    frames: list[Frame] = []
    pieces = [data] if step is None else [data[i : i + step] for i in range(0, len(data), step)]
    for piece in pieces:
        view = memoryview(piece)
        while True:
            view = view[decoder.feed(view) :]
            frame = decoder.next()
            if frame is None:
                if view and not getattr(decoder, "stalled", False):
                    continue
                break
            frames.append(plain(frame))
        assert not view
    return frames


def plain(frame: Frame) -> Frame:
    if isinstance(frame, BufferResponse):
        return BufferResponse(
            frame.receiver,
            frame.subpartition,
            frame.sequence_number,
            frame.backlog,
            frame.data_type,
            bytes(frame.data),
            frame.compressed,
            frame.partials,
        )
    return frame


def decoder_for(frame: Frame, version: WireVersion):
    if isinstance(frame, BufferResponse | ErrorResponse | BacklogAnnouncement):
        return ClientDecoder(version, lambda *_: Memory())
    return ServerDecoder(version)


@pytest.mark.parametrize("version", list(WireVersion))
@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_has_the_bytes_that_flink_writes(name: str, version: WireVersion) -> None:
    """Each of Flink's vectors, in both layouts."""
    assert b"".join(encode(FRAMES[name], version)) == vectors(version)[name]


@pytest.mark.parametrize("version", list(WireVersion))
@pytest.mark.parametrize("name", [*FRAMES, *ERRORS])
@pytest.mark.parametrize("cut", [0, 5, 9, 20])
def test_a_frame_is_read_from_where_it_begins(name: str, version: WireVersion, cut: int) -> None:
    """The input may hold other bytes ahead of it, and the beginning of the frame may have been read before."""
    whole, frame = vectors(version)[name], {**FRAMES, **ERRORS}[name]
    decoder, position = decoder_for(frame, version), 6
    frames = []
    for data in (b"before" + whole[:cut], b"before" + whole):
        while position < len(data):
            position += decoder.feed(memoryview(data), position)
            frames += [plain(found)] if (found := decoder.next()) is not None else []
    assert (frames, position) == ([frame], 6 + len(whole))


@pytest.mark.parametrize("version", list(WireVersion))
@pytest.mark.parametrize("name", [*FRAMES, *ERRORS])
@pytest.mark.parametrize("step", [None, 1, 3, 50])
def test_flinks_bytes_are_read_however_they_are_cut(
    name: str, version: WireVersion, step: int | None
) -> None:
    """Each of Flink's vectors whole, byte by byte and in pieces."""
    frame = {**FRAMES, **ERRORS}[name]
    assert drain(decoder_for(frame, version), vectors(version)[name], step) == [frame]


@pytest.mark.parametrize("frame", ERRORS.values(), ids=ERRORS)
def test_a_minimal_java_error_is_read_back(frame: ErrorResponse) -> None:
    """An encoded ErrorResponse is decoded again."""
    assert drain(decoder_for(frame, WireVersion.V2), b"".join(encode(frame, WireVersion.V2)), 7) == [frame]


def test_partial_buffers_travel_in_two_x_only() -> None:
    """Sizes of partial buffers stand between the header and the payload; 1.20 has no room for them."""
    frame = BufferResponse(R, 0, 5, 0, DataType.DATA_BUFFER, b"abcdef", partials=(2, 4))
    data = b"".join(encode(frame, WireVersion.V2))
    assert len(data) == 47 + 8 + 6
    assert drain(decoder_for(frame, WireVersion.V2), data, 1) == [frame]
    with pytest.raises(LocalProtocolError, match=r"require wire version 2\.0"):
        encode(frame, WireVersion.V1_20)


def test_encoding_does_not_copy_the_payload() -> None:
    """The segment itself is handed to the transport."""
    segment = memoryview(bytearray(32768))
    header, payload = encode(BufferResponse(R, 0, 0, 0, DataType.DATA_BUFFER, segment), WireVersion.V2)
    assert payload is segment
    assert len(header) == 47


def test_a_payload_goes_straight_into_the_allocated_buffer() -> None:
    """And the decoder hands the buffer over with the frame."""
    memory = Memory()
    asked: list[tuple[bytes, int, DataType]] = []

    def allocate(receiver, size, data_type):
        asked.append((receiver, size, data_type))
        return memory

    decoder = ClientDecoder(WireVersion.V2, allocate)
    data = b"".join(encode(FRAMES["BufferResponse.data"], WireVersion.V2))
    assert decoder.feed(data) == len(data)
    frame = decoder.next()
    assert isinstance(frame, BufferResponse)
    assert decoder.buffer is memory
    assert frame.data.obj is memory.memory
    assert asked == [(R, 5, DataType.DATA_BUFFER)]


@pytest.mark.parametrize("step", [1, 4, 1000])
def test_a_decoder_without_a_buffer_stops_in_the_middle_and_goes_on_later(step: int) -> None:
    """Legacy mode: the rest of the input stays with the caller."""
    free: list[Memory] = []
    decoder = ClientDecoder(WireVersion.V2, lambda *_: free.pop() if free else None)
    data = b"".join(b"".join(encode(f, WireVersion.V2)) for f in [FRAMES["BufferResponse.data"]] * 3)
    frames, view, stalls = [], memoryview(data), 0
    for _ in range(10_000):
        taken = decoder.feed(view[:step])
        view = view[taken:]
        frame = decoder.next()
        if frame is not None:
            frames.append(plain(frame))
            continue
        if decoder.stalled:
            stalls += 1
            free.append(Memory())
        elif not view:
            break
    assert frames == [FRAMES["BufferResponse.data"]] * 3
    assert stalls == 3


def test_a_discarded_payload_gives_no_frame_and_loses_no_other() -> None:
    """An unknown receiver's bytes are thrown away, what follows is read."""
    answers = iter([DISCARD, Memory(), DISCARD])
    decoder = ClientDecoder(WireVersion.V2, lambda *_: next(answers))
    empty = BufferResponse(R, 0, 0, 0, DataType.DATA_BUFFER, b"")
    sent = [
        FRAMES["BufferResponse.data"],
        FRAMES["BufferResponse.data"],
        empty,
        FRAMES["BacklogAnnouncement"],
    ]
    data = b"".join(b"".join(encode(f, WireVersion.V2)) for f in sent)
    assert drain(decoder, data) == [sent[1], sent[3]]


def test_a_closed_decoder_gives_back_the_buffer_of_an_unfinished_frame() -> None:
    """No segment is lost with a connection."""
    memory = Memory()
    decoder = ClientDecoder(WireVersion.V2, lambda *_: memory)
    decoder.feed(vectors(WireVersion.V2)["BufferResponse.data"][:-1])
    decoder.close()
    assert memory.recycled == 1


def test_events_use_no_segment() -> None:
    """An event is copied to memory of its own, and an empty data buffer is one all the same."""
    decoder = ClientDecoder(WireVersion.V2, lambda *_: Memory())
    event = BufferResponse(R, 0, 0, 0, DataType.END_OF_DATA, b"\0\0\0\x08\0")
    empty = BufferResponse(R, 0, 1, 0, DataType.DATA_BUFFER, b"")
    assert drain(decoder, b"".join(encode(event, WireVersion.V2) + encode(empty, WireVersion.V2)), 1) == [
        event,
        empty,
    ]


def header(length: int, magic: int, number: int) -> bytes:
    return struct.pack(">iIB", length, magic, number)


BAD = {
    "magic": (header(25, 0xBADC0FFF, 6), codec.BAD_MAGIC),
    "negative length": (header(8, 0xBADC0FFE, 6), codec.NEGATIVE_LENGTH),
    "very negative length": (header(-(2**31), 0xBADC0FFE, 6), codec.NEGATIVE_LENGTH),
    "unknown id": (header(25, 0xBADC0FFE, 12), "Received unknown message from producer: 12"),
    "wrong body": (header(24, 0xBADC0FFE, 6) + bytes(15), "ADD_CREDIT must have a body of 20 bytes"),
    "huge": (header(2**30, 0xBADC0FFE, 3), "exceeds the limit"),
    "no credit": (
        header(29, 0xBADC0FFE, 6) + bytes(20),
        "The announced credit should be greater than 0",
    ),
    "range": (
        header(97, 0xBADC0FFE, 2) + P.to_bytes() + struct.pack(">ii16si", 3, 2, R, 2),
        "is invalid",
    ),
    "event": (header(9 + 80, 0xBADC0FFE, 3) + bytes(79) + b"\x01", None),
    "event size": (
        header(9 + 80, 0xBADC0FFE, 3) + struct.pack(">i", 5) + bytes(76),
        "event size 5 does not fit",
    ),
}


@pytest.mark.parametrize(("data", "text"), BAD.values(), ids=BAD)
def test_a_producer_refuses_broken_frames_with_flinks_words(data: bytes, text: str | None) -> None:
    """Wrong magic, unknown id, impossible lengths."""
    if text is None:
        assert len(drain(ServerDecoder(WireVersion.V2), data)) == 1
        return
    with pytest.raises(RemoteProtocolError, match=text):
        drain(ServerDecoder(WireVersion.V2), data)


def buffer_bytes(**changes: int) -> bytes:
    fields = {"partials": 0, "seq": 0, "backlog": 0, "type": 1, "compressed": 0, "size": 4, "length": 51}
    fields |= changes
    body = struct.pack(
        ">16siiiiBBi",
        R,
        0,
        *(fields[k] for k in ("partials", "seq", "backlog", "type", "compressed", "size")),
    )
    return header(fields["length"], 0xBADC0FFE, 0) + body + bytes(4)


BAD_BUFFERS = {
    "backlog": ({"backlog": -1}, "Must be non-negative"),
    "type": ({"type": 14}, "unknown data type 14"),
    "size": ({"size": 5}, "announced as one of 4 bytes"),
    "negative size": ({"size": -1, "length": 46}, "is invalid"),
    "partials": ({"partials": -1}, "are not allowed"),
    "magic": ({"length": 3}, codec.NEGATIVE_LENGTH),
}


@pytest.mark.parametrize(("changes", "text"), BAD_BUFFERS.values(), ids=BAD_BUFFERS)
def test_a_consumer_refuses_broken_buffers(changes: dict[str, int], text: str) -> None:
    """Nothing is allocated for them."""
    decoder = ClientDecoder(WireVersion.V2, lambda *_: pytest.fail("allocated"))
    with pytest.raises(RemoteProtocolError, match=text):
        drain(decoder, buffer_bytes(**changes))


@pytest.mark.parametrize("cut", [1, 7, 34, 10_000])
@pytest.mark.parametrize("version", list(WireVersion))
@given(
    sequence=st.integers(0, 2**31 - 1),
    backlog=st.integers(0, 1000),
    data_type=st.sampled_from([DataType.DATA_BUFFER, DataType.EVENT_BUFFER, DataType.END_OF_DATA]),
    data=st.binary(max_size=300),
)
def test_a_peer_of_the_other_version_is_named(version, cut, sequence, backlog, data_type, data) -> None:
    """The frame's length fits only one layout, so the message says which `--flink-version` to set."""
    (other,) = [v for v in WireVersion if v is not version]
    frame = b"".join(encode(BufferResponse(R, 3, sequence, backlog, data_type, data), other))
    decoder = ClientDecoder(version, lambda *_: Memory())
    with pytest.raises(
        RemoteProtocolError, match=f"the peer seems to speak {other.value} .`--flink-version {other.value}"
    ):
        # a small frame ends before the longer header does; the next one completes it
        drain(decoder, frame * 2, cut)


def test_watermark_events_do_not_exist_in_1_20() -> None:
    """Data types 12 and 13 came with 2.0."""
    body = struct.pack(">16siiiBBi", R, 0, 0, 0, 12, 0, 4) + bytes(4)
    with pytest.raises(RemoteProtocolError, match="unknown data type 12"):
        drain(ClientDecoder(WireVersion.V1_20, lambda *_: Memory()), header(47, 0xBADC0FFE, 0) + body)


@pytest.mark.parametrize(
    "frame", [AddCredit(0, R), NewBufferSize(0, R), BacklogAnnouncement(0, R), SegmentId(0, 0, R)]
)
def test_what_flink_would_refuse_is_not_sent(frame: Frame) -> None:
    """The mistake shows where it was made."""
    with pytest.raises(LocalProtocolError):
        encode(frame, WireVersion.V2)


receivers = st.binary(min_size=16, max_size=16).map(InputChannelID)
ints = st.integers(1, 2**31 - 1)
server_frames = st.one_of(
    st.builds(BacklogAnnouncement, ints, receivers),
    st.builds(
        BufferResponse,
        receivers,
        st.integers(0, 100),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**31 - 1),
        st.sampled_from([t for t in DataType if t is not DataType.NONE]),
        st.binary(min_size=1, max_size=200),
        st.booleans(),
        st.lists(ints, max_size=3).map(tuple),
    ),
    st.builds(ErrorResponse, st.just("IOException"), st.text(max_size=50), st.none() | receivers),
)
client_frames = st.one_of(
    st.builds(AddCredit, ints, receivers),
    st.builds(NewBufferSize, ints, receivers),
    st.builds(ResumeConsumption, receivers),
    st.builds(SegmentId, st.integers(0, 9), ints, receivers),
    st.builds(TaskEventRequest, st.binary(max_size=50), st.just(P), receivers),
    st.just(CloseRequest()),
)


@settings(max_examples=60, deadline=None)
@given(frames=st.lists(server_frames, max_size=6), cuts=st.lists(st.integers(1, 90), min_size=1, max_size=30))
def test_any_frames_of_a_producer_survive_any_cut(frames: list[Frame], cuts: list[int]) -> None:
    """Every sequence of frames, in pieces of every size, is read as it was written."""
    data = b"".join(b"".join(encode(f, WireVersion.V2)) for f in frames)
    decoder = ClientDecoder(WireVersion.V2, lambda *_: Memory())
    assert _in_pieces(decoder, data, cuts) == frames


@settings(max_examples=60, deadline=None)
@given(frames=st.lists(client_frames, max_size=6), cuts=st.lists(st.integers(1, 90), min_size=1, max_size=30))
def test_any_frames_of_a_consumer_survive_any_cut(frames: list[Frame], cuts: list[int]) -> None:
    """The same in the other direction."""
    data = b"".join(b"".join(encode(f, WireVersion.V2)) for f in frames)
    assert _in_pieces(ServerDecoder(WireVersion.V2), data, cuts) == frames


def _in_pieces(decoder, data: bytes, cuts: list[int]) -> list[Frame]:
    found: list[Frame] = []
    position, turn = 0, 0
    while position < len(data):
        step = cuts[turn % len(cuts)]
        turn += 1
        found += drain(decoder, data[position : position + step])
        position += step
    return found


DAMAGED = {**FRAMES, **ERRORS}


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(list(DAMAGED)),
    damage=st.binary(max_size=40),
    where=st.integers(0, 80),
    cuts=st.lists(st.integers(1, 90), min_size=1, max_size=30),
)
def test_damaged_bytes_are_read_or_refused_the_same_however_they_are_cut(
    name: str, damage: bytes, where: int, cuts: list[int]
) -> None:
    """The only failure is RemoteProtocolError, at the same place and with the same text, and the frames before it are the same."""
    whole = vectors(WireVersion.V2)[name]
    data = whole + whole[:where] + damage + whole[where + len(damage) :]
    decoder_of = partial(decoder_for, DAMAGED[name], WireVersion.V2)
    first, *_ = found = _read(decoder_of(), data, [len(data)])
    assert first == DAMAGED[name]
    assert _read(decoder_of(), data, cuts) == found


def _read(decoder, data: bytes, cuts: list[int]) -> list[Frame | str]:
    """All frames, and the text of the error that ends them."""
    found: list[Frame | str] = []
    rest = memoryview(data)
    for cut in cycle(cuts):
        piece, rest = rest[:cut], rest[cut:]
        try:
            while piece:
                piece = piece[decoder.feed(piece) :]
                while (frame := decoder.next()) is not None:
                    found.append(plain(frame))
        except RemoteProtocolError as error:
            return [*found, str(error)]
        if not rest:
            return found
    return found
