"""Liveness: after the last fault the job makes progress again, until the drain."""

from __future__ import annotations

from collections.abc import Sequence

from testbed_runtime.checking.common import NS, Window, Windows
from testbed_runtime.checking.progress import Progress, goodput

LAST_NS = 2 * NS
"""Records must arrive in this last part of the observation, which spans many sample periods."""
SHORTEST_NS = NS // 2
"""A shorter part says nothing."""


def alive_at_end(sinks: Sequence[Progress], windows: Windows) -> bool | None:
    """Return whether new records arrived in the last LAST_NS plus the usual gap between two records before the drain, or in
    the whole judged window if it is shorter. None without samples, or if the window is shorter than SHORTEST_NS or the gap."""
    if windows.judged is None:
        return None
    usual = max((s.usual_gap_ns or 0 for s in sinks), default=0)
    window = Window(max(windows.judged.start, windows.end - LAST_NS - usual), windows.end)
    if window.end - window.start < max(SHORTEST_NS, usual):
        return None
    arriving = goodput(sinks, window)
    return None if arriving is None else arriving > 0
