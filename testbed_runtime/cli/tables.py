"""Tables of text, among them the comparison of a run (comparison.json)."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from testbed_runtime.core.judgement.quantities import counted

if TYPE_CHECKING:  # it imports NumPy, which `--help` does not need
    from testbed_runtime.core.judgement.comparison import Comparison

GAP = "  "
MANY_GROUPS = 8
"""Above this number, groups become rows: only about three names of runs fit side by side."""
OUTPUT_WIDTH = 120
"""Width of output that does not go to a terminal, such as the log of a CI job."""

MIN_WIDTH = 20
"""Columns that a wrapped text has at least, however narrow the terminal is."""


def output_width() -> int:
    """Return the number of columns of the terminal."""
    return shutil.get_terminal_size((OUTPUT_WIDTH, 0)).columns


def terminal_width() -> int:
    """Return the number of columns of the terminal, or 0 if the output does not go to one."""
    return output_width() if sys.stdout.isatty() else 0


def described(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield rows as lines whose last cell is a sentence. With a width, the sentence continues below itself. Pure."""
    names, sentences = zip(*((row[:-1], row[-1]) for row in rows), strict=True)
    widths = [max(map(len, column)) for column in zip(*names, strict=True)]
    indent = " " * sum(w + len(GAP) for w in widths)
    for cells, sentence in zip(names, sentences, strict=True):
        start = "".join(cell.ljust(w) + GAP for cell, w in zip(cells, widths, strict=True))
        yield from wrapped(sentence, width, first=start, then=indent)


def wrapped(text: str, width: int, *, first: str = "", then: str = "") -> list[str]:
    """Return a text as lines of at most `width` columns, or as one line if it is 0. Pure."""
    if not width:
        return [first + text]
    return textwrap.wrap(
        text,
        max(width, len(then) + MIN_WIDTH),
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first]


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> Iterator[str]:
    """Yield rows of the same length as lines with columns as wide as their longest cell. With `numbers`, all columns but the
    first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [
            cell.rjust(w) if numbers else cell.ljust(w) for cell, w in zip(others, widths[1:], strict=True)
        ]
        yield GAP.join([first.ljust(widths[0]), *cells]).rstrip()


def side_by_side(table: Comparison, *, width: int = 0) -> list[str]:
    """Return a comparison as lines: a row for each metric and a column for each group, or the other way round if there are many groups,
    such as the runs of a trend. With a width, columns that do not fit beside each other follow below. Pure."""
    columns = [["", *(metric.title for metric in table.metrics)]]
    for group in table.groups:
        head = f"{group.name} ({counted(group.trials, 'trial')})"
        columns.append([head, *(value.text for value in group.values)])
    if len(table.groups) > MANY_GROUPS:
        columns = [list(row) for row in zip(*columns, strict=True)]
    return fitting(columns, width)


def fitting(
    columns: Sequence[Sequence[str]], width: int, *, repeated: int = 1, numbers: bool = False
) -> list[str]:
    """Return columns of the same length as lines. With a width, columns that do not fit beside each other follow below, where the first
    `repeated` columns are written again. Pure."""
    blocks = _blocks(columns, width, repeated)
    return [line for block in blocks for line in aligned(list(zip(*block, strict=True)), numbers=numbers)]


def _blocks(columns: Sequence[Sequence[str]], width: int, repeated: int) -> Iterator[list[Sequence[str]]]:
    """Yield the first columns with as many of the others as fit, at least one."""
    first, others = columns[:repeated], columns[repeated:]
    block, start = list(first), sum(map(_width, first)) + len(GAP) * (repeated - 1)
    used = start
    for column in others:
        needed = len(GAP) + _width(column)
        if width and len(block) > repeated and used + needed > width:
            yield block
            block, used = list(first), start
        block.append(column)
        used += needed
    yield block


def _width(column: Sequence[str]) -> int:
    return max(map(len, column))
