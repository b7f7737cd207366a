"""Operator and sink tasks: read the gates buffer by buffer, align barriers, process, emit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from testbed_runtime.core.exchange.alignment import (
    Abort,
    AlignedBarrierHandler,
    BarrierHandler,
    BarrierTracker,
    Effect,
    Resume,
    Trigger,
)
from testbed_runtime.core.exchange.events import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    Event,
)
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.taskmanager.meter import BUSY, IDLE
from testbed_runtime.taskmanager.services import TaskRun
from testbed_runtime.taskmanager.sinks import SinkWriter
from testbed_runtime.taskmanager.waiting import ServiceTime
from testbed_runtime.workload.operators import Operator, make_operator
from testbed_runtime.workload.records import RecordReader, Records, stamp_path
from testbed_runtime.workload.snapshots import SubtaskSnapshot

ALIGNMENT_MIN_S = 0.001
"""Shorter alignments are not recorded as waits."""


def barrier_handler(run: TaskRun) -> BarrierHandler:
    channels = len(run.input.channels)
    if run.services.options.string("execution.checkpointing.mode") == "EXACTLY_ONCE":
        return AlignedBarrierHandler(channels)
    return BarrierTracker(channels)


class StreamTask:
    """The invokable of an operator or a sink: `restore`, then `run` to the end of its input."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        vertex = run.descriptor.vertex
        self._sink = SinkWriter(run, vertex.sink) if vertex.sink is not None else None
        self.operator: Operator | None = None
        if vertex.operator is not None:
            self.operator = make_operator(vertex.operator, run.subtask)
        service = vertex.operator or vertex.sink
        self._service_time_s = service.service_time_s if service is not None else 0.0
        self._service = ServiceTime(run.services.cpu, run.services.clock)
        self._readers = [RecordReader() for _ in run.input.channels]
        self._barriers = barrier_handler(run)
        self._data_ended = False
        self._connected = False
        self._dropped = False
        run.on_completed = self._on_completed

    async def restore(self, snapshots: list[SubtaskSnapshot]) -> None:
        if self.operator is not None:
            self.operator.restore(snapshots)
        if self._sink is not None:
            await self._sink.restore(snapshots)

    async def close(self) -> None:
        """Wait until the background work beside `run` has ended."""
        if self._sink is not None:
            await self._sink.drained()

    async def run(self) -> None:
        run = self._run
        try:
            while not run.input.finished:
                await self._on_timers()
                item = run.input.poll()
                if item is None:
                    await self._idle()
                    continue
                self._note_connected()
                await self._handle(*item)
                await run.services.cpu.breathe()
            await self._wait_for_readers()
        finally:
            if self._sink is not None:
                self._sink.end(finished=run.input.finished)

    async def _idle(self) -> None:
        run = self._run
        self._note_connected()
        run.meter.enter(IDLE)
        await run.wakeup.wait(self._next_timer())
        run.meter.enter(BUSY)

    def _note_connected(self) -> None:
        if self._connected:
            return
        self._run.requests.note_answers()
        if self._run.input.connected:
            self._connected = True
            self._run.event("gate.connected")

    # ---- what arrives ----------------------------------------------------------------------------------------

    async def _handle(self, channel: int, item: Buffer | Event) -> None:
        if isinstance(item, Buffer):
            try:
                self._run.meter.bytes_in += item.size
                records = self._readers[channel].feed(item.view())
            finally:
                item.recycle()
            if records is not None:
                await self._process(records, channel)
        elif isinstance(item, CheckpointBarrier):
            await self._perform(self._barriers.on_barrier(channel, item, self._run.now()))
        elif isinstance(item, CancelCheckpointMarker):
            await self._perform(self._barriers.on_cancellation(channel, item.checkpoint_id, self._run.now()))
        elif isinstance(item, EndOfData):
            await self._on_end_of_data()
        elif isinstance(item, EndOfPartition):
            await self._perform(self._barriers.on_end_of_partition(channel, self._run.now()))

    async def _process(self, records: Records, channel: int) -> None:
        run = self._run
        run.meter.records_in += len(records)
        if self._service_time_s > 0:
            await self._service.spend(self._service_time_s * len(records))
        if self._sink is not None:
            self._sink.write(records, channel)
        if self.operator is None:
            return
        stamp_path(records, run.subtask.vertex, run.subtask.subtask)
        position = 0
        while position < len(records):
            size = self.operator.slice_records or len(records)
            part = records[position : position + size]
            position += len(part)
            await self._operate(partial(self.operator.process, part), len(part))
            if position < len(records):
                await run.services.cpu.breathe()

    def _note_dropped(self) -> None:
        if self.operator is not None and self.operator.drops and not self._dropped:
            self._dropped = True
            self._run.event("function.dropped")

    async def _operate(self, call: Callable[[], Records | None], count: int = 0) -> None:
        """Call the operator, spend its service time, emit its output."""
        begin = self._run.now()
        made = call()
        if self.operator is not None and count:
            self.operator.took(count, self._run.now() - begin)
            self._note_dropped()
        if made is not None and len(made):
            await self._run.output.emit(made)

    # ---- timers --------------------------------------------------------------------------------------------

    def _next_timer(self) -> float | None:
        due_ns = self.operator.next_timer_ns() if self.operator is not None else None
        times = [due_ns / 1e9] if due_ns is not None else []
        if self._sink is not None and (flush := self._sink.next_flush()) is not None:
            times.append(flush)
        return min(times, default=None)

    async def _on_timers(self) -> None:
        due = self._next_timer()
        if due is None or due > self._run.now():
            return
        if self._sink is not None:
            self._sink.on_time(self._run.now())
        if self.operator is not None:
            await self._operate(partial(self.operator.on_time, self._run.now_ns()))

    # ---- checkpoints -----------------------------------------------------------------------------------------

    async def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Trigger):
                self._checkpoint(effect)
            elif isinstance(effect, Resume):
                self._run.input.resume(effect.channel)
            elif isinstance(effect, Abort):
                self._run.output.broadcast(CancelCheckpointMarker(effect.checkpoint_id))
                self._run.checkpoints.decline_soon(effect.checkpoint_id, effect.reason)

    def _checkpoint(self, trigger: Trigger) -> None:
        run, barrier = self._run, trigger.barrier
        if trigger.alignment_s > ALIGNMENT_MIN_S:
            run.wait(
                "alignment", f"checkpoint {barrier.checkpoint_id}", since_s=run.now() - trigger.alignment_s
            )
        run.output.broadcast(barrier)
        snapshot = run.empty_snapshot(barrier.checkpoint_id)
        if self.operator is not None:
            snapshot = self.operator.snapshot(snapshot)
        commit, before = None, None
        if self._sink is not None:
            commit, snapshot, before = self._sink.cut(snapshot)
        run.checkpoints.start(
            snapshot,
            commit,
            alignment_s=trigger.alignment_s,
            before=before,
        )

    def _on_completed(self, checkpoint: int) -> None:
        if self._sink is not None:
            self._sink.completed(checkpoint)

    # ---- the end -------------------------------------------------------------------------------------------

    async def _on_end_of_data(self) -> None:
        """The data of all channels has ended: emit what the operator still holds, then this task's own end of data."""
        run = self._run
        if self._data_ended or not run.input.received_end_of_data:
            return
        self._data_ended = True
        if self.operator is not None:
            await self._operate(self.operator.finish)
        run.output.notify_end_of_data(drain=run.input.draining)
        run.input.acknowledge_end_of_data()

    async def _wait_for_readers(self) -> None:
        run = self._run
        while not run.output.all_data_processed:
            run.meter.enter(IDLE)
            await run.wakeup.wait()
            run.meter.enter(BUSY)
