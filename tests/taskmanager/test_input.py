"""A task with several gates reads first the one whose data came first (Flink's UnionInputGate)."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    EndOfData,
    EndOfPartition,
    Event,
    StopMode,
    data_type_of,
    encode_event,
)
from testbed_runtime.core.exchange.frames import BufferResponse, ResumeConsumption
from testbed_runtime.core.exchange.memory import recycle_all
from testbed_runtime.taskmanager.input import TaskInput
from testbed_runtime.workload.snapshots import ChannelState
from tests.core.exchange_model import Consumer, barrier, data_frame, deliver, partition_id, receiver_id


class Gates:
    """The input of a task, and what arrives for each gate."""

    def __init__(self, *channels: int) -> None:
        self._consumers = [Consumer(channels=count, segments=64) for count in channels]
        for consumer in self._consumers:
            consumer.connect()
        self.input = TaskInput([consumer.gate for consumer in self._consumers])
        self._sequences: dict[tuple[int, int], int] = {}

    def _next(self, gate: int, channel: int) -> int:
        sequence = self._sequences[gate, channel] = self._sequences.get((gate, channel), -1) + 1
        return sequence

    def data(self, gate: int, channel: int) -> None:
        deliver(self._consumers[gate].client, data_frame(channel, self._next(gate, channel), 0))

    def event(self, gate: int, channel: int, event: Event) -> None:
        sequence = self._next(gate, channel)
        frame = BufferResponse(receiver_id(channel), 0, sequence, 0, data_type_of(event), encode_event(event))
        deliver(self._consumers[gate].client, frame)

    def resumed(self, channel: int) -> list[tuple[int, object]]:
        """Resume this channel. Return the gate and the receiver of each ResumeConsumption that goes out."""
        self.input.resume(channel)
        return [
            (number, frame.receiver)
            for number, consumer in enumerate(self._consumers)
            for frame in consumer.sent()
            if isinstance(frame, ResumeConsumption)
        ]

    def poll(self) -> int | Event | None:
        """The number of the channel whose data is next, or the next event."""
        found = self.input.poll(1)
        if found is None:
            return None
        number, element = found
        if not isinstance(element, list):
            return element
        element[0].recycle()
        return number


def test_A_30_gates_with_data_are_read_in_turn_and_their_channels_numbered_consecutively() -> None:
    """UnionInputGateTest.testBasicGetNextLogic: 3 and 5 channels with a buffer, END_OF_DATA and END_OF_PARTITION each."""
    gates = Gates(3, 5)
    everything = [(gate, channel) for gate, count in enumerate((3, 5)) for channel in range(count)]
    for gate, channel in everything:
        gates.data(gate, channel)
    for gate, channel in everything:
        gates.event(gate, channel, EndOfData(StopMode.DRAIN))
    for gate, channel in everything:
        gates.event(gate, channel, EndOfPartition())
    order = []
    while not gates.input.finished:
        found = gates.input.poll(1)
        assert found is not None
        order.append(found[0])
        ended = order.count(7) > 1
        assert gates.input.received_end_of_data is ended
        assert not ended or gates.input.draining
    assert order == [0, 3, 1, 4, 2, 5, 0, 6, 1, 7, 2, 3, 0, 4, 1, 5, 2, 6, 7, 3, 4, 5, 6, 7]
    assert gates.poll() is None


def test_A_31_the_input_drains_only_if_every_channel_does() -> None:
    """UnionInputGateTest.testDrainFlagComputation."""
    gates = Gates(2, 2)
    for gate, channel, mode in ((0, 0, "NO_DRAIN"), (0, 1, "DRAIN"), (1, 0, "DRAIN"), (1, 1, "DRAIN")):
        gates.event(gate, channel, EndOfData(StopMode[mode]))
    for _ in range(2):
        gates.poll()
    assert not gates.input.received_end_of_data
    for _ in range(2):
        gates.poll()
    assert gates.input.received_end_of_data
    assert not gates.input.draining


def test_A_67_an_input_is_available_until_its_last_buffer_is_read() -> None:
    """UnionInputGateTest.testAvailability and testIsAvailable: two buffers in the first of two gates."""
    gates = Gates(1, 1)
    assert not gates.input.is_available
    seen = []
    for _ in range(2):
        gates.data(0, 0)
        seen.append(gates.input.is_available)
    for _ in range(2):
        assert gates.poll() == 0
        seen.append(gates.input.is_available)
    assert seen == [True, True, True, False]


def test_A_78_an_input_is_available_once_all_its_gates_have_finished() -> None:
    """UnionInputGateTest.testIsAvailableAfterFinished. A gate that has ended alone is not read again."""
    gates = Gates(1, 1)
    seen = []
    for gate in (0, 1):
        gates.event(gate, 0, EndOfPartition())
        assert gates.poll() == EndOfPartition()
        assert gates.poll() is None
        seen.append((gates.input.is_available, gates.input.finished))
    assert seen == [(False, False), (True, True)]


def test_A_68_an_input_that_was_notified_without_data_is_not_available_any_more_once_it_was_polled() -> None:
    """UnionInputGateTest.testEmptyPull."""
    gates = Gates(1, 1)
    gates.input.gates[0].on_channel_ready(0, priority=False)
    assert gates.input.is_available
    assert gates.poll() is None
    assert not gates.input.is_available


def test_A_69_the_channels_of_an_input_are_those_of_its_gates_in_order() -> None:
    """UnionInputGateTest.testGetChannelWithShiftedGateIndexes."""
    gates = Gates(1, 1)
    assert gates.input.channels == [gate.channels[0] for gate in gates.input.gates]


def test_A_30_the_gate_whose_data_came_first_is_read_first() -> None:
    """Also if it has a higher number, and if another one has not been read since."""
    gates = Gates(1, 1, 1)
    for gate in (2, 0):
        gates.data(gate, 0)
    assert gates.poll() == 2
    gates.data(1, 0)
    gates.data(2, 0)
    assert [gates.poll() for _ in range(4)] == [0, 1, 2, None]
    assert not gates.input.is_available


def test_A_30_a_gate_gives_up_its_turn_for_a_priority_event() -> None:
    """PrioritizedDeque: gates with a priority event come first, in the order of these events."""
    gates = Gates(1, 1, 1)
    for gate in (0, 1, 2):
        gates.data(gate, 0)
    unaligned = [barrier(number, AlignmentType.UNALIGNED) for number in (1, 2)]
    gates.event(2, 0, unaligned[0])
    gates.event(1, 0, unaligned[1])
    assert gates.input.has_priority
    assert [gates.poll() for _ in range(5)] == [*unaligned, 0, 2, 1]
    assert gates.poll() is None


def test_a_barrier_resumes_the_channel_of_its_own_gate() -> None:
    """Channels are numbered across the gates."""
    gates = Gates(1, 2)
    places = ((0, 0), (1, 0), (1, 1))
    for gate, channel in places:
        gates.event(gate, channel, barrier(1))
    assert [gates.poll() for _ in places] == [barrier(1)] * 3
    for number, (gate, channel) in enumerate(places):
        assert gates.resumed(number) == [(gate, receiver_id(channel))]


def test_restored_channel_state_is_read_before_anything_that_arrives_for_its_gate() -> None:
    """In the order in which it was stored, also before a priority event. Meanwhile it is the task's input, and it is recovering."""
    gates = Gates(1, 2)
    gates.data(1, 0)
    gates.event(1, 0, barrier(1, AlignmentType.UNALIGNED))
    gates.input.recover([ChannelState(1, 1, (b"a", b"b")), ChannelState(1, 0, (b"c",))])
    read = []
    while gates.input.is_recovering:
        assert gates.input.recovered_gates == [0]
        assert (gates.input.is_available, gates.input.has_priority) == (True, False)
        number, element = gates.input.poll(9) or (None, [])
        assert isinstance(element, list)
        read.append((number, [bytes(buffer.view()) for buffer in element]))
    assert read == [(2, [b"a"]), (2, [b"b"]), (1, [b"c"])]
    assert gates.input.recovered_gates == [0, 1]
    assert gates.input.has_priority
    assert [gates.poll(), gates.poll(), gates.poll()] == [barrier(1, AlignmentType.UNALIGNED), 1, None]


def test_gates_with_restored_channel_state_take_turns() -> None:
    """A gate without any is read meanwhile."""
    gates = Gates(1, 1, 1)
    gates.input.recover([ChannelState(2, 0, (b"a", b"b")), ChannelState(0, 0, (b"c", b"d"))])
    gates.data(1, 0)
    read = []
    while gates.input.is_recovering:
        number, element = gates.input.poll(9) or (None, [])
        read.append(number)
        recycle_all(element if isinstance(element, list) else [])
    assert read == [0, 2, 1, 0, 2]


@pytest.mark.parametrize(
    ("class_name", "names_its_result"),
    [
        ("PartitionNotFoundException", True),
        ("PartitionConnectionException", True),
        ("RemoteTransportException", False),
    ],
)
def test_J_36_only_an_error_about_its_result_restarts_the_producer(
    class_name: str, names_its_result: bool
) -> None:
    """A connection that breaks before the producer has answered does not, as in Flink: a blocking result can be read again."""
    gates = Gates(2)
    channel = gates.input.channels[1]
    channel.on_error(FlinkError(class_name, "text"))
    assert channel.error is not None
    expected = str(partition_id()) if names_its_result else ""
    assert gates.input.failed_partition(channel.error) == expected
