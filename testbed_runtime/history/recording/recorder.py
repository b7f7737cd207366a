"""The recorder: accepts segments from every process of a trial, fsyncs, acknowledges, seals. No fault can hit it.

    POST /segments?process=tm-0-1&stream=…   segments   → {"next": number, "now": the recorder's clock in seconds}
    POST /seal                                          → the seal's report; the same again when asked again
    GET  /status                                        → problems, sealed, why recording failed

Appends and fsyncs block this process's loop on purpose: it does nothing else, and batches queue in the sockets.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web
from msgspec import to_builtins

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.history.journal import Journal, RecordingError
from testbed_runtime.history.sealing import SealingError, SealReport, read_sealed, seal
from testbed_runtime.http import bearer_token

MAX_REQUEST_BYTES = 80 * 1024 * 1024
"""Above the largest segment; a batch is normally below 1 MiB."""


class Recorder:
    """One trial's recorder. `failed` is set when the disk fails; `close` at the end."""

    def __init__(self, folder: Path, *, token: str) -> None:
        """`folder` is the trial's: `<run>/history/<trial>`. Raises RecordingError when it cannot be written."""
        self.folder = folder
        self._token = token
        self._sealed: SealReport | None = read_sealed(folder)
        self._journal = None if self._sealed else Journal(folder)
        self.failed = asyncio.Event()
        self.failure = ""

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=[bearer_token(self._token)])
        app.router.add_post("/segments", self.segments)
        app.router.add_post("/seal", self.seal)
        app.router.add_get("/status", self.status)
        return app

    async def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    # ---- handlers; the server checks the token

    async def segments(self, request: web.Request) -> web.Response:
        data = await request.read()
        process, stream = request.query.get("process", ""), request.query.get("stream", "")
        if self._journal is None:
            return web.json_response({"error": "this trial is sealed"}, status=410)
        try:
            number = self._journal.append(process, stream, data)
        except RemoteProtocolError as error:
            self._journal.problems.append(f"{process}: {error}")
            expected = self._journal.expected(process, stream)
            return web.json_response({"error": str(error), "expected": expected}, status=409)
        except RecordingError as error:
            return self._fail(error)
        return web.json_response({"next": number, "now": asyncio.get_running_loop().time()})

    async def seal(self, request: web.Request) -> web.Response:
        try:
            if self._sealed is None:
                problems = list(self._journal.problems) if self._journal else []
                self._sealed = seal(self.folder, problems=problems)
                if self._journal is not None:
                    self._journal.close()
                    self._journal = None
        except SealingError as error:
            return web.json_response({"error": str(error)}, status=409)
        except RecordingError as error:
            return self._fail(error)
        return web.json_response({"folder": str(self.folder), **to_builtins(self._sealed)})

    async def status(self, request: web.Request) -> web.Response:
        journal = self._journal
        return web.json_response(
            {
                "sealed": self._sealed is not None,
                "problems": list(journal.problems) if journal else [],
                "failure": self.failure,
            }
        )

    def _fail(self, error: RecordingError) -> web.Response:
        self.failure = str(error)
        self.failed.set()
        return web.json_response({"error": str(error)}, status=507)
