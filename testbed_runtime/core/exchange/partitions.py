"""The partitions of a TaskManager, and the requests that wait for one that is not there yet (flink-facts §4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from testbed_runtime.core.errors import FlinkError, LocalProtocolError
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.subpartition import SubpartitionView
from testbed_runtime.core.ids import ResultPartitionID

Callback: TypeAlias = Callable[[], None]


def partition_not_found(partition: ResultPartitionID) -> FlinkError:
    return FlinkError("PartitionNotFoundException", f"Partition {partition} not found.")


@dataclass(frozen=True, slots=True, eq=False)
class PartitionRequestListener:
    """A request that waits. Exactly one of the two is called, once, unless it is withdrawn."""

    partition: ResultPartitionID
    created: float
    on_registered: Callable[[ResultPartition], None]
    on_timeout: Callback


class ResultPartitionManager:
    """Registry of partitions. `waits`: unknown partitions keep the request (from 1.19); else they are refused at once.

    Listeners expire at the ticks of a checker that started at `started` and runs every `request_timeout_s`, so after
    one to two timeouts, as in Flink. A timeout of 0 means that they never expire.
    """

    def __init__(self, *, request_timeout_s: float = 10.0, waits: bool = True, started: float = 0.0) -> None:
        self.waits = waits
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
        """Requests that wait for a partition."""
        return sum(len(listeners) for listeners in self._listeners.values())

    def get(self, partition: ResultPartitionID) -> ResultPartition | None:
        """None when it is not there, or was released."""
        known = self._partitions.get(partition)
        return None if known is None or known.is_released else known

    def register(self, partition: ResultPartition) -> None:
        """Make it known and serve who waits for it. A second one of this id: LocalProtocolError."""
        if self._shut_down:
            raise FlinkError("IllegalStateException", "Result partition manager already shut down.")
        if partition.partition_id in self._partitions:
            raise LocalProtocolError("Result partition already registered.")
        self._partitions[partition.partition_id] = partition
        partition.when_consumed(self._forget)
        for listener in self._listeners.pop(partition.partition_id, ()):
            listener.on_registered(partition)

    def release(self, partition: ResultPartitionID, cause: FlinkError | None = None) -> None:
        """Forget and release it; who waits for it is told at once. Harmless when it is not known."""
        known = self._partitions.pop(partition, None)
        if known is not None:
            known.release(cause)
        self._time_out(self._listeners.pop(partition, []))

    def _forget(self, partition: ResultPartition) -> None:
        self._partitions.pop(partition.partition_id, None)

    def create_view(
        self, partition: ResultPartitionID, subpartition: int, on_data: Callback
    ) -> SubpartitionView:
        """Raises FlinkError PartitionNotFoundException, or what the partition says."""
        known = self.get(partition)
        if known is None:
            raise partition_not_found(partition)
        return known.create_view(subpartition, on_data)

    def listen(self, listener: PartitionRequestListener) -> None:
        self._listeners.setdefault(listener.partition, []).append(listener)

    def withdraw(self, listener: PartitionRequestListener) -> None:
        """The consumer is gone. Harmless when it does not wait any more."""
        waiting = self._listeners.get(listener.partition, [])
        if listener in waiting:
            waiting.remove(listener)
            if not waiting:
                del self._listeners[listener.partition]

    @property
    def next_deadline(self) -> float | None:
        """When `on_time` has something to do; None while nobody waits."""
        if self._timeout <= 0 or not self._listeners:
            return None
        oldest = min(listener.created for waiting in self._listeners.values() for listener in waiting)
        return self._tick_after(oldest)

    def on_time(self, now: float) -> None:
        """Expire the listeners that are older than the timeout at a tick that has passed."""
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
        """Release every partition, time every listener out."""
        self._shut_down = True
        for partition in list(self._partitions):
            self.release(partition)
        waiting, self._listeners = self._listeners, {}
        for listeners in waiting.values():
            self._time_out(listeners)

    def _tick_after(self, created: float) -> float:
        """The first tick at which a listener of that age is older than the timeout."""
        ticks = math.floor((created + self._timeout - self._started) / self._timeout) + 1
        return self._started + ticks * self._timeout

    def _time_out(self, listeners: list[PartitionRequestListener]) -> None:
        for listener in listeners:
            listener.on_timeout()
