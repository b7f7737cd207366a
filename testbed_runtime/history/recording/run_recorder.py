"""The recorder of a run: a Recorder for each trial, created on its first request, and the files of the run's folder.

    POST /t/<trial>/segments|seal   GET /t/<trial>/status        as history.recording.recorder
    GET /files/?prefix=…            → {"files": [{"path", "bytes"}, …]}
    GET | PUT | DELETE /files/<path>                             whole files; a put is atomic and on the disk when it is answered
    GET /healthz                                                 without a token

The folder is a run's as on one machine; only the Recorders write to `history/`. A restart keeps everything.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from testbed_runtime.core.documents import HISTORY_FOLDER
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.files import TEMPORARY, sync
from testbed_runtime.history.journal import NAME
from testbed_runtime.history.recording.recorder import MAX_REQUEST_BYTES, Recorder
from testbed_runtime.http import disk_errors, service

MAX_FILE_BYTES = 256 * 1024 * 1024
"""Limit for a file of a file sink or a report. Files are streamed, so this protects the volume."""
MAX_PATH_PARTS = 8
MAX_PATH_CHARS = 300
MAX_LISTED = 20_000
"""Limit for one listing: far above fifty trials with ten tables each."""
MAX_OPEN_TRIALS = 16
"""Recorders that hold files open; one more closes the oldest, which is opened again by its next request."""
CHUNK_BYTES = 256 * 1024
_PART = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._+=-]{0,149}$")


def checked_path(path: str) -> str:
    """Return the path. Raises UserError for one that would leave the folder or is hidden."""
    parts = path.split("/")
    if (
        len(path) > MAX_PATH_CHARS
        or len(parts) > MAX_PATH_PARTS
        or not all(_PART.match(part) for part in parts)
    ):
        hint = f"write at most {MAX_PATH_PARTS} names of letters, digits and . _ + = - separated by /"
        raise UserError("path", f"{path!r} is not a path of a run's folder", hint)
    return path


class RunRecorder:
    """`application` serves it, `close` closes every file."""

    def __init__(self, folder: Path, *, token: str) -> None:
        """Raises HeadgateError when the folder cannot be created."""
        try:
            (folder / HISTORY_FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HeadgateError(f"the run cannot be recorded in {folder}: {error.strerror}") from error
        self.folder = folder
        self._token = token
        self._written = 0
        self._trials: dict[str, Recorder] = {}

    def application(self) -> web.Application:
        routes = [
            web.post("/t/{trial}/segments", self._segments),
            web.post("/t/{trial}/seal", self._seal),
            web.get("/t/{trial}/status", self._status),
            web.get("/files/", self._list),
            web.get("/files/{path:.+}", self._get),
            web.put("/files/{path:.+}", self._put),
            web.delete("/files/{path:.+}", self._delete),
        ]
        return service(
            self._token, routes, disk_errors("the run's"), _name_taken, max_bytes=MAX_REQUEST_BYTES
        )

    async def close(self) -> None:
        """Idempotent."""
        trials, self._trials = self._trials, {}
        for recorder in trials.values():
            await recorder.close()

    # ---- trials

    async def _segments(self, request: web.Request) -> web.Response:
        return await (await self._recorder(request)).segments(request)

    async def _seal(self, request: web.Request) -> web.Response:
        return await (await self._recorder(request)).seal(request)

    async def _status(self, request: web.Request) -> web.Response:
        return await (await self._recorder(request)).status(request)

    async def _recorder(self, request: web.Request) -> Recorder:
        trial = request.match_info["trial"]
        if not NAME.match(trial):
            raise UserError("trial", f"{trial!r} is not the name of a trial", "write letters, digits, . _ -")
        recorder = self._trials.pop(trial, None) or Recorder(
            self.folder / HISTORY_FOLDER / trial, token=self._token
        )
        self._trials[trial] = recorder  # the newest is the last
        if len(self._trials) > MAX_OPEN_TRIALS:
            await self._trials.pop(next(iter(self._trials))).close()
        return recorder

    # ---- files

    async def _list(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        found = await asyncio.to_thread(_files, self.folder, prefix)
        return web.json_response({"files": [{"path": path, "bytes": size} for path, size in found]})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        path = self.folder / checked_path(request.match_info["path"])
        if not path.is_file():
            return web.json_response({"error": f"there is no file {request.match_info['path']}"}, status=404)
        return web.FileResponse(path)

    async def _put(self, request: web.Request) -> web.Response:
        path = self._writable(request)
        if (request.content_length or 0) > MAX_FILE_BYTES:
            return _too_large()
        self._written += 1
        unfinished = path.parent / f"{TEMPORARY}{os.getpid()}-{self._written}"
        try:
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            size = await _receive(request, unfinished)
            if size is None:
                return _too_large()
            await asyncio.to_thread(_commit, unfinished, path)
        finally:
            await asyncio.to_thread(unfinished.unlink, missing_ok=True)
        return web.json_response({"bytes": size})

    async def _delete(self, request: web.Request) -> web.Response:
        await asyncio.to_thread(self._writable(request).unlink, missing_ok=True)
        return web.json_response({})

    def _writable(self, request: web.Request) -> Path:
        path = checked_path(request.match_info["path"])
        if path.split("/", 1)[0] == HISTORY_FOLDER:
            raise UserError("path", f"{path!r} belongs to the recorder", "write outside history/")
        return self.folder / path


async def _receive(request: web.Request, unfinished: Path) -> int | None:
    """Stream the body into a file. Return its size, None when it is too large."""
    size = 0
    with unfinished.open("wb") as file:
        async for chunk in request.content.iter_chunked(CHUNK_BYTES):
            size += len(chunk)
            if size > MAX_FILE_BYTES:
                return None
            await asyncio.to_thread(file.write, chunk)
        await asyncio.to_thread(file.flush)
        await asyncio.to_thread(os.fsync, file.fileno())
    return size


def _commit(unfinished: Path, path: Path) -> None:
    unfinished.replace(path)
    sync(path.parent)


def _files(folder: Path, prefix: str) -> list[tuple[str, int]]:
    """Return (path, bytes), sorted, including the segments of open trials."""
    found = []
    for at, folders, names in os.walk(folder):
        folders.sort()
        base = Path(at).relative_to(folder).as_posix()
        for name in names:
            path = name if base == "." else f"{base}/{name}"
            if path.startswith(prefix) and not name.startswith(TEMPORARY):
                found.append((path, (Path(at) / name).stat().st_size))
        if len(found) > MAX_LISTED:
            raise HeadgateError(f"there are more than {MAX_LISTED} files; ask with a longer prefix")
    return sorted(found)


def _too_large() -> web.Response:
    return web.json_response({"error": f"a file has at most {MAX_FILE_BYTES} bytes"}, status=413)


@web.middleware
async def _name_taken(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        return web.json_response({"error": f"a folder and a file can not share a name: {error}"}, status=409)
