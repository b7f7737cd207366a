"""Where a TaskManager asks before it registers a producer's partitions, and the default that never delays.

The TaskExecutor awaits `before_registration` before `ResultPartitionManager.register`, for each partition of a task that is being
deployed, and calls `request_seen` whenever a partition request names a partition that is not registered here. Both take the text of
the ResultPartitionID. With `active` False neither needs to be called.
"""

from __future__ import annotations

from typing import Protocol


class PartitionRegistrationHook(Protocol):
    @property
    def active(self) -> bool: ...

    async def before_registration(self, vertex: str, partition: str) -> None:
        """Returns when the partition may be registered. Cancellation passes through."""

    def request_seen(self, partition: str) -> None:
        """A request was answered with `not found` (or, from 1.19 on, began to wait)."""


class NoRegistrationDelay:
    """The hook of a process without faults."""

    active = False

    async def before_registration(self, vertex: str, partition: str) -> None:
        del vertex, partition

    def request_seen(self, partition: str) -> None:
        del partition
