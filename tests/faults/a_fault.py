"""A fault for tests of what carries it."""

from __future__ import annotations

from typing import Any

from testbed_runtime.core.faults.model import Fault


def fault(kind: str, seconds: float = 30.0, **changes: Any) -> Fault:
    return Fault(**{"name": "f", "kind": kind, "at_s": 0.0, "duration_s": seconds, **changes})
