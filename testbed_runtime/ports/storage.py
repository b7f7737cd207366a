"""Where checkpoints and the history go."""

from __future__ import annotations

from typing import Any, Protocol


class BlobStore(Protocol):
    """Object-store shaped: whole objects, atomic put, no rename, no append. Keys are `/`-separated."""

    async def put(self, key: str, data: bytes) -> None: ...

    async def get(self, key: str) -> bytes:
        """Raises KeyError when there is no such object."""

    async def list(self, prefix: str) -> list[str]: ...

    async def delete(self, key: str) -> None:
        """No error when it is not there."""


class HistorySink(Protocol):
    """Rows for the record that everything is judged by. Never blocks, never raises, bounded: what is shed is counted
    and the count is itself recorded (a trial with shed rows is Inconclusive)."""

    def append(self, table: str, **row: Any) -> None:
        """One row of `history.schema.TABLES[table]`, without the common columns (those the sink adds), `t_ns`
        optional (default: now)."""

    async def flush(self) -> bool:
        """Until everything appended so far is acknowledged by the recorder, or its time limit (5 s) passed: False."""
