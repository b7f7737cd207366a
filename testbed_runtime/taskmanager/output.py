"""A task's output: partitions its records, waits while it is back-pressured, flushes in intervals."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random

from testbed_runtime.core.exchange.events import CheckpointBarrier, Event
from testbed_runtime.core.exchange.partition import EVERY, ResultPartition
from testbed_runtime.core.exchange.subpartition import SendReason
from testbed_runtime.taskmanager.meter import BACKPRESSURED, BUSY, TaskMeter
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.workload.partitioners import Part, Partitioner
from testbed_runtime.workload.records import Block, Records, framed
from testbed_runtime.workload.snapshots import ChannelState


def _states(number: int, overtaken: Mapping[int, tuple[bytes, ...]]) -> list[ChannelState]:
    return [ChannelState(number, index, data) for index, data in overtaken.items()]


class OutputFlusher:
    """Flushes written data at the ticks of `execution.buffer-timeout`.

    The first tick comes `interval_s` after the first use, because Flink's thread sleeps first. The next one comes sooner by the
    share `phase` of an interval, from 0 to 1, and all others are `interval_s` apart. No timer runs while nothing is written, and a
    missed tick is skipped. With an interval of 0 every `touched` flushes at once; with a negative one nothing is ever flushed."""

    __slots__ = ("_first", "_flush", "_interval_s", "_loop", "_phase", "_timer")

    def __init__(self, interval_s: float, flush: Callable[[], None], *, phase: float = 0.0) -> None:
        self._interval_s = interval_s
        self._flush = flush
        self._phase = phase
        self._first: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def touched(self) -> None:
        """Schedule a flush after a write."""
        if self._interval_s == 0:
            self._flush()
        elif self._timer is None and self._interval_s > 0:
            loop = self._loop = self._loop or asyncio.get_running_loop()
            now = loop.time()
            if self._first is None:
                self._first = now + self._interval_s
            self._timer = loop.call_at(self.tick_after(now), self._tick)

    def tick_after(self, time: float) -> float:
        """Return the first tick after `time`; `time` itself before the first use and without an interval."""
        if self._first is None or self._interval_s <= 0:
            return time if self._interval_s >= 0 else math.inf
        if time < self._first:
            return self._first
        return self._first + (self._ticks(time) - self._phase) * self._interval_s

    @property
    def is_immediate(self) -> bool:
        """Whether it flushes after each record."""
        return self._interval_s == 0

    def runs(self, now: float) -> int:
        """Return how often the thread of Flink's flusher has run. It runs at each tick, even if nothing was written."""
        return 0 if self._first is None or now < self._first else self._ticks(now)

    def _ticks(self, time: float) -> int:
        """Return the number of ticks up to a time that is not before the first one."""
        assert self._first is not None
        return math.floor((time - self._first) / self._interval_s + self._phase) + 1

    def _tick(self) -> None:
        self._timer = None
        self._flush()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class TaskOutput:
    """All result partitions of a task, each with its partitioner. Used by the task's own coroutine only."""

    __slots__ = (
        "_flushable", "_flusher", "_meter", "_on_first", "_outputs", "_pool", "_pools", "_random",
        "_watched", "waits",
    )  # fmt: skip

    def __init__(
        self,
        outputs: Sequence[tuple[ResultPartition, Partitioner]],
        meter: TaskMeter,
        *,
        buffer_timeout_s: float,
        on_first: Callable[[ResultPartition], None],
        random: Random,
    ) -> None:
        """`on_first` is called for every partition when it gets its first record, or ends without one. `random` chooses the
        channels of latency markers and the phase of the flusher: the flushers of Flink's tasks are not synchronized."""
        self._outputs = list(outputs)
        self._pools = [partition.pool for partition, _ in outputs]
        self._flushable = [partition for partition, _ in outputs if not partition.is_blocking]
        self._meter = meter
        self._pool = Wakeup()
        self._on_first: Callable[[ResultPartition], None] | None = on_first
        self._random = random
        self._flusher = OutputFlusher(buffer_timeout_s, self._flush, phase=self._random.random())
        self._watched: set[int] = set()
        """Outputs whose pools will report that they are available again."""
        self.waits = 0
        """How often the task had to wait for a buffer."""

    @property
    def partitions(self) -> list[ResultPartition]:
        return [partition for partition, _ in self._outputs]

    @property
    def flushed(self) -> int:
        """Number of buffers that left before they were full, because of the buffer timeout."""
        timeout = SendReason.TIMEOUT
        return sum(s.sent[timeout] for partition, _ in self._outputs for s in partition.subpartitions)

    @property
    def flushes(self) -> int:
        """Number of runs of the flusher so far."""
        return self._flusher.runs(asyncio.get_running_loop().time())

    @property
    def flushes_each(self) -> bool:
        """Whether each record is flushed when it is emitted (a buffer timeout of 0)."""
        return self._flusher.is_immediate

    @property
    def is_available(self) -> bool:
        """Whether every pool has a buffer. For soft back-pressure, Flink checks this before a task processes input."""
        for pool in self._pools:  # noqa: SIM110 - asked for each buffer: cheaper than `all`
            if not pool.is_available:
                return False
        return True

    def when_available(self, wakeup: Wakeup) -> None:
        """Set `wakeup` when a pool without buffers gets a buffer. May be called again before that."""
        for number, (partition, _) in enumerate(self._outputs):
            if number not in self._watched and not partition.pool.is_available:
                self._watched.add(number)
                partition.pool.when_available(partial(self._on_available, number, wakeup))

    def _on_available(self, number: int, wakeup: Wakeup) -> None:
        self._watched.discard(number)
        wakeup.set()

    async def emit(self, records: Records, *, only: Sequence[int] | None = None) -> None:
        """Write the records to buffers, waiting while there are none. `only`: the numbers of the outputs; by default all."""
        self._meter.records_out += len(records)
        if self._on_first is not None and len(records):
            self._announce()
        for partition, partitioner in self._outputs if only is None else self._chosen(only):
            for part in partitioner.parts(records):
                if (done := self._begin(partition, part)) < len(part[1]):
                    await self._end(partition, part, done)
        if self._outputs:
            self._flusher.touched()

    async def emit_of(self, block: Block, start: int, end: int) -> None:
        """Like `emit` to all outputs, for some records of a block that a source made ahead."""
        self._meter.records_out += end - start
        if self._on_first is not None:
            self._announce()
        for partition, partitioner in self._outputs:
            for part in partitioner.parts_of(block, start, end):
                if (done := self._begin(partition, part)) < len(part[1]):
                    await self._end(partition, part, done)
        if self._outputs:
            self._flusher.touched()

    def _chosen(self, only: Sequence[int] | None) -> Sequence[tuple[ResultPartition, Partitioner]]:
        return self._outputs if only is None else [self._outputs[number] for number in only]

    async def emit_marker(self, marker: Records) -> None:
        """Write a latency marker to a random channel of a random output, as Flink does."""
        if self._outputs:
            self._announce()
            partition, _ = self._random.choice(self._outputs)
            subpartition = self._random.randrange(len(partition.subpartitions))
            part = (subpartition, framed(marker), 1)
            await self._end(partition, part, self._begin(partition, part))
            self._flusher.touched()

    def _announce(self) -> None:
        if self._on_first is not None:
            announce, self._on_first = self._on_first, None
            for partition in self.partitions:
                announce(partition)

    def _begin(self, partition: ResultPartition, part: Part) -> int:
        """Write what fits into buffers now. Return the number of bytes written; `_end` writes the rest."""
        subpartition, data, _ = part
        self._meter.bytes_out += len(data) * (len(partition.subpartitions) if subpartition == EVERY else 1)
        return self._write(partition, part, 0)

    async def _end(self, partition: ResultPartition, part: Part, done: int) -> None:
        while done < len(part[1]):
            self._flusher.touched()
            self.waits += 1
            self._meter.enter(BACKPRESSURED)
            partition.pool.when_available(self._pool.set)
            await self._pool.wait()
            await asyncio.sleep(0)  # let other tasks run first
            self._meter.enter(BUSY)
            done = self._write(partition, part, done)

    @staticmethod
    def _write(partition: ResultPartition, part: Part, done: int) -> int:
        """Write into the buffers of the pool and, when it has none left, into overdraft buffers. Records that are written together count
        as one record of Flink, which is always written to its end. Return the bytes written of this part."""
        subpartition, data, count = part
        single, size, most = count == 1, len(data) // count, len(data)
        done += partition.emit(subpartition, data, offset=done, record_bytes=size, extend=single)
        if done < most and partition.pool.can_overdraw and not partition.pool.available_segments:
            done += partition.emit(
                subpartition, data, offset=done, record_bytes=size, overdraft=True, extend=single
            )
        return done

    def flush_after(self, time: float) -> float:
        """Return when data that is written at `time` is flushed: infinity if only full buffers are sent."""
        return self._flusher.tick_after(time)

    @property
    def buffer_bytes(self) -> int:
        """The size of the smallest buffer that a reader asks for; a full segment without debloating."""
        return min(
            (
                min(partition.pool.segment_bytes, *(s.buffer_size for s in partition.subpartitions))
                for partition, _ in self._outputs
            ),
            default=1,
        )

    @property
    def room_bytes(self) -> int:
        """Bytes that fit into the first buffers of all subpartitions, or of one subpartition if each gets every record."""
        rooms = [
            partition.pool.segment_bytes * (len(partition.subpartitions) if partitioner.spreads else 1)
            for partition, partitioner in self._outputs
        ]
        return min(rooms, default=1 << 20)

    def broadcast(self, event: Event, *, only: Sequence[int] | None = None) -> None:
        """Send a barrier or marker to every subpartition of the outputs, without waiting. `only`: as in `emit`."""
        for partition, _ in self._chosen(only):
            partition.broadcast_event(event)

    def send_barrier(self, barrier: CheckpointBarrier) -> tuple[ChannelState, ...]:
        """Send a checkpoint barrier to every subpartition. Return the data that it overtakes."""
        found: list[ChannelState] = []
        for number, (partition, partitioner) in enumerate(self._outputs):
            fitting = barrier if partitioner.supports_unaligned else barrier.with_unaligned_unsupported()
            found += _states(number, partition.broadcast_barrier(fitting))
        return tuple(found)

    async def barriers_sent(self, barrier: CheckpointBarrier) -> tuple[ChannelState, ...]:
        """Wait until a barrier that may time out has left every subpartition. At its timeout, let it overtake. Return the
        data that it overtook. Raises FlinkError IllegalStateException if a later such barrier comes before."""
        checkpoint_id, sent = barrier.checkpoint_id, Wakeup()
        holding = [partition for partition in self.partitions if partition.holds_barrier(checkpoint_id)]
        for partition in holding:
            partition.on_barriers_sent = sent.set
        deadline, now = barrier.deadline, asyncio.get_running_loop().time
        try:
            while any(p.holds_barrier(checkpoint_id) for p in holding) and now() < deadline:
                await sent.wait(deadline)
            overtaken = [partition.time_out_barriers(checkpoint_id) for partition in self.partitions]
        finally:
            for partition in self.partitions:
                partition.forget_barriers(checkpoint_id)
        return tuple(state for number, data in enumerate(overtaken) for state in _states(number, data))

    async def recover(self, states: Iterable[ChannelState]) -> None:
        """Queue output channel state before anything is emitted, waiting while there are no buffers."""
        for state in states:
            if any(state.data):
                self._announce()
            partition = self._outputs[state.group][0]
            for part in state.data:
                done = 0
                while done < len(part):
                    accepted = partition.add_recovered(state.channel, part, done)
                    if not accepted:
                        partition.pool.when_available(self._pool.set)
                        await self._pool.wait()
                    done += accepted

    def end_recovery(self, numbers: Iterable[int]) -> None:
        """Announce to the readers of these outputs that nothing more is restored."""
        for number in numbers:
            self.partitions[number].end_recovery()

    def notify_end_of_data(self, *, drain: bool) -> None:
        self._announce()
        for partition, _ in self._outputs:
            partition.notify_end_of_data(drain)

    @property
    def all_data_processed(self) -> bool:
        """Whether every reader has acknowledged the end of data."""
        return all(partition.all_data_processed for partition, _ in self._outputs)

    def finish(self) -> None:
        """Send END_OF_PARTITION. Unread data stays readable."""
        self._flusher.close()
        for partition, _ in self._outputs:
            partition.finish()

    def close(self) -> None:
        self._flusher.close()

    def _flush(self) -> None:
        for partition in self._flushable:
            partition.flush_all()
