"""A run's files at its recorder pod: an HTTP client, and the runner's folder, which is a copy of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp

from testbed_runtime.core.documents import (
    HISTORY_FOLDER,
    METRICS_FILE,
    RECOVERY_FILE,
    TIMESERIES_FILE,
    TRACE_FILE,
)
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.trial.manifest import RunManifest
from testbed_runtime.history.manifest import MANIFEST, read_manifest
from testbed_runtime.history.sealing import SEALED
from testbed_runtime.ports.network import Address, http_url
from testbed_runtime.runner.manifest import RunFolder
from testbed_runtime.timeouts import repeated
from testbed_runtime.transport.names import Session

RESULTS = (METRICS_FILE, TIMESERIES_FILE, RECOVERY_FILE, TRACE_FILE)
CHUNK_BYTES = 1 << 18
REQUEST_LIMIT_S = 120.0
"""Time limit for one file: a history of 100 MB on a slow network."""
SILENCE_LIMIT_S = 20.0
"""After this time without a byte of an answer, the request is repeated."""
AWAY_LIMIT_S = 60.0
"""A restarted recorder answers within seconds. A lost one must not block the next evaluation."""
FOLDER_AWAY_LIMIT_S = 120.0
"""The runner waits longer: a lost recorder pod is recreated and started within this time."""
PAUSE_S = 0.5
MAX_BYTES = 1_500_000_000
"""Maximum size of all histories of a run: less than the scratch volume of the Spark pod (2 Gi)."""
INSUFFICIENT_STORAGE = 507
"""The recorder's volume is full, so repeating the request does not help."""

T = TypeVar("T")


class RecorderFiles:
    """The files of one recorder, under `/files/`. Requests are repeated while the recorder is away.

    Use it as a context manager, or call `close`."""

    def __init__(self, recorder: Address, token: str, *, away_limit_s: float = AWAY_LIMIT_S) -> None:
        self._base = http_url(recorder, "/files/")
        limit = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S, sock_read=SILENCE_LIMIT_S)
        self._session = Session(token, limit)
        self._away_limit_s = away_limit_s

    async def __aenter__(self) -> RecorderFiles:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the HTTP session. Idempotent."""
        await self._session.close()

    async def fetch_run(self, folder: Path) -> None:
        """Download the manifest and the sealed histories of the trials that count. Raises HeadgateError."""
        await self.fetch(MANIFEST, folder)
        manifest = read_manifest(folder)
        for name in wanted(manifest, await self._sizes(f"{HISTORY_FOLDER}/")):
            await self.fetch(name, folder)

    async def fetch(self, name: str, folder: Path, *, optional: bool = False) -> None:
        """Download a file to the same name below `folder`. Raises HeadgateError.

        An `optional` file that the recorder does not have is removed from the folder."""
        file = folder / name

        async def download() -> None:
            async with self._session.open.get(self._base + quote(name)) as response:
                if optional and response.status == 404:
                    file.unlink(missing_ok=True)
                    return
                await _check(name, response)
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as out:
                    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                        out.write(chunk)

        await self._repeat(f"did not send {name}", download)

    async def put(self, name: str, folder: Path) -> None:
        """Upload a file. Raises HeadgateError."""

        async def upload() -> None:
            data = (folder / name).read_bytes()
            async with self._session.open.put(self._base + quote(name), data=data) as response:
                await _check(name, response)

        await self._repeat(f"did not store {name}", upload)

    async def _sizes(self, prefix: str) -> dict[str, int]:
        async def listing() -> Any:
            async with self._session.open.get(self._base, params={"prefix": prefix}) as response:
                await _check(prefix, response)
                return (await response.json())["files"]

        found = await self._repeat(f"did not list {prefix}", listing)
        return {str(entry["path"]): int(entry["bytes"]) for entry in found}

    async def _repeat(self, failed: str, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request while the recorder is away. Errors of the local disk (OSError) are not repeated."""
        away = aiohttp.ClientError | TimeoutError | ConnectionError
        try:
            return await repeated(
                request, lambda e: isinstance(e, away), limit_s=self._away_limit_s, every_s=PAUSE_S
            )
        except (aiohttp.ClientError, OSError) as error:
            raise HeadgateError(f"the recorder {failed}: {error!r}") from None


class RecorderFolder(RunFolder):
    """The folder of the runner: its pod's disk is lost with the pod, so files are kept at the recorder."""

    def __init__(self, path: Path, recorder: Address, token: str) -> None:
        super().__init__(path)
        self._files = RecorderFiles(recorder, token, away_limit_s=FOLDER_AWAY_LIMIT_S)

    async def keep(self, *names: str) -> None:
        """Upload the files that exist, one after the other. Raises HeadgateError."""
        for name in names:
            if (self.path / name).is_file():
                await self._files.put(name, self.path)

    async def restore(self, *names: str) -> None:
        """Download the files, and remove those that the recorder does not have. Raises HeadgateError."""
        for name in names:
            await self._files.fetch(name, self.path, optional=True)

    async def close(self) -> None:
        """Close the HTTP session. Idempotent."""
        await self._files.close()


def wanted(manifest: RunManifest, sizes: Mapping[str, int]) -> list[str]:
    """Return the tables and seals of the trials that count. Raises HeadgateError if they are too large together."""
    trials = {entry.trial for entry in manifest.trials if entry.counts}
    names = [name for name in sizes if _is_history(PurePosixPath(name), trials)]
    total = sum(sizes[name] for name in names)
    if total > MAX_BYTES:
        raise HeadgateError(
            f"the histories of this run have {total} bytes, but the Spark pod has room for {MAX_BYTES}: "
            "run fewer or shorter trials"
        )
    return sorted(names)


def _is_history(path: PurePosixPath, trials: set[str]) -> bool:
    """Return whether this is `history/<trial>/<table>.parquet` or the seal beside it."""
    parts = path.parts
    return (
        len(parts) == 3
        and parts[0] == HISTORY_FOLDER
        and parts[1] in trials
        and ".." not in parts
        and (parts[2] == SEALED or path.suffix == ".parquet")
    )


async def _check(name: str, response: aiohttp.ClientResponse) -> None:
    if response.status >= 500 and response.status != INSUFFICIENT_STORAGE:
        raise ConnectionError(f"status {response.status}")
    if response.status >= 400:
        text = (await response.text())[:500]
        raise HeadgateError(f"the recorder refused {name}: {response.status} {text}")
