"""Flow control without the network's back-pressure: a queue at the receiver that does not push back, and what limits
the source instead.

The modes are those of other engines, to be compared with the network's own on the same job: none, a rate that follows Spark
Streaming's PID controller, and watermarks of the queues with a coordinator that throttles the sources, as in Storm.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Hashable
from typing import Generic, Self, TypeVar

from msgspec import Struct

from testbed_runtime.core.options import Options

PROPORTIONAL, INTEGRAL, DERIVATIVE, MIN_RATE = 1.0, 0.2, 0.0, 100.0
"""Spark's defaults (spark.streaming.backpressure.pid.*)."""
HIGH_WATERMARK, LOW_WATERMARK = 0.9, 0.4
"""Storm's defaults (backpressure.disruptor.high.watermark and low.watermark)."""
UNLIMITED = -1.0
"""The rate of a source that no controller limits."""
BURST_S = 0.05
"""A rate limiter saves up at most the records of this many seconds."""

Item = TypeVar("Item")


class Mode(enum.Enum):
    """How flow control limits a source that is faster than its consumer."""

    NETWORK = "network"
    TCP = "tcp"
    NONE = "none"
    PID = "pid"
    WATERMARK = "watermark"


class FlowControl(Struct, frozen=True):
    """The options of flow control."""

    mode: Mode
    rate: float
    """Static limit of each source in records per second, over all its subtasks; 0: none."""
    queue_bytes: int
    drops: bool
    interval_s: float

    @classmethod
    def read(cls, options: Options) -> Self:
        return cls(
            Mode(options.string("headgate.flow-control")),
            float(options.integer("headgate.flow-control.rate")),
            options.memory("headgate.flow-control.queue"),
            options.string("headgate.flow-control.overflow") == "drop",
            max(0.01, options.duration("headgate.flow-control.interval")),
        )

    @property
    def queued(self) -> bool:
        """Whether tasks receive into a queue, so that the network does not push back."""
        return self.mode not in (Mode.NETWORK, Mode.TCP)

    @property
    def coordinated(self) -> bool:
        """Whether the JobMaster sets the rates of the sources, according to reports of the receivers'
        queues."""
        return self.mode in (Mode.PID, Mode.WATERMARK)


class ReceiveQueue(Generic[Item]):
    """Items with their sizes in bytes and arrival times, up to a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self.largest_bytes = 0
        self._items: deque[tuple[Item, int, float]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def room(self, item_bytes: int) -> int:
        """Return how many items of this size still fit."""
        return max(0, self.limit_bytes - self.bytes) // item_bytes

    def put(self, item: Item, size: int, now: float) -> None:
        self._items.append((item, size, now))
        self.bytes += size
        self.largest_bytes = max(self.largest_bytes, self.bytes)

    def take(self, now: float) -> tuple[Item, int, float]:
        """Return the oldest item, its size, and how long it waited. It counts as queued until `done`."""
        item, size, since = self._items.popleft()
        return item, size, now - since

    def done(self, size: int) -> None:
        self.bytes -= size


class RateLimiter:
    """Grants records at a rate. Grants that are unused for longer than BURST_S expire."""

    def __init__(self, rate: float = UNLIMITED) -> None:
        self.rate = rate
        self._credit = 0.0
        self._at: float | None = None

    def limit(self, rate: float, now: float) -> None:
        """Change the rate from now on. 0 stops the source, UNLIMITED frees it."""
        self._accrue(now)
        self.rate = rate

    def _accrue(self, now: float) -> None:
        if self._at is not None and self.rate > 0:
            most = max(1.0, self.rate * BURST_S)
            self._credit = min(most, self._credit + (now - self._at) * self.rate)
        self._at = now

    def grant(self, now: float, most: int) -> int:
        """Return how many records may be emitted now, at most `most`. Report the emitted ones to `spend`."""
        if self.rate < 0:
            return most
        self._accrue(now)
        return min(most, int(self._credit + 1e-9)) if self.rate > 0 else 0

    def spend(self, records: int) -> None:
        if self.rate >= 0:
            self._credit -= records

    def next_time(self, now: float) -> float | None:
        """Return when the next record is granted. None if no record is granted before the rate changes."""
        if self.rate == 0:
            return None
        return now if self.rate < 0 else now + max(0.0, 1.0 - self._credit) / self.rate


class QueueReport(Struct, frozen=True):
    """The report of one receiver for an interval."""

    queued_share: float
    """Bytes in the queue, as a share of its limit."""
    processed: int
    """Records processed in the interval."""
    processing_s: float
    """The time that was spent on them."""
    waited_s: float
    """How long the last of these records had waited in the queue: Spark's scheduling delay."""


class PidEstimator:
    """Spark Streaming's PIDRateEstimator: the next rate of a receiver from how fast the last batch was processed."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._at = -1.0
        self._rate = -1.0
        self._error = -1.0

    def compute(self, report: QueueReport, now: float) -> float | None:
        """Return the new rate in records per second. None for the first batch, and for one without records."""
        if now <= self._at or report.processed <= 0 or report.processing_s <= 0:
            return None
        since_s = now - self._at
        processing_rate = report.processed / report.processing_s
        error = self._rate - processing_rate
        historical = report.waited_s * processing_rate / self._interval_s
        d_error = (error - self._error) / since_s
        first = self._at < 0
        self._at = now
        if first:
            self._rate, self._error = processing_rate, 0.0
            return None
        rate = self._rate - PROPORTIONAL * error - INTEGRAL * historical - DERIVATIVE * d_error
        self._rate, self._error = max(rate, MIN_RATE), error
        return self._rate


class Coordinator:
    """Decides the rate of one group of sources by the reports of the receivers behind it."""

    def __init__(self, flow: FlowControl) -> None:
        self._flow = flow
        self._estimators: dict[Hashable, PidEstimator] = {}
        self._rates: dict[Hashable, float] = {}
        self._full: set[Hashable] = set()
        self._rate = UNLIMITED

    def retain(self, receivers: Collection[Hashable]) -> None:
        """Forget all other receivers: a finished one sends no more reports."""
        self._estimators = {r: e for r, e in self._estimators.items() if r in receivers}
        self._rates = {r: rate for r, rate in self._rates.items() if r in receivers}
        self._full &= set(receivers)

    def report(self, receiver: Hashable, report: QueueReport, now: float) -> float | None:
        """Return the new rate of the sources, or None if it does not change."""
        wanted = (
            self._pid(receiver, report, now) if self._flow.mode is Mode.PID else self._mark(receiver, report)
        )
        if wanted is None or wanted == self._rate:
            return None
        self._rate = wanted
        return wanted

    def _pid(self, receiver: Hashable, report: QueueReport, now: float) -> float | None:
        """Return the sum of the receivers' rates, because each receiver gets a part of the records. None
        until every receiver has a rate."""
        estimator = self._estimators.setdefault(receiver, PidEstimator(self._flow.interval_s))
        rate = estimator.compute(report, now)
        if rate is None:
            return None
        self._rates[receiver] = rate
        return sum(self._rates.values()) if len(self._rates) == len(self._estimators) else None

    def _mark(self, receiver: Hashable, report: QueueReport) -> float:
        """Stop the sources when any queue is above the high watermark, until all are below the low one."""
        if report.queued_share >= HIGH_WATERMARK:
            self._full.add(receiver)
        elif report.queued_share <= LOW_WATERMARK:
            self._full.discard(receiver)
        return 0.0 if self._full else UNLIMITED
