"""Liveness: after the last fault the job makes progress again, until the drain."""

from __future__ import annotations

from testbed_runtime.checking.common import NS, Window, Windows
from testbed_runtime.checking.throughput import rate, sinks_of
from testbed_runtime.history.schema import Trial

LAST_NS = 2 * NS
"""Records must arrive in this last part of the observation, which spans many sample periods."""


def alive_at_end(trial: Trial, windows: Windows) -> bool | None:
    """Return whether records arrived in the last LAST_NS before the drain. None without samples or in a shorter trial."""
    window = Window(windows.end - LAST_NS, windows.end)
    if windows.judged is None or windows.judged.start > window.start:
        return None
    arriving = rate(sinks_of(trial), window)
    return None if arriving is None else arriving > 0
