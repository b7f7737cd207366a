"""The data of a remote channel that belongs to an unaligned checkpoint, and floating buffers shared by channels."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import AlignmentType, CheckpointBarrier, encode_event
from testbed_runtime.core.exchange.frames import BufferResponse, DataType
from testbed_runtime.core.exchange.memory import Buffer
from tests.core.exchange_model import Consumer, barrier, data_frame, deliver, receiver_id

UNALIGNED = (barrier(1, AlignmentType.UNALIGNED), DataType.PRIORITIZED_EVENT_BUFFER)
TIMEOUTABLE = (
    barrier(1, AlignmentType.ALIGNED, alignment_timeout_ms=100),
    DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
)
ALIGNED = (barrier(1), DataType.ALIGNED_CHECKPOINT_BARRIER)
INT_SPAN = 1 << 32


def wrapped(number: int) -> int:
    """The number as Java's int."""
    return (number + (1 << 31)) % INT_SPAN - (1 << 31)


def send_event(consumer: Consumer, sequence: int, event: tuple[CheckpointBarrier, DataType]) -> None:
    """Let an event arrive without a backlog."""
    payload = memoryview(encode_event(event[0]))
    deliver(consumer.client, BufferResponse(receiver_id(0), 0, sequence, 0, event[1], payload, False))


def a_channel(event: tuple[CheckpointBarrier, DataType] | None, *, first: int = 0) -> Consumer:
    """Four data buffers of 1, 2, 3 and 4 bytes, and an event in the middle of them. `first` is the first sequence number."""
    consumer = Consumer(segments=20)
    consumer.connect()
    consumer.channel()._expected = first
    sequence = first
    for size in range(1, 5):
        deliver(consumer.client, data_frame(0, wrapped(sequence), 4, bytes(size)))
        sequence += 1
        if size == 2 and event is not None:
            send_event(consumer, wrapped(sequence), event)
            sequence += 1
    return consumer


def sizes(consumer: Consumer, checkpoint: int = 1) -> list[int]:
    """Sizes of the buffers that belong to the checkpoint."""
    return [len(data) for data in consumer.channel().in_flight(checkpoint)]


def take(consumer: Consumer, count: int) -> list[int]:
    """Sequence numbers of the next elements."""
    taken = [consumer.channel().take() for _ in range(count)]
    return [element.sequence_number for element in taken if element is not None]


def test_A_33_a_barrier_that_overtakes_keeps_its_sequence_number() -> None:
    """The barrier, then everything in the order in which it was sent."""
    assert take(a_channel(UNALIGNED), 5) == [2, 0, 1, 3, 4]


@pytest.mark.parametrize("event", [UNALIGNED, TIMEOUTABLE, ALIGNED])
def test_A_34_A_35_in_flight_is_what_was_sent_before_the_barrier(
    event: tuple[CheckpointBarrier, DataType],
) -> None:
    """Before the barrier or its announcement is read, and after a buffer was read."""
    consumer = a_channel(event)
    assert sizes(consumer) == [1, 2]
    if event is ALIGNED:
        assert take(consumer, 1) == [0]
    else:
        assert take(consumer, 1) == [2]
        assert sizes(consumer) == [1, 2]
        assert take(consumer, 1) == [0]
    assert sizes(consumer) == [2]


def test_A_36_without_a_barrier_everything_is_in_flight() -> None:
    """Four buffers whose sequence numbers wrap."""
    assert sizes(a_channel(None, first=2**31 - 3)) == [1, 2, 3, 4]


def test_A_37_in_flight_data_is_known_where_sequence_numbers_wrap() -> None:
    """The first number is each from 2³¹ − 11 to −2³¹ + 1."""
    for first in range(2**31 - 11, 2**31 + 2):
        assert sizes(a_channel(UNALIGNED, first=wrapped(first))) == [1, 2], first


def test_A_38_the_barrier_of_an_older_checkpoint_ends_nothing() -> None:
    """All data belongs to a newer checkpoint whose barrier has not arrived."""
    consumer = a_channel(UNALIGNED)
    assert sizes(consumer, checkpoint=2) == [1, 2, 3, 4]


@pytest.mark.parametrize("read", [0, 1])
def test_A_38_an_unaligned_checkpoint_does_not_start_after_the_barrier_of_a_newer_one(read: int) -> None:
    """The barrier of checkpoint 2 has arrived before that of checkpoint 1 is read, or just after it
    (RemoteInputChannel.checkpointStarted)."""
    consumer = a_channel(UNALIGNED)
    send_event(consumer, 5, (barrier(2, AlignmentType.UNALIGNED), DataType.PRIORITIZED_EVENT_BUFFER))
    assert take(consumer, read) == [2][:read]
    with pytest.raises(FlinkError) as caught:
        consumer.channel().checkpoint_started(1)
    assert caught.value.class_name == "CheckpointException"
    assert caught.value.message.startswith("Sequence number for checkpoint 1 is not known")
    consumer.channel().checkpoint_started(2)
    assert sizes(consumer, checkpoint=2) == [1, 2, 3, 4]


def test_A_43_a_newer_barrier_adds_nothing_to_the_checkpoint_before_it() -> None:
    """The first checkpoint has timed out, and the barrier of the second arrives before that of the first is read."""
    consumer = a_channel(UNALIGNED)
    consumer.channel().checkpoint_started(1)
    send_event(consumer, 5, (barrier(2, AlignmentType.UNALIGNED), DataType.PRIORITIZED_EVENT_BUFFER))
    deliver(consumer.client, data_frame(0, 6, 4, bytes(5)))
    assert sizes(consumer) == [1, 2]


@pytest.mark.parametrize("is_read", [False, True])
def test_A_44_a_late_barrier_ends_nothing_of_the_next_checkpoint(is_read: bool) -> None:
    """Two buffers come before the barrier of checkpoint 2, one of them before the checkpoint begins, and one after it."""
    consumer = Consumer(segments=20)
    consumer.connect()
    send_event(consumer, 0, UNALIGNED)
    assert take(consumer, int(is_read)) == [0] * is_read
    deliver(consumer.client, data_frame(0, 1, 4, bytes(1)))
    assert sizes(consumer, checkpoint=2) == [1]
    deliver(consumer.client, data_frame(0, 2, 4, bytes(2)))
    send_event(consumer, 3, (barrier(2, AlignmentType.UNALIGNED), DataType.PRIORITIZED_EVENT_BUFFER))
    deliver(consumer.client, data_frame(0, 4, 4, bytes(3)))
    assert sizes(consumer, checkpoint=2) == [1, 2]


def test_A_32_floating_buffers_are_shared_fairly() -> None:
    """Three channels wait for three floating buffers, and each gets one."""
    consumer = Consumer(segments=12, floating=(3, 3), channels=3)
    consumer.connect()
    taken = [buffer for _ in range(3) if (buffer := consumer.pool.request()) is not None]
    for number in range(3):
        consumer.channel(number).on_sender_backlog(8)
    for buffer in taken:
        buffer.recycle()
    stats = [consumer.channel(number).stats() for number in range(3)]
    assert [(s.floating + s.exclusive, s.credit) for s in stats] == [(3, 1)] * 3


def test_A_39_a_channel_without_a_connection_fails_when_it_gets_a_buffer() -> None:
    """It keeps the buffer until it is released; then the other channel gets it."""
    consumer = Consumer(segments=2, floating=(1, 1), channels=2, exclusive=0)
    failing, other = consumer.channel(0), consumer.channel(1)
    consumer.client.add(other)
    buffer = consumer.pool.request()
    assert isinstance(buffer, Buffer)
    failing.on_sender_backlog(1)
    other.on_sender_backlog(1)
    buffer.recycle()
    assert failing.error is not None
    assert failing.error.class_name == "IOException"
    assert "partitionRequestClient is not initialized" in failing.error.message
    assert other.request_buffer() is None
    other.on_sender_backlog(1)
    failing.release()
    assert consumer.pool.available_segments == 0
    assert other.request_buffer() is not None


@pytest.mark.parametrize("data_type", [DataType.EVENT_BUFFER, DataType.PRIORITIZED_EVENT_BUFFER])
def test_an_event_that_cannot_be_read_fails_its_channel_only(data_type: DataType) -> None:
    """CreditBasedPartitionRequestClientHandler.decodeMsg: the connection and its other channels go on."""
    consumer = Consumer(channels=2)
    consumer.connect()
    deliver(consumer.client, BufferResponse(receiver_id(0), 0, 0, 0, data_type, memoryview(b"\0\0\0"), False))
    failed = consumer.channel(0).error
    assert failed is not None
    assert (failed.class_name, failed.message) == ("IOException", "Incomplete event")
    assert (consumer.client.error, consumer.channel(1).error) == (None, None)
    deliver(consumer.client, data_frame(1, 0, 0))
    assert consumer.channel(1).take() is not None
