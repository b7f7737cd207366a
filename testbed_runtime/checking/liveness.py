"""Liveness: after the last fault the job makes progress again, and goes on until the drain."""

from __future__ import annotations

from testbed_runtime.checking.common import NS, Window, Windows
from testbed_runtime.checking.throughput import longest_stall, rate, sinks_of
from testbed_runtime.history.schema import Trial

LAST_NS = 2 * NS
"""The end of the observation in which records must arrive: many sample periods, few seconds."""


def alive_at_end(trial: Trial, windows: Windows) -> bool | None:
    """Records arrived in the last two seconds before the drain. None: no samples, or the trial was shorter."""
    window = Window(windows.end - LAST_NS, windows.end)
    if windows.judged is None or windows.judged.start > window.start:
        return None
    arriving = rate(sinks_of(trial), window)
    return None if arriving is None else arriving > 0


def stall_s(trial: Trial, window: Window) -> float | None:
    """Longest time in the window without a new record at any sink."""
    return longest_stall(sinks_of(trial), window)
