"""Facts about this machine for the report of a run. No names, no addresses."""

from __future__ import annotations

import os
import platform
from typing import Any


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_facts() -> dict[str, Any]:
    """Return facts about this machine."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "cores": cores(),
        "memory_bytes": _memory_bytes(),
        "system": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_1min": round(load, 2),
    }


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
