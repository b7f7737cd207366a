"""The partitions of a TaskManager, and the requests that wait for a partition to be registered (FLINK-25055)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from testbed_runtime.core.errors import FlinkError, LocalProtocolError
from testbed_runtime.core.exchange.buffers import Callback
from testbed_runtime.core.exchange.events import Event
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.subpartition import SubpartitionView
from testbed_runtime.core.ids import ResultPartitionID

PARTITION_EXCEPTIONS = ("PartitionNotFoundException", "PartitionConnectionException")
"""The errors that name a result which could not be read: its producer is restarted too."""


def partition_not_found(partition: ResultPartitionID) -> FlinkError:
    return FlinkError("PartitionNotFoundException", f"Partition {partition} not found.")


@dataclass(frozen=True, slots=True, eq=False)
class PartitionRequestListener:
    """A waiting request. Exactly one of the two methods is called, once, unless the request is withdrawn."""

    partition: ResultPartitionID
    created: float
    on_registered: Callable[[ResultPartition], None]
    on_timeout: Callback


class ResultPartitionManager:
    """The registry of partitions. With `waits`, requests for unknown partitions wait (Flink 1.19 and later); otherwise
    they are refused at once.

    A checker that started at `started` runs every `request_timeout_s` and expires old listeners, so they expire after
    one to two timeouts, as in Flink. With a timeout of 0 they never expire.
    """

    def __init__(
        self,
        *,
        request_timeout_s: float = 10.0,
        waits: bool = True,
        started: float = 0.0,
        on_unknown: Callable[[ResultPartitionID], None] = lambda _: None,
    ) -> None:
        """`on_unknown` is called for each request for a partition that is not registered."""
        self.waits = waits
        self._on_unknown = on_unknown
        self._timeout = request_timeout_s
        self._started = started
        self._partitions: dict[ResultPartitionID, ResultPartition] = {}
        self._listeners: dict[ResultPartitionID, list[PartitionRequestListener]] = {}
        self._shut_down = False

    @property
    def partitions(self) -> tuple[ResultPartition, ...]:
        return tuple(self._partitions.values())

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a partition."""
        return sum(len(listeners) for listeners in self._listeners.values())

    def get(self, partition: ResultPartitionID) -> ResultPartition | None:
        """Return the partition, or None if it is unknown or was released."""
        known = self._partitions.get(partition)
        if known is None or known.is_released:
            self._on_unknown(partition)
            return None
        return known

    def register(self, partition: ResultPartition) -> None:
        """Register a partition and serve the requests that wait for it. Raises LocalProtocolError for a known id."""
        if self._shut_down:
            raise FlinkError("IllegalStateException", "Result partition manager already shut down.")
        if partition.partition_id in self._partitions:
            raise LocalProtocolError("Result partition already registered.")
        self._partitions[partition.partition_id] = partition
        partition.when_consumed(self._forget)
        for listener in self._listeners.pop(partition.partition_id, ()):
            listener.on_registered(partition)

    def release(self, partition: ResultPartitionID, cause: FlinkError | None = None) -> None:
        """Remove and release a partition, and notify waiting requests at once. Does nothing if it is unknown."""
        known = self._partitions.pop(partition, None)
        if known is not None:
            known.release(cause)
        self._time_out(self._listeners.pop(partition, []))

    def _forget(self, partition: ResultPartition) -> None:
        self._partitions.pop(partition.partition_id, None)

    def create_view(
        self, partition: ResultPartitionID, subpartition: int, on_data: Callback
    ) -> SubpartitionView:
        """Return a view, or raise FlinkError PartitionNotFoundException or the partition's own error."""
        known = self.get(partition)
        if known is None:
            raise partition_not_found(partition)
        return known.create_view(subpartition, on_data)

    def publish(self, partition: ResultPartitionID, event: Event) -> bool:
        """Hand an event of a reader to the partition's task, which may not subscribe (Flink's TaskEventDispatcher). Return False if
        no task has the partition."""
        known = self.get(partition)
        if known is None or known.is_closed:
            return False
        if known.on_task_event is not None:
            known.on_task_event(event)
        return True

    def listen(self, listener: PartitionRequestListener) -> None:
        self._listeners.setdefault(listener.partition, []).append(listener)

    def withdraw(self, listener: PartitionRequestListener) -> None:
        """Remove the request of a consumer that left. Does nothing if the request no longer waits."""
        waiting = self._listeners.get(listener.partition, [])
        if listener in waiting:
            waiting.remove(listener)
            if not waiting:
                del self._listeners[listener.partition]

    @property
    def next_deadline(self) -> float | None:
        """When `on_time` has something to do; None while no request waits."""
        if self._timeout <= 0 or not self._listeners:
            return None
        oldest = min(listener.created for waiting in self._listeners.values() for listener in waiting)
        return self._tick_after(oldest)

    def on_time(self, now: float) -> None:
        """Expire the listeners that were older than the timeout at a past tick of the checker."""
        if self._timeout <= 0:
            return
        expired: list[PartitionRequestListener] = []
        for partition, waiting in list(self._listeners.items()):
            gone = [listener for listener in waiting if self._tick_after(listener.created) <= now]
            expired.extend(gone)
            kept = [listener for listener in waiting if listener not in gone]
            if kept:
                self._listeners[partition] = kept
            else:
                del self._listeners[partition]
        self._time_out(expired)

    def shut_down(self) -> None:
        """Release every partition and time out every listener."""
        self._shut_down = True
        for partition in list(self._partitions):
            self.release(partition)
        waiting, self._listeners = self._listeners, {}
        for listeners in waiting.values():
            self._time_out(listeners)

    def _tick_after(self, created: float) -> float:
        """Return the first tick at which a listener created then is older than the timeout."""
        ticks = math.floor((created + self._timeout - self._started) / self._timeout) + 1
        return self._started + ticks * self._timeout

    def _time_out(self, listeners: list[PartitionRequestListener]) -> None:
        for listener in listeners:
            listener.on_timeout()
