"""Running a coroutine so that Ctrl-C and SIGTERM cancel it, and it has time to clean up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from testbed_runtime.cli.exits import Interrupted

T = TypeVar("T")
CLEANED_UP = "faults are healed, processes are stopped, what was recorded is kept"


def run_interruptible(main: Coroutine[Any, Any, T], *, became: str = CLEANED_UP) -> T:
    """Raises Interrupted (`became`: its text) when it was, after the coroutine has ended. A second Ctrl-C does not wait for that;
    the supervisors end everything by themselves then, since our end of their pipe closes."""
    terminated = False

    async def guarded() -> T:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            if task is not None:
                task.cancel()

        with suppress(NotImplementedError):
            loop.add_signal_handler(signal.SIGTERM, terminate)
        return await main

    try:
        with asyncio.Runner() as runner:
            return runner.run(guarded())
    except KeyboardInterrupt:
        raise Interrupted(became) from None
    except asyncio.CancelledError:
        if terminated:
            raise Interrupted(became) from None
        raise
