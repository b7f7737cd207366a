"""`ports.storage.StateFileStore` in a folder and in memory. Files are not synced: what counts is in the checkpoint store."""

from __future__ import annotations

from pathlib import Path


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

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def read(self, name: str, offset: int = 0, size: int = -1) -> bytes:
        with (self._folder / name).open("rb") as file:
            file.seek(offset)
            return file.read() if size < 0 else file.read(size)

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)
