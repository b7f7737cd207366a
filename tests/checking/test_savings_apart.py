"""Savings that depend on how the job recovers from each of several faults without the waits for an option."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.apart import Hit, awaited_by, until_each_has_recovered
from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.lasting import capped, with_delays_avoided, with_more, with_slack
from testbed_runtime.core.judgement.recovery import Round
from testbed_runtime.core.waits import Outcome, Wait
from tests.checking.test_apart import (
    DELAY,
    NOTICED,
    ONE,
    REPLACED,
    TIMEOUT,
    WHOLE,
    delayed,
    hit,
    lost,
    saved,
    segments_of,
)
from tests.checking.test_lasting import part, round_of
from tests.checking.test_rules import NS, effect, waited
from tests.manifests import trial_entry


def savings_of(hits: list[Hit], waits: list[Wait], causes: list[Cause], *rounds: Round) -> list[Any]:
    """The seconds of each segment that can be saved, and the words for its limit. None without a limit."""
    found = until_each_has_recovered(rounds, hits, causes, waits, [], awaited=lambda _: ())
    return [(s.slack_ns / NS, s.more or s.next) if s.slack_ns >= 0 else None for s in segments_of(found)]


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        (5, (11 - 2 - 2, "runs again before the fault `two`")),  # noticed after 2 s, each
        (1.5, (0, "slots")),  # the job still waits for the loss of the first one
    ],
)
def test_a_delay_saves_other_waits_too_if_the_job_then_runs_between_two_faults(begun: float, expected: Any):
    """The delay took 4 s. Another wait was in progress meanwhile, and lasts for 7 s more."""
    own = part(0, 4, "restart-delay", option=DELAY, slack_ns=0, next="slots")
    hits = [ONE, hit("two", "process.kill", begun, 6, "tm-2")]
    waits = [NOTICED, lost("tm-2", begun, begun + 2), delayed(4)]
    assert savings_of(hits, waits, [], round_of(own, part(4, 11, option=""))) == [expected, None]


@pytest.mark.parametrize(("begun", "expected"), [(4, (8, "runs again before the fault `two`")), (5, None)])
def test_a_wait_lets_the_job_run_before_a_fault_only_if_it_began_before_it(begun: float, expected: Any):
    """The second loss is at 4.5 s. Each is noticed after 2 s, and the recovery takes 12 s."""
    hits = [ONE, hit("two", "process.kill", 4.5, 6, "tm-2")]
    own = part(begun, begun + 2, "first-record", option="o")
    parts = part(0, begun, option=""), own, part(begun + 2, 12, option="")
    assert savings_of(hits, [NOTICED, lost("tm-2", 4.5, 6.5)], [], round_of(*parts))[1] == expected


@pytest.mark.parametrize(("start", "expected"), [(1, (6, "restarts fewer times")), (3, None)])
def test_only_a_wait_before_the_last_restart_saves_restarts_in_vain(start: float, expected: Any):
    """The first restart, at 3 s, deploys tasks to a TaskManager that is dead."""
    failed = "x.RecipientUnreachableException"
    causes = [Cause(0, "", "a", "Task", "tm-1-1"), Cause(3 * NS, "", failed, "JobMaster", "tm-1-1")]
    own = part(start, start + 1, "first-record", option="o")
    first, last = [part(0, 3, option="")], [part(3, 8, option="")]
    if start < 3:
        first = [part(0, start, option=""), own, part(start + 1, 3, option="")]
    else:
        last = [own, part(start + 1, 8, option="")]
    found = savings_of([ONE], [NOTICED], causes, round_of(*first), round_of(*last))
    assert next((s for s in found if s is not None), None) == expected


@pytest.mark.parametrize(
    ("option", "unreachable", "expected"),
    [
        (REPLACED, True, None),
        (TIMEOUT, True, None),
        ("other", True, (0, "slots")),
        (REPLACED, False, (0, "slots")),
    ],
)
def test_a_restart_in_vain_is_saved_if_the_loss_is_known_before(
    option: str, unreachable: bool, expected: Any
):
    """The second process is killed during the delay after the first loss, which takes 3 s. The first restart deploys tasks to it."""
    failed = f"x.{'RecipientUnreachable' if unreachable else 'Timeout'}Exception"
    causes = [Cause(0, "", "a", "Task", "tm-1-1"), Cause(3 * NS, "", failed, "JobMaster", "tm-2-1")]
    hits = [ONE, hit("two", "process.kill", 2.5, 6, "tm-2")]
    waits = [replace(NOTICED, end_ns=NS), lost("tm-2", 2.5, 3.5), delayed(3)]
    own = part(0, 3, "replacement", option=option, slack_ns=0, next="slots")
    again = part(3, 6, "restart-delay", option=DELAY)
    assert savings_of(hits, waits, causes, round_of(own), round_of(again))[0] == expected


def test_a_pause_begins_a_delay_when_it_is_noticed():
    """A kill closes connections at once. The delay of 2 s belongs to another option."""
    waits = [replace(lost("tm-1", 0, 3), option="o"), delayed(2)]
    assert saved("other", [ONE], waits) == 11 - (3 + 1)
    assert saved("other", [hit("one", "process.pause", 0, 9, "tm-1")], waits) == 11 - (3 + 2 + 1)


@pytest.mark.parametrize(
    ("plane", "noticed", "expected"),
    [("both", True, 3), ("both", False, 9), ("rpc", True, 3), ("rpc", False, 0), ("data", True, 9)],
)
def test_a_cut_costs_what_shows_it_or_all_of_its_time(plane: str, noticed: bool, expected: float):
    """Heartbeats that are missed for 2 s end the wait for it, and slots take 1 s. Nothing is restarted without them."""
    cut = effect("network.partition", (0, 9), fault="one", plane=plane)
    waits = [NOTICED] if noticed else []
    assert saved(DELAY, [Hit(cut, WHOLE)], waits) == min(10, 11 - expected)


@pytest.mark.parametrize(("second", "lacks"), [(4, 4), (5, None)])
def test_a_job_lacks_a_taskmanager_from_the_loss_on_that_is_one_too_many(second: float, lacks: float | None):
    """It needs the slots of two of three. The replacement of the first one comes at 5 s."""
    entry = trial_entry(
        {"job": {"vertices": [{"parallelism": 2}], "taskManagers": {"replicas": 3, "slots": 1}}}
    )
    coming = waited("replacement", 1, 5, what="tm-1", option=REPLACED, outcome=Outcome.FIRED)
    found = awaited_by(entry, {"tm-1": NS, "tm-2": second * NS}, [coming], (0, 10 * NS))
    assert found == ({} if lacks is None else {"tm-1": lacks * NS})


def test_a_wait_with_a_limit_does_not_save_more_than_itself():
    """Before the limit was known, it was to save 4 s in addition to its 5 s."""
    found = with_slack(
        with_more(part(1, 6, "restart-delay", option=DELAY), 4 * NS, "restarts fewer times"), 7 * NS, "slots"
    )
    assert (found.slack_ns, found.next, found.more) == (5 * NS, "slots", "")


@pytest.mark.parametrize(
    ("kind", "begun", "slack_s", "expected"),
    [
        ("rpc.delay", 2, -1 / NS, (5 + 3, "runs again before the fault `f`")),
        ("registration.delay", 2, -1 / NS, (5 + 3, "runs again before the fault `f`")),
        ("rpc.delay", 1, -1 / NS, (-1 / NS, "")),  # it would have delayed the deployment anyway
        ("network.partition", 2, -1 / NS, (-1 / NS, "")),  # it holds up the job that runs
        ("rpc.delay", 2, 4.5, (4.5 + 3, "runs again before the fault `f`")),
        ("rpc.delay", 5.5, 2, (2 + 3, "")),  # no more than itself
        ("rpc.delay", 2, 4, (4, "")),
        ("network.partition", 2, 4.5, (5, "")),
    ],
)
def test_a_wait_also_saves_what_a_later_fault_delays(kind: str, begun: float, slack_s: float, expected: Any):
    """It is from 1 to 6 s, and can be as short as 0 s, or as long as another wait. A deployment that the fault delays follows for 3 s."""
    own = part(
        1, 6, "restart-delay", option=DELAY, slack_ns=round(slack_s * NS), next="x" if slack_s > 0 else ""
    )
    rest = part(6, 9, "deployment", fault="f", option="")
    (found,) = with_delays_avoided([round_of(own, rest)], [effect(kind, (begun, 9))])
    saved = capped(found.segments[0])
    assert (saved.slack_ns / NS, saved.more) == expected
