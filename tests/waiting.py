"""A wait for a condition, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], *, seconds: float = 10.0, poll_s: float = 0.02) -> None:
    """Wait until a condition is true. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(poll_s)
