"""What a task did, counted where it happens and written as rows of `tasks` and `latency`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from testbed_runtime.core.job.messages import TaskDeploymentDescriptor
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS
from testbed_runtime.ports.execution import Clock
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.workload.latency import LatencyHistogram
from testbed_runtime.workload.records import Records

LATENCY_WINDOW_NS = 250_000_000
"""A row of `latency` covers so much time."""
BUSY, IDLE, BACKPRESSURED = 0, 1, 2


def to_ns(seconds: float) -> int:
    return int(seconds * 1e9)


class TaskMeter:
    """Cumulative counters of one attempt. The task says what it spends its time on; everything else is busy."""

    def __init__(self, descriptor: TaskDeploymentDescriptor, clock: Clock, history: HistorySink) -> None:
        vertex = descriptor.vertex
        self.task = f"{vertex.name}-{descriptor.subtask}"
        self.vertex = vertex.name
        self.role = "source" if vertex.source else "sink" if vertex.sink else "operator"
        self.attempt = descriptor.attempt_number
        self.records_in = self.records_out = 0
        self.bytes_in = self.bytes_out = 0
        self.lag_at: Callable[[int], int] = lambda _now_ns: self._arrival_lag_ns
        """Lag at a time in ns. A source sets it: one that is held up is further behind with every moment."""
        self._arrival_lag_ns = 0
        self._clock = clock
        self._history = history
        self._spent = [0.0, 0.0, 0.0]
        self._mode = BUSY
        self._since = clock.now()
        self._latency = LatencyHistogram(LATENCY_BOUNDS_NS)
        self._window = -1

    @property
    def lag_ns(self) -> int:
        """Source: how far emission is behind now; sink: latency of the last record."""
        return self.lag_at(to_ns(self._clock.now()))

    def enter(self, mode: int) -> None:
        """From now on the time is BUSY, IDLE or BACKPRESSURED."""
        now = self._clock.now()
        self._spent[self._mode] += now - self._since
        self._mode, self._since = mode, now

    def spent_s(self, mode: int) -> float:
        self.enter(self._mode)
        return self._spent[mode]

    def received(self, records: Records, now: float) -> None:
        """A sink's batch: its latencies from the due time."""
        if not len(records):
            return
        now_ns = to_ns(now)
        if now_ns // LATENCY_WINDOW_NS != self._window:
            self.flush_latency()
            self._window = now_ns // LATENCY_WINDOW_NS
        latencies = now_ns - records["due_ns"]
        self._latency.add(latencies)
        self._arrival_lag_ns = max(0, int(latencies[-1]))

    def flush_latency(self) -> None:
        """Write the window that is over (or is to be over)."""
        if not self._latency.count:
            return
        count, buckets, largest = self._latency.take()
        self._history.append(
            "latency",
            task=self.task,
            attempt=self.attempt,
            window_start_ns=self._window * LATENCY_WINDOW_NS,
            window_ns=LATENCY_WINDOW_NS,
            count=count,
            buckets=buckets,
            max_ns=largest,
        )

    def sample(self) -> None:
        """One row of `tasks`, and a latency window that has passed."""
        now_ns = to_ns(self._clock.now())
        if now_ns // LATENCY_WINDOW_NS != self._window:
            self.flush_latency()
        self.enter(self._mode)
        busy, idle, backpressured = (to_ns(spent) for spent in self._spent)
        self._history.append(
            "tasks",
            task=self.task,
            vertex=self.vertex,
            role=self.role,
            attempt=self.attempt,
            records_in=self.records_in,
            records_out=self.records_out,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            busy_ns=busy,
            backpressured_ns=backpressured,
            idle_ns=idle,
            lag_ns=int(np.int64(self.lag_at(now_ns))),
        )

    def close(self) -> None:
        """The last rows of this attempt."""
        self.flush_latency()
        self.sample()
