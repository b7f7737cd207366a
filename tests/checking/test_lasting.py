"""Waits that last over the end of a round: which wait that is, its parts, and what can be saved of them together."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.lasting import capped, continues, lasting_wait, share_slack
from testbed_runtime.checking.prices import prices
from testbed_runtime.core.judgement.recovery import Round, Segment
from tests.checking.test_rules import NS, waited


def part(start: float, end: float, kind: str = "replacement", what: str = "tm-0", **more: Any) -> Segment:
    given = {"phase": "", "who": "w", "text": "o = 1", "option": "o", "value": "1", **more}
    return Segment(kind=kind, what=what, start_ns=round(start * NS), end_ns=round(end * NS), **given)


@pytest.mark.parametrize(
    ("kind", "since", "until", "found"),
    [
        ("replacement", 1, 6, True),
        ("stalled", 1, 6, True),
        ("replacement", 3, 6, False),
        ("replacement", 1, 4, False),
        ("restart-delay", 1, 6, False),
        ("slot", 1, 6, False),
    ],
)
def test_a_wait_lasts_if_it_had_begun_before_the_round(kind: str, since: float, until: float, *, found: bool):
    """The path of a round begins at 3 s, and has this wait until 5 s. A failure ends delays and requests."""
    wait = waited(kind, since, until, who="w", what="tm-0")
    other = waited(kind, 0, 9, who="w", what="tm-1")
    assert lasting_wait([other, wait], [part(3, 5, kind)]) == (wait if found else None)
    assert lasting_wait([wait], []) is None
    assert lasting_wait([wait], [part(3, 3.02, kind)]) is None, "it ended together with the round before"


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


@pytest.mark.parametrize(
    ("slacks", "needless", "expected"),
    [
        ((-1, -1, -1), (False, False), [(-1, ""), (-1, ""), (-1, "")]),
        ((-1, -1, 1), (False, False), [(0, "c"), (0, "c"), (1, "c")]),
        ((-1, 4, 9), (False, False), [(0, "b"), (1, "b"), (-1, "")]),
        ((8, 1, 1), (True, True), [(3, "a"), (-1, ""), (-1, "")]),
        ((8, 6, 1), (False, True), [(1, "b"), (-1, ""), (-1, "")]),
    ],
)
def test_no_part_can_be_made_shorter_than_another_one_allows(
    slacks: tuple[int, ...], needless: tuple[bool, ...], expected: list[tuple[int, str]]
):
    """The parts are 4, 2 and 3 s long. A round that began only because the wait was too long limits nothing."""
    spans = [(0, 4), (4, 6), (6, 9)]
    parts = [
        replace(part(*span), slack_ns=slack * NS if slack >= 0 else -1, next=name if slack >= 0 else "")
        for span, slack, name in zip(spans, slacks, "abc", strict=True)
    ]
    around = part(9, 10, "slot", slack_ns=99 * NS)
    segments = [(part(-1, 0, "slot"), parts[0]), (parts[1],), (parts[2], around)]
    rounds = [
        Round(number=n, start_ns=s[0].start_ns, end_ns=s[-1].end_ns, segments=s)
        for n, s in enumerate(segments, start=1)
    ]
    found = share_slack(rounds, (False, *needless))
    chain = [found[0].segments[1], found[1].segments[0], found[2].segments[0]]
    assert [(max(s.slack_ns // NS, -1), s.next) for s in chain] == expected
    assert (found[0].segments[0], found[2].segments[1]) == (segments[0][0], around)
    assert capped(found[2].segments)[1].slack_ns == NS


def test_rounds_without_a_common_wait_stay_as_they_are():
    """Also empty ones."""
    rounds = [
        Round(number=1, start_ns=0, end_ns=NS, segments=(part(0, 1, "slot"),)),
        Round(number=2, start_ns=NS, end_ns=NS),
        Round(number=3, start_ns=NS, end_ns=2 * NS, segments=(part(1, 2),)),
    ]
    assert share_slack(rounds, (False, True, True)) == tuple(rounds)
    assert share_slack((), ()) == ()
