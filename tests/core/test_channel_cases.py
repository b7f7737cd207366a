"""Cases of LocalInputChannelTest and RemoteInputChannelTest: availability, the end of a channel, and sizes of buffers."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.alignment import AlternatingBarrierHandler, Overtaken, Prioritize, Trigger
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CheckpointBarrier,
    EventAnnouncement,
    encode_event,
)
from testbed_runtime.core.exchange.frames import BufferResponse, DataType
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.localchannel import LocalInputChannel
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from tests.core.exchange_model import (
    Consumer,
    barrier,
    deliver,
    local_channel,
    nothing,
    partition_id,
    producer_pool,
    receiver_id,
)


class Local:
    """A gate with one local channel, and the result that it reads. The channel has requested it, unless `requested` is False."""

    def __init__(self, *, requested: bool = True) -> None:
        network = NetworkBufferPool(32, 64)
        self.manager = ResultPartitionManager()
        self.result = ResultPartition(partition_id(), 1, producer_pool(network, 1, 16))
        self.manager.register(self.result)
        self.gate = InputGate(network, network.create_buffer_pool(1, 8), nothing)
        self.channel: LocalInputChannel = local_channel(self.gate, self.manager)
        assert self.gate.set_up()
        if requested:
            self.channel.request(0.0)

    def write(self, buffers: int = 1) -> None:
        assert self.result.emit(0, bytes(64 * buffers)) == 64 * buffers


def send(consumer: Consumer, sequence: int, event: CheckpointBarrier, data_type: DataType) -> None:
    payload = memoryview(encode_event(event))
    deliver(consumer.client, BufferResponse(receiver_id(0), 0, sequence, 0, data_type, payload, False))


def test_A_45_nothing_behind_an_aligned_barrier_belongs_to_its_checkpoint_when_that_times_out() -> None:
    """The barrier of a local channel has been read before the timeout: its channel state is complete, and empty."""
    handler, local = AlternatingBarrierHandler(2), Local()
    sent = barrier(1, alignment_timeout_ms=123)
    local.result.broadcast_event(sent)
    polled = local.gate.poll()
    assert polled == (0, sent)
    assert handler.on_barrier(0, sent, 0.0) == []
    local.write()
    effects = handler.on_time(1.0)
    assert effects == [Trigger(sent.as_unaligned(), 1.0), Overtaken(0)]
    assert local.channel.in_flight(1) == ()


def test_A_46_a_released_result_cancels_its_reader_and_a_released_channel_is_silent() -> None:
    """The first is an error, the second is not."""
    local = Local()
    assert local.channel.take() is None
    local.result.release()
    with pytest.raises(FlinkError, match="has been released") as failed:
        local.channel.take()
    assert failed.value.class_name == "CancelTaskException"
    local.channel.release()
    assert local.channel.take() is None


def test_A_47_a_local_channel_is_available_again_when_it_resumes() -> None:
    """The data that was written and flushed meanwhile is there."""
    local = Local()
    local.result.broadcast_event(barrier(1))
    assert local.gate.poll() == (0, barrier(1))
    local.write()
    local.result.flush_all()
    assert local.gate.poll() is None
    local.gate.resume_consumption(0)
    polled = local.gate.poll()
    assert polled is not None
    assert isinstance(polled[1], Buffer)


def test_A_48_a_local_channel_uses_no_buffers_before_it_has_requested() -> None:
    """Three are queued."""
    local = Local(requested=False)
    local.write(3)
    assert local.channel.buffers_in_use == 0
    local.channel.request(0.0)
    assert local.channel.buffers_in_use == 3


@pytest.mark.parametrize("remote", [True, False], ids=["remote", "local"])
def test_A_49_A_50_a_released_channel_refuses_to_resume_and_to_announce_a_size(remote: bool) -> None:
    """A gate asks only those that are open."""
    if remote:
        consumer = Consumer()
        consumer.connect()
        channel, gate = consumer.gate.channels[0], consumer.gate
    else:
        local = Local()
        channel, gate = local.channel, local.gate
    channel.announce_buffer_size(10)
    channel.release()
    for call in (channel.resume_consumption, lambda: channel.announce_buffer_size(12)):
        with pytest.raises(FlinkError) as refused:
            call()
        assert refused.value.class_name == "IllegalStateException"
    gate.announce_buffer_size(13)
    gate.close()
    gate.announce_buffer_size(14)


def test_A_83_a_request_for_an_unknown_result_asks_about_its_producer() -> None:
    """RemoteInputChannelTest.testOnFailedPartitionRequest: it is no error of the channel, and one that is released asks no more."""
    consumer = Consumer()
    consumer.connect()
    channel = consumer.channel()
    channel.on_failed_partition_request()
    assert (consumer.not_found, channel.error) == ([channel], None)
    channel.release()
    channel.on_failed_partition_request()
    assert consumer.not_found == [channel]


def test_A_51_a_priority_event_makes_a_gate_available_with_priority() -> None:
    """The barrier before it did so without."""
    consumer = Consumer()
    consumer.connect()
    seen = [(consumer.gate.is_available, consumer.gate.has_priority)]
    send(consumer, 0, barrier(1), DataType.ALIGNED_CHECKPOINT_BARRIER)
    seen.append((consumer.gate.is_available, consumer.gate.has_priority))
    send(consumer, 1, barrier(2, AlignmentType.UNALIGNED), DataType.PRIORITIZED_EVENT_BUFFER)
    seen.append((consumer.gate.is_available, consumer.gate.has_priority))
    assert seen == [(False, False), (True, False), (True, True)]


def test_A_52_a_barrier_that_times_out_makes_its_gate_available_with_priority() -> None:
    """After its announcement was read."""
    consumer = Consumer()
    consumer.connect()
    sent = barrier(1, alignment_timeout_ms=2**31 - 1)
    send(consumer, 0, sent, DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER)
    assert consumer.gate.poll() == (0, EventAnnouncement(0, sent))
    assert not consumer.gate.has_priority
    handler = AlternatingBarrierHandler(1)
    assert handler.on_announcement(0, 0, sent, 0.0) == []
    (found,) = handler.on_time(2.0**31)
    assert found == Prioritize(0, 0)
    consumer.channel().prioritize(0)
    assert consumer.gate.has_priority


def test_A_53_a_request_is_not_repeated_before_the_first_one() -> None:
    """There is no connection yet."""
    with pytest.raises(FlinkError) as refused:
        Consumer().channel().retrigger(0.0)
    assert refused.value.class_name == "IllegalStateException"


@pytest.mark.parametrize("remote", [True, False], ids=["remote", "local"])
def test_A_54_the_failure_of_a_producer_cancels_its_reader(remote: bool) -> None:
    """It is not wrapped in an IOException."""
    failure = FlinkError("ProducerFailedException", "Expected test exception.")
    channel = Consumer().channel() if remote else Local().channel
    channel.on_error(failure)
    with pytest.raises(FlinkError) as failed:
        channel.take()
    assert failed.value is failure


def test_A_55_each_subpartition_has_the_size_that_its_local_reader_announced() -> None:
    """None before that; 9 bytes afterwards."""
    local = Local()
    subpartition = local.result.subpartitions[0]
    assert subpartition.buffer_size == 2**31 - 1
    local.channel.announce_buffer_size(9)
    assert subpartition.buffer_size == 9
