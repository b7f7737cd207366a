"""A task's output: partitions its records, waits while it is back-pressured, flushes in intervals."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from testbed_runtime.core.exchange.events import Event
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.records import frame_fixed
from testbed_runtime.taskmanager.meter import BACKPRESSURED, BUSY, TaskMeter
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.workload.partitioners import Partitioner
from testbed_runtime.workload.records import Records


class OutputFlusher:
    """Flushes written data at the ticks of `execution.buffer-timeout`.

    Ticks are `interval_s` apart, counted from the first use. No timer runs while nothing is written, and a missed tick is
    skipped. With an interval of 0 every `touched` flushes at once; with a negative one nothing is ever flushed."""

    def __init__(self, interval_s: float, flush: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._flush = flush
        self._origin: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def touched(self) -> None:
        """Schedule a flush: something was written."""
        if self._interval_s == 0:
            self._flush()
        elif self._timer is None and self._interval_s > 0:
            loop = asyncio.get_running_loop()
            now = loop.time()
            if self._origin is None:
                self._origin = now
            self._timer = loop.call_at(self.tick_after(now), self._tick)

    def tick_after(self, time: float) -> float:
        """Return the first tick after `time`; `time` itself before the first use and without an interval."""
        if self._origin is None or self._interval_s <= 0:
            return time if self._interval_s >= 0 else math.inf
        ticks = math.floor((time - self._origin) / self._interval_s) + 1
        return self._origin + ticks * self._interval_s

    def _tick(self) -> None:
        self._timer = None
        self._flush()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class TaskOutput:
    """All result partitions of a task, each with its partitioner. Used by the task's own coroutine only."""

    def __init__(
        self,
        outputs: Sequence[tuple[ResultPartition, Partitioner]],
        meter: TaskMeter,
        *,
        buffer_timeout_s: float,
    ) -> None:
        self._outputs = list(outputs)
        self._meter = meter
        self._pool = Wakeup()
        self._flusher = OutputFlusher(buffer_timeout_s, self._flush)

    @property
    def partitions(self) -> list[ResultPartition]:
        return [partition for partition, _ in self._outputs]

    @property
    def is_available(self) -> bool:
        """Every pool has a buffer (Flink's soft back-pressure asks this before it processes)."""
        return all(partition.pool.is_available for partition, _ in self._outputs)

    def when_available(self, wakeup: Wakeup) -> None:
        """Set `wakeup` once when a pool without buffers gets one."""
        for partition, _ in self._outputs:
            if not partition.pool.is_available:
                partition.pool.when_available(wakeup.set)

    async def emit(self, records: Records) -> None:
        """Write the records to buffers, waiting while there are none."""
        self._meter.records_out += len(records)
        for partition, partitioner in self._outputs:
            for subpartition, part in partitioner.split(records):
                await self._emit(partition, subpartition, part)
        if self._outputs:
            self._flusher.touched()

    async def _emit(self, partition: ResultPartition, subpartition: int, records: Records) -> None:
        framed = frame_fixed(records).data
        self._meter.bytes_out += len(framed)
        done = partition.emit(subpartition, framed)
        while done < len(framed):
            self._flusher.touched()
            self._meter.enter(BACKPRESSURED)
            partition.pool.when_available(self._pool.set)
            await self._pool.wait()
            await asyncio.sleep(0)  # let other tasks run first
            self._meter.enter(BUSY)
            done += partition.emit(subpartition, framed, offset=done)

    def flush_after(self, time: float) -> float:
        """Return when data that is written at `time` is flushed: infinity if only full buffers are sent."""
        return self._flusher.tick_after(time)

    @property
    def room_bytes(self) -> int:
        """Bytes that fit into the first buffers of all subpartitions; of one if each gets every record."""
        rooms = [
            partition.pool.segment_bytes * (len(partition.subpartitions) if partitioner.spreads else 1)
            for partition, partitioner in self._outputs
        ]
        return min(rooms, default=1 << 20)

    def broadcast(self, event: Event) -> None:
        """Send a barrier or marker to every subpartition; never waits."""
        for partition, _ in self._outputs:
            partition.broadcast_event(event)

    def notify_end_of_data(self, *, drain: bool) -> None:
        for partition, _ in self._outputs:
            partition.notify_end_of_data(drain)

    @property
    def all_data_processed(self) -> bool:
        """Every reader acknowledged the end of data."""
        return all(partition.all_data_processed for partition, _ in self._outputs)

    def finish(self) -> None:
        """Send END_OF_PARTITION. Unread data stays readable."""
        self._flusher.close()
        for partition, _ in self._outputs:
            partition.finish()

    def close(self) -> None:
        self._flusher.close()

    def _flush(self) -> None:
        for partition, _ in self._outputs:
            partition.flush_all()
