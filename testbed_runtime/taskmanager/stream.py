"""Operator and sink tasks: read the gates buffer by buffer, align barriers, process, emit."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.alignment import (
    Abort,
    BarrierPolicy,
    Complete,
    Effect,
    Overtaken,
    Prioritize,
    Resume,
    Trigger,
)
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfOutputChannelState,
    EndOfPartition,
    EndOfSuperstep,
    Event,
    EventAnnouncement,
    SnapshotType,
)
from testbed_runtime.core.exchange.gate import PolledRun
from testbed_runtime.core.exchange.memory import Buffer, recycle_all
from testbed_runtime.core.job.flowcontrol import FlowControl
from testbed_runtime.core.job.messages import TriggerCheckpoint
from testbed_runtime.core.options import LATENCY_INTERVAL
from testbed_runtime.taskmanager.checkpoints import TakenSnapshot, covers_end
from testbed_runtime.taskmanager.debloating import TaskDebloating
from testbed_runtime.taskmanager.meter import BACKPRESSURED, BUSY, IDLE
from testbed_runtime.taskmanager.receiving import Receiving
from testbed_runtime.taskmanager.services import TaskRun
from testbed_runtime.taskmanager.sinks import SinkWriter
from testbed_runtime.taskmanager.waiting import ServiceTime
from testbed_runtime.workload.keyedstate import TimeToLive
from testbed_runtime.workload.operators import Operator, make_operator
from testbed_runtime.workload.records import RecordReader, Records, marker_positions, stamp_path
from testbed_runtime.workload.snapshots import SubtaskSnapshot

RUN_BUFFERS = 8
"""Maximum number of buffers of one channel that a sink takes at once: less than the channel's credit, so that the producer can
continue."""
SERVICE_SLICE_S = 0.010
"""Records with a service time are processed and passed on after this much of it, or one by one if each takes longer."""
ALIGNMENT_MIN_S = 0.001
"""Shorter alignments are not recorded as waits."""

_AT_ONCE = frozenset(
    (CheckpointBarrier, EndOfPartition, EndOfOutputChannelState, EventAnnouncement, CancelCheckpointMarker)
)
"""Events that are handled without a wait."""


def reached_at(due_ns: int) -> float:
    """Return the first time in seconds whose nanoseconds (`TaskRun.now_ns`) are not before a timer. `due_ns / 1e9` can be a nanosecond
    before it: an operator would not fire, and in virtual time the task would ask again forever. Pure."""
    return math.nextafter(due_ns / 1e9, math.inf)


class StreamTask:
    """The invokable of an operator or a sink: `restore`, then `run` to the end of its input."""

    __slots__ = (
        "_at_once", "_barriers", "_connected", "_data_ended", "_debloating", "_dropped", "_emit",
        "_free_at", "_has_timers", "_open", "_policy", "_producers_wait", "_readers", "_receiving", "_run", "_run_buffers",
        "_service", "_service_time_s", "_sink", "_superstep_ends", "_tracks_latency", "_unaligned",
        "operator",
    )  # fmt: skip

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        vertex = run.descriptor.vertex
        self._sink = SinkWriter(run, vertex.sink) if vertex.sink is not None else None
        self.operator = self._make_operator()
        service = vertex.operator or vertex.sink
        self._service_time_s = service.service_time_s if service is not None else 0.0
        self._service = ServiceTime(run.services.cpu, run.services.clock)
        self._readers: dict[int, RecordReader] = {}
        """The readers of the channels that have had data."""
        self._policy = BarrierPolicy.of(run.services.options)
        self._barriers = self._policy.handler(run.input.channel_count)
        self._debloating = TaskDebloating(run.input.gates, run.services.options)
        self._unaligned: TakenSnapshot | None = None
        """The unaligned checkpoint whose barriers have not all arrived."""
        self._tracks_latency = run.services.options.duration(LATENCY_INTERVAL) > 0
        self._data_ended = False
        self._producers_wait = covers_end(run.services.options)
        """Whether producers finish after their consumers have read everything. A checkpoint that is triggered here waits for the end of
        the data otherwise. Flink's does not, and loses what is unread."""
        self._open = dict.fromkeys(range(run.input.channel_count))
        """The channels that have not ended."""
        self._superstep_ends = 0
        """Number of channels that have ended the current superstep of an iteration."""
        self._connected = False
        self._free_at = run.now()
        """When the task was last idle."""
        self._dropped = False
        flow = FlowControl.read(run.services.options)
        self._emit: Callable[[Records], Awaitable[None]] = run.output.emit
        self._receiving = Receiving(run, flow, self._process) if flow.queued else None
        self._run_buffers = self._longest_run()
        slow = flow.queued or run.work is not None
        self._at_once: frozenset[type[object]] = frozenset() if slow else _AT_ONCE
        self._has_timers = (
            self._debloating.active
            or (self._sink is not None and self._sink.at_once)
            or (self.operator is not None and type(self.operator).next_timer_ns is not Operator.next_timer_ns)
        )
        """Whether anything other than a barrier has a deadline."""
        run.on_completed = self._on_completed

    def _make_operator(self) -> Operator | None:
        run, config = self._run, self._run.descriptor.vertex.operator
        if config is None:
            return None
        ttl = TimeToLive(int(config.state_ttl_s * 1e9), run.now_ns)
        state = run.files.state(run.subtask, ttl) if config.keyed else None
        reuse = run.services.options.boolean("pipeline.object-reuse")
        return make_operator(config, run.subtask, state, reuse=reuse)

    def _longest_run(self) -> int:
        """Return how many buffers are taken at once. The credit of a taken buffer is returned to the producer. A task that may be slow
        therefore takes one at a time: otherwise more data would be in flight than in Flink."""
        slow = self._service_time_s > 0 or self.operator is not None
        return 1 if slow else RUN_BUFFERS

    async def restore(self, snapshots: list[SubtaskSnapshot]) -> None:
        if self.operator is not None:
            self.operator.restore(snapshots)
        if self._sink is not None:
            await self._sink.restore(snapshots)

    async def close(self) -> None:
        """Wait for the end of the background work."""
        if self._sink is not None:
            await self._sink.close()
        if self.operator is not None:
            self.operator.close()

    async def run(self) -> None:
        self._debloating.start(self._run.now())
        if self._receiving is not None:
            self._receiving.start()
        try:
            await self._read_all()
            await self._finish()
        finally:
            if self._receiving is not None:
                await self._receiving.close()
            if self._sink is not None:
                self._sink.end(finished=self._run.input.finished)

    async def _read_all(self) -> None:
        """Handle what arrives until every channel has ended."""
        run = self._run
        finished = run.input.finished
        while not finished:
            if self._receiving is not None:
                self._receiving.raise_if_failed()
            if run.triggers and (self._data_ended or self._producers_wait):
                await self._on_trigger(run.triggers.popleft())
            if (due := self._next_timer()) is not None and due <= run.now():
                await self._on_timers()
            available = run.output.is_available
            if not (available or run.input.has_priority):
                await self._wait_for_output()
                continue
            item, handled = self._poll(several=available)
            if item is not None and not handled:
                await self._handle(*item)
                if run.work is not None:
                    await run.work.pay()
            if item is None or not isinstance(item[1], list):
                finished = run.input.finished  # an event may have been the last one
                if item is None and not finished:
                    await self._idle()
            elif run.input.is_available:
                await run.services.cpu.yield_control()
            elif run.output.is_available:
                await self._idle()

    def _poll(self, *, several: bool) -> tuple[PolledRun | None, bool]:
        """Handle the events that never wait, and return what comes after them with False. Without `several`, handle at most one, and return it
        with True if it was handled."""
        poll, most = self._run.input.poll, self._run_buffers
        while (item := poll(most)) is not None:
            if not self._connected:  # a producer has answered
                self._note_connected()
            if type(item[1]) not in self._at_once:
                return item, False
            self._on_event(item[0], item[1])  # type: ignore[arg-type]  # an event: no list is in the set
            if not several:
                return item, True
        return None, False

    async def read_recovered(self, on_consumed: Callable[[], None]) -> None:
        """Process the input that was in flight at the checkpoint. Call `on_consumed` whenever the input of a gate is processed."""
        run = self._run
        consumed = len(run.input.recovered_gates)
        while run.input.is_recovering:
            if (due := self._next_timer()) is not None and due <= run.now():
                await self._on_timers()
            if not run.output.is_available:
                await self._wait_for_output()
            elif (item := run.input.poll(self._run_buffers)) is not None:
                await self._handle(*item)
                if run.work is not None:
                    await run.work.pay()
                if len(run.input.recovered_gates) > consumed:
                    consumed += 1
                    on_consumed()
                await run.services.cpu.yield_control()
                run.requests.note_answers(run.now())

    async def _idle(self) -> None:
        run = self._run
        if not self._connected:
            self._note_connected()
        run.meter.enter(IDLE)
        if not self._debloating.active:
            await run.wakeup.wait(self._next_timer())
        else:
            self._debloating.pause(run.now())
            await run.wakeup.wait(self._next_timer())
            self._debloating.resume(run.now())
        self._free_at = run.meter.enter(BUSY)

    async def _wait_for_output(self) -> None:
        """Wait until the output has a buffer. Overtaking barriers are handled during the wait."""
        run = self._run
        run.output.when_available(run.wakeup)
        run.meter.enter(BACKPRESSURED)
        await run.wakeup.wait(self._next_timer())
        self._free_at = run.meter.enter(BUSY)

    def _note_connected(self) -> None:
        self._run.requests.note_answers(self._free_at)
        if self._run.input.connected:
            self._connected = True
            self._run.event("gate.connected")

    # ---- what arrives ----------------------------------------------------------------------------------------

    async def _handle(self, channel: int, item: list[Buffer] | Event) -> None:
        if isinstance(item, list):
            records = self._read(channel, item)
            if records is not None and self._tracks_latency:
                records = await self._take_markers(records, channel)
            if records is None or not len(records):
                return
            if self._receiving is None:
                await self._process(records, channel)
            else:
                await self._take(records, channel)
            return
        if self._receiving is not None:
            await self._receiving.idle()
        if isinstance(item, EndOfData):
            if self._run.input.received_end_of_data:
                await self._on_end_of_data()
        elif isinstance(item, EndOfSuperstep):
            await self._on_end_of_superstep()
        else:
            self._on_event(channel, item)

    def _on_event(self, channel: int, item: Event) -> None:
        if isinstance(item, CheckpointBarrier):
            if effects := self._barriers.on_barrier(channel, item, self._run.now()):
                self._perform(effects)
        elif isinstance(item, EndOfOutputChannelState):
            self._run.input.on_producer_recovered(channel)
        elif isinstance(item, EndOfPartition):
            del self._open[channel]
            self._perform(self._barriers.on_end_of_partition(channel, self._run.now()))
        elif isinstance(item, EventAnnouncement):
            effects = self._barriers.on_announcement(
                channel, item.sequence_number, item.event, self._run.now()
            )
            self._perform(effects)
        elif isinstance(item, CancelCheckpointMarker):
            self._perform(self._barriers.on_cancellation(channel, item.checkpoint_id, self._run.now()))

    async def _take(self, records: Records, channel: int) -> None:
        if not len(records):
            return
        if self._receiving is not None and self._receiving.started:
            self._receiving.put(records, channel)
        else:  # input that was in flight at the checkpoint never waits in a queue
            await self._process(records, channel)

    async def _take_markers(self, records: Records, channel: int) -> Records:
        """Process the records up to the last latency marker, and the markers in between. Return the records after it."""
        run, position = self._run, 0
        for place in marker_positions(records):
            await self._take(records[position:place], channel)
            if self._receiving is not None:  # its worker may be in the middle of a record
                await self._receiving.idle()
            position = place + 1
            marker = records[place:position]
            source = run.subtask.origin(int(marker["vertex"][0]), int(marker["subtask"][0]))
            run.meter.marked(source, run.now_ns() - int(marker["due_ns"][0]))
            await run.output.emit_marker(marker)
        return records[position:]

    def _read(self, channel: int, buffers: list[Buffer]) -> Records | None:
        """Deserialise a run of buffers at once, and return them to their pool."""
        try:
            views = [buffer.view() for buffer in buffers]
            self._run.meter.bytes_in += sum(map(len, views))
            self._run.meter.buffers_in += len(views)
            if self._unaligned is not None:
                for view in views:
                    self._unaligned.received(channel, view)
            reader = self._readers.get(channel)
            if reader is None:
                reader = self._readers[channel] = RecordReader()
            return reader.feed(views)
        finally:
            recycle_all(buffers)

    async def _process(self, records: Records, channel: int) -> None:
        """Process the records in slices of service time. A full buffer of small records may take seconds, so its first records are
        passed on earlier."""
        count = size = len(records)
        if self._service_time_s > 0:
            size = max(1, int(SERVICE_SLICE_S / self._service_time_s))
        for position in range(0, count, size or 1):
            part = records if size == count else records[position : position + size]
            if self._service_time_s > 0:
                await self._service.spend(self._service_time_s * len(part))
            self._run.meter.records_in += len(part)  # counted together with the lag of a sink
            if self._sink is not None:
                self._sink.write(part, channel)
            if (operator := self.operator) is not None:
                stamp_path(part, self._run.subtask.vertex, self._run.subtask.subtask)
                if operator.slice_records:
                    await self._process_in_slices(operator, part)
                elif (made := operator.process(part)) is not None and len(made):
                    await self._emit(made)

    async def _process_in_slices(self, operator: Operator, records: Records) -> None:
        position = 0
        while position < len(records):
            part = records[position : position + operator.slice_records]
            position += len(part)
            await self._operate(partial(operator.process, part), len(part))
            if position < len(records):
                await self._run.services.cpu.yield_control()

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
            await self._emit(made)

    # ---- timers --------------------------------------------------------------------------------------------

    def _next_timer(self) -> float | None:
        if not self._has_timers:
            return self._barriers.deadline
        first = math.inf
        if self.operator is not None and (due_ns := self.operator.next_timer_ns()) is not None:
            first = reached_at(due_ns)
        if self._sink is not None and (flush := self._sink.next_flush()) is not None:
            first = min(first, flush)
        if (deadline := self._barriers.deadline) is not None:
            first = min(first, deadline)
        if (recalculation := self._debloating.deadline) is not None:
            first = min(first, recalculation)
        return None if first == math.inf else first

    async def _on_timers(self) -> None:
        if self._sink is not None:
            self._sink.on_time(self._run.now())
        self._perform(self._barriers.on_time(self._run.now()))
        self._debloating.on_time(self._run.now())
        if self.operator is not None:
            await self._operate(partial(self.operator.on_time, self._run.now_ns()))

    # ---- checkpoints -----------------------------------------------------------------------------------------

    async def _on_trigger(self, trigger: TriggerCheckpoint) -> None:
        """Take a checkpoint that the JobMaster triggers here, because all producers of this task have finished
        (StreamTask.triggerCheckpointAsync)."""
        if self._receiving is not None:
            await self._receiving.idle()
        kind = SnapshotType.SAVEPOINT_TERMINATE if trigger.drain else SnapshotType.CHECKPOINT
        ended = self._data_ended
        barrier = self._policy.barrier(trigger.checkpoint, trigger.timestamp_ms, kind, ended=ended)
        if self._open:
            self._perform(self._barriers.on_trigger(list(self._open), barrier, self._run.now()))
        else:
            self._checkpoint(Trigger(barrier, 0.0))

    def _perform(self, effects: list[Effect]) -> None:
        run = self._run
        for effect in effects:
            if type(effect) is Resume:  # one for each channel
                run.input.resume(effect.channel)
                continue
            match effect:
                case Trigger():
                    self._trigger(effect)
                case Prioritize(channel, sequence):
                    run.input.prioritize(channel, sequence)
                case Overtaken(channel):
                    if (taken := self._unaligned) is not None:
                        taken.overtaken(channel, run.input.in_flight(channel, taken.snapshot.checkpoint))
                case Complete(_, alignment_s):
                    self._complete_unaligned(alignment_s)
                case Abort(checkpoint_id, reason):
                    self._unaligned = None
                    run.checkpoints.abandon(checkpoint_id)
                    run.output.broadcast(CancelCheckpointMarker(checkpoint_id))
                    run.checkpoints.decline_soon(checkpoint_id, reason)

    def _trigger(self, trigger: Trigger) -> None:
        """Take the snapshot. An unaligned checkpoint is aborted instead if a channel has received the barrier of a newer one."""
        barrier = trigger.barrier
        try:
            if barrier.alignment is AlignmentType.UNALIGNED:
                self._run.input.checkpoint_started(barrier.checkpoint_id)
        except FlinkError:
            self._perform(self._barriers.on_refused(barrier.checkpoint_id))
        else:
            self._checkpoint(trigger)

    def _checkpoint(self, trigger: Trigger) -> None:
        """Take the snapshot, unless the checkpoint was aborted. An unaligned one is stored once the barriers of all channels have
        arrived."""
        run, barrier = self._run, trigger.barrier
        stop = barrier.snapshot_type is SnapshotType.SAVEPOINT_TERMINATE
        if not run.begin_checkpoint(barrier.checkpoint_id, ended=self._data_ended, stop=stop):
            return
        snapshot = run.empty_snapshot(barrier.checkpoint_id)
        if self.operator is not None:
            snapshot = self.operator.snapshot(snapshot)
        snapshot = replace(snapshot, output_state=run.output.send_barrier(barrier))
        taken = TakenSnapshot(snapshot, alignment_s=trigger.alignment_s)
        if self._sink is not None:
            taken.commit, taken.snapshot, taken.before = self._sink.cut(snapshot)
        if barrier.alignment is AlignmentType.UNALIGNED:
            taken.inputs = {c: [self._incomplete(c)] for c in range(run.input.channel_count)}
            taken.open_inputs = set(taken.inputs)
            self._unaligned = taken
            return
        self._note_alignment(taken)
        if barrier.is_timeoutable and self._policy.times_out_in_output:
            taken.output = partial(run.output.barriers_sent, barrier)
        run.checkpoints.start(taken)

    def _incomplete(self, channel: int) -> bytes:
        reader = self._readers.get(channel)
        return b"" if reader is None else reader.incomplete

    def _complete_unaligned(self, alignment_s: float) -> None:
        taken, self._unaligned = self._unaligned, None
        if taken is None:
            return
        taken.alignment_s = alignment_s
        self._note_alignment(taken)
        states = [self._run.input.state_of(c, parts) for c, parts in taken.inputs.items()]
        taken.snapshot = replace(taken.snapshot, input_state=tuple(s for s in states if s.size))
        self._run.checkpoints.start(taken)

    def _note_alignment(self, taken: TakenSnapshot) -> None:
        if taken.alignment_s > ALIGNMENT_MIN_S:
            run = self._run
            what = f"checkpoint {taken.snapshot.checkpoint}"
            run.wait("alignment", what, since_s=run.now() - taken.alignment_s)

    def _on_completed(self, checkpoint: int) -> None:
        if self._sink is not None:
            self._sink.completed(checkpoint)

    # ---- the end -------------------------------------------------------------------------------------------

    async def _on_end_of_data(self) -> None:
        """The data of all channels has ended: emit what the operator still holds, then this task's own end of data."""
        run = self._run
        if self._data_ended:
            return
        self._data_ended = True
        if self.operator is not None:
            await self._operate(self.operator.finish)
        run.output.notify_end_of_data(drain=run.input.draining)
        run.input.acknowledge_end_of_data()
        if run.input.draining:
            run.checkpoints.data_ended()
        if self._sink is not None:
            run.event("sink.end")

    async def _on_end_of_superstep(self) -> None:
        """Count a channel that has ended the superstep. No channel sends records of the next one before all have."""
        self._superstep_ends += 1
        if self._superstep_ends == self._run.input.channel_count:
            self._superstep_ends = 0
            await self._on_superstep_ended()

    async def _on_superstep_ended(self) -> None:
        self._run.output.broadcast(EndOfSuperstep())

    async def _finish(self) -> None:
        """After the end of the input, wait until all emitted data has been read and, if there are checkpoints, one of them covers the
        end (StreamTask.afterInvoke). Checkpoints that are triggered here meanwhile are taken."""
        run = self._run
        while run.triggers or not run.may_finish(ended=self._data_ended):
            if run.triggers:
                await self._on_trigger(run.triggers.popleft())
                continue
            run.meter.enter(IDLE)
            await run.wakeup.wait()
            run.meter.enter(BUSY)
