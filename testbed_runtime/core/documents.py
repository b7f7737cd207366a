"""The JSON documents that Headgate writes for scripts: the results in a run's folder, and the output of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEMA = 1
"""Changes when a field is renamed, removed or gets another meaning. A new field does not change it."""


def versioned(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with its schema number in front."""
    return {"schema": SCHEMA, **content}
