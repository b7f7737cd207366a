"""The limit of a block, in a task that is being cancelled too."""

from __future__ import annotations

import asyncio

import pytest

from testbed_runtime.timeouts import timeout


async def _never(reached: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        try:
            async with timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            reached.append("limit")


async def test_a_cleanup_has_its_limit_although_its_task_was_cancelled():
    """A task that ends its children when it is cancelled goes on after those that do not end in time."""
    reached: list[str] = []
    task = asyncio.create_task(_never(reached))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reached == ["limit"]


async def test_a_cancellation_within_the_limit_is_not_reported_as_a_timeout():
    """The task that was cancelled ends as cancelled."""

    async def limited() -> None:
        async with timeout(60):
            await asyncio.Event().wait()

    task = asyncio.create_task(limited())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
