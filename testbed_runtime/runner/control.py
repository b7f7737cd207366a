"""What somebody outside may ask of a run that goes on: wait after this trial, go on, stop because its faults were healed."""

from __future__ import annotations

import asyncio


class RunControl:
    """Owned by whoever starts the run, read by its Runner. All calls are from the loop's thread and return at once."""

    def __init__(self) -> None:
        self._going = asyncio.Event()
        self._going.set()
        self._healed = asyncio.Event()
        self.why = ""
        """Why the run is stopped; empty while it is not."""

    @property
    def suspended(self) -> bool:
        return not self._going.is_set()

    @property
    def healed(self) -> bool:
        return self._healed.is_set()

    def suspend(self) -> None:
        """The trial that is on ends as planned; no other begins."""
        self._going.clear()

    def resume(self) -> None:
        self._going.set()

    def heal(self, why: str) -> None:
        """Stop now: the verdict becomes Inconclusive with reason Healed. The first reason stays."""
        self.why = self.why or why
        self._healed.set()

    async def until_going(self) -> None:
        await self._going.wait()

    async def until_healed(self) -> None:
        await self._healed.wait()
