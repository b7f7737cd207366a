"""Run a coroutine that Ctrl-C and SIGTERM cancel, and that then has time to clean up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

from testbed_runtime.cli.exits import Interrupted

T = TypeVar("T")
CLEANED_UP = "faults are healed, processes are stopped, what was recorded is kept"
GIVEN_UP = "the cleaning up was given up; supervisors end faults and processes by themselves, and what was not sealed is lost"


def run_interruptible(
    main: Coroutine[Any, Any, T],
    *,
    became: str = CLEANED_UP,
    given_up: str = GIVEN_UP,
    runner: asyncio.Runner | None = None,
) -> T:
    """Run the coroutine on the loop of `runner`, or on a new loop. After a first signal, raise Interrupted with the text `became` once the
    coroutine has cleaned up. A second signal cancels the cleanup too (`given_up`). The supervisors then end everything themselves,
    because this end of their pipe closes. A third signal kills this process."""
    signals = 0

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        work = loop.create_task(main, name="main")

        def interrupt() -> None:
            nonlocal signals
            signals += 1
            if signals > 1:
                _restore_default_handling(loop)
            for task in (work,) if signals == 1 else asyncio.all_tasks(loop) - {owner}:
                task.cancel()

        owner = asyncio.current_task()
        earlier = {number: signal.getsignal(number) for number in _handled_signals()}
        for number in earlier:
            with suppress(NotImplementedError):
                loop.add_signal_handler(number, interrupt)
        try:
            return await work
        finally:
            if signals <= 1:
                _remove_handlers(loop, earlier)
                for number, handler in earlier.items():  # the loop's own removal leaves SIGTERM without one
                    signal.signal(number, handler)

    try:
        with nullcontext(runner) if runner is not None else asyncio.Runner() as running:
            return running.run(guarded())
    except asyncio.CancelledError:
        if signals:
            raise Interrupted(became if signals == 1 else given_up) from None
        raise
    except KeyboardInterrupt:  # the signal came before there was a handler, or after it was removed
        main.close()  # the coroutine may not have begun
        raise Interrupted(became) from None


@contextmanager
def keeping_interrupts() -> Iterator[None]:
    """Keep Ctrl-C from the processes that start in this block, even while they import. A terminal sends it to all processes. This process
    gets Ctrl-C and SIGTERM after the block, and ends the others."""
    received: list[int] = []
    on_term = signal.getsignal(signal.SIGTERM)
    if callable(on_term):  # it raises; blocking SIGTERM instead would block it in the new process
        signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if callable(on_term):
            signal.signal(signal.SIGTERM, on_term)
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        if received:
            signal.raise_signal(signal.SIGTERM)


def _remove_handlers(loop: asyncio.AbstractEventLoop, numbers: Iterable[signal.Signals]) -> None:
    for number in numbers:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(number)


def _restore_default_handling(loop: asyncio.AbstractEventLoop) -> None:
    """Let the next signal kill this process, because two signals have not ended it."""
    numbers = _handled_signals()
    _remove_handlers(loop, numbers)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def _handled_signals() -> list[signal.Signals]:
    """Return the signals that get a handler of the loop. With the handler of asyncio.Runner, the second Ctrl-C would raise KeyboardInterrupt
    in an arbitrary line. SIGINT stays ignored when a shell started this process in the background."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGINT, signal.SIGTERM]
