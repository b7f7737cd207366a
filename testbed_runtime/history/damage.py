"""A finding about the tables of a sealed trial."""

from __future__ import annotations

from msgspec import Struct


class Damage(Struct, frozen=True):
    """One finding. `row` is -1 if the whole column is meant."""

    table: str
    column: str
    row: int
    problem: str

    def __str__(self) -> str:
        row = f", row {self.row}" if self.row >= 0 else ""
        return f"{self.table}.parquet, column {self.column}{row}: {self.problem}"
