"""The base of input channels, and the channel to a producer over a connection, with credit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError, LocalProtocolError, RemoteProtocolError
from testbed_runtime.core.exchange.arrivals import Head
from testbed_runtime.core.exchange.backoff import RemoteBackoff
from testbed_runtime.core.exchange.barriers import BARRIER_TYPES, ArrivedBarriers
from testbed_runtime.core.exchange.credit import BufferManager, ChannelStats
from testbed_runtime.core.exchange.events import (
    CheckpointBarrier,
    Event,
    EventAnnouncement,
    encode_event,
)
from testbed_runtime.core.exchange.frames import (
    AckAllUserRecordsProcessed,
    ClientFrame,
    DataType,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    TaskEventRequest,
    next_sequence_number,
)
from testbed_runtime.core.exchange.javaser import as_io_exception
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partitions import partition_not_found
from testbed_runtime.core.ids import InputChannelID, ResultPartitionID
from testbed_runtime.core.values import java_int

_RELEASED = "Queried for a buffer after channel has been released."
_CHANNEL_RELEASED = "Channel released."
_NO_CLIENT = "Bug: partitionRequestClient is not initialized before processing data and no error is detected."


class Taken(Struct, frozen=True, gc=False):
    """One item that a channel hands to its gate."""

    buffer: Buffer
    more_available: bool
    more_priority: bool
    sequence_number: int


class ChannelOwner(Protocol):
    """The gate, as seen by its channels."""

    def on_channel_ready(self, index: int, *, priority: bool) -> None: ...

    def on_partition_not_found(self, channel: RemoteInputChannel) -> None: ...


class ChannelClient(Protocol):
    """The connection to the producer, as seen by a remote channel (`client.PartitionRequestClient`)."""

    def send(self, frame: ClientFrame, channel: RemoteInputChannel | None = None) -> None: ...

    def announce_credit(self, channel: RemoteInputChannel) -> None: ...

    def remove(self, channel: RemoteInputChannel) -> None: ...


class InputChannelBase:
    """The part that remote and local channels share: identity, the first error, the release."""

    __slots__ = (
        "_owner",
        "answered",
        "buffers_in",
        "error",
        "index",
        "is_released",
        "next_deadline",
        "partition",
        "requests",
        "subpartition",
    )

    def __init__(
        self, index: int, partition: ResultPartitionID, subpartition: int, owner: ChannelOwner
    ) -> None:
        self.index = index
        self.partition = partition
        self.subpartition = subpartition
        self.error: FlinkError | None = None
        self.is_released = False
        self.answered = False
        """Whether the producer has responded: an element or backlog arrived or, for a local channel, the view
        exists."""
        self.requests = 0
        """Number of partition requests sent."""
        self.next_deadline: float | None = None
        """When `on_time` sends the next request."""
        self.buffers_in = 0
        """Number of data buffers received."""
        self._owner = owner

    def on_error(self, error: FlinkError) -> None:
        """Fail the channel: the next `take` raises this error, or an IOException with it. Only the first error counts."""
        self._fail(as_io_exception(error))

    def _fail(self, error: FlinkError) -> None:
        if self.error is None and not self.is_released:
            self.error = error
            self.next_deadline = None
            self._owner.on_channel_ready(self.index, priority=False)

    def check_open(self, text: str = _CHANNEL_RELEASED) -> None:
        """Raise FlinkError IllegalStateException if the channel is released."""
        if self.is_released:
            raise FlinkError("IllegalStateException", text)


class RemoteInputChannel(InputChannelBase):
    """A channel over a connection. Data buffers cost announced credit, events are free."""

    __slots__ = (
        "_backlog",
        "_barriers",
        "_client",
        "_expected",
        "_priority",
        "_queue",
        "backoff",
        "buffers",
        "receiver",
    )

    def __init__(
        self,
        index: int,
        partition: ResultPartitionID,
        subpartition: int,
        owner: ChannelOwner,
        *,
        receiver: InputChannelID,
        backoff: RemoteBackoff,
    ) -> None:
        super().__init__(index, partition, subpartition, owner)
        self.receiver = receiver
        self.backoff = backoff
        self.buffers: BufferManager | None = None
        self._client: ChannelClient | None = None
        self._queue: list[tuple[Buffer, int]] = []
        self._priority: list[tuple[Buffer, int]] = []
        self._expected = 0
        self._barriers = ArrivedBarriers()
        self._backlog = 0

    # ---- requests ------------------------------------------------------------------------------------------

    def attach(self, client: ChannelClient) -> None:
        """Set the client. Called by the client when it registers the channel."""
        self._client = client

    def send_request(self) -> None:
        """Send a PartitionRequest with the initial credit (the same at each retrigger)."""
        if self.is_released or self.error is not None:
            return
        self.next_deadline = None
        self.requests += 1
        self._require_client().send(
            PartitionRequest(
                self.partition,
                self.subpartition,
                self.subpartition,
                self.receiver,
                self._manager.initial_credit,
            )
        )

    def on_failed_partition_request(self) -> None:
        """Handle an unknown partition at the producer: the owner asks the JobManager, then retriggers or fails. As in Flink, also if the
        channel has failed already."""
        if not self.is_released:
            self._owner.on_partition_not_found(self)

    def retrigger(self, now: float) -> float | FlinkError:
        """Request again. Return the seconds until the request is sent (0: already sent; otherwise `on_time` sends it at
        `next_deadline`), or, once the retries are used up, the failure, which `take` raises too."""
        self._require_client()
        if not self.backoff.used:
            self.backoff = self.backoff.fresh()  # until now it is shared with other channels
        delay = self.backoff.retrigger()
        if delay is None:
            failure = partition_not_found(self.partition)
            self.on_error(failure)
            return failure
        if delay > 0:
            self.next_deadline = now + delay
        else:
            self.send_request()
        return delay

    def on_time(self, now: float) -> None:
        if self.next_deadline is not None and now >= self.next_deadline:
            self.send_request()

    # ---- what arrives ----------------------------------------------------------------------------------------

    def request_buffer(self) -> Buffer | None:
        """Return a buffer for incoming data. None means that the sender had no credit."""
        return None if self.buffers is None else self.buffers.request_buffer()

    def request_buffer_or_wait(self, callback: Callable[[], None]) -> Buffer | None:
        """Legacy mode: return a buffer, or call `callback` once when one is free or the channel is released."""
        return self._manager.request_or_wait(callback)

    def on_buffer(self, buffer: Buffer, sequence: int, backlog: int) -> None:
        """Handle an element of the subpartition, a data buffer or an event. Ownership passes to the channel."""
        if self.is_released or sequence != self._expected:
            self._refuse(sequence)
            buffer.recycle()
            return
        self._expected = next_sequence_number(sequence)
        self.answered = True
        data_type, manager = buffer.data_type, self.buffers or self._manager
        if not data_type.is_buffer:
            unusual = backlog or not manager.initial_credit
            if data_type.is_blocking_upstream and unusual and not self._may_block(buffer, backlog):
                self._expected = sequence  # what follows is refused
                return
            self._queue_event(buffer, sequence)
        else:
            self.buffers_in += 1
            was_empty = not self._queue and not self._priority
            self._queue.append((buffer, sequence))
            if was_empty:
                self._owner.on_channel_ready(self.index, priority=False)
        if backlog >= 0:
            self._backlog = backlog
            manager.on_sender_backlog(backlog)

    def on_run(self, view: memoryview, heads: list[Head]) -> list[Buffer]:
        """Handle the data buffers that these heads describe, as `request_buffer` and `on_buffer` would one
        by one. Return the handled buffers; their bytes are still in `view`. The other heads need the usual
        way."""
        manager, expected = self.buffers, self._expected
        if manager is None or self.is_released or heads[0][2] != expected:
            return []
        buffers = manager.receive_run(view, heads)
        taken = len(buffers)
        if taken:
            last = heads[taken - 1]
            self._expected = next_sequence_number(last[2])
            self.answered = True
            self.buffers_in += taken
            self._backlog = last[3]
            was_empty = not self._queue and not self._priority
            self._queue += zip(buffers, range(expected, expected + taken), strict=True)
            if was_empty:
                self._owner.on_channel_ready(self.index, priority=False)
        return buffers

    def _may_block(self, event: Buffer, backlog: int) -> bool:
        """Handle a blocking event. Return False, and fail the channel, if the sender reports a backlog behind it."""
        if self._manager.initial_credit == 0:
            self._manager.release_floating()
        if backlog == 0:
            return True
        event.recycle()
        text = f"Illegal number of backlog: {backlog}, should be 0."
        self.on_error(FlinkError("IllegalArgumentException", text))
        return False

    def _queue_event(self, event: Buffer, sequence: int) -> None:
        first_priority = not self._priority
        was_empty = first_priority and not self._queue
        priority = event.data_type.has_priority
        if priority:
            self._priority.append((event, sequence))
        else:
            self._queue.append((event, sequence))
        if event.data_type in BARRIER_TYPES:
            try:
                barrier = self._barriers.arrive(event, sequence)
            except RemoteProtocolError as error:
                self._expected = sequence  # what follows is refused
                self.on_error(FlinkError("IOException", str(error)))
                return
            if barrier is not None and event.data_type.requires_announcement:
                self._announce_barrier(barrier, sequence)
                priority = True
        if was_empty or (priority and first_priority):
            self._owner.on_channel_ready(self.index, priority=priority)

    def on_empty_buffer(self, sequence: int, backlog: int) -> None:
        """Handle a data buffer without bytes. It used a credit, gives that back, and counts in the
        sequence."""
        if self.is_released or sequence != self._expected:
            self._refuse(sequence)
            return
        self._expected = next_sequence_number(sequence)
        self.answered = True
        self.buffers_in += 1
        if backlog >= 0:
            self.on_sender_backlog(backlog)

    def on_sender_backlog(self, backlog: int) -> None:
        """Request as many buffers as the sender has in its backlog, and announce them. Raises the channel's error if it has failed
        and there is new credit."""
        self.answered = True
        self._backlog = backlog
        manager = self._manager
        announced = manager.unannounced > 0
        manager.on_sender_backlog(backlog)
        if self.error is not None and not announced and manager.unannounced and not self.is_released:
            raise self.error

    def _refuse(self, sequence: int) -> None:
        """Refuse an element because the channel is released or the sequence is broken."""
        if not self.is_released:
            self.answered = True
            self.on_error(
                FlinkError(
                    "BufferReorderingException",
                    f"Buffer re-ordering: expected buffer with sequence number {self._expected}, "
                    f"but received {sequence}.",
                )
            )

    def _announce_barrier(self, barrier: CheckpointBarrier, sequence: int) -> None:
        """Announce, ahead of the queued data, a barrier that may time out."""
        payload = encode_event(EventAnnouncement(sequence, barrier))
        announcement = Buffer.unpooled(payload, DataType.PRIORITIZED_EVENT_BUFFER)
        self._priority.append((announcement, sequence))

    # ---- the gate's side -------------------------------------------------------------------------------------

    def take(self) -> Taken | None:
        """Return the next element, priority events first. Raises the channel's error; FlinkError IllegalStateException if nothing
        was requested yet, and CancelTaskException if the channel is released."""
        if self.error is not None or not (self._queue or self._priority):
            self._require_client()
            if self.is_released:
                raise FlinkError("CancelTaskException", _RELEASED)
            return None
        if self._priority:
            buffer, sequence = self._priority.pop(0)
            self._barriers.take(sequence)
            more_priority = bool(self._priority)
            return Taken(buffer, more_priority or bool(self._queue), more_priority, sequence)
        buffer, sequence = self._queue.pop(0)
        if not buffer.data_type.is_buffer:
            self._barriers.take(sequence)
        return Taken(buffer, bool(self._queue), False, sequence)

    def take_run(self, most: int) -> tuple[list[Buffer], bool] | None:
        """Return up to `most` data buffers from the head of the queue, and whether more elements follow. None
        if an event is next, or nothing: `take` tells which."""
        if (
            self._priority
            or self.error is not None
            or not self._queue
            or not self._queue[0][0].data_type.is_buffer
        ):
            return None
        run: list[Buffer] = []
        for buffer, _ in self._queue[:most]:
            if not buffer.data_type.is_buffer:
                break
            run.append(buffer)
        del self._queue[: len(run)]
        return run, bool(self._queue)

    def checkpoint_started(self, checkpoint: int) -> None:
        """Begin to persist for an unaligned checkpoint. Raises FlinkError CheckpointException if the barrier of a newer one has
        arrived."""
        self._barriers.check_newest(checkpoint)

    def in_flight(self, checkpoint: int) -> tuple[bytes, ...]:
        """Return copies of the queued data that belongs to a checkpoint (RemoteInputChannel.getInflightBuffers). Raises FlinkError
        CheckpointException if only the barrier of a newer one is known."""
        return self._barriers.in_flight(self._queue, checkpoint)

    def prioritize(self, sequence: int) -> None:
        """Let the queued event with this sequence number overtake the data before it."""
        for position, item in enumerate(self._queue):
            if item[1] == sequence and not item[0].is_buffer:
                self._priority.append(self._queue.pop(position))
                self._owner.on_channel_ready(self.index, priority=True)
                return

    def resume_consumption(self) -> None:
        """Let the producer continue after a blocking event."""
        client = self._client
        if client is None or self.is_released or self.error is not None:
            self.check_open()
            client = self._require_client()
        manager = self.buffers or self._manager
        if manager.initial_credit == 0:
            manager.drop_unannounced()
        client.send(ResumeConsumption(self.receiver), self)

    def acknowledge_all_records_processed(self) -> None:
        self.check_open()
        self._require_client().send(AckAllUserRecordsProcessed(self.receiver), self)

    def announce_buffer_size(self, size: int) -> None:
        """Send the buffer size chosen by the debloater, in bytes."""
        self.check_open()
        self._require_client().send(NewBufferSize(size, self.receiver), self)

    def send_task_event(self, event: Event) -> None:
        """Send an event to the producer's task."""
        self.check_open("Tried to send task event to producer after channel has been released.")
        self._require_client().send(TaskEventRequest(encode_event(event), self.partition, self.receiver))

    def take_unannounced_credit(self) -> int:
        return (self.buffers or self._manager).take_unannounced()

    def on_credit(self) -> None:
        """Announce new credit, unless the channel has failed. Without a connection, the channel fails as in Flink."""
        if self.error is not None or self.is_released:
            return
        if self._client is None:
            self.on_error(FlinkError("IllegalStateException", _NO_CLIENT))
        else:
            self._client.announce_credit(self)

    def release(self) -> None:
        """Return all buffers and notify the producer. Idempotent."""
        if self.is_released:
            return
        self.is_released = True
        self.next_deadline = None
        for buffer, _ in (*self._priority, *self._queue):
            buffer.recycle()
        self._priority.clear()
        self._queue.clear()
        if self.buffers is not None:
            self.buffers.release()
        if self._client is not None:
            self._client.remove(self)

    # ---- numbers -------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return len(self._queue) + len(self._priority)

    @property
    def buffers_in_use(self) -> int:
        """Buffers queued here and waiting at the sender, for the debloater."""
        return self.queued + max(0, java_int(self._manager.required - self._manager.initial_credit))

    def stats(self) -> ChannelStats:
        manager = self.buffers or self._manager
        return manager.stats(self.buffers_in, self._backlog, len(self._queue) + len(self._priority))

    @property
    def _manager(self) -> BufferManager:
        if self.buffers is None:
            raise LocalProtocolError("a channel was used before its gate was set up")
        return self.buffers

    def _require_client(self) -> ChannelClient:
        if self.error is not None:
            raise self.error
        if self._client is None:
            raise FlinkError("IllegalStateException", _NO_CLIENT)
        return self._client
