"""Cases of both ends of a connection: frames in parts, channels that end meanwhile, lost connections, requests and credit."""

from __future__ import annotations

import io
from collections import deque
from dataclasses import dataclass

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.codec import ClientDecoder
from testbed_runtime.core.exchange.encoding import encode
from testbed_runtime.core.exchange.events import EndOfData, StopMode, encode_event
from testbed_runtime.core.exchange.frames import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BufferResponse,
    CancelPartitionRequest,
    ClientFrame,
    DataType,
    ErrorResponse,
    PartitionRequest,
    ResumeConsumption,
    ServerFrame,
    WireVersion,
)
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition
from tests.core.exchange_model import (
    Consumer,
    Exchange,
    barrier,
    data_frame,
    deliver,
    partition_id,
    producer_pool,
    receiver_id,
)

EVENT = encode_event(EndOfData(StopMode.DRAIN))


# ---- what a consumer reads


def _read(consumer: Consumer, frames: list[BufferResponse]) -> None:
    """The first half of the bytes arrives in parts of two buffers, the second in parts of a quarter of one."""
    decoder = ClientDecoder(WireVersion.V2, consumer.client.allocate)
    data = b"".join(b"".join(encode(frame, WireVersion.V2)) for frame in frames)
    half = len(data) // 2
    parts = [data[i : i + 64] for i in range(0, half, 64)]
    parts = [part[: half - i * 64] for i, part in enumerate(parts)]
    parts += [data[i : i + 8] for i in range(half, len(data), 8)]
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[decoder.feed(view) :]
            while (frame := decoder.next()) is not None:
                buffer = decoder.buffer
                consumer.client.on_frame(frame, buffer if isinstance(buffer, Buffer) else None)


@pytest.mark.parametrize("between", ["nothing", "empty", "released", "removed"])
def test_G_17_to_G_20_frames_are_read_however_their_bytes_are_cut(between: str) -> None:
    """Four buffers, then an empty one or one for a channel that is released or unknown, then an event and a buffer. The one in
    between uses no segment."""
    consumer = Consumer(segments=32, channels=2, floating=(8, 8))
    consumer.connect()
    consumer.channel(1).release()
    consumer.sent()
    frames = [data_frame(0, sequence, 1, bytes([sequence] * 32)) for sequence in range(4)]
    expected = [bytes(frame.data) for frame in frames]
    if between == "empty":
        frames.append(data_frame(0, 4, 1, b""))
    elif between != "nothing":
        frames.append(data_frame(1 if between == "released" else 7, 0, 1, b"?" * 32))
    sequence = 5 if between == "empty" else 4
    frames.append(BufferResponse(receiver_id(0), 0, sequence, 1, DataType.EVENT_BUFFER, EVENT))
    frames.append(data_frame(0, sequence + 1, 1, b"z" * 32))
    _read(consumer, frames)
    found: list[bytes] = []
    while (polled := consumer.gate.poll()) is not None:
        if isinstance(polled[1], Buffer):
            found.append(bytes(polled[1].view()))
            polled[1].recycle()
        else:
            found.append(encode_event(polled[1]))
    assert found == [*expected, EVENT, b"z" * 32]
    refused = {
        "released": [CancelPartitionRequest(receiver_id(1))],
        "removed": [CancelPartitionRequest(receiver_id(7))],
    }
    cancelled = [frame for frame in consumer.sent() if isinstance(frame, CancelPartitionRequest)]
    assert cancelled == refused.get(between, [])


def test_G_21_a_buffer_is_queued_and_its_backlog_noted() -> None:
    """One buffer, with two more at the sender."""
    consumer = Consumer(segments=10)
    consumer.connect()
    deliver(consumer.client, data_frame(0, 0, 2, b"x" * 32))
    stats = consumer.channel().stats()
    assert (stats.queued, stats.backlog) == (1, 2)


@pytest.mark.parametrize("read_first", [True, False])
def test_G_22_a_buffer_for_a_channel_that_is_released_meanwhile_is_recycled(read_first: bool) -> None:
    """Its memory is filled before the release or not at all. Either way the producer gets a cancellation."""
    consumer = Consumer(segments=10)
    consumer.connect()
    held = consumer.client.allocate(receiver_id(0), 32, DataType.DATA_BUFFER) if read_first else None
    consumer.gate.close()
    consumer.sent()
    frame = data_frame(0, 0, 1, b"x" * 32)
    if read_first:
        assert isinstance(held, Buffer)
        consumer.client.on_frame(frame, held)
    else:
        assert not deliver(consumer.client, frame)
    assert consumer.sent() == [CancelPartitionRequest(receiver_id(0))]
    assert consumer.network.outstanding == 0


def test_G_23_an_error_of_one_channel_is_its_own_and_a_fatal_one_that_of_all() -> None:
    """Both are RemoteTransportExceptions."""
    consumer = Consumer(segments=10, channels=2, floating=(6, 6))
    consumer.connect()
    channels = [consumer.channel(number) for number in (0, 1)]
    consumer.client.on_frame(ErrorResponse("RuntimeException", "Expected test exception", receiver_id(0)))
    first = channels[0].error
    assert first is not None
    assert first.class_name == "RemoteTransportException"
    assert channels[1].error is None
    consumer.client.on_frame(ErrorResponse("RuntimeException", "Expected test exception"))
    assert channels[0].error is first
    assert channels[1].error is not None
    assert channels[1].error.class_name == "RemoteTransportException"


@pytest.mark.parametrize(
    ("cause", "class_name"),
    [
        (None, "RemoteTransportException"),
        (ConnectionResetError("Connection reset by peer"), "RemoteTransportException"),
        (OSError("some error"), "LocalTransportException"),
        (RuntimeError(), "LocalTransportException"),
    ],
    ids=["closed", "reset", "error", "without a text"],
)
def test_G_24_a_lost_connection_fails_all_channels(cause: Exception | None, class_name: str) -> None:
    """One that the peer has closed or reset is a remote failure, any other a local one."""
    consumer = Consumer(segments=10, channels=2, floating=(6, 6))
    consumer.connect()
    consumer.client.on_closed(cause)
    for number in (0, 1):
        error = consumer.channel(number).error
        assert error is not None
        assert error.class_name == class_name


# ---- what a producer sends


@dataclass
class Producer(Exchange):
    """The producer's end, with a result that is registered and what one channel requests of it."""

    def request(self, credit: int) -> None:
        self.manager.register(self.partition)
        self.tell(PartitionRequest(partition_id(), 0, 0, receiver_id(0), credit))

    def tell(self, frame: ClientFrame, now: float = 0.0) -> None:
        self.server.on_frame(frame, now)

    def send(self) -> list[ServerFrame]:
        while self.server_step():
            pass
        frames = list(self.to_client)
        self.to_client.clear()
        return frames


def test_F_128_an_event_is_sent_without_credit() -> None:
    """Its reader waits for the connection, and uses no credit."""
    producer = Producer()
    producer.request(0)
    producer.partition.broadcast_event(barrier(1))
    (reader,) = producer.server.readers
    assert (producer.server.has_more(), reader.credit) == (True, 0)
    (frame,) = producer.send()
    assert isinstance(frame, BufferResponse)
    assert frame.data_type is DataType.ALIGNED_CHECKPOINT_BARRIER
    assert (producer.server.has_more(), reader.credit) == (False, 0)


@pytest.mark.parametrize("available", [True, False])
def test_F_129_a_cancelled_request_ends_its_reader(available: bool) -> None:
    """It is not sent any more, although it had data and credit."""
    producer = Producer()
    producer.request(0)
    producer.partition.emit(0, bytes(64))
    if available:
        producer.tell(AddCredit(1, receiver_id(0)))
    assert len(producer.server._available) == available
    producer.tell(CancelPartitionRequest(receiver_id(0)))
    assert producer.server.readers == ()
    assert not any(isinstance(frame, BufferResponse) for frame in producer.send())
    producer.tell(CancelPartitionRequest(receiver_id(0)))  # a second one changes nothing
    producer.server.on_closed()
    producer.partition.close()
    assert producer.partition.is_released


def test_F_130_readers_without_data_are_not_sent() -> None:
    """One has nothing, another five buffers: five frames."""
    producer = Producer(channels=2, producer_segments=32, producer_pool=16)
    producer.manager.register(producer.partition)
    for number in (0, 1):
        producer.tell(PartitionRequest(partition_id(), number, number, receiver_id(number), 10))
    producer.partition.emit(1, bytes(5 * 32))
    producer.partition.flush_all()
    assert [frame.receiver for frame in producer.send() if isinstance(frame, BufferResponse)] == [
        receiver_id(1)
    ] * 5


def test_F_131_a_reader_resumes_its_subpartition() -> None:
    """The barrier had blocked it."""
    producer = Producer()
    producer.request(2)
    producer.partition.broadcast_event(barrier(1))
    producer.send()
    assert producer.partition.subpartitions[0].is_blocked
    producer.tell(ResumeConsumption(receiver_id(0)))
    assert not producer.partition.subpartitions[0].is_blocked


def test_F_132_a_reader_acknowledges_all_records() -> None:
    """The task may end then."""
    producer = Producer()
    producer.request(2)
    producer.partition.notify_end_of_data()
    assert not producer.partition.all_data_processed
    producer.tell(AckAllUserRecordsProcessed(receiver_id(0)))
    assert producer.partition.all_data_processed


@pytest.mark.parametrize("registered_first", [True, False])
def test_F_133_F_134_a_request_is_served_whether_its_result_comes_before_or_after_it(
    registered_first: bool,
) -> None:
    """The data that waits is sent at once."""
    producer = Producer()
    producer.partition.emit(0, bytes(32))
    producer.partition.flush_all()
    request = PartitionRequest(partition_id(), 0, 0, receiver_id(0), 2)
    if registered_first:
        producer.manager.register(producer.partition)
    producer.tell(request)
    if not registered_first:
        assert producer.send() == []
        producer.manager.register(producer.partition)
    (frame,) = producer.send()
    assert isinstance(frame, BufferResponse)


def test_F_135_a_channel_learns_that_its_request_has_waited_too_long() -> None:
    """It asks again, or fails with a PartitionNotFoundException."""
    exchange = Exchange(backoff=(0, 0, 0, True))
    exchange.client.add(exchange.channel())
    exchange.settle()
    assert exchange.manager.waiting == 1
    exchange.manager.on_time(20.1)
    exchange.settle()
    assert exchange.not_found == [exchange.channel()]
    exchange.channel().retrigger(20.1)
    with pytest.raises(FlinkError) as missing:
        exchange.gate.poll()
    assert missing.value.class_name == "PartitionNotFoundException"


def test_F_165_one_buffer_is_one_frame() -> None:
    """PartitionRequestQueueTest.testDefaultBufferWriting and testReadOnlyBufferWriting: with all the credit that there can be. The
    second result is in a file, whose buffers belong to no pool."""
    for file in (None, io.BytesIO()):
        producer = Producer()
        pool = producer_pool(producer.producer_network, 1, 8)
        producer.partition = ResultPartition(partition_id(), 1, pool, file=file)
        producer.partition.emit(0, bytes(10))
        if file is None:
            producer.partition.flush_all()
        else:
            producer.partition.finish()
        producer.request(2**31 - 1)
        first, *others = producer.send()
        assert isinstance(first, BufferResponse)
        assert (first.data_type, len(first.data), first.backlog) == (DataType.DATA_BUFFER, 10, 0)
        assert len(others) == (0 if file is None else 1)


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_F_166_a_producer_without_an_end_stops_when_its_consumer_leaves(end: str) -> None:
    """CancelPartitionRequestTest.testCancelPartitionRequest: the consumer has no such channel, so it cancels the request with the first
    buffer. ServerTransportErrorHandlingTest.testRemoteClose: it closes the connection instead."""
    exchange = Exchange(channels=1)
    exchange.manager.register(exchange.partition)
    unknown = receiver_id(7)
    exchange.server.on_frame(PartitionRequest(partition_id(), 0, 0, unknown, 2**31 - 1), 0.0)
    for _ in range(3):
        exchange.partition.emit(0, bytes(32))
        exchange.partition.flush_all()
        assert exchange.server_step()
    (reader,) = exchange.server.readers
    view = reader.view
    assert view is not None
    assert not view.is_released
    if end == "cancel":
        exchange.settle()
        assert exchange.to_client == exchange.to_server == deque()
    else:
        exchange.server.on_closed()
    assert (view.is_released, exchange.server.readers) == (True, ())
    exchange.partition.emit(0, bytes(32))
    exchange.partition.flush_all()
    assert not exchange.server_step()


def test_G_26_a_connection_is_kept_without_channels() -> None:
    """testPartitionRequestClientReuse. G-30 is about one that has ended."""
    consumer = Consumer(segments=10)
    consumer.connect()
    consumer.channel().release()
    assert (consumer.client.closing, consumer.client.error) == (False, None)


def test_G_27_a_channel_that_is_released_while_a_frame_is_read_is_no_error_of_the_connection() -> None:
    """testReleaseInputChannelDuringDecode: its pools are gone, and it is still known to the connection."""
    consumer = Consumer(segments=10, channels=2, floating=(6, 6))
    consumer.connect()
    channel = consumer.channel(0)
    assert channel.buffers is not None
    channel.buffers.release()
    consumer.pool.destroy()
    assert not deliver(consumer.client, data_frame(0, 0, 2))
    assert consumer.client.error is None
    assert consumer.channel(1).error is None


def test_G_28_a_channel_is_cancelled_before_its_connection_is_used() -> None:
    """testCancelBeforeActive: nothing is sent for a channel that the connection does not know, and the second cancellation of one that
    it knew is none."""
    consumer = Consumer(segments=10, channels=2, floating=(6, 6))
    consumer.client.remove(consumer.channel(1))
    assert consumer.sent() == []
    consumer.client.add(consumer.channel(0))
    for _ in range(2):
        consumer.client.remove(consumer.channel(0))
    assert [type(frame).__name__ for frame in consumer.sent()] == [
        "PartitionRequest",
        "CancelPartitionRequest",
    ]
