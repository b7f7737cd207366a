"""The critical path over waits, and the trace that shows it."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.apart import missing_taskmanagers
from testbed_runtime.checking.catchup import CatchUp
from testbed_runtime.checking.common import windows
from testbed_runtime.checking.criticalpath import attribute
from testbed_runtime.checking.faults import check_faults
from testbed_runtime.checking.prices import prices
from testbed_runtime.checking.rounds import FirstRecord, last_due_arrival, outages_of, start_of
from testbed_runtime.checking.trace import PATH, ROUNDS, trace, trace_events
from testbed_runtime.core.judgement.recovery import UNATTRIBUTED, Segment, TrialRecovery
from testbed_runtime.core.waits import EVERYTHING, KINDS, Outcome, Wait
from tests.manifests import trial_entry

SECOND = 1_000_000_000


def wait(kind: str, start: float, end: float, outcome: Outcome = Outcome.COMPLETED, **more: Any) -> Wait:
    """A wait over seconds."""
    more = {"wait": f"{kind}/{start:g}", "who": "JobMaster", "what": ""} | more
    return Wait(
        kind=kind, start_ns=round(start * SECOND), end_ns=round(end * SECOND), outcome=outcome, **more
    )


def path(waits: list[Wait], end: float, *, steps: tuple[Wait, ...] = (), detected: float = 0.0) -> list[tuple[str, float]]:  # fmt: skip
    """(kind, seconds) of each segment from 0 to `end`."""
    return [(s.kind, s.seconds) for s in segments(waits, end, steps=steps, detected=detected)]


def segments(waits: list[Wait], end: float, *, steps: tuple[Wait, ...] = (), detected: float = 0.0) -> tuple[Segment, ...]:  # fmt: skip
    last = wait("catch-up", end, end)
    return attribute(waits, steps, start=0, end=last.end_ns, last=last, detected=round(detected * SECOND))


def test_an_iteration_owns_the_time_in_which_its_result_is_silent():
    """A channel has no answer before the iteration has ended. A failure in the middle interrupted the iteration."""
    waits = [
        wait("deployment", 0, 1),
        wait("iteration", 1, 3, Outcome.CANCELLED, who="loop-0"),
        wait("partition", 1, 3.001, Outcome.CANCELLED, who="sink-0"),
        wait("connection", 2.9, 3),
        wait("deployment", 3, 4),
        wait("iteration", 4, 8, who="loop-0"),
        wait("partition", 4, 8.1, who="sink-0"),
    ]
    found = path(waits, 8.1, detected=3)
    assert [kind for kind, _ in found] == [
        "deployment",
        "iteration",
        "connection",
        "deployment",
        "iteration",
        "partition",
    ]
    assert sum(seconds for kind, seconds in found if kind == "iteration") == pytest.approx(5.9, abs=0.01)


DELAY: dict[str, Any] = {"option": "restart-strategy.fixed-delay.delay", "value": "3 s"}


@pytest.mark.parametrize(
    ("other", "slack"),
    [
        # the slots that the job needs after the delay would have been there after 1.1 s
        (wait("registration", 1, 1.1), (1.9, KINDS["registration"].doc)),
        (wait("start", 0.5, 2.5), (0.5, KINDS["start"].doc)),
        (wait("cancellation", 0, 2, Outcome.EXPIRED, option="heartbeat.timeout", value="2 s"), (1, "heartbeat.timeout = 2 s")),
        # another detection was not needed, and a pause of any process delays nothing by itself
        (wait("heartbeat", 0, 2, Outcome.EXPIRED, option="heartbeat.timeout", value="2 s"), None),
        (wait("stalled", 1, 2), None),
        # it begins after the delay, so it comes earlier with a shorter one
        (wait("registration", 3, 3.05), None),
        # it ended before the delay began, or within the tolerance of that
        (wait("registration", -1, 0.02), None),
        # it ends later than the step, which did not wait for it
        (wait("registration", 1, 3.5), None),
        # the same option makes both of them shorter
        (wait("cancellation", 0, 2, Outcome.EXPIRED, **DELAY), None),
        # a TaskManager that gives the JobManager up registers again, while the others are deployed to
        (wait("jobmanager", -2, 2, Outcome.EXPIRED, option="heartbeat.timeout", value="4 s", who="tm-1-1"), None),
        (wait("jobmanager", -2, 2), (1, KINDS["jobmanager"].doc)),
        # nothing follows from it
        (wait("registration", 1, 1.1, Outcome.FAILED), None),
        (wait("alignment", 1, 2), None),
    ],
)  # fmt: skip
def test_the_slack_of_an_option_ends_where_another_wait_decides(other: Wait, slack: tuple[float, str] | None):
    """The restart waits 3 s for its delay, and its slots come 0.2 s later."""
    waits = [wait("restart-delay", 0, 3, Outcome.FIRED, **DELAY), other, wait("slot", 3, 3.2)]
    found = {s.kind: s for s in segments(waits, 3.2)}
    delay = found["restart-delay"]
    assert (delay.slack_ns, delay.next) == (
        (-1, "") if slack is None else (round(slack[0] * SECOND), slack[1])
    )
    assert found["slot"].slack_ns == -1  # no option ended it


def test_a_taskmanager_that_comes_during_a_detection_is_needed_only_for_slots():
    """Its process starts 0.5 s before the loss is known, and registers in the restart delay: the detection can be 1.5 s shorter."""
    timeout = {"option": "heartbeat.timeout", "value": "2 s"}
    waits = [
        wait("heartbeat", 0, 2, Outcome.EXPIRED, **timeout),
        wait("cancellation", 2, 2.01),
        wait("restart-delay", 2, 4, Outcome.FIRED, **DELAY),
        wait("replacement", 0, 0.5, Outcome.FIRED, option="replaceLost", value="500 ms"),
        wait("start", 0.5, 1.5),
        wait("registration", 1.5, 2.5),
        wait("slot", 4, 4.2),
    ]
    found = {s.kind: s for s in segments(waits, 4.2, detected=2)}
    assert [found[kind].slack_ns / SECOND for kind in ("heartbeat", "restart-delay")] == [1.5, 1.5]


def test_slots_are_put_off_by_two_options_before_and_after_a_taskmanager_registers():
    """The JobMaster requests them, the one that is missing is free when a TaskManager has registered, and that registers with the
    JobMaster before it offers the slot."""
    interval = {"option": "slot.request.max-interval", "value": "20 ms"}
    delay = {"option": "slotmanager.requirement-check.delay", "value": "50 ms", "who": "ResourceManager"}
    waits = [
        wait("restart-delay", 0, 3, Outcome.FIRED, **DELAY),
        wait("slot-request", 3, 3.02, Outcome.FIRED, **interval),
        wait("slot-request", 3.02, 3.07, Outcome.FIRED, **delay),
        wait("registration", 1, 7, who="tm-1-2", what="ResourceManager"),
        wait("slot-request", 7, 7.05, Outcome.FIRED, **delay),
        wait("registration", 7.05, 8, who="tm-1-2", what="JobMaster"),
        wait("slot", 3, 8.01),
    ]
    late = [("slot-request", 0.05), ("registration", 0.95), ("slot", 0.01)]
    assert path(waits, 8.01) == [("restart-delay", 1), ("registration", 6), *late]
    at_once = [*waits[:3], wait("slot", 3, 3.08)]
    found = [("restart-delay", 3), ("slot-request", 0.02), ("slot-request", 0.05), ("slot", 0.01)]
    assert [(kind, round(s, 3)) for kind, s in path(at_once, 3.08)] == found
    started = [
        wait("slot-request", 7, 7.05, Outcome.FIRED, **delay),
        wait("start", 1, 7.06),
        wait("slot", 0, 7.07),
    ]
    assert "slot-request" not in [kind for kind, _ in path(started, 7.07)], "the process came after it"


@pytest.mark.parametrize(
    ("kind", "begun", "unknown"), [("registration", 1, -1), ("jobmanager", -2, 1_900_000_000)]
)
def test_a_job_with_spare_slots_does_not_wait_for_a_taskmanager(kind: str, begun: int, unknown: int):
    """It would have been deployed to the others. A job that misses slots waits for those that come first. One that lost no TaskManager may
    still need each of them, if its JobManager is the one that does not answer."""
    waits = [
        wait("restart-delay", 0, 3, Outcome.FIRED, **DELAY),
        wait(kind, begun, 1.1, who="tm-2-2"),
        wait("slot", 3, 3.2),
    ]
    last = wait("catch-up", 3.2, 3.2)
    for awaited, slack_ns in (
        (None, 1_900_000_000),
        (("tm-2",), 1_900_000_000),
        (("tm-3",), -1),
        ((), unknown),
    ):
        needed = None if awaited is None else lambda _, names=awaited: names
        found = attribute(waits, (), start=0, end=last.end_ns, last=last, detected=0, awaited=needed)
        assert {s.slack_ns for s in found if s.kind == "restart-delay"} == {slack_ns}


@pytest.mark.parametrize(
    ("replicas", "slots", "lost", "missing"),
    [(4, 1, 0, 1), (4, 1, 1, 1), (5, 1, 1, 0), (5, 1, 3, 2), (2, 2, 1, 1), (2, 3, 1, 1), (3, 2, 1, 0), (None, 1, 1, 0)],
)  # fmt: skip
def test_taskmanagers_are_missing_if_the_slot_sharing_groups_need_more(
    replicas: int | None, slots: int, lost: int, missing: int
):
    """Two groups: 3 of the larger vertex of one, and 1."""
    vertices = [{"parallelism": 3}, {"parallelism": 2}, {"parallelism": 1, "slotSharingGroup": "out"}]
    managers = {"slots": slots} if replicas is None else {"slots": slots, "replicas": replicas}
    assert (
        missing_taskmanagers(trial_entry({"job": {"vertices": vertices, "taskManagers": managers}}), lost)
        == missing
    )
    assert missing_taskmanagers(trial_entry({"job": {"taskManagers": managers}}), lost) == 0


@pytest.mark.parametrize(
    ("groups", "spare"),
    [(("", "default"), True), (("a", "a"), True), (("a", "b"), False), (("", "a"), False)],
)
def test_vertices_of_one_slot_sharing_group_need_the_slots_of_the_largest(
    groups: tuple[str, ...], spare: bool
):
    """One of 3 slots remains if two vertices with parallelism 2 share theirs. A vertex without a group is in the default one."""
    vertices = [{"parallelism": 2, **({"slotSharingGroup": g} if g else {})} for g in groups]
    managers = {"slots": 1, "replicas": 3}
    assert (
        missing_taskmanagers(trial_entry({"job": {"vertices": vertices, "taskManagers": managers}}), 1) == 0
    ) is spare


def test_of_several_waits_the_one_with_the_least_slack_decides():
    """Also one that a later step needed: the deployment waits for the function of another task."""
    waits = [
        wait("restart-delay", 0, 3, Outcome.FIRED, **DELAY),
        wait("registration", 0.5, 1),
        wait("start", 0.5, 2),
        wait("slot", 3, 3.2),
    ]
    (delay,) = (s for s in segments(waits, 3.2) if s.kind == "restart-delay")
    assert (delay.slack_ns, delay.next) == (SECOND, KINDS["start"].doc)


@pytest.mark.parametrize(
    ("lost", "more", "slack"),
    [
        # its registration shows the loss, so of the detection and the delay only the delay is left
        ("tm-0-1", (), (8 - 3, "restart-strategy.fixed-delay.delay = 3 s")),
        ("tm-1-1", (), (8 - 5, "restart-strategy.fixed-delay.delay = 3 s")),
        # so does a cancellation that ends with the loss
        ("tm-0-1", (wait("cancellation", 0, 7, Outcome.EXPIRED, option="heartbeat.timeout", value="7 s"), wait("fencing", 0, 7, Outcome.EXPIRED, what="tm-0-1", option="heartbeat.timeout", value="7 s")), (8 - 3, "restart-strategy.fixed-delay.delay = 3 s")),
        ("tm-0-1", (wait("cancellation", 0, 7, Outcome.EXPIRED, option="heartbeat.timeout", value="7 s"), wait("fencing", 0, 7, Outcome.EXPIRED, what="tm-1-1", option="heartbeat.timeout", value="7 s")), (1, "heartbeat.timeout = 7 s")),
        # a TaskManager registers with the JobMaster because its slot is needed then
        ("tm-0-1", (wait("registration", 2, 8, what="JobMaster"),), (8 - 3, "restart-strategy.fixed-delay.delay = 3 s")),
        # and it is asked for the slot only after the delay
        ("tm-0-1", (wait("registration", 5, 7.5, what="JobMaster"),), (2.5, "restart-strategy.fixed-delay.delay = 3 s")),
        # what did not wait for the detection is not earlier with an earlier replacement, so it decides sooner
        ("tm-0-1", (wait("start", 1, 4),), (8 - 4, KINDS["start"].doc)),
        ("tm-0-1", (wait("cancellation", 2, 4),), (8 - 3, "restart-strategy.fixed-delay.delay = 3 s")),
        # it registers again when a fault has ended that began while the replacement ran
        ("tm-0-1", (wait("stalled", 4, 7, who=EVERYTHING), wait("registration", 7, 7.5)), (0.5, KINDS["stalled"].doc)),
    ],
)  # fmt: skip
def test_an_earlier_replacement_shows_the_loss_that_it_replaces(
    lost: str, more: tuple[Wait, ...], slack: tuple[float, str]
):
    """A TaskManager was lost at 0 s and noticed at 2 s. The restart waits 3 s for its delay, and for the replacement until 8 s."""
    waits = [
        wait("heartbeat", 0, 2, Outcome.EXPIRED, what=lost, option="heartbeat.timeout", value="2 s"),
        wait("restart-delay", 2, 5, Outcome.FIRED, **DELAY),
        wait("replacement", 0, 8, Outcome.FIRED, what="tm-0", option="replaceLost", value="8 s"),
        wait("slot", 5, 8),
        *more,
    ]
    (part,) = (s for s in segments(waits, 8, detected=2) if s.kind == "replacement")
    assert (part.slack_ns / SECOND, part.next) == slack


SPANS = st.tuples(st.integers(-5, 40), st.integers(0, 30))
WAITS = st.lists(
    st.builds(
        lambda kind, span, outcome, number, option: Wait(
            wait=f"p/{number}", kind=kind, who="tm-0-1", what="", start_ns=span[0] * SECOND // 4,
            end_ns=(span[0] + span[1]) * SECOND // 4, outcome=outcome, option=option, after=(f"p/{number // 2}",),
        ),
        st.sampled_from(sorted(KINDS)), SPANS, st.sampled_from(list(Outcome)), st.integers(0, 20), st.sampled_from(["", "a"]),
    ),
    max_size=25,
)  # fmt: skip


@given(waits=WAITS, steps=WAITS, end=st.integers(0, 40), detected=st.integers(0, 10))
def test_segments_have_no_gaps_no_overlaps_and_sum_to_the_total(
    waits: list[Wait], steps: list[Wait], end: int, detected: int
):
    """With any recorded waits, every nanosecond has one owner, or none and is shown."""
    last = wait("catch-up", end / 8, end / 4)
    found = attribute(waits, steps, start=0, end=last.end_ns, last=last, detected=detected * SECOND // 4)
    if end:
        assert (found[0].start_ns, found[-1].end_ns) == (0, last.end_ns)
    assert all(s.start_ns < s.end_ns for s in found)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found))
    owned = sum(p.seconds for p in prices(found)) + sum(s.seconds for s in found if s.kind == UNATTRIBUTED)
    assert abs(owned - last.end_ns / SECOND) < 1e-6


def test_of_parallel_waits_the_one_that_ended_last_owns_the_time():
    """The restart delay hides the cancellation: a faster cancellation would change nothing."""
    waits = [
        wait("heartbeat", -1, 2, Outcome.EXPIRED, option="heartbeat.timeout", value="3 s"),
        wait("cancellation", 2, 3),
        wait("restart-delay", 2, 5, Outcome.FIRED, option="d", value="3 s"),
    ]
    assert path(waits, 5, detected=2) == [("heartbeat", 2), ("restart-delay", 3)]


def test_a_late_partition_owns_its_share_of_the_catch_up():
    """A sink that already receives from one producer waits for another: that is not the capacity of the job. What was left
    after the partition came is, however long it took."""
    waits = [wait("connection", 0, 1), wait("deployment", 1, 2), wait("partition", 2, 6, who="sink-0")]
    last = wait("catch-up", 2, 20)
    found = attribute(waits, (), start=0, end=last.end_ns, last=last, detected=SECOND)
    assert [(s.kind, s.seconds) for s in found] == [
        ("connection", 1),
        ("deployment", 1),
        ("partition", 4),
        ("catch-up", 14),
    ]


def test_what_no_wait_and_no_step_covers_is_unattributed():
    """A gap is shown. A step that recorded its span closes it."""
    waits = [wait("connection", 0, 1), wait("deployment", 3, 4)]
    assert path(waits, 4, detected=1) == [("connection", 1), (UNATTRIBUTED, 2), ("deployment", 1)]
    step = (wait("slot", 1, 2.5),)
    assert path(waits, 4, steps=step, detected=1) == [("connection", 1), ("slot", 1.5), (UNATTRIBUTED, 0.5), ("deployment", 1)]  # fmt: skip


def test_a_step_between_events_is_marked_as_such():
    """It has an owner, but no process recorded the wait."""
    waits = [wait("connection", 0, 1), wait("deployment", 2, 4)]
    step = wait("slot", 1, 2, wait="")
    found = segments(waits, 4, steps=(step,), detected=1)
    assert [(s.kind, s.from_events) for s in found] == [
        ("connection", False),
        ("slot", True),
        ("deployment", False),
    ]


def test_a_gap_belongs_to_the_recorded_wait_of_its_step():
    """The deployment of all tasks is in progress until after the end: between those of single tasks, it owns the time."""
    option = {"option": "headgate.jobmanager.service-time", "value": "1 s"}
    step = wait("deployment", 1, 4, wait="", cause="deployment of the tasks")
    waits = [
        wait("connection", 0, 1),
        wait("deployment", 3, 4, wait="jobmanager-1/8", what="map-0"),
        wait("deployment", 1, 10, Outcome.FIRED, wait="jobmanager-1/7", what="6 tasks", **option),
    ]
    found = segments(waits, 4, steps=(step,), detected=1)
    assert [(s.option, s.seconds, s.from_events) for s in found][1:] == [
        (option["option"], 2, False),
        ("", 1, False),
    ]
    without = segments(waits[:2], 4, steps=(step,), detected=1)
    assert [(s.text, s.seconds, s.from_events) for s in without][1] == ("deployment of the tasks", 2, True)


def test_an_owner_has_one_price_whether_its_option_fired_or_its_text_names_it():
    """A busy JobManager holds up many kinds of waits, and some of them record its service time as their option."""
    parts = segments([wait("connection", 0, 1), wait("slot", 1, 2, cause="o = 1 s"), wait("deployment", 2, 4, Outcome.FIRED, option="o", value="1 s")], 4, detected=1)  # fmt: skip
    (first, _) = prices(parts)
    assert (first.text, first.option, first.value, first.seconds, first.count) == (
        "o = 1 s",
        "o",
        "1 s",
        3,
        2,
    )


def test_a_cancellation_that_hangs_belongs_to_the_timeout_of_its_task():
    """The TaskManager terminates itself after 4 s; until its loss is noticed, the heartbeats own the time."""
    lost = {"option": "heartbeat.timeout", "value": "2 s"}
    waits = [
        wait("connection", 0, 1),
        wait("cancellation", 1, 7, Outcome.EXPIRED, **lost),
        wait("cancellation", 1, 5, Outcome.EXPIRED, wait="tm-0-1/3", who="count-0", option="task.cancellation.timeout", value="4 s"),
        wait("deployment", 7, 8),
    ]  # fmt: skip
    found = [(s.option, s.seconds) for s in segments(waits, 8, detected=1)]
    assert found == [("", 1), ("task.cancellation.timeout", 4), ("heartbeat.timeout", 2), ("", 1)]


def test_a_process_that_opens_functions_does_not_wait_for_anything_else():
    """The same TaskManager stood still, and its report took as long: both because of the functions. Another one was paused."""
    opening = wait("open", 2, 5, wait="tm-0-1/2", who="map-0")
    waits = [
        wait("connection", 0, 1),
        opening,
        wait("stalled", 1.9, 5, wait="tm-0-1/1", who="tm-0-1"),
        wait("jobmanager", 2, 5, wait="tm-0-1/3", who="map-0"),
        wait("deployment", 1, 5),
    ]
    assert path(waits, 5, detected=1) == [("connection", 1), ("deployment", 1), ("open", 3)]
    paused = [*waits[:1], wait("stalled", 1.9, 5, wait="tm-1-1/1", who="tm-1-1"), wait("deployment", 1, 5)]
    assert path([*paused, opening], 5, detected=1)[1:] == [("deployment", 0.9), ("stalled", 3.1)]


def test_a_frozen_taskmanager_does_not_own_the_time_until_it_is_given_up():
    """The ResourceManager gives the frozen TaskManager up after `heartbeat.timeout`, 5 s. That it stands still for 8 s, and hears no
    answers of the JobManager meanwhile, explains nothing after that: 5.0 + 0.2 (slots) + 0.3 (a report) + 0.1 (deployment) = 5.6 s."""
    frozen = [
        wait("stalled", 0.1, 8.1, wait="tm-2/1", who="tm-2-1"),
        wait("jobmanager", -0.1, 8.4, wait="tm-2/2", who="tm-2-1"),
    ]
    beat = wait("heartbeat", 0.0, 5.0, Outcome.EXPIRED, option="heartbeat.timeout", value="5 s")
    report = wait("jobmanager", 5.2, 5.5, wait="tm-1/1", who="tm-1-1")
    slots = wait("slot", 5.0, 5.2)
    found = path([*frozen, beat, slots, report], 5.6, steps=(wait("deployment", 5.2, 5.6),), detected=5.0)
    assert [(kind, round(seconds, 3)) for kind, seconds in found] == [
        ("heartbeat", 5.0),
        ("slot", 0.2),
        ("jobmanager", 0.3),
        ("deployment", 0.1),
    ]


def test_a_wait_for_slots_belongs_to_the_taskmanager_that_brought_them():
    """The slot request is a container: what ended it owns the time, the rest stays with it."""
    waits = [
        wait("connection", 0, 1),
        wait("slot", 1, 10),
        wait("start", 4, 8),
        wait("registration", 8, 9.9),
        wait("deployment", 10, 11),
    ]
    kinds = [kind for kind, _ in path(waits, 11, detected=1)]
    assert kinds == ["connection", "slot", "start", "registration", "slot", "deployment"]


def test_slots_that_a_silent_taskmanager_brought_belong_to_its_heartbeat_timeout():
    """The JobManager is killed and is back after 2 s. Its TaskManagers give the old one up 4.9 s after the kill, register, and
    free their slots 0.1 s later."""
    waits = [
        wait("start", 0, 2, who="supervisor"),
        wait("jobmanager", -0.1, 4.9, Outcome.EXPIRED, who="tm-0-1", option="heartbeat.timeout", value="5 s"),
        wait("registration", 4.99, 5.0, who="tm-0-1"),
        wait("slot", 2, 5.001),
        wait("deployment", 5.001, 5.002),
    ]
    found = prices(segments(waits, 5.002, detected=2))
    assert (found[0].option, found[0].seconds) == ("heartbeat.timeout", pytest.approx(4.9))


@pytest.mark.parametrize("kind", ["heartbeat", "fencing"])
def test_a_judge_that_stood_still_owns_the_seconds_that_its_heartbeats_were_late(kind: str):
    """The JobManager is paused for 4 s. A TaskManager dies after 1 s, and is given up 3 s later than without the pause."""
    limit = {"option": "heartbeat.interval", "value": "1 s × 2", "budget_ns": 2 * SECOND}
    waits = [
        wait("stalled", 0.05, 4, who="jobmanager-1", wait="jobmanager-1/1"),
        wait("jobmanager", 0, 4, who="everything", what="jobmanager", wait="gc/jobmanager"),
        wait(kind, -0.1, 4.9, Outcome.EXPIRED, wait="jobmanager-1/2", **limit),
        wait("restart-delay", 4.9, 5.4, Outcome.FIRED, option="d", value="500 ms"),
    ]
    assert path(waits, 5.4, detected=4.9) == [("jobmanager", 4), (kind, 0.9), ("restart-delay", 0.5)]
    alone = [w for w in waits if w.kind != "jobmanager"]
    assert path(alone, 5.4, detected=4.9)[-3:] == [("stalled", 3.95), (kind, 0.9), ("restart-delay", 0.5)]


def test_a_failure_after_the_restart_began_did_not_cause_it():
    """The connection was closed first; the heartbeat that expired later only confirmed it."""
    waits = [
        wait("connection", 0, 1),
        wait("heartbeat", -1, 4, Outcome.EXPIRED),
        wait("fencing", 1, 4, Outcome.EXPIRED),
    ]
    assert path([*waits, wait("slot", 4, 5)], 5, detected=1) == [
        ("connection", 1),
        ("fencing", 3),
        ("slot", 1),
    ]


def test_only_an_expired_or_fired_wait_belongs_to_its_option():
    """A completed one belongs to its cause, and its option has a margin."""
    limit = {"option": "taskmanager.network.request-backoff.max", "value": "10 s", "budget_ns": 23 * SECOND}
    for outcome, option in ((Outcome.EXPIRED, limit["option"]), (Outcome.COMPLETED, "")):
        (found,) = attribute(
            [], (), start=0, end=SECOND, last=wait("partition", 0, 1, outcome, **limit), detected=0
        )
        assert found.option == option


def test_an_answer_survives_json(history: Any):
    """Reading returns the same answer."""
    found = trial_recovery(history.good(), history.entry())
    assert TrialRecovery.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_an_empty_history_has_an_empty_answer(history: Any):
    """Nothing is raised, and nothing is invented."""
    assert trial_recovery(history.empty().trial(), history.entry()) == TrialRecovery(trial="main-1")


def test_the_trace_has_the_form_that_viewers_read(history: Any):
    """Slices have a start, a duration and a named track; rounds and the critical path come first."""
    trial = history.good()
    found = json.loads(
        json.dumps(trace([trace_events(trial, trial_recovery(trial, history.entry()))]), allow_nan=False)
    )
    events = found["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} == {"M", "X"}
    assert all(e["dur"] >= 0 and (e["pid"], e["tid"]) in names for e in slices)
    assert (names[1, ROUNDS], names[1, PATH]) == ("rounds", "critical path")
    assert "JobMaster" in names.values()
    for track, name in names.items():
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == track)
        assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(spans)), name
    heartbeat = next(e for e in slices if e["cat"] == "heartbeat" and e["tid"] not in (ROUNDS, PATH))
    assert heartbeat["args"]["outcome"] == "expired"
    assert heartbeat["dur"] == 2_000_000


def test_a_failover_of_a_fault_from_before_the_first_record_keeps_its_fault(history: Any):
    """A fault that was there before the job ran, and is noticed later, is still the fault of that failover."""
    entry, builder = history.entry(), history.good()
    end = windows(builder, entry).end
    (effect,) = check_faults(builder, entry)
    (before,) = [o for o in outages_of(builder, [effect], CatchUp((), end), end) if o.rounds[0].cause]
    first = min(int(r["t_ns"]) for r in builder.rows("events") if r["kind"] == "sink.first-record")
    early = replace(effect, injected_ns=first - 1, ended_ns=None)
    after = [o for o in outages_of(builder, [early], CatchUp((), end), end) if o.rounds[0].cause]
    assert before.fault is not None
    assert [o.fault.fault if o.fault else "" for o in after] == [before.fault.fault]


@pytest.mark.parametrize(
    ("due", "ran", "rounds"),
    [(5.0, "RUNNING", 2), (9.4, "RUNNING", 1), (10.0, "RUNNING", 1), (10.0, "INITIALIZING", 2)],
)
def test_a_sink_that_no_record_was_due_for_does_not_hold_up_the_start(
    history: Any, due: float, ran: str, rounds: int
):
    """Sink 0 gets its first record after 0.3 s, which was due 0.2 s before; the job fails at 9.5 s, before sink 1 gets any.
    If its first one was due in time, or a task did not run yet, the failure is one of the start."""
    built = history.empty()
    built.event("job.state", "job", 0.1, data={"from": "CREATED", "to": "RUNNING"})
    for task in ("sink-0", "sink-1"):
        built.event("task.state", task, 0.1, attempt=0, data={"from": "INITIALIZING", "to": "RUNNING"})
    built.event("task.state", "source-0", 0.1, attempt=0, data={"from": "DEPLOYING", "to": ran})
    built.event("sink.first-record", "sink-0", 0.3, attempt=0, data={"latency_ns": SECOND // 5})
    built.event(
        "failover.started", "1", 9.5, text="lost", data={"cause_class": "", "detector": "", "region": []}
    )
    for task, since in (("sink-0", 9.4), ("sink-1", due)):
        late = {"latency_ns": round((11.0 - since) * SECOND)}
        built.event("sink.first-record", task, 11.0, attempt=1, data=late)
    start = start_of(built.trial(), history.at(20))
    assert start is not None
    assert (len(start.rounds), start.end) == (rounds, history.at(0.3 if rounds == 1 else 11.0))


@pytest.mark.parametrize(
    ("second", "last"),
    [
        (FirstRecord(9 * SECOND, 9 * SECOND), 9),
        (FirstRecord(9 * SECOND, None), 9),
        (FirstRecord(9 * SECOND, 4 * SECOND), 9),
        (FirstRecord(9 * SECOND, 3 * SECOND), 5),
    ],
)
def test_a_record_that_was_not_due_yet_does_not_delay_the_last_first_record(second: FirstRecord, last: int):
    """The first sink got its record at 5 s, 3 s after it was due. One that was due later and took as long held up nothing."""
    assert (
        last_due_arrival([FirstRecord(5 * SECOND, 3 * SECOND), second], [], 5 * SECOND, 20 * SECOND)
        == last * SECOND
    )


def test_sinks_with_few_records_have_caught_up_when_nothing_late_arrives(history: Any):
    """200 sinks get a record every 4 s, 0.1 s after it is due; those that were due from 8 to 11 s arrive at 11 s. One by one, some
    sink would always be silent for longer than in the baseline, or only have a late record to show."""
    built, random = history.empty(), Random(7)
    for sink in range(200):
        received, due, lag = 0, random.expovariate(0.25), 0
        for tick in range(240):
            came = []
            while max(due + 0.1, 11.0 if 8 <= due < 11 else 0.0) <= tick / 10:
                came.append(tick / 10 - due)
                due += random.expovariate(0.25)
            if came:
                received, lag = received + len(came), round(came[-1] * SECOND)
                built.add("tm-0-1", "latency", tick / 10, task=f"sink-{sink}", attempt=0, window_start_ns=history.at(tick / 10 - 0.1), window_ns=SECOND // 10, count=len(came), buckets=[], max_ns=round(max(came) * SECOND))  # fmt: skip
            built.add("tm-0-1", "tasks", tick / 10, task=f"sink-{sink}", vertex="sink", role="sink", attempt=0, records_in=received, lag_ns=lag)  # fmt: skip
    trial, entry = built.trial(), history.entry()
    spans = windows(trial, entry)
    assert CatchUp.read(trial, entry, spans, spans.end).since(history.at(8.5)) == pytest.approx(
        history.at(11.0), abs=SECOND // 5
    )


@pytest.mark.parametrize(("timeout", "caught_up"), [("1 s", 10.5), ("100 ms", None)])
def test_a_lag_that_the_buffer_timeouts_explain_is_no_backlog(
    timeout: str, caught_up: float | None, history: Any
):
    """A sink behind two exchanges lags by 0.3 s until a failover at 10 s, and by 1.8 s from 11 s on: the output flushers run in
    other phases. With a timeout of 1 s, nothing is behind; with 100 ms, the sink never catches up."""
    built, entry = history.empty(), history.entry()
    chosen = {**entry.configuration, "execution.buffer-timeout.interval": timeout}
    entry = replace(entry, configuration=chosen)
    for tick in range(240):
        before, count = tick <= 100, tick * 10
        if before or tick >= 110:
            built.add("tm-0-1", "tasks", tick / 10, task="sink-0", vertex="sink", role="sink", attempt=0, records_in=count, lag_ns=round((0.3 if before else 1.8) * SECOND))  # fmt: skip
    trial = built.trial()
    spans = windows(trial, entry)
    found = CatchUp.read(trial, entry, spans, spans.end).since(history.at(10.5))
    assert found == (None if caught_up is None else pytest.approx(history.at(caught_up), abs=SECOND // 5))
