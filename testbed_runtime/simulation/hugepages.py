"""Huge pages for the memory of a large simulation.

The objects of a thousand subtasks are spread over a gigabyte, and each event needs a few of them from anywhere in it. With pages of
4 KiB, the processor mostly waits for the translation of their addresses: with 2 MiB, the same events take a fifth less time.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

HUGE_BYTES = 2 * 1024 * 1024
GROWTH_KB = 128 * 1024
GROWTH = 1.5
"""Memory is moved to huge pages when the process has grown by this much and by half. A deployment causes that. The samples of a long run,
which are rarely touched again, do not, and a small job never does."""
_MADV_COLLAPSE = 25
"""The `madvise` advice to move memory now, regardless of the system's setting for huge pages (Linux 6.1)."""
_MAPS = Path("/proc/self/maps")


class HugePages:
    """Moves memory that the process allocates from now on to huge pages."""

    def __init__(self) -> None:
        self._moved_kb = _peak_kb()

    def tend(self) -> None:
        """Move the memory if the process has grown. Memory that was moved before costs almost nothing."""
        peak_kb = _peak_kb()
        if peak_kb < max(self._moved_kb + GROWTH_KB, self._moved_kb * GROWTH) or sys.platform != "linux":
            return
        self._moved_kb = peak_kb
        _collapse(heaps(_MAPS.read_text()))


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def heaps(maps: str) -> list[tuple[int, int]]:
    """Return start and end of each anonymous mapping in /proc/<pid>/maps, rounded inwards to whole huge pages."""
    found = []
    for line in maps.splitlines():
        addresses, rights, _, _, inode, *name = line.split()
        if inode != "0" or rights != "rw-p" or name not in ([], ["[heap]"]):
            continue
        first, last = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-first // HUGE_BYTES) * HUGE_BYTES, last // HUGE_BYTES * HUGE_BYTES
        if start < end:
            found.append((start, end))
    return found


def _collapse(areas: list[tuple[int, int]]) -> None:
    """Collapse these areas into huge pages. The kernel skips what it cannot move; an old kernel skips everything."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in areas:
        advise(start, end - start, _MADV_COLLAPSE)
