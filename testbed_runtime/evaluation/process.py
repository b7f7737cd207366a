"""The process that runs Spark: one child that evaluates run after run, restarted when it died."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from testbed_runtime.children import ends_with_parent
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation import ERROR_PREFIX
from testbed_runtime.evaluation.session import remove_scratch
from testbed_runtime.timeouts import timeout

START_LIMIT_S = 180.0
"""A cold Spark needs 10 to 20 s on two cores, and 40 s with executors. A node under load gets more time."""
EVALUATION_LIMIT_S = 1800.0
"""Time limit for an evaluation. A run of a few trials takes seconds, a run of 2,000 trials minutes. If it takes this long, it hangs."""
GRACE_S = 8.0
"""The time between SIGTERM and SIGKILL: the worker waits for its JVM (`worker.CHILDREN_END_S`), then removes Spark's scratch folder."""
TAIL_LINES = 12
"""Maximum lines of Spark's log that an error contains."""
LINE_MAX_BYTES = 1 << 20
"""Maximum bytes of one line of output. Progress lines are below 1 KiB, but a Spark error may contain a plan."""

OnProgress = Callable[[Mapping[str, Any]], Awaitable[None]]


class SparkEnded(HeadgateError):
    """The Spark process died during an evaluation; another one may succeed. `reason` is its own explanation, if it gave one."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


def log_to_stderr(line: str) -> None:
    """Write a line of Spark's log to this process's stderr (the log of a pod)."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


class SparkWorker:
    """The owner of the process `evaluation.worker`: at most one child. The caller starts one evaluation at a time.

    The child starts with the first `start` or `evaluate`, and ends with `close` or with this process. All calls must come from
    one event loop, which need not run between them.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
        limit_s: float = EVALUATION_LIMIT_S,
    ) -> None:
        self._environment = {**os.environ, **(environment or {})}
        self._python = python
        self._limit_s = limit_s
        self._child: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None
        self._tail: list[str] = []
        self.on_log: Callable[[str], None] = log_to_stderr
        self.starts = 0

    @property
    def is_up(self) -> bool:
        """Whether the child is running. Its Spark may still be starting."""
        return self._child is not None and self._child.returncode is None

    async def start(self) -> None:
        """Wait until Spark has started. Raises HeadgateError with the end of its log."""
        await self._ask({}, START_LIMIT_S, "Spark did not start within", None)

    async def evaluate(self, folder: Path, on_progress: OnProgress, *, catalogue: Path | None = None) -> None:
        """Write the results of one run into its folder, and its rows into the catalogue. Raises HeadgateError."""
        into = {} if catalogue is None else {"catalogue": str(catalogue)}
        late = "The evaluation was stopped: it took longer than"
        await self._ask({"folder": str(folder), **into}, self._limit_s, late, on_progress)

    async def trends(self, catalogue: Path) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of each job over all runs of a catalogue (trends.JOBS). Raises HeadgateError."""
        found: dict[str, list[dict[str, Any]]] = {}

        async def collect(line: Mapping[str, Any]) -> None:
            found.setdefault(line["job"], []).append(line["row"])

        late = "Reading the catalogue took longer than"
        await self._ask({"trends": str(catalogue)}, self._limit_s, late, collect)
        return found

    async def close(self) -> None:
        """End the child's process group and wait until it is gone. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            await _end(child)
        if self._log is not None:
            await asyncio.wait([self._log])  # a second Ctrl-C may have cancelled it
            self._log = None

    async def _ask(
        self, request: Mapping[str, Any], limit_s: float, late: str, on_progress: OnProgress | None
    ) -> None:
        child = None
        try:
            async with timeout(limit_s):
                child = await self._running()
                assert child.stdin is not None
                child.stdin.write(json.dumps(request).encode() + b"\n")
                await child.stdin.drain()
                while "result" not in (line := await self._line(child)):
                    if on_progress is not None:
                        await on_progress(line)
        except TimeoutError:
            await self.close()
            raise HeadgateError(f"{late} {limit_s:g} s{self._end_of_log()}") from None
        except OSError as error:  # the child closed its stdin
            reason = await self._ended(child) if child else HeadgateError(f"Spark did not start: {error}")
            raise reason from None
        except asyncio.CancelledError:
            await self.close()  # the next request must not read the answers to this one
            raise
        if line["result"] != "done":
            raise HeadgateError(f"The evaluation failed: {line.get('error', 'no reason was given')}")

    async def _running(self) -> asyncio.subprocess.Process:
        if self._child is not None and self._child.returncode is None:
            return self._child
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
            start_new_session=True,  # the JVM and its Python workers are in the group, and end with it
            preexec_fn=ends_with_parent(signal.SIGTERM),
        )
        self.starts += 1
        self._log = asyncio.create_task(self._read_log(self._child), name="spark-log")
        return self._child

    async def _line(self, child: asyncio.subprocess.Process) -> dict[str, Any]:
        """Return the child's next line. Raises SparkEnded when the child ends instead."""
        assert child.stdout is not None
        while line := await child.stdout.readline():
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    return found
        raise await self._ended(child)

    async def _ended(self, child: asyncio.subprocess.Process) -> SparkEnded:
        """Close, and return the error of a child that ended by itself."""
        with contextlib.suppress(TimeoutError):  # the child closed its output, so it exits soon
            async with timeout(GRACE_S):
                await child.wait()
        code = child.returncode
        await self.close()
        how = "ended" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        reasons = [line for line in self._tail if line.startswith(ERROR_PREFIX)]
        reason = reasons[-1].removeprefix(ERROR_PREFIX) if reasons else ""
        return SparkEnded(f"Spark {how} before its work was done{self._end_of_log()}", reason)

    async def _read_log(self, child: asyncio.subprocess.Process) -> None:
        assert child.stderr is not None
        async for line in child.stderr:
            text = line.decode(errors="replace").rstrip()
            self.on_log(text)
            remember(self._tail, text)

    def _end_of_log(self) -> str:
        lines = [line.removeprefix(ERROR_PREFIX) for line in self._tail if line.strip()]
        return "\n".join([". The end of its log:", *lines]) if lines else "."


def remember(tail: list[str], line: str) -> None:
    """Keep the newest TAIL_LINES, and the line that explains the failure, which stack traces may follow."""
    tail.append(line)
    explained = [old for old in tail[:-TAIL_LINES] if old.startswith(ERROR_PREFIX)]
    tail[:] = explained[-1:] + tail[-TAIL_LINES:]


async def _end(child: asyncio.subprocess.Process) -> None:
    """Wait until the whole group and its files are gone and the pipes are closed."""
    if child.returncode is None:
        _signal_group(child, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with timeout(GRACE_S):
                await child.wait()
    _signal_group(child, signal.SIGKILL)
    await asyncio.to_thread(remove_scratch, child.pid)
    if child.stdin is not None:
        child.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with timeout(GRACE_S):
            while child.stdout is not None and await child.stdout.read(LINE_MAX_BYTES):
                pass  # reading to the end closes the pipe
            await child.wait()


def _signal_group(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)
