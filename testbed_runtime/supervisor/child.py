"""One child process: in its own process group, tied to the life of this process, watched through its pidfd.

The kernel kills it when this process dies (PDEATHSIG), even while it is stopped; its stdin is a pipe that closes with this process.
stderr and the output after its ready line go to its log. There is no thread and no signal handler: the loop reads the pidfd.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from testbed_runtime.children import ends_with_parent
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.timeouts import timeout

STDERR_TAIL_BYTES = 4_096
TRACE = "Traceback (most recent call last)"
MAX_LINE_BYTES = 64 * 1024
"""Maximum bytes of a ready line. A longer line is discarded."""
BUSY_TASKS = 3
"""If more tasks than this wait for each core, the machine starts processes slowly."""
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment that disables numpy's threads. They spin after the import, which would count as the process's work, and are not needed."""


def _busy_machine() -> str:
    """Return a remark about the load of this machine if it explains why a process starts slowly."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= BUSY_TASKS * cores:
        return ""
    return f" (this machine is busy: load average {load:.0f}, {cores} cores)"


class _Lines(asyncio.Protocol):
    """Splits stdout into lines."""

    def __init__(self, on_line: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._rest = b""
        self._on_line = on_line
        self._on_end = on_end

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-MAX_LINE_BYTES:]
        for line in lines:
            self._on_line(line)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._on_end()


class Child:
    """`spawn` it, then `until_ready`. `on_exit` is called once, on the loop, after it was reaped."""

    def __init__(self, name: str, incarnation: int, log: Path, *, tied: bool = True) -> None:
        self.name = name
        self.incarnation = incarnation
        self.ready: dict[str, Any] = {}
        self.paused = False
        self.asked_to_end = False
        """Whether the supervisor or a fault killed or stopped the child."""
        self.stopping = False
        """Whether the child was stopped intentionally, so that it does not count as lost."""
        self.exit_code: int | None = None
        """The exit code. As in subprocess, a negative code is a signal."""
        self.exited = asyncio.Event()
        self.on_exit: Callable[[Child], None] = lambda _: None
        self._log = log
        self._tied = tied
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._ready_line = asyncio.Event()
        self._output: asyncio.ReadTransport | None = None
        self._log_file: IO[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id. None before the child was started and after it was reaped."""
        return None if self._process is None or self.exit_code is not None else self._process.pid

    @property
    def last_pid(self) -> int | None:
        """The process id, also after the child was reaped."""
        return None if self._process is None else self._process.pid

    @property
    def state(self) -> str:
        """`running`, `paused`, `exited`, `killed`."""
        if self.exit_code is None:
            return "paused" if self.paused else "running"
        return "killed" if self.exit_code < 0 else "exited"

    async def spawn(self, argv: Sequence[str]) -> None:
        """Raises HeadgateError when the program cannot be started."""
        loop = asyncio.get_running_loop()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log_file = self._log.open("ab")
        try:
            process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own program; exec takes about a millisecond
                list(argv),
                env={**ENVIRONMENT, **os.environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log_file,
                process_group=0,
                preexec_fn=ends_with_parent(signal.SIGKILL) if self._tied else None,  # noqa: PLW1509 - we have one thread
            )
        except OSError as error:
            self._log_file.close()
            raise HeadgateError(f"{self.name} could not be started: {error}") from error
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        loop.add_reader(self._pidfd, self._on_pidfd)
        assert process.stdout is not None
        self._output, _ = await loop.connect_read_pipe(
            lambda: _Lines(self._on_line, self._ready_line.set), process.stdout
        )

    async def until_ready(self, timeout_s: float) -> None:
        """Raises HeadgateError with the tail of its stderr."""
        try:
            async with timeout(timeout_s):
                await self._ready_line.wait()
        except TimeoutError:
            raise HeadgateError(
                f"{self.name} was not ready within {timeout_s:g} s{self._because()}{_busy_machine()}"
            ) from None
        if not self.ready:
            with contextlib.suppress(TimeoutError):
                async with timeout(1.0):
                    await self.exited.wait()
            raise HeadgateError(f"{self.name} ended before it was ready{self._because()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child's whole process group. Does nothing when the child is gone."""
        pid = self.pid
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        if number == signal.SIGSTOP:
            self.paused = True
        elif number == signal.SIGCONT:
            self.paused = False

    def kill(self) -> None:
        self.asked_to_end = True
        self.signal(signal.SIGKILL)

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM and close stdin; kill it when it still runs after `grace_s`. Nothing, if it could not be started."""
        if self._process is None:
            return
        self.asked_to_end = self.stopping = True
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        self.close_stdin()  # close it last: this may end the child too, but its exit code should name the signal
        try:
            async with timeout(grace_s):
                await self.exited.wait()
        except TimeoutError:
            self.kill()
            await self.exited.wait()

    def close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def stderr_tail(self) -> str:
        """Return the end of its log."""
        try:
            with self._log.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - STDERR_TAIL_BYTES))
                return log.read().decode(errors="replace").strip()
        except OSError:
            return ""

    def end_of_log(self) -> str:
        """Return the end of its log: a short message as it is; for a stack trace, its last line and the path of the log."""
        tail = self.stderr_tail()
        if TRACE not in tail and not tail.startswith('File "'):
            return tail
        return f"{tail.splitlines()[-1]} (stack trace in {self._log})"

    def _because(self) -> str:
        words = self.end_of_log()
        code = "" if self.exit_code is None else f" (exit code {self.exit_code})"
        return f"{code}: {words}" if words else code

    def _on_line(self, line: bytes) -> None:
        if not self._ready_line.is_set():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                self.ready = dict(json.loads(line)["ready"])
                self._ready_line.set()
                return
        if self._log_file is not None and not self._log_file.closed:
            self._log_file.write(line + b"\n")
            self._log_file.flush()

    def _on_pidfd(self) -> None:
        """Reap the child and release its resources."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        code = self._process.poll()
        if code is None:
            return
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # descendants that may still be in its group
        self.exit_code = code
        self.paused = False
        self.close_stdin()
        if self._output is not None:
            self._output.close()
        if self._log_file is not None:
            self._log_file.close()
        self.exited.set()
        self._ready_line.set()
        self.on_exit(self)
