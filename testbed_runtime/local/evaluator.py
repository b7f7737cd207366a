"""PySpark in a process of its own: its memory, its JVM and its death are not the runner's."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation import ERROR_PREFIX

TIMEOUT_S = 300.0
"""One evaluation; a cold Spark needs 10 to 20 s on two cores."""
GRACE_S = 8.0
"""From SIGTERM to SIGKILL: it waits for its JVM (`evaluation.main.CHILDREN_END_S`), and removes Spark's scratch folder."""
TAIL_LINES = 12
"""Lines of the log that an error carries."""
LINE_MAX_BYTES = 1 << 20
"""One line of output: progress lines are below 1 KiB, a Spark error may carry a plan."""
PR_SET_PDEATHSIG = 1

OnProgress = Callable[[Mapping[str, Any]], None]


def _die_with_parent(parent: int) -> Callable[[], None]:
    """Run in the child: the kernel kills it when the runner dies, however that happens."""
    libc = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return ask


class SparkEvaluator:
    """`ports.hosts.Evaluator`: runs `testbed_runtime.evaluation.main` on a run's folder.

    `on_progress` gets each progress line (`stage`, `done`, `of`, `seconds`). Failure is a HeadgateError with the child's own
    message, or the tail of its log. The log is kept as `<run>/logs/evaluation.log`.
    """

    def __init__(
        self,
        *,
        on_progress: OnProgress | None = None,
        timeout_s: float = TIMEOUT_S,
        python: str = sys.executable,
    ) -> None:
        self._on_progress = on_progress
        self._timeout_s = timeout_s
        self._python = python

    async def evaluate(self, run_folder: str, trials: Sequence[str]) -> list[dict[str, Any]]:
        """Metric rows of the `trials` (all when empty). Writes metrics.json and timeseries.json into the folder."""
        folder = Path(run_folder)
        await self._run([str(folder)], folder / "logs" / "evaluation.log")
        try:
            rows: list[dict[str, Any]] = json.loads((folder / "metrics.json").read_text())
        except (OSError, ValueError) as error:
            raise HeadgateError(f"The evaluation left no readable metrics.json: {error}") from None
        return [row for row in rows if not trials or row["trial"] in trials]

    async def _run(self, arguments: Sequence[str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        child = await asyncio.create_subprocess_exec(
            self._python,
            "-m",
            "testbed_runtime.evaluation.main",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_MAX_BYTES,
            start_new_session=True,  # the JVM and Python workers are in the group, and end with it
            preexec_fn=_die_with_parent(os.getpid()),  # one prctl between fork and exec: no lock is touched
        )
        tail: list[str] = []
        try:
            async with asyncio.timeout(self._timeout_s), asyncio.TaskGroup() as readers:
                readers.create_task(self._read_progress(child.stdout), name="evaluation-progress")
                readers.create_task(self._read_log(child.stderr, log, tail), name="evaluation-log")
                code = await child.wait()
        except TimeoutError:
            raise HeadgateError(
                f"The evaluation took longer than {self._timeout_s:g} s and was ended."
            ) from None
        finally:
            await self._end(child)
        if code != 0:
            raise HeadgateError(_explain(code, tail))

    async def _read_progress(self, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        async for line in stream:
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if self._on_progress is not None and isinstance(said, dict):
                    self._on_progress(said)

    async def _read_log(self, stream: asyncio.StreamReader | None, log: Path, tail: list[str]) -> None:
        assert stream is not None
        with log.open("wb") as file:
            async for line in stream:
                file.write(line)
                remember(tail, line.decode(errors="replace").rstrip())

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        """The whole group is gone, and the pipes are closed, when this returns; nothing to do when it already was."""
        if child.returncode is None:
            _signal_group(child, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await child.wait()
        _signal_group(child, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                for stream in (child.stdout, child.stderr):
                    while stream is not None and await stream.read(LINE_MAX_BYTES):
                        pass  # what nobody reads any more; the end of the file closes the pipe
                await child.wait()


def _signal_group(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def remember(tail: list[str], line: str) -> None:
    """Keep the newest TAIL_LINES, and the one line that explains the failure however much is said after it: PySpark's own
    farewells may be long."""
    tail.append(line)
    explained = [old for old in tail[:-TAIL_LINES] if old.startswith(ERROR_PREFIX)]
    tail[:] = explained[-1:] + tail[-TAIL_LINES:]


def _explain(code: int, tail: Sequence[str]) -> str:
    said = [line for line in tail if line.strip()]
    named = [line.removeprefix(ERROR_PREFIX) for line in said if line.startswith(ERROR_PREFIX)]
    if named:
        return f"The evaluation failed: {named[-1]}"
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return "\n".join([f"The evaluation {how}." + (" The end of its log:" if said else ""), *said])
