"""Progress in words, and Ctrl-C."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from testbed_runtime.api.status import JobNow
from testbed_runtime.cli.exits import Interrupted
from testbed_runtime.cli.interrupting import run_interruptible
from testbed_runtime.cli.options import Policy
from testbed_runtime.cli.render import Live, Plain, line_of
from testbed_runtime.cli.running import exit_code, print_verdict
from testbed_runtime.core.judgement.metrics import INDISTINGUISHABLE, NO_DATA, NOT_RECOVERED
from testbed_runtime.core.judgement.verdict import Judged, RunVerdict, Verdict
from testbed_runtime.evaluation.evaluate import STAGES
from testbed_runtime.runner import progress as p
from testbed_runtime.runner.engine import RunResult
from tests import verdicts

JOB = JobNow(
    running_tasks=6,
    total_tasks=6,
    restarts=1,
    checkpoints=12,
    counters={"records_per_s": 4980.3, "credits": 18, "lag_s": 0.25},
)
SAMPLE = p.Sample(7.4, "RUNNING", JOB)


def judged(**fields: Any) -> Judged:
    """An expectation of the variant `fast`."""
    return verdicts.judged(**{"variant": "fast", "measured": "2 s", **fields})


def test_the_terminal_shows_what_was_measured_and_what_a_quantile_over_trials_shows(capsys, tmp_path: Path):
    """A comparison that is not decided has its interval beside the reason. A passed quantile has its false-pass risk; a latency,
    whose quantile is taken within a trial, has none. What decided the verdict comes first."""
    items = [
        judged(
            verdict="Inconclusive",
            text="a",
            measured="between 1 s and 2 s",
            reason=INDISTINGUISHABLE,
            note="6 pairs",
        ),
        judged(verdict="Inconclusive", text="b", measured="", reason=NO_DATA),
        judged(verdict="Fail", text="c"),
        judged(text="d", quantile=0.9, note="9 of 10"),
        judged(text="e", quantile=0.99, trial="fast-1", note="unused"),
        judged(text="f", note="7 pairs"),
    ]
    found = RunVerdict(verdict=Verdict.FAIL, summary="s", judged=tuple(items))
    result = RunResult(tmp_path, found, tmp_path / "r.html")
    print_verdict("name", result)
    assert capsys.readouterr().out.splitlines()[1:-1] == [
        "  Fail: fast: c: measured 2 s",
        "  Inconclusive: fast: a: measured between 1 s and 2 s; the trials do not decide it: the required difference is within the confidence interval",
        "  Inconclusive: fast: b: the history has no data for this",
        "  fast: d: 9 of 10",
    ]


def test_an_expectation_that_fails_in_a_hundred_trials_is_not_listed_a_hundred_times(capsys, tmp_path: Path):
    """The first five trials of each variant, and how many more there are."""
    items = [judged(verdict="Fail", trial=f"fast-{n}", measured=f"{n} s") for n in range(1, 101)]
    items.append(judged(verdict="Fail", variant="slow", trial="slow-1"))
    verdict = RunVerdict(verdict=Verdict.FAIL, summary="s", judged=tuple(items))
    print_verdict("name", RunResult(tmp_path, verdict, tmp_path / "r.html"))
    assert capsys.readouterr().out.splitlines()[1:-1] == [
        *(f"  Fail: fast-{n}: asked: measured {n} s" for n in range(1, 6)),
        "  Fail: asked: also in 95 more trials of fast (verdict.json has all)",
        "  Fail: slow-1: asked: measured 2 s",
    ]


@pytest.mark.parametrize(("verdict", "lines"), [("Inconclusive", 1), ("Fail", 0)])
def test_the_terminal_says_what_to_do_if_nothing_is_decided(capsys, tmp_path: Path, verdict: str, lines: int):
    """Once for each reason. A run that failed is decided, whatever else is not."""
    items = [judged(verdict="Inconclusive", text=text, reason=NOT_RECOVERED) for text in "ab"]
    found = RunVerdict(verdict=Verdict(verdict), summary="s", judged=tuple(items))
    result = RunResult(tmp_path, found, tmp_path / "r.html")
    print_verdict("name", result)
    assert capsys.readouterr().out.count("\n  what to do: Raise `observation`.") == lines


def test_the_numbers_say_state_tasks_rate_credits_lag_and_the_time_that_remains():
    """One line."""
    assert line_of(SAMPLE) == (
        "job running, 4,980 records/s, 18 credits, 0.25 s lag, 6/6 tasks, 1 restart, 12 checkpoints,"
        " 7 s until the drain"
    )


def test_every_stage_of_an_evaluation_has_words_and_so_has_the_wait_for_another_one():
    """The Spark pod evaluates one run after the other."""
    assert set(STAGES) <= set(p.STAGES)
    lines = [{"stage": "fetch"}, {"stage": "spark-again"}, {"waiting": 2}]
    assert [line_of(p.evaluating(line)) for line in lines] == [
        "  fetching the recorded histories",
        "  starting Spark again, because it ended",
        "  waiting until Spark has evaluated other runs",
    ]


def test_no_lag_is_shown_while_a_task_does_not_run():
    """Such a task is not measured, and 0 s would say that all is well. Without any task, nothing is known yet."""
    line = line_of(structs.replace(SAMPLE, job=structs.replace(JOB, running_tasks=5)))
    assert "5/6 tasks" in line
    assert "lag" not in line
    unknown = structs.replace(SAMPLE, job=JobNow())
    assert line_of(unknown) == "job running, 7 s until the drain"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (p.RunStarted("r", "runs/r", 2, 84.4), "run r: 2 trials, about 1 min 24 s → runs/r"),
        (
            p.RunStarted("r", "runs/r", 1, 17.0, virtual=True),
            "run r: 1 trial, about 17 s of virtual time → runs/r",
        ),
        (p.RunStarted("r", "runs/r", 2, 0.0), "run r: 2 trials → runs/r"),
        (p.PhaseEntered("t", "baseline", 12.0), "  baseline, 12 s until the drain"),
        (p.PhaseEntered("t", "create", None), "  starting the testbed"),
        (p.PhaseEntered("t", "fault", 9.0), "  fault, 9 s until the drain"),
        (
            p.PhaseEntered("t-control-1", "fault", 9.0, control=True),
            "  no fault: the control run only waits, 9 s until the drain",
        ),
        (p.PhaseEntered("t", "end", 0.0), ""),
        (p.Notice("fault f ended"), "  fault f ended"),
        (p.TrialEnded("t", "FINISHED", True, False), "  trial t: job FINISHED, drained"),
        (p.TrialEnded("t", "", False, False), "  trial t: ended before its job was submitted"),
        (p.TrialEnded("t", "", False, True), "  trial t is void and is repeated"),
        (p.TrialEnded("t", "", False, False, "port in use"), "  trial t: error: port in use"),
        (p.Evaluating("starting Spark"), "starting Spark"),
    ],
)
def test_each_event_is_a_line(event, line):
    """Plain text, so that a log can hold it."""
    assert line_of(event) == line


def test_plain_progress_shows_numbers_every_five_seconds_of_the_wall_clock(capsys):
    """However many samples there are: in virtual time, a thousand pass in such a moment."""
    now = [100.0]
    plain = Plain(clock=lambda: now[0])
    for step in range(120):
        now[0] = 100.0 + step * 0.1
        plain.on_event(SAMPLE)
    plain.on_event(p.Notice("[bold] fault f ended"))
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
            p.Notice("[/x] odd"),
        ):
            live.on_event(event)
    assert "[/x] odd" in capsys.readouterr().err


def drawn(live: Live, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as said:
        console.print(live._bottom())
    return said.get().splitlines()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_live_lines_fit_the_terminal_and_never_wrap(width):
    """Two rows while a job runs, whatever the width."""
    live = Live()
    live._console = Console(width=width, file=io.StringIO())
    for event in (
        p.RunStarted("r", "f", 2, 1.0),
        p.TrialStarted("main-1", 1, 9.0),
        p.PhaseEntered("main-1", "fault", 7.4),
        SAMPLE,
    ):
        live.on_event(event)
    rows = drawn(live, width)
    assert len(rows) == 2
    assert rows[0].split(maxsplit=1)[1].startswith("main-1 (1 of 2)  fault  7 s until")
    assert rows[1].startswith("  4,980 records/s, 18 credits")
    assert all(len(row) <= width - len("^C") for row in rows)


def test_the_live_lines_forget_the_numbers_when_the_job_is_over():
    """While the history is sealed, no numbers arrive."""
    live = Live()
    live.on_event(p.TrialStarted("main-1", 1, 9.0))
    live.on_event(SAMPLE)
    live.on_event(p.PhaseEntered("main-1", "seal", None))
    assert len(drawn(live, 80)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_and_the_coroutine_cleans_up(number):
    """Then Interrupted, for exit code 130."""
    done = []

    async def main():
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    with pytest.raises(Interrupted):
        run_interruptible(main())
    assert done == ["cleaned up"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_cancels_the_cleaning_up_too_wherever_it_is(number, capfd):
    """The task that cleans up is running its own code when the signal comes, and may still finish its cleaning up."""
    done = []

    async def clean_up():
        os.kill(os.getpid(), number)
        for _ in range(1000):  # a signal is not to be raised in here
            pass
        try:
            await asyncio.sleep(60)
        finally:
            done.append("given up")
            await asyncio.sleep(0)
            done.append("signalled")

    async def main():
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        try:
            await asyncio.sleep(60)
        finally:
            cleaning = asyncio.create_task(clean_up())
            await asyncio.wait([cleaning])

    with pytest.raises(Interrupted):
        run_interruptible(main())
    assert done == ["given up", "signalled"]
    assert "never retrieved" not in capfd.readouterr().err


def test_without_a_signal_the_result_comes_back():
    """And errors pass through."""

    async def main():
        return 5

    assert run_interruptible(main()) == 5


def test_the_exit_code_is_that_of_the_worst_verdict_unless_the_policy_replaces_it():
    """0 Pass, 1 Fail, 2 Error, 3 Inconclusive. The policy is about Inconclusive only."""
    found = (Verdict.PASS, Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE)
    assert [exit_code([verdict], Policy.REPORT) for verdict in found] == [0, 1, 2, 3]
    policies = (Policy.FAIL, Policy.PASS, Policy.RETRY)
    assert [exit_code(found[0::3], policy) for policy in policies] == [1, 0, 3]
    assert exit_code([Verdict.FAIL], Policy.PASS) == 1
