"""Input gates: set-up, fairness, priority, the end."""

from __future__ import annotations

import pytest
from exchange_model import Consumer, Exchange, barrier, data_frame, deliver, nothing, receiver_id

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    EndOfData,
    EndOfPartition,
    Event,
    StopMode,
    data_type_of,
    encode_event,
)
from testbed_runtime.core.exchange.frames import BufferResponse, DataType
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.sizing import gate_buffers_spec, result_partition_buffers
from testbed_runtime.core.options import Options


def test_channels_take_turns() -> None:
    """One element each."""
    consumer = Consumer(channels=2, segments=32, floating=(8, 8))
    consumer.connect()
    for number in (0, 1):
        for sequence in range(2):
            deliver(consumer.client, data_frame(number, sequence, 1))
    order = []
    while (item := consumer.gate.poll()) is not None:
        order.append(item[0])
        assert isinstance(item[1], Buffer)
        item[1].recycle()
    assert order == [0, 1, 0, 1]
    assert consumer.woken == 2
    assert consumer.gate.received_bytes == 4


def test_a_run_holds_the_data_of_one_channel_up_to_its_next_event() -> None:
    """`poll_run` keeps the order of each channel, never passes an event, and takes turns between channels."""
    consumer = Consumer(channels=2, segments=32, floating=(8, 8))
    consumer.connect()
    aligned = barrier(1)
    for sequence in range(3):
        deliver(consumer.client, data_frame(0, sequence, 1))
    blocking = DataType.ALIGNED_CHECKPOINT_BARRIER
    deliver(consumer.client, BufferResponse(receiver_id(0), 0, 3, 0, blocking, encode_event(aligned)))
    deliver(consumer.client, data_frame(1, 0, 1))
    polled = []
    while (item := consumer.gate.poll_run(2)) is not None:
        polled.append((item[0], len(item[1]) if isinstance(item[1], list) else item[1]))
    assert polled == [(0, 2), (1, 1), (0, 1), (0, aligned)]
    assert consumer.gate.received_bytes == 4 + len(encode_event(aligned))


def test_a_priority_event_is_polled_before_everything_else() -> None:
    """Also of another channel than the one whose turn it is."""
    consumer = Consumer(channels=2, segments=32, floating=(8, 8))
    consumer.connect()
    deliver(consumer.client, data_frame(0, 0, 0))
    deliver(consumer.client, data_frame(1, 0, 0))
    event = barrier(1, AlignmentType.UNALIGNED)
    frame = BufferResponse(receiver_id(1), 0, 1, 0, DataType.PRIORITIZED_EVENT_BUFFER, encode_event(event))
    deliver(consumer.client, frame)
    polled = [consumer.gate.poll() for _ in range(4)]
    assert polled[0] == (1, event)
    assert [item and item[0] for item in polled] == [1, 0, 1, None]


def test_a_reader_without_a_loop_is_called_for_each_channel_that_becomes_ready() -> None:
    """It learns whether a priority event waits. A closed gate calls no reader."""
    consumer = Consumer(channels=2, segments=32, floating=(8, 8))
    consumer.connect()
    calls: list[bool] = []
    consumer.gate.on_ready = calls.append
    deliver(consumer.client, data_frame(0, 0, 0))
    deliver(consumer.client, data_frame(0, 1, 0))
    deliver(consumer.client, data_frame(1, 0, 0))
    payload = encode_event(barrier(1, AlignmentType.UNALIGNED))
    deliver(
        consumer.client, BufferResponse(receiver_id(1), 0, 1, 0, DataType.PRIORITIZED_EVENT_BUFFER, payload)
    )
    assert calls == [False, False, True]


def test_A_23_a_channel_gives_up_its_turn_for_a_priority_event() -> None:
    """PrioritizedDeque.prioritize removes it from its place among the others; its data comes after theirs."""
    consumer = Consumer(channels=3, segments=64, floating=(8, 8))
    consumer.connect()
    for number in range(3):
        deliver(consumer.client, data_frame(number, 0, 0))
    unaligned = encode_event(barrier(1, AlignmentType.UNALIGNED))
    for number in (0, 2):
        frame = BufferResponse(receiver_id(number), 0, 1, 0, DataType.PRIORITIZED_EVENT_BUFFER, unaligned)
        deliver(consumer.client, frame)
    polled = [consumer.gate.poll() for _ in range(6)]
    assert [item and item[0] for item in polled] == [0, 2, 1, 0, 2, None]


def test_A_23_two_priority_events_of_a_channel_keep_its_priority() -> None:
    """Between them comes the priority event of another channel, which was queued meanwhile."""
    consumer = Consumer(channels=2, segments=64, floating=(8, 8))
    consumer.connect()
    deliver(consumer.client, data_frame(1, 0, 0))
    for number, sequence in ((0, 0), (0, 1), (1, 1)):
        unaligned = encode_event(barrier(sequence + 1, AlignmentType.UNALIGNED))
        frame = BufferResponse(
            receiver_id(number), 0, sequence, 0, DataType.PRIORITIZED_EVENT_BUFFER, unaligned
        )
        deliver(consumer.client, frame)
    polled = [consumer.gate.poll() for _ in range(4)]
    assert [item and item[0] for item in polled] == [0, 1, 0, 1]


def _ends(consumer: Consumer, number: int, *events: Event) -> None:
    for sequence, event in enumerate(events):
        frame = BufferResponse(receiver_id(number), 0, sequence, 0, data_type_of(event), encode_event(event))
        deliver(consumer.client, frame)


def test_the_data_has_ended_only_if_every_channel_said_so() -> None:
    """SingleInputGate counts END_OF_DATA alone: an END_OF_PARTITION without it does not count."""
    consumer = Consumer(channels=2, segments=64, floating=(8, 8))
    consumer.connect()
    _ends(consumer, 0, EndOfData(StopMode.DRAIN), EndOfPartition())
    _ends(consumer, 1, EndOfPartition())
    while consumer.gate.poll() is not None:
        pass
    assert (consumer.gate.finished, consumer.gate.received_end_of_data) == (True, False)


def test_a_second_end_of_data_of_a_channel_is_an_error() -> None:
    """A checkState without a text."""
    consumer = Consumer()
    consumer.connect()
    _ends(consumer, 0, EndOfData(StopMode.DRAIN), EndOfData(StopMode.DRAIN))
    consumer.gate.poll()
    with pytest.raises(FlinkError) as refused:
        consumer.gate.poll()
    assert refused.value.class_name == "IllegalStateException"


def test_a_closed_gate_cancels_its_task_unless_everything_was_read() -> None:
    """Flink's text; after the last END_OF_PARTITION there is nothing more instead."""
    for events, is_cancelled in (((), True), ((EndOfData(StopMode.DRAIN), EndOfPartition()), False)):
        consumer = Consumer()
        consumer.connect()
        _ends(consumer, 0, *events)
        while consumer.gate.poll() is not None:
            pass
        consumer.gate.close()
        if is_cancelled:
            with pytest.raises(FlinkError, match="Input gate is already closed"):
                consumer.gate.poll()
        else:
            assert consumer.gate.poll() is None


def test_set_up_waits_for_segments_and_gives_up_in_flinks_words() -> None:
    """A task that ends frees them; past the deadline it is an error, and nothing is kept."""
    network = NetworkBufferPool(6, 32)
    other = network.create_buffer_pool(1, 6)
    held = [other.request() for _ in range(6)]
    consumer = Consumer(set_up=False)
    gate = InputGate(network, network.create_buffer_pool(1, 1), nothing, exclusive=2)
    gate.add_remote(
        consumer.channel().partition, 0, receiver=receiver_id(0), backoff=consumer.channel().backoff
    )
    assert gate.set_up(now=1.0, timeout_s=30.0) is False
    assert gate.set_up_deadline == 31.0
    assert gate.set_up(now=2.0) is False
    for buffer in held[:2]:
        assert buffer is not None
        buffer.recycle()
    assert gate.set_up(now=3.0) is False
    with pytest.raises(FlinkError, match=r"IOException: Timeout triggered .*30000ms"):
        gate.set_up(now=31.0)
    gate.close()
    for buffer in held[2:]:
        assert buffer is not None
        buffer.recycle()
    other.destroy()
    assert (network.outstanding, network.required) == (0, 0)


def two_writers_and_two_gates(sender: int, receiver: int) -> tuple[int, int]:
    """Create their pools on networks of these sizes, and return what they require."""
    senders, receivers = NetworkBufferPool(sender, 64), NetworkBufferPool(receiver, 64)
    for _ in range(2):
        senders.create_buffer_pool(*result_partition_buffers(Options({}), 2), subpartitions=2)
        spec = gate_buffers_spec(2, 2, 8)
        receivers.create_buffer_pool(spec.min_floating, spec.max_floating)
        receivers.request_unpooled(2 * spec.exclusive_per_channel)
    return senders.required, receivers.required


def test_J_21_two_writers_and_two_gates_need_6_and_10_buffers() -> None:
    """2 partitions of 2 + 1 buffers, and 2 gates of 2 × 2 + 1."""
    assert two_writers_and_two_gates(6, 10) == (6, 10)


@pytest.mark.parametrize(("sender", "receiver"), [(3, 10), (6, 7)])
def test_J_21_fewer_buffers_at_either_end_are_an_error(sender: int, receiver: int) -> None:
    """Flink's text, whichever end lacks them."""
    with pytest.raises(FlinkError, match="Insufficient number of network buffers: required "):
        two_writers_and_two_gates(sender, receiver)


@pytest.mark.parametrize(
    ("case", "channels", "records"), [("J-21", 2, 10_000), ("J-155", 1, 1_000), ("J-155", 100, 1_000)]
)
def test_J_21_J_155_the_fewest_buffers_carry_all_records(case: str, channels: int, records: int) -> None:
    """A partition of a buffer more than it has channels, and a gate of two for each channel and one."""
    del case
    exchange = Exchange(
        segments=2 * channels + 1,
        floating=(1, 1),
        channels=channels,
        exclusive=2,
        producer_segments=channels + 1,
        producer_pool=channels + 1,
    ).start()
    received = dict.fromkeys(range(channels), b"")
    for number in range(records):
        data = number.to_bytes(4, "big")
        while data:
            data = data[exchange.partition.emit(number % channels, data) :]
            exchange.partition.flush_all()
            for channel, element in exchange.run():
                assert isinstance(element, bytes)
                received[channel] += element
    for channel, data in received.items():
        assert data == b"".join(n.to_bytes(4, "big") for n in range(channel, records, channels))
    exchange.close()


def test_too_few_segments_for_the_exclusive_buffers_is_an_error_at_once() -> None:
    """Waiting would not help, and what was promised is taken back when the gate is closed."""
    consumer = Consumer(segments=12, floating=(8, 8), channels=3, set_up=False)
    with pytest.raises(FlinkError, match="Insufficient number of network buffers: required 2, but only 0"):
        consumer.gate.set_up()
    consumer.gate.close()
    assert (consumer.network.outstanding, consumer.network.required) == (0, 0)


def test_a_closed_gate_gives_everything_back_whatever_it_held() -> None:
    """Data, events, an error; later frames are discarded."""
    exchange = Exchange(channels=2).start()
    for number in (0, 1):
        exchange.partition.emit(number, b"x" * 100)
    exchange.partition.broadcast_event(barrier(1))
    exchange.settle()
    exchange.channel(1).on_error(FlinkError("IOException", "late"))
    exchange.close()
    exchange.close()


def test_a_gate_is_connected_when_every_producer_has_answered() -> None:
    """A backlog is an answer too."""
    consumer = Consumer(channels=2)
    consumer.connect()
    deliver(consumer.client, data_frame(0, 0, 0))
    assert not consumer.gate.connected
    consumer.channel(1).on_sender_backlog(1)
    assert consumer.gate.connected


def test_an_ended_channel_is_neither_resumed_nor_acknowledged() -> None:
    """Its request is cancelled; the gate is finished after the last, and its reader has nothing to read."""
    exchange = Exchange(channels=2).start()
    exchange.partition.finish()
    polled = exchange.run()
    assert [event for _, event in polled] == [EndOfPartition()] * 2
    exchange.gate.resume_consumption(0)
    exchange.gate.acknowledge_all_records_processed()
    exchange.gate.announce_buffer_size(99)
    assert exchange.sent() == []
    assert (exchange.gate.finished, exchange.gate.poll(), exchange.gate.has_data) == (True, None, False)
    exchange.close()


def test_the_reader_of_a_gate_learns_that_a_channel_with_data_was_released() -> None:
    """Or why it had failed before."""
    for error, expected in (
        (None, "CancelTaskException: Queried for"),
        ("it failed", "IOException: it failed"),
    ):
        consumer = Consumer()
        consumer.connect()
        deliver(consumer.client, data_frame(0, 0, 0))
        if error is not None:
            consumer.channel().on_error(FlinkError("IOException", error))
        consumer.channel().release()
        with pytest.raises(FlinkError, match=expected):
            consumer.gate.poll()


def test_a_channel_that_has_failed_still_asks_about_a_missing_partition() -> None:
    """The JobManager may say that the producer has failed too."""
    consumer = Consumer()
    consumer.connect()
    consumer.channel().on_error(FlinkError("IOException", "it failed"))
    consumer.channel().on_failed_partition_request()
    assert consumer.not_found == [consumer.channel()]


def test_without_somebody_to_ask_a_missing_partition_fails_the_channel() -> None:
    """The exchange without a JobManager."""
    consumer = Consumer()
    consumer.gate._not_found = None
    consumer.connect()
    consumer.channel().on_failed_partition_request()
    with pytest.raises(FlinkError, match="PartitionNotFoundException"):
        consumer.gate.poll()


def test_usage_is_what_holds_data() -> None:
    """Two buffers hold data, none did before."""
    consumer = Consumer(segments=10, floating=(8, 8))
    consumer.connect()
    assert consumer.gate.buffers_in_use == 0
    for sequence, backlog in enumerate((1, 0)):
        deliver(consumer.client, data_frame(0, sequence, backlog))
    assert (consumer.gate.queued, consumer.gate.buffers_in_use) == (2, 2)


def test_a_gate_without_exclusive_buffers_waits_for_its_reserved_one() -> None:
    """And gives up at the same deadline."""
    network = NetworkBufferPool(2, 32)
    other = network.create_buffer_pool(1, 2)
    held = [other.request(), other.request()]
    consumer = Consumer(set_up=False)
    gate = InputGate(network, network.create_buffer_pool(1, 1), nothing, exclusive=0)
    gate.add_remote(
        consumer.channel().partition, 0, receiver=receiver_id(0), backoff=consumer.channel().backoff
    )
    assert gate.set_up_deadline is None
    assert gate.set_up(now=1.0, timeout_s=30.0) is False
    assert gate.set_up_deadline == 31.0
    with pytest.raises(FlinkError, match="Timeout triggered"):
        gate.set_up(now=31.0)
    assert held[0] is not None
    held[0].recycle()
    assert gate.set_up(now=32.0) is True
    assert gate.set_up_deadline is None
