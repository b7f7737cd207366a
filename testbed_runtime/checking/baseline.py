"""The baseline of a trial: its throughput without the lost samples of a killed task, its lag, and the noise of throughput."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.lib.stride_tricks import sliding_window_view

from testbed_runtime.checking.common import Window, Windows, job_shape, windows
from testbed_runtime.checking.progress import SAMPLE_NS, Progress, goodput, progress_of
from testbed_runtime.core.judgement.verdict import controls_of
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.history.columns import Ints
from testbed_runtime.history.schema import Trial

STEADY_S = 3
"""Throughput has to be normal over this time to be steady. Noise is measured over the same time."""
STEADY_SHARE = 0.05
"""Tolerated deviation of a steady throughput, before the noise of the control trial is added."""
OFFERED_SHARE = 0.05
"""A rate that is lower than the offered rate by at most this share means that the job sustains the offered
rate, which is the exact value."""
CALM_NS = NS // 2
"""Step of the search for the calmest part of a trial."""
SILENT_NS = 3 * NS // 20
"""A subtask without a sample for this long, one and a half periods, fell silent."""


class Baseline(Struct, frozen=True):
    """The normal state of a trial."""

    rate: float
    """Distinct records per second at the sinks."""
    offered: float | None
    """Records per second that the sources offer to the sinks. None if unknown: with a window, a Python
    function, an iteration or a socket."""
    noise: float
    """Largest relative deviation of the throughput over STEADY_S seconds within the baseline."""

    @property
    def catching_up(self) -> bool:
        """Whether the job was still catching up in the baseline: it was faster than its sources offer."""
        return self.offered is not None and self.rate > self.offered * (1 + OFFERED_SHARE)

    @property
    def reference(self) -> float:
        """The normal throughput: the offered rate if the job sustains it, otherwise the measured rate. A
        measured rate above the offered rate shows that the job was catching up."""
        if self.offered and self.rate / self.offered >= 1 - OFFERED_SHARE:
            return self.offered
        return self.rate


def baseline_of(
    trial: Trial, entry: TrialEntry, spans: Windows, sinks: Sequence[Progress] | None = None
) -> Baseline | None:
    """Return the trial's baseline, or None if it has none or no record arrived in it. `sinks`: their
    progress, if known.

    It is measured in the manifest's baseline window, as shortened by `cut`."""
    if spans.baseline is None:
        return None
    sinks = progress_of(trial, "sink") if sinks is None else sinks
    window = cut(spans.baseline, sinks)
    rate = goodput(sinks, window)
    if not rate:
        return None
    return Baseline(rate, offered_rate(entry), noise(sinks, window))


def cut(window: Window, sinks: Sequence[Progress]) -> Window:
    """End the window before the last samples of the subtasks that fell silent in its second half.

    A killed process loses its last samples. Counting until the end of the window would understate its
    throughput. A subtask that fell silent in the first half did not just lose samples, so it does not shorten
    the window."""
    middle = window.start + (window.end - window.start) // 2
    ends = [window.end]
    for sink in sinks:
        after = int(np.searchsorted(sink.t_ns, window.end))
        last = int(sink.t_ns[after - 1]) if after else 0
        silent = after == len(sink.t_ns) or int(sink.t_ns[after]) - last > SILENT_NS
        if silent and last > middle:
            ends.append(last)
    return Window(window.start, min(ends))


def offered_rate(entry: TrialEntry) -> float | None:
    """Return the records per second that arrive at all sinks if the job keeps up. None if the job graph does not
    determine it."""
    shape = job_shape(entry)
    known = {vertex.name: vertex for vertex in entry.job.vertices}
    if any(vertex.kind in ("python", "iteration") for vertex in known.values()) or shape.windows:
        return None
    total = 0.0
    for source in shape.sources:
        rate = known[source].records_per_second
        # a limited source ends early and a socket has no rate
        if rate is None or known[source].kind not in ("", "generated"):
            return None
        total += rate * sum(shape.copies(source).values())
    return total or None


def noise(sinks: Sequence[Progress], window: Window) -> float:
    """Return the largest relative deviation of the throughput over STEADY_S seconds from its mean; 0 in a shorter window."""
    starts = np.arange(window.start, window.end - STEADY_S * NS + 1, SAMPLE_NS, dtype=np.int64)
    mean = goodput(sinks, window)
    if len(starts) < 2 or not mean:
        return 0.0
    return float(np.abs(rolling(sinks, starts) / mean - 1).max())


def control_noise(trial: Trial, spans: Windows) -> float | None:
    """Return the noise of a control trial, from the start of its baseline to its drain. None without samples."""
    if spans.baseline is None or not (sinks := progress_of(trial, "sink")):
        return None
    return noise(sinks, Window(spans.baseline.start, max(spans.end, spans.baseline.end)))


def with_noise(entries: Sequence[TrialEntry], read: Callable[[TrialEntry], Trial]) -> list[TrialEntry]:
    """Return the manifest's entries. The entry of each fault trial also gets the noise of its control trial.
    `read` opens a control trial; its `tasks`, `task.state` and `task.restored` events and `checkpoints` are
    enough."""
    controls = controls_of(entries)
    used = {controls.get(entry.variant) for entry in entries if not entry.is_control}
    noises = {}
    for entry in entries:
        if entry.trial in used:
            with suppress(Exception):  # reading or judging this trial raises it again
                trial = read(entry)
                noises[entry.trial] = control_noise(trial, windows(trial, entry))
    known = [(entry, noises.get(controls.get(entry.variant, ""))) for entry in entries]
    return [entry if entry.is_control else replace(entry, noise=own) for entry, own in known]


def steady_share(own: float, control: float | None = None) -> float:
    """Return the tolerated relative deviation of a steady throughput, widened by the measured noise."""
    return STEADY_SHARE + max(own, control or 0.0)


def rolling(sinks: Sequence[Progress], starts: Ints) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the distinct records per second in the STEADY_S seconds from each start."""
    total = np.zeros(len(starts))
    for s in sinks:
        if len(s.t_ns):
            total += np.interp(starts + STEADY_S * NS, s.t_ns, s.distinct, left=0.0)
            total -= np.interp(starts, s.t_ns, s.distinct, left=0.0)
    return total / STEADY_S


def normal_lag(subtask: Progress, window: Window, until: int | None = None) -> float | None:
    """Return the 95th percentile of the subtask's lag within the window in seconds. None if the lag is
    unknown there. With `until`, return the lowest percentile of this window and of all later windows of the
    same length that end by `until`."""
    ends = [t for t in (until, subtask.ended_ns) if t is not None]
    length = window.end - window.start
    last = window.start if until is None else max(min(ends) - length, window.start)
    lags = subtask.lag_at(np.arange(window.start, last + length, SAMPLE_NS, dtype=np.int64))
    if not len(lags):
        return None
    each = sliding_window_view(lags, -(-length // SAMPLE_NS))[:: CALM_NS // SAMPLE_NS]
    each = each[: (last - window.start) // CALM_NS + 1]
    unknown = np.isnan(each)
    if unknown[0].all():
        return None
    partly = unknown.any(axis=1)
    found = [np.percentile(part[~np.isnan(part)], 95) for part in each[partly & ~unknown.all(axis=1)]]
    # together: there may be a thousand
    lowest = np.percentile(each[~partly], 95, axis=1).min(initial=math.inf)
    return float(min([lowest, *found]))


def steady_since(sinks: Sequence[Progress], span: Window, normal: float, share: float) -> int | None:
    """Return the first time in the span from which the throughput over STEADY_S seconds is within `share` of
    normal. None if there is none. The STEADY_S seconds must be within the span."""
    starts = np.arange(span.start, span.end - STEADY_S * NS + 1, SAMPLE_NS, dtype=np.int64)
    good = np.flatnonzero(np.abs(rolling(sinks, starts) - normal) <= share * normal)
    return int(starts[good[0]]) if len(good) else None
