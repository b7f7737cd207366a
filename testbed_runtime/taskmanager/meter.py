"""Counters of a task, written as rows of `tasks` and `latency`."""

from __future__ import annotations

import json
from collections.abc import Callable

from testbed_runtime.core.job.messages import TaskDeploymentDescriptor
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, LATENCY_WINDOW_NS
from testbed_runtime.ports.execution import Clock
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.workload.latency import LatencyHistogram
from testbed_runtime.workload.records import Records

MARKER_WINDOW_NS = 1_000_000_000
"""Minimum time that one event `latency.markers` covers."""
BUSY, IDLE, BACKPRESSURED = 0, 1, 2


def to_ns(seconds: float) -> int:
    return int(seconds * 1e9)


class TaskMeter:
    """Cumulative counters of one attempt. The task enters IDLE or BACKPRESSURED; all other time is BUSY."""

    __slots__ = (
        "_arrival_lag_ns", "_clock", "_history", "_latency", "_markers", "_markers_since", "_sampled_in",
        "_since", "_spent", "_window", "attempt", "buffers_in", "bytes_in", "bytes_out", "input_at",
        "lag_at", "mode", "records_in", "records_out", "role", "task", "vertex",
    )  # fmt: skip

    def __init__(self, descriptor: TaskDeploymentDescriptor, clock: Clock, history: HistorySink) -> None:
        vertex = descriptor.vertex
        self.task = f"{vertex.name}-{descriptor.subtask}"
        self.vertex = vertex.name
        self.role = "source" if vertex.source else "sink" if vertex.sink else "operator"
        self.attempt = descriptor.attempt_number
        self.records_in = self.records_out = 0
        self.bytes_in = self.bytes_out = 0
        self.buffers_in = 0
        self.lag_at: Callable[[int], int] = lambda _now_ns: self._arrival_lag_ns
        """Returns the lag at a given time, in ns. A source replaces this function, because its lag grows while it is blocked."""
        self._arrival_lag_ns = 0
        self._clock = clock
        self._history = history
        self._spent = [0.0, 0.0, 0.0]
        self.mode = BUSY
        """The current mode: BUSY, IDLE or BACKPRESSURED."""
        self._since = clock.now()
        self.input_at = clock.now()
        """When a sample last found new input."""
        self._sampled_in = 0
        self._latency = LatencyHistogram(LATENCY_BOUNDS_NS)
        self._window = -1
        self._markers: dict[str, list[int]] = {}
        self._markers_since = 0

    def enter(self, mode: int) -> float:
        """Count the time from now on as BUSY, IDLE or BACKPRESSURED. Return the current time."""
        now = self._clock.now()
        self._spent[self.mode] += now - self._since
        self.mode, self._since = mode, now
        return now

    def received(self, records: Records, now: float) -> None:
        """Add the latencies of a sink's batch, measured from the due times."""
        if not len(records):
            return
        now_ns = to_ns(now)
        if now_ns // LATENCY_WINDOW_NS != self._window:
            self.flush_latency()
            self._window = now_ns // LATENCY_WINDOW_NS
        last = now_ns - int(records["due_ns"][-1])
        if len(records) == 1:
            self._latency.add_one(last)
        else:
            self._latency.add(now_ns - records["due_ns"])
        self._arrival_lag_ns = max(0, last)

    def marked(self, source: str, latency_ns: int) -> None:
        """Add the latency of a marker of this source subtask. A negative one (the clocks of two machines differ) counts as 0."""
        self._markers.setdefault(source, []).append(max(0, latency_ns))

    def flush_markers(self, now_ns: int) -> None:
        """Write the latencies of the markers since the last call."""
        found, self._markers, self._markers_since = self._markers, {}, now_ns
        for source, latencies in found.items():
            self._history.append(
                "events",
                kind="latency.markers",
                subject=self.task,
                attempt=self.attempt,
                checkpoint=-1,
                text="",
                data=json.dumps({"source": source, "ns": latencies}),
            )

    def flush_latency(self) -> None:
        """Write the current window and close it."""
        if not self._latency.count:
            return
        count, buckets, largest = self._latency.take()
        start_ns = self._window * LATENCY_WINDOW_NS
        row = (self.task, self.attempt, start_ns, LATENCY_WINDOW_NS, count, buckets, largest)
        self._history.put("latency", row)

    def sample(self) -> None:
        """Write a row of `tasks`, and the latency window if it has passed."""
        now = self._clock.now()
        now_ns = int(now * 1e9)
        if self._latency.count and now_ns // LATENCY_WINDOW_NS != self._window:
            self.flush_latency()
        if now_ns - self._markers_since >= MARKER_WINDOW_NS:
            if self._markers:
                self.flush_markers(now_ns)
            self._markers_since = now_ns
        self._spent[self.mode] += now - self._since
        self._since = now
        if self.bytes_in != self._sampled_in:
            self._sampled_in, self.input_at = self.bytes_in, self._since
        busy, idle, backpressured = self._spent
        row = (
            self.task,
            self.vertex,
            self.role,
            self.attempt,
            self.records_in,
            self.records_out,
            self.bytes_in,
            self.bytes_out,
            int(busy * 1e9),
            int(backpressured * 1e9),
            int(idle * 1e9),
            int(self.lag_at(now_ns)),
        )
        self._history.put("tasks", row)

    def close(self) -> None:
        """Write the last rows of this attempt."""
        self.flush_latency()
        self.flush_markers(to_ns(self._clock.now()))
        self.sample()
