"""Cases of InputGateFairnessTest: no channel of a gate is read twice while another one has data and waits."""

from __future__ import annotations

import random

import pytest

from testbed_runtime.core.exchange.backoff import Backoff
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import AlignmentType, CheckpointBarrier
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from tests.core.exchange_model import SEGMENT_BYTES, Consumer, data_frame, deliver, nothing, partition_id

CHANNELS, BUFFERS = 37, 27


def read(gate: InputGate, queued: list[int], count: int, *, at_once: bool) -> None:
    """Read buffers. If all data was there `at_once`, no queue is more than one buffer longer than another."""
    for _ in range(count):
        polled = gate.poll()
        assert polled is not None
        channel, buffer = polled
        assert isinstance(buffer, Buffer)
        buffer.recycle()
        queued[channel] -= 1
        if at_once:
            assert max(queued) - min(queued) <= 1


def local(network: NetworkBufferPool) -> tuple[InputGate, ResultPartition]:
    """A gate of local channels to one partition."""
    manager = ResultPartitionManager()
    size = CHANNELS * BUFFERS + CHANNELS
    partition = ResultPartition(
        partition_id(), CHANNELS, network.create_buffer_pool(CHANNELS + 1, size, subpartitions=CHANNELS)
    )
    manager.register(partition)
    gate = InputGate(network, network.create_buffer_pool(1, 8), nothing)
    channels = [
        gate.add_local(partition_id(), number, manager=manager, backoff=Backoff(0.5, 3.0))
        for number in range(CHANNELS)
    ]
    assert gate.set_up()
    for channel in channels:
        channel.request(0.0)
    return gate, partition


@pytest.mark.parametrize("at_once", [True, False])
def test_A_41_local_channels_are_read_in_turn(at_once: bool) -> None:
    """All data is there before the first buffer is read, or comes to random channels while others are read."""
    chance = random.Random(7)
    gate, partition = local(NetworkBufferPool(2000, SEGMENT_BYTES))
    turns = [channel for channel in range(CHANNELS) for _ in range(BUFFERS)]
    chance.shuffle(turns)
    queued = [0] * CHANNELS
    step = len(turns) if at_once else CHANNELS
    for start in range(0, len(turns), step):
        for channel in turns[start : start + step]:
            assert partition.emit(channel, bytes(SEGMENT_BYTES)) == SEGMENT_BYTES
            queued[channel] += 1
        partition.flush_all()
        read(gate, queued, min(step, len(turns) - start), at_once=at_once)
    assert queued == [0] * CHANNELS


@pytest.mark.parametrize("then", ["resumed", "written"])
def test_until_2_2_a_priority_event_behind_a_barrier_gives_a_local_channel_no_priority(then: str) -> None:
    """LocalInputChannel.resumeConsumption, and the data that follows, notify the gate as for data: the channel waits for its turn."""
    gate, partition = local(NetworkBufferPool(2000, SEGMENT_BYTES))
    for subpartition in partition.subpartitions:
        subpartition.priority_passes_block = False
    partition.broadcast_event(CheckpointBarrier(1, 0, AlignmentType.ALIGNED))
    for _ in range(CHANNELS):
        gate.poll()
    partition.broadcast_event(CheckpointBarrier(2, 0, AlignmentType.UNALIGNED))
    order = [2, 0, 1]
    for channel in order:
        gate.resume_consumption(channel)
        if then == "written":
            partition.emit(channel, bytes(SEGMENT_BYTES))
            partition.flush(channel)
    assert not gate.has_priority
    assert [polled[0] for _ in order if (polled := gate.poll())] == order


@pytest.mark.parametrize("at_once", [True, False])
def test_A_42_remote_channels_are_read_in_turn(at_once: bool) -> None:
    """All data is there before the first buffer is read, or comes to shuffled channels while others are read."""
    chance = random.Random(7)
    consumer = Consumer(segments=CHANNELS * BUFFERS + 8, channels=CHANNELS, exclusive=BUFFERS)
    consumer.connect()
    queued, sequence = [0] * CHANNELS, 0
    for round_ in range(BUFFERS):
        for channel in chance.sample(range(CHANNELS), CHANNELS):
            deliver(consumer.client, data_frame(channel, round_, 0))
            queued[channel] += 1
            sequence += 1
        if not at_once:
            read(consumer.gate, queued, CHANNELS, at_once=True)
    if at_once:
        read(consumer.gate, queued, sequence, at_once=True)
    assert queued == [0] * CHANNELS
