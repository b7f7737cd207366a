"""Ports for storing checkpoints and the history."""

from __future__ import annotations

from typing import Any, Protocol


class BlobStore(Protocol):
    """An object store: whole objects, atomic put, no rename, no append. Keys are separated by `/`."""

    async def put(self, key: str, data: bytes) -> None: ...

    async def get(self, key: str) -> bytes:
        """Return an object. Raises KeyError if it does not exist."""

    async def list(self, prefix: str) -> list[str]: ...

    async def delete(self, key: str) -> None:
        """Delete an object. Does nothing if it does not exist."""


class HistorySink(Protocol):
    """Takes rows for the history. Never blocks, never raises, and is bounded: the number of shed rows is recorded too (a
    trial with shed rows is Inconclusive)."""

    def append(self, table: str, **row: Any) -> None:
        """Add a row of `history.schema.TABLES[table]` without the common columns, which the sink adds. `t_ns` defaults to
        now."""

    def put(self, table: str, values: tuple[Any, ...]) -> None:
        """Add a row with the current time and the value of every column of `history.schema.TABLES[table]`, in their order and with
        their types. In virtual time, this is cheaper than `append`, because nothing is looked up or checked."""

    async def flush(self) -> bool:
        """Wait until the recorder has acknowledged everything appended so far. Return False after 5 s."""


class StateFileStore(Protocol):
    """The local disk of a state backend: whole files are written once, then read in parts. Calls block, because the disk is local."""

    def write(self, name: str, data: bytes) -> None:
        """Raises OSError."""

    def read(self, name: str, offset: int = 0, size: int = -1) -> bytes:
        """Return bytes of a file, all of them by default. Raises OSError if it does not exist."""

    def delete(self, name: str) -> None:
        """Delete a file. Does nothing if it does not exist."""
