"""A subpartition: the queue between a task and one reader (Flink's PipelinedSubpartition and its view)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import CheckpointBarrier, decode_event, encode_event
from testbed_runtime.core.exchange.frames import LAST_SEQUENCE_NUMBER, DataType, next_sequence_number
from testbed_runtime.core.exchange.javaser import producer_failed
from testbed_runtime.core.exchange.memory import Buffer, BufferBuilder, BufferConsumer, recycle_all
from testbed_runtime.core.values import MAX_INT

if TYPE_CHECKING:
    from testbed_runtime.core.exchange.blocking import BlockingReading

_UNFINISHED_HEAD = "When there are multiple buffers, an unfinished bufferConsumer can not be at the head of the buffers queue."
_NONE = DataType.NONE
_DATA_BUFFER = DataType.DATA_BUFFER
_TIMEOUTABLE = DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
_END = DataType.END_OF_PARTITION
_ONLY_BUFFERS = {Buffer}


def nothing() -> None:
    """Do nothing: the callback of what has been released, which must not keep its owner."""


class Polled(Struct, frozen=True, gc=False):
    """An element handed to the reader."""

    buffer: Buffer
    backlog: int
    """Number of data buffers queued behind this element."""
    next_type: DataType
    """Type of the next element that can be polled now; NONE if there is no such element."""
    sequence_number: int


class Run(Struct, frozen=True, gc=False):
    """Data buffers handed to the reader together. The numbers are those of the first buffer. With each
    further buffer, the backlog falls by one, and the sequence number rises by one without wrapping."""

    buffers: Sequence[Buffer] = ()
    backlog: int = 0
    sequence: int = 0
    size: int = 0
    """The size of each buffer, if all of them are full segments of uncompressed data; 0 if they may differ."""

    def __iter__(self) -> Iterator[tuple[Buffer, int, int]]:
        """Yield each buffer with its backlog and sequence number."""
        for number, buffer in enumerate(self.buffers):
            yield buffer, self.backlog - number, self.sequence + number


Element: TypeAlias = BufferBuilder | Buffer | BufferConsumer
NO_RUN = Run()


class SendReason(IntEnum):
    """Why a data buffer was handed to the reader."""

    FULL = 0
    TIMEOUT = 1
    """A flush: the output flusher's, after `execution.buffer-timeout.interval`, or after each record if that is 0."""
    EVENT = 2
    """An event follows the buffer, or overtakes it."""


_FULL, _EVENT = SendReason.FULL, SendReason.EVENT


class SubpartitionOwner(Protocol):
    """The partition, as seen by its subpartitions."""

    @property
    def failure_cause(self) -> FlinkError | None: ...

    def on_all_data_processed(self, index: int) -> None: ...

    def on_consumed(self, index: int) -> None: ...

    def on_barrier_sent(self, index: int) -> None: ...

    def release(self, cause: FlinkError | None = None) -> None: ...


def consumed_once(index: int, name: str) -> FlinkError:
    """Return the error that a second reader gets."""
    return FlinkError(
        "IllegalStateException",
        f"Subpartition {index} of is being (or already has been) consumed, but pipelined subpartitions can only be consumed "
        f"once. [{name}]",
    )


class PipelinedSubpartition:
    """A queue of elements with a section for priority events at its head. Read once, by one view."""

    __slots__ = (
        "_buffers",
        "_finished",
        "_flush_reason",
        "_flush_requested",
        "_owner",
        "_priority",
        "_sequence",
        "_timeoutable",
        "_was_read",
        "backlog_buffers",
        "buffer_size",
        "end_delivered",
        "exclusive",
        "has_priority",
        "index",
        "is_blocked",
        "is_released",
        "name",
        "priority_passes_block",
        "sent",
        "view",
    )

    def __init__(self, index: int, owner: SubpartitionOwner, *, name: str = "", exclusive: int = 2) -> None:
        self.index = index
        self.name = name
        self.exclusive = exclusive
        """Exclusive buffers per channel at the receiver. With 0, empty buffers must be sent too, to free their credit."""
        self.view: SubpartitionView | None = None
        self.backlog_buffers = 0
        """Number of queued data buffers, including the last, unfinished one."""
        self.buffer_size = MAX_INT
        """Buffer size announced by the receiver's debloater, in bytes."""
        self.sent = [0] * len(SendReason)
        """Number of data buffers handed to the reader, by SendReason."""
        self.end_delivered = False
        self.priority_passes_block = True
        """Whether a priority event is handed out although the subpartition is blocked, as from Flink 2.3 on."""
        self._owner = owner
        self.has_priority = False
        """Whether the first element is a priority event whose reader was notified of it. One that was added while the subpartition was
        blocked, or behind another, comes with the next notification about data (PipelinedSubpartition.needNotifyPriorityEvent)."""
        self._priority: list[Element] = []
        self._buffers: list[Element] = []
        self._flush_requested = False
        self._flush_reason = SendReason.TIMEOUT
        self.is_blocked = False
        """Whether a blocking event was handed out and the reader has not resumed yet."""
        self._finished = False
        self.is_released = False
        self._was_read = False
        self._sequence = 0
        self._timeoutable: Element | None = None
        """The newest barrier that may time out, while it is queued. Older ones that were aborted cannot."""

    def __len__(self) -> int:
        return len(self._priority) + len(self._buffers)

    @property
    def failure_cause(self) -> FlinkError | None:
        """The failure of the producer, as it is reported to readers."""
        cause = self._owner.failure_cause
        return None if cause is None else producer_failed(cause)

    # ---- the producer's side -------------------------------------------------------------------------------

    def add(self, element: Element, *, last: bool = False) -> bool:
        """Queue a builder or an event; `last` marks END_OF_PARTITION. If the subpartition is finished or released, release
        the element and return False."""
        if self._finished or self.is_released:
            element.release()
            return False
        if element.data_type.has_priority:
            self._add_priority(element)
            if len(self._priority) == 2 and not (self._buffers or self._flush_requested or self.is_blocked):
                self._notify()
            return True
        self._buffers.append(element)
        if element.is_buffer:
            self.backlog_buffers += 1
        elif element.data_type is _TIMEOUTABLE:
            self._timeoutable = element
        self._finished = last
        if last or not (self._flush_requested or self.is_blocked):
            size = len(self._priority) + len(self._buffers)
            # only the second element makes the first one readable, unless that one was complete from the start
            if self.view is not None and (last or size == 2 or (size == 1 and element.known_finished)):
                self.view.on_data()
        return True

    def add_run(self, run: list[Buffer]) -> None:
        """Queue buffers together, as `add` does one by one."""
        if self._finished or self.is_released:
            recycle_all(run)
            return
        before = len(self._priority) + len(self._buffers)
        self._buffers += run
        self.backlog_buffers += len(run)
        if before < 2 <= before + len(run) and not (self._flush_requested or self.is_blocked):
            self._notify()

    def _add_priority(self, element: Element) -> None:
        """Queue a priority event. It does not flush the data that it overtakes (PipelinedSubpartition.add)."""
        self._priority.append(element)
        if len(self._priority) == 1 and (self.priority_passes_block or not self.is_blocked):
            self.has_priority = self.view is not None
            self._notify()

    def in_flight(self) -> tuple[bytes, ...]:
        """Return copies of the queued data: what a barrier overtakes."""
        return self._unread(self._buffers)

    @staticmethod
    def _unread(elements: list[Element]) -> tuple[bytes, ...]:
        return tuple(e.unread() for e in elements if e.is_buffer and e.readable)

    def overtake(self, checkpoint_id: int) -> tuple[bytes, ...] | None:
        """Let the queued barrier of a checkpoint overtake the data before it. Return copies of that data, or None if the
        barrier is not queued."""
        element = self._timeoutable
        barrier = None if element is None else decode_event(element.unread())
        if not isinstance(barrier, CheckpointBarrier) or barrier.checkpoint_id != checkpoint_id:
            return None
        self._timeoutable = None
        position = next(i for i, queued in enumerate(self._buffers) if queued is element)
        del self._buffers[position]
        unaligned = encode_event(barrier.as_unaligned())
        self._add_priority(BufferBuilder.of_event(unaligned, DataType.PRIORITIZED_EVENT_BUFFER))
        return self._unread(self._buffers[:position])

    def flush(self, reason: SendReason = SendReason.TIMEOUT) -> None:
        """Make written data readable before its buffer is full. This only notifies the reader."""
        if self._flush_requested or not (self._buffers or self._priority):
            return
        size = len(self._priority) + len(self._buffers)
        single = size == 1 and (bool(self._priority) or self._buffers[0].readable > 0)
        self._flush_requested, self._flush_reason = size > 1 or single, reason
        if single and self.view is not None and not self.is_blocked:
            self.view.on_data()

    def release(self) -> None:
        """Release all elements. The reader is not notified, because a failed producer sends nothing; it notices the release at its next
        poll."""
        if self.is_released:
            return
        self.is_released = True
        for element in (*self._priority, *self._buffers):
            element.release()
        self._priority.clear()
        self.has_priority = False
        self._buffers.clear()
        self._timeoutable = None
        self.backlog_buffers = 0

    def _notify(self) -> None:
        if self.view is not None:
            self.view.on_data()

    # ---- the reader's side ---------------------------------------------------------------------------------

    def create_view(self, on_data: Callable[[], None]) -> SubpartitionView:
        """Return the view of the only reader. Raises FlinkError IllegalStateException for a second one."""
        if self.is_released:
            raise FlinkError("IllegalStateException", "Already released.")
        if self._was_read:
            raise consumed_once(self.index, self.name)
        self._was_read = True
        self.view = SubpartitionView(self, on_data)
        if len(self):
            self._notify()
        return self.view

    def poll(self) -> Polled | None:
        """Return the next element, or None if there is none or the subpartition is blocked."""
        if self._priority and (self.priority_passes_block or not self.is_blocked):
            if len(self) == 1:
                self._flush_requested = False
            element = self._priority.pop(0)
            self.has_priority = False
            return self._polled(element, element.build())
        if self.is_blocked:
            return None
        buffers = self._buffers
        if not buffers:
            self._flush_requested = False
            return None
        while buffers:
            element = buffers[0]
            finished = element.finished
            if len(buffers) == 1:
                self._flush_requested = False
            elif not finished:
                raise FlinkError("IllegalStateException", _UNFINISHED_HEAD)
            if not element.is_buffer or element.readable or (finished and self.exclusive == 0):
                if not finished:
                    self.sent[self._flush_reason] += 1
                    return self._polled(element, element.build())
                if element.is_buffer:
                    self.sent[_FULL if element.is_full else _EVENT] += 1
                buffers.pop(0)
                self.backlog_buffers -= element.is_buffer
                return self._polled(element, element.build_last())
            if not finished:
                return None
            buffers.pop(0)
            self.backlog_buffers -= element.is_buffer
            element.release()
        return None

    def poll_run(self, most: int, most_bytes: int) -> tuple[Run, DataType]:
        """Return the next data buffers as repeated calls of `poll` would, at most up to the last element of the queue, and the
        type of the element after them. Empty if `poll` has to decide. Stops once `most_bytes` are reached."""
        buffers, sequence = self._buffers, self._sequence
        queued = len(buffers)
        if queued < 2 or self._priority or self.is_blocked:
            return NO_RUN, _NONE
        count = min(most if most < queued else queued - 1, LAST_SEQUENCE_NUMBER - sequence)
        run, early, size = self._built(buffers[:count], most_bytes)
        if not run:
            return NO_RUN, _NONE
        count = len(run)
        backlog = self.backlog_buffers - 1
        if not (self._flush_requested or self._finished) and buffers[-1].is_buffer:
            backlog -= 1
        del buffers[:count]
        self.backlog_buffers -= count
        self._sequence = sequence + count
        self.sent[_FULL] += count - early
        if early:
            self.sent[_EVENT] += early
        only = len(buffers) == 1 and not (self._flush_requested or buffers[0].known_finished)
        return Run(run, backlog, sequence, size), _NONE if only else buffers[0].data_type

    @staticmethod
    def _built(elements: list[Element], most_bytes: int) -> tuple[Sequence[Buffer], int, int]:
        """Return the data buffers at the front of the elements, how many of them are not full, and `Run.size`."""
        if set(map(type, elements)) == _ONLY_BUFFERS:
            full: list[Buffer] = elements  # type: ignore[assignment]
            size = len(full[0].view())
            return full[: -(-most_bytes // size)], 0, size
        run: list[Buffer] = []
        total = early = 0
        for element in elements:
            if total >= most_bytes:
                break
            size = element.readable if element.finished and element.is_buffer else 0
            if not size:
                break
            total += size
            early += not element.is_full
            run.append(element.build_last())
        return run, early, 0

    def _polled(self, element: Element, buffer: Buffer) -> Polled:
        data_type = element.data_type
        if data_type is not _DATA_BUFFER:
            self.is_blocked = self.is_blocked or data_type.is_blocking_upstream
            if element is self._timeoutable:
                self._timeoutable = None
                self._owner.on_barrier_sent(self.index)
            self.end_delivered = self.end_delivered or data_type is _END
        sequence = self._sequence
        self._sequence = next_sequence_number(sequence)
        buffers = self._buffers
        if self.is_blocked or not (buffers or self._priority):
            return Polled(buffer, 0, _NONE, sequence)
        if self._priority:
            return Polled(buffer, self.backlog, self._priority[0].data_type, sequence)
        # the usual case of the two properties, in one
        flushed = self._flush_requested
        grows = not (flushed or self._finished) and buffers[-1].is_buffer
        first = buffers[0]
        next_type = first.data_type if flushed or len(buffers) > 1 or first.known_finished else _NONE
        return Polled(buffer, self.backlog_buffers - grows, next_type, sequence)

    @property
    def backlog(self) -> int:
        """The reported backlog: without the last, still growing buffer unless it was flushed; 0 while blocked."""
        buffers = self._buffers
        if self.is_blocked or not (buffers or self._priority):
            return 0
        if self._flush_requested or self._finished or not (buffers and buffers[-1].is_buffer):
            return self.backlog_buffers
        return max(0, self.backlog_buffers - 1)

    def _next_type(self) -> DataType:
        if self._priority:
            return self._priority[0].data_type
        return self._buffers[0].data_type if self._buffers else _NONE

    def availability(self, *, credit: bool) -> tuple[bool, int]:
        """Return whether an element may be sent now (without credit, only an event may), and the reported backlog."""
        if not credit:
            return self._next_type().is_event, self.backlog
        if self.is_blocked:
            return False, 0
        buffers, flushed = self._buffers, self._flush_requested
        if self._priority or not buffers:
            return flushed or bool(self._priority), self.backlog
        grows = not (flushed or self._finished) and buffers[-1].is_buffer
        return flushed or len(buffers) > 1 or buffers[0].known_finished, self.backlog_buffers - grows

    def resume(self) -> None:
        if not self.is_blocked:
            raise FlinkError("IllegalStateException", "Should be blocked by checkpoint.")
        self.is_blocked = False

    def set_buffer_size(self, size: int) -> None:
        if size < 0:
            raise FlinkError("IllegalArgumentException", "New buffer size can not be less than zero")
        self.buffer_size = size

    def on_all_data_processed(self) -> None:
        self._owner.on_all_data_processed(self.index)

    def on_view_released(self) -> None:
        self.view = None
        self._owner.on_consumed(self.index)


class SubpartitionView:
    """The reader's handle on a subpartition. `on_data` is called when an element becomes available."""

    __slots__ = ("on_data", "released", "subpartition")

    def __init__(
        self, subpartition: PipelinedSubpartition | BlockingReading, on_data: Callable[[], None]
    ) -> None:
        """`subpartition` is a queue that is consumed once, or one reading of a blocking result."""
        self.subpartition = subpartition
        self.on_data = on_data
        self.released = False
        """Whether the reader released the view. The partition may be released without that."""

    def poll(self) -> Polled | None:
        return None if self.released else self.subpartition.poll()

    def poll_run(self, most: int, most_bytes: int) -> tuple[Run, DataType]:
        """Return several data buffers at once; see `PipelinedSubpartition.poll_run`."""
        return (NO_RUN, _NONE) if self.released else self.subpartition.poll_run(most, most_bytes)

    def availability(self, *, credit: bool) -> tuple[bool, int]:
        """Return whether an element may be sent now, and the reported backlog."""
        return (False, 0) if self.released else self.subpartition.availability(credit=credit)

    def resume_consumption(self) -> None:
        self.subpartition.resume()

    def acknowledge_all_data_processed(self) -> None:
        self.subpartition.on_all_data_processed()

    def notify_new_buffer_size(self, size: int) -> None:
        self.subpartition.set_buffer_size(size)

    @property
    def is_released(self) -> bool:
        """Whether the reader released the view, or the partition was released."""
        return self.released or self.subpartition.is_released

    @property
    def failure_cause(self) -> FlinkError | None:
        return self.subpartition.failure_cause

    def release(self) -> None:
        """Release the view. Queued elements stay with the partition until it is released; they cannot be read again."""
        if not self.released:
            self.released = True
            self.on_data = nothing
            self.subpartition.on_view_released()
