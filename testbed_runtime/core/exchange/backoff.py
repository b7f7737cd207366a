"""How long a consumer waits for its producer's partition: the rules before and from Flink 1.19 (FLINK-25055)."""

from __future__ import annotations

from testbed_runtime.core.options import Options
from testbed_runtime.core.values import MAX_INT, MILLIS, java_int


def _millis(seconds: float) -> int:
    """Return whole milliseconds as Flink adds, doubles and compares them: in an int, which wraps."""
    return java_int(round(seconds * MILLIS))


class Backoff:
    """Exponential backoff from `initial` to `maximum`, in seconds. `initial` 0 means no retries.

    Twice a delay of 2³⁰ ms or more is negative, and the next request is sent at once. Until 1.18 it is the last one: a
    negative delay turns the backoff off. From 1.19 on the doubling continues, and no request is the last one."""

    __slots__ = ("_initial_ms", "_maximum_ms", "_ms", "_overflow_ends", "initial", "maximum")
    waits_at_producer = False
    """Whether a request for an unknown partition waits at the producer, which otherwise refuses it at once."""

    def __init__(self, initial: float, maximum: float, *, overflow_ends: bool = False) -> None:
        self.initial = initial
        self.maximum = maximum
        self._overflow_ends = overflow_ends
        self._initial_ms, self._maximum_ms = _millis(initial), _millis(maximum)
        self._ms = 0

    @property
    def current(self) -> float:
        """Delay before the next request; 0 before the first increase."""
        return max(0, self._ms) / MILLIS

    def fresh(self) -> Backoff:
        """Return a backoff with the same limits that has not been increased."""
        return Backoff(self.initial, self.maximum, overflow_ends=self._overflow_ends)

    def budget(self) -> float | None:
        """Return the sum of all delays, during which requests are repeated: 22.7 s for 100 ms to 10 s. None: unlimited."""
        fresh = self.fresh()
        total_ms = 0
        while fresh.increase():
            if fresh._ms < 0 and not self._overflow_ends:  # noqa: SLF001 - another object of this class
                return None
            total_ms += max(0, fresh._ms)  # noqa: SLF001
        return total_ms / MILLIS

    def increase(self) -> bool:
        """Double the delay. Return False if the maximum has been reached."""
        if self._initial_ms <= 0 or (self._overflow_ends and self._ms < 0):
            return False
        if self._ms == 0:
            self._ms = self._initial_ms
            return True
        if self._ms >= self._maximum_ms:
            return False
        self._ms = min(java_int(self._ms * 2), self._maximum_ms)
        return True


class RemoteBackoff:
    """Retriggers of a remote request.

    From Flink 1.19 on, the request waits at the producer. Each retrigger is sent at once and adds the time that it may
    wait there; retriggers are allowed while the sum is below twice the maximum, which is negative from 2³⁰ ms on. In
    earlier versions the producer answers at once, and the consumer delays the next request.
    """

    __slots__ = ("_doubling", "_ms", "_timeout_ms", "listener_timeout", "maximum", "used")

    def __init__(
        self,
        initial: float,
        maximum: float,
        *,
        listener_timeout: float = 0.0,
        waits_at_producer: bool = True,
    ) -> None:
        self._doubling = None if waits_at_producer else Backoff(initial, maximum, overflow_ends=True)
        self.maximum = maximum
        self.listener_timeout = listener_timeout
        self._timeout_ms = _millis(listener_timeout)
        self._ms = 0
        self.used = False
        """Whether a request was retriggered."""

    @property
    def current(self) -> float:
        """Delay before the next request, or the time that requests may have waited at the producer."""
        return self._ms / MILLIS if self._doubling is None else self._doubling.current

    def fresh(self) -> RemoteBackoff:
        """Return a backoff with the same limits for another channel."""
        waits = self._doubling is None
        initial = 0.0 if self._doubling is None else self._doubling.initial
        return RemoteBackoff(
            initial, self.maximum, listener_timeout=self.listener_timeout, waits_at_producer=waits
        )

    @property
    def waits_at_producer(self) -> bool:
        return self._doubling is None

    @property
    def limit(self) -> float:
        """The total wait at the producer, in seconds, after which requests are not repeated."""
        return java_int(2 * _millis(self.maximum)) / MILLIS

    def budget(self) -> float | None:
        """Return the minimum time in which requests are repeated. A request waits at the producer for one to two timeouts. None: the sum
        of the timeouts wraps before it reaches its limit."""
        if self._doubling is not None:
            return self._doubling.budget()
        if self._timeout_ms <= 0:
            return 0.0
        waits = max(1, -(-round(self.limit * MILLIS) // self._timeout_ms))
        return None if waits * self._timeout_ms > MAX_INT else waits * self._timeout_ms / MILLIS

    def retrigger(self) -> float | None:
        """Return the seconds until the next request is sent, or None to give up."""
        self.used = True
        if self._doubling is not None:
            return self._doubling.current if self._doubling.increase() else None
        if self._timeout_ms <= 0:
            return None
        self._ms = java_int(self._ms + self._timeout_ms)
        return 0.0 if self._ms < round(self.limit * MILLIS) else None


def local_backoff(options: Options) -> Backoff:
    """Return the backoff, in seconds, of requests for a partition in the same TaskManager."""
    return Backoff(
        options.duration("taskmanager.network.request-backoff.initial"),
        options.duration("taskmanager.network.request-backoff.max"),
        overflow_ends=not options.requests_wait_at_producer,
    )


def remote_backoff(options: Options) -> RemoteBackoff:
    """Return the backoff, in seconds, of requests to another TaskManager."""
    return RemoteBackoff(
        options.duration("taskmanager.network.request-backoff.initial"),
        options.duration("taskmanager.network.request-backoff.max"),
        listener_timeout=options.duration("taskmanager.network.partition-request-timeout"),
        waits_at_producer=options.requests_wait_at_producer,
    )
