"""Parts of a history's sink, for classes that keep the rows of one test. They have their own `append`."""

from __future__ import annotations

from typing import Any


class NamedRows:
    """Takes rows with the names of their columns only, as waits and events are written."""

    def put(self, table: str, values: tuple[Any, ...]) -> None:
        raise AssertionError(table)

    async def flush(self) -> bool:
        return True


class KeptRows(NamedRows):
    """Keeps each row in `rows`."""

    rows: list[dict[str, Any]]

    def append(self, table: str, **row: Any) -> None:
        self.rows.append(row)
