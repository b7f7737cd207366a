"""An input gate: reads the channels of one input round-robin, priority events first (Flink's SingleInputGate)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.backoff import Backoff, RemoteBackoff
from testbed_runtime.core.exchange.barriers import event_of
from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool, SegmentRequest
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.credit import BufferManager
from testbed_runtime.core.exchange.events import EndOfData, EndOfPartition, Event, StopMode
from testbed_runtime.core.exchange.localchannel import LocalInputChannel
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.pending import Pending
from testbed_runtime.core.ids import InputChannelID, ResultPartitionID

InputChannel: TypeAlias = RemoteInputChannel | LocalInputChannel
Polled: TypeAlias = "tuple[int, Buffer | Event]"
PolledRun: TypeAlias = "tuple[int, list[Buffer] | Event]"


class InputGate:
    """The channels of one input of a task. `wake` is called when `poll` may return something after it returned None.

    Call `add_remote` or `add_local` for each channel in order and `set_up` until it returns True. Then call
    `client.add(channel)` for remote and `channel.request(now)` for local channels, and `poll`. `close` works any time.
    """

    __slots__ = (
        "_answered", "_asked", "_closed", "_deadline", "_is_set_up", "_network", "_not_found", "_queued",
        "_queued_priority", "_ready", "_ready_priority", "_requests", "_reserved", "_timeout_s",
        "_unfinished", "_wake", "_without_end_of_data", "channels", "draining", "exclusive", "finished",
        "on_ready", "pool", "received_bytes", "remote_channels",
    )  # fmt: skip

    def __init__(
        self,
        network: NetworkBufferPool,
        pool: LocalBufferPool,
        wake: Callable[[], None],
        *,
        exclusive: int = 2,
        on_partition_not_found: Callable[[RemoteInputChannel], None] | None = None,
    ) -> None:
        self.pool = pool
        self.exclusive = exclusive
        self.channels: list[InputChannel] = []
        self.remote_channels = 0
        """Number of channels over a connection."""
        self.received_bytes = 0
        """Bytes of the data buffers and events that were polled: the throughput for debloating, as in Flink."""
        self.finished = True
        """Whether END_OF_PARTITION of every channel was polled."""
        self.draining = True
        """Whether every END_OF_DATA so far requested a drain."""
        self.on_ready: Callable[[bool], None] | None = None
        """Called before `wake`, with whether a priority event is next."""
        self._network = network
        self._wake = wake
        self._not_found = on_partition_not_found
        self._ready: deque[int] = deque()
        self._ready_priority: deque[int] = deque()
        self._queued: list[bool] = []
        self._queued_priority: list[bool] = []
        self._without_end_of_data = Pending()
        self._unfinished = Pending()
        self._requests: list[tuple[BufferManager, SegmentRequest]] | None = None
        self._reserved = False
        self._is_set_up = False
        self._deadline = self._timeout_s = 0.0
        self._closed = False
        self._answered = 0
        """Number of channels, from the first, whose producers have responded."""
        self._asked = 0
        """Number of channels, from the first, that have sent a request."""

    # ---- building ------------------------------------------------------------------------------------------

    def add_remote(
        self,
        partition: ResultPartitionID,
        subpartition: int,
        *,
        receiver: InputChannelID,
        backoff: RemoteBackoff,
    ) -> RemoteInputChannel:
        """Add the next channel, over a connection."""
        channel = RemoteInputChannel(
            len(self.channels), partition, subpartition, self, receiver=receiver, backoff=backoff
        )
        channel.buffers = BufferManager(self._network, self.pool, self.exclusive, channel.on_credit)
        self.remote_channels += 1
        self._add(channel)
        return channel

    def add_local(
        self,
        partition: ResultPartitionID,
        subpartition: int,
        *,
        manager: ResultPartitionManager,
        backoff: Backoff,
    ) -> LocalInputChannel:
        """Add the next channel, to a partition of this TaskManager."""
        channel = LocalInputChannel(
            len(self.channels), partition, subpartition, self, manager=manager, backoff=backoff
        )
        self._add(channel)
        return channel

    def _add(self, channel: InputChannel) -> None:
        self.channels.append(channel)
        self._queued.append(False)
        self._queued_priority.append(False)
        self._without_end_of_data.add()
        self._unfinished.add()
        self.finished = False

    def set_up(self, now: float = 0.0, timeout_s: float = 0.0) -> bool:
        """Reserve one segment of the pool (otherwise gates could starve each other), then the exclusive segments.

        Return False if not all are free yet: call again when the network pool is available, at the latest at
        `set_up_deadline`. Raises FlinkError IOException if there are too few segments, or `timeout_s` after the first
        call."""
        remote = [c for c in self.channels if isinstance(c, RemoteInputChannel)]
        if self._requests is None:
            self._requests = []
            self._deadline = now + timeout_s
            self._timeout_s = timeout_s
            with self._network.batch():
                for channel in remote:
                    manager = channel.buffers
                    if manager is not None and self.exclusive:
                        request = manager.request_exclusive(now=now, timeout_s=timeout_s)
                        self._requests.append((manager, request))
            self._requests.reverse()
        if remote and not self._reserved:
            self._reserved = self.pool.reserve_segments(1)
            if not self._reserved:
                if now >= self._deadline:
                    raise self._network.timeout_error(self._timeout_s)
                return False
        while self._requests:
            manager, request = self._requests[-1]
            segments = request.poll(now)
            if segments is None:
                return False
            manager.assign_exclusive(segments)
            self._requests.pop()
        self._is_set_up = True
        return True

    @property
    def set_up_deadline(self) -> float | None:
        """When a waiting `set_up` times out."""
        return self._deadline if self._requests is not None and not self._is_set_up else None

    # ---- reading -------------------------------------------------------------------------------------------

    def poll(self) -> Polled | None:
        """Return the channel index and a data buffer (to be recycled) or an event. None: wait for `wake`. Raises a
        channel's FlinkError, and a CancelTaskException once the gate is closed."""
        polled = self.poll_run(1)
        if polled is None:
            return None
        index, run = polled
        return (index, run[0]) if isinstance(run, list) else (index, run)

    def poll_run(self, most: int) -> PolledRun | None:
        """Like `poll`, but return up to `most` data buffers of one channel at once, in order and up to its next event."""
        if self._closed and not self.finished:
            raise FlinkError("CancelTaskException", "Input gate is already closed.")
        while True:
            if self._ready_priority:
                index = self._ready_priority.popleft()
                self._queued_priority[index] = False
            elif self._ready:
                index = self._ready.popleft()
                self._queued[index] = False
            else:
                return None
            channel = self.channels[index]
            run = channel.take_run(most) if most > 1 and type(channel) is RemoteInputChannel else None
            if run is None:
                taken = channel.take()
                if taken is None:
                    continue
                if taken.more_available:
                    self._enqueue(index, priority=taken.more_priority)
                if not taken.buffer.data_type.is_buffer:
                    return index, self._event(index, taken.buffer)
                run = [taken.buffer], False
            elif run[1]:
                self._enqueue(index, priority=False)
            for buffer in run[0]:
                self.received_bytes += len(buffer.view())
            return index, run[0]

    def _event(self, index: int, buffer: Buffer) -> Event:
        self.received_bytes += buffer.size
        event = event_of(buffer)  # which keeps its bytes
        if type(event) is EndOfData:
            if not self._without_end_of_data.discard(index):
                raise FlinkError("IllegalStateException", "")
            self.draining = self.draining and event.mode is StopMode.DRAIN
        elif type(event) is EndOfPartition:
            self._unfinished.discard(index)
            self.finished = not self._unfinished
            self.channels[index].release()
            self._forget(index)
        return event

    def _forget(self, index: int) -> None:
        """Take a channel out of the queues."""
        if self._queued_priority[index]:
            self._queued_priority[index] = False
            self._ready_priority.remove(index)
        if self._queued[index]:
            self._queued[index] = False
            self._ready.remove(index)

    def on_channel_ready(self, index: int, *, priority: bool) -> None:
        """Queue a channel that has an element or an error to take, unless it has ended."""
        if not self._closed and index in self._unfinished and self._enqueue(index, priority=priority):
            if self.on_ready is not None:
                self.on_ready(priority)
            self._wake()

    def _enqueue(self, index: int, *, priority: bool) -> bool:
        """Queue a channel once. A channel that gets priority loses its place among the others (PrioritizedDeque.prioritize)."""
        if self._queued_priority[index]:
            return False
        if priority:
            self._forget(index)
            self._queued_priority[index] = True
            self._ready_priority.append(index)
            return True
        if self._queued[index]:
            return False
        self._queued[index] = True
        self._ready.append(index)
        return True

    @property
    def has_data(self) -> bool:
        """Whether `poll` may return something."""
        return bool(self._ready or self._ready_priority)

    @property
    def is_available(self) -> bool:
        """Whether the reader of the gate has something to do: read, or notice the end."""
        return self.has_data or self.finished

    @property
    def has_priority(self) -> bool:
        """Whether a priority event may be polled."""
        return bool(self._ready_priority)

    @property
    def received_end_of_data(self) -> bool:
        """Whether every channel has received END_OF_DATA: time to call `acknowledge_all_records_processed`."""
        return not self._without_end_of_data

    @property
    def connected(self) -> bool:
        """Whether every producer has responded."""
        channels = self.channels
        while self._answered < len(channels) and channels[self._answered].answered:
            self._answered += 1
        return self._answered == len(channels)

    @property
    def requested(self) -> bool:
        """Whether every channel has sent its first request, over a connection or on this TaskManager."""
        channels = self.channels
        while self._asked < len(channels) and channels[self._asked].requests:
            self._asked += 1
        return self._asked == len(channels)

    # ---- back to the producers -------------------------------------------------------------------------------

    def resume_consumption(self, index: int) -> None:
        """Let this channel's producer continue after a barrier. Does nothing if the channel has ended."""
        channel = self.channels[index]
        if not channel.is_released:
            channel.resume_consumption()

    def acknowledge_all_records_processed(self) -> None:
        """Acknowledge to every producer that has not ended."""
        for channel in self.channels:
            if not channel.is_released:
                channel.acknowledge_all_records_processed()

    def announce_buffer_size(self, size: int) -> None:
        """Send the buffer size chosen by the debloater, in bytes, to every producer that has not ended."""
        for channel in self.channels:
            if not channel.is_released:
                channel.announce_buffer_size(size)

    def send_task_event(self, event: Event) -> None:
        """Send an event to the tasks of all producers that have not ended (backwards, against the data)."""
        for channel in self.channels:
            if not channel.is_released:
                channel.send_task_event(event)

    # ---- requests again ----------------------------------------------------------------------------------------

    def on_partition_not_found(self, channel: RemoteInputChannel) -> None:
        """Handle an unknown partition at a producer. Without a way to ask the JobManager, the channel fails at once."""
        if self._closed:
            return
        if self._not_found is not None:
            self._not_found(channel)
        else:
            channel.on_error(
                FlinkError("PartitionNotFoundException", f"Partition {channel.partition} not found.")
            )

    @property
    def next_deadline(self) -> float | None:
        """When `on_time` sends the next delayed request."""
        deadlines = [c.next_deadline for c in self.channels if c.next_deadline is not None]
        return min(deadlines, default=None)

    def on_time(self, now: float) -> None:
        for channel in self.channels:
            channel.on_time(now)

    # ---- numbers and the end -----------------------------------------------------------------------------------

    @property
    def buffers_in_use(self) -> int:
        """Buffers in use by all channels, for the debloater."""
        return sum(channel.buffers_in_use for channel in self.channels if not channel.is_released)

    @property
    def queued(self) -> int:
        """Number of queued buffers: Flink's inputQueueLength."""
        return sum(channel.queued for channel in self.channels if not channel.is_released)

    def close(self) -> None:
        """Release every channel and the pool. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with self._network.batch():
            for _, request in self._requests or ():
                request.cancel()
            self._requests = None
            for channel in self.channels:
                channel.release()
            self.channels = []  # they refer to the gate
            self.pool.destroy()
