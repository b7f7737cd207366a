"""How long a consumer waits for its producer's partition: both generations of Flink's rule (flink-facts §4)."""

from __future__ import annotations

from testbed_runtime.core.options import Options


class Backoff:
    """Doubling from `initial` to `maximum`, then no more. `initial` 0: not a single retry. Any one unit of time."""

    __slots__ = ("current", "initial", "maximum")

    def __init__(self, initial: float, maximum: float) -> None:
        self.initial = initial
        self.maximum = maximum
        self.current = 0.0
        """The wait before the next request; 0 before the first increase."""

    def increase(self) -> bool:
        """False: the budget is spent."""
        if self.initial <= 0:
            return False
        if self.current == 0:
            self.current = self.initial
            return True
        if self.current >= self.maximum:
            return False
        self.current = min(self.current * 2, self.maximum)
        return True


class RemoteBackoff:
    """Retriggers of a remote request.

    From 1.19 the request waits at the producer: each retrigger adds the time it may wait there, is sent at once, and is
    allowed while the sum is below twice the maximum. Before, the producer answers at once and the next request waits here.
    """

    __slots__ = ("_doubling", "current", "listener_timeout", "maximum")

    def __init__(
        self,
        initial: float,
        maximum: float,
        *,
        listener_timeout: float = 0.0,
        waits_at_producer: bool = True,
    ) -> None:
        self._doubling = None if waits_at_producer else Backoff(initial, maximum)
        self.maximum = maximum
        self.listener_timeout = listener_timeout
        self.current = 0.0

    def retrigger(self) -> float | None:
        """Seconds until the next request goes out; None: give up."""
        if self._doubling is not None:
            allowed = self._doubling.increase()
            self.current = self._doubling.current
            return self.current if allowed else None
        self.current += self.listener_timeout
        if self.listener_timeout <= 0 or self.current >= 2 * self.maximum:
            return None
        return 0.0


def local_backoff(options: Options) -> Backoff:
    """Seconds. Between requests of a channel for a partition of its own TaskManager."""
    return Backoff(
        options.duration("taskmanager.network.request-backoff.initial"),
        options.duration("taskmanager.network.request-backoff.max"),
    )


def remote_backoff(options: Options) -> RemoteBackoff:
    """Seconds. Of a channel's requests to another TaskManager."""
    return RemoteBackoff(
        options.duration("taskmanager.network.request-backoff.initial"),
        options.duration("taskmanager.network.request-backoff.max"),
        listener_timeout=options.duration("taskmanager.network.partition-request-timeout"),
        waits_at_producer=options.requests_wait_at_producer,
    )
