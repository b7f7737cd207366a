"""The result of one check of `headgate doctor`."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

GOOD, WARNING, BAD = "ok", "note", "BAD"


class Finding(Struct, frozen=True):
    """The result of one check. `means` explains it."""

    name: str
    level: str
    found: str
    means: str


def noted(finding: Finding) -> Finding:
    """Return the finding as a note: what is BAD for another environment is not BAD for the requested one."""
    return replace(finding, level=WARNING) if finding.level == BAD else finding
