"""An event loop in virtual time, with processes that can be paused and killed.

The loop never waits: if no callback is ready, the clock jumps to the next timer. Callbacks run in FIFO order, timers by
due time and creation order, so a seed always gives the same history. A loop without callbacks and timers raises
SimulatedDeadlock.

A *process* is a name in a context variable, inherited by every task and callback started under it. A paused process keeps
its callbacks until it is resumed (as with SIGSTOP, its timers are then all due at once). A killed one loses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import heapq
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator
from heapq import heappop, heappush
from typing import Any, TypeVar

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.files import repeatable

T = TypeVar("T")

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("headgate_process", default="")
"""Logical process of the running callback. Empty for the simulation itself."""

TURNS_MAX = 50_000_000
"""A run that needs more iterations than this is in a livelock."""
TURNS_AT_ONE_INSTANT_MAX = 100_000
"""This many iterations at one instant are a livelock too. The busiest instant of a run has some hundreds."""
CANCELLED_TIMERS_MAX = 1_000
"""The timers are cleaned when more of them are cancelled than this, and than were left after the last time."""
LIVELOCK_NAMES = 12
"""Maximum names of tasks in the error. There may be thousands of tasks."""
END_LIMIT_S = 120.0
"""Virtual seconds for cancelled tasks to end after a run. The others are dropped."""
COLLECT_EVERY = (12_000_000, 10, 3)
"""Thresholds of the garbage collector during a run: a large job keeps millions of objects alive, and with the defaults the
collector visits them again and again, which took 40 % of the time of a run with 29,000 channels. A thousand subtasks that are
deployed twice stay below the first: a collection would look at four million objects and free a third of a million."""
CLOSE_TRIES = 16
"""Maximum attempts to close a coroutine: each one stops at the next `await` in a `finally` block."""


class SimulatedDeadlock(HeadgateError):
    """Nothing is ready and no timer is set (deadlock), or callbacks keep running at the same virtual time (livelock)."""


class _Handle(asyncio.Handle):
    """A handle without the queries of debug mode. The loop sets its attributes: a call would cost as much as that."""

    __slots__ = ()

    _repr = None
    _source_traceback = None

    __init__ = object.__init__  # made by the loop

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]  # as asyncio does


class _Timer(asyncio.TimerHandle):
    """A timer without the queries of debug mode, made like a `_Handle`."""

    __slots__ = ()

    _repr = None
    _source_traceback = None

    __init__ = object.__init__  # made by the loop

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None  # type: ignore[assignment]
            self._loop._timer_handle_cancelled(self)  # type: ignore[attr-defined] # noqa: SLF001


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose `time()` starts at `start_s` and jumps exactly to the next timer."""

    def __init__(self, start_s: float = 1000.0) -> None:
        super().__init__()
        self._now = start_s
        self._ready: deque[asyncio.Handle] = deque()
        self._times: list[float] = []
        """The instants with timers, as a heap: numbers are compared faster than handles."""
        self._timers: dict[float, list[asyncio.TimerHandle]] = {}
        """The timers of each instant, in order."""
        self._cancelled_timers = 0
        self._cancelled_most = CANCELLED_TIMERS_MAX
        self._turns = 0
        self._turns_now = 0
        self._stopped: dict[str, list[asyncio.Handle] | None] = {}
        """The paused processes with the callbacks that they have missed, and the killed ones with None."""
        self._owned: defaultdict[str, weakref.WeakSet[asyncio.Task[Any]]] = defaultdict(weakref.WeakSet)
        self._killed_tasks: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        return self._now

    def time_ns(self) -> int:
        """Return the time in whole nanoseconds, as the history has it."""
        return int(self._now * 1e9)

    get_debug = staticmethod(bool)  # False, and not a call of Python for each future

    # ---- processes

    def pause(self, process: str) -> None:
        self._stopped.setdefault(process, [])

    def resume(self, process: str) -> None:
        """Resume a process. The callbacks that it missed are due now, in order."""
        held = self._stopped.get(process)
        if held is not None:
            del self._stopped[process]
            self._ready.extend(held)

    def kill(self, process: str) -> None:
        """Kill a process: its callbacks never run again. Its tasks are kept until the loop ends, because garbage
        collection would run their `finally` blocks."""
        self._stopped[process] = None
        self._killed_tasks += self._owned.pop(process, ())

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task = super().create_task(coro, name=name, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS, "")
        if self._stopped.get(process, ()) is None:
            self._killed_tasks.append(task)
        elif process:
            self._owned[process].add(task)
        return task

    # ---- callbacks and timers

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle: Any = _Handle()  # its attributes are private
        handle._context = contextvars.copy_context() if context is None else context  # noqa: SLF001
        handle._callback, handle._args, handle._loop = callback, args, self  # noqa: SLF001
        handle._cancelled = False  # noqa: SLF001
        self._ready.append(handle)
        return handle  # type: ignore[no-any-return]

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle: Any = _Timer()
        handle._context = contextvars.copy_context() if context is None else context  # noqa: SLF001
        handle._callback, handle._args, handle._loop = callback, args, self  # noqa: SLF001
        handle._cancelled, handle._when = False, when  # noqa: SLF001
        same = self._timers.get(when)
        if same is None:
            self._timers[when] = [handle]
            heappush(self._times, when)
        else:
            same.append(handle)
        return handle  # type: ignore[no-any-return]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > self._cancelled_most:
            left = {when: [t for t in timers if not t.cancelled()] for when, timers in self._timers.items()}
            self._timers = {when: timers for when, timers in left.items() if timers}
            self._times[:] = self._timers
            heapq.heapify(self._times)
            self._cancelled_timers = 0
            self._cancelled_most = max(CANCELLED_TIMERS_MAX, sum(map(len, self._timers.values())))

    def _run_once(self) -> None:
        """Run iterations until the loop is stopped. Each one runs the callbacks that are ready now, not those that they add."""
        ready, times, stopped = self._ready, self._times, self._stopped
        while True:
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                self._jump()
            elif times and times[0] <= self._now:
                self._wake()
            self._turns_now += 1
            if self._turns_now > TURNS_AT_ONE_INSTANT_MAX:
                self._raise_livelock()
            for _ in range(len(ready)):
                handle: Any = ready.popleft()
                if handle._cancelled:  # noqa: SLF001
                    continue
                if stopped and (process := handle._context.get(PROCESS, "")) in stopped:  # noqa: SLF001
                    if (held := stopped[process]) is not None:
                        held.append(handle)
                    continue
                try:  # what `Handle._run` does
                    handle._context.run(handle._callback, *handle._args)  # noqa: SLF001
                except BaseException as error:
                    self._failed(handle, error)
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _failed(self, handle: asyncio.Handle, error: BaseException) -> None:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise error
        self.call_exception_handler(
            {"message": f"Exception in callback {handle!r}", "exception": error, "handle": handle}
        )

    def _wake(self) -> None:
        """Make the timers ready that are due."""
        times, timers, ready, now = self._times, self._timers, self._ready, self._now
        while times and times[0] <= now:
            for due in timers.pop(heappop(times)):
                if not due._cancelled:  # noqa: SLF001 - calling the method took half of the loop's time
                    ready.append(due)

    def _jump(self) -> None:
        """Make the next timers ready, and set the clock to their time."""
        times, timers, ready = self._times, self._timers, self._ready
        while times:
            when = heappop(times)
            for due in timers.pop(when):
                if not due._cancelled:  # noqa: SLF001
                    ready.append(due)
            if ready:
                if when <= self._now:
                    self._wake()
                    return
                self._now = when
                self._turns += self._turns_now
                if self._turns > TURNS_MAX:
                    self._raise_livelock()
                self._turns_now = 0
                return
        raise SimulatedDeadlock(f"nothing left to do at {self._now:.6f} s")

    def _raise_livelock(self) -> None:
        names = Counter(t.get_name() for t in asyncio.all_tasks(self))
        most = ", ".join(f"{count} × {name}" for name, count in names.most_common(LIVELOCK_NAMES))
        raise SimulatedDeadlock(f"livelock at {self._now:.6f} s, turn {self._turns}; tasks: {most}")

    # ---- what BaseEventLoop asks of a loop

    def _process_events(self, event_list: list[Any]) -> None:
        return None

    def _write_to_self(self) -> None:
        return None

    def close_leftovers(self) -> None:
        """Drop everything that is left after the end, silently and without running the loop."""
        left = [*self._killed_tasks, *asyncio.all_tasks(self)]
        self._killed_tasks.clear()
        for task in left:
            if task.done():
                if not task.cancelled():
                    task.exception()  # the process was killed before anything could retrieve it
            else:
                task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - the task is pending on purpose
                _close(task.get_coro())
        self._ready.clear()
        self._times.clear()
        self._timers.clear()


def _close(coroutine: Any) -> None:
    """Close a coroutine, repeatedly if it awaits in `finally` blocks, so that garbage collection finds it finished."""
    for _ in range(CLOSE_TRIES):
        try:
            coroutine.close()
        except BaseException:  # noqa: S112 - errors of a killed process are ignored
            continue
        return


def spawn(process: str, main: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start a task as a logical process. Everything that it starts belongs to the process."""
    context = contextvars.copy_context()
    context.run(PROCESS.set, process)
    return asyncio.get_running_loop().create_task(main, name=name, context=context)


def run_virtual(main: Coroutine[Any, Any, T], *, start_s: float = 1000.0) -> T:
    """Run a coroutine in virtual time. Remaining tasks are cancelled; those of killed processes are dropped.

    It does not wait for the disk: a seed gives the same run again."""
    with rare_collections(), repeatable():
        return _run(main, start_s)


@contextlib.contextmanager
def rare_collections(*, last: bool = False) -> Iterator[None]:
    """Collect cyclic garbage rarely in this block, and exempt objects that already exist. With `last` the process ends
    soon after it, and what the block leaves is not looked at either."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_EVERY)
    gc.freeze()  # otherwise the collections counted during the imports make the first collection a full one
    try:
        yield
    finally:
        if last:
            gc.freeze()  # otherwise the next object starts a collection of all objects created in the block
        gc.unfreeze()
        gc.set_threshold(*before)


def _run(main: Coroutine[Any, Any, T], start_s: float) -> T:
    loop = VirtualLoop(start_s)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        _end_tasks(loop)
        loop.close_leftovers()
        asyncio.set_event_loop(None)
        loop.close()


def _end_tasks(loop: VirtualLoop) -> None:
    """Cancel all remaining tasks, including those of paused processes, and let them end within a limit."""
    for process in sorted(loop._stopped):  # noqa: SLF001 - own class
        loop.resume(process)
    killed = set(loop._killed_tasks)  # noqa: SLF001
    tasks = [task for task in asyncio.all_tasks(loop) if task not in killed]
    for task in tasks:
        task.cancel()
    try:
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=END_LIMIT_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
    except SimulatedDeadlock:
        return  # a task that waits for a killed process never ends
