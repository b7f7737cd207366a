"""The producer's end of a connection: handles requests and sends frames of its channels round-robin."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from testbed_runtime.core.errors import FlinkError, HeadgateError, RemoteProtocolError
from testbed_runtime.core.exchange.credit import SequenceViewReader
from testbed_runtime.core.exchange.events import OtherEvent, decode_event
from testbed_runtime.core.exchange.frames import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    ClientFrame,
    CloseRequest,
    ErrorResponse,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    SegmentId,
    ServerFrame,
    TaskEventRequest,
)
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import (
    PartitionRequestListener,
    ResultPartitionManager,
    partition_not_found,
)
from testbed_runtime.core.exchange.subpartition import Run
from testbed_runtime.core.ids import InputChannelID, ResultPartitionID

MAX_WAITING_REQUESTS = 65_536
"""Maximum waiting requests of one connection. Exceeds the channels that any job has between two TaskManagers."""
MAX_CONTROL_FRAMES = 65_536
"""Maximum responses queued while the consumer does not read. Beyond it the connection is closed."""

Outgoing: TypeAlias = "tuple[ServerFrame, Buffer | None]"


class PartitionRequestServer:
    """Flink's PartitionRequestServerHandler and PartitionRequestQueue. `wake` is called when `next_frame` may return a
    frame after it returned None. Once `next_frame` is drained, `closing` says whether to close the connection."""

    __slots__ = (
        "_available", "_control", "_credit_based", "_fatal", "_listeners", "_manager", "_on_data",
        "_readers", "_replaced", "_wake", "closing", "generation",
    )  # fmt: skip

    def __init__(
        self, manager: ResultPartitionManager, wake: Callable[[], None], *, credit_based: bool = True
    ) -> None:
        self._manager = manager
        self._wake = wake
        self._credit_based = credit_based
        self._readers: dict[InputChannelID, SequenceViewReader] = {}
        self._replaced: list[SequenceViewReader] = []
        """Readers of earlier requests with the same receiver. They continue, and are released with the connection."""
        self._available: deque[SequenceViewReader] = deque()
        self._listeners: dict[tuple[InputChannelID, ResultPartitionID], PartitionRequestListener] = {}
        self._control: deque[ServerFrame] = deque()
        self._fatal = False
        self._on_data = self._enqueue
        self.closing = False
        self.generation = 0
        """Counts the changes of `readers`."""

    @property
    def readers(self) -> tuple[SequenceViewReader, ...]:
        """The channels being served."""
        return tuple(self._readers.values())

    @property
    def reader_count(self) -> int:
        return len(self._readers)

    @property
    def waiting(self) -> int:
        """Number of requests of this connection that wait for a partition."""
        return len(self._listeners)

    # ---- out -----------------------------------------------------------------------------------------------

    def has_more(self) -> bool:
        """Whether `next_frame` may return a frame."""
        return bool(self._available or self._control)

    def next_frame(self) -> Outgoing | None:
        """Return the next frame and, for data, the buffer to recycle after sending; or None. An event keeps its bytes."""
        if self._control:
            return self._control.popleft(), None
        while self._available:
            reader = self._available.popleft()
            reader.registered = False
            try:
                taken = reader.poll()
            except FlinkError as refused:
                # a consumer that resumes without being blocked takes back credit that its reader relied on
                self.fail(FlinkError("IOException", refused.message))
                return self._control.popleft(), None
            if taken is not None:
                polled, more = taken
                if more:
                    self._register(reader)
                buffer = polled.buffer
                data_type = buffer.data_type
                frame = BufferResponse(
                    reader.receiver,
                    reader.subpartition,
                    polled.sequence_number,
                    polled.backlog,
                    data_type,
                    buffer.view(),
                    buffer.compressed,
                )
                return frame, buffer if data_type.is_buffer else None
            error = self._released_with_cause(reader)
            if error is not None:
                return error, None
        return None

    def next_run(self, most: int, most_bytes: int) -> tuple[InputChannelID, int, Run] | None:
        """Return receiver, subpartition and several data buffers of the only channel that has something to send, as repeated
        calls of `next_frame` would. None if `next_frame` has to decide. Buffers of more than `most_bytes` are at most one."""
        if len(self._available) != 1 or self._control:
            return None
        reader = self._available[0]
        run, more = reader.poll_run(most, most_bytes)
        if not run.buffers:
            return None
        if not more:
            self._available.popleft()
            reader.registered = False
        return reader.receiver, reader.subpartition, run

    def _released_with_cause(self, reader: SequenceViewReader) -> ErrorResponse | None:
        view = reader.view
        if view is None or not view.is_released or view.failure_cause is None:
            return None
        cause = view.failure_cause
        return ErrorResponse(cause.class_name, cause.message, reader.receiver)

    def _register(self, reader: SequenceViewReader) -> None:
        reader.registered = True
        self._available.append(reader)

    def _enqueue(self, reader: SequenceViewReader) -> None:
        """Queue the reader if it may send. Without exclusive buffers and credit, announce its backlog. A view may call this while
        it is still being created."""
        view = reader.view
        if reader.registered or self._fatal or view is None or view.released:
            return
        available, backlog = view.subpartition.availability(credit=reader.credit > 0)
        if available:
            reader.registered = True
            self._available.append(reader)
            if len(self._available) == 1:  # otherwise woken already
                self._wake()
        elif backlog > 0 and reader.needs_backlog_announcement:
            self._send(BacklogAnnouncement(backlog, reader.receiver))

    def _send(self, frame: ServerFrame) -> None:
        if len(self._control) < MAX_CONTROL_FRAMES:
            self._control.append(frame)
        else:
            self.closing = True
        self._wake()

    # ---- in ------------------------------------------------------------------------------------------------

    def on_frame(self, frame: ClientFrame, now: float) -> None:
        """Handle a frame of the consumer. Invalid frames never raise: like Flink, answer with a fatal ErrorResponse."""
        if self._fatal:
            return
        try:
            if type(frame) is AddCredit:
                reader = self._readers.get(frame.receiver) or self._reader(frame.receiver)
                reader.add_credit(frame.credit)
                if not reader.registered:
                    self._enqueue(reader)
            elif type(frame) is ResumeConsumption:
                reader = self._readers.get(frame.receiver) or self._reader(frame.receiver)
                reader.resume_consumption()
                self._enqueue(reader)
            else:
                self._dispatch(frame, now)
        except FlinkError as error:
            self._send(ErrorResponse(error.class_name, error.message))
        except RemoteProtocolError as error:
            self.fail(error)

    def _dispatch(self, frame: ClientFrame, now: float) -> None:
        match frame:
            case PartitionRequest():
                self._on_request(frame, now)
            case AckAllUserRecordsProcessed(receiver):
                view = self._reader(receiver).view
                if view is not None:
                    view.acknowledge_all_data_processed()
            case NewBufferSize(size, receiver):
                known = self._readers.get(receiver)
                if known is not None and known.view is not None:
                    known.view.notify_new_buffer_size(size)
            case CancelPartitionRequest(receiver):
                self._cancel(receiver)
            case CloseRequest():
                self.on_closed()
                self._fatal = self.closing = True
                self._wake()
            case TaskEventRequest():
                self._on_task_event(frame)
            case SegmentId():
                pass  # hybrid shuffle only

    def _on_task_event(self, request: TaskEventRequest) -> None:
        event = decode_event(request.event)
        if not isinstance(event, OtherEvent):
            text = f"class {type(event).__name__} cannot be cast to class TaskEvent"
            raise RemoteProtocolError(text, "java.lang.ClassCastException")
        if not self._manager.publish(request.partition, event):
            text = "Task event receiver not found."
            self._send(ErrorResponse("IllegalArgumentException", text, request.receiver))

    def _reader(self, receiver: InputChannelID) -> SequenceViewReader:
        reader = self._readers.get(receiver)
        if reader is None:
            raise FlinkError("IllegalStateException", f"No reader for receiverId = {receiver.hex()} exists.")
        return reader

    def _on_request(self, request: PartitionRequest, now: float) -> None:
        reader = SequenceViewReader(
            request.receiver,
            request.first_subpartition,
            request.initial_credit,
            credit_based=self._credit_based,
        )
        if request.first_subpartition != request.last_subpartition:
            raise FlinkError(
                "UnsupportedOperationException",
                f"A pipelined partition serves one subpartition per channel, not {request.first_subpartition} to "
                f"{request.last_subpartition}.",
            )
        if len(self._listeners) >= MAX_WAITING_REQUESTS:
            raise FlinkError(
                "IllegalStateException",
                f"No further request for receiverId = {request.receiver.hex()} is possible.",
            )
        partition = self._manager.get(request.partition)
        if partition is not None:
            self._serve(reader, partition)
        elif self._manager.waits:
            listener = PartitionRequestListener(
                request.partition,
                now,
                partial(self._on_registered, reader),
                partial(self._on_timeout, request),
            )
            waiting = self._withdraw(request.receiver, request.partition)
            self._listeners[request.receiver, request.partition] = listener
            self._manager.listen(listener)
            if waiting:
                text = (
                    f"Partition request listener with receiver {request.receiver.hex()} has been registered."
                )
                raise FlinkError("IllegalStateException", text)
        else:
            self._not_found(request)

    def _serve(self, reader: SequenceViewReader, partition: ResultPartition) -> None:
        reader.view = partition.create_view(reader.subpartition, partial(self._on_data, reader))
        self._forget(reader.receiver)
        self._readers[reader.receiver] = reader
        self.generation += 1
        self._enqueue(reader)

    def _on_registered(self, reader: SequenceViewReader, partition: ResultPartition) -> None:
        self._listeners.pop((reader.receiver, partition.partition_id), None)
        try:
            self._serve(reader, partition)
        except FlinkError as error:
            self._send(ErrorResponse(error.class_name, error.message))

    def _on_timeout(self, request: PartitionRequest) -> None:
        self._listeners.pop((request.receiver, request.partition), None)
        self._forget(request.receiver)
        self._not_found(request)

    def _not_found(self, request: PartitionRequest) -> None:
        error = partition_not_found(request.partition)
        self._send(ErrorResponse(error.class_name, error.message, request.receiver))

    # ---- the end -------------------------------------------------------------------------------------------

    def _withdraw(self, receiver: InputChannelID, partition: ResultPartitionID) -> bool:
        """Withdraw a waiting request. Return False if no request waits."""
        listener = self._listeners.pop((receiver, partition), None)
        if listener is not None:
            self._manager.withdraw(listener)
        return listener is not None

    def _forget(self, receiver: InputChannelID) -> None:
        """Replace a reader with the reader of a newer request. The old one continues with its remaining
        credit."""
        reader = self._readers.pop(receiver, None)
        if reader is not None:
            self.generation += 1
            self._replaced.append(reader)

    def _cancel(self, receiver: InputChannelID) -> None:
        """Release a reader. A waiting request keeps waiting."""
        reader = self._readers.pop(receiver, None)
        if reader is not None:
            self.generation += 1
            self._release(reader)

    def _release(self, reader: SequenceViewReader) -> None:
        if reader.registered:
            self._available.remove(reader)
            reader.registered = False
        if reader.view is not None:
            reader.view.release()

    def fail(self, error: HeadgateError) -> None:
        """Release all readers, send the error and close, after invalid input or an internal error."""
        if self._fatal:
            return
        self.on_closed()
        self._fatal = self.closing = True
        if isinstance(error, RemoteProtocolError):  # Netty's decoder wraps what reading a message raises
            error = FlinkError("DecoderException", f"{error.java_class}: {error}")
        class_name = error.class_name if isinstance(error, FlinkError) else "IllegalStateException"
        message = error.message if isinstance(error, FlinkError) else str(error)
        self._send(ErrorResponse(class_name, message))

    def on_closed(self) -> None:
        """Release every reader and withdraw every waiting request after the connection closed. Idempotent."""
        for receiver, partition in list(self._listeners):
            self._withdraw(receiver, partition)
        for receiver in list(self._readers):
            self._cancel(receiver)
        for reader in self._replaced:
            self._release(reader)
        self._replaced.clear()
        self._control.clear()
