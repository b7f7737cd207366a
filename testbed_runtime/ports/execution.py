"""Time, chance, ids, processor time."""

from __future__ import annotations

from random import Random
from typing import Protocol


class Clock(Protocol):
    """Time. `now` is the loop's time: seconds, monotonic, comparable between processes of one boot id."""

    @property
    def boot_id(self) -> str: ...

    def now(self) -> float: ...


class RandomSource(Protocol):
    def stream(self, purpose: str) -> Random:
        """The seeded generator of one purpose (`network`, `workload`, `placement`, …): a draw in one never shifts another."""


class IdSource(Protocol):
    def bytes16(self) -> bytes: ...


class Cpu(Protocol):
    """Service time, awaited per buffer and not per record."""

    async def spend(self, seconds: float) -> None: ...

    async def breathe(self) -> None:
        """Give the loop to others (a task calls it per buffer)."""
