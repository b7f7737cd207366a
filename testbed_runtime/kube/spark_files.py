"""A run's histories from its recorder pod to this disk, and the results back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.ports.network import Address
from testbed_runtime.transport.names import connector

MANIFEST = "manifest.json"
RESULTS = ("metrics.json", "timeseries.json")
SEALED = "sealed.json"
CHUNK_BYTES = 1 << 18
REQUEST_LIMIT_S = 120.0
"""One file: a history of 100 MB on a slow network."""
AWAY_LIMIT_S = 60.0
"""A recorder whose container was started again answers within seconds; one that is gone for good must not hold up the next evaluation."""
PAUSE_S = 0.5
MAX_BYTES = 1_500_000_000
"""All histories of a run: below the scratch volume of the Spark pod (2 Gi)."""

T = TypeVar("T")


class RunFiles:
    """`/files/` of one recorder. An async context manager around its HTTP session. A recorder that is away is asked again."""

    def __init__(self, recorder: Address, token: str, *, away_limit_s: float = AWAY_LIMIT_S) -> None:
        self._base = f"http://{recorder[0]}:{recorder[1]}/files/"
        self._token = token
        self._away_limit_s = away_limit_s

    async def __aenter__(self) -> RunFiles:
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=aiohttp.ClientTimeout(total=REQUEST_LIMIT_S),
            connector=connector(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def fetch_run(self, folder: Path) -> None:
        """manifest.json, scenario.yaml and the sealed history of each trial that counts. Raises HeadgateError."""
        await self.fetch(MANIFEST, folder)
        manifest = json.loads((folder / MANIFEST).read_text())
        sizes = await self._listing("history/")
        for name in wanted(manifest, sizes):
            await self.fetch(name, folder)

    async def fetch(self, name: str, folder: Path) -> None:
        """One file, below `folder` under the same name. Raises HeadgateError."""
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)

        async def whole() -> None:
            async with self._session.get(self._base + quote(name)) as response:
                await _check(name, response)
                with file.open("wb") as out:
                    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                        out.write(chunk)

        await self._patiently(f"did not give {name}", whole)

    async def put(self, name: str, folder: Path) -> None:
        """Raises HeadgateError."""

        async def whole() -> None:
            data = (folder / name).read_bytes()
            async with self._session.put(self._base + quote(name), data=data) as response:
                await _check(name, response)

        await self._patiently(f"did not take {name}", whole)

    async def _listing(self, prefix: str) -> dict[str, int]:
        async def whole() -> Any:
            async with self._session.get(self._base, params={"prefix": prefix}) as response:
                await _check(prefix, response)
                return (await response.json())["files"]

        found = await self._patiently(f"did not list {prefix}", whole)
        return {str(entry["path"]): int(entry["bytes"]) for entry in found}

    async def _patiently(self, failed: str, call: Callable[[], Awaitable[T]]) -> T:
        """Each call is harmless to repeat; what this disk refuses (OSError) is not asked again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._away_limit_s
        while True:
            try:
                return await call()
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                if loop.time() + PAUSE_S >= end:
                    raise HeadgateError(f"The recorder {failed}: {error!r}") from None
            except OSError as error:
                raise HeadgateError(f"The recorder {failed}: {error!r}") from None
            await asyncio.sleep(PAUSE_S)


def wanted(manifest: Mapping[str, Any], sizes: Mapping[str, int]) -> list[str]:
    """The tables and seals of the trials that count. Raises HeadgateError when they are too large together."""
    trials = {
        str(e["trial"]) for e in manifest.get("trials", ()) if not e.get("voided") and not e.get("error")
    }
    names = [name for name in sizes if _is_history(PurePosixPath(name), trials)]
    total = sum(sizes[name] for name in names)
    if total > MAX_BYTES:
        raise HeadgateError(
            f"The histories of this run have {total} bytes, more than the {MAX_BYTES} that the Spark pod has room for: "
            "run fewer trials, or shorter ones"
        )
    return sorted(names)


def _is_history(path: PurePosixPath, trials: set[str]) -> bool:
    """`history/<trial>/<table>.parquet` or its seal."""
    parts = path.parts
    return (
        len(parts) == 3
        and parts[0] == "history"
        and parts[1] in trials
        and ".." not in parts
        and (parts[2] == SEALED or path.suffix == ".parquet")
    )


async def _check(name: str, response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        text = (await response.text())[:300]
        raise HeadgateError(f"The recorder refused {name}: {response.status} {text}")
