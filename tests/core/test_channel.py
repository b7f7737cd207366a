"""Input channels: credit at the receiver, order, announcements, requests again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from exchange_model import (
    Consumer,
    CountingPool,
    Exchange,
    barrier,
    data_frame,
    deliver,
    local_channel,
    nothing,
    partition_id,
    receiver_id,
)

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.credit import BufferManager
from testbed_runtime.core.exchange.encoding import encode
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CheckpointBarrier,
    EndOfPartition,
    EventAnnouncement,
    encode_event,
)
from testbed_runtime.core.exchange.frames import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BufferResponse,
    DataType,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    WireVersion,
)
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import Buffer, MemorySegment
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager


def barrier_frame(
    number: int, sequence: int, event: CheckpointBarrier, data_type: DataType, backlog: int = 0
) -> BufferResponse:
    return BufferResponse(receiver_id(number), 0, sequence, backlog, data_type, encode_event(event))


def test_A_01_to_A_07_floating_buffers_follow_the_senders_backlog() -> None:
    """The channel takes what there is, waits for more, and refuses what it no longer needs."""
    network = NetworkBufferPool(16, 32)
    pool = network.create_buffer_pool(14, 14)
    counting = CountingPool(pool)
    manager = BufferManager(network, counting, 2, nothing)  # type: ignore[arg-type]
    manager.assign_exclusive(manager.request_exclusive().poll() or [])
    exclusive = manager.request_buffer()
    assert exclusive is not None
    floating = []
    for _ in range(2):
        segment = counting.request_segment()
        assert segment is not None
        floating.append(segment)

    def state() -> tuple[int, int, int, bool, int, int]:
        return (
            manager.required,
            manager.available,
            pool.available_segments,
            manager.waiting,
            counting.requests,
            counting.registrations,
        )

    manager.on_sender_backlog(14)
    assert state() == (16, 13, 0, True, 15, 1)
    manager.on_sender_backlog(16)
    assert state() == (18, 13, 0, True, 15, 1)
    exclusive.recycle()
    assert state() == (18, 14, 0, True, 15, 1)
    pool.recycle(floating[0])
    assert state() == (18, 15, 0, True, 16, 2)
    manager.on_sender_backlog(13)
    assert state() == (15, 15, 0, True, 16, 2)
    pool.recycle(floating[1])
    assert state() == (15, 15, 1, False, 16, 2)
    manager.on_sender_backlog(15)
    assert state() == (17, 16, 0, True, 18, 3)
    manager.release()
    pool.destroy()
    assert (network.outstanding, network.required) == (0, 0)


def two_managers() -> tuple[BufferManager, BufferManager]:
    """Set up like Flink's test: initial credit 2 and 0, no exclusive segment assigned, an unlimited pool."""
    network = NetworkBufferPool(100, 32)
    pool = network.create_buffer_pool(1, 100)
    return BufferManager(network, pool, 2, nothing), BufferManager(network, pool, 0, nothing)


def test_A_14_to_A_17_a_blocked_producer_without_exclusive_buffers_loses_its_credit() -> None:
    """Floating buffers go back at the barrier; after resumption both sides start from 0."""
    consumer = Consumer(segments=100, floating=(1, 100), channels=2, exclusive=2, set_up=False)
    first, second = two_managers()
    consumer.channel(0).buffers, consumer.channel(1).buffers = first, second
    consumer.connect()
    for channel in (consumer.channel(0), consumer.channel(1)):
        channel.on_sender_backlog(2)
    assert (first.available, second.available) == (4, 2)
    event = barrier(1, alignment_timeout_ms=1000)
    for number in (0, 1):
        deliver(
            consumer.client,
            barrier_frame(number, 0, event, DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER),
        )
    assert (first.available, second.available) == (4, 0)
    for number in (0, 1):
        consumer.channel(number).resume_consumption()
    assert (first.unannounced, second.unannounced) == (4, 0)
    for number in (0, 1):
        consumer.channel(number).on_sender_backlog(4)
    assert (first.available, second.available) == (6, 4)
    assert (first.unannounced, second.unannounced) == (6, 4)


def test_A_18_each_buffer_that_arrives_is_required_no_more() -> None:
    """4, 3, 2, 1, 0 with initial credit 2, and 2, 1, 0 without; the one too many is refused."""
    for manager, expected in zip(two_managers(), ([4, 3, 2, 1, 0], [2, 1, 0]), strict=True):
        manager.on_sender_backlog(2)
        required = []
        last = None
        for _ in expected:
            required.append(manager.required)
            last = manager.request_buffer()
        assert required == expected
        assert last is None


def test_A_19_a_gap_in_the_sequence_fails_the_channel() -> None:
    """The buffer is recycled, and the next poll raises the error."""
    consumer = Consumer()
    consumer.connect()
    deliver(consumer.client, data_frame(0, 0, 0))
    deliver(consumer.client, data_frame(0, 29, 0))
    with pytest.raises(FlinkError) as caught:
        consumer.gate.poll()
    assert caught.value.message == (
        "Buffer re-ordering: expected buffer with sequence number 1, but received 29."
    )
    consumer.gate.close()
    assert consumer.network.outstanding == 0


@pytest.mark.parametrize("version", list(WireVersion))
def test_sequence_numbers_continue_below_zero_after_the_largest_int(version: WireVersion) -> None:
    """As Java's int: …, 2³¹ − 1, −2³¹, …; the frames can be encoded, and the receiver misses nothing."""
    exchange = Exchange(channels=1).start()
    channel, reader = exchange.channel(), exchange.server.readers[0]
    assert reader.view is not None
    channel._expected = reader.view.subpartition._sequence = 2**31 - 3
    numbers, received = [], b""
    for number in range(6):
        exchange.partition.emit(0, bytes([number]) * 10)
        exchange.partition.flush_all()
        while exchange.server_step():
            frame = exchange.to_client[-1]
            if isinstance(frame, BufferResponse):
                numbers.append(frame.sequence_number)
                assert encode(frame, version)
        received += b"".join(data for _, data in exchange.run() if isinstance(data, bytes))
    assert numbers[:6] == [2**31 - 3, 2**31 - 2, 2**31 - 1, -(2**31), -(2**31) + 1, -(2**31) + 2]
    assert received == b"".join(bytes([number]) * 10 for number in range(6))
    exchange.close()


def test_A_23_a_barrier_that_may_time_out_is_announced_ahead_of_the_data() -> None:
    """Announced with its own sequence number, then everything in order."""
    consumer = Consumer()
    consumer.connect()
    channel = consumer.channel()
    for sequence in (0, 1):
        deliver(consumer.client, data_frame(0, sequence, 3))
    event = barrier(1, AlignmentType.ALIGNED, alignment_timeout_ms=10)
    deliver(consumer.client, barrier_frame(0, 2, event, DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER))
    for sequence in (3, 4):
        deliver(consumer.client, data_frame(0, sequence, 3))
    first = channel.take()
    assert first is not None
    assert (first.sequence_number, first.buffer.data_type, first.more_available, first.more_priority) == (
        2,
        DataType.PRIORITIZED_EVENT_BUFFER,
        True,
        False,
    )
    taken = [channel.take() for _ in range(5)]
    assert [t and t.sequence_number for t in taken] == [0, 1, 2, 3, 4]
    assert [t and t.buffer.data_type for t in taken][2] is DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
    assert taken[-1] is not None
    assert not taken[-1].more_available


def test_an_announcement_comes_out_of_the_gate_as_an_event() -> None:
    """Before the data that is ahead of its barrier."""
    consumer = Consumer()
    consumer.connect()
    deliver(consumer.client, data_frame(0, 0, 0))
    event = barrier(1, alignment_timeout_ms=10)
    deliver(consumer.client, barrier_frame(0, 1, event, DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER))
    polled = [consumer.gate.poll() for _ in range(4)]
    assert polled[0] == (0, EventAnnouncement(1, event))
    assert polled[1] is not None
    assert isinstance(polled[1][1], Buffer)
    assert polled[2:] == [(0, event), None]


def test_A_24_buffers_in_use_are_those_queued_here_and_at_the_sender() -> None:
    """The debloater reads these numbers."""
    consumer = Consumer()
    consumer.connect()
    channel = consumer.channel()
    in_use = []
    for sequence, backlog in ((0, 1), (1, 3)):
        deliver(consumer.client, data_frame(0, sequence, backlog))
        in_use.append(channel.buffers_in_use)
    for _ in range(3):
        channel.take()
        in_use.append(channel.buffers_in_use)
    assert in_use == [2, 5, 4, 3, 3]


@pytest.mark.parametrize(
    ("backoff", "fields"),
    [
        pytest.param((500, 1000, 500, True), [500, 1000, 1500, 2000], id="A-25"),
        pytest.param((500, 500, 500, True), [500, 1000], id="A-26"),
        pytest.param((0, 0, 500, True), [500], id="A-27"),
        pytest.param((0, 0, 500, False), [0], id="A-27-before-1.19"),
    ],
)
def test_A_25_to_A_27_a_remote_request_is_retriggered_while_the_budget_lasts(
    backoff: tuple[float, float, float, bool], fields: list[float]
) -> None:
    """The last one fails the channel with PartitionNotFoundException."""
    consumer = Consumer(backoff=backoff)
    consumer.connect()
    channel = consumer.channel()
    seen = []
    for _ in fields[:-1]:
        assert channel.retrigger(0.0) == 0.0
        seen.append(channel.backoff.current)
        assert [type(f) for f in consumer.sent()] == [PartitionRequest]
    failure = channel.retrigger(0.0)
    seen.append(channel.backoff.current)
    assert seen == fields
    assert isinstance(failure, FlinkError)
    assert consumer.sent() == []
    with pytest.raises(
        FlinkError, match=f"PartitionNotFoundException: Partition {partition_id()} not found."
    ):
        consumer.gate.poll()


def test_before_1_19_the_next_request_waits_for_its_deadline() -> None:
    """The same receiver and the same credit again."""
    consumer = Consumer(backoff=(0.5, 1.0, 10.0, False))
    (request,) = consumer.connect()
    channel = consumer.channel()
    assert channel.retrigger(2.0) == 0.5
    assert consumer.gate.next_deadline == 2.5
    consumer.gate.on_time(2.4)
    assert consumer.sent() == []
    consumer.gate.on_time(2.5)
    assert consumer.sent() == [request]
    assert consumer.gate.next_deadline is None
    assert channel.requests == 2


def test_a_channel_cannot_be_retriggered_before_it_has_a_connection() -> None:
    """That would be our bug."""
    with pytest.raises(
        FlinkError, match="IllegalStateException: Bug: partitionRequestClient is not initialized"
    ):
        Consumer().channel().retrigger(0.0)


def test_B_05_a_local_channel_asks_again_after_its_backoff() -> None:
    """Requests are sent at once and after 500, 1000, 2000 and 3000 ms; then the channel fails."""
    network = NetworkBufferPool(8, 32)
    gate = InputGate(network, network.create_buffer_pool(1, 8), nothing)
    channel = local_channel(gate, ResultPartitionManager())
    assert gate.set_up()
    now = 0.0
    channel.request(now)
    waits = []
    while (deadline := gate.next_deadline) is not None:
        waits.append(deadline - now)
        now = deadline
        gate.on_time(now)
    assert waits == [0.5, 1.0, 2.0, 3.0]
    assert channel.requests == 5
    with pytest.raises(FlinkError, match="PartitionNotFoundException"):
        gate.poll()


@pytest.mark.parametrize(("registers_late", "error"), [(False, "IllegalState"), (True, "IO")])
def test_B_05_the_error_of_a_request_by_the_timer_is_an_io_exception(
    registers_late: bool, error: str
) -> None:
    """The partition has another reader. Flink's task gets the error of its own request as it is (LocalInputChannel.setError)."""
    network = NetworkBufferPool(8, 32)
    gate, manager = InputGate(network, network.create_buffer_pool(1, 2), nothing), ResultPartitionManager()
    channel = local_channel(gate, manager)
    partition = ResultPartition(partition_id(), 1, network.create_buffer_pool(2, 4, subpartitions=1))
    partition.create_view(0, nothing)
    assert gate.set_up()
    if registers_late:
        channel.request(0.0)
    manager.register(partition)
    channel.request(1.0)
    with pytest.raises(FlinkError, match="pipelined subpartitions can only be consumed once") as caught:
        gate.poll()
    assert caught.value.class_name == f"{error}Exception"


def test_A_19_a_failed_channel_announces_no_credit() -> None:
    """Flink's notifyCreditAvailable raises the channel's error: neither the refused buffer nor a free one becomes credit."""
    consumer = Consumer()
    consumer.connect()
    deliver(consumer.client, data_frame(0, 0, 0))
    taken = consumer.gate.poll()
    assert taken is not None
    assert isinstance(taken[1], Buffer)
    consumer.sent()
    deliver(consumer.client, data_frame(0, 29, 0))
    taken[1].recycle()
    assert consumer.sent() == []
    assert consumer.channel().buffers.unannounced == 1


def test_A_19_nothing_follows_a_blocking_event_with_a_backlog() -> None:
    """It is refused before it counts in the sequence, so the next element is a gap."""
    consumer = Consumer()
    consumer.connect()
    event, kind = encode_event(barrier(1)), DataType.ALIGNED_CHECKPOINT_BARRIER
    deliver(consumer.client, BufferResponse(receiver_id(0), 0, 0, 1, kind, event))
    deliver(consumer.client, data_frame(0, 1, 0))
    assert consumer.channel().queued == 0
    with pytest.raises(FlinkError, match="Illegal number of backlog: 1, should be 0"):
        consumer.gate.poll()


def test_B_05_a_local_channel_skips_empty_buffers() -> None:
    """Without exclusive buffers a subpartition hands out what was read before it was finished: LocalInputChannel takes the next one."""
    network = NetworkBufferPool(8, 32)
    gate = InputGate(network, network.create_buffer_pool(1, 2), nothing, exclusive=0)
    manager = ResultPartitionManager()
    channel = local_channel(gate, manager)
    pool = network.create_buffer_pool(2, 4, subpartitions=1)
    partition = ResultPartition(partition_id(), 1, pool, exclusive=0)
    manager.register(partition)
    assert gate.set_up()
    channel.request(0.0)
    polled: list[tuple[int, object]] = []
    partition.emit(0, b"ab")
    partition.flush_all()
    while (item := gate.poll()) is not None:
        assert isinstance(item[1], Buffer)
        polled.append((item[0], bytes(item[1].view())))
        item[1].recycle()
    partition.finish()
    while (item := gate.poll()) is not None:
        polled.append(item)
    assert polled == [(0, b"ab"), (0, EndOfPartition())]
    assert (channel.buffers_in, pool.used) == (2, 0)


def test_a_local_channel_reads_its_partition_without_copies_or_credit() -> None:
    """Also one that is registered only after the first request."""
    network = NetworkBufferPool(8, 32)
    woken: list[int] = []
    gate = InputGate(network, network.create_buffer_pool(1, 2), lambda: woken.append(1))
    manager = ResultPartitionManager()
    channel = local_channel(gate, manager)
    assert gate.set_up()
    channel.request(0.0)
    partition = ResultPartition(partition_id(), 1, network.create_buffer_pool(2, 4, subpartitions=1))
    manager.register(partition)
    gate.on_time(0.5)
    assert channel.answered
    partition.emit(0, b"abc")
    assert gate.poll() is None
    partition.flush_all()
    assert woken == [1]
    item = gate.poll()
    assert item is not None
    assert isinstance(item[1], Buffer)
    assert bytes(item[1].view()) == b"abc"
    item[1].recycle()
    partition.broadcast_event(barrier(1))
    partition.emit(0, b"x" * 64)
    assert gate.poll() == (0, barrier(1))
    assert gate.poll() is None
    gate.resume_consumption(0)
    assert gate.poll() is not None
    assert channel.stats().used == 2
    channel.announce_buffer_size(9)
    assert partition.subpartitions[0].buffer_size == 9
    manager.release(partition_id(), FlinkError("Exception", "the producer failed"))
    with pytest.raises(FlinkError, match="CancelTaskException: Consumed partition"):
        channel.take()
    gate.close()


def test_credit_is_read_when_it_is_written() -> None:
    """Several gains are one AddCredit."""
    consumer = Consumer()
    consumer.connect()
    channel = consumer.channel()
    channel.on_sender_backlog(1)
    channel.on_sender_backlog(3)
    assert consumer.sent() == [AddCredit(3, receiver_id(0))]
    assert channel.stats().announced == 5
    assert channel.buffers.unannounced == 0


def test_an_empty_buffer_costs_a_credit_and_gives_it_back() -> None:
    """It advances the sequence."""
    consumer = Consumer()
    consumer.connect()
    assert deliver(consumer.client, data_frame(0, 0, 0, b""))
    assert consumer.gate.poll() is None
    assert consumer.sent() == [AddCredit(1, receiver_id(0))]
    deliver(consumer.client, data_frame(0, 1, 0))
    assert consumer.gate.poll() is not None


def test_a_blocking_event_must_not_report_a_backlog() -> None:
    """The producer would have to be blocked."""
    consumer = Consumer()
    consumer.connect()
    frame = barrier_frame(0, 0, barrier(1), DataType.ALIGNED_CHECKPOINT_BARRIER, backlog=3)
    deliver(consumer.client, frame)
    with pytest.raises(FlinkError, match="Illegal number of backlog: 3, should be 0"):
        consumer.gate.poll()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (FlinkError("IllegalStateException", "no"), "IOException: java.lang.IllegalStateException: no"),
        (FlinkError("TimeoutException", "late"), "IOException: java.util.concurrent.TimeoutException: late"),
        (FlinkError("IOException", "lost"), "IOException: lost"),
        (FlinkError("ProtocolException", "odd"), "ProtocolException: odd"),
        (FlinkError("PartitionNotFoundException", "gone"), "PartitionNotFoundException: gone"),
        (FlinkError("CancelTaskException", "over"), "CancelTaskException: over"),
    ],
)
def test_a_channel_wraps_an_error_of_java_that_is_no_io_exception(error: FlinkError, raised: str) -> None:
    """As `InputChannel.checkError` does; exceptions of Flink's own keep their class, which failover decides on."""
    consumer = Consumer()
    consumer.connect()
    consumer.gate.channels[0].on_error(error)
    with pytest.raises(FlinkError) as caught:
        consumer.gate.poll()
    assert str(caught.value) == raised


def test_a_surplus_floating_buffer_goes_back_when_an_exclusive_one_is_recycled() -> None:
    """One at a time, without new credit."""
    consumer = Consumer()
    consumer.connect()
    channel = consumer.channel()
    channel.on_sender_backlog(2)
    consumer.sent()
    manager = channel.buffers
    assert manager is not None
    taken = [channel.request_buffer() for _ in range(4)]
    channel.on_sender_backlog(1)
    assert [manager.available_floating, manager.available_exclusive, manager.unannounced] == [3, 0, 3]
    channel.on_sender_backlog(0)
    assert taken[2] is not None
    taken[2].recycle()
    assert [manager.available_floating, manager.available_exclusive, manager.unannounced] == [2, 1, 3]


def test_control_messages_carry_the_receiver() -> None:
    """Resume, acknowledge, buffer size."""
    consumer = Consumer()
    consumer.connect()
    channel = consumer.channel()
    channel.resume_consumption()
    channel.acknowledge_all_records_processed()
    channel.announce_buffer_size(333)
    receiver = receiver_id(0)
    assert consumer.sent() == [
        ResumeConsumption(receiver),
        AckAllUserRecordsProcessed(receiver),
        NewBufferSize(333, receiver),
    ]


def test_a_released_channel_takes_nothing_and_says_so() -> None:
    """Buffers that arrive later go home."""
    consumer = Consumer()
    consumer.connect()
    channel: RemoteInputChannel = consumer.channel()
    buffer = channel.request_buffer()
    assert buffer is not None
    channel.release()
    channel.release()
    channel.on_buffer(buffer, 0, 5)
    channel.on_failed_partition_request()
    with pytest.raises(
        FlinkError, match="CancelTaskException: Queried for a buffer after channel has been released"
    ):
        channel.take()
    consumer.gate.close()
    assert (consumer.network.outstanding, consumer.network.required) == (0, 0)


def test_exclusive_buffers_are_assigned_once() -> None:
    """A second set-up is our bug."""
    manager = Consumer().channel().buffers
    assert manager is not None
    with pytest.raises(
        FlinkError, match=r"IllegalStateException: .* exclusive buffers have already been set"
    ):
        manager.assign_exclusive([MemorySegment(8)])


_CALLS: dict[str, Callable[[RemoteInputChannel], object]] = {
    "take": lambda channel: channel.take(),
    "resume": lambda channel: channel.resume_consumption(),
    "acknowledge": lambda channel: channel.acknowledge_all_records_processed(),
    "size": lambda channel: channel.announce_buffer_size(64),
    "event": lambda channel: channel.send_task_event(barrier(1)),
}


@pytest.mark.parametrize(
    ("call", "released"),
    [
        ("take", "CancelTaskException: Queried for a buffer after channel has been released."),
        ("resume", "IllegalStateException: Channel released."),
        ("acknowledge", "IllegalStateException: Channel released."),
        ("size", "IllegalStateException: Channel released."),
        (
            "event",
            "IllegalStateException: Tried to send task event to producer after channel has been released.",
        ),
    ],
)
def test_calls_at_the_wrong_time_fail_as_in_flink(call: str, released: str) -> None:
    """RemoteInputChannel: before the request, with an error (it comes first), and after the release."""
    texts = []
    for state in ("unrequested", "failed", "released"):
        consumer = Consumer()
        channel = consumer.channel()
        if state != "unrequested":
            consumer.connect()
        if state == "failed":
            channel.on_error(FlinkError("IOException", "lost"))
        if state == "released":
            channel.release()
        with pytest.raises(FlinkError) as raised:
            _CALLS[call](channel)
        texts.append(str(raised.value))
    early = "IllegalStateException: Bug: partitionRequestClient is not initialized before processing data and no error is detected."
    assert texts == [early, "IOException: lost", released]


def test_a_blocking_event_gives_floating_buffers_back_before_its_backlog_is_refused() -> None:
    """RemoteInputChannel.onBuffer: onBlockingUpstream, then checkArgument, which refuses a missing backlog too."""
    for backlog in (3, -1):
        consumer = Consumer(exclusive=0)
        consumer.connect()
        channel = consumer.channel()
        channel.on_sender_backlog(4)
        assert channel.buffers is not None
        assert channel.buffers.available == 4
        event = Buffer.unpooled(encode_event(barrier(1)), DataType.ALIGNED_CHECKPOINT_BARRIER)
        channel.on_buffer(event, 0, backlog)
        assert channel.buffers.available == 0
        with pytest.raises(FlinkError, match=f"Illegal number of backlog: {backlog}, should be 0"):
            channel.take()
