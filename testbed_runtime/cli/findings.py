"""What a check found, for people."""

from __future__ import annotations

from dataclasses import dataclass

GOOD, WARNING, BAD = "ok", "note", "BAD"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. `means` is for people."""

    name: str
    level: str
    found: str
    means: str
