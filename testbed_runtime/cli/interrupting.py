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
GIVEN_UP = "the cleaning up was given up; supervisors end faults and processes by themselves, and what was not sealed is lost"


def run_interruptible(
    main: Coroutine[Any, Any, T], *, became: str = CLEANED_UP, given_up: str = GIVEN_UP
) -> T:
    """Raises Interrupted (`became`: its text) when it was, after the coroutine has ended. A second signal cancels the cleaning up
    too (`given_up`); the supervisors end everything by themselves then, since our end of their pipe closes. A third one kills us."""
    signals = 0

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        work = loop.create_task(main, name="main")

        def interrupt() -> None:
            nonlocal signals
            signals += 1
            if signals > 1:
                _leave_to_the_system(loop)
            for task in (work,) if signals == 1 else asyncio.all_tasks(loop) - {owner}:
                task.cancel()

        owner = asyncio.current_task()
        for number in _ours():
            with suppress(NotImplementedError):
                loop.add_signal_handler(number, interrupt)
        return await work

    try:
        with asyncio.Runner() as runner:
            return runner.run(guarded())
    except asyncio.CancelledError:
        if signals:
            raise Interrupted(became if signals == 1 else given_up) from None
        raise
    except KeyboardInterrupt:  # before there was a handler, or after
        main.close()  # it may not have begun
        raise Interrupted(became) from None


def _leave_to_the_system(loop: asyncio.AbstractEventLoop) -> None:
    """Whoever asks a third time has waited for something that does not end."""
    for number in _ours():
        with suppress(NotImplementedError):
            loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


def _ours() -> list[signal.Signals]:
    """Handlers of the loop instead of asyncio.Runner's own: that one raises KeyboardInterrupt at the second Ctrl-C in whatever line
    is being run, and no task expects it there. A shell that starts us in the background has Ctrl-C ignored: so it stays."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGINT, signal.SIGTERM]
