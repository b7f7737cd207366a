"""Waits that last over the end of a round: which wait that is, its parts, and what can be saved of them together."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.heldmessages import MESSAGES
from testbed_runtime.checking.lasting import (
    after_cut_delay,
    capped,
    continues,
    dead_slots,
    lasting_wait,
    share_slack,
    since_earlier_fault,
    unnoticed_loss,
    until_faults_end,
    with_delays_avoided,
    without_outrun,
)
from testbed_runtime.checking.prices import prices
from testbed_runtime.core.judgement.recovery import Round, Segment
from testbed_runtime.core.waits import EVERYTHING, Outcome
from tests.checking.test_rules import NS, effect, waited


def part(start: float, end: float, kind: str = "replacement", what: str = "tm-0", **more: Any) -> Segment:
    given = {"phase": "", "who": "w", "text": "o = 1", "option": "o", "value": "1", **more}
    return Segment(kind=kind, what=what, start_ns=round(start * NS), end_ns=round(end * NS), **given)


@pytest.mark.parametrize(
    ("kind", "since", "until", "found"),
    [
        ("replacement", 1, 6, True),
        ("stalled", 1, 6, True),
        ("replacement", 3, 6, False),
        ("replacement", 2.995, 6, False),
        ("replacement", 2.994, 6, True),
        ("replacement", 1, 4.995, True),
        ("replacement", 1, 4.994, False),
        ("restart-delay", 1, 6, False),
        ("slot", 1, 6, False),
    ],
)
def test_a_wait_lasts_if_it_had_begun_before_the_round(kind: str, since: float, until: float, *, found: bool):
    """The path of a round begins at 3 s, and has this wait until 5 s. A failure ends delays and requests. Clocks differ by 5 ms."""
    wait = waited(kind, since, until, who="w", what="tm-0")
    other = waited(kind, 0, 9, who="w", what="tm-1")
    assert lasting_wait([other, wait], [part(3, 5, kind)]) == (wait if found else None)
    assert lasting_wait([wait], []) is None
    assert lasting_wait([wait], [part(3, 3.02, kind)]) is None, "it ended together with the round before"


@pytest.mark.parametrize("kind", ["heartbeat", "replacement"])
@pytest.mark.parametrize("failed", ["", "tm-0-1", "w", "tm-1-1"])
def test_a_wait_lasts_over_failures_of_any_taskmanager(kind: str, failed: str):
    """Heartbeats that are missing fail the job when they have been missing for long enough, whatever failed before."""
    wait = waited(kind, 1, 6, who="w", what="tm-0-1")
    cause = Cause(3 * NS, "", "", "Task", failed)
    assert lasting_wait([wait], [part(3, 5, kind, "tm-0-1")], cause) == wait


@pytest.mark.parametrize(
    ("failed", "kind", "found"),
    [
        ("tm-0-1", "heartbeat", True),
        ("", "heartbeat", True),
        ("tm-1-1", "heartbeat", False),
        ("tm-0-1", "deployment", False),
    ],
)
def test_messages_that_are_held_up_last_over_the_loss_of_their_taskmanager(
    failed: str, kind: str, *, found: bool
):
    """The mailbox of another one did not make the round before fail. A deployment that was not answered in time belongs to its option."""
    wait = waited("stalled", 1, 6, who="tm-0-1", what=MESSAGES)
    first = part(3, 5, "stalled", MESSAGES, who="tm-0-1")
    cause = Cause(3 * NS, "", "", "JobMaster", failed, kind=kind)
    assert lasting_wait([wait], [first], cause) == (wait if found else None)


def test_the_latest_of_several_waits_with_one_name_lasts():
    """It ends more than 20 ms after the round before."""
    early, late = (waited("stalled", start, 6, who="w", what="tm-0") for start in (1, 2))
    for waits in ([early, late], [late, early]):
        assert lasting_wait(waits, [part(3, 3.021, "stalled")]) == late


@pytest.mark.parametrize(
    ("cause", "failure", "more", "found"),
    [
        ("tm-0-1", "tm-0-1", {}, True),
        ("tm-0-1", "tm-1-1", {}, False),
        ("tm-1-1", "tm-1-1", {}, False),
        ("", "", {}, False),
        ("tm-0-1", "tm-0-1", {"outcome": Outcome.COMPLETED}, False),
        ("tm-0-1", "tm-0-1", {"kind": "fencing"}, False),
        ("tm-0-1", "tm-0-1", {"start_ns": 3 * NS}, False),  # it had answered since the round began
        ("tm-0-1", "tm-0-1", {"end_ns": round(5.005 * NS)}, False),  # noticed with the failure
        ("tm-0-1", "tm-0-1", {"end_ns": round(5.006 * NS)}, True),
        ("tm-0-1", None, {}, False),
        (None, "tm-0-1", {}, False),
    ],
)
def test_a_round_that_begins_and_fails_on_a_dead_taskmanager_waits_for_its_loss(
    cause: str | None, failure: str | None, more: dict[str, Any], *, found: bool
):
    """The round lasts from 3 to 5 s. Heartbeats have been missing since 1 s, which the ResourceManager notices after 8 s, and the JobMaster
    later."""
    loss = waited("heartbeat", 1, 8, what="tm-0-1", outcome=Outcome.EXPIRED)
    loss = replace(loss, **more)
    waits = [replace(loss, end_ns=loss.end_ns + NS // 10), loss]
    began, failed = (
        None if name is None else Cause(t * NS, "", "", "Task", name)
        for name, t in ((cause, 3), (failure, 5))
    )
    if more.get("end_ns"):
        waits = [loss]
    assert unnoticed_loss(waits, began, failed) == (loss if found else None)


@pytest.mark.parametrize(
    ("cause", "end", "more", "found"),
    [
        ("tm-0-1", 8, {}, True),
        ("tm-0-1", 7.9, {}, False),  # noticed after the round
        ("tm-1-1", 8, {}, False),
        (None, 8, {}, False),
        ("tm-0-1", 8, {"start_ns": 3 * NS}, False),  # it had answered since the round began
        ("tm-0-1", 8, {"outcome": Outcome.COMPLETED}, False),
        ("tm-0-1", 8, {"end_ns": round(3.005 * NS)}, False),  # the failure was that loss
        ("tm-0-1", 8, {"end_ns": round(3.006 * NS)}, True),
    ],
)
def test_slots_of_a_dead_taskmanager_are_there_until_its_loss_is_noticed(
    cause: str | None, end: float, more: dict[str, Any], *, found: bool
):
    """The round began at 3 s with a failure of tm-0-1. Its heartbeats have been missing since 1 s, which is noticed after 8 s."""
    loss = replace(waited("heartbeat", 1, 8, what="tm-0-1", outcome=Outcome.EXPIRED), **more)
    began = None if cause is None else Cause(3 * NS, "", "", "Task", cause)
    expected = [replace(loss, kind="fencing", wait=f"{loss.wait}-fencing")] if found else []
    assert dead_slots([loss], began, round(end * NS), ["tm-0", "tm-1"]) == expected
    assert dead_slots([loss], began, round(end * NS), ["tm-1"]) == [], "it runs, with muted heartbeats"


@pytest.mark.parametrize(
    ("kind", "held", "since", "ended", "saved"),
    [
        ("network.partition", {}, 1, 7, 0),
        ("network.partition", {}, 2, 7, 0),
        ("network.partition", {}, 2.1, 7, -1),  # a shorter wait would have ended before the fault
        ("network.partition", {}, 1, 6.5, 0),
        ("network.partition", {}, 1, 6.49, -1),  # most of the later wait comes after it
        ("network.partition", {}, 1, 8.005, 0),
        ("network.partition", {}, 1, 8.006, -1),  # it ended before the fault
        ("network.partition", {}, 1, 5, -1),  # which had ended when it began
        ("network.partition", {}, 1, None, -1),
        ("network.partition", {"fault": "other"}, 1, 7, -1),
        ("network.partition", {"what": "f", "kind": "catch-up"}, 1, 7, 0),
        ("network.latency", {}, 1, 7, -1),  # it delays each message for as long
        ("network.latency", {"what": "f", "kind": "catch-up"}, 1, 7, -1),  # the downtime would be shorter
        ("frames.withhold-credit", {"what": "f", "kind": "catch-up"}, 1, 8, 0),
        ("frames.withhold-credit", {"what": "f", "kind": "catch-up"}, 1, 7, -1),
        ("process.kill", {"what": "f", "kind": "stalled"}, 1, 7, -1),
        ("process.pause", {"what": "f", "kind": "catch-up"}, 1, 8, 0),
        ("process.pause", {"what": "f", "kind": "catch-up"}, 2.1, 8, -1),
        ("process.pause", {"what": "f", "kind": "stalled"}, 1, 8, -1),
        ("process.pause", {"what": "f", "kind": "catch-up"}, 1, 7.98, 0),  # two processes record the end
        ("process.pause", {"what": "f", "kind": "catch-up"}, 1, 8.02, 0),
        ("process.pause", {"what": "f", "kind": "catch-up"}, 1, 7.979, -1),
        ("process.pause", {"what": "f", "kind": "catch-up"}, 1, 8.021, -1),
    ],
)
def test_a_wait_that_a_fault_outlasts_has_nothing_to_save(
    kind: str, held: dict[str, Any], since: float, ended: float | None, saved: int
):
    """A timeout expires from 2 to 5 s. In the next round, something waits from 5 to 8 s and ends because the fault does."""
    own = part(2, 5, "heartbeat", slack_ns=NS, next="b") if saved == 0 else part(2, 5, "heartbeat")
    later = part(5, 8, **{"kind": "registration", "option": "", "text": "t", "fault": "f"} | held)
    rounds = [
        Round(number=n, start_ns=s.start_ns, end_ns=s.end_ns, segments=(s,))
        for n, s in enumerate((own, later), 1)
    ]
    fault = effect(kind, (since, ended))
    (first,), (last,) = (r.segments for r in until_faults_end(rounds, [fault], {}))
    assert (first.slack_ns, first.next) == ((0, "t") if saved == 0 else (-1, ""))
    assert last == later


@pytest.mark.parametrize(("passes", "saved"), [(7.5, 0), (8, 0), (8.1, -1), (5, -1)])
def test_a_wait_on_a_cut_link_ends_when_it_lets_something_pass_or_with_what_is_sent_again(
    passes: float, saved: int
):
    """TCP sends again until 12 s. The wait from 5 to 8 s is for something new."""
    fault = replace(effect("network.partition", (1, 12)), sent_again_ns=round((12 - passes) * NS))
    own, later = part(2, 5, "heartbeat"), part(5, 8, "registration", option="", text="t", fault="f")
    (found,) = until_faults_end([round_of(own, later)], [fault], {})
    assert found.segments[0].slack_ns == saved


@pytest.mark.parametrize(
    ("budget_s", "more", "saved_s"),
    [
        (3.9, {}, 0),
        (4, {}, 2),  # 1 s of it is needless: the message would have taken until 9 s
        (3.9, {"kind": "partition"}, 2),
        (3.9, {"fault": "other"}, 2),
        (3.9, {"end_ns": round(8.006 * NS)}, 2),
    ],
)
def test_a_message_that_would_expire_before_its_fault_ends_is_waited_for_until_then(
    budget_s: float, more: dict[str, Any], saved_s: int
):
    """A timeout expires from 2 to 5 s. The task is submitted then, which the fault delays by 4 s, and acknowledged when that ends at 8 s."""
    kind = more.get("kind", "deployment")
    own = part(2, 5, "heartbeat")
    later = part(5, 8, kind=kind, option="", text="t", fault="f", what="2 tasks")
    wait = replace(waited("deployment", 5, 8, what="a-0", fault="f", budget_ns=round(budget_s * NS)), **more)
    rounds = [Round(number=1, start_ns=own.start_ns, end_ns=later.end_ns, segments=(own, later))]
    (found,) = until_faults_end(rounds, [effect("rpc.delay", (1, 8))], {"f": 4 * NS}, [wait])
    assert (found.segments[0].slack_ns, found.segments[0].next) == (saved_s * NS, "t")


@pytest.mark.parametrize(
    ("kind", "first", "targets", "since"),
    [
        ("heartbeat", "heartbeat", '["tm-0"]', 2),
        ("heartbeat", "heartbeat", '["tm-0->jobmanager"]', 2),
        ("heartbeat", "heartbeat", '["tm-1"]', 5),
        ("heartbeat", "cancellation", '["tm-0"]', 2),
        ("replacement", "replacement", '["tm-0"]', 2),
        ("replacement", "heartbeat", '["tm-0"]', 5),
        ("restart-delay", "restart-delay", '["tm-0"]', 5),
    ],
)
def test_a_wait_that_began_with_an_earlier_fault_is_one_wait_from_then_on(
    kind: str, first: str, targets: str, since: float
):
    """The fault took effect at 2 s, and the failover of a later one joined its outage at 5 s. The wait has lasted since 1.5 s, until 8 s. A
    close that is noticed at once, or 14 ms later on a busy machine, is no wait of its own."""
    what = {"heartbeat": "tm-0-1", "cancellation": "6 tasks"}
    held = waited(
        kind, 1.5, 8, who="JobMaster", what=what.get(kind, "tm-0"), option="o", outcome=Outcome.EXPIRED
    )
    held = replace(held, outcome=Outcome.FIRED if kind == "replacement" else held.outcome)
    others = [
        replace(held, what="tm-9-1"), replace(held, option="p"), replace(held, end_ns=9 * NS),
        replace(held, outcome=Outcome.COMPLETED, start_ns=NS), replace(held, end_ns=7 * NS, start_ns=NS),
        replace(held, who="tm-0-1", what="JobMaster", end_ns=7 * NS, start_ns=NS),
    ]  # fmt: skip
    short = part(5, 5.014, "connection", option="")
    path = [short, part(5.014, 8, first, what.get(first, "tm-0"), who="JobMaster"), part(8, 9, "slot")]
    earlier = [effect("process.pause", (2, 10), targets=targets)]
    found = since_earlier_fault([*others, held], path, earlier, 2 * NS)
    assert (found[0].start_ns, found[-1]) == (since * NS, path[-1])
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found))
    assert since_earlier_fault([held], [short], earlier, 2 * NS) == (short,)
    if since == 2:
        assert [s.kind for s in found] == list(dict.fromkeys([kind, first, "slot"]))
        assert [p.count for p in prices(s for s in found if s.option == "o" and s.kind != "slot")] == [1]
    else:
        assert found == tuple(path)


@pytest.mark.parametrize(("budget", "since"), [(2, 6), (3, 5), (4, 4.5)])
def test_calls_to_a_process_that_is_gone_fail_only_when_no_fault_holds_that_back(budget: float, since: float):
    """The loss was noticed at 8 s, which is later than the limit after the last answer at 1.5 s: from the end of the earlier fault on, it took
    the limit. The failover joined the outage at 4.5 s."""
    held = waited("heartbeat", 1.5, 8, who="JobMaster", what="tm-0-1", option="o", outcome=Outcome.EXPIRED)
    held = replace(held, budget_ns=budget * NS)
    path = [part(4.5, 8, "heartbeat", "tm-0-1", who="JobMaster"), part(8, 9, "slot")]
    earlier = [effect("process.pause", (2, 10), targets='["tm-0"]')]
    found = since_earlier_fault([held], path, earlier, 2 * NS)
    assert found == (replace(path[0], start_ns=round(since * NS)), path[1])


@pytest.mark.parametrize(
    ("after", "same"),
    [
        (part(3, 4), True),
        (part(3.1, 4), False),
        (part(3, 4, what="tm-1"), False),
        (part(3, 4, kind="start"), False),
        (part(3, 4, text="o = 2"), False),
    ],
)
def test_neighbours_are_one_wait_if_they_differ_in_nothing(after: Segment, *, same: bool):
    """They have one price, and count once."""
    assert continues(part(1, 3), after) is same
    if after.text == "o = 1":
        (price,) = prices([part(1, 3), after])
        assert price.count == (1 if same else 2)


def test_a_delay_that_a_failure_cuts_short_is_not_the_next_one():
    """They have the same name."""
    assert not continues(part(1, 3, "restart-delay"), part(3, 4, "restart-delay"))


def test_what_is_shorter_than_clocks_differ_is_no_wait_of_its_own():
    """Unless there is nothing else."""
    short, again = part(3, 3.0001, what="a"), part(4, 4.0002, what="b")
    assert [p.count for p in prices([part(1, 3), short, again])] == [1]
    assert [p.count for p in prices([short, again])] == [1]
    assert [p.count for p in prices([part(1, 3), part(3, 3.005, what="a")])] == [2]


@pytest.mark.parametrize(("what", "count"), [("far", 1), ("tm-0", 2)])
def test_a_fault_ends_once_however_often_the_job_waited_for_that(what: str, count: int):
    """A failover in the middle of it took 2 s. A TaskManager that a fault pauses may be waited for twice."""
    given = {"what": what, "fault": "far", "option": "", "text": "end of the fault `far`"}
    (price,) = prices([part(1, 3, "fault", **given), part(5, 9, "catch-up", **given)])
    assert (price.seconds, price.count) == (6, count)


@pytest.mark.parametrize(
    ("slacks", "needless", "expected"),
    [
        ((-1, -1, -1), (False, False), [(-1, ""), (-1, ""), (-1, "")]),
        ((-1, -1, 1), (False, False), [(0, "c"), (0, "c"), (1, "c")]),
        ((-1, -1, 3), (False, False), [(0, "c"), (0, "c"), (-1, "")]),
        ((-1, 0, 9), (False, False), [(0, "b"), (0, "b"), (0, "b")]),
        ((4, 4, 9), (False, False), [(0, "a"), (1, "a"), (-1, "")]),
        ((-1, 4, 9), (False, False), [(0, "b"), (1, "b"), (-1, "")]),
        ((8, 1, 1), (True, True), [(3, "a"), (-1, ""), (-1, "")]),
        ((9, 1, 1), (True, True), [(-1, ""), (-1, ""), (-1, "")]),
        ((8, 6, 1), (False, True), [(1, "b"), (-1, ""), (-1, "")]),
    ],
)
def test_no_part_can_be_made_shorter_than_another_one_allows(
    slacks: tuple[int, ...], needless: tuple[bool, ...], expected: list[tuple[int, str]]
):
    """The parts are 4, 2 and 3 s long. A round that began only because the wait was too long limits nothing. The rounds around them
    have other waits."""
    first, second, around, other = (
        limited(start, start + 1, 99, what=f"tm-{start}") for start in (-2, -1, 9, 10)
    )
    spans = [(0, 4), (4, 6), (6, 9)]
    parts = [
        limited(*span, slack, what="tm-1", next=name)
        for span, slack, name in zip(spans, slacks, "abc", strict=True)
    ]
    rounds = rounds_of((first,), (second, parts[0]), (parts[1],), (parts[2], around), (other,))
    found = share_slack(rounds, (False, False, *needless, False))
    chain = [found[1].segments[1], found[2].segments[0], found[3].segments[0]]
    assert [(s.slack_ns / NS if s.slack_ns >= 0 else -1, s.next) for s in chain] == expected
    others = [found[0].segments, found[1].segments[:1], found[3].segments[1:], found[4].segments]
    assert others == [(first,), (second,), (around,), (other,)]
    assert capped(found[3].segments[1]).slack_ns == NS


def test_a_round_may_end_one_wait_and_begin_the_next():
    """Each has its own slack."""
    rounds = rounds_of(
        (limited(0, 1, -1, what="a"),),
        (limited(1, 2, 1, what="a"), limited(2, 3, -1, what="b")),
        (limited(3, 5, 0, what="b"),),
    )
    found = share_slack(rounds, (False, False, False))
    assert [[s.slack_ns for s in r.segments] for r in found] == [[0], [-1, 0], [0]]


def limited(start: float, end: float, slack: int, **more: Any) -> Segment:
    """A part of a wait with seconds that can be saved of it, without a limit if that is -1."""
    return part(start, end, **({"next": "z"} | more), slack_ns=slack * NS if slack >= 0 else -1)


def rounds_of(*segments: tuple[Segment, ...]) -> list[Round]:
    return [
        Round(number=n, start_ns=s[0].start_ns, end_ns=s[-1].end_ns, segments=s)
        for n, s in enumerate(segments, start=1)
    ]


def test_rounds_without_a_common_wait_stay_as_they_are():
    """Also empty ones."""
    empty = Round(number=2, start_ns=NS, end_ns=NS)
    lone = [
        Round(number=n, start_ns=n * NS, end_ns=(n + 1) * NS, segments=(limited(n, n + 1, 9, what=f"tm-{n}"),))
        for n in range(4)
    ]  # fmt: skip
    for rounds in (lone, [lone[0], empty, *lone[1:]], [empty, *lone, empty], [empty, empty]):
        assert share_slack(rounds, [True] * len(rounds)) == tuple(rounds)
    assert share_slack((), ()) == ()


@pytest.mark.parametrize(
    ("slacks", "following", "needless", "expected"),
    [
        ((-1, 3), "o = 1", True, [0, 5]),
        ((-1, 4.5), "o = 1", True, [1.5, 5]),
        ((-1, 3), "o = 1", False, [0, 3]),
        ((-1, 3), "p = 2", True, [0, 3]),
        ((-1, -1), "o = 1", True, [-1, 5 + 3]),  # with the whole delay
    ],
)
def test_the_rest_of_a_delay_in_which_a_wait_ended_is_saved_with_it(
    slacks: tuple[float, ...], following: str, needless: bool, expected: list[float]
):
    """The wait lasts 2 and 5 s of two rounds, and ends in the delay of the third, 2 s before that ends."""
    first, second = (
        part(a, b, slack_ns=-1 if s < 0 else round(s * NS), next="" if s < 0 else "q")
        for (a, b), s in zip(((0, 2), (2, 7)), slacks, strict=True)
    )
    delay = part(7, 10, "restart-delay", text="d", slack_ns=2 * NS, next=following)
    rounds = [round_of(part(-1, 0, "slot", text="s"), first), round_of(second), round_of(delay)]
    found = share_slack(rounds, (False, False, needless))
    slack = [one.segments[-1].slack_ns / NS for one in found[:2]]
    assert slack == [one if one >= 0 else -1 / NS for one in expected]


def round_of(*segments: Segment) -> Round:
    return Round(number=1, start_ns=segments[0].start_ns, end_ns=segments[-1].end_ns, segments=segments)


@pytest.mark.parametrize(
    ("kind", "begun", "slack_ns"),
    [
        ("jobmanager.pause", 2, -1),
        ("process.pause", 2, -1),
        ("jobmanager.pause", 1, 0),
        ("jobmanager.kill", 2, 0),
    ],
)
def test_a_pause_of_the_jobmanager_that_begins_after_a_wait_does_not_limit_it(
    kind: str, begun: int, slack_ns: int
):
    """The wait begins at 1 s. A JobManager that is killed stops the job whether it runs or not."""
    own = part(1, 3, "heartbeat", slack_ns=0, next="its return")
    back = waited("jobmanager", begun, 6, who=EVERYTHING, what="jobmanager", cause="its return", fault="f")
    paused = effect(kind, (begun, 6), targets='["jobmanager"]')
    ((found,),) = (r.segments for r in without_outrun([round_of(own)], [back], [paused]))
    assert found.slack_ns == slack_ns


@pytest.mark.parametrize(
    ("budget", "more", "saved"),
    [
        (3, {}, 3),  # 2 s of the delay were left
        (10, {}, 0),
        (1, {}, -1),
        (3, {"delay": {"option": "d"}}, -1),  # it ended by itself
        (3, {"last": {"kind": "slot"}}, -1),
        (3, {"first": {"option": ""}}, -1),
        (3, {"first": {"kind": "slot", "outcome": "expired", "option": "slot.request.timeout"}}, -1),
        (3, {"wait": {"kind": "slot"}}, -1),
        (3, {"wait": {"start_ns": 5 * NS + 5_000_000}}, 2.995),
        (3, {"wait": {"start_ns": 5 * NS + 5_000_001}}, -1),
        (3, {"wait": {"end_ns": 5 * NS + 5_000_000}}, -1),
    ],
)
def test_what_is_saved_before_a_delay_that_the_jobmanager_cut_off_is_first_added_to_the_delay(
    budget: int, more: dict[str, dict[str, Any]], saved: float
):
    """A timeout expires from 0 to 5 s. The restart delay begins then, and the JobManager is killed after a second of it."""
    first = replace(part(0, 5, "heartbeat"), **more.get("first", {}))
    delay = replace(part(5, 6, "restart-delay", option=""), **more.get("delay", {}))
    last = replace(part(6, 9, "jobmanager", text="its return", option=""), **more.get("last", {}))
    cut = replace(waited("restart-delay", 5, 6, budget_ns=budget * NS), **more.get("wait", {}))
    found = after_cut_delay(round_of(first, delay, last), [cut])
    slack = found.segments[0].slack_ns
    assert (slack / NS if slack >= 0 else -1, found.segments[0].next) == (saved, "its return" if saved >= 0 else "")  # fmt: skip
    assert found.segments[1:] == (delay, last)


def test_what_is_not_known_of_a_segment_is_written_as_minus_one():
    """Readers of recovery.json compare with that."""
    bare = Segment(kind="slot", phase="slots", start_ns=0, end_ns=NS)
    assert (bare.slack_ns, bare.budget_ns, bare.enough_ns) == (-1, -1, -1)


@pytest.mark.parametrize(
    ("held", "fault", "since"),
    [
        ({}, {}, 3),
        ({"start_ns": NS}, {}, 2),  # since the effect
        ({"start_ns": 5 * NS}, {}, 5),  # it began with the failover
        ({"end_ns": 8 * NS + 5_000_000}, {}, 3),
        ({"end_ns": 8 * NS - 5_000_000}, {}, 3),
        ({"end_ns": 8 * NS + 5_000_001}, {}, 5),
        ({"end_ns": 8 * NS - 5_000_001}, {}, 5),
        ({"who": "ResourceManager"}, {}, 5),
        ({"what": "tm-0-2"}, {}, 5),
        ({"option": "p"}, {}, 5),
        ({"outcome": Outcome.COMPLETED}, {}, 5),
        ({"outcome": Outcome.FIRED}, {}, 3),
        ({}, {"targets": '["*->tm-0"]'}, 3),
        ({}, {"targets": '["*"]'}, 5),  # no process in particular
        ({}, {"kind": "frames.drop"}, 5),  # it silences no process
        ({}, {"kind": "network.partition", "plane": "data"}, 5),
        ({}, {"kind": "network.partition", "plane": "rpc"}, 3),
    ],
)
def test_a_failover_that_joined_an_outage_begins_with_a_wait_of_an_earlier_fault_only(
    held: dict[str, Any], fault: dict[str, Any], since: float
):
    """The fault took effect at 2 s. Heartbeats of its TaskManager have been missing since 3 s, and the failover at 5 s waits for them until 8 s."""
    wait = waited("heartbeat", 3, 8, who="JobMaster", what="tm-0-1", option="o", outcome=Outcome.EXPIRED)
    path = [part(5, 8, "heartbeat", "tm-0-1", who="JobMaster"), part(8, 9, "slot")]
    earlier = [effect(**{"kind": "process.pause", "span": (2, 10), "targets": '["tm-0"]'} | fault)]
    found = since_earlier_fault([replace(wait, **held)], path, earlier, 2 * NS)
    assert found == (replace(path[0], start_ns=since * NS), path[1])


@pytest.mark.parametrize(
    ("kind", "begun", "slack_s", "saved_s"),
    [
        ("network.partition", 2, 4.5, 5),  # no more than itself: it holds up the job that runs
        ("rpc.delay", 2, 4.5, 7.5),
        ("rpc.delay", 2, 4, 4),  # the deployment begins when the fault does
        ("rpc.delay", 2, 3.994, 3.994),
        ("rpc.delay", 2, 4.006, 7.006),
        ("rpc.delay", 5.5, 1, 4),
        ("rpc.delay", 1, 4.9, 4.9),  # it would have delayed the deployment anyway
        ("process.kill", 2, 4.5, 4.5),  # the job has to recover from it
    ],
)
def test_a_shorter_wait_also_saves_what_a_later_fault_delays(
    kind: str, begun: float, slack_s: float, saved_s: float
):
    """The wait is from 1 to 6 s. A deployment that the fault delays follows for 3 s."""
    own = part(1, 6, "restart-delay", option="d", slack_ns=round(slack_s * NS), next="x")
    rest = part(6, 9, "deployment", fault="f", outcome="completed")
    ((found, after),) = (
        r.segments for r in with_delays_avoided([round_of(own, rest)], [effect(kind, (begun, 9))])
    )
    assert (found.slack_ns, found.next, after) == (round(saved_s * NS), "x", rest)


@pytest.mark.parametrize(
    ("options", "begun", "saved_s"),
    [
        (("d", "d", ""), 4.1, (1, 4)),  # once, for both
        (("d", "d", ""), 4, (1, 1)),
        (("d", "o", ""), 5.5, (4, 4)),
        (("d", "o", ""), 4, (1, 1)),
        (("d", "d", "d"), 5.5, (1, 1)),  # a saving of its own
        (("", "", ""), 5.5, (1, 1)),  # of no option
    ],
)
def test_a_step_that_a_fault_delays_is_saved_once_for_each_option(
    options: tuple[str, str, str], begun: float, saved_s: tuple[int, int]
):
    """Two waits of 3 s, of each of which 1 s can be saved, and a deployment that the fault delays from 6 s on."""
    one, two, last = options
    waits = part(0, 3, option=one, slack_ns=NS), part(3, 6, option=two, slack_ns=NS)
    rounds = [round_of(waits[0]), round_of(waits[1], part(6, 9, "deployment", option=last, fault="f"))]
    ((first,), (second, _)) = (
        r.segments for r in with_delays_avoided(rounds, [effect("rpc.delay", (begun, 9))])
    )
    assert (first.slack_ns / NS, second.slack_ns / NS) == saved_s
