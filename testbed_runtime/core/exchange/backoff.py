"""How long a consumer waits for its producer's partition: the rules before and from Flink 1.19 (FLINK-25055)."""

from __future__ import annotations

import math

from testbed_runtime.core.options import Options

MILLIS = 3
"""Decimal places of a second that count: Flink adds and compares whole milliseconds."""


class Backoff:
    """Exponential backoff from `initial` to `maximum`. `initial` 0 means no retries. Works in any unit of time."""

    __slots__ = ("current", "initial", "maximum")
    waits_at_producer = False
    """Whether a request for an unknown partition waits at the producer, which otherwise refuses it at once."""

    def __init__(self, initial: float, maximum: float) -> None:
        self.initial = initial
        self.maximum = maximum
        self.current = 0.0
        """Delay before the next request; 0 before the first increase."""

    def budget(self) -> float:
        """Return the sum of all delays: how long requests go on. 22.7 s from 100 ms to 10 s."""
        fresh = Backoff(self.initial, self.maximum)
        total = 0.0
        while fresh.increase():
            total += fresh.current
        return total

    def increase(self) -> bool:
        """Double the delay. Return False if the maximum has been reached."""
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

    From Flink 1.19 on, the request waits at the producer. Each retrigger is sent at once and adds the time that it may
    wait there; retriggers are allowed while the sum is below twice the maximum. In earlier versions the producer answers
    at once, and the consumer delays the next request.
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

    def budget(self) -> float:
        """Return how long requests go on at least. One that waits at the producer waits for one to two timeouts."""
        if self._doubling is not None:
            return self._doubling.budget()
        if self.listener_timeout <= 0:
            return 0.0
        return self.listener_timeout * max(1, math.ceil(2 * self.maximum / self.listener_timeout - 1e-9))

    def retrigger(self) -> float | None:
        """Return the seconds until the next request is sent, or None to give up."""
        if self._doubling is not None:
            allowed = self._doubling.increase()
            self.current = self._doubling.current
            return self.current if allowed else None
        self.current = round(self.current + self.listener_timeout, MILLIS)
        if self.listener_timeout <= 0 or self.current >= round(2 * self.maximum, MILLIS):
            return None
        return 0.0


def local_backoff(options: Options) -> Backoff:
    """Return the backoff, in seconds, of requests for a partition in the same TaskManager."""
    return Backoff(
        options.duration("taskmanager.network.request-backoff.initial"),
        options.duration("taskmanager.network.request-backoff.max"),
    )


def remote_backoff(options: Options) -> RemoteBackoff:
    """Return the backoff, in seconds, of requests to another TaskManager."""
    return RemoteBackoff(
        options.duration("taskmanager.network.request-backoff.initial"),
        options.duration("taskmanager.network.request-backoff.max"),
        listener_timeout=options.duration("taskmanager.network.partition-request-timeout"),
        waits_at_producer=options.requests_wait_at_producer,
    )
