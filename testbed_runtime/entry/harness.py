"""The harness that every process runs in: event loop, configuration, ready line, end, exit code.

A process module only wires its parts:

    async def start(config: ProcessConfig, process: Process) -> Ready:
        server = StoreServer(Path(config.blob_folder))
        return {"control": await process.listen(server.application(config.token()), config.bind)}

    if __name__ == "__main__":
        sys.exit(run_process(start, config_file(ProcessConfig.load)))

A process ends on SIGTERM, on SIGINT, when its stdin closes once it is ready (its parent is gone), or when a part calls `Process.end` with a
failure. Exit codes: 0, or 2 with one line on stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import selectors
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias, TypeVar

from aiohttp import web

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.judgement.verdict import EXIT_ERROR
from testbed_runtime.http import serve
from testbed_runtime.ports.network import Address
from testbed_runtime.process.clock import loop_factory
from testbed_runtime.timeouts import cancel_all

Ready: TypeAlias = dict[str, Any]
"""The ready line: addresses by purpose (`control`, `rpc`, `data`, …)."""
C = TypeVar("C")
T = TypeVar("T")


class Process:
    """One running process. Its parts register what closes them; they are closed in reverse order."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self._parts = contextlib.AsyncExitStack()
        self.failure = ""

    def end(self, failure: str = "") -> None:
        """End this process. The first failure is its exit message."""
        self.failure = self.failure or failure
        self._ended.set()

    def on_close(self, close: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._parts.push_async_callback(close, *arguments)

    def enter(self, resource: contextlib.AbstractContextManager[T]) -> T:
        return self._parts.enter_context(resource)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a coroutine until the process ends. Its failure ends the process."""
        task = asyncio.get_running_loop().create_task(work, name=name)

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.end(f"{name}: {error!r}")

        task.add_done_callback(done)
        self.on_close(partial(cancel_all, task))

    async def listen(self, app: web.Application, bind: Address) -> Address:
        """Serve HTTP until the process ends. Raises UserError when the port is in use."""
        runner, address = await serve(app, bind)
        self.on_close(runner.cleanup)
        return address

    async def run(self, start: Callable[[Process], Coroutine[Any, Any, Ready]], *, stdin: bool) -> None:
        """Start, print the ready line, wait for the end, close. Raises HeadgateError with the failure, if there is one."""
        loop = asyncio.get_running_loop()
        async with self._parts:
            self._watch_signals()
            starting = loop.create_task(start(self), name="process:start")
            ended = loop.create_task(self._ended.wait(), name="process:end")
            try:
                await asyncio.wait((starting, ended), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    print(json.dumps({"ready": starting.result()}), flush=True)  # noqa: T201
                    if stdin:
                        self._watch_stdin()
                    await ended
            finally:
                await cancel_all(starting, ended)
        if self.failure:
            raise HeadgateError(self.failure)

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
            self._parts.callback(loop.remove_signal_handler, number)

    def _watch_stdin(self) -> None:
        """End when stdin closes. Stdin is watched only once the process is ready, so that a failed start reports its own error."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # a file or /dev/null: then only signals end this process
            descriptor = sys.stdin.fileno()
            loop.add_reader(descriptor, self._on_stdin, descriptor)
            self._parts.callback(loop.remove_reader, descriptor)

    def _on_stdin(self, descriptor: int) -> None:
        if not os.read(descriptor, 4096):
            asyncio.get_running_loop().remove_reader(descriptor)
            self.end()


def config_file(load: Callable[[str], C]) -> Callable[[], C]:
    """Return a loader of the configuration file that is named on the command line."""

    def load_named() -> C:
        if len(sys.argv) < 2:
            raise UserError("CONFIG.json", "is missing", "name the configuration file on the command line")
        return load(sys.argv[1])

    return load_named


def run_process(
    start: Callable[[C, Process], Coroutine[Any, Any, Ready]],
    load: Callable[[], C],
    *,
    selector: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector,
    has_parent: Callable[[C], bool] = lambda _: True,
) -> int:
    """Run a process to its end. Return its exit code. `has_parent`: it ends when its stdin closes.

    A process whose timers are a fault's latency passes SelectSelector: epoll rounds timeouts up to whole milliseconds."""

    async def work() -> int:
        config = load()
        await Process().run(lambda process: start(config, process), stdin=has_parent(config))
        return 0

    return run_main(work, selector=selector)


def run_main(
    work: Callable[[], Coroutine[Any, Any, int]],
    *,
    exit_error: int = EXIT_ERROR,
    selector: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector,
) -> int:
    """Run a coroutine in a process's event loop. Return its exit code, or `exit_error` after a HeadgateError or OSError."""
    gc.freeze()  # the imported objects are exempt from every collection, even the interpreter's last one, which takes a tenth of a short process
    gc.enable()  # disabled since the import of `entry`
    try:
        with asyncio.Runner(loop_factory=loop_factory(selector)) as runner:
            return runner.run(work())
    except (HeadgateError, OSError) as error:
        complain(str(error))
        return exit_error


def complain(text: str) -> None:
    """Write a line to stderr."""
    with contextlib.suppress(OSError):  # the log may be on the full disk
        print(text, file=sys.stderr, flush=True)  # noqa: T201
