"""Liveness: after the last fault the job makes progress again, until the drain."""

from __future__ import annotations

from collections.abc import Sequence

from testbed_runtime.checking.common import NS, Window, Windows
from testbed_runtime.checking.progress import Progress, goodput

LAST_NS = 2 * NS
"""Records must arrive in this last part of the observation, which spans many sample periods."""


def alive_at_end(sinks: Sequence[Progress], windows: Windows) -> bool | None:
    """Return whether new records arrived in the last LAST_NS before the drain, or in the usual gap between two records if
    that is longer. None without samples, or if the observation is shorter than that."""
    usual = max((s.usual_gap_ns or 0 for s in sinks), default=0)
    window = Window(windows.end - LAST_NS - usual, windows.end)
    if windows.judged is None or windows.judged.start > window.start:
        return None
    arriving = goodput(sinks, window)
    return None if arriving is None else arriving > 0
