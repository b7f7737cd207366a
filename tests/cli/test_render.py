"""Progress in words, and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from testbed_runtime.cli.interrupting import run_interruptible
from testbed_runtime.cli.render import Live, Plain, line_of
from testbed_runtime.runner import progress as p

SAMPLE = p.Sample(
    "main-1", "fault", 7.4, "RUNNING", 5, 6, 1, 12, {"records_per_s": 4980.3, "credits": 18, "lag_s": 0.25}
)


def test_the_numbers_say_state_tasks_rate_credits_lag_and_the_time_that_remains():
    """One line."""
    assert line_of(SAMPLE) == (
        "job running, 5/6 tasks, 4,980 records/s, 18 credits, 0.25 s lag, 1 restarts, 12 checkpoints, 7 s left"
    )


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (p.RunStarted("r", "runs/r", 2, 34.0), "run r: 2 trials, about 34 s and their starts → runs/r"),
        (p.PhaseEntered("t", "baseline", 12.0), "  baseline, 12 s until the drain"),
        (p.PhaseEntered("t", "create", None), "  starting the testbed"),
        (p.PhaseEntered("t", "end", 0.0), ""),
        (p.Happened("t", "fault f ended"), "  fault f ended"),
        (p.TrialEnded("t", "FINISHED", True, False), "  trial t: job FINISHED, drained"),
        (p.TrialEnded("t", "", False, True), "  trial t is void and is repeated"),
        (p.TrialEnded("t", "", False, False, "port in use"), "  trial t: error: port in use"),
        (p.Evaluating("Spark: metrics"), "Spark: metrics"),
    ],
)
def test_each_event_is_a_line(event, line):
    """Plain text, so that a log can hold it."""
    assert line_of(event) == line


def test_plain_progress_shows_numbers_now_and_then(capsys):
    """Every 50th sample, not each."""
    plain = Plain()
    for _ in range(120):
        plain.tell(SAMPLE)
    plain.tell(p.Happened("t", "[bold] fault f ended"))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert said[-1] == "  [bold] fault f ended"


def test_the_live_line_takes_every_event(capsys):
    """Also without a terminal behind it."""
    live = Live()
    with live.shown():
        for event in (
            p.TrialStarted("t", 1, 9.0),
            p.PhaseEntered("t", "fault", 3.0),
            SAMPLE,
            p.Happened("t", "[/x] odd"),
        ):
            live.tell(event)
    assert "[/x] odd" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_and_the_coroutine_cleans_up(number):
    """Then KeyboardInterrupt, for exit code 130."""
    done = []

    async def main():
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(main())
    assert done == ["cleaned up"]


def test_without_a_signal_the_result_comes_back():
    """And errors pass through."""

    async def main():
        return 5

    assert run_interruptible(main()) == 5
