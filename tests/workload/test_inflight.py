"""Data in flight that is restored by the subtasks of another parallelism."""

from __future__ import annotations

import numpy as np
import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.rescaling import GateRescaling
from testbed_runtime.workload.inflight import VirtualChannels
from testbed_runtime.workload.keyedstate import SubtaskContext
from testbed_runtime.workload.keys import key_groups, subtasks_of
from testbed_runtime.workload.records import (
    RecordReader,
    Records,
    framed,
    latency_marker,
    new_records,
    record_dtype,
    seal,
)
from testbed_runtime.workload.snapshots import ChannelState, SubtaskSnapshot

LIMIT, SIZE = 128, 60


def records(first: int, count: int) -> Records:
    """Records whose keys are their numbers."""
    made = new_records(count, record_dtype(SIZE), 0, 0)
    for name in ("words", "tail", "due_ns"):
        made[name] = 0
    made["sequence"] = made["key"] = np.arange(first, first + count)
    return seal(made)


def data(first: int, count: int, parallelism: int, subtask: int) -> bytes:
    """The records that a hash partitioner sends to a subtask, as bytes."""
    made = records(first, count)
    mine = subtasks_of(key_groups(made["key"], LIMIT), parallelism, LIMIT) == subtask
    return bytes(framed(made[mine]))


def snapshot(
    vertex: str, subtask: int, parallelism: int, **states: tuple[ChannelState, ...]
) -> SubtaskSnapshot:
    return SubtaskSnapshot(3, vertex, subtask, parallelism, LIMIT, **states)  # type: ignore[arg-type]


def restored(
    channels: VirtualChannels, before: int, after: int, partitioning: str = "hash"
) -> list[list[int]]:
    """Return the numbers that each new subtask restores."""
    found = []
    for subtask in range(after):
        rescaling = GateRescaling.of(partitioning, subtask, consumers=(before, after), producers=(1, 1))
        context = SubtaskContext(1, "count", subtask, after, LIMIT, 0, ("source", "count"))
        numbers = []
        for state in channels.restore(rescaling, context):
            assert (state.group, state.channel) == (0, 0)
            read = RecordReader().feed(state.data)
            assert read is not None
            numbers += read["sequence"].tolist()
        found.append(numbers)
    return found


@pytest.mark.parametrize("cut", [1, 3, 4, 30, 64, 200])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 4), (4, 1), (2, 2)])
def test_records_that_are_cut_between_input_and_output_go_to_the_owners_of_their_keys(
    before: int, after: int, cut: int
):
    """I-97: DemultiplexingRecordDeserializerTest.testAmbiguousChannels. The consumer had received `cut` bytes in two buffers; the rest
    had not left the producer."""
    streams = [data(0, 200, before, subtask) for subtask in range(before)]
    half = cut // 2
    consumers = [
        snapshot("count", n, before, input_state=(ChannelState(0, 0, (s[:half], s[half:cut])),))
        for n, s in enumerate(streams)
    ]
    outputs = tuple(ChannelState(1, n, (s[cut:],)) for n, s in enumerate(streams))
    other = ChannelState(0, 0, (b"of another partition",))
    producers = [snapshot("source", 0, 1, output_state=(other, *outputs))]
    channels = VirtualChannels(0, consumers, 1, producers)
    assert channels.size == 200 * (SIZE + 4)
    found = restored(channels, before, after)
    wanted = subtasks_of(key_groups(np.arange(200), LIMIT), after, LIMIT)
    assert [sorted(numbers) for numbers in found] == [
        np.flatnonzero(wanted == n).tolist() for n in range(after)
    ]


def test_rebalanced_records_are_restored_once_whatever_their_keys_are():
    """An old channel belongs to one new subtask, so nothing is filtered."""
    consumers = [
        snapshot("sink", n, 3, input_state=(ChannelState(0, 0, (bytes(framed(records(10 * n, 10))),)),))
        for n in range(3)
    ]
    channels = VirtualChannels(0, consumers, 0, [])
    assert restored(channels, 3, 2, "rebalance") == [[*range(10), *range(20, 30)], [*range(10, 20)]]
    assert restored(channels, 3, 4, "rebalance") == [[*range(10)], [*range(10, 20)], [*range(20, 30)], []]


def test_latency_markers_in_flight_are_dropped():
    """As in Flink's virtual channels: their time would include that from one job to the next."""
    marker = bytes(framed(latency_marker(SIZE, 0, 0, 5)))
    parts = (marker, bytes(framed(records(0, 2))), marker, bytes(framed(records(2, 1))))
    channels = VirtualChannels(0, [snapshot("count", 0, 1, input_state=(ChannelState(0, 0, parts),))], 0, [])
    assert sorted(number for numbers in restored(channels, 1, 2) for number in numbers) == [0, 1, 2]


def test_each_virtual_channel_is_a_path_of_its_own():
    """I-98: DemultiplexingRecordDeserializerTest.testUpscale. Two old subtasks had different positions in one source: their records are
    not in order together."""
    consumers = [
        snapshot("count", n, 2, input_state=(ChannelState(0, 0, (data(50 - 50 * n, 50, 2, n),)),))
        for n in range(2)
    ]
    rescaling = GateRescaling.of("hash", 0, consumers=(2, 1), producers=(1, 1))
    context = SubtaskContext(1, "count", 0, 1, LIMIT, 0, ("source", "count"))
    (state,) = VirtualChannels(0, consumers, 0, []).restore(rescaling, context)
    paths = []
    for part in state.data:
        read = RecordReader().feed([part])
        assert read is not None
        paths.append(set(read["path"].tolist()))
    assert [len(path) for path in paths] == [1, 1]
    assert len(set.union(*paths, {0})) == 3


def test_a_record_whose_rest_is_missing_fails_the_restore():
    """The state of one end is not complete without that of the other."""
    part = bytes(framed(records(0, 2)))[:100]
    channels = VirtualChannels(
        0, [snapshot("count", 0, 1, input_state=(ChannelState(0, 0, (part,)),))], 0, []
    )
    with pytest.raises(FlinkError, match="from subtask 0 to subtask 0 ends with 36 bytes"):
        restored(channels, 1, 2)
