"""Buffer debloating (FLIP-183): choose a buffer size so that in-flight data is consumed within a target time."""

from __future__ import annotations

import math

from testbed_runtime.core.errors import FlinkError, require_option
from testbed_runtime.core.options import Options
from testbed_runtime.core.processmemory import SEGMENT
from testbed_runtime.core.values import java_int, java_long, saturated_long, truncated
from testbed_runtime.core.versions import (
    BUFFER_DEBLOATING,
    GATES_DEBLOATED_ALONE,
    STARTING_SEGMENT_SIZE,
    has,
)

LEAST, START = (f"taskmanager.memory.{name}-segment-size" for name in ("min", "starting"))
DEBLOAT = "taskmanager.network.memory.buffer-debloat."


def check_debloating(options: Options) -> None:
    """Raise OptionRefused as Flink's BufferDebloatConfiguration does, without a message. A TaskManager reads it even if
    debloating is off; in 1.14, only a task with debloating does (BufferDebloater)."""
    if not has(options.flink_version, BUFFER_DEBLOATING):
        return
    alone = has(options.flink_version, GATES_DEBLOATED_ALONE)
    if not (alone or options.boolean(DEBLOAT + "enabled")):
        return
    largest, least, start = options.memory(SEGMENT), options.memory(LEAST), options.memory(START)
    rules = [
        (least > 0, "must be at least 1 byte", LEAST, ""),
        (
            not alone or options.integer(DEBLOAT + "samples") > 0,
            "must be at least 1",
            DEBLOAT + "samples",
            "",
        ),
        (largest >= least, f"must be at most {SEGMENT}", LEAST, f"write at most {largest} b"),
        (options.duration(DEBLOAT + "target") >= 0.001, "must be at least 1 ms", DEBLOAT + "target", ""),
    ]
    if has(options.flink_version, STARTING_SEGMENT_SIZE):
        rules += [
            (largest >= start, f"must be at most {SEGMENT}", START, f"write at most {largest} b"),
            (least <= start, f"must be at least {LEAST}", START, f"write at least {least} b"),
        ]
    for holds, text, key, hint in rules:
        require_option(holds, f"{key} {text}", key, hint)


class BufferSizeEMA:
    """Exponential moving average of the buffer size in bytes, between a minimum and a maximum."""

    __slots__ = ("_alpha", "_largest", "_last", "_least", "_whole")

    def __init__(
        self, largest: int, least: int, samples: int, *, start: int | None = None, whole: bool = False
    ) -> None:
        """`whole`: the average is an integer, as before Flink 2.0. It never grows by less than one."""
        self._whole = whole
        self._largest = largest
        self._least = least
        self._alpha = 2.0 / (samples + 1)
        self._last: float = largest if start is None else start

    def calculate(self, desired_bytes: int, buffers: int) -> int:
        """Return the new size for `desired_bytes` in flight over `buffers` buffers. A sample at most doubles the size."""
        if desired_bytes < 0:
            raise FlinkError("IllegalArgumentException", "Size of buffer should be non negative")
        if buffers <= 0:
            raise FlinkError("IllegalArgumentException", "Number of buffers should be positive")
        instant = min(desired_bytes // buffers if self._whole else desired_bytes / buffers, 2.0 * self._last)
        value = self._last + self._alpha * (instant - self._last)
        value = int(value) if self._whole else value
        self._last = max(self._least, min(self._largest, value))
        return int(self._last + 0.5)  # half up, as in Java


class BufferDebloater:
    """Computes the buffer size to announce from the throughput (Flink's BufferDebloater)."""

    __slots__ = (
        "_averages",
        "_ema",
        "_largest",
        "_least",
        "_target_ms",
        "_threshold",
        "size",
        "time_to_consume_ms",
    )

    def __init__(
        self,
        *,
        target_ms: int,
        largest: int,
        least: int,
        samples: int = 20,
        threshold_percent: int = 25,
        start: int | None = None,
        whole: bool = False,
        averages: bool = True,
    ) -> None:
        """`averages`: the size is averaged over `samples`. In 1.14 it is not, because the throughput is."""
        self._averages = averages
        self._ema = BufferSizeEMA(largest, least, samples, start=start, whole=whole)
        self._target_ms = target_ms
        self._largest = largest
        self._least = least
        self._threshold = threshold_percent / 100.0
        self.size = largest if start is None else start
        """Size announced last, in bytes."""
        self.time_to_consume_ms = 0
        """Current in-flight data divided by the throughput, in whole milliseconds as in Flink."""

    def recalculate(self, throughput: int, buffers_in_use: int) -> int | None:
        """Return the size to announce for a throughput in bytes per second, or None if the change is too small."""
        desired = truncated(java_long(throughput * self._target_ms), 1000)
        if self._averages:
            new = self._ema.calculate(desired, max(1, buffers_in_use))
        else:
            new = max(self._least, min(truncated(desired, max(1, buffers_in_use)), self._largest))
        in_flight = java_int(max(1, buffers_in_use) * new) * 1000
        self.time_to_consume_ms = truncated(in_flight, max(1, throughput))
        inside = self._least < new < self._largest
        if new == self.size or (inside and abs(new - self.size) < int(self.size * self._threshold)):
            return None
        self.size = new
        return new


class ThroughputCalculator:
    """Bytes per second during the time in which input was available. Times are in milliseconds."""

    __slots__ = ("_alpha", "_bytes", "_last", "_measured_from", "_running_ms")

    def __init__(self, samples: int = 1) -> None:
        """`samples`: the throughput is an exponential moving average over so many calculations (ThroughputEMA of 1.14). Less than
        1 is possible, as in 1.14: each change counts several times, or in the other direction."""
        self._alpha = 2.0 / (samples + 1) if samples != -1 else math.inf
        self._bytes = 0
        self._running_ms = 0.0
        self._measured_from: float | None = None
        self._last = 0

    def incoming(self, size: int, now_ms: float) -> None:
        """Count arrived data. Starts the clock unless it is running."""
        if self._measured_from is None:
            self._measured_from = now_ms
        self._bytes += size

    def resume(self, now_ms: float) -> None:
        """Start the clock: input is available."""
        if self._measured_from is None:
            self._measured_from = now_ms

    def pause(self, now_ms: float) -> None:
        """Stop the clock: no input is available."""
        if self._measured_from is not None:
            self._running_ms += now_ms - self._measured_from
            self._measured_from = None

    def calculate(self, now_ms: float) -> int:
        """Return the throughput since the last call, or the last value if no time was counted."""
        if self._measured_from is not None:
            self._running_ms += now_ms - self._measured_from
            self._measured_from = now_ms
        if self._running_ms > 0:
            instant = int(self._bytes / self._running_ms * 1000)
            averaged = self._alpha != 1 and self._last != 0
            changed = self._last + self._alpha * (instant - self._last)
            self._last = saturated_long(changed) if averaged else instant
        self._bytes = 0
        self._running_ms = 0.0
        return self._last
