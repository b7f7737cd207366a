"""Prices and margins: what each owner cost, and how close the other waits came to their limit."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.prices import margins, prices
from testbed_runtime.core.judgement.recovery import UNATTRIBUTED, Margin, Segment
from testbed_runtime.core.waits import Outcome, Wait
from tests.checking.test_rules import NS, waited


def test_prices_add_up_per_owner_and_are_sorted():
    """Largest first; what is unattributed has no price. An owner has the kind of its longest part, or of the one with the option."""

    def part(kind: str, start: int, end: int, text: str, **more: Any) -> Segment:
        return Segment(kind=kind, phase="", start_ns=start * NS, end_ns=end * NS, text=text, **more)

    parts = [
        part("slot", 0, 1, "b"), part("slot", 1, 3, "o = 1", option="o", value="1"), part(UNATTRIBUTED, 3, 9, "x"),
        part("partition", 9, 12, "o = 1"), part("slot", 12, 13, "a"), part("jobmanager", 13, 14, "c"), part("stalled", 14, 16, "c"),
    ]  # fmt: skip
    assert [(p.text, p.seconds, p.kind, p.option, p.value, p.count) for p in prices(parts)] == [
        ("o = 1", 5.0, "slot", "o", "1", 2),
        ("c", 3.0, "stalled", "", "", 2),
        ("a", 1.0, "slot", "", "", 1),
        ("b", 1.0, "slot", "", "", 1),
    ]


def test_the_margin_of_an_option_is_its_closest_wait():
    """Only waits that completed within the span and had a budget count. A heartbeat beyond its budget had a process that stood still."""

    def wait(kind: str, start: float, end: float, budget: float, option: str = "o", **more: Any) -> Wait:
        return waited(kind, start, end, option=option, value="v", budget_ns=round(budget * NS), **more)

    waits = [
        wait("slot", 1, 2, 10), wait("slot", 2, 6, 10), wait("slot", 4, 6, 10), wait("slot", 6, 20, 15),
        wait("slot", 0, 1, 1), wait("slot", 2, 5, -1), wait("slot", 3, 3, 1, "zero"), wait("slot", 2, 5, 4, ""),
        wait("slot", 2, 5, 4, "expired", outcome=Outcome.EXPIRED), wait("heartbeat", 2, 5, 2, "h"), wait("heartbeat", 2, 5, 3, "full"),
        wait("partition", 2, 5, 2, "over"), wait("partition", 2, 5, 0, "none"),
        wait("slot", 2, 4, 5), wait("cancellation", 2, 5, 2, "kill", who="JobMaster"),
    ]  # fmt: skip
    found = margins(waits, NS, 10 * NS)
    assert [(m.option, m.waited_s, m.budget_s) for m in found] == [
        ("over", 3.0, 2.0),
        ("full", 3.0, 3.0),
        ("o", 4.0, 10.0),
    ]
    assert [m.left_s for m in found] == [0.0, 0.0, 6.0]
    assert [m.exceeded for m in found] == [True, False, False]
    assert not Margin(option="o", value="", kind="slot", budget_s=1.0, waited_s=1.0005).exceeded
    assert Margin(option="o", value="", kind="slot", budget_s=1.0, waited_s=1.0015).exceeded


def test_a_delay_that_grew_from_its_option_is_one_owner():
    """A value of the option costs the sum, however far each restart had grown; `up to` names the longest. Another option and a cause
    with the same words stay apart."""
    key, most = "restart.initial-backoff", "restart.max-backoff"
    values = ["1 s", "1 s, now 2 s", "1 s, now 16 s", "1 s, now 8 s"]
    parts, now = [], 0
    for option, value, length in [
        *((key, v, 4) for v in values),
        (most, "1 min", 9),
        ("", "a cause, now it", 1),
    ]:
        text = f"{option} = {value}" if option else value
        parts.append(
            Segment(kind="restart-delay", phase="", start_ns=now, end_ns=now + length * NS, text=text, option=option, value=value if option else "")
        )  # fmt: skip
        now += length * NS
    assert [(p.text, p.seconds, p.value, p.count) for p in prices(parts)] == [
        (f"{key} = 1 s, now up to 16 s", 16.0, "1 s, now up to 16 s", 4),
        (f"{most} = 1 min", 9.0, "1 min", 1),
        ("a cause, now it", 1.0, "", 1),
    ]
    assert [p.text for p in prices(parts[1:2])] == [f"{key} = 1 s, now 2 s"]


@pytest.mark.parametrize(
    ("one", "counts"),
    [
        (("slot", 9, 10.005), True),
        (("slot", 9, 10.006), False),
        (("jobmanager", 10, 12), True),
        (("jobmanager", 10.001, 12), False),
        (("cancellation", 2, 5), True),
        (("stalled", 2, 5, "JobMaster"), True),
        (("cancellation", 2, 5, "JobMaster"), False),
    ],
)
def test_a_wait_has_a_margin_in_the_span_in_which_it_ended(one: tuple[Any, ...], *, counts: bool):
    """The span ends at 10 s, and clocks differ by 5 ms. Only a report to the JobManager may be answered later; that the JobMaster
    waits for a cancellation has no limit of its own."""
    kind, start, end, who = (*one, "tm-0-1")[:4]
    wait = waited(kind, start, end, who=who, option="o", value="v", budget_ns=9 * NS)
    assert len(margins([wait], NS, 10 * NS)) == counts


@pytest.mark.parametrize(("gap", "fault", "count"), [(0, "pause", 1), (1, "pause", 2), (0, "", 2)])
def test_what_a_fault_held_up_one_after_the_other_is_one_wait(gap: int, fault: str, count: int):
    """A TaskManager waits for a paused JobManager, which then stands still until the end of the pause."""
    parts = [
        Segment(kind=kind, phase="", start_ns=start * NS, end_ns=end * NS, text="the JobManager's return", fault=fault)
        for kind, start, end in (("jobmanager", 0, 1), ("stalled", 1 + gap, 9))
    ]  # fmt: skip
    assert [p.count for p in prices(parts)] == [count]
