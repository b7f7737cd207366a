"""Cases of SingleInputGateTest and LocalInputChannelTest: what a gate returns, its buffers, and requests for missing results."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.alignment import AlternatingBarrierHandler, Complete, Overtaken, Trigger
from testbed_runtime.core.exchange.backoff import local_backoff, remote_backoff
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
from testbed_runtime.core.exchange.frames import BufferResponse, PartitionRequest
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.localchannel import LocalInputChannel
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.sizing import gate_buffers_spec
from testbed_runtime.core.options import Options
from testbed_runtime.core.values import MAX_INT
from tests.core.exchange_model import (
    SEGMENT_BYTES,
    Consumer,
    barrier,
    data_frame,
    deliver,
    local_channel,
    nothing,
    partition_id,
    producer_pool,
    receiver_id,
)


class Gate(Consumer):
    """A gate of remote channels, and what arrives for each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.connect()
        self._sequences = [-1] * self.channels

    def _next(self, channel: int) -> int:
        self._sequences[channel] += 1
        return self._sequences[channel]

    def data(self, channel: int) -> None:
        deliver(self.client, data_frame(channel, self._next(channel), 0))

    def event(self, channel: int, event: Event) -> None:
        payload = encode_event(event)
        frame = BufferResponse(receiver_id(channel), 0, self._next(channel), 0, data_type_of(event), payload)
        deliver(self.client, frame)

    def poll(self) -> tuple[int, bool] | None:
        """The channel and whether it was a data buffer."""
        polled = self.gate.poll()
        if polled is None:
            return None
        if isinstance(polled[1], Buffer):
            polled[1].recycle()
        return polled[0], isinstance(polled[1], Buffer)


def test_A_56_a_gate_returns_the_elements_of_its_channels_in_turn_until_all_have_ended() -> None:
    """END_OF_DATA of all channels drains the gate, and their END_OF_PARTITION finishes it."""
    gate = Gate(segments=32, channels=2)
    gate.data(0)
    gate.data(0)
    gate.data(1)
    for channel in (1, 0):
        gate.event(channel, EndOfData(StopMode.DRAIN))
    for channel in (1, 0):
        gate.event(channel, EndOfPartition())
    seen = []
    for _ in range(7):
        polled = gate.poll()
        seen.append((polled, gate.gate.received_end_of_data, gate.gate.finished))
    assert seen == [
        ((0, True), False, False),
        ((1, True), False, False),
        ((0, True), False, False),
        ((1, False), False, False),
        ((0, False), True, False),
        ((1, False), True, False),
        ((0, False), True, True),
    ]
    assert gate.poll() is None
    assert gate.gate.draining


def test_A_80_a_gate_that_is_set_up_has_a_segment_and_its_remote_channels_have_their_exclusive_buffers() -> (
    None
):
    """SingleInputGateTest.testSetupLogic: before, they have none. A local channel needs none."""
    consumer = Consumer(channels=2, set_up=False)
    local_channel(consumer.gate, ResultPartitionManager())

    def available() -> list[int]:
        managers = [consumer.channel(number).buffers for number in range(2)]
        return [manager.available for manager in managers if manager is not None]

    assert available() == [0, 0]
    assert consumer.gate.set_up()
    assert (available(), consumer.pool.required, consumer.network.required) == ([2, 2], 8, 8 + 4)


def test_A_81_each_channel_of_a_gate_requests_its_result() -> None:
    """SingleInputGateTest.testPartitionRequestLogic: a remote one with its initial credit, a local one reads it at once."""
    consumer, manager = Consumer(), ResultPartitionManager()
    result = ResultPartition(partition_id(), 1, producer_pool(consumer.network, 1, 2))
    manager.register(result)
    local = local_channel(consumer.gate, manager)
    (request,) = consumer.connect()
    assert isinstance(request, PartitionRequest)
    assert (request.initial_credit, consumer.gate.requested) == (2, False)
    local.request(0.0)
    assert (consumer.gate.requested, result.subpartitions[0].view is not None) == (True, True)


def test_A_82_a_channel_is_unfinished_until_its_end_was_read() -> None:
    """SingleInputGateTest.testGetUnfinishedChannels: the middle one ends first."""
    gate = Gate(channels=3)

    def unfinished() -> list[int]:
        return [channel.index for channel in gate.gate.channels if not channel.is_released]

    seen = [unfinished()]
    for number in (1, 0, 2):
        gate.event(number, EndOfPartition())
        assert not gate.gate.finished
        gate.poll()
        seen.append(unfinished())
    assert (seen, gate.gate.finished) == ([[0, 1, 2], [0, 2], [2], []], True)


@pytest.mark.parametrize("first", [StopMode.NO_DRAIN, StopMode.DRAIN])
def test_A_57_a_gate_drains_only_if_all_its_channels_do(first: StopMode) -> None:
    """One channel alone decides nothing."""
    gate = Gate(segments=32, channels=2)
    gate.event(0, EndOfData(first))
    gate.event(1, EndOfData(StopMode.DRAIN))
    gate.poll()
    assert not gate.gate.received_end_of_data
    gate.poll()
    assert gate.gate.received_end_of_data
    assert gate.gate.draining is (first is StopMode.DRAIN)


def test_A_58_a_channel_that_has_ended_is_not_read_again() -> None:
    """A late notification of it finds nothing, while another channel keeps the gate open."""
    gate = Gate(segments=32, channels=2)
    gate.event(0, EndOfPartition())
    assert gate.gate.poll() == (0, EndOfPartition())
    gate.gate.on_channel_ready(0, priority=False)
    assert gate.poll() is None
    assert not gate.gate.finished


def test_A_59_a_gate_is_available_while_something_can_be_read() -> None:
    """Not before the first buffer, and not after the last one. Each time it wakes its reader once."""
    gate = Gate(segments=32)
    seen = [gate.gate.is_available]
    for _ in range(2):
        gate.data(0)
        gate.data(0)
        seen.append(gate.gate.is_available)
        gate.poll()
        seen.append(gate.gate.is_available)
        gate.poll()
        seen.append(gate.gate.is_available)
    assert seen == [False, True, True, False, True, True, False]
    assert gate.woken == 2


def test_A_77_a_finished_gate_is_available() -> None:
    """SingleInputGateTest.testIsAvailableAfterFinished: its reader finds that it has ended. It is finished channel by channel."""
    gate = Gate(segments=32, channels=2)
    seen = [(gate.gate.is_available, gate.gate.finished)]
    for channel in (1, 0):
        gate.event(channel, EndOfPartition())
        assert gate.poll() == (channel, False)
        seen.append((gate.gate.is_available, gate.gate.finished))
    assert seen == [(False, False), (False, False), (True, True)]
    assert gate.poll() is None
    assert gate.gate.is_available


def test_A_60_a_gate_has_no_more_after_the_last_element_of_its_only_channel_with_data() -> None:
    """A buffer and END_OF_PARTITION; the other channel has nothing."""
    gate = Gate(segments=32, channels=2)
    gate.data(0)
    gate.event(0, EndOfPartition())
    seen = [(gate.poll(), gate.gate.is_available) for _ in range(2)]
    assert seen == [((0, True), True), ((0, False), False)]


def test_A_61_the_buffers_in_use_are_those_of_all_channels() -> None:
    """0, 1, 2 and 3 of them."""
    gate = Gate(segments=32, channels=2)
    seen = [gate.gate.buffers_in_use]
    for channel in (0, 0, 1):
        gate.data(channel)
        seen.append(gate.gate.buffers_in_use)
    assert seen == [0, 1, 2, 3]


def test_A_62_a_channel_has_only_its_exclusive_buffers_at_first() -> None:
    """2 of them, and 1 segment is reserved for the gate's pool of 8, so that it always has a floating one."""
    gate = Consumer(segments=16, floating=(1, 8))
    assert gate.channel().stats().exclusive == 2
    assert gate.channel().stats().floating == 0
    assert gate.network.free == 16 - 2 - 1
    assert gate.pool.size == 8


@pytest.mark.parametrize(
    ("channels", "most", "floating"),
    [(6, MAX_INT, (1, 8)), (6, 1000, (1, 8)), (1500, MAX_INT, (1, 8)), (1500, 1000, (1000, 3008))],
)
def test_A_63_channels_whose_buffers_would_be_too_many_have_only_floating_ones(
    channels: int, most: int, floating: tuple[int, int]
) -> None:
    """The gate of a stream requires any number of buffers, a batch one at most 1000: 2 for each channel, and 8."""
    spec = gate_buffers_spec(channels, 2, 8, max_required=most)
    assert (spec.min_floating, spec.max_floating) == floating
    assert spec.exclusive_per_channel == (0 if floating[0] > 1 else 2)
    assert spec.total == 2 * channels + 8


def test_A_70_a_channel_with_a_priority_event_is_read_before_those_that_came_first() -> None:
    """PrioritizedDequeTest.testPrioritizeOnAdd and testPrioritize: of channels 0 to 3 the last one, and then 0, 1, 2 and its data."""
    gate = Gate(segments=32, channels=4)
    for channel in range(4):
        gate.data(channel)
    gate.event(3, barrier(1, AlignmentType.UNALIGNED))
    assert [gate.poll() for _ in range(6)] == [(3, False), (0, True), (1, True), (2, True), (3, True), None]


def _local_and_remote(manager: ResultPartitionManager) -> tuple[Consumer, ResultPartition]:
    """A gate whose first channel is remote and whose second one reads a result of the same TaskManager."""
    consumer = Consumer(segments=32, set_up=False)
    result = ResultPartition(partition_id(), 1, producer_pool(consumer.network, 1, 8))
    manager.register(result)
    channel = local_channel(consumer.gate, manager)
    assert consumer.gate.set_up()
    consumer.connect()
    channel.request(0.0)
    return consumer, result


def test_A_64_the_queued_buffers_of_a_gate_are_those_of_local_and_remote_channels() -> None:
    """One has arrived, and one is written on the same TaskManager."""
    consumer, result = _local_and_remote(ResultPartitionManager())
    deliver(consumer.client, data_frame(0, 0, 0))
    assert consumer.gate.queued == 1
    result.emit(0, b"x")
    assert consumer.gate.queued == 2


def test_a_priority_event_behind_another_of_a_blocked_channel_comes_without_priority() -> None:
    """Flink notifies the reader of the first one only, and a blocked result does not say what follows it."""
    consumer, result = _local_and_remote(ResultPartitionManager())
    for number, alignment in enumerate(
        (AlignmentType.ALIGNED, AlignmentType.UNALIGNED, AlignmentType.UNALIGNED), 1
    ):
        result.broadcast_event(barrier(number, alignment))
        if number == 1:
            assert consumer.gate.poll() == (1, barrier(1))
    assert consumer.gate.poll() == (1, barrier(2, AlignmentType.UNALIGNED))
    deliver(consumer.client, data_frame(0, 0, 0))
    result.finish()
    polled = [consumer.gate.poll() for _ in range(2)]
    assert [item and item[0] for item in polled] == [0, 1]


def test_A_65_a_size_is_announced_to_the_channels_that_are_open() -> None:
    """The channels are released one by one, and then the gate is closed. No announcement is an error."""
    consumer, result = _local_and_remote(ResultPartitionManager())
    remote, local = consumer.gate.channels
    consumer.gate.announce_buffer_size(10)
    local.release()
    consumer.gate.announce_buffer_size(11)
    remote.release()
    consumer.gate.announce_buffer_size(12)
    consumer.gate.close()
    consumer.gate.announce_buffer_size(13)
    assert result.subpartitions[0].buffer_size == 10


def test_A_66_of_a_local_channel_nothing_behind_the_barrier_belongs_to_the_checkpoint() -> None:
    """The buffer before its barrier does: it is read while the checkpoint waits for this barrier. The one behind does not."""
    network, manager = NetworkBufferPool(32, SEGMENT_BYTES), ResultPartitionManager()
    result = ResultPartition(partition_id(), 1, producer_pool(network, 1, 8))
    manager.register(result)
    gate = InputGate(network, network.create_buffer_pool(1, 8), nothing)
    channel = local_channel(gate, manager)
    assert gate.set_up()
    channel.request(0.0)
    here, elsewhere = 0, 1
    handler, unaligned = AlternatingBarrierHandler(2), barrier(1, AlignmentType.UNALIGNED)
    assert handler.on_barrier(elsewhere, unaligned, 0.0) == [Trigger(unaligned, 0.0), Overtaken(elsewhere)]
    result.emit(0, b"1" * SEGMENT_BYTES)
    result.flush_all()
    polled = gate.poll()
    assert polled is not None
    assert isinstance(polled[1], Buffer)  # the checkpoint still waits for the barrier of this channel
    result.broadcast_event(unaligned)
    assert gate.poll() == (here, unaligned)
    assert handler.on_barrier(here, unaligned, 0.0) == [Overtaken(here), Complete(1, 0.0)]
    assert channel.in_flight(1) == ()
    assert not handler.is_pending


def _unknown(initial: float, maximum: float) -> tuple[InputGate, LocalInputChannel]:
    """A gate with a local channel to a result that does not exist."""
    network = NetworkBufferPool(8, SEGMENT_BYTES)
    gate = InputGate(network, network.create_buffer_pool(1, 8), nothing)
    channel = local_channel(gate, ResultPartitionManager(), backoff=(initial, maximum))
    assert gate.set_up()
    return gate, channel


def test_B_06_a_local_channel_without_a_backoff_fails_if_its_result_is_unknown() -> None:
    """The gate raises the PartitionNotFoundException as it is."""
    gate, channel = _unknown(0.0, 0.0)
    channel.request(0.0)
    assert gate.next_deadline is None
    with pytest.raises(FlinkError) as missing:
        gate.poll()
    assert (missing.value.class_name, missing.value.message) == (
        "PartitionNotFoundException",
        f"Partition {partition_id()} not found.",
    )


def test_B_07_the_first_failed_request_of_a_local_channel_starts_the_timer() -> None:
    """It is due after 1 ms, and then it is the last one."""
    gate, channel = _unknown(0.001, 0.001)
    assert gate.next_deadline is None
    channel.request(0.0)
    assert gate.next_deadline == 0.001
    gate.on_time(0.001)
    assert gate.next_deadline is None
    with pytest.raises(FlinkError, match="not found"):
        gate.poll()


def test_B_09_local_channels_double_their_backoff_and_remote_ones_add_the_timeout() -> None:
    """Options of 137 and 1001 ms, and a timeout of 600 ms: 137, 274, 548 and 1001 ms, and 600, 1200 and 1800 ms."""
    options = Options(
        {
            "taskmanager.network.request-backoff.initial": "137",
            "taskmanager.network.request-backoff.max": "1001",
            "taskmanager.network.partition-request-timeout": "600 ms",
        }
    )
    local, remote = local_backoff(options), remote_backoff(options)
    doubled, added = [], []
    while local.increase():
        doubled.append(local.current)
    while remote.retrigger() is not None:
        added.append(remote.current)
    assert doubled == [0.137, 0.274, 0.548, 1.001]
    assert added == [0.6, 1.2, 1.8]
