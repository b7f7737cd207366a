"""The Spark pod's HTTP service: it evaluates histories, one run at a time, on a Spark session that stays warm.

POST /v1/evaluate  {"run", "recorder": [host, port], "token"}
    → one JSON object per line: {"stage", "done", "of", "seconds"}, {"waiting": n}, {"alive": seconds}; last {"result": "done"} or {"error"}
GET  /v1/progress  → {"run", "stage", "waiting", "starts"}
GET  /healthz, /readyz  (without the token)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation.process import OnProgress, SparkEnded, SparkWorker
from testbed_runtime.http import service
from testbed_runtime.kube.recorder import RESULTS, RecorderFiles
from testbed_runtime.timeouts import cancel_all

MAX_WAITING = 16
"""Maximum evaluations in the queue. Further ones are refused, and the runner repeats them."""
ALIVE_S = 5.0
"""A line is sent at least this often, so that the runner can tell a long evaluation from a dead pod."""
EVALUATIONS_MAX = 3
"""Maximum attempts at an evaluation. If the driver was killed before the request, only the first attempt notices this."""
MAX_REQUEST_BYTES = 64 * 1024
WARM_UP_RETRY_S = 15.0
"""Pause between attempts to start Spark."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: str
    recorder: tuple[str, int]
    token: str


class SparkService:
    """Histories are downloaded below `folder`, which executors must be able to read. `close` ends Spark."""

    def __init__(self, worker: SparkWorker, *, token: str, folder: Path) -> None:
        self._worker = worker
        self._token = token
        self._folder = folder
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._now: dict[str, Any] = {}
        self._warming: asyncio.Task[None] | None = None

    def application(self) -> web.Application:
        routes = [web.post("/v1/evaluate", self._evaluate), web.get("/v1/progress", self._progress)]
        return service(self._token, routes, ready=self._ready, max_bytes=MAX_REQUEST_BYTES)

    def warm_up(self) -> None:
        """Start Spark before the first request."""
        self._warming = asyncio.create_task(self._warm(), name="spark-warm-up")

    async def close(self) -> None:
        """End Spark. Idempotent."""
        warming, self._warming = self._warming, None
        await cancel_all(warming)
        await self._worker.close()

    async def _warm(self) -> None:
        while not self._worker.is_up:
            with contextlib.suppress(HeadgateError):
                async with self._turn:
                    await self._worker.start()
                return
            await asyncio.sleep(WARM_UP_RETRY_S)

    async def _evaluate(self, request: web.Request) -> web.StreamResponse:
        wanted = msgspec.json.decode(await request.read(), type=Request)
        if self._waiting >= MAX_WAITING:
            return web.json_response(
                {"error": f"{self._waiting} evaluations are queued already: try again later"}, status=503
            )
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        lines = _Lines(answer)
        async with asyncio.TaskGroup() as tasks:
            alive = tasks.create_task(lines.stay_alive(), name="spark-alive")
            await lines.send(await self._answer(wanted, lines))
            alive.cancel()
        with contextlib.suppress(ConnectionError):
            await answer.write_eof()
        return answer

    async def _answer(self, wanted: Request, lines: _Lines) -> dict[str, Any]:
        """Return the last line, which reports an error instead of raising it."""
        self._waiting += 1
        try:
            if self._turn.locked():
                # no other evaluation is queued: this one waits for the start of Spark
                await lines.send({"waiting": self._waiting} if self._waiting > 1 else {"stage": "spark"})
            async with self._turn:
                await self._judged(wanted, lines)
                return {"result": "done"}
        except HeadgateError as error:
            return {"error": str(error)}
        except (OSError, ValueError) as error:
            return {"error": f"The evaluation failed: {error!r}"}
        finally:
            self._waiting -= 1
            self._now = {}

    async def _judged(self, wanted: Request, lines: _Lines) -> None:
        async def progress(line: Mapping[str, Any]) -> None:
            self._now = {"run": wanted.run, **line}
            await lines.send(line)

        await progress({"stage": "fetch"})
        with tempfile.TemporaryDirectory(
            prefix="run-", dir=self._folder, ignore_cleanup_errors=True
        ) as below:
            folder = _readable(below)
            async with RecorderFiles(wanted.recorder, wanted.token) as files:
                await files.fetch_run(folder)
                await self._evaluated(folder, progress)
                for name in RESULTS:
                    await files.put(name, folder)

    async def _evaluated(self, folder: Path, progress: OnProgress) -> None:
        """Evaluate, and start a new process after each that dies. Raises SparkEnded after EVALUATIONS_MAX attempts."""
        for _ in range(EVALUATIONS_MAX - 1):
            try:
                await self._worker.evaluate(folder, progress)
            except SparkEnded:
                await progress({"stage": "spark-again"})
            else:
                return
        await self._worker.evaluate(folder, progress)

    async def _progress(self, _: web.Request) -> web.Response:
        return web.json_response({**self._now, "waiting": self._waiting, "starts": self._worker.starts})

    async def _ready(self, _: web.Request) -> web.Response:
        """Report whether Spark has started and is running."""
        ready = self._worker.is_up and (self._worker.starts > 0)
        return web.json_response({"ready": ready}, status=200 if ready else 503)


def _readable(below: str) -> Path:
    """Make the folder readable for executors, which may run as another user."""
    folder = Path(below)
    folder.chmod(0o755)
    return folder


class _Lines:
    """Sends lines, one writer at a time. A closed connection is ignored: the results are at the recorder."""

    def __init__(self, answer: web.StreamResponse) -> None:
        self._answer = answer
        self._writing = asyncio.Lock()

    async def send(self, line: Mapping[str, Any]) -> None:
        async with self._writing:
            with contextlib.suppress(ConnectionError):
                await self._answer.write(json.dumps(line).encode() + b"\n")

    async def stay_alive(self) -> None:
        started = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(ALIVE_S)
            await self.send({"alive": round(asyncio.get_running_loop().time() - started, 1)})
