"""Cases of RecordWriterDelegateTest, InputBuffersMetricsTest and MultipleInputStreamTaskTest: the outputs and inputs of a task together."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from testbed_runtime.core.exchange.buffers import Buffer, NetworkBufferPool
from testbed_runtime.core.exchange.events import CancelCheckpointMarker, decode_event
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.output import TaskOutput
from testbed_runtime.taskmanager.sampler import pools_of
from testbed_runtime.taskmanager.waiting import Wakeup
from tests.core.exchange_model import Consumer, nothing, partition_id
from tests.taskmanager.test_input import Gates

SEGMENT_BYTES, RECORD_BYTES = 32, 8


def results(count: int, subpartitions: int) -> list[ResultPartition]:
    """So many results, each with a pool of one buffer for each subpartition."""
    network = NetworkBufferPool(count * subpartitions, SEGMENT_BYTES)
    return [
        ResultPartition(
            partition_id(number),
            subpartitions,
            network.create_buffer_pool(subpartitions, subpartitions, subpartitions=subpartitions),
        )
        for number in range(count)
    ]


def output(partitions: list[ResultPartition]) -> TaskOutput:
    unused: Any = SimpleNamespace()
    outputs: Any = [(partition, unused) for partition in partitions]
    return TaskOutput(
        outputs, unused, buffer_timeout_s=0.1, on_first=lambda partition: None, random=Random(1)
    )


@pytest.mark.parametrize("count", [1, 2])
def test_F_167_an_output_is_available_again_when_its_buffer_was_read(count: int):
    """testSingleRecordWriterAvailability, testMultipleRecordWritersAvailability: records fill the only buffer of the first result."""
    partitions = results(count, 1)
    made, wakeup = output(partitions), Wakeup()
    assert made.is_available
    for _ in range(SEGMENT_BYTES // RECORD_BYTES):
        partitions[0].emit(0, bytes(RECORD_BYTES), record_bytes=RECORD_BYTES)
    assert not made.is_available
    made.when_available(wakeup)
    polled = partitions[0].create_view(0, nothing).poll()
    assert polled is not None
    polled.buffer.recycle()
    assert made.is_available
    run_virtual(asyncio.wait_for(wakeup.wait(), 1.0))


@pytest.mark.parametrize("count", [1, 2])
def test_F_168_an_event_goes_to_every_subpartition_of_every_result(count: int):
    """testSingleRecordWriterBroadcastEvent, testMultipleRecordWritersBroadcastEvent."""
    partitions, marker = results(count, 2), CancelCheckpointMarker(1)
    output(partitions).broadcast(marker)
    for partition in partitions:
        for index, subpartition in enumerate(partition.subpartitions):
            assert len(subpartition) == 1
            polled = partition.create_view(index, nothing).poll()
            assert polled is not None
            assert decode_event(bytes(polled.buffer.view())) == marker


def usage(consumers: list[Consumer]) -> list[tuple[int, int, int]]:
    """The floating and exclusive buffers in use of the gates of a task, and how many buffers each gate has."""
    task: Any = SimpleNamespace(
        name="work-0",
        input=SimpleNamespace(gates=[consumer.gate for consumer in consumers]),
        descriptor=SimpleNamespace(
            gates=[SimpleNamespace(source_vertex="source")] * len(consumers), partitions=[]
        ),
        partitions=[],
    )
    found = pools_of([task], consumers[0].network, usage=True)["pools"]
    return [
        (pool["used"], pool["used_exclusive"], pool["size"] + pool["channels"] * pool["exclusive"])
        for pool in found
    ]


def drain(consumer: Consumer, number: int, count: int) -> list[Buffer]:
    taken = [consumer.channel(number).request_buffer() for _ in range(count)]
    return [buffer for buffer in taken if buffer is not None]


def test_D_26_the_buffers_in_use_of_a_gate_are_those_with_data():
    """testCalculateTotalBuffersSize, testExclusiveBuffersUsage, testFloatingBuffersUsage: gates of two channels and of one, with two
    exclusive buffers each and eight floating ones. What a channel holds for its backlog of 3 is not in use: 2 + 3 buffers."""
    two, one = (Consumer(segments=1024, floating=(1, 8), channels=count) for count in (2, 1))
    for consumer in (two, one):
        consumer.connect()
    assert usage([two, one]) == [(0, 0, 8 + 2 * 2), (0, 0, 8 + 2)]
    held = []
    for number in (0, 1):
        held += drain(two, number, 2)
        assert usage([two, one])[0][:2] == (0, 2 * (number + 1))
    for buffer in held[2:]:
        buffer.recycle()
    two.channel(0).on_sender_backlog(3)
    buffers = two.channel(0).buffers
    assert buffers is not None
    assert (buffers.available_floating, usage([two, one])[0][:2]) == (5, (0, 2))
    assert len(drain(two, 0, 5)) == 5
    assert (buffers.available_floating, usage([two, one])) == (0, [(5, 2, 12), (0, 0, 10)])


def test_A_76_the_inputs_of_a_task_are_read_in_turn():
    """testInputFairness: four buffers for the first of three inputs and two for the last one."""
    gates = Gates(1, 1, 1)
    for gate in (0, 0, 0, 0, 2, 2):
        gates.data(gate, 0)
    assert [gates.poll() for _ in range(7)] == [0, 2, 0, 2, 0, 0, None]
