"""`ports.storage.StateFileStore` in a folder and in memory. Files are not synced, because durable state is in the checkpoint store."""

from __future__ import annotations

import errno
from pathlib import Path

MAX_BYTES = 4 * 1024**3
"""Limit for all state files of one TaskManager, so that state without a TTL does not fill the disk."""


class MemoryStateFiles:
    """Files in a dict."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self._files)

    def write(self, name: str, data: bytes) -> None:
        self._files[name] = bytes(data)

    def read(self, name: str, offset: int = 0, size: int = -1) -> bytes:
        """Raises FileNotFoundError."""
        if name not in self._files:
            raise FileNotFoundError(2, "No such file", name)
        return self._files[name][offset : offset + size if size >= 0 else None]

    def delete(self, name: str) -> None:
        self._files.pop(name, None)


class FolderStateFiles:
    """Files below a folder, which is created with the first of them."""

    def __init__(self, folder: str | Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._folder = Path(folder)
        self._max_bytes = max_bytes
        self._sizes: dict[str, int] = {}

    def write(self, name: str, data: bytes) -> None:
        """Raises OSError, also for more than `max_bytes` in all files."""
        self._sizes.pop(name, None)
        if sum(self._sizes.values()) + len(data) > self._max_bytes:
            raise OSError(
                errno.EDQUOT, f"the state files of a TaskManager have at most {self._max_bytes} bytes"
            )
        self._sizes[name] = len(data)
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def read(self, name: str, offset: int = 0, size: int = -1) -> bytes:
        with (self._folder / name).open("rb") as file:
            file.seek(offset)
            return file.read() if size < 0 else file.read(size)

    def delete(self, name: str) -> None:
        self._sizes.pop(name, None)
        (self._folder / name).unlink(missing_ok=True)
