"""A channel to a producer in the same TaskManager."""

from __future__ import annotations

from testbed_runtime.core.errors import FlinkError, LocalProtocolError
from testbed_runtime.core.exchange.backoff import Backoff
from testbed_runtime.core.exchange.channel import ChannelOwner, InputChannelBase, Taken
from testbed_runtime.core.exchange.credit import ChannelStats
from testbed_runtime.core.exchange.events import Event
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.subpartition import SubpartitionView
from testbed_runtime.core.ids import ResultPartitionID

_NONE = DataType.NONE


class LocalInputChannel(InputChannelBase):
    """A channel to a partition of the same TaskManager. It reads the partition's view without copies or credit."""

    __slots__ = ("_manager", "_view", "backoff")

    def __init__(
        self,
        index: int,
        partition: ResultPartitionID,
        subpartition: int,
        owner: ChannelOwner,
        *,
        manager: ResultPartitionManager,
        backoff: Backoff,
    ) -> None:
        super().__init__(index, partition, subpartition, owner)
        self.backoff = backoff
        self._manager = manager
        self._view: SubpartitionView | None = None

    def request(self, now: float) -> None:
        """Request the view. If the partition is missing, retry after the backoff (`next_deadline`), and finally fail."""
        if self.is_released or self._view is not None or self.error is not None:
            return
        self.next_deadline = None
        self.requests += 1
        try:
            self._view = self._manager.create_view(self.partition, self.subpartition, self._on_data)
        except FlinkError as error:
            if error.class_name == "PartitionNotFoundException" and self.backoff.increase():
                self.next_deadline = now + self.backoff.current
            elif self.requests == 1:
                # in Flink, the task sends the first request itself and gets the exception unwrapped
                self._fail(error)
            else:
                self.on_error(error)
            return
        self.answered = True
        self._ready_if_available()

    def on_time(self, now: float) -> None:
        if self.next_deadline is not None and now >= self.next_deadline:
            self.request(now)

    def _on_data(self) -> None:
        """Notify the gate. A view may call this while it is still being created."""
        if self._view is not None:
            priority = self._view.subpartition.has_priority
            self._owner.on_channel_ready(self.index, priority=priority)

    def take(self) -> Taken | None:
        """Return the next element. Raises the channel's error, or CancelTaskException if the partition was released."""
        if self.error is not None:
            raise self.error
        if self.is_released:
            return None
        view = self._view
        if view is None:
            return None
        polled = view.poll()
        while polled is not None and not len(polled.buffer.view()):
            polled.buffer.recycle()  # without exclusive buffers, what is finished and empty is handed out too
            self.buffers_in += 1
            polled = view.poll()
        if polled is None:
            if view.is_released:
                raise FlinkError(
                    "CancelTaskException", f"Consumed partition {self.partition} has been released."
                )
            return None
        buffer, next_type = polled.buffer, polled.next_type
        if buffer.data_type.is_buffer:
            self.buffers_in += 1
        return Taken(buffer, next_type is not _NONE, next_type.has_priority, polled.sequence_number)

    def checkpoint_started(self, checkpoint: int) -> None:
        """Do nothing: a barrier counts here when it is read."""

    def in_flight(self, checkpoint: int) -> tuple[bytes, ...]:
        """Return nothing: the data that a barrier overtakes in the shared queue belongs to the producer's output state."""
        return ()

    def prioritize(self, sequence: int) -> None:
        """Do nothing: the producer lets its barrier overtake."""

    def resume_consumption(self) -> None:
        self.check_open()
        self._require_view().resume_consumption()
        self._ready_if_available()

    def acknowledge_all_records_processed(self) -> None:
        self.check_open()
        self._require_view().acknowledge_all_data_processed()

    def announce_buffer_size(self, size: int) -> None:
        self.check_open()
        if self._view is not None:
            self._view.notify_new_buffer_size(size)

    def send_task_event(self, event: Event) -> None:
        """Hand an event to the producer's task. Raises FlinkError if that has ended."""
        if self.error is not None:
            raise self.error
        if self._view is None:
            text = "Tried to send task event to producer before requesting the subpartition."
            raise FlinkError("IllegalStateException", text)
        if not self._manager.publish(self.partition, event):
            text = f"Error while publishing event {event} to producer. The producer could not be found."
            raise FlinkError("IOException", text)

    def release(self) -> None:
        if self.is_released:
            return
        self.is_released = True
        self.next_deadline = None
        if self._view is not None:
            self._view.release()

    @property
    def queued(self) -> int:
        return 0 if self._view is None else len(self._view.subpartition)

    @property
    def buffers_in_use(self) -> int:
        return self.queued

    def stats(self) -> ChannelStats:
        backlog = 0 if self._view is None else self._view.subpartition.backlog
        return ChannelStats(0, 0, self.buffers_in, backlog, self.queued, 0, 0)

    def _ready_if_available(self) -> None:
        if self._view is not None and self._view.availability(credit=True)[0]:
            # even if a priority event is next: LocalInputChannel.resumeConsumption and requestSubpartitions
            self._owner.on_channel_ready(self.index, priority=False)

    def _require_view(self) -> SubpartitionView:
        if self._view is None:
            raise LocalProtocolError("a local channel was used before its partition existed")
        return self._view
