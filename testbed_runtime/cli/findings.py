"""The result of one check of `headgate doctor`."""

from __future__ import annotations

from dataclasses import dataclass

GOOD, WARNING, BAD = "ok", "note", "BAD"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `means` explains it."""

    name: str
    level: str
    found: str
    means: str
