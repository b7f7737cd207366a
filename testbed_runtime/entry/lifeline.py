"""When a process of ours ends: its stdin closed (whoever started it is gone), SIGTERM, SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys


class Lifeline:
    """`async with Lifeline() as lifeline: … await lifeline.cut.wait()`."""

    def __init__(self, *, stdin: bool = True) -> None:
        self.cut = asyncio.Event()
        self.reason = ""
        self._stdin = stdin

    async def __aenter__(self) -> Lifeline:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, signal.Signals(number).name)
        if self._stdin:
            with contextlib.suppress(OSError):  # a file or /dev/null: then only signals end us
                loop.add_reader(sys.stdin.fileno(), self._on_stdin)
        return self

    async def __aexit__(self, *exc: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if self._stdin:
            loop.remove_reader(sys.stdin.fileno())

    def _on_stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._end("stdin closed")

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.cut.set()
