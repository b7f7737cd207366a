"""Tables of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

GAP = "  "


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> Iterator[str]:
    """Yield rows of the same length as lines with columns as wide as their longest cell. With `numbers`, all columns but the
    first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [
            cell.rjust(w) if numbers else cell.ljust(w) for cell, w in zip(others, widths[1:], strict=True)
        ]
        yield GAP.join([first.ljust(widths[0]), *cells]).rstrip()
