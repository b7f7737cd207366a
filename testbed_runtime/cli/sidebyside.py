"""The comparison of a run (comparison.json) as a table of text: a row for each metric, a column for each variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from testbed_runtime.cli.tables import GAP, aligned
from testbed_runtime.core.judgement.quantities import counted


def side_by_side(table: Mapping[str, Any], *, width: int = 0) -> list[str]:
    """Return the table as lines. With a width, columns that do not fit beside each other follow below. Pure."""
    groups = table["groups"]
    columns = [["", *(metric["title"] for metric in table["metrics"])]]
    for group in groups:
        trials = counted(group["trials"], "trial")
        columns.append([f"{group['name']} ({trials})", *(value["text"] for value in group["values"])])
    return [line for block in _blocks(columns, width) for line in aligned(list(zip(*block, strict=True)))]


def _blocks(columns: Sequence[list[str]], width: int) -> Iterator[list[list[str]]]:
    """Yield the first column with as many of the others as fit, at least one."""
    first, *others = columns
    block, used = [first], _width(first)
    for column in others:
        needed = len(GAP) + _width(column)
        if width and len(block) > 1 and used + needed > width:
            yield block
            block, used = [first], _width(first)
        block.append(column)
        used += needed
    yield block


def _width(column: Sequence[str]) -> int:
    return max(map(len, column))
