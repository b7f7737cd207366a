"""BlobStores: a folder (atomic puts through an executor) and memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from testbed_runtime.files import write_whole

MAX_KEY_CHARS = 512
TEMPORARY = ".tmp-"
"""Prefix of a file that is being written. Such a file is not an object."""


class MemoryBlobStore:
    """`ports.storage.BlobStore` in a dict."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    @classmethod
    def of_folder(cls, folder: str | Path) -> MemoryBlobStore:
        """Return a store with the objects of a `FolderBlobStore`, without an event loop."""
        store, root = cls(), Path(folder)
        store._objects = {key: (root / key).read_bytes() for key in _list(root, "")}
        return store

    async def put(self, key: str, data: bytes) -> None:
        self._objects[checked(key)] = bytes(data)

    async def get(self, key: str) -> bytes:
        return self._objects[key]

    async def list(self, prefix: str) -> list[str]:
        return sorted(key for key in self._objects if key.startswith(prefix))

    async def delete(self, key: str) -> None:
        self._objects.pop(key, None)


class FolderBlobStore:
    """`ports.storage.BlobStore` in a folder: written to a temporary file, synced, renamed. Blocking calls run in the loop's executor."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._written = 0

    async def put(self, key: str, data: bytes) -> None:
        """Raises OSError when the disk fails."""
        self._written += 1
        temporary = f"{TEMPORARY}{os.getpid()}-{self._written}"
        await asyncio.to_thread(_put, self._path(key), temporary, bytes(data))

    async def get(self, key: str) -> bytes:
        try:
            return await asyncio.to_thread(self._path(key).read_bytes)
        except (FileNotFoundError, IsADirectoryError):
            raise KeyError(key) from None

    async def list(self, prefix: str) -> list[str]:
        if prefix.startswith("/") or {".", ".."} & set(prefix.split("/")):
            raise ValueError(f"{prefix!r} is not a prefix of keys of the blob store")
        return await asyncio.to_thread(_list, self._folder, prefix)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._path(key).unlink, missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / checked(key)


def checked(key: str) -> str:
    """Return the key. Raises ValueError for one that would leave the store."""
    parts = key.split("/")
    if len(key) > MAX_KEY_CHARS or any(
        part in {"", ".", ".."} or part.startswith(TEMPORARY) for part in parts
    ):
        raise ValueError(f"{key!r} is not a key of the blob store")
    return key


def _put(path: Path, temporary: str, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data, temporary=temporary)


def _list(folder: Path, prefix: str) -> list[str]:
    start = folder / prefix.rpartition("/")[0]
    found = (p for p in start.rglob("*") if p.is_file() and not p.name.startswith(TEMPORARY))
    return sorted(key for p in found if (key := p.relative_to(folder).as_posix()).startswith(prefix))
