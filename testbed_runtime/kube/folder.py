"""The run's folder at its recorder pod: what the runner writes on its own disk is put there, since the runner's disk dies with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import aiohttp

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.ports.network import Address
from testbed_runtime.transport.names import connector

REQUEST_LIMIT_S = 20.0
"""One file: a report is below 10 MiB."""
AWAY_LIMIT_S = 120.0
"""A recorder's pod that is gone is made again and started within so long."""
PAUSE_S = 0.5

T = TypeVar("T")


class RecorderFolder:
    """A `runner.manifest.RunFolder` at `/files/` of the run's recorder. `close` ends its HTTP session."""

    def __init__(
        self, path: Path, recorder: Address, token: str, *, away_limit_s: float = AWAY_LIMIT_S
    ) -> None:
        self._path = path
        self._base = f"http://{recorder[0]}:{recorder[1]}/files/"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._away_limit_s = away_limit_s
        self._session: aiohttp.ClientSession | None = None

    @property
    def path(self) -> Path:
        return self._path

    async def keep(self, *names: str) -> None:
        """Uploaded one after the other, each whole. Raises HeadgateError."""
        for name in names:
            file = self._path / name
            if file.is_file():
                data = file.read_bytes()
                await self._patiently(name, lambda n=name, d=data: self._put(n, d))  # type: ignore[misc]

    async def restore(self, *names: str) -> None:
        for name in names:
            data = await self._patiently(name, lambda n=name: self._get(n))  # type: ignore[misc]
            file = self._path / name
            if data is None:
                file.unlink(missing_ok=True)
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)

    async def close(self) -> None:
        """Idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _put(self, name: str, data: bytes) -> None:
        async with self._client().put(self._base + quote(name), data=data) as response:
            await self._check(name, response)

    async def _get(self, name: str) -> bytes | None:
        async with self._client().get(self._base + quote(name)) as response:
            if response.status == 404:
                return None
            await self._check(name, response)
            return await response.read()

    async def _check(self, name: str, response: aiohttp.ClientResponse) -> None:
        if response.status >= 500 and response.status != 507:
            raise ConnectionError(f"status {response.status}")
        if response.status >= 400:
            text = (await response.text())[:500]
            raise HeadgateError(f"the recorder refused {name}: {response.status} {text}")

    async def _patiently(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._away_limit_s
        while True:
            try:
                return await call()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if loop.time() + PAUSE_S >= end:
                    raise HeadgateError(
                        f"the recorder did not answer for {self._away_limit_s:g} s ({name}): {error}"
                    ) from error
            await asyncio.sleep(PAUSE_S)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            limit = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S)
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=limit, connector=connector())
        return self._session
