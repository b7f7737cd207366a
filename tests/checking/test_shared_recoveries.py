"""Faults that overlap: each has windows of its own, also in a recovery that several of them share."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking import answer, rounds
from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.common import Window
from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.faults import FaultEffect
from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.recovery import milestones, no_window
from testbed_runtime.checking.rounds import Outage, RoundSpan
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.judgement.judge import judge
from testbed_runtime.core.judgement.metrics import NO_FAULT, NO_OUTAGE, NO_SUCH_PHASE
from testbed_runtime.core.judgement.recovery import Price, Recovery, SharedFault, TrialRecovery
from testbed_runtime.core.judgement.verdict import Judged, TrialFacts, Verdict
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.history.schema import Trial
from testbed_runtime.report.answer import headline

Spans = dict[str, tuple[float, float] | None]


def shared(begun: float, ended: float | None) -> SharedFault:
    """A second fault, in seconds."""
    return SharedFault(
        fault="second",
        effect_ns=round(begun * NS),
        ended_ns=None if ended is None else round(ended * NS),
    )


def spans(other: SharedFault) -> Spans:
    """The windows of a fault that shares a recovery from 7 to 12 s, with records again at 9 s, of a trial of 20 s."""
    one = Recovery(fault="first", effect_ns=7 * NS, end_ns=12 * NS, downtime_s=2.0, shared=(other,))
    found = milestones(TrialRecovery(trial="t", recoveries=(one,)), 20 * NS)
    return {name: window and (window.start / NS, window.end / NS) for name, window in found}


@pytest.mark.parametrize(
    ("begun", "ended", "outage", "catch_up"),
    [
        (8, 8.5, (8, 9), (9, 12)),
        (8, None, (8, 9), (9, 12)),
        (9, 11, (9, 11), (11, 12)),
        (10, 11, (10, 11), (11, 12)),
        (10, 15, (10, 12), None),
        (10, None, (10, 12), None),
        (12, 15, None, None),
    ],
)
def test_a_shared_recovery_has_the_windows_of_each_fault(
    begun: float, ended: float | None, outage: tuple[float, float], catch_up: tuple[float, float] | None
):
    """Each begins with its own effect, and all end with the recovery. A fault after the first new records lasts by itself."""
    found = spans(shared(begun, ended))
    assert (found["outage/second"], found["catch-up/second"]) == (outage, catch_up)
    assert found["recovered/second"] == found["recovered/first"] == found["recovered"] == (12, 20)
    assert found["outage/first"] == found["outage"] == (7, 9)


def test_a_milestone_without_a_window_says_why():
    """There was no fault, or it began no outage, or the recovery ended before the phase."""
    one = Recovery(fault="first", effect_ns=7 * NS, end_ns=12 * NS, shared=(shared(10, None),))
    idle = Recovery(fault="idle", effect_ns=15 * NS, end_ns=15 * NS)
    found = TrialRecovery(trial="t", recoveries=(one, idle))
    names = dict(milestones(found, 20 * NS, ["never"]))
    assert no_window(TrialRecovery(trial="t"), "outage", ["never"]) == NO_OUTAGE
    assert no_window(TrialRecovery(trial="t", recoveries=(idle,)), "outage", []) == NO_OUTAGE
    short = Recovery(fault="short", effect_ns=7 * NS, end_ns=7 * NS + NS // 2)
    assert no_window(TrialRecovery(trial="t", recoveries=(short,)), "catch-up", ["short"]) == NO_SUCH_PHASE
    assert names["outage/never"] is None
    assert no_window(found, "outage/never", ["never"]) == NO_OUTAGE
    assert no_window(found, "outage/idle", ["idle"]) == NO_OUTAGE
    assert no_window(found, "catch-up/second", ["second"]) == NO_SUCH_PHASE
    assert no_window(found, "catch-up", ["first"]) == NO_SUCH_PHASE
    assert no_window(TrialRecovery(trial="t"), "outage", []) == NO_FAULT


def test_several_recoveries_of_one_fault_have_the_windows_of_the_worst():
    """One that did not end, else the longest. The plain names are there too."""
    long, short = (Recovery(fault="f", effect_ns=a * NS, end_ns=b * NS) for a, b in ((2, 6), (8, 9)))
    for recoveries, outage in (
        ((long, short), (2, 6)),
        ((short, long), (2, 6)),
        ((long, replace(short, recovered=False)), (8, 9)),
    ):
        found = dict(milestones(TrialRecovery(trial="t", recoveries=recoveries), 20 * NS))
        assert found["outage/f"] == found["outage"] == Window(outage[0] * NS, outage[1] * NS)


def with_pause(history: Any, at: float) -> tuple[Trial, TrialEntry]:
    """The good trial, whose TaskManager is killed at 8 s, with a pause that takes effect at `at` and lasts for 500 ms."""
    record = history.record()
    pause = {"fault": "pause", "kind": "process.pause", "backend": "supervisor", "targets": ["tm-0"]}
    for t, state in ((at, "injected"), (at + 0.1, "verified"), (at + 0.5, "ended"), (at + 0.6, "clean")):
        record.add("supervisor", "faults", t, state=state, **pause)
    entry = history.entry()
    planned = replace(entry.faults[0], name="pause", kind="process.pause")
    return record.trial(), replace(entry, faults=(*entry.faults, planned))


def test_a_fault_within_the_recovery_of_another_has_an_outage_of_its_own(history: Any):
    """The kill takes effect at 8 s, records arrive again at 11.1 s. The pause at 9 s shares that recovery."""
    trial, entry = with_pause(history, 9.0)
    (found,) = trial_recovery(trial, entry).recoveries
    assert found.faults == ("kill", "pause")
    assert headline(found).startswith("down for 3.10 s after `kill` and `pause`, ")
    assert TrialRecovery.from_json(TrialRecovery(trial="t", recoveries=(found,)).to_json()).recoveries == (found,)  # fmt: skip
    windows = dict(milestones(TrialRecovery(trial="t", recoveries=(found,)), history.at(24)))
    assert windows["outage/pause"] == Window(history.at(9), history.at(11.1))
    rows = {(r.metric, r.phase): r for r in trial_metrics(trial, entry) if r.quantile is None}
    assert rows["lag.max", "outage/pause"].value == pytest.approx(3.0, abs=0.15)
    assert rows["lag.max", "recovered/pause"].value < 0.2


def test_a_fault_after_the_recovery_of_another_shares_nothing(history: Any):
    """It has its own recovery."""
    found = trial_recovery(*with_pause(history, 20.0)).recoveries
    assert [r.faults for r in found] == [("kill",), ("pause",)]


def judged_items(trial: Trial, entry: dict[str, Any], asked: Expectation) -> tuple[Judged, ...]:
    """Return the judgements of one expectation, and about what is always judged."""
    facts, rows = TrialFacts.from_manifest(entry), trial_metrics(trial, entry)
    return judge(trials=[facts], expectations={"main": [asked]}, rows=rows).judged


@pytest.mark.parametrize(
    ("phase", "verdict", "reason"),
    [
        ("outage/pause", Verdict.PASS, ""),
        ("outage/kill", Verdict.PASS, ""),
        ("outage/absent", Verdict.INCONCLUSIVE, NO_OUTAGE),
    ],
)
def test_an_expectation_on_the_outage_of_one_of_two_faults_is_judged(
    history: Any, phase: str, verdict: Verdict, reason: str
):
    """Without a value, the verdict says why."""
    trial, entry = with_pause(history, 9.0)
    asked = Expectation.from_item({"metric": "lag.max", "phase": phase, "max": "5 s"})
    judged = judged_items(trial, entry, asked)
    (one,) = (j for j in judged if j.phase == phase)
    assert (one.verdict, one.reason) == (verdict, reason)
    assert bool(one.explanation) == bool(reason)


def test_the_only_fault_may_be_named_in_a_phase(history: Any):
    """`outage/kill` is `outage` then."""
    trial, entry = history.good(), history.entry()
    asked = Expectation.from_item({"metric": "lag.max", "phase": "outage/kill", "max": "5 s"})
    judged = judged_items(trial, entry, asked)
    assert [j.verdict for j in judged if j.phase] == [Verdict.PASS]


def effect(name: str, begun: float, ended: float) -> FaultEffect:
    return FaultEffect(
        fault=name, kind="network.latency", verified=True, injected_ns=round(begun * NS),
        ended_ns=round(ended * NS), residue=False, targets='["tm-0"]', text="",
    )  # fmt: skip


@pytest.mark.parametrize(("ended", "shares"), [(10, True), (13, False), (2.5, False)])
def test_a_fault_that_lasts_owns_what_the_job_is_behind_until_its_end(ended: float, shares: bool):
    """It cost nothing before another one began. It shares that one's outage, unless the job recovered while it lasted."""
    first, then = effect("lasting", 2, ended), effect("then", 3, 5)
    idle = Outage(first, 2 * NS, 2 * NS, (RoundSpan(2 * NS, 2 * NS),), True, 2 * NS)
    later = Outage(then, 3 * NS, 11 * NS, (RoundSpan(3 * NS, 11 * NS),), True, 11 * NS)
    found = rounds._absorb_idle([idle, later])
    assert [o.fault and o.fault.fault for o in found] == (["then"] if shares else ["lasting", "then"])
    assert [e.fault for e in found[-1].earlier] == (["then", "lasting"] if shares else [])
    assert [e.fault for e in rounds._shared(found, [first, then])[-1].shared] == (
        ["lasting"] if shares else []
    )


@pytest.mark.parametrize(
    ("price", "shares"),
    [
        (Price(text="a JobManager, during the fault `map`", seconds=4, kind="slot", fault="map"), True),
        (Price(text="spare capacity of `map`", seconds=4, kind="catch-up"), False),
    ],
)
def test_a_fault_prolongs_a_recovery_whose_price_blames_it(price: Price, shares: bool):
    """A vertex may have the same name as a fault."""
    idle = Recovery(fault="map", effect_ns=2 * NS, end_ns=2 * NS)
    later = Recovery(fault="then", effect_ns=5 * NS, end_ns=9 * NS, prices=(price,))
    found = answer._with_prolonging_faults([idle, later], [effect("map", 2, 10), effect("then", 5, 6)])
    assert [r.faults for r in found] == ([("then", "map")] if shares else [("map",), ("then",)])


def test_a_recovery_from_a_fault_that_cost_an_outage_before_is_another_one():
    """It is the main fault of the first recovery, or shared it. A fault that had cost nothing costs its first outage."""
    shared = (SharedFault(fault="b", effect_ns=3 * NS),)
    spans = {"c": (0, 0), "a": (2, 4), "b": (5, 6)}
    first, second, third = (
        Recovery(fault=name, effect_ns=begun * NS, end_ns=ended * NS)
        for name, (begun, ended) in spans.items()
    )
    found = [
        first,
        replace(second, shared=shared),
        third,
        replace(second, fault="a"),
        replace(third, fault="c"),
    ]
    assert [r.again for r in answer._marked_again(found)] == [False, False, True, True, False]


@pytest.mark.parametrize(("noticed", "begins"), [(3.2499, [3, 8]), (3.25, [3, 3.25, 8]), (5, [3, 5, 8])])
def test_a_failure_of_a_start_that_is_noticed_at_once_begins_the_first_round(
    noticed: float, begins: list[float]
):
    """The fault took effect at 3 s. Of the deployment that it ended, nothing is left then."""
    failed = [Cause(round(t * NS), "f", "E", "Task", "tm-1-1") for t in (noticed, 8)]
    spans = (
        RoundSpan(0, failed[0].t_ns, None, failed[0]),
        RoundSpan(failed[0].t_ns, 8 * NS, failed[0], failed[1]),
        RoundSpan(8 * NS, 9 * NS, failed[1], running=9 * NS),
    )
    found = rounds._since(Outage(effect("kill", 3, 4), 0, 9 * NS, spans, True, first=True), 3 * NS)
    assert [round(r.start / NS, 4) for r in found.rounds] == begins
    assert found.effect == 3 * NS
