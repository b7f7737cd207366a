"""Data buffers that arrive together are decoded and received as if they had come one by one."""

from __future__ import annotations

from typing import Any

import pytest
from exchange_model import Consumer, data_frame, deliver, receiver_id

from testbed_runtime.core.exchange.arrivals import RUN_FRAMES, Arrivals, Head
from testbed_runtime.core.exchange.codec import ClientDecoder
from testbed_runtime.core.exchange.encoding import WHOLE, encode, encode_run
from testbed_runtime.core.exchange.events import EndOfPartition, encode_event
from testbed_runtime.core.exchange.frames import BufferResponse, DataType, WireVersion
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.subpartition import Run

VERSIONS = pytest.mark.parametrize("version", list(WireVersion))
RELEASED = "released"


def frame(
    sequence: int, *, number: int = 0, backlog: int = 1, data: bytes = b"abc", **more: Any
) -> BufferResponse:
    return BufferResponse(receiver_id(number), more.pop("subpartition", 0), sequence, backlog, DataType.DATA_BUFFER, data, **more)  # fmt: skip


END = BufferResponse(receiver_id(0), 0, 7, 0, DataType.EVENT_BUFFER, encode_event(EndOfPartition()))


def stream(frames: list[BufferResponse], version: WireVersion) -> bytes:
    return b"".join(bytes(part) for one in frames for part in encode(one, version))


MAX = 2**31 - 1


@VERSIONS
@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ([frame(5), frame(6), frame(7)], 3),
        ([frame(5), frame(6, data=b"longer"), frame(7)], 3),
        ([frame(5), frame(6, compressed=True)], 2),
        ([frame(5), frame(6), END], 2),
        ([END, frame(5)], 0),
        ([frame(5), frame(7)], 1),
        ([frame(5), frame(5)], 1),
        ([frame(5), frame(6, number=1)], 1),
        ([frame(5), frame(6, subpartition=1)], 1),
        ([frame(5), frame(6, backlog=0), frame(7)], 3),
        ([frame(MAX), frame(-MAX - 1)], 1),
        ([frame(n) for n in range(RUN_FRAMES + 1)], RUN_FRAMES),
        ([frame(5, data=b""), frame(6)], 0),
        ([], 0),
    ],
)
def test_a_run_is_the_complete_buffers_of_one_channel(
    version: WireVersion, frames: list[BufferResponse], found: int
):
    """An event, a gap, another channel and the limit end it."""
    data = memoryview(b"before" + stream(frames, version))
    run = Arrivals(version).find(data, 6)
    heads = run[2] if run else []
    assert [head[2:] for head in heads] == [
        (f.sequence_number, f.backlog, f.data_type, f.compressed) for f in frames[:found]
    ]
    assert [bytes(data[start:end]) for start, end, *_ in heads] == [bytes(f.data) for f in frames[:found]]
    assert run is None or run[:2] == (receiver_id(0), 0)


@VERSIONS
def test_a_stream_may_end_after_any_byte(version: WireVersion):
    """All buffers before that byte are found, and it is known how many bytes the next one lacks once its header is there."""
    frames = [frame(n, data=b"x" * size) for n, size in enumerate((3, 1, 3))]
    ends = [len(stream(frames[: count + 1], version)) for count in range(3)]
    data, header = memoryview(stream(frames, version)), WHOLE[version].size
    arrivals = Arrivals(version)
    for length in range(len(data) + 1):
        run = arrivals.find(data[:length], 0)
        complete = sum(end <= length for end in ends)
        begin, end = ([0, *ends][complete], ends[complete]) if complete < 3 else (length, length)
        assert (len(run[2]) if run else 0) == complete
        assert arrivals.missing == (end - length if length - begin >= header else 0)


@VERSIONS
@pytest.mark.parametrize("sizes", [(32, 32, 32), (5, 1, 32), (32, 7), (1,)])
def test_buffers_are_encoded_together_as_one_by_one(version: WireVersion, sizes: tuple[int, ...]):
    """Full segments have a faster way. The backlog falls and the sequence number rises with each buffer; a buffer keeps its type
    and may be compressed."""
    types = [DataType.DATA_BUFFER] * len(sizes)
    full = set(sizes) == {32}
    if not full:
        types[-1] = DataType.DATA_BUFFER_WITH_CLEAR_END
    buffers = [Buffer.unpooled(bytes(size), one) for size, one in zip(sizes, types, strict=True)]
    for buffer in () if full else buffers[1:]:
        buffer.compressed = True
    single = [
        BufferResponse(receiver_id(3), 2, 7 + n, 5 - n, one.data_type, one.view(), one.compressed)
        for n, one in enumerate(buffers)
    ]
    together = encode_run(receiver_id(3), 2, Run(buffers, 5, 7, 32 if full else 0), version)
    assert b"".join(bytes(part) for part in together) == stream(single, version)


@VERSIONS
@pytest.mark.parametrize(("cut", "found"), [(0, 2), (1, 1), (4, 1)])
def test_an_incomplete_buffer_is_left_for_later(version: WireVersion, cut: int, found: int):
    """Whether its payload or its header is cut."""
    data = stream([frame(5), frame(6)], version)
    run = Arrivals(version).find(memoryview(data[: len(data) - cut]), 0)
    assert run is not None
    assert len(run[2]) == found


@VERSIONS
def test_a_stalled_decoder_has_consumed_the_header(version: WireVersion):
    """It counts from where it began. With a buffer, it goes on with the payload."""
    buffers: list[Any] = []
    decoder = ClientDecoder(version, lambda *_: buffers.pop() if buffers else None)
    data = b"before" + stream([frame(5)], version)
    assert decoder.feed(data, 6) == WHOLE[version].size
    assert (decoder.stalled, decoder.next()) == (True, None)
    assert decoder.heads(memoryview(data), 6) is None


def heads_of(frames: list[BufferResponse]) -> tuple[memoryview, list[Head]]:
    data = memoryview(stream(frames, WireVersion.V2))
    run = Arrivals(WireVersion.V2).find(data, 0)
    assert run is not None
    return data, run[2]


def state(consumer: Consumer) -> tuple[Any, ...]:
    channel = consumer.gate.channels[0]
    manager = channel.buffers
    assert manager is not None
    counts = (channel.buffers_in, channel.queued, channel.buffers_in_use, channel.answered)
    return (*counts, manager.required, manager.available, consumer.woken)


def polled(consumer: Consumer) -> list[bytes]:
    found = []
    while (item := consumer.gate.poll()) is not None:
        assert isinstance(item[1], Buffer)
        found.append(bytes(item[1].view()))
        item[1].recycle()
    return found


@pytest.mark.parametrize("sizes", [(1,), (3, 3), (3, 7, 1)])
@pytest.mark.parametrize("backlog", [0, 1, 4])
def test_a_run_is_received_as_its_buffers_one_by_one(sizes: tuple[int, ...], backlog: int):
    """The same credit, counters and order. The reader is woken once."""
    frames = [data_frame(0, n, backlog, bytes([n + 65]) * size) for n, size in enumerate(sizes)]
    single, together = Consumer(), Consumer()
    for consumer in (single, together):
        consumer.connect()
    for one in frames:
        deliver(single.client, one)
    assert len(together.client.on_run(receiver_id(0), *heads_of(frames))) == len(frames)
    assert state(single) == state(together)
    assert together.woken == 1
    following = data_frame(0, len(sizes), backlog, b"z")
    assert len(together.client.on_run(receiver_id(0), *heads_of([following]))) == 1
    deliver(single.client, following)
    assert state(single) == state(together)
    assert polled(single) == polled(together)


def test_a_run_whose_backlog_overflows_an_int_asks_for_nothing():
    """As one buffer does: Java's int has wrapped."""
    frames = [data_frame(0, n, MAX) for n in range(2)]
    single, together = Consumer(), Consumer()
    for consumer in (single, together):
        consumer.connect()
    for one in frames:
        deliver(single.client, one)
    assert len(together.client.on_run(receiver_id(0), *heads_of(frames))) == 2
    assert state(single) == state(together)
    assert together.channel().buffers.required == -(2**31) + 1


@pytest.mark.parametrize(("sequence", "number", "released"), [(1, 0, False), (0, 1, False), (0, 0, True)])
def test_what_is_not_usual_is_left_to_the_single_frames(sequence: int, number: int, released: bool):
    """A gap, an unknown receiver and a channel that was released."""
    consumer = Consumer()
    consumer.connect()
    if released:
        consumer.gate.channels[0].release()
    assert not consumer.client.on_run(receiver_id(number), *heads_of([data_frame(0, sequence, 0)]))
