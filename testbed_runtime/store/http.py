"""The BlobStore of a testbed whose processes share no disk: a client, and a server over a FolderBlobStore, with the testbed's token.

    PUT | GET | DELETE /v1/objects/<key>     whole objects; a put is atomic and on the disk when it is answered
    GET /v1/objects?prefix=…                 → {"keys": [...]}
    POST /v1/epoch?epoch=n                   → {"epoch": n}: writes with an older epoch are refused from now on; 0: the next

A JobManager takes an epoch when it starts (its incarnation) and writes with it (header `Headgate-Epoch`). One that was considered
dead and comes back cannot replace what its successor wrote. TaskManagers write without an epoch: their object names are unique.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp import web

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.http import disk_errors, service
from testbed_runtime.ports.network import Address, http_url
from testbed_runtime.store.blobstore import FolderBlobStore, checked
from testbed_runtime.timeouts import repeated
from testbed_runtime.transport.names import Session

MAX_OBJECT_BYTES = 64 * 1024 * 1024
"""Maximum size of an object, such as a subtask's state. A larger one is a mistake in the scenario and would fill this process's memory."""
REQUEST_LIMIT_S = 10.0
"""Time limit for one object, including an fsync on a busy disk."""
AWAY_LIMIT_S = 5.0
"""A restarted store listens again within this time; calls are repeated until then."""
START_LIMIT_S = 90.0
"""Time limit for a JobManager that starts together with its store, whose pod may have to be scheduled first."""
PAUSE_S = 0.2
EPOCH_HEADER = "Headgate-Epoch"
OBJECTS = "/v1/objects"
EPOCH = "/v1/epoch"


class Fenced(OSError):
    """Another JobManager has taken over the store, so this one must end."""


class HttpBlobStore:
    """`ports.storage.BlobStore` of a store process. `close` ends its one HTTP session.

    Raises OSError when the store does not answer for AWAY_LIMIT_S or its disk fails, Fenced after the `take_over` of another
    JobManager."""

    def __init__(
        self,
        address: Address,
        token: str,
        *,
        away_limit_s: float = AWAY_LIMIT_S,
        on_fenced: Callable[[str], None] | None = None,
    ) -> None:
        """`on_fenced(text)` is called when another JobManager has taken over, before Fenced is raised."""
        self._base = http_url(address, "")
        self._session = Session(token, aiohttp.ClientTimeout(total=REQUEST_LIMIT_S))
        self._away_limit_s = away_limit_s
        self._on_fenced = on_fenced
        self.epoch = 0

    async def take_over(self, epoch: int = 0) -> int:
        """Write as the newest JobManager from now on, which fences the previous one. Waits for a store that is still starting.

        `epoch` is this JobManager's number (0: the next one). Raises Fenced when a larger number has taken over before."""
        answer = await self._call("POST", f"{EPOCH}?epoch={epoch}", limit_s=START_LIMIT_S)
        self.epoch = int(msgspec.json.decode(answer)["epoch"])
        return self.epoch

    async def put(self, key: str, data: bytes) -> None:
        await self._call("PUT", _path(key), bytes(data))

    async def get(self, key: str) -> bytes:
        try:
            return await self._call("GET", _path(key))
        except FileNotFoundError:
            raise KeyError(key) from None

    async def list(self, prefix: str) -> list[str]:
        answer = await self._call("GET", f"{OBJECTS}?prefix={quote(prefix, safe='')}")
        return [str(key) for key in msgspec.json.decode(answer)["keys"]]

    async def delete(self, key: str) -> None:
        await self._call("DELETE", _path(key))

    async def close(self) -> None:
        """Idempotent."""
        await self._session.close()

    async def _call(
        self, method: str, path: str, body: bytes | None = None, *, limit_s: float | None = None
    ) -> bytes:
        """Call the store, and repeat the call while the store does not answer. Every call must be idempotent."""
        try:
            return await repeated(
                lambda: self._once(method, path, body),
                lambda e: isinstance(e, aiohttp.ClientError | TimeoutError),
                limit_s=limit_s or self._away_limit_s,
                every_s=PAUSE_S,
            )
        except Fenced as error:
            if self._on_fenced is not None:
                self._on_fenced(str(error))
            raise
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionError(f"the store at {self._base} does not answer: {error}") from error

    async def _once(self, method: str, path: str, body: bytes | None) -> bytes:
        headers = {EPOCH_HEADER: str(self.epoch)} if self.epoch else {}
        given = None if body is None else io.BytesIO(body)
        async with self._session.open.request(
            method, self._base + path, data=given, headers=headers
        ) as response:
            data = await response.read()
        if response.status < 300:
            return data
        raise _refusal(response.status, data)


def _path(key: str) -> str:
    return f"{OBJECTS}/{quote(checked(key))}"


def _refusal(status: int, data: bytes) -> OSError:
    try:
        text = str(msgspec.json.decode(data)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        text = data.decode(errors="replace")
    if status == web.HTTPNotFound.status_code:
        return FileNotFoundError(text)
    if status == web.HTTPPreconditionFailed.status_code:
        return Fenced(text)
    return OSError(f"the store refused: {status} {text}")


class StoreServer:
    """Objects in `<folder>/objects`, the epoch beside them. Writes with an epoch and take-overs are serialized."""

    def __init__(self, folder: Path) -> None:
        """Raises HeadgateError when the folder cannot be written or its epoch cannot be read."""
        self._objects = FolderBlobStore(folder / "objects")
        self._own = FolderBlobStore(folder)
        self._lock = asyncio.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "epoch"
            self.epoch = int(path.read_text()) if path.exists() else 0
        except (OSError, ValueError) as error:
            raise HeadgateError(f"the store cannot use {folder}: {error}") from error

    def application(self, token: str) -> web.Application:
        """Return the HTTP application. Errors of the disk are answered with 507."""
        routes = [
            web.post(EPOCH, self._take_over),
            web.get(OBJECTS, self._list),
            web.put(OBJECTS + "/{key:.+}", self._put),
            web.get(OBJECTS + "/{key:.+}", self._get),
            web.delete(OBJECTS + "/{key:.+}", self._delete),
        ]
        return service(token, routes, disk_errors("the store's"), max_bytes=MAX_OBJECT_BYTES)

    async def _take_over(self, request: web.Request) -> web.Response:
        asked = int(request.query.get("epoch", "0"))
        async with self._lock:
            if asked and asked < self.epoch:
                return _over(asked, self.epoch)
            epoch = asked or self.epoch + 1
            await self._own.put("epoch", str(epoch).encode())
            self.epoch = epoch
        return web.json_response({"epoch": self.epoch})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({"keys": await self._objects.list(request.query.get("prefix", ""))})

    async def _put(self, request: web.Request) -> web.Response:
        key, data = request.match_info["key"], await request.read()
        if EPOCH_HEADER not in request.headers:
            await self._objects.put(key, data)
            return web.json_response({})
        async with self._lock:
            if (refused := self._fence(request)) is not None:
                return refused
            await self._objects.put(key, data)
        return web.json_response({})

    async def _get(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        try:
            return web.Response(body=await self._objects.get(key))
        except KeyError:
            return web.json_response({"error": f"there is no object {key}"}, status=404)

    async def _delete(self, request: web.Request) -> web.Response:
        async with self._lock:
            if (refused := self._fence(request)) is not None:
                return refused
            await self._objects.delete(request.match_info["key"])
        return web.json_response({})

    def _fence(self, request: web.Request) -> web.Response | None:
        given = int(request.headers.get(EPOCH_HEADER, self.epoch))
        return None if given >= self.epoch else _over(given, self.epoch)


def _over(given: int, newest: int) -> web.Response:
    text = f"epoch {given} is over, {newest} writes now: another JobManager has taken over"
    return web.json_response({"error": text}, status=412)
