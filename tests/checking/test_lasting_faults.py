"""Outages of faults that outlast a failover, and of jobs that fail while they catch up."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.recovery import check_recovery, milestones
from testbed_runtime.checking.rounds import outages_of
from testbed_runtime.core.judgement.recovery import Recovery, SharedFault, TrialRecovery
from testbed_runtime.core.values import NS
from tests.checking.test_metric_rows import outage
from tests.checking.test_outages import END, Spans, at, behind, brief, fault, named, record, seconds


def test_a_job_that_fails_while_it_catches_up_had_run(history: Any):
    """The last round has its first records at 11 s, and ends with the job at 12 s."""
    built = record(history, {9.5: "x", 12: "end"}, (0.5, 11))
    (found,) = outages_of(
        built.trial(), [fault("a", 8, 9, "process.kill", "tm-1")], behind(((8, 12),)), at(END)
    )
    assert [r.running and seconds(r.running) for r in found.rounds] == [11]
    assert (found.recovered, found.running) == (False, None)


@pytest.mark.parametrize(
    ("kind", "late", "expected"),
    [
        ("frames.withhold-credit", ((8, 12), (13, 18)), [("a", 8, 12, True), ("b", 13, 18, True)]),
        ("frames.withhold-credit", ((8, 12), (13, 13.9)), [("a", 8, 12, True)]),  # too short
        ("frames.withhold-credit", ((8, 12), (17.5, 22)), [("a", 8, 12, True)]),  # after the fault
        ("frames.withhold-credit", ((8, 12), (13, END)), [("a", 8, 12, True), ("b", 13, END, False)]),
        ("store.slow", ((8, 12), (13, 18)), [("a", 8, 12, True)]),
    ],
)  # fmt: skip
def test_a_fault_on_the_exchange_may_hold_the_job_up_once_more_after_a_failover(
    history: Any, kind: str, late: Spans, expected: list[Any]
):
    """It took effect in the outage of a kill at 8 s, and lasts until 17.5 s. The job runs since 11 s."""
    effects = [fault("a", 8, 9, "process.kill", "tm-1"), fault("b", 9, 17.5, kind)]
    built = record(history, {}, (0.5, 11))
    built.event("failover.started", "0", 9.5, text="x", data={"taskmanager": "tm-1-1"})
    found = outages_of(built.trial(), effects, behind(late), at(END))
    assert [brief(o) for o in found] == expected
    assert named(found[0].shared) == "b"


HELD = outage("held", 13, 20, "", again=True)
KILLED = outage("kill", 8, 12, "x", shared=(SharedFault(fault="held", effect_ns=9 * NS),))


@pytest.mark.parametrize(
    ("recoveries", "total"),
    [
        ((KILLED, HELD), (7.0, "held")),
        ((KILLED, outage("held", 13, 16, "", again=True)), (4.0, "kill")),
        ((KILLED, outage("held", 13, 20, "")), (4.0, "kill")),  # it cost nothing before: an outage of its own
        ((KILLED, outage("other", 13, 20, "", again=True)), (4.0, "kill")),
        ((outage("kill", 8, 12, "x", recovered=False), HELD), (4.0, "kill")),
        ((KILLED, HELD, outage("later", 30, 34.1, "x")), (7.0, "held")),  # the worst failover is another one
    ],
)
def test_the_total_is_that_of_the_longer_outage_if_a_fault_holds_the_job_up_again(
    history: Any, recoveries: tuple[Recovery, ...], total: tuple[float, str]
):
    """The other rows stay those of the failover."""
    found = TrialRecovery(trial="t", recoveries=recoveries)
    rows = {p.name: p for p in check_recovery(history.good(), history.entry(), found)}
    assert (rows["total"].seconds, rows["total"].text) == total
    assert rows["detect"].text == "x"


@pytest.mark.parametrize(("until", "expected"), [(20, (13, 20)), (14, (9, 12))])
def test_the_windows_of_a_fault_are_those_of_its_longest_outage(until: float, expected: tuple[float, float]):
    """It took effect at 9 s in an outage that ended at 12 s, and held the job up again from 13 s on."""
    again = outage("held", 13, until, "", again=True)
    windows = dict(milestones(TrialRecovery(trial="t", recoveries=(KILLED, again)), END * NS))
    found = windows["outage/held"]
    assert found is not None
    assert (found.start / NS, found.end / NS) == expected
