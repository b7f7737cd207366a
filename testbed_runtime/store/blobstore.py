"""BlobStores: a folder (atomic puts through an executor) and memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from testbed_runtime.files import TEMPORARY, write_whole

MAX_KEY_CHARS = 512
PUT_RETRIES = 100
"""How often a put is repeated because a delete has removed its folder meanwhile. Each time needs another object there, which is deleted:
with 10, 5 of 24,000 puts by eight threads that put and delete in one folder failed."""


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
        """Delete an object, and the folders that it leaves empty: each checkpoint has folders of its own, and `list` walks all."""
        await asyncio.to_thread(_delete, self._folder, self._path(key))

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
    for last in (*[False] * PUT_RETRIES, True):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data, temporary=temporary)
        except (FileNotFoundError, FileExistsError):  # a delete removed the folder after, or in, `mkdir`
            if last:
                raise
        else:
            return


def _delete(folder: Path, path: Path) -> None:
    path.unlink(missing_ok=True)
    for parent in path.parents:
        if parent == folder:
            return
        try:
            parent.rmdir()
        except FileNotFoundError:
            continue  # another delete was faster
        except OSError:
            return  # not empty


def _list(folder: Path, prefix: str) -> list[str]:
    walked = os.walk(folder / prefix.rpartition("/")[0], onerror=_unless_gone)
    found = (Path(parent, name) for parent, _, names in walked for name in names)
    keys = (p.relative_to(folder).as_posix() for p in found if not p.name.startswith(TEMPORARY))
    return sorted(key for key in keys if key.startswith(prefix))


def _unless_gone(error: OSError) -> None:
    """Let a walk go on without a folder that was deleted meanwhile, or that never existed."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
