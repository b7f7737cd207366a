"""Ports for time, randomness, ids and processor time."""

from __future__ import annotations

from random import Random
from typing import Protocol


class Clock(Protocol):
    """A clock. `now` is the loop's monotonic time in seconds, comparable between processes with the same boot id."""

    @property
    def boot_id(self) -> str: ...

    def now(self) -> float: ...


class RandomSource(Protocol):
    def stream(self, purpose: str) -> Random:
        """Return the seeded generator of one purpose (`network`, `workload`, `placement`, …), independent of the others."""


class IdSource(Protocol):
    def bytes16(self) -> bytes: ...


class Cpu(Protocol):
    """Simulates service time, awaited per buffer rather than per record."""

    async def spend(self, seconds: float) -> None: ...

    async def yield_control(self) -> None:
        """Yield to other tasks of the loop. A task calls it for each buffer."""
