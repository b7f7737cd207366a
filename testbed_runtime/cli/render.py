"""Progress for people: a live line with bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from testbed_runtime.runner import progress as p

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_EVERY = 50
"""Samples between two plain lines of numbers: 5 s at ten a second."""
SHOWN_PHASES = {
    "create": "starting the testbed",
    "deploy": "deploying the job",
    "warmUp": "warm-up",
    "baseline": "baseline",
    "fault": "fault",
    "observation": "observation",
    "drain": "drain with a final checkpoint",
    "seal": "sealing the history",
    "dispose": "stopping the testbed",
}


@contextmanager
def rendering(*, quiet: bool = False) -> Iterator[p.Progress]:
    """The Progress to give to the engine."""
    if quiet:
        yield p.Silent()
    elif sys.stderr.isatty():
        with Live().shown() as live:
            yield live
    else:
        yield Plain()


class Plain:
    """Lines on stderr, one an event, and the numbers now and then."""

    def __init__(self) -> None:
        self._samples = 0

    def tell(self, event: p.ProgressEvent) -> None:
        if isinstance(event, p.Sample):
            self._samples += 1
            if self._samples % PLAIN_EVERY == 0:
                typer.echo(f"  {numbers(event)}", err=True)
            return
        line = line_of(event)
        if line:
            typer.echo(line, err=True)


class Live:
    """Events scroll by; at the bottom stand the trial, its phase with the time that remains, and the numbers."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console: Console = Console(stderr=True, highlight=False)
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

    def tell(self, event: p.ProgressEvent) -> None:
        match event:
            case p.Sample():
                self._sample = event
                return
            case p.TrialStarted():
                self._trial, self._sample = f"{event.trial} ({event.number})", None
            case p.PhaseEntered():
                self._phase = event.phase
            case p.Evaluating():
                self._trial, self._phase, self._sample = event.text, "", None
            case _:
                pass
        line = line_of(event)
        if line and not isinstance(event, p.PhaseEntered):
            self._console.print(line, markup=False)

    def _bottom(self) -> RenderableType:
        from rich.spinner import Spinner

        words = [self._trial, SHOWN_PHASES.get(self._phase, self._phase)]
        if self._sample is not None:
            words.append(numbers(self._sample))
        return Spinner("dots", text="  ".join(w for w in words if w))


def line_of(event: p.ProgressEvent) -> str:
    """One event as one line; empty: nothing to say."""
    match event:
        case p.RunStarted():
            return f"run {event.run}: {event.trials} trials, about {event.planned_s:.0f} s and their starts → {event.folder}"
        case p.TrialStarted():
            return f"trial {event.number}: {event.trial} ({event.planned_s:.0f} s)"
        case p.PhaseEntered():
            words = SHOWN_PHASES.get(event.phase)
            left = "" if event.remaining_s is None else f", {event.remaining_s:.0f} s until the drain"
            return f"  {words}{left}" if words else ""
        case p.Happened():
            return f"  {event.text}"
        case p.TrialEnded():
            return _ended(event)
        case p.Evaluating():
            return event.text
        case p.RunEnded():
            return ""
        case p.Sample():
            return numbers(event)


def _ended(event: p.TrialEnded) -> str:
    if event.error:
        return f"  trial {event.trial}: error: {event.error}"
    if event.voided:
        return f"  trial {event.trial} is void and is repeated"
    return f"  trial {event.trial}: job {event.job_state}" + (", drained" if event.drained else "")


def numbers(sample: p.Sample) -> str:
    """The job in a few words: state, tasks, rate, credit, lag."""
    words = [f"job {sample.job_state.lower()}", f"{sample.running_tasks}/{sample.total_tasks} tasks"]
    for key, unit in (("records_per_s", "records/s"), ("credits", "credits"), ("lag_s", "s lag")):
        if key in sample.counters:
            value = sample.counters[key]
            words.append(f"{value:,.0f} {unit}" if key != "lag_s" else f"{value:.2f} {unit}")
    if sample.restarts:
        words.append(f"{sample.restarts} restarts")
    words.append(f"{sample.checkpoints} checkpoints")
    if sample.remaining_s is not None:
        words.append(f"{sample.remaining_s:.0f} s left")
    return ", ".join(words)
