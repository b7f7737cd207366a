"""A TaskManager whose mailbox a fault holds up: since when it handles nothing, and until when."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.faults import check_faults, held_times
from testbed_runtime.checking.heldmessages import held_messages, relayed_losses
from testbed_runtime.core.waits import JOBMASTER_NAME, RM_NAME, Outcome, Wait
from tests.checking.test_recovery_path import path, wait
from tests.checking.test_rules import NS, effect
from tests.checking.written import at, event, wrote
from tests.manifests import trial_entry

SLOW = effect("rpc.delay", (0, 30), targets='["tm-1"]')
DELAYS = {"f": 6 * NS}
"""SLOW keeps each message for longer than heartbeats may be missing."""


def lost(start: float, end: float, **more: Any) -> Wait:
    given = {"who": RM_NAME, "what": "tm-1-1", "option": "heartbeat.timeout", "budget_ns": 5 * NS, **more}
    return wait("heartbeat", start, end, Outcome.EXPIRED, **given)


def registered(at: float, who: str = "tm-1-1", what: str = JOBMASTER_NAME) -> Wait:
    return wait("registration", at, at + 0.001, who=who, what=what)


def test_a_taskmanager_that_was_lost_handles_messages_when_it_registers_again():
    """It answered the last heartbeat at 0.9 s, was lost at 5.9 s, and took the request for its slot at 7 s. The second loss is the same."""
    waits = [
        lost(0.9, 5.9),
        lost(0.9, 5.9, who=JOBMASTER_NAME),
        registered(0.5),
        registered(7),
        registered(9),
    ]
    never = replace(effect("process.pause", (0, None), targets='["tm-1"]'), injected_ns=None)
    (found,) = held_messages(waits, [never, SLOW], DELAYS)
    assert (found.kind, found.who, found.fault) == ("stalled", "tm-1-1", "f")
    assert (found.start_ns, found.end_ns) == (round(0.9 * NS), 7 * NS)
    assert found.cause == "tm-1 to handle the messages in its mailbox, during the fault `f`"


@pytest.mark.parametrize(
    ("waits", "fault"),
    [
        ([lost(0.9, 5.9)], SLOW),  # it did not come back
        ([lost(0.9, 5.9), registered(7, who="tm-1-2")], SLOW),  # it was replaced
        ([lost(0.9, 5.9), registered(7, what=RM_NAME)], SLOW),  # as it does by itself
        ([replace(lost(0.9, 5.9), outcome=Outcome.COMPLETED), registered(7)], SLOW),
        ([lost(0.9, 5.9, option="heartbeat.interval × heartbeat.rpc-failure-threshold"), registered(7)], SLOW),
        ([lost(0.9, 5.9, who="tm-0-1"), registered(7)], SLOW),
        ([lost(0.9, 5.9), registered(7)], replace(SLOW, targets='["tm-0"]')),
        ([lost(0.9, 5.9), registered(7)], replace(SLOW, kind="network.partition")),
        ([lost(0.9, 5.9), registered(7)], replace(SLOW, injected_ns=round(5.9 * NS))),
        ([lost(0.9, 5.9), registered(7)], replace(SLOW, injected_ns=1, ended_ns=NS // 2)),
        ([lost(0.9, 5.9), registered(7)], replace(SLOW, injected_ns=None)),
    ],
)  # fmt: skip
def test_nothing_else_shows_that_messages_are_held_up(waits: list[Wait], fault: Any):
    """Only missing heartbeats of a TaskManager whose messages such a fault delays, and that is still there."""
    assert held_messages(waits, [fault], DELAYS) == []


@pytest.mark.parametrize(("delay_s", "blamed"), [(0.01, False), (5, False), (5.01, True)])
def test_a_message_that_is_kept_for_less_than_heartbeats_may_be_missing_explains_no_loss(
    delay_s: float, blamed: bool
):
    """Another reason must have kept the TaskManager silent for 5 s."""
    found = held_messages([lost(0.9, 5.9), registered(7)], [SLOW], {"f": round(delay_s * NS)})
    assert bool(found) is blamed


@pytest.mark.parametrize(
    ("kind", "span", "targets", "plane", "blamed"),
    [
        ("process.pause", (0.5, 9.5), "tm-1", "data", False),
        ("process.pause", (0.5, None), "tm-1", "data", False),
        ("process.pause", (3.4, 9.5), "tm-1", "data", False),  # half of the time
        ("process.pause", (3.5, 9.5), "tm-1", "data", True),
        ("process.pause", (0.5, 9.5), "tm-0", "data", True),
        ("process.pause", (0.5, 9.5), 'tm-0", "tm-1', "data", False),  # one of its targets
        ("heartbeats.mute", (0.5, 9.5), "tm-1", "data", False),
        ("network.partition", (0.5, 9.5), "tm-1", "rpc", False),
        ("network.partition", (0.5, 9.5), "tm-1", "both", False),
        ("network.partition", (0.5, 9.5), "tm-1", "data", True),
        ("network.stall", (0.5, 9.5), "jobmanager", "rpc", False),
        ("network.half-open", (0.5, 9.5), "tm-1->jobmanager", "rpc", False),
        ("network.half-open", (0.5, 9.5), "tm-1->tm-0", "both", True),
        ("network.latency", (0.5, 9.5), "tm-1", "rpc", True),
    ],
)  # fmt: skip
def test_a_fault_that_keeps_the_taskmanager_silent_owns_its_loss(
    kind: str, span: tuple[float, float | None], targets: str, plane: str, blamed: bool
):
    """Its heartbeats were missing from 0.9 s to 5.9 s, whatever its mailbox did."""
    other = effect(kind, span, fault="other", targets=f'["{targets}"]', plane=plane)
    found = held_messages([lost(0.9, 5.9), registered(7)], [other, SLOW], DELAYS)
    assert bool(found) is blamed


def test_a_taskmanager_that_is_lost_again_is_held_up_twice():
    """It registered with the JobMaster between the two losses."""
    waits = [lost(0.9, 5.9), registered(7), lost(8, 13), lost(8, 13, who=JOBMASTER_NAME), registered(15)]
    found = held_messages(waits, [SLOW], DELAYS)
    spans = [(round(w.start_ns / NS, 1), round(w.end_ns / NS, 1)) for w in found]
    assert spans == [(0.9, 7.0), (8.0, 15.0)]


@pytest.mark.parametrize(
    ("method", "kind", "since"),
    [
        ("CancelTask", "cancellation", 2),
        ("SubmitTask", "deployment", 2),
        ("SubmitTask", "cancellation", 0.9),  # another message
        ("RequestSlot", "slot", 0.9),  # from the ResourceManager, which asks when it likes
        ("", "cancellation", 0.9),
    ],
)
def test_a_mailbox_is_held_up_from_the_first_of_its_messages_on(method: str, kind: str, since: float):
    """The last heartbeat that it answered came 1.1 s before that. What it was sent before, it has handled."""
    sent = [wait(kind, start, 7, who=JOBMASTER_NAME) for start in (0.5, 2, 3)]
    (found,) = held_messages([lost(0.9, 5.9), registered(7), *sent], [SLOW], DELAYS, {"f": method})
    assert found.start_ns == round(since * NS)


def test_a_message_that_is_sent_after_the_fault_is_not_held():
    """The wait ends with the fault, at 2.5 s, and has begun before that."""
    sent = wait("deployment", 3, 7, who=JOBMASTER_NAME)
    waits = [lost(0.9, 5.9), registered(7), sent]
    (found,) = held_messages(waits, [replace(SLOW, ended_ns=5 * NS // 2)], DELAYS, {"f": "SubmitTask"})
    assert (found.start_ns, found.end_ns) == (round(0.9 * NS), 5 * NS // 2)


@pytest.mark.parametrize(
    ("measured", "held_s"),
    [
        ("", 2),
        ("no json", 2),
        ('{"states": {}}', 2),
        ("[1]", 2),
        ('{"counters": {"tm-0": {"delay_s": 1e999}, "tm-1": {"delay_s": NaN}}}', 2),
        ('{"counters": {"tm-0": {"delay_s": 1%s}}}' % ("0" * 400), 2),
        ('{"counters": {"tm-0": {"delay_s": true}}}', 2),
        ("[" * 100_000, 2),
        ('{"counters": [1]}', 2),
        ('{"counters": {"tm-0": 5, "tm-1": {"delay_s": "6"}}}', 2),
        ('{"counters": {"tm-0": {"delay_s": 1.0}, "tm-1": {"delay_s": 6.0}}}', 6),
        ('{"counters": {"tm-1": {}}}', 2),
    ],
)
def test_messages_are_held_for_as_long_as_their_target_counted(history: Any, measured: str, held_s: float):
    """Or for the delay of one of them, if that is longer. Another target has a mailbox of its own."""
    built = history.empty()
    built.add("supervisor", "faults", 30, fault="f", state="clean", measured=measured)
    entry = trial_entry({"faults": [{"name": "f", "params": {"delay_s": 2.0}}]})
    assert held_times(built.trial(), entry) == {"f": held_s * NS}


@pytest.mark.parametrize(
    ("measured", "late_s"),
    [
        ('{"sent_again_s": 1.5}', 1.5),
        ('{"sent_again_s": true}', 0),
        ('{"sent_again_s": 1e999}', 0),
        ('{"sent_again_s": -1}', 0),
        ("no json", 0),
    ],
)
def test_what_tcp_sends_again_after_a_partition_is_part_of_it(history: Any, measured: str, late_s: float):
    """The seconds until then are no catch-up. A damaged value adds nothing."""
    built = history.empty()
    for t, state, values in ((1, "injected", "{}"), (4, "ended", "{}"), (5, "clean", measured)):
        built.add(
            "supervisor",
            "faults",
            t,
            fault="cut",
            state=state,
            targets="[]",
            kind="network.partition",
            measured=values,
        )
    (cut,) = check_faults(built.trial(), trial_entry())
    assert (cut.begun_ns, cut.ended_ns) == (history.at(1), history.at(4 + late_s))


def test_slots_wait_for_a_taskmanager_that_handles_no_messages():
    """A lower timeout would have lost it sooner, and the job would have waited for it as long."""
    waits = [
        wait("cancellation", 0, 4.9, Outcome.EXPIRED, option="heartbeat.timeout"),
        lost(-0.1, 4.9),
        wait("slot", 4.9, 6),
        registered(6),
    ]
    assert path([*waits, *held_messages(waits, [SLOW], DELAYS)], 6) == [("stalled", 6)]
    assert [kind for kind, _ in path(waits, 6)] == ["cancellation", "slot"]


def test_each_loss_of_a_taskmanager_is_heard_by_the_jobmaster_on_its_own():
    """It registered again under its id, and was lost a second time."""
    reported = {"detector": RM_NAME, "taskmanager": "tm-1-1"}
    rows = [
        event("taskmanager.lost", "tm-1-1", 1, **reported),
        event("failover.failure", "1", 3, **reported),
        event("taskmanager.lost", "tm-1-1", 10, **reported),
        event("failover.failure", "2", 13, **reported),
    ]
    found = relayed_losses(wrote(*rows))
    assert [(w.start_ns, w.end_ns) for w in found] == [(at(1), at(3)), (at(10), at(13))]
