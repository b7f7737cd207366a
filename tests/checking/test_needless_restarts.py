"""Rounds that began only because something came too late for the round before."""

from __future__ import annotations

import pytest

from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.lasting import needless_restarts, share_slack
from tests.checking.test_lasting import limited, part, rounds_of
from tests.checking.test_rules import NS, waited

UNREACHABLE = "RecipientUnreachableException"


@pytest.mark.parametrize(("needless", "expected"), [(True, 1.0), (False, 0.0001)])
def test_the_whole_delay_of_a_needless_restart_is_saved_with_the_replacement_that_came_when_it_began(
    needless: bool, expected: float
):
    """TaskManagers are replaced after 2 s, and the tasks were deployed to a dead one after 1 s and again after 2 s. If they had been replaced
    within 1 s, the first restart would have succeeded."""
    first, second = part(0, 1, slack_ns=NS, next="d"), part(1, 1.9999)
    delay = part(2, 4, "restart-delay", text="d")
    rounds = rounds_of((first,), (second, part(1.9999, 2, "slot", text="s")), (delay,))
    found = share_slack(rounds, (False, False, needless))
    assert found[0].segments[0].slack_ns == round(expected * NS)
    assert found[1].segments[0].slack_ns == (2 * NS if needless else -1)


def test_a_needless_restart_does_not_limit_how_much_earlier_a_loss_can_be_noticed():
    """It began because tasks were deployed to a TaskManager whose loss was not noticed yet."""
    rounds = rounds_of((part(0, 2, "checkpoint"),), (limited(2, 5, 1, kind="fencing"), limited(5, 6, 0)))
    for needless, slacks in ((True, [-1, 0]), (False, [NS, 0])):
        found = share_slack(rounds, (False, needless))[1].segments
        assert [s.slack_ns for s in found] == slacks


@pytest.mark.parametrize(
    ("cause", "replaced", "needless"),
    [
        (("slot", "", ""), (9, 12), True),
        (("connection", UNREACHABLE, "tm-0-1"), (9, 12), True),
        (("heartbeat", "JobMasterException", "tm-0-1"), (0, 3), True),
        (("heartbeat", "JobMasterException", "tm-1-1"), (0, 3), False),
        (("heartbeat", "JobMasterException", "tm-0-1"), (1.5, 3), False),
        (("heartbeat", "JobMasterException", "tm-0-1"), (0, 0.9), False),  # it had been replaced
    ],
)
def test_a_restart_is_needless_if_something_only_came_too_late_for_the_one_before(
    cause: tuple[str, str, str], replaced: tuple[float, float], needless: bool
):
    """The job failed after 1 s and after 2 s."""
    kind, name, taskmanager = cause
    causes = [
        Cause(NS, "", "RemoteTransportException", "Task", "tm-0-1", kind="connection"),
        Cause(2 * NS, "", name, "JobMaster", taskmanager, kind=kind),
    ]
    coming = waited("replacement", *replaced, what="tm-0")
    assert needless_restarts(causes, [coming]) == [False, needless]
    assert needless_restarts([None, causes[1]], [coming]) == [False, kind == "slot"]
