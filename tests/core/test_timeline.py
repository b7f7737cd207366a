"""The schedule of a trial."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.trial.timeline import (
    ENTER,
    HEAL,
    INJECT,
    RENEW,
    SUBMIT,
    Action,
    PhaseSpan,
    Timeline,
    Windows,
)


def pause(name: str, at_s: float, duration_s: float, *, before_submit: bool = False) -> Fault:
    return Fault(name, "process.pause", at_s, duration_s, before_submit=before_submit)


def schedule(*faults: Fault, control: bool = False, observation_s: float = 12.0) -> Timeline:
    """warm-up 3 s, baseline 4 s."""
    windows = Windows(warm_up_s=3.0, baseline_s=4.0, observation_s=observation_s, drain_s=30.0)
    return Timeline(windows, faults, control=control)


def run(timeline: Timeline, *, running_at: float = 1.0) -> list[tuple[str, str, float]]:
    """Everything that happens, to the drain."""
    actions = timeline.begin(0.0)
    actions += timeline.job_running(running_at)
    while (moment := timeline.next_time) is not None:
        actions += timeline.due(moment)
    return [(a.kind, a.name, a.at) for a in actions]


def test_a_trial_goes_through_its_phases():
    """Deploy, warm-up, baseline, fault, observation, drain."""
    actions = run(schedule(pause("gc", 0.0, 8.0)))
    assert [a for a in actions if a[0] != RENEW] == [
        (ENTER, "deploy", 0.0),
        (SUBMIT, "", 0.0),
        (ENTER, "warmUp", 1.0),
        (ENTER, "baseline", 4.0),
        (ENTER, "fault", 8.0),
        (INJECT, "gc", 8.0),
        (HEAL, "gc", 16.0),
        (ENTER, "observation", 16.0),
        (ENTER, "drain", 20.0),
    ]


def test_a_fault_is_renewed_every_three_seconds_while_it_lasts():
    """The lease is ten seconds."""
    actions = run(schedule(pause("gc", 1.0, 8.0)))
    assert [a[2] for a in actions if a[0] == RENEW] == [12.0, 15.0]


def test_the_control_trial_has_the_same_phases_and_no_fault():
    """Else the two could not be compared."""
    fault = pause("gc", 0.0, 8.0)
    phases = [a for a in run(schedule(fault)) if a[0] == ENTER]
    control = run(schedule(fault, control=True))
    assert [a for a in control if a[0] == ENTER] == phases
    assert not [a for a in control if a[0] in (INJECT, HEAL, RENEW)]


def test_an_observation_shorter_than_the_faults_is_stretched():
    """No drain under a fault."""
    actions = run(schedule(pause("slow", 2.0, 10.0), observation_s=5.0))
    assert actions[-1] == (ENTER, "drain", 20.0)
    assert (HEAL, "slow", 20.0) in actions


def test_a_fault_before_the_submission_is_there_when_the_job_is_submitted():
    """A late producer needs that; its duration counts from there."""
    timeline = schedule(pause("late", 0.0, 2.0, before_submit=True))
    actions = run(timeline)
    assert actions[:3] == [(ENTER, "deploy", 0.0), (INJECT, "late", 0.0), (SUBMIT, "", 0.0)]
    assert (HEAL, "late", 2.0) in actions


def test_a_fault_before_the_submission_ends_at_the_drain_at_the_latest():
    """Also one that was asked to last longer."""
    actions = run(schedule(pause("late", 0.0, 500.0, before_submit=True)))
    assert actions[-2:] == [(HEAL, "late", 20.0), (ENTER, "drain", 20.0)]


def test_late_calls_get_everything_that_was_missed_in_order():
    """A runner that was stalled still heals what it injected."""
    timeline = schedule(pause("a", 0.0, 1.0), pause("b", 0.5, 1.0))
    timeline.begin(0.0)
    timeline.job_running(0.0)
    actions = [(a.kind, a.name) for a in timeline.due(1e6)]
    assert [a for a in actions if a[0] in (INJECT, HEAL)] == [
        (INJECT, "a"),
        (INJECT, "b"),
        (HEAL, "a"),
        (HEAL, "b"),
    ]
    assert timeline.phase == "drain"


def test_cutting_short_heals_what_is_active_and_injects_nothing_more():
    """A job that failed for good, or Ctrl-C."""
    timeline = schedule(pause("a", 0.0, 9.0), pause("b", 5.0, 1.0))
    timeline.begin(0.0)
    timeline.job_running(0.0)
    timeline.due(8.0)
    assert timeline.cut_short(8.5) == [Action(HEAL, "a", 8.5), Action(ENTER, "drain", 8.5)]
    assert timeline.next_time is None
    assert timeline.cut_short(9.0) == []
    assert timeline.drained(9.5) == [Action(ENTER, "end", 9.5)]


def test_a_trial_that_failed_ends_the_phase_that_is_in_progress():
    """Its deployment, if the job never ran."""
    timeline = schedule()
    assert timeline.spans_until(5.0) == ()
    timeline.begin(10.0)
    assert timeline.spans_until(72.5) == (PhaseSpan("deploy", 10.0, 72.5),)


def test_the_spans_say_when_phases_really_were():
    """Not when they were planned."""
    timeline = schedule(pause("a", 0.0, 1.0))
    timeline.begin(0.0)
    timeline.job_running(2.0)
    timeline.due(5.25)
    timeline.due(9.5)
    assert [(s.name, s.start, s.end) for s in timeline.spans] == [
        ("deploy", 0.0, 2.0),
        ("warmUp", 2.0, 5.25),
        ("baseline", 5.25, 9.5),
    ]
    assert timeline.remaining(10.0) == 11.0


def test_misuse_is_an_error():
    """The constructor and the first wrong call raise."""
    with pytest.raises(ValueError, match="warm_up_s is negative: -1"):
        Timeline(Windows(warm_up_s=-1, baseline_s=1, observation_s=1, drain_s=1), (), control=False)
    with pytest.raises(ValueError, match="same name"):
        schedule(pause("a", 0, 1), pause("a", 1, 1))
    timeline = schedule()
    with pytest.raises(ValueError, match="cannot start running"):
        timeline.job_running(0.0)
    timeline.begin(0.0)
    with pytest.raises(ValueError, match="begun"):
        timeline.begin(0.0)


@given(
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 30)), max_size=6),
    st.lists(st.floats(0.01, 7), min_size=1, max_size=60),
)
def test_every_injection_is_healed_whenever_one_looks(faults: list[tuple[float, float]], steps: list[float]):
    """Exactly once, after it, and before the drain."""
    timeline = schedule(*(pause(f"f{i}", at, length) for i, (at, length) in enumerate(faults)))
    actions = timeline.begin(0.0)
    actions += timeline.job_running(0.0)
    now = 0.0
    for step in steps:
        now += step
        actions += timeline.due(now)
    actions += timeline.due(1e9)
    kinds = [(a.kind, a.name) for a in actions]
    for index in range(len(faults)):
        name = f"f{index}"
        assert kinds.count((INJECT, name)) == kinds.count((HEAL, name)) == 1
        assert kinds.index((INJECT, name)) < kinds.index((HEAL, name)) < kinds.index((ENTER, "drain"))


@pytest.mark.parametrize(
    ("faults", "observation_s", "window_s", "after_s"),
    [
        ((), 12.0, 0.0, 12.0),
        ((pause("a", 1.0, 8.0),), 12.0, 9.0, 12.0),
        ((pause("a", 1.0, 8.0), pause("b", 4.0, 2.0)), 5.0, 9.0, 9.0),
        ((pause("a", 0.0, 30.0, before_submit=True), pause("b", 4.0, 2.0)), 5.0, 6.0, 6.0),
    ],
)
def test_the_length_of_a_trial_is_known_before_it(
    faults: tuple[Fault, ...], observation_s: float, window_s: float, after_s: float
):
    """Warm-up and baseline take 7 s. A fault that lasts longer than the observation prolongs it, unless it begins before the job."""
    timeline = schedule(*faults, observation_s=observation_s)
    assert (timeline.fault_window_s, timeline.after_zero_s, timeline.planned_s) == (
        window_s,
        after_s,
        7.0 + after_s,
    )
    assert timeline.remaining(0.0) is None
    timeline.begin(0.0)
    timeline.job_running(2.0)
    assert [timeline.remaining(now) for now in (2.0, 3.5, 99.0)] == [7.0 + after_s, 5.5 + after_s, 0.0]
