"""A task's result partition: writes records into subpartition buffers, broadcasts events, and ends in two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import IO

import numpy as np

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.blocking import BlockingSubpartition, ResultFile
from testbed_runtime.core.exchange.buffers import Callback, LocalBufferPool
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CheckpointBarrier,
    EndOfData,
    EndOfOutputChannelState,
    EndOfPartition,
    Event,
    StopMode,
    data_type_of,
    encode_event,
)
from testbed_runtime.core.exchange.frames import BytesLike, DataType
from testbed_runtime.core.exchange.memory import Buffer, BufferBuilder
from testbed_runtime.core.exchange.pending import Pending
from testbed_runtime.core.exchange.subpartition import PipelinedSubpartition, SubpartitionView, nothing
from testbed_runtime.core.ids import ResultPartitionID

_DATA = DataType.DATA_BUFFER

EVERY = -1
"""Stands for all subpartitions: `emit` copies the records once."""

MAX_LOST = 16
"""Maximum number of remembered checkpoints without their output channel state. No task asks for an aborted
one."""


def byte_view(data: BytesLike | np.ndarray[tuple[int, ...], np.dtype[np.void]]) -> memoryview:
    """Return the bytes of any contiguous object without a copy. A structured array has no memoryview of its own."""
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(np.uint8).data
    view = data if type(data) is memoryview else memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _superseded(name: str, newer: int, checkpoint_id: int) -> FlinkError:
    text = (
        f"{name} has uncompleted channelStateFuture of checkpointId={checkpoint_id}, but it received a new timeoutable checkpoint "
        f"barrier of checkpointId={newer}, it maybe a bug due to currently not supported concurrent unaligned checkpoint."
    )
    return FlinkError("IllegalStateException", text)


def _released(checkpoint_id: int) -> FlinkError:
    return FlinkError("IllegalStateException", "The PipelinedSubpartition is released")


def check_index(subpartition: int, count: int) -> None:
    """Raise FlinkError, with Flink's message, if the subpartition does not exist."""
    if not 0 <= subpartition < count:
        raise FlinkError(
            "IndexOutOfBoundsException", f"Subpartition not found. Index: {subpartition}, Size: {count}"
        )


class ResultPartition:
    """A pipelined or blocking partition. It belongs to one task, which awaits the pool if `emit` accepts only a part."""

    __slots__ = (
        "_barriers", "_builders", "_consumed_callbacks", "_data_ended", "_file", "_finished", "_lost",
        "_on_all_data_processed", "_shares", "_unacknowledged", "_unconsumed", "_whole_bytes", "_written",
        "buffers_fit_records", "failure_cause", "is_closed", "is_released", "last_buffer_grows", "name", "on_barriers_sent",
        "on_task_event", "partition_id", "pool", "subpartitions",
    )  # fmt: skip

    def __init__(
        self,
        partition_id: ResultPartitionID,
        subpartitions: int,
        pool: LocalBufferPool,
        *,
        exclusive: int = 2,
        on_consumed: Callable[[ResultPartition], None] | None = None,
        on_all_data_processed: Callback | None = None,
        file: IO[bytes] | None = None,
    ) -> None:
        """`on_consumed` is called when every reader has left and `close` was called; `on_all_data_processed` when every
        reader has acknowledged END_OF_DATA (the task then calls `finish`). A result in a `file` is blocking: it is not
        read before `finish`, and it stays until `release`."""
        self.partition_id = partition_id
        self.pool = pool
        self.failure_cause: FlinkError | None = None
        self._file = None if file is None else ResultFile(file)
        self._whole_bytes = pool.segment_bytes if file is None and pool.has_memory else 0
        """The size of the buffers that are filled at once. 0 if no buffer is."""
        self.name = name = str(partition_id)
        self.subpartitions = [
            PipelinedSubpartition(i, self, name=name, exclusive=exclusive)
            if self._file is None
            else BlockingSubpartition(i, self, self._file, name=name, exclusive=exclusive)
            for i in range(subpartitions)
        ]
        self._builders: list[BufferBuilder | None] = [None] * (subpartitions + 1)
        """The unfinished buffer of each subpartition, and at EVERY the one that all of them share. Never both."""
        self._shares = False
        """Whether the latest buffer is shared."""
        self._written: dict[int, None] = {}
        """Subpartitions that were written since the last flush, or EVERY. Only these are flushed: an
        all-to-all job has far more subpartitions than records."""
        self._unacknowledged = Pending(subpartitions if file is None else 0)
        self._unconsumed = Pending(subpartitions)
        self.is_closed = False
        """Whether its task has ended."""
        self._consumed_callbacks = [] if on_consumed is None else [on_consumed]
        self._on_all_data_processed = on_all_data_processed
        self._barriers: dict[int, set[int]] = {}
        """Subpartitions in which the barrier of the latest checkpoint may still time out."""
        self._lost: dict[int, FlinkError] = {}
        """The latest checkpoints whose output channel state cannot be known any more, until `forget_barriers`."""
        self.on_barriers_sent: Callback = nothing
        """Called when no queued barrier of a checkpoint can time out any more."""
        self.on_task_event: Callable[[Event], None] | None = None
        """Called for each event that a reader sends back; set by the task that subscribes."""
        self.last_buffer_grows = True
        """Whether the last buffer of the pool may grow to a record, instead of waiting for another one."""
        self.buffers_fit_records = True
        """Whether a debloated buffer has room for its first record, and shared buffers are debloated too."""
        self.is_released = False
        self._data_ended = False
        self._finished = False

    # ---- data ----------------------------------------------------------------------------------------------

    def emit(
        self,
        subpartition: int,
        data: BytesLike | np.ndarray[tuple[int, ...], np.dtype[np.void]],
        *,
        offset: int = 0,
        record_bytes: int = 0,
        overdraft: bool = False,
        extend: bool = True,
    ) -> int:
        """Copy framed records (any number, split anywhere) from data[offset:] into buffers of a subpartition, or into buffers
        that EVERY subpartition shares. Return the bytes accepted. Read-only data must never change: buffers may refer to it.

        If not all bytes are accepted, await `pool.when_available` and emit the rest before anything else goes to this
        subpartition. A new buffer has room for the rest of a record of `record_bytes`, even if the debloater asks for less.
        `overdraft` allows buffers beyond the pool's availability, to finish what must not wait. `extend` lets the last buffer
        grow to the record instead of waiting (BufferWritingResultPartition.append); many records would undo the debloater's hint that way.
        After `release`, the records are dropped. Raises FlinkError IllegalStateException after `finish`, and the cause if the
        partition was released with one."""
        self._check_in_produce_state()
        view = byte_view(data)
        position, end = offset, len(view)
        if self.is_released:
            if self.failure_cause is not None:
                raise self.failure_cause
            return end - position
        builder = self._builders[subpartition]
        pool = self.pool
        while position < end:
            if builder is None:
                if self._shares is not (subpartition == EVERY):
                    self._change_mode()
                if not pool.is_available and not overdraft:
                    break
                if self._whole_bytes and (filled := self._fill(subpartition, view, position)):
                    position += filled
                    continue
                least = record_bytes - position % record_bytes if record_bytes else 1
                fits = self.buffers_fit_records or least < record_bytes  # always the rest of a record
                builder = self._new_builder(subpartition, least if fits else 1)
                if builder is None:
                    break
                extend = extend and least >= record_bytes  # not for the rest of a record
            if (
                extend
                and builder.is_trimmed
                and self.last_buffer_grows
                and end - position >= builder.room
                and not pool.is_available
            ):
                builder.trim(builder.written + end - position + 1)  # one byte more, so that it is not full
            position += builder.append(view, position)
            if position < end or not builder.room:
                builder.finished = True
                builder = self._builders[subpartition] = None
        if position > offset:
            self._written[subpartition] = None
        return position - offset

    def _change_mode(self) -> None:
        """Finish what was written for single subpartitions before a buffer is shared, and the other way round, to keep the order."""
        self._shares = not self._shares
        self._finish_builders()

    def _finish_builders(self, indices: Iterable[int] | None = None) -> None:
        """Finish these open buffers, by default all of them: nothing is added to them any more."""
        builders = self._builders
        for index in range(len(builders)) if indices is None else indices:
            builder = builders[index]
            if builder is not None:
                builder.finish()
                builders[index] = None

    def _fill(self, subpartition: int, view: memoryview, position: int) -> int:
        """Fill as many whole segments from view[position:] as are free. Return the number of bytes. Read-only memory is not
        copied: the buffers refer to it."""
        size, target = self._whole_bytes, self.subpartitions[subpartition]
        count = (len(view) - position) // size
        if not count or subpartition == EVERY or 0 < target.buffer_size < size:
            return 0
        segments, start = self.pool.request_run(count, subpartition), position
        home, stable, run = self.pool.home_of(subpartition), view.readonly, []
        for segment in segments:
            data = view[start : start + size]
            start += size
            if not stable:
                segment.view[:] = data
                data = segment.view
            run.append(Buffer(data, _DATA, segment, home))
        if run:
            target.add_run(run)
        return start - position

    def _new_builder(self, subpartition: int, least: int) -> BufferBuilder | None:
        """Return a buffer of the size that the receiver's debloater asks for, with room for `least` bytes. A
        shared buffer has the smallest of all sizes, and counts as a buffer of the first subpartition."""
        builder = self.pool.request_builder(max(0, subpartition))
        if builder is None:
            return None
        self._builders[subpartition] = builder
        targets, shared = self.subpartitions, subpartition == EVERY
        wanted = min([t.buffer_size for t in targets]) if shared else targets[subpartition].buffer_size
        if 0 < wanted < self.pool.segment_bytes and (self.buffers_fit_records or not shared):
            builder.trim(max(wanted, least))
        if not shared:
            targets[subpartition].add(builder)
        else:
            for target, element in zip(targets, builder.share(len(targets)), strict=True):
                target.add(element)
        return builder

    @property
    def is_blocking(self) -> bool:
        """Whether the partition is read only after its end."""
        return self._file is not None

    def flush(self, subpartition: int) -> None:
        """Notify the reader of a subpartition. This finishes the buffer of a blocking result."""
        if self._file is not None:
            self._finish_builders((subpartition, EVERY))
        self.subpartitions[subpartition].flush()

    def flush_all(self) -> None:
        """Notify the reader of each subpartition that has new elements. This finishes the buffers of a blocking result
        (BoundedBlockingResultPartition.flushAll), so the output flusher leaves those out."""
        if self._file is not None:
            self._finish_builders()
        written: Iterable[int] = self._written
        if EVERY in self._written:
            written = range(len(self.subpartitions))
        self._written = {}
        for index in written:
            self.subpartitions[index].flush()

    # ---- events --------------------------------------------------------------------------------------------

    def broadcast_event(self, event: Event) -> None:
        """Send an event to every subpartition, after the emitted data (a priority event overtakes it). Never waits,
        because events need no buffer. Raises FlinkError IllegalStateException after `finish`."""
        self._check_in_produce_state()
        self._broadcast(encode_event(event), data_type_of(event))

    def broadcast_barrier(self, barrier: CheckpointBarrier) -> dict[int, tuple[bytes, ...]]:
        """Send a checkpoint barrier. Return the data that it overtakes, by subpartition: the output channel state.

        A barrier that may time out overtakes nothing yet; call `time_out_barriers` when it does."""
        overtaken = {}
        if barrier.alignment is AlignmentType.UNALIGNED:
            overtaken = {s.index: data for s in self.subpartitions if (data := s.in_flight())}
        elif barrier.is_timeoutable:
            self._lose_barriers(partial(_superseded, self.name, barrier.checkpoint_id))
            self._barriers[barrier.checkpoint_id] = set(range(len(self.subpartitions)))
        self.broadcast_event(barrier)
        return overtaken

    def holds_barrier(self, checkpoint_id: int) -> bool:
        """Whether a barrier of this checkpoint that may time out is queued behind data."""
        return not self.is_released and checkpoint_id in self._barriers

    def time_out_barriers(self, checkpoint_id: int) -> dict[int, tuple[bytes, ...]]:
        """Let the queued barriers of a checkpoint overtake. Return what they overtake, by subpartition. Raises FlinkError
        IllegalStateException if a barrier was still queued when a later one that may time out came, or at `release`."""
        if checkpoint_id in self._lost:
            raise self._lost[checkpoint_id]
        overtaken = {}
        for index in sorted(self._barriers.pop(checkpoint_id, ())):
            data = self.subpartitions[index].overtake(checkpoint_id)
            if data:
                overtaken[index] = data
        return overtaken

    def forget_barriers(self, checkpoint_id: int) -> None:
        """End the wait for the barriers of a checkpoint: they do not time out any more (PipelinedSubpartition.abortCheckpoint)."""
        self._barriers.pop(checkpoint_id, None)
        self._lost.pop(checkpoint_id, None)

    def _lose_barriers(self, error: Callable[[int], FlinkError]) -> None:
        """Fail the channel state of the checkpoints whose barriers are queued."""
        lost = {checkpoint_id: error(checkpoint_id) for checkpoint_id in self._barriers}
        if lost:
            self._lost |= lost
            for checkpoint_id in list(self._lost)[:-MAX_LOST]:
                del self._lost[checkpoint_id]
            self._barriers.clear()
            self.on_barriers_sent()

    def on_barrier_sent(self, index: int) -> None:
        """Record that a subpartition has handed out the newest barrier that could have timed out."""
        for checkpoint_id, left in list(self._barriers.items()):
            left.discard(index)
            if not left:
                del self._barriers[checkpoint_id]
                self.on_barriers_sent()

    def add_recovered(self, subpartition: int, data: bytes, offset: int = 0) -> int:
        """Queue a buffer of output channel state: as much of data[offset:] as fits. Return the number of
        bytes accepted, 0 if the pool has no buffer (ResultSubpartitionRecoveredStateHandler.getBuffer)."""
        builder = self.pool.request_builder()
        if builder is None:
            return 0
        accepted = builder.append(memoryview(data), offset)
        builder.finish()
        self.subpartitions[subpartition].add(builder)
        return accepted

    def end_recovery(self) -> None:
        """Announce that the output channel state is complete. Each subpartition of a pipelined result is blocked until its reader
        resumes: until all producers of that task have recovered (PipelinedResultPartition.finishReadRecoveredState)."""
        if self._file is None:
            self.broadcast_event(EndOfOutputChannelState())

    def notify_end_of_data(self, drain: bool = True) -> None:
        """Announce, once, that no more records follow. Readers acknowledge when they have processed all of them."""
        if not self._data_ended:
            self.broadcast_event(EndOfData(StopMode.DRAIN if drain else StopMode.NO_DRAIN))
            self._data_ended = True

    def finish(self) -> None:
        """Send END_OF_PARTITION after everything else. Raises FlinkError IllegalStateException if it was sent before."""
        self._check_in_produce_state()
        self._finished = True
        self._broadcast(encode_event(EndOfPartition()), DataType.END_OF_PARTITION, last=True)

    def _check_in_produce_state(self) -> None:
        if self._finished:
            raise FlinkError("IllegalStateException", "Partition already finished.")

    def _broadcast(self, payload: bytes, data_type: DataType, *, last: bool = False) -> None:
        event = BufferBuilder.of_event(payload, data_type)
        self._written[EVERY] = None
        self._finish_builders()
        for subpartition in self.subpartitions:
            subpartition.add(event, last=last)

    # ---- readers and the end ---------------------------------------------------------------------------------

    def create_view(self, subpartition: int, on_data: Callback) -> SubpartitionView:
        """Return the view of a reader. Raises FlinkError for an unknown index or a second reader."""
        check_index(subpartition, len(self.subpartitions))
        return self.subpartitions[subpartition].create_view(on_data)

    @property
    def all_data_processed(self) -> bool:
        """Whether every reader has acknowledged END_OF_DATA. A blocking result does not wait for its readers."""
        return not self._unacknowledged

    @property
    def is_consumed(self) -> bool:
        """Whether every reader has left, even early, and the task writes no more. A blocking result can be
        read again."""
        return self.is_closed and not self._unconsumed and self._file is None

    @property
    def queued(self) -> int:
        """Number of elements in all subpartitions: Flink's outputQueueLength."""
        return sum(len(s) for s in self.subpartitions)

    def on_all_data_processed(self, index: int) -> None:
        """Record that a reader has processed everything up to END_OF_DATA."""
        found = self._unacknowledged.discard(index)
        if found and not self._unacknowledged and self._on_all_data_processed is not None:
            self._on_all_data_processed()

    def on_consumed(self, index: int) -> None:
        """Record that a reader has left. It cannot return."""
        self._unconsumed.discard(index)
        self._check_consumed()

    def close(self) -> None:
        """End the use of the partition by its task: other pools may grow. Readers may still read what was written. Idempotent."""
        self.is_closed = True
        self.pool.destroy()
        self._check_consumed()

    def _check_consumed(self) -> None:
        if self.is_consumed and not self.is_released:
            for callback in self._consumed_callbacks:
                callback(self)
            self.release()

    def when_consumed(self, callback: Callable[[ResultPartition], None]) -> None:
        """Add a callback for when every reader has left and the partition was closed."""
        self._consumed_callbacks.append(callback)

    def release(self, cause: FlinkError | None = None) -> None:
        """Release everything including the pool. A cause means that the producer failed. Idempotent; the first cause
        counts."""
        if self.is_released:
            return
        self.is_released = True
        self._lose_barriers(_released)
        self.failure_cause = cause
        self._finish_builders()
        for subpartition in self.subpartitions:
            subpartition.release()
        if self._file is not None:
            self._file.close()
        self.pool.destroy()
