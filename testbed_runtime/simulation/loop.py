"""An event loop in virtual time, with processes that can be paused and killed.

Nothing waits: when no callback is ready, the clock jumps to the next timer. Callbacks run in FIFO order, timers by due time
and then by order of their making, so one seed gives one history. A loop with nothing to do and nothing to wait for is a
deadlock and says so.

A *process* is a name in a context variable, inherited by every task and callback that was started under it. A paused process
keeps its callbacks until it is resumed (as SIGSTOP does: its timers are then all due at once); a killed one loses them.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from testbed_runtime.core.errors import HeadgateError

T = TypeVar("T")

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("headgate_process", default="")
"""Logical process of the running callback; empty: the simulation itself."""

CALLBACKS_MAX = 50_000_000
"""A run that needs more callbacks than this spins (livelock)."""


class SimulatedDeadlock(HeadgateError):
    """Nothing is ready and no timer is armed: somebody waits for what nobody will do."""


class _JumpingSelector:
    """Stands where asyncio's selector stands: instead of waiting it moves the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise SimulatedDeadlock(f"nothing left to do at {self._loop.time():.6f} s")
        if timeout > 0:
            self._loop.jump(timeout)
        return []

    def close(self) -> None:
        return None


class VirtualLoop(asyncio.BaseEventLoop):
    """`time()` starts at `start_s` and moves only by jumps."""

    def __init__(self, start_s: float = 1000.0) -> None:
        super().__init__()
        self._now = start_s
        self._callbacks = 0
        self._selector = _JumpingSelector(self)
        self._clock_resolution = math.ulp(start_s)
        self._held: dict[str, list[asyncio.Handle]] = {}
        self._paused: set[str] = set()
        self._dead: set[str] = set()

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Exactly to the next timer: a timer that fires a rounding error early, and is armed again for its time, would spin."""
        timers = self._scheduled  # type: ignore[attr-defined]
        self._now = max(self._now + seconds, timers[0].when() if timers else 0.0)
        self._clock_resolution = math.ulp(self._now)

    # ---- what BaseEventLoop asks of a loop that has no sockets

    def _process_events(self, event_list: list[Any]) -> None:
        return None

    def _write_to_self(self) -> None:
        return None

    # ---- processes

    def pause(self, process: str) -> None:
        self._paused.add(process)

    def resume(self, process: str) -> None:
        self._paused.discard(process)
        for handle in self._held.pop(process, []):
            if not handle.cancelled():
                super().call_soon(handle._run)  # noqa: SLF001 - the handle was made by this loop

    def kill(self, process: str) -> None:
        """Its callbacks never run again; its tasks stay as they are and are never resumed."""
        self._dead.add(process)
        self._paused.discard(process)
        self._held.pop(process, None)

    def is_dead(self, process: str) -> bool:
        return process in self._dead

    def is_paused(self, process: str) -> bool:
        return process in self._paused

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(*self._guarded(callback, args, context), context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, *self._guarded(callback, args, context), context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def _guarded(
        self, callback: Any, args: tuple[Any, ...], context: contextvars.Context | None
    ) -> tuple[Any, ...]:
        process = context.get(PROCESS, "") if context is not None else PROCESS.get()
        if not process:
            return (callback, *args)
        return (self._run_in_process, process, context, callback, *args)

    def _run_in_process(
        self, process: str, context: contextvars.Context | None, callback: Callable[..., Any], *args: Any
    ) -> None:
        if process in self._dead:
            return
        if process in self._paused:
            self._held.setdefault(process, []).append(
                asyncio.Handle(callback, args, self, context or contextvars.copy_context())
            )
            return
        callback(*args)

    def _run_once(self) -> None:
        self._callbacks += 1
        if self._callbacks > CALLBACKS_MAX:
            raise SimulatedDeadlock(f"more than {CALLBACKS_MAX} turns: livelock at {self._now:.6f} s")
        super()._run_once()  # type: ignore[misc]


def spawn(process: str, main: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start a task as a logical process: everything it starts belongs to it."""
    context = contextvars.copy_context()
    context.run(PROCESS.set, process)
    return asyncio.get_running_loop().create_task(main, name=name, context=context)


def run_virtual(main: Coroutine[Any, Any, T], *, start_s: float = 1000.0) -> T:
    """Run to the end in virtual time. Tasks of killed processes are dropped with the loop."""
    loop = VirtualLoop(start_s)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        _drop_tasks(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _drop_tasks(loop: VirtualLoop) -> None:
    """Cancel what still runs, resurrecting nobody: dead processes' tasks are closed without another step of theirs."""
    loop._dead.clear()  # noqa: SLF001 - own class
    for process in list(loop._paused):  # noqa: SLF001
        loop.resume(process)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
