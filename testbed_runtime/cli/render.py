"""Show progress: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from testbed_runtime.core.judgement.quantities import counted
from testbed_runtime.runner import progress as p

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_EVERY_S = 5.0
"""Interval between two plain lines of numbers. Always in real time, because virtual time passes thousands of times faster."""
SHOWN_PHASES = {
    "create": "starting the testbed",
    "deploy": "deploying the job",
    "warmUp": "warm-up",
    "baseline": "baseline",
    "fault": "fault",
    "observation": "observation",
    "drain": "drain with a final checkpoint",
    "ended": "the job has ended, so there is nothing to drain",
    "seal": "sealing the history",
    "dispose": "stopping the testbed",
}
WITHOUT_FAULT = "no fault: the control run only waits"
"""The name of the phase `fault` in a control trial."""
MARGIN = 4
"""Columns that stay free. A terminal echoes `^C` after the last row, and a row that wraps could not be erased."""
WITHOUT_NUMBERS = ("create", "seal", "dispose")
"""Phases without a running job; its last numbers would be outdated."""


@contextmanager
def rendering(*, quiet: bool) -> Iterator[p.Progress]:
    """Yield the Progress for the engine."""
    if quiet:
        yield p.Silent()
    elif sys.stderr.isatty():
        with Live().shown() as live:
            yield live
    else:
        yield Plain()


class Plain:
    """A log on stderr: one line per event, and the numbers every few seconds of `clock`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._numbers_at = clock()

    def on_event(self, event: p.ProgressEvent) -> None:
        if isinstance(event, p.Sample):
            if self._clock() >= self._numbers_at + PLAIN_EVERY_S:
                self._numbers_at = self._clock()
                sys.stderr.write(f"  {numbers(event)}\n")
            return
        line = line_of(event)
        if line:
            sys.stderr.write(f"{line}\n")


class Live:
    """A live display: the events, and below them the trial, its phase with the remaining time, and the numbers."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.spinner import Spinner

        self._console: Console = Console(stderr=True, highlight=False)
        self._spinner = Spinner("dots")
        self._trials = 0
        self._trial = ""
        self._sample: p.Sample | None = None
        self._phase = ""

    @contextmanager
    def shown(self) -> Iterator[Live]:
        from rich.live import Live as RichLive

        with RichLive(
            get_renderable=self._bottom, console=self._console, refresh_per_second=8, transient=True
        ):
            yield self

    def on_event(self, event: p.ProgressEvent) -> None:
        match event:
            case p.Sample():
                self._sample = event
                return
            case p.RunStarted():
                self._trials = event.trials
            case p.TrialStarted():
                of = f" of {self._trials}" if event.number <= self._trials else ""
                self._trial, self._sample = f"{event.trial} ({event.number}{of})", None
            case p.PhaseEntered():
                self._phase = shown_phase(event) or event.phase
                if event.phase in WITHOUT_NUMBERS:
                    self._sample = None
            case p.Evaluating():
                self._trial, self._phase, self._sample = event.text.strip(), "", None
            case _:
                pass
        line = line_of(event)
        if line and not isinstance(event, p.PhaseEntered):
            # let the terminal wrap, so that a path can be copied as a whole
            self._console.print(line, markup=False, soft_wrap=True)

    def _bottom(self) -> RenderableType:
        """Return two lines that never wrap, so that the output above them does not jump."""
        from rich.console import Group
        from rich.text import Text

        frame = self._spinner.render(self._console.get_time())
        words = [self._trial, self._phase]
        if self._sample is not None:
            if self._sample.job_state != "RUNNING":
                words.append(f"job {self._sample.job_state.lower()}")
            words.append(time_left(self._sample.remaining_s))
        first = f"{frame} {'  '.join(w for w in words if w)}"
        rows = [first, f"  {counts(self._sample)}"] if self._sample is not None else [first]
        texts = [Text(row, no_wrap=True) for row in rows]
        for text in texts:
            text.truncate(self._console.width - MARGIN, overflow="ellipsis")
        return Group(*texts)


def line_of(event: p.ProgressEvent) -> str:
    """Return one line for an event; empty if there is nothing to show."""
    match event:
        case p.RunStarted():
            known = event.planned_s > 0
            total = f", about {rounded_time(event.planned_s)}" if known else ""
            virtual = " of virtual time" if known and event.virtual else ""
            return f"run {event.run}: {counted(event.trials, 'trial')}{total}{virtual} → {event.folder}"
        case p.TrialStarted():
            planned = f" ({event.planned_s:.0f} s)" if event.planned_s > 0 else ""
            return f"trial {event.number}: {event.trial}{planned}"
        case p.PhaseEntered():
            words = shown_phase(event)
            left = time_left(event.remaining_s)
            return f"  {words}{left and ', '}{left}" if words else ""
        case p.Notice() | p.Suspended():
            return f"  {event.text}"
        case p.TrialEnded():
            return _ended(event)
        case p.Evaluating():
            return event.text
        case p.RunEnded() | p.FaultChanged():  # the text of a fault is in Notice
            return ""
        case p.Sample():
            return numbers(event)


def shown_phase(event: p.PhaseEntered) -> str:
    """Return the phase in words; empty for one that is not shown."""
    if event.control and event.phase == "fault":
        return WITHOUT_FAULT
    return SHOWN_PHASES.get(event.phase, "")


def _ended(event: p.TrialEnded) -> str:
    if event.error:
        return f"  trial {event.trial}: error: {event.error}"
    if event.voided:
        return f"  trial {event.trial} is void and is repeated"
    if not event.job_state:
        return f"  trial {event.trial}: ended before its job was submitted"
    return f"  trial {event.trial}: job {event.job_state}" + (", drained" if event.drained else "")


def rounded_time(seconds: float) -> str:
    """`34 s`, `2 min 20 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def time_left(seconds: float | None) -> str:
    """Return the time until the drain; empty if it has started or is unknown."""
    return "" if seconds is None or seconds <= 0 else f"{seconds:.0f} s until the drain"


def counts(sample: p.Sample) -> str:
    """Return the counters, the most important first, because a narrow terminal cuts off the end.

    The lag of a job is unknown while a task does not run: what that task has missed is not measured."""
    job = sample.job
    if not job.total_tasks:
        return ""
    words = []
    complete = job.running_tasks >= job.total_tasks
    for key, unit in zip(p.SHOWN_COUNTERS, ("records/s", "credits", "s lag"), strict=True):
        if key in job.counters and (complete or key != "lag_s"):
            value = job.counters[key]
            words.append(f"{value:,.0f} {unit}" if key != "lag_s" else f"{value:.2f} {unit}")
    words.append(f"{job.running_tasks}/{job.total_tasks} tasks")
    if job.restarts:
        words.append(counted(job.restarts, "restart"))
    words.append(counted(job.checkpoints, "checkpoint"))
    return ", ".join(words)


def numbers(sample: p.Sample) -> str:
    """Return the job in one line: state, counters, remaining time."""
    words = [f"job {sample.job_state.lower()}", counts(sample), time_left(sample.remaining_s)]
    return ", ".join(w for w in words if w)
