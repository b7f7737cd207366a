"""A task's output: where records go, when it waits, what is flushed, and what barriers overtake."""

from __future__ import annotations

import asyncio
import math
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import AlignmentType, CheckpointBarrier
from testbed_runtime.core.exchange.partition import EVERY, ResultPartition
from testbed_runtime.core.exchange.subpartition import SendReason
from testbed_runtime.core.job.jobgraph import MIN_RECORD_BYTES
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.meter import BACKPRESSURED, BUSY
from testbed_runtime.taskmanager.output import OutputFlusher, TaskOutput
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.workload.records import Block, latency_marker
from testbed_runtime.workload.snapshots import ChannelState
from tests.core.exchange_model import partition_id

T0_S = 1000.0
"""The time at which a virtual loop begins."""


class Partition:
    """A partition with free buffers of 100 bytes, and what it got. Its pool gets a buffer when `give` is called."""

    def __init__(self, subpartitions: int = 2, buffers: int = 10) -> None:
        self.buffers = buffers
        self.got: list[tuple[Any, ...]] = []
        self.listeners: list[Any] = []
        self.subpartitions = [
            SimpleNamespace(sent=dict.fromkeys(SendReason, 0), buffer_size=100) for _ in range(subpartitions)
        ]
        self.pool = SimpleNamespace(
            segment_bytes=100, when_available=self.listeners.append, is_available=True, can_overdraw=False
        )
        self.held: dict[int, tuple[bytes, ...]] = {}
        """Data that a held barrier overtakes at its timeout, by subpartition."""
        self.holding = False
        self.forgotten: list[int] = []
        self.all_data_processed = False
        self.is_blocking = False
        self.on_barriers_sent: Any = None

    def emit(
        self,
        subpartition: int,
        data: Any,
        *,
        offset: int = 0,
        record_bytes: int,
        overdraft: bool = False,
        extend: bool,
    ) -> int:
        assert not overdraft
        done = min(len(data) - offset, 100) if self.buffers else 0
        self.buffers -= done > 0
        self.got.append((subpartition, offset, done, record_bytes, extend))
        return done

    def give(self) -> None:
        self.buffers += 1
        listeners, self.listeners[:] = list(self.listeners), []
        for listener in listeners:
            listener()

    def flush_all(self) -> None:
        self.got.append(("flush",))

    def broadcast_event(self, event: Any) -> None:
        self.got.append((event,))

    def broadcast_barrier(self, barrier: CheckpointBarrier) -> dict[int, tuple[bytes, ...]]:
        self.got.append((barrier.alignment,))
        return {1: (b"overtaken",)} if barrier.alignment is AlignmentType.UNALIGNED else {}

    def holds_barrier(self, checkpoint: int) -> bool:
        return self.holding

    def time_out_barriers(self, checkpoint: int) -> dict[int, tuple[bytes, ...]]:
        return self.held if self.holding else {}

    def forget_barriers(self, checkpoint: int) -> None:
        self.forgotten.append(checkpoint)

    def add_recovered(self, channel: int, data: bytes, offset: int) -> int:
        done = min(len(data) - offset, 100) if self.buffers else 0
        self.buffers -= done > 0
        self.got.append((channel, offset, done))
        return done

    def notify_end_of_data(self, drain: bool) -> None:
        self.got.append(("end", drain))

    def finish(self) -> None:
        self.got.append(("finish",))

    def parts(self) -> list[tuple[Any, ...]]:
        return [one for one in self.got if len(one) == 5]


def to(
    subpartition: int, data: bytes, count: int = 1, *, spreads: bool = True, unaligned: bool = True
) -> Any:
    """A partitioner with one part for everything."""
    parts = [(subpartition, data, count)]
    return SimpleNamespace(
        parts=lambda records: parts if len(records) else [],
        parts_of=lambda block, start, end: parts,
        spreads=spreads,
        supports_unaligned=unaligned,
    )


class Output:
    """A task's output to these partitions, and how its meter was set."""

    def __init__(
        self,
        *outputs: tuple[Partition | ResultPartition, Any],
        timeout_ms: float = 100.0,
        random: Random | None = None,
    ) -> None:
        self.modes: list[int] = []
        self.first: list[Any] = []
        self.meter: Any = SimpleNamespace(records_out=0, bytes_out=0, enter=self.modes.append)
        given: Any = outputs
        self.made = TaskOutput(
            given,
            self.meter,
            buffer_timeout_s=timeout_ms / 1000,
            on_first=self.first.append,
            random=random or Random(0),
        )


def records(count: int = 1) -> Any:
    return latency_marker(MIN_RECORD_BYTES, 0, 0, 0).repeat(count)


# ---- records


def test_a_record_for_every_subpartition_is_written_once_and_counts_for_each():
    """Its bytes are in one buffer, and leave three times."""
    shared = Partition(3)
    output = Output((shared, to(EVERY, b"x" * 40, spreads=False)))
    run_virtual(output.made.emit(records()))
    assert [one[:3] for one in shared.parts()] == [(EVERY, 0, 40)]
    assert output.meter.bytes_out == 120


def test_records_go_to_every_output_or_to_the_ones_that_are_named():
    """They are counted once, their bytes for each output; a result is announced with its first record only."""
    first, second = Partition(), Partition()

    async def main() -> Output:
        output = Output((first, to(0, b"a" * 10)), (second, to(1, b"b" * 20, 2)))
        await output.made.emit(records(0))
        assert (output.first, output.meter.records_out) == ([], 0)
        await output.made.emit(records(2))
        await output.made.emit(records(3), only=[1])
        return output

    output = run_virtual(main())
    assert first.parts() == [(0, 0, 10, 10, True)]
    assert second.parts() == [(1, 0, 20, 10, False)] * 2
    assert (output.meter.records_out, output.meter.bytes_out) == (5, 50)
    assert output.first == [first, second]


def test_records_of_a_block_are_counted_and_announced_too():
    """A source makes them ahead."""
    partition = Partition()

    async def main() -> Output:
        output = Output((partition, to(0, b"a" * 30, 3)))
        await output.made.emit_of(Block(records(9)), 4, 7)
        return output

    output = run_virtual(main())
    assert (output.meter.records_out, output.meter.bytes_out, output.first) == (3, 30, [partition])
    assert partition.parts() == [(0, 0, 30, 10, False)]


def test_a_task_without_a_buffer_is_backpressured_until_it_gets_one():
    """It goes on where it stopped, and each wait counts. Tasks that were ready before it run first."""
    partition = Partition(buffers=1)

    async def main() -> tuple[Output, float]:
        output, loop = Output((partition, to(0, b"a" * 250))), asyncio.get_running_loop()
        for at in (1.0, 2.0):
            loop.call_later(at, partition.give)
        await output.made.emit(records())
        return output, loop.time() - T0_S

    output, took_s = run_virtual(main())
    assert [part[1:3] for part in partition.parts()] == [(0, 100), (100, 100), (200, 50)]
    assert (took_s, output.made.waits, output.meter.bytes_out) == (2.0, 2, 250)
    assert output.modes == [BACKPRESSURED, BUSY] * 2


def test_what_is_written_is_flushed_after_the_buffer_timeout():
    """Also what was written before a wait for a buffer."""
    partition, full = Partition(), Partition(buffers=0)

    async def main() -> None:
        for one in (partition, full):
            output = Output((one, to(0, b"a")))
            emitted = asyncio.ensure_future(output.made.emit(records()))
            await asyncio.sleep(0.099)
            assert ("flush",) not in one.got
            await asyncio.sleep(0.002)
            assert ("flush",) in one.got
            assert (output.made.flushes, output.made.flushes_each) == (1, False)
            emitted.cancel()
            output.made.close()
            await asyncio.gather(emitted, return_exceptions=True)

    run_virtual(main())


@pytest.mark.parametrize("end", ["finish", "close"])
def test_nothing_is_flushed_on_the_timeout_after_the_end(end: str):
    """The end itself sends what is left; a result that is thrown away has no reader."""
    partition = Partition()

    async def main() -> None:
        output = Output((partition, to(0, b"a")))
        await output.made.emit(records())
        getattr(output.made, end)()
        await asyncio.sleep(1.0)

    run_virtual(main())
    assert ("flush",) not in partition.got


def test_a_buffer_timeout_of_zero_flushes_with_each_call():
    """Flink flushes each record then."""
    partition = Partition()

    async def main() -> None:
        output = Output((partition, to(0, b"a")), timeout_ms=0.0)
        await output.made.emit(records())
        assert output.made.flushes_each
        assert partition.got[-1] == ("flush",)
        assert output.made.flush_after(7.0) == 7.0

    run_virtual(main())


def test_a_marker_goes_to_a_random_channel_of_a_random_output():
    """As in Flink; it is no record, and a task without outputs drops it."""
    partitions = [Partition(3, buffers=1000), Partition(3, buffers=1000)]

    async def main() -> None:
        output = Output(*((p, to(0, b"")) for p in partitions), random=Random(1))
        for _ in range(60):
            await output.made.emit_marker(records())
        assert output.meter.records_out == 0
        assert output.first == partitions
        await Output().made.emit_marker(records())

    run_virtual(main())
    for partition in partitions:
        assert {part[0] for part in partition.parts()} == {0, 1, 2}
        assert {part[4] for part in partition.parts()} == {True}


# ---- flushes


def test_a_flusher_that_was_not_used_flushes_at_once_and_without_an_interval_never():
    """`flush_after` says when data is flushed."""

    def ignore() -> None:
        return

    assert OutputFlusher(0.1, ignore).tick_after(5.0) == 5.0
    assert OutputFlusher(-0.001, ignore).tick_after(5.0) == math.inf
    assert [OutputFlusher(s, ignore).is_immediate for s in (0.0, 0.1, -0.001)] == [True, False, False]


def test_the_buffers_that_left_on_the_timeout_are_those_of_all_outputs():
    """Full ones do not count."""
    partitions = [Partition(), Partition()]
    for number, partition in enumerate(partitions):
        for subpartition in partition.subpartitions:
            subpartition.sent[SendReason.TIMEOUT] = 3 + number
            subpartition.sent[next(r for r in SendReason if r is not SendReason.TIMEOUT)] = 100
    assert Output(*((p, to(0, b"")) for p in partitions)).made.flushed == 14


# ---- room


def test_an_output_is_available_when_every_pool_has_a_buffer():
    """A pool is watched once, until it reports a buffer."""
    partitions = [Partition(), Partition()]
    output = Output(*((p, to(0, b"")) for p in partitions))
    assert output.made.is_available
    wakeup = Wakeup()
    output.made.when_available(wakeup)
    assert [p.listeners for p in partitions] == [[], []]
    partitions[1].pool.is_available = False
    assert not output.made.is_available
    for _ in range(2):
        output.made.when_available(wakeup)
    assert [len(p.listeners) for p in partitions] == [0, 1]
    partitions[1].give()
    run_virtual(asyncio.wait_for(wakeup.wait(), 1.0))
    output.made.when_available(wakeup)
    assert len(partitions[1].listeners) == 1, "watched again"


def test_the_size_of_a_buffer_is_the_smallest_that_a_reader_asks_for():
    """Or a segment; debloating makes it smaller."""
    partitions = [Partition(), Partition()]
    output = Output(*((p, to(0, b"")) for p in partitions)).made
    partitions[0].subpartitions[1].buffer_size = 200
    partitions[0].subpartitions[0].buffer_size = 150
    partitions[1].pool.segment_bytes = 120
    for subpartition in partitions[1].subpartitions:
        subpartition.buffer_size = 150
    partitions[0].pool.segment_bytes = 180
    assert output.buffer_bytes == 120
    partitions[1].subpartitions[1].buffer_size = 64
    assert output.buffer_bytes == 64
    assert Output().made.buffer_bytes == 1


def test_the_room_of_an_output_is_that_of_its_smallest_result():
    """A buffer for each subpartition if records are spread over them, one if each gets all."""
    spread, copied = (Partition(4), to(0, b"")), (Partition(8), to(0, b"", spreads=False))
    assert Output(spread).made.room_bytes == 400
    assert Output(spread, copied).made.room_bytes == 100
    assert Output().made.room_bytes == 1 << 20


# ---- events and barriers


def test_an_event_goes_to_every_output_or_to_the_ones_that_are_named():
    """It never waits."""
    first, second = Partition(), Partition()
    output = Output((first, to(0, b"")), (second, to(0, b""))).made
    event: Any = "event"
    output.broadcast(event)
    output.broadcast(event, only=[1])
    assert (first.got, second.got) == ([("event",)], [("event",)] * 2)


def test_a_barrier_overtakes_where_the_partitioner_allows_it():
    """Its overtaken data is that of its output."""
    first, second = Partition(), Partition()
    output = Output((first, to(0, b"", unaligned=False)), (second, to(0, b""))).made
    found = output.send_barrier(CheckpointBarrier(3, 0, AlignmentType.UNALIGNED))
    assert found == (ChannelState(1, 1, (b"overtaken",)),)
    assert first.got != [(AlignmentType.UNALIGNED,)]
    assert second.got == [(AlignmentType.UNALIGNED,)]


@pytest.mark.parametrize(
    ("sent_s", "ended_s", "states"), [(0.5, 0.5, []), (None, 1.0, [1])], ids=["sent", "timed out"]
)
def test_a_barrier_that_is_held_overtakes_at_its_timeout(
    sent_s: float | None, ended_s: float, states: list[int]
):
    """Unless it has left before. Outputs that do not hold it are not waited for."""
    free, held = Partition(), Partition()
    held.holding, held.held = True, {0: (b"late",)}

    async def main() -> tuple[Any, float]:
        output, loop = Output((free, to(0, b"")), (held, to(0, b""))).made, asyncio.get_running_loop()
        barrier = CheckpointBarrier(3, int(T0_S * 1000), AlignmentType.ALIGNED, 1000)

        def wake() -> None:
            held.on_barriers_sent()

        def send() -> None:
            held.holding = False
            wake()

        if sent_s is not None:
            loop.call_later(sent_s, send)
            loop.call_later(sent_s / 2, wake)
        found = await output.barriers_sent(barrier)
        assert free.on_barriers_sent is None
        return [state.group for state in found], loop.time() - T0_S

    assert run_virtual(main()) == (states, ended_s)


def test_a_barrier_that_a_later_one_supersedes_fails_its_checkpoint():
    """Both may time out. The first one waits behind data, and its channel state is not known when the second one comes."""
    network = NetworkBufferPool(8, 64)
    result = ResultPartition(partition_id(), 1, network.create_buffer_pool(2, 8, subpartitions=1))

    async def main() -> tuple[str, float, Any]:
        output, loop = Output((result, to(0, b""))).made, asyncio.get_running_loop()
        first, second = (CheckpointBarrier(n, int(T0_S * 1000), AlignmentType.ALIGNED, 1000) for n in (3, 4))
        result.emit(0, b"data")
        output.send_barrier(first)
        loop.call_later(0.5, output.send_barrier, second)
        with pytest.raises(FlinkError) as failed:
            await output.barriers_sent(first)
        waited = loop.time() - T0_S
        return failed.value.class_name, waited, await output.barriers_sent(second)

    class_name, waited, states = run_virtual(main())
    assert (class_name, waited) == ("IllegalStateException", 0.5)
    assert states == (ChannelState(0, 0, (b"data",)),)


def test_recovered_data_is_queued_at_its_output_and_announces_it():
    """Empty state announces nothing."""
    first, second = Partition(), Partition()
    output = Output((first, to(0, b"")), (second, to(0, b"")))
    run_virtual(output.made.recover([ChannelState(1, 0, (b"",))]))
    assert output.first == []
    run_virtual(output.made.recover([ChannelState(1, 1, (b"", b"data"))]))
    assert output.first == [first, second]
    assert (first.got, second.got) == ([], [(1, 0, 4)])


def test_recovered_data_waits_for_a_buffer():
    """The first 100 bytes have one, the others get it half a second later."""
    partition = Partition(buffers=1)
    output = Output((partition, to(0, b"")))

    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(0.5, partition.give)
        await output.made.recover([ChannelState(0, 2, (bytes(110),))])
        return loop.time() - T0_S

    assert run_virtual(main()) == 0.5
    assert partition.got == [(2, 0, 100), (2, 100, 0), (2, 100, 10)]


def test_the_end_of_the_data_announces_an_empty_result_and_is_processed_when_every_reader_says_so():
    """Then the partitions are finished."""
    partitions = [Partition(), Partition()]
    output = Output(*((p, to(0, b"")) for p in partitions))
    output.made.notify_end_of_data(drain=True)
    assert output.first == partitions
    assert [p.got for p in partitions] == [[("end", True)]] * 2
    partitions[0].all_data_processed = True
    assert not output.made.all_data_processed
    partitions[1].all_data_processed = True
    assert output.made.all_data_processed
    output.made.finish()
    assert [p.got[-1] for p in partitions] == [("finish",)] * 2
