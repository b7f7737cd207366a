"""A finding about the tables of a sealed trial."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from msgspec import Struct


class Damage(Struct, frozen=True):
    """One finding. `row` is -1 if it concerns the whole column."""

    table: str
    column: str
    row: int
    problem: str

    def __str__(self) -> str:
        row = f", row {self.row}" if self.row >= 0 else ""
        return f"{self.table}.parquet, column {self.column}{row}: {self.problem}"


def no_row(table: str, problem: str) -> Damage:
    """Return the finding that the table has no row of some kind."""
    return Damage(table, "kind", -1, problem)


def first_of_each(*rules: Iterable[Damage]) -> list[Damage]:
    """Return the first finding of each rule: one cause often damages many rows. A rule stops at its first
    finding."""
    return [found for rule in rules for found in islice(rule, 1)]
