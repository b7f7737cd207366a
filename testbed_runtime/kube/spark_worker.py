"""The child process with the warm Spark: started when it is needed, started again when it died."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation import ERROR_PREFIX

START_LIMIT_S = 180.0
"""A cold Spark needs 10 to 20 s on two cores, 40 s with executors; a node under load gets time."""
EVALUATION_LIMIT_S = 300.0
"""One run of a few trials takes seconds; one that takes longer hangs."""
GRACE_S = 3.0
"""From SIGTERM to SIGKILL of the worker's process group."""
TAIL_LINES = 12
"""Lines of Spark's log that an error carries."""
LINE_MAX_BYTES = 1 << 20


class SparkEnded(HeadgateError):
    """The process with Spark died under its work; another one may do it."""


OnProgress = Callable[[Mapping[str, Any]], Awaitable[None]]


class SparkWorker:
    """At most one child, one evaluation at a time (the caller sees to it). `close` ends it."""

    def __init__(self, *, environment: Mapping[str, str] | None = None, python: str = sys.executable) -> None:
        self._environment = {**os.environ, **(environment or {})}
        self._python = python
        self._child: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None
        self._tail: list[str] = []
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Of the child, which leads a process group of its own."""
        return self._child.pid if self._child is not None else None

    @property
    def is_up(self) -> bool:
        return self._child is not None and self._child.returncode is None

    async def start(self) -> None:
        """Until Spark is there. Does nothing when it is. Raises HeadgateError with the end of its log."""
        if self.is_up:
            return
        await self.close()
        self._tail = []
        self._child = await asyncio.create_subprocess_exec(
            self._python,
            "-m",
            "testbed_runtime.evaluation.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_MAX_BYTES,
            env=self._environment,
            start_new_session=True,  # the JVM and Python workers are in the group, and end with it
        )
        self.starts += 1
        self._log = asyncio.create_task(self._read_log(self._child), name="spark-log")
        try:
            async with asyncio.timeout(START_LIMIT_S):
                said = await self._line()
        except TimeoutError:
            await self.close()
            raise HeadgateError(f"Spark did not start within {START_LIMIT_S:g} s{self._end()}") from None
        if "ready" not in said:
            raise HeadgateError(f"Spark began with {said!r}")

    async def evaluate(self, folder: Path, on_progress: OnProgress) -> None:
        """One run's folder: metrics.json and timeseries.json are in it afterwards. Raises HeadgateError."""
        await self.start()
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            async with asyncio.timeout(EVALUATION_LIMIT_S):
                self._child.stdin.write(json.dumps({"folder": str(folder)}).encode() + b"\n")
                await self._child.stdin.drain()
                while "result" not in (said := await self._line()):
                    await on_progress(said)
        except TimeoutError:
            await self.close()
            raise HeadgateError(
                f"The evaluation took longer than {EVALUATION_LIMIT_S:g} s and was ended{self._end()}"
            ) from None
        except OSError as error:
            await self.close()
            raise SparkEnded(f"Spark has ended ({error}){self._end()}") from None
        except asyncio.CancelledError:
            await self.close()  # what it would still say belongs to nobody
            raise
        if said["result"] != "done":
            raise HeadgateError(f"The evaluation failed: {said.get('error', 'no reason')}{self._end()}")

    async def close(self) -> None:
        """The whole process group is gone when this returns. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            if child.returncode is None:
                _signal_group(child, signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await child.wait()
            _signal_group(child, signal.SIGKILL)
            await child.wait()
            if child.stdin is not None:
                child.stdin.close()
        if self._log is not None:
            await self._log
            self._log = None

    async def _line(self) -> dict[str, Any]:
        """Raises HeadgateError when the child ends instead."""
        assert self._child is not None
        assert self._child.stdout is not None
        while line := await self._child.stdout.readline():
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if isinstance(said, dict):
                    return said
        await self.close()
        raise SparkEnded(f"Spark has ended before its work was done{self._end()}")

    async def _read_log(self, child: asyncio.subprocess.Process) -> None:
        """Passed on to our own stderr (the pod's log); its end is kept."""
        assert child.stderr is not None
        async for line in child.stderr:
            text = line.decode(errors="replace").rstrip()
            print(text, file=sys.stderr, flush=True)  # noqa: T201
            self._tail = [*self._tail, text][-TAIL_LINES:]

    def _end(self) -> str:
        said: Sequence[str] = [line.removeprefix(ERROR_PREFIX) for line in self._tail if line.strip()]
        return "\n".join([". The end of its log:", *said]) if said else ""


def _signal_group(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)
