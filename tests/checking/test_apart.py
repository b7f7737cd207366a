"""Limits of what a shorter wait saves if another fault begins during it: the job may run again before that, and restarts once more."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.apart import (
    Hit,
    awaited_by,
    downtime_s,
    hits_of,
    lost_in,
    ran_before,
    stalled_taskmanager,
    until_each_has_recovered,
)
from testbed_runtime.checking.common import JobShape
from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.rounds import Outage, RoundSpan
from testbed_runtime.core.judgement.recovery import Round, Segment
from testbed_runtime.core.waits import EVERYTHING, JOBMASTER_NAME, Outcome, Wait
from testbed_runtime.history.waits import INT64_MAX
from tests.checking.test_lasting import part, round_of
from tests.checking.test_rules import NS, effect, waited
from tests.manifests import trial_entry

DELAY, TIMEOUT, REPLACED = "restart-strategy.fixed-delay.delay", "heartbeat.timeout", "replaceLost"
WHOLE = frozenset({"map"})


def hit(
    name: str, kind: str, begun: float, ended: float, target: str, vertices: frozenset[str] = WHOLE
) -> Hit:
    return Hit(effect(kind, (begun, ended), fault=name, targets=f'["{target}"]'), vertices)


def lost(target: str, begun: float, end: float, **more: Any) -> Wait:
    found = waited("heartbeat", begun, end, what=f"{target}-1", outcome=Outcome.EXPIRED)
    return replace(found, option=TIMEOUT, **more)


def delayed(end: float = 10) -> Wait:
    return waited("restart-delay", 0, end, option=DELAY, outcome=Outcome.FIRED)


ONE = hit("one", "process.kill", 0, 1, "tm-1")
NOTICED = lost("tm-1", 0, 2)
SECOND = lost("tm-2", 5, 7)
OTHER = frozenset({"other"})


def saved(
    option: str, hits: list[Hit], waits: list[Wait], *, awaited: tuple[str, ...] = (), last: str = ""
) -> float:
    """A wait for this option from 0 to 10 s, and 1 s for slots: what can be saved, in seconds, before the recovery from the `last` fault."""
    own, slots = part(0, 10, "restart-delay", option=option), part(10, 11, "slot", option="")
    (found,) = until_each_has_recovered(
        [round_of(own, slots)], hits, [], waits, [], awaited=lambda _: awaited
    )
    first, second = found.segments
    assert second == slots
    last = last or hits[-1].fault.fault
    assert first.next == ("" if first.slack_ns < 0 else f"its recovery from the fault `{last}`")
    return 10 if first.slack_ns < 0 else first.slack_ns / NS


@pytest.mark.parametrize(
    ("second", "waits", "expected"),
    [
        (hit("two", "process.kill", 5, 6, "tm-2"), [NOTICED, SECOND], 11 - (2 + 1) - (2 + 1)),
        (hit("two", "process.kill", 2.5, 6, "tm-2"), [NOTICED, lost("tm-2", 2, 4.5)], 11 - (4.5 + 1)),  # one after the other
        (hit("two", "process.pause", 5, 8, "tm-2"), [NOTICED], 11 - (2 + 1) - 3),
        (hit("two", "network.partition", 5, 9, "tm-2"), [NOTICED], 11 - (2 + 1) - 4),
        (replace(hit("two", "network.partition", 5, 9, "tm-2"), until_ns=7 * NS), [NOTICED], 11 - (2 + 1) - 2),
        (hit("two", "process.pause", 9, 20, "tm-2"), [NOTICED], 11 - (2 + 1) - 2),  # the recovery ends before the pause
        (hit("two", "process.pause", 5, 9, "tm-2"), [NOTICED, SECOND], 11 - (2 + 1) - (2 + 1)),
        (hit("two", "jobmanager.kill", 5, 8, "jobmanager"), [NOTICED], 11 - (2 + 1) - (3 + 1)),
        (hit("two", "process.kill", 5, 6, "tm-2"), [NOTICED, replace(SECOND, option=DELAY)], 11 - (2 + 1) - 1),
        (hit("two", "process.kill", 5, 6, "tm-2"), [NOTICED, lost("tm-3", 5, 7)], 11 - (2 + 1) - 1),
        (hit("two", "process.kill", 5, 6, "tm-2"), [NOTICED, lost("tm-2", 0, 5)], 11 - (2 + 1) - 1),  # of a process before
        (hit("two", "process.kill", 5, 6, "tm-2"), [NOTICED, SECOND, lost("tm-2", 5, 9)], 11 - (2 + 1) - (2 + 1)),
        (hit("two", "process.kill", 5, 6, "tm-2"), [NOTICED, SECOND, lost("tm-2", 5, 12)], 11 - (2 + 1) - (2 + 1)),
        (hit("two", "process.kill", 5, 6, "tm-2"), [NOTICED, replace(SECOND, outcome=Outcome.COMPLETED)], 11 - (2 + 1) - 1),
    ],
)  # fmt: skip
def test_a_delay_saves_what_each_fault_costs_without_it(second: Hit, waits: list[Wait], expected: float):
    """The first process is killed at 0 s, which is noticed after 2 s. The job has slots 1 s after each delay."""
    assert saved(DELAY, [ONE, second], [*waits, delayed()]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("begun", "vertices", "expected"),
    [
        (2, WHOLE, 11 - 3),
        (2, WHOLE | OTHER, 11 - 3),
        (2, OTHER, 11 - (2 + 2 + 1)),
        (3, WHOLE, 11 - 3 - 1),  # it has just recovered: with a slightly higher value, it still waits
        (3, OTHER, 11 - 3 - 3),
    ],
)
def test_a_timeout_leaves_each_region_its_delay(begun: float, vertices: frozenset[str], expected: float):
    """The delay of 2 s belongs to another option. A fault on a part of the job that waits already begins none."""
    two = hit("two", "process.kill", begun, 6, "tm-2", vertices)
    waits = [replace(NOTICED, option="o"), lost("tm-2", begun, begun + 9), delayed(2)]
    last = "one" if begun == 2 and vertices >= WHOLE else "two"  # it ends no later
    assert saved(TIMEOUT, [ONE, two], waits, last=last) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("delays", "expected"),
    [
        ([delayed(4)], 11 - (4 + 1)),
        ([delayed(4), replace(delayed(3), start_ns=NS)], 11 - (2 + 1)),
        ([replace(delayed(4), outcome=Outcome.CANCELLED)], 10),
    ],
)
def test_only_the_shortest_delay_that_was_over_counts(delays: list[Wait], expected: float):
    """One that a failure cut short is no delay that the job would have had to wait for."""
    assert saved(TIMEOUT, [ONE], [NOTICED, *delays]) == expected


@pytest.mark.parametrize("since", [-1, 11])
def test_a_delay_of_another_recovery_does_not_count(since: int):
    """It began before this one or after its end."""
    other = waited("restart-delay", since, since + 4, option=DELAY, outcome=Outcome.FIRED)
    assert saved(TIMEOUT, [ONE], [NOTICED, other]) == 10


@pytest.mark.parametrize(("option", "expected"), [(TIMEOUT, 11 - 3), (DELAY, 11 - 3 - 3)])
def test_a_pause_that_a_lower_timeout_would_end_costs_it_nothing(option: str, expected: float):
    """The loss of the first process was noticed by another option."""
    waits = [replace(NOTICED, option="o")]
    assert saved(option, [ONE, hit("two", "process.pause", 5, 8, "tm-2")], waits) == expected


@pytest.mark.parametrize(
    ("option", "awaited", "since", "expected"),
    [
        (DELAY, ("tm-1",), 0, 11 - (6 + 1)),
        (DELAY, ("tm-2",), 0, 11 - (2 + 1)),
        (DELAY, (), 0, 11 - (2 + 1)),
        (DELAY, ("tm-1",), -1, 11 - (2 + 1)),  # of a process before
        (REPLACED, ("tm-1",), 0, 11 - 1),
    ],
)
def test_a_replacement_is_waited_for_without_spare_slots(
    option: str, awaited: tuple[str, ...], since: float, expected: float
):
    """It comes 6 s after the loss. If its own delay is shorter, it shows the loss."""
    coming = waited("replacement", since, 6, what="tm-1-2", option=REPLACED, outcome=Outcome.FIRED)
    later = replace(coming, end_ns=9 * NS)
    assert saved(option, [ONE], [NOTICED, coming, later], awaited=awaited) == expected


@pytest.mark.parametrize(
    ("came", "gone", "expected"),
    [
        ({"tm-1": 5, "tm-2": 6}, {"tm-1", "tm-2"}, {"tm-1"}),
        ({"tm-1": 6, "tm-2": 5}, {"tm-1", "tm-2"}, {"tm-2"}),
        ({"tm-1": 5}, {"tm-1"}, set()),  # one was spare
        ({"tm-0": 4, "tm-1": 4, "tm-2": 4, "tm-3": 9}, {"tm-3"}, {"tm-0", "tm-1", "tm-2"}),  # the JobManager was new to all
    ],
)  # fmt: skip
def test_a_job_waits_for_the_first_taskmanagers_that_complete_its_slots(
    came: dict[str, float], gone: set[str], expected: set[str]
):
    """It needs the slots of three of four."""
    entry = trial_entry(
        {"job": {"vertices": [{"parallelism": 3}], "taskManagers": {"replicas": 4, "slots": 1}}}
    )
    waits = [
        waited("registration", 1, end, what="ResourceManager", who=f"{tm}-2") for tm, end in came.items()
    ]
    waits += [
        waited("registration", 1, 2, what=JOBMASTER_NAME, who="tm-9-1"),
        waited("start", -2, -1, what="tm-8-1"),
        waited("start", 1, 2, what="jobmanager-2"),
    ]
    assert awaited_by(entry, dict.fromkeys(gone, 0), waits, (0, 10 * NS)).keys() == expected


def test_without_the_waits_for_an_option_a_job_waits_for_fewer_taskmanagers():
    """The job needs the slots of two of three. One returned first, while the others still waited for the timeout."""
    entry = trial_entry(
        {"job": {"vertices": [{"parallelism": 2}], "taskManagers": {"replicas": 3, "slots": 1}}}
    )
    pause = waited("stalled", 0, 5, who=EVERYTHING, what="tm-1")
    option, expired = "heartbeat.timeout", Outcome.EXPIRED
    waits = [
        waited("registration", 1, 6, what="ResourceManager", who=tm, option=option, outcome=expired)
        for tm in ("tm-0-1", "tm-2-1")
    ]
    assert awaited_by(entry, {"tm-1": 0}, [pause, *waits], (0, 10 * NS)).keys() == {"tm-1", "tm-0"}
    assert awaited_by(entry, {"tm-1": 0}, [pause, *waits], (0, 10 * NS), option).keys() == {"tm-0", "tm-2"}


@pytest.mark.parametrize(("begun", "expected"), [(4, set()), (2, {"tm-1"})])
def test_a_taskmanager_that_is_lost_after_another_one_came_was_still_there(begun: float, expected: set[str]):
    """The job needs the slots of two of three. A replacement comes after 3 s, and another TaskManager is paused until 5 s."""
    entry = trial_entry(
        {"job": {"vertices": [{"parallelism": 2}], "taskManagers": {"replicas": 3, "slots": 1}}}
    )
    coming = waited("replacement", 0, 3, what="tm-1-2", option=REPLACED, outcome=Outcome.FIRED)
    pause = waited("stalled", begun, 5, who=EVERYTHING, what="tm-0")
    assert awaited_by(entry, {"tm-1": 0}, [coming, pause], (0, 10 * NS)).keys() == expected


@pytest.mark.parametrize(
    ("killed", "what", "expected"),
    [
        ({"tm-1": (1,), "tm-2": (20,)}, "tm-1", {"tm-2"}),
        ({"tm-1": (1,), "tm-2": (20,)}, "tm-1-2", {"tm-2"}),  # a pod that was deleted: named by its next process
        ({"tm-1": (1, 20)}, "tm-1", {"tm-1"}),  # killed again after its replacement
    ],
)  # fmt: skip
def test_a_taskmanager_that_was_replaced_before_an_outage_is_not_lost_in_it(
    killed: dict[str, tuple[float, ...]], what: str, expected: set[str]
):
    """It was replaced after 5 s. The outage is from 20 to 30 s."""
    kills = [
        effect("process.kill", (at, at), fault=f"{name} {at}", targets=f'["{name}"]')
        for name, times in killed.items()
        for at in times
    ]
    replaced = waited("replacement", 1, 5, what=what, outcome=Outcome.FIRED)
    assert lost_in(kills, [replaced], 20 * NS, 30 * NS).keys() == expected


@pytest.mark.parametrize(
    ("kind", "plane", "target", "span", "missed", "lacks"),
    [
        ("network.partition", "rpc", "tm-1", (10, 21), {}, True),
        ("network.stall", "both", "tm-1->jobmanager", (10, 21), {}, True),
        ("network.partition", "data", "tm-1", (10, 21), {}, False),
        ("network.partition", "rpc", "tm-1->tm-2", (10, 21), {}, False),  # the JobManager still reaches both
        ("network.partition", "rpc", "tm-1", (10, 20), {}, False),
        ("network.partition", "rpc", "tm-1", (31, 40), {}, False),
        ("network.latency", "rpc", "tm-1", (10, 21), {}, False),
        ("heartbeats.mute", "rpc", "tm-1", (10, 21), {}, False),  # it registers again at once
        ("process.pause", "data", "tm-1", (10, 21), {}, True),
        # its heartbeats were not missed in the fault
        ("process.pause", "data", "tm-1", (10, 21), {"outcome": Outcome.COMPLETED}, False),
        ("network.partition", "rpc", "tm-1", (10, 21), {"outcome": Outcome.COMPLETED}, False),
        ("network.partition", "rpc", "tm-1", (10, 21), {"what": "tm-2-1"}, False),
        ("network.partition", "rpc", "jobmanager", (10, 21), {"what": JOBMASTER_NAME}, False),
        ("network.partition", "rpc", "jobmanager", (10, 21), {"what": "ResourceManager"}, False),
        ("network.partition", "rpc", "tm-1", (10, 21), {"end_ns": 10 * NS}, False),
        ("network.partition", "rpc", "tm-1", (10, 40), {"end_ns": 31 * NS}, False),
        ("network.partition", "rpc", "tm-1", (10, 40), {"end_ns": 30 * NS}, True),
    ],
)
def test_a_taskmanager_that_is_cut_off_or_paused_is_lacking_once_its_heartbeats_are_missed(
    kind: str, plane: str, target: str, span: tuple[float, float], missed: dict[str, Any], *, lacks: bool
):
    """The outage is from 20 to 30 s. The loss was noticed before it, at 15 s."""
    cut = replace(effect(kind, span, targets=f'["{target}"]'), plane=plane)
    noticed = replace(lost("tm-1", 5, 15), **missed)
    assert lost_in([cut], [noticed], 20 * NS, 30 * NS) == ({"tm-1": round(span[0] * NS)} if lacks else {})


@pytest.mark.parametrize(
    ("kind", "who", "name"),
    [
        ("stalled", "tm-1-1", "tm-1"),
        ("jobmanager", "tm-1-1", "tm-1"),
        ("jobmanager", "ResourceManager", None),
        ("jobmanager", EVERYTHING, None),
        ("heartbeat", "tm-1-1", None),
    ],
)
def test_a_pause_and_a_wait_for_the_jobmanager_are_those_of_their_taskmanager(
    kind: str, who: str, name: str | None
):
    """If the job did not use that TaskManager, they delayed nothing."""
    assert stalled_taskmanager(waited(kind, 0, 4, who=who, what="jobmanager")) == name


def test_each_replacement_leaves_the_steps_of_a_restart():
    """They take 1 s, whenever it comes."""
    assert saved(REPLACED, [ONE, hit("two", "process.kill", 5, 6, "tm-2")], [NOTICED, SECOND]) == 11 - 2


@pytest.mark.parametrize(
    ("option", "begun", "step_s"), [(DELAY, 2, 1), (DELAY, 2.1, 0), ("o", 12, 1), ("o", 12.1, 0)]
)
def test_a_step_that_a_fault_delays_is_left_if_the_restart_meets_that_fault(
    option: str, begun: float, step_s: int
):
    """The loss is noticed after 2 s, and the restart delay takes 10 s if it is not the option."""
    own, slots = part(0, 12, "slot", option=option), part(12, 13, "deployment", option="", fault="late")
    late = [effect("rpc.delay", (begun, 20), fault="late")]
    waits = [NOTICED, delayed()] if option == DELAY else [replace(NOTICED, option=option), delayed(12)]
    (found,) = until_each_has_recovered([round_of(own, slots)], [ONE], [], waits, late, awaited=lambda _: ())
    restart_s = 2 if option == DELAY else 12
    assert found.segments[0].slack_ns == (13 - restart_s - step_s) * NS


def test_the_first_of_two_losses_takes_the_spare_taskmanager():
    """Only the second one waits for a TaskManager that comes, even if that is the replacement of the first one."""
    coming = waited("replacement", 0, 4, what="tm-1-2", option=REPLACED, outcome=Outcome.FIRED)
    hits = [ONE, hit("two", "process.kill", 5, 6, "tm-2")]
    assert saved(DELAY, hits, [NOTICED, SECOND, coming], awaited=("tm-1",)) == 11 - (2 + 1) - (2 + 1)


def test_taskmanagers_register_again_only_with_the_next_jobmanager():
    """They took 1 s for that, which the recovery from the first loss does not need."""
    own, step = part(0, 10, "restart-delay", option=DELAY), part(10, 11, "registration", option="")
    hits = [ONE, hit("two", "jobmanager.kill", 5, 8, "jobmanager")]
    (found,) = until_each_has_recovered([round_of(own, step)], hits, [], [NOTICED], [], awaited=lambda _: ())
    assert found.segments[0].slack_ns == (11 - 2 - (3 + 1)) * NS


def test_the_next_jobmanager_recovers_a_job_without_a_delay():
    """It is back after 1 s, and the restart delay before took 3 s."""
    rounds = [round_of(part(0, 10, "heartbeat", option=TIMEOUT), part(10, 11, "slot", option=""))]
    hits = [ONE, hit("two", "jobmanager.kill", 5, 6, "jobmanager")]
    (found,) = until_each_has_recovered(rounds, hits, [], [NOTICED, delayed(3)], [], awaited=lambda _: ())
    assert found.segments[0].slack_ns == (11 - (3 + 1) - (1 + 1)) * NS


def test_work_during_a_pause_does_not_count():
    """The job caught up from 4 to 12 s, also while a process was paused from 5 to 8 s."""
    worked = part(4, 12, "catch-up", option="")
    pause = hit("two", "process.pause", 5, 8, "tm-2")
    (found,) = until_each_has_recovered(
        [round_of(part(0, 4, "restart-delay", option=DELAY), worked)],
        [ONE, pause],
        [],
        [NOTICED],
        [],
        awaited=lambda _: (),
    )
    assert found.segments[0].slack_ns == (4 - 2) * NS


def test_a_step_of_the_failure_before_does_not_count():
    """The last round begins with the rest of the deployment that failed, for 1 s. Its own one takes 6 s."""
    rest, own = part(10, 11, "deployment", option=""), part(11, 17, "deployment", option="")
    rounds = [round_of(part(0, 10, "restart-delay", option=DELAY)), round_of(rest, own)]
    (first, _) = until_each_has_recovered(rounds, [ONE], [], [NOTICED], [], awaited=lambda _: ())
    assert first.segments[0].slack_ns == (17 - 2 - 6) * NS


@pytest.mark.parametrize(("outcome", "expected"), [("completed", 10 - 3), ("expired", 10 - 2)])
def test_a_step_that_expired_may_belong_to_one_fault(outcome: str, expected: float):
    """It is not one of the steps that each restart takes."""
    own, step = (
        part(0, 9, "restart-delay", option=DELAY),
        part(9, 10, "registration", option="o", outcome=outcome),
    )
    (found,) = until_each_has_recovered([round_of(own, step)], [ONE], [], [NOTICED], [], awaited=lambda _: ())
    assert found.segments[0].slack_ns == expected * NS


@pytest.mark.parametrize(("noticed", "limited"), [(0.25, False), (0.26, True)])
def test_a_limit_is_no_more_exact_than_a_quarter_of_a_second(noticed: float, *, limited: bool):
    """Nothing but the loss is left of the wait."""
    own = part(0, 3, "restart-delay", option=DELAY)
    (found,) = until_each_has_recovered(
        [round_of(own)], [ONE], [], [lost("tm-1", 0, noticed)], [], awaited=lambda _: ()
    )
    assert (found.segments[0].slack_ns >= 0) is limited


def test_a_loss_that_only_a_failure_shows_was_noticed_with_it():
    """The first failure that it caused counts, unless missing heartbeats showed the loss."""
    own, slots = part(0, 10, "restart-delay", option=DELAY), part(10, 12, "slot", option="")
    failed = Cause(3 * NS, "", "", "Task", "tm-1-1")
    rounds = [round_of(own, slots)]
    for waits, expected in (([], 12 - 5), ([NOTICED], 12 - 4), ([replace(NOTICED, option=DELAY)], -1)):
        (found,) = until_each_has_recovered(
            rounds, [ONE], [failed, replace(failed, t_ns=9 * NS)], waits, [], awaited=lambda _: ()
        )
        assert found.segments[0].slack_ns == (expected * NS if expected >= 0 else -1)


def segments_of(rounds: tuple[Round, ...]) -> list[Segment]:
    return [s for r in rounds for s in r.segments]


def test_what_is_left_belongs_to_the_last_waits_of_an_option():
    """A wait that gave up has nothing to save, nor has a catch-up, whose length depends on the rest. One of another option has its own limit."""
    rounds = [
        round_of(part(0, 4, "heartbeat", option="a"), part(4, 5, "partition", option="a", outcome="expired")),
        round_of(part(5, 8, "heartbeat", option="a", slack_ns=NS), part(8, 9, "heartbeat", option="b")),
        round_of(part(9, 12, "heartbeat", option="a"), part(12, 20, "catch-up", option="")),
    ]
    rounds[0] = round_of(
        rounds[0].segments[0], replace(rounds[0].segments[1], option=KNOWN, outcome="expired")
    )
    found = segments_of(
        until_each_has_recovered(
            rounds, [hit("one", "process.pause", 0, 7, "tm-1")], [], [], [], awaited=lambda _: ()
        )
    )
    assert [s.slack_ns / NS if s.slack_ns >= 0 else -1 for s in found] == [1, -1, 1, -1, -1, -1]


KNOWN = "taskmanager.network.request-backoff.max"


def test_a_wait_that_saves_nothing_leaves_the_rest_to_those_before_it():
    """3 s remain of 7 s."""
    rounds = [round_of(part(0, 5, "heartbeat", option="a"), part(5, 7, "heartbeat", option="a", slack_ns=0))]
    pause = hit("one", "process.pause", 0, 3, "tm-1")
    found = segments_of(until_each_has_recovered(rounds, [pause], [], [], [], awaited=lambda _: ()))
    assert [s.slack_ns / NS for s in found] == [4, 0]


def test_a_catch_up_that_waits_for_a_fault_counts():
    """Its length does not depend on the seconds before."""
    rounds = [round_of(part(0, 4, "heartbeat", option="a"), part(4, 8, "catch-up", option="", fault="f"))]
    found = until_each_has_recovered(
        rounds, [hit("one", "process.pause", 0, 7, "tm-1")], [], [], [], awaited=lambda _: ()
    )
    assert segments_of(found)[0].slack_ns == NS


def test_nothing_is_known_without_a_fault_on_a_process():
    """There is no recovery of its own to compare with."""
    rounds = (round_of(part(0, 4, "heartbeat", option="a")),)
    assert until_each_has_recovered(rounds, [], [], [], [], awaited=lambda _: ()) == rounds


def test_the_parts_of_a_job_that_a_fault_stops(history: Any):
    """Those with tasks on the process when the recovery begins, and all that exchange records with them."""
    shape = JobShape(
        dict.fromkeys(("a", "b", "c", "d", "e"), 1),
        (("b", "c", "hash"), ("a", "b", "hash"), ("d", "e", "hash")),
    )
    built = history.empty()
    for t, task, place in (
        (1, "c-0", "tm-2-1"),
        (2, "c-0", "tm-1-1"),
        (3, "e-0", "tm-3-1"),
        (9, "d-0", "tm-4-1"),
    ):
        built.event("task.state", task, t, data={"from": "", "to": "RUNNING", "taskmanager": place})
    kinds = {
        "own": ("process.kill", "tm-1"), "before": ("process.kill", "tm-2"), "paused": ("process.pause", "tm-3"), "later": ("process.kill", "tm-4"),
        "jm": ("jobmanager.kill", "jobmanager"), "jm-paused": ("jobmanager.pause", "jobmanager"), "slow": ("store.slow", "tm-1"),
        "on data": ("network.partition", "tm-3"),
    }  # fmt: skip
    faults = [
        effect(kind, (9 - n, 10), fault=name, targets=f'["{target}"]')
        for n, (name, (kind, target)) in enumerate(kinds.items())
    ]
    cut = effect("network.partition", (1, 10), fault="cut", targets='["tm-3"]', plane="both")
    found = hits_of(built.trial(), shape, [*faults, cut], history.at(9), whole=False)
    assert [(h.fault.fault, h.vertices) for h in found] == [
        ("cut", frozenset("de")),
        ("jm", frozenset("abcde")),
        ("paused", frozenset("de")),
        ("own", frozenset("abc")),
    ]
    found = hits_of(built.trial(), shape, faults, history.at(9), whole=True)
    assert {h.fault.fault: h.vertices for h in found} == dict.fromkeys(
        ("jm", "paused", "own"), frozenset("abcde")
    )


@pytest.mark.parametrize(
    ("ended", "other", "until"),
    [
        (10, None, 9),
        (None, None, None),
        (10, ("process.kill", "tm-0", "data"), 7),
        (10, ("jobmanager.kill", "jobmanager", "data"), 7),
        (10, ("network.partition", "tm-1->tm-0", "rpc"), 7),
        (10, ("network.latency", "tm-0", "data"), 9),  # it moves no task
        (10, ("frames.drop", "tm-0", "data"), 9),
        (10, ("store.slow", "tm-0", "data"), 9),
        (10, ("registration.delay", "tm-0", "data"), 9),
        (10, ("process.kill", "tm-2", "data"), 9),
        (10, ("network.partition", "*->tm-2", "rpc"), 9),
    ],
)
def test_a_cut_stops_what_reads_over_it_until_it_ends_or_its_tasks_move(
    history: Any, ended: float | None, other: tuple[str, str, str] | None, until: float | None
):
    """It begins at 5 s. TCP sends again for 1 s, which is part of it. The other fault begins at 7 s."""
    built = history.empty()
    request = {"connection": "tm-0-1/0"}
    built.add("tm-1-1", "events", 1, kind="partition.request", subject="b-0", data=request)
    shape = JobShape(dict.fromkeys("abc", 1), (("a", "b", "hash"),))
    start = history.at(0) / NS
    span = (start + 5, None if ended is None else start + ended)
    cut = effect("network.partition", span, fault="cut", targets='["*->tm-0"]', sent_again_ns=NS)
    faults = [cut]
    if other is not None:
        kind, target, plane = other
        faults.append(
            effect(kind, (start + 7, start + 8), fault="other", targets=f'["{target}"]', plane=plane)
        )
    found = next(
        h for h in hits_of(built.trial(), shape, faults, history.at(4), whole=False) if h.fault is cut
    )
    assert found.vertices == {"a", "b"}
    assert found.until_ns == (INT64_MAX - NS if until is None else history.at(until))


PART, SINKS = frozenset({"map", "sink"}), ("sink",)


@pytest.mark.parametrize(
    ("kind", "span", "vertices", "deployed", "downtime"),
    [
        ("process.pause", (8, 15), PART, None, 7),
        ("process.pause", (8, 11), PART, None, 4),
        ("process.pause", (8, None), PART, None, None),
        ("process.pause", (8, 25), PART, None, 12),  # the outage ended before
        ("process.pause", (8, 15), WHOLE, None, 4),  # no sink is in that part
        ("process.pause", (11.9, 15), PART, None, 7),
        ("process.pause", (12, 15), PART, None, 4),  # the job ran before
        ("process.pause", (8, 15), PART, ("map-0", 9), 4),
        ("process.pause", (8, 15), PART, ("other-0", 9), 7),
        ("process.pause", (8, 15), PART, ("map-0", 8), 7),
        ("process.pause", (8, 15), PART, ("map-0", 15), 7),
        ("process.kill", (8, 15), PART, None, 4),  # its tasks run elsewhere
        ("jobmanager.kill", (8, 15), PART, None, 4),
    ],
)
def test_the_downtime_lasts_until_each_part_of_the_job_restarts_or_its_fault_ends(
    history: Any,
    kind: str,
    span: tuple[float, float | None],
    vertices: frozenset[str],
    deployed: tuple[str, float] | None,
    downtime: float | None,
):
    """The outage is from 8 to 20 s, and the affected sinks of the job have new records at 12 s."""
    built = history.empty()
    built.event("task.state", "sink-0", 9, data={"to": "RUNNING"})
    if deployed is not None:
        built.event("task.state", *deployed, data={"to": "DEPLOYING"})
    start = history.at(0) / NS
    fault = effect(kind, (start + span[0], None if span[1] is None else start + span[1]))
    hits = [Hit(fault, vertices), hit("past", "process.kill", start + 8, start + 9, "tm-2")]
    running = RoundSpan(history.at(8), history.at(20), running=history.at(12))
    outage = Outage(None, history.at(8), history.at(20), (running,), True)
    assert downtime_s(built.trial(), hits, SINKS, outage) == downtime
    never = replace(outage, rounds=(replace(running, running=None),))
    assert downtime_s(built.trial(), hits, SINKS, never) is None


@pytest.mark.parametrize(("moved", "downtime"), [(14, 6), (14.999, 6.999), (15, 8), (None, 8)])
def test_a_cut_part_of_the_job_is_down_until_its_tasks_move_or_lost_packets_are_sent_again(
    history: Any, moved: float | None, downtime: float
):
    """The cut ends at 15 s, and TCP sends again until 16 s. Other sinks have records at 12 s."""
    start = history.at(0) / NS
    cut = effect("network.partition", (start + 8, start + 16), sent_again_ns=NS)
    hits = [Hit(cut, PART, INT64_MAX if moved is None else history.at(moved))]
    running = RoundSpan(history.at(8), history.at(20), running=history.at(12))
    outage = Outage(None, history.at(8), history.at(20), (running,), True)
    assert downtime_s(history.empty().trial(), hits, SINKS, outage) == downtime


@pytest.mark.parametrize(
    ("other", "seconds"),
    [
        (waited("stalled", 6, 8, who=EVERYTHING, what="tm-0"), 6),
        (waited("restart-delay", 6, 9), 6),
        (waited("restart-delay", 5.9, 9), 0),  # it began with an earlier failure
        (lost("tm-0", 5, 9, who=JOBMASTER_NAME), 6),  # since the last heartbeat before the pause
        (lost("tm-2", 5, 9, who=JOBMASTER_NAME), 0),
        (waited("registration", 4, 5, who="tm-3-1", what="ResourceManager"), 4),
        (waited("registration", 4, 5, who="tm-4-1", what="ResourceManager"), 0),
    ],
)
def test_a_job_could_have_run_until_the_fault_that_began_another_wait(other: Wait, seconds: float):
    """A TaskManager is replaced after 12 s. Another one is paused from 6 to 8 s, and a third one is lost at 4 s."""
    pause = hit("pause", "process.pause", 6, 8, "tm-0")
    wait = waited("replacement", 0, 12, what="tm-1", option=REPLACED)
    lost_at = {"tm-3": 4 * NS, "tm-4": 0}
    assert ran_before([pause], lambda _: lost_at, 0, wait, other) == seconds * NS
    assert ran_before([pause], lambda _: lost_at, 4 * NS, wait, other) == max(0, seconds - 4) * NS
    own = replace(wait, what="tm-0")
    assert ran_before([pause], lambda _: {}, 0, own, other) == 0


@pytest.mark.parametrize(
    ("option", "paused_s", "saved_s"), [(TIMEOUT, 2, -1), (TIMEOUT, 1.5, 3.5), (DELAY, 2, 2)]
)
def test_a_shorter_timeout_may_also_save_the_wait_for_a_paused_process(
    option: str, paused_s: float, saved_s: float
):
    """A shorter timeout would have ended that wait before the kill, which then would have come in the restart."""
    hits = [hit("pause", "process.pause", 0, 2, "tm-2"), hit("kill", "process.kill", 2, 3, "tm-1")]
    paused = part(2 - paused_s, 2, "stalled", option="", fault="pause")
    own = part(2, 6, "fencing", option=option, slack_ns=2 * NS, next="x")
    (found,) = until_each_has_recovered([round_of(paused, own)], hits, [], [], [], awaited=lambda _: ())
    assert found.segments[0] == paused
    assert found.segments[1].slack_ns == (saved_s * NS if saved_s >= 0 else -1)
