"""The walk over the waits of a recovery at its edges: which wait came before another one, delayed it, or ended together with it."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.criticalpath import attribute
from testbed_runtime.core.judgement.recovery import UNATTRIBUTED
from testbed_runtime.core.waits import EVERYTHING, KINDS, Outcome, Wait
from tests.checking.test_recovery_path import SECOND, path, segments, wait

CLOSED = wait("connection", 0, 1)
"""The failure that the recoveries begin with."""
Parts = list[tuple[str, float]]


def rounded(parts: Parts) -> Parts:
    return [(kind, round(seconds, 6)) for kind, seconds in parts]


def owners(waits: list[Wait], end: float, detected: float = 1) -> Parts:
    """The name of each wait on the path with its seconds."""
    last = wait("catch-up", end, end)
    found = attribute(waits, (), start=0, end=last.end_ns, last=last, detected=round(detected * SECOND))
    return [(s.what or s.kind, round(s.seconds, 6)) for s in found]


@pytest.mark.parametrize(
    ("ended", "expected"),
    [(5.0, [("slot", 5)]), (4.995, [("slot", 5)]), (4.994, [("slot", 4.994), (UNATTRIBUTED, 0.006)])],
)
def test_the_last_wait_ended_within_5_ms_of_its_span(ended: float, expected: Parts):
    """Two processes record the same moment that far apart. A longer gap is not its own."""
    found = attribute([], (), start=0, end=5 * SECOND, last=wait("slot", 0, ended), detected=0)
    assert rounded([(s.kind, s.seconds) for s in found]) == expected


@pytest.mark.parametrize(
    ("open_spans", "own"),
    [
        ([(1, 3.6)], False),  # 1.6 of the 4 s
        ([(1, 4)], False),  # half of them
        ([(1, 4.001)], True),
        ([(0, 1.9), (3.9, 8)], True),  # what came before counts for nothing, instead of less
        ([(1, 3.1), (4, 5)], True),
        ([(6, 9)], False),
    ],
)
def test_a_process_that_opened_functions_for_most_of_a_pause_was_not_paused(open_spans: Any, own: bool):
    """It stood still from 2 to 6 s because of itself, if it opened functions for more than half of that."""
    stalled = wait("stalled", 2, 6, wait="tm-0-1/0", who="tm-0-1")
    opened = [wait("open", a, b, wait=f"tm-0-1/{n}") for n, (a, b) in enumerate(open_spans, start=1)]
    kinds = [kind for kind, _ in path([CLOSED, stalled, wait("deployment", 1, 6), *opened], 6, detected=1)]
    assert ("stalled" not in kinds) == own


def test_a_fault_on_the_jobmanager_ends_whatever_stood_still_meanwhile():
    """A TaskManager that stood still just before the end of the fault did not delay it."""
    killed = wait("jobmanager", 1, 6, wait="kill/jobmanager", who=EVERYTHING, what="jobmanager")
    stalled = wait("stalled", 5.5, 5.9, wait="tm-0-1/0", who="tm-0-1")
    found = owners([CLOSED, killed, stalled, wait("slot", 6, 7)], 7)
    assert found == [("connection", 1), ("jobmanager", 5), ("slot", 1)]


@pytest.mark.parametrize(
    ("what", "ended", "expected"),
    [
        ("jobmanager-2", 6, [("jobmanager", 3), ("jobmanager-2", 2), ("slot", 0.2)]),
        ("jobmanager-2", 6.02, [("jobmanager", 3), ("jobmanager-2", 2.02), ("slot", 0.18)]),  # its job already asked for slots
        ("jobmanager-2", 5.9, [("jobmanager", 5), ("slot", 0.2)]),  # something else was missing then
        ("tm-1-2", 6, [("jobmanager", 5), ("slot", 0.2)]),
    ],
)  # fmt: skip
def test_the_start_of_a_killed_jobmanager_is_its_own_wait(what: str, ended: float, expected: Parts):
    """The fault is over when the next process is there. A TaskManager that stood still before does not count."""
    killed = wait("jobmanager", 1, max(ended, 6), wait="kill/jobmanager", who=EVERYTHING, what="jobmanager")
    start = wait("start", 4, ended, wait="supervisor/7", who="supervisor", what=what)
    stalled = wait("stalled", 3.5, 3.9, wait="tm-0-1/0", who="tm-0-1")
    found = owners([CLOSED, killed, stalled, start, wait("slot", 6, 6.2)], 6.2)
    assert found == [("connection", 1), *expected]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("JobMaster", [("jobmanager", 2), ("registration", 5), ("slot", 0.1)]),
        ("ResourceManager", [("jobmanager", 2), ("registration", 5), ("slot", 0.1)]),
        ("tm-1-1", [("tm-1-1", 7), ("slot", 0.1)]),
    ],
)
def test_missing_heartbeats_of_a_killed_jobmanager_delay_slots_only_by_a_registration(
    what: str, expected: Parts
):
    """The JobManager is back at 2 s. A TaskManager registers when it has missed heartbeats since -1 s for 8 s."""
    killed = wait("jobmanager", 0, 2, wait="kill/jobmanager", who=EVERYTHING, what="jobmanager")
    missed = wait("heartbeat", -1, 7, Outcome.EXPIRED, who="tm-0-1", what=what, **LIMIT)
    rejoins = wait("registration", 2, 7, who="tm-0-1")
    assert owners([killed, missed, rejoins, wait("slot", 2, 7.1)], 7.1, detected=2) == expected


def test_a_pause_of_a_taskmanager_that_is_killed_meanwhile_does_not_own_the_time_before_its_next_start():
    """The pause goes on for the fault, but the next process is not paused. Its predecessor was lost at 5 s."""
    paused = wait("stalled", 1, 20, wait="gc/tm-1", who=EVERYTHING, what="tm-1")
    lost = wait("heartbeat", 1, 5, Outcome.EXPIRED, what="tm-1-1", **LIMIT)
    start = wait("start", 5, 7, wait="supervisor/7", who="supervisor", what="tm-1-2")
    found = owners([paused, lost, start, wait("registration", 7, 7.2), wait("slot", 5, 7.3)], 7.3, detected=5)
    assert found[-4:] == [("tm-1-1", 4), ("tm-1-2", 2), ("registration", 0.2), ("slot", 0.1)]


@pytest.mark.parametrize(
    ("who", "fault", "expected"),
    [
        ("jobmanager-1", "gc", ("jobmanager", "deploy")),
        ("jobmanager-1", "", ("stalled", "detect")),
        ("tm-0-1", "gc", ("stalled", "detect")),
    ],
)
def test_both_records_of_a_paused_jobmanager_are_waits_for_it(
    who: str, fault: str, expected: tuple[str, str]
):
    """The fault and the process record the same pause. Which of them ends last is chance."""
    last = wait("stalled", 0, 5, wait=f"{who}/1", who=who, fault=fault)
    found = attribute([], (), start=0, end=5 * SECOND, last=last, detected=6 * SECOND)
    assert [(s.kind, s.phase) for s in found] == [expected]


@pytest.mark.parametrize(("asked", "owner"), [(3, "partition"), (5.99, "registration")])
def test_a_partition_that_was_requested_before_a_registration_ended_had_not_waited_for_it(
    asked: float, owner: str
):
    """Both end at 6 s, and the registration lasts longer. Slots are allocated before any task is deployed."""
    waits = [CLOSED, wait("registration", 1, 6, who="tm-4-1"), wait("partition", asked, 6)]
    assert owner in [kind for kind, seconds in path(waits, 6, detected=1) if seconds > 0.1]


@pytest.mark.parametrize("ended", [4.1, 4.26])
def test_a_producer_that_stood_still_at_last_leaves_the_wait_for_its_partition(ended: float):
    """The first record waits for the partition until the producer stands still, whether the partition is there before or after that."""
    partition = wait("partition", 1.2, ended)
    stalled = wait("stalled", 4, 4.26, wait="tm-3-1/9", who="tm-3-1")
    found = owners([CLOSED, partition, stalled, wait("first-record", 1, 4.3)], 4.3)
    assert found == [
        ("connection", 1), ("first-record", 0.2), ("partition", 2.8), ("stalled", 0.26), ("first-record", 0.04),
    ]  # fmt: skip


def test_a_checkpoint_that_ended_with_the_wait_before_did_not_begin_the_next_one():
    """Only a checkpoint waits for the checkpoint before it."""
    found = owners([CLOSED, wait("checkpoint", 0.2, 1), wait("slot", 1, 2)], 2)
    assert found == [("connection", 1), ("slot", 1)]


LIMIT = {"option": "o", "value": "v"}


@pytest.mark.parametrize(
    ("budget_s", "outcome", "pauses", "expected"),
    [
        # the longest of the judge's pauses, as far as the heartbeats were late: 2 s
        (2, "expired", [("stalled", 2.5, 4.5, "jobmanager-1", ""), ("jobmanager", 2.5, 4, "everything", "jobmanager")], [("stalled", 2), ("heartbeat", 1.5)]),
        (2, "expired", [("stalled", 2.2, 5.2, "jobmanager-1", ""), ("jobmanager", 2.2, 4.7, "everything", "jobmanager")], [("jobmanager", 2.5), ("heartbeat", 1.3)]),
        (3.75, "expired", [("stalled", 3, 5, "jobmanager-1", "")], [("stalled", 2), ("heartbeat", 1)]),  # 0.25 s late
        (3.76, "expired", [("stalled", 3, 5, "jobmanager-1", "")], [("heartbeat", 4)]),
        (-0.5, "expired", [("stalled", 3, 5, "jobmanager-1", "")], [("heartbeat", 4)]),  # without an option
        (2, "expired", [("stalled", 0.5, 1.9, "jobmanager-1", "")], [("heartbeat", 4)]),  # before it
        (2, "expired", [("stalled", 3, 6.5, "jobmanager-1", "")], [("heartbeat", 4)]),  # still lasts
        (2, "expired", [("stalled", 3, 5, "tm-9-1", "")], [("heartbeat", 4)]),  # of another process
        (2, "expired", [("stalled", 3, 5, "everything", "tm-9")], [("heartbeat", 4)]),
    ],
)  # fmt: skip
def test_a_pause_of_the_judge_made_its_heartbeats_late(
    budget_s: float, outcome: str, pauses: list[Any], expected: Parts
):
    """The wait lasts from 2 to 6 s. Only a pause of the same process within it counts, from 0.25 s of lateness on."""
    waits = [
        wait("heartbeat", 2, 6, Outcome(outcome), wait="jobmanager-1/x", budget_ns=round(budget_s * SECOND), **LIMIT),
        *(wait(kind, a, b, wait=f"{who}/{n}", who=who, what=what) for n, (kind, a, b, who, what) in enumerate(pauses)),
        wait("restart-delay", 6, 7),
    ]  # fmt: skip
    found = [(kind, s) for kind, s in rounded(path(waits, 7, detected=6)) if kind != "restart-delay"]
    assert found[-len(expected) :] == expected


BUSY: dict[str, Any] = {"who": "tm-0-1", "what": "JobMaster", "wait": "tm-0-1/1", "fault": "slow"}


@pytest.mark.parametrize(
    ("budget_s", "asked", "expected"),
    [
        # nothing but what came after the option had expired, as the component was asked for all or most of that time
        (3, wait("jobmanager", 2, 6, **BUSY), [("heartbeat", 3), ("jobmanager", 1)]),
        (3, wait("jobmanager", 5.4, 6, **BUSY), [("heartbeat", 3), ("jobmanager", 1)]),
        (3, wait("jobmanager", 2, 5.6, **BUSY), [("heartbeat", 3), ("jobmanager", 1)]),
        (3, wait("jobmanager", 5.5, 6, **BUSY), [("heartbeat", 4)]),
        (3, wait("jobmanager", 2, 6, **BUSY | {"what": "ResourceManager"}), [("heartbeat", 4)]),
        (3, wait("jobmanager", 2, 6, Outcome.CANCELLED, **BUSY), [("heartbeat", 3), ("jobmanager", 1)]),
        (3, wait("jobmanager", 2, 6, Outcome.OPEN, **BUSY), [("heartbeat", 4)]),
        (3, wait("registration", 2, 6, **BUSY), [("heartbeat", 4)]),
        (3.8, wait("jobmanager", 2, 6, **BUSY), [("heartbeat", 4)]),  # 0.2 s late
    ],
)  # fmt: skip
def test_a_busy_judge_noticed_late_that_heartbeats_were_missing(
    budget_s: float, asked: Wait, expected: Parts
):
    """The JobMaster waited from 2 to 6 s. It gets to an expired timeout after the calls before it."""
    limit = {"budget_ns": round(budget_s * SECOND), **LIMIT}
    missed = wait("heartbeat", 2, 6, Outcome.EXPIRED, wait="jobmanager-1/x", who="JobMaster", **limit)
    found = rounded(path([missed, asked, wait("restart-delay", 6, 7)], 7, detected=6))
    assert [part for part in found if part[0] != "restart-delay"][-len(expected) :] == expected


@pytest.mark.parametrize(
    ("cancelled_s", "budgets_s", "option", "expected"),
    [
        (5, (3,), "heartbeat.timeout", [("jobmanager", 1)]),
        (4, (3,), "heartbeat.timeout", [("cancellation", 1), ("jobmanager", 1)]),
        (4, (3, 3.9), "heartbeat.timeout", [("cancellation", 2)]),  # one of the losses was noticed in time
        (4, (3,), "task.cancellation.timeout", [("cancellation", 2)]),
    ],
)
def test_a_cancellation_that_a_late_loss_ended_waited_for_the_busy_judge(
    cancelled_s: float, budgets_s: tuple[float, ...], option: str, expected: Parts
):
    """The JobMaster was busy from 2 to 6 s. It noticed then that heartbeats had been missing since 2 s, for more than 3 s."""
    losses = [
        wait("heartbeat", 2, 6, Outcome.EXPIRED, wait=f"jobmanager-1/{b}", who="JobMaster", **{**LIMIT, "budget_ns": round(b * SECOND)})
        for b in budgets_s
    ]  # fmt: skip
    ended = wait(
        "cancellation",
        cancelled_s,
        6,
        Outcome.EXPIRED,
        wait="jobmanager-1/c",
        who="JobMaster",
        **LIMIT | {"option": option},
    )
    waits = [*losses, ended, wait("jobmanager", 2, 6, Outcome.CANCELLED, **BUSY), wait("slot", 6, 7)]
    found = rounded(path(waits, 7, detected=cancelled_s))
    assert found[1:-1] == expected


@pytest.mark.parametrize(
    ("coming", "terminal", "expected"),
    [
        ([wait("replacement", 3, 7, Outcome.FIRED, **LIMIT)], False, [("slot", 1), ("replacement", 3)]),
        ([wait("start", 1, 7)], False, [("start", 5)]),  # the loss was noticed later
        ([wait("registration", 3, 7, what="ResourceManager")], False, [("slot", 1), ("registration", 3)]),
        ([wait("replacement", 1, 3, Outcome.FIRED, **LIMIT), wait("start", 3, 7)], False, [("replacement", 2), ("start", 3)]),
        ([wait("jobmanager", 4, 7, what="ResourceManager")], False, [("slot", 2), ("jobmanager", 2)]),
        # nothing that comes: the option owns it, and so it does if the job failed for good
        ([wait("replacement", 3, 7, Outcome.FIRED, **LIMIT)], True, [("slot", 4)]),
        ([wait("stalled", 1, 7, who="everything", what="tm-0")], False, [("stalled", 5)]),  # it comes back
        ([wait("stalled", 1, 7, who="tm-0-1")], False, [("slot", 4)]),
        ([wait("stalled", 1, 5.9, who="everything", what="tm-0")], False, [("slot", 4)]),
        ([wait("replacement", 3, 7, Outcome.OPEN)], False, [("slot", 4)]),
        ([wait("replacement", 3, 5.9, Outcome.FIRED, **LIMIT)], False, [("slot", 4)]),
        # at the same moment, before it could register
        ([wait("stalled", 1, 6, who="everything", what="tm-0")], False, [("stalled", 5)]),
        ([wait("replacement", 3, 6, Outcome.FIRED, **LIMIT)], False, [("slot", 1), ("replacement", 3)]),
        ([wait("jobmanager", 4.1, 7, what="ResourceManager")], False, [("slot", 4)]),  # less than half of it
        ([wait("jobmanager", 2, 7, what="JobMaster")], False, [("slot", 4)]),
        ([wait("registration", 3, 7, what="JobMaster")], False, [("slot", 4)]),
        ([], False, [("slot", 4)]),
    ],
)  # fmt: skip
def test_slots_that_were_requested_too_early_wait_for_a_taskmanager(
    coming: list[Wait], terminal: bool, expected: Parts
):
    """The requests expired from 2 to 6 s, before a TaskManager came at 7 s: a longer timeout would not have helped, unless the job
    failed for good."""
    slots = wait("slot", 2, 6, Outcome.EXPIRED, **LIMIT)
    first = wait("connection", 0, min([2, *(w.start_ns / SECOND for w in coming)]))
    found = attribute(
        [first, slots, *coming],
        (),
        start=0,
        end=6 * SECOND,
        last=slots,
        detected=2 * SECOND,
        terminal=terminal,
    )
    parts = rounded([(s.kind, s.seconds) for s in found])
    assert [part for part in parts if part[0] not in ("connection", UNATTRIBUTED)] == expected


EVERYONE = {"who": "everything"}


@pytest.mark.parametrize(
    ("waits", "detected", "expected"),
    [
        # the second of two pauses: before it, the job waited for the first one
        ([wait("stalled", 0, 6, what="a", **EVERYONE), wait("stalled", 2, 8, what="b", **EVERYONE)], 5, [("a", 2), ("b", 6)]),
        ([wait("stalled", 0, 6, what="a"), wait("stalled", 2, 8, what="b", **EVERYONE)], 5, [(UNATTRIBUTED, 2), ("b", 6)]),
        # a process is lost while the job waits for another one
        ([wait("replacement", 0, 6, Outcome.FIRED, what="a"), wait("replacement", 3, 8, Outcome.FIRED, what="b")], 2, [("a", 3), ("b", 5)]),
        ([wait("restart-delay", 2, 6, Outcome.FIRED, what="a"), wait("replacement", 3, 8, Outcome.FIRED, what="b")], 2, [(UNATTRIBUTED, 2), ("a", 1), ("b", 5)]),
        # the loss that the job restarts because of interrupted nothing of that restart
        ([wait("restart-delay", 2, 6, Outcome.FIRED, what="a"), wait("replacement", 3, 8, Outcome.FIRED, what="b")], 3, [(UNATTRIBUTED, 3), ("b", 5)]),
    ],
)  # fmt: skip
def test_a_loss_or_a_pause_that_comes_while_the_job_waits_for_another_one(
    waits: list[Wait], detected: float, expected: Parts
):
    """Both hold up the slots that the job requests at 7 s."""
    assert owners([*waits, wait("slot", 7, 8)], 8, detected) == expected


@pytest.mark.parametrize(
    ("slots", "before"), [([], (UNATTRIBUTED, 1)), ([wait("slot", 0, 9)], ("replacement", 1))]
)
def test_a_failure_interrupts_a_replacement_only_if_the_job_waits_for_slots(slots: list[Wait], before: Any):
    """The consumer waits for bytes since 1 s, and a TaskManager that no task waits for comes at 1.5 s."""
    coming = wait("replacement", 0, 1.5, Outcome.FIRED)
    assert path([coming, *slots, wait("connection", 1, 2)], 2, detected=2)[0] == before


def test_waits_that_ended_together_do_not_delay_each_other():
    """TaskManagers wait for a JobManager until it is the leader: both waits end at 5 s, and each could have delayed the other. So
    could two tasks of one TaskManager that hang equally long."""
    both = [CLOSED, wait("jobmanager", 1, 5), wait("leadership", 1, 5), wait("slot", 1, 5)]
    assert sum(seconds for _, seconds in path(both, 5, detected=1)) == 5
    hung = [wait("cancellation", 1, 5, Outcome.EXPIRED, wait=name, what=name, **LIMIT) for name in "ab"]
    region = wait("cancellation", 1, 7, Outcome.EXPIRED, what="region")
    (_, first, second, _) = owners([CLOSED, region, *hung, wait("deployment", 7, 8)], 8)
    assert first in (("a", 4), ("b", 4))
    assert second == ("region", 2)


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        # a wait of 0 s bounds nothing
        ([wait("slot", 1, 4), wait("cancellation", 2, 2, wait="x"), wait("deployment", 4, 5, after=("x",))], [("connection", 1), ("slot", 3), ("deployment", 1)]),
        # a wait that lasts on did not come before
        ([wait("restart-delay", 1, 9, wait="x"), wait("slot", 1, 4), wait("deployment", 4, 5, after=("x",))], [("connection", 1), ("slot", 3), ("deployment", 1)]),
        # what a wait names comes before what only could have
        ([wait("slot", 1, 3, wait="x"), wait("cancellation", 3.5, 4), wait("deployment", 4, 5, after=("x", "y"))], [("connection", 1), ("slot", 2), (UNATTRIBUTED, 1), ("deployment", 1)]),
        # the last of those that it names
        ([wait("slot", 1, 2, wait="x"), wait("cancellation", 1.5, 4, wait="y"), wait("deployment", 4, 5, after=("x", "y"))], [("connection", 1), (UNATTRIBUTED, 0.5), ("cancellation", 2.5), ("deployment", 1)]),
        # a wait that was held up, by one that ended less than 0.25 s before it, and lasted longer than that gap
        ([wait("registration", 3, 4.751), wait("slot", 1, 5)], [("connection", 1), ("slot", 2), ("registration", 1.751), ("slot", 0.249)]),
        ([wait("registration", 3, 4.75), wait("slot", 1, 5)], [("connection", 1), ("slot", 4)]),
        ([wait("registration", 4.55, 4.8), wait("slot", 1, 5)], [("connection", 1), ("slot", 3.55), ("registration", 0.25), ("slot", 0.2)]),
        ([wait("registration", 4.6, 4.8), wait("slot", 1, 5)], [("connection", 1), ("slot", 4)]),
        ([wait("start", 2, 3), wait("registration", 3.249, 5), wait("slot", 1, 5)], [("connection", 1), ("slot", 1), ("start", 1), ("slot", 0.249), ("registration", 1.751)]),
        ([wait("start", 2, 3), wait("registration", 3.25, 5), wait("slot", 1, 5)], [("connection", 1), ("slot", 2.25), ("registration", 1.75)]),
        # what gives the JobMaster a slot registers there first, and then offers it
        ([wait("registration", 2, 3, what="JobMaster"), wait("slot", 1, 5)], [("connection", 1), ("slot", 1), ("registration", 1), ("slot", 2)]),
        ([wait("registration", 2, 3, what="ResourceManager"), wait("slot", 1, 5)], [("connection", 1), ("slot", 4)]),
        ([wait("registration", 2, 3, Outcome.CANCELLED, what="JobMaster"), wait("slot", 1, 5)], [("connection", 1), ("slot", 4)]),
        ([wait("registration", 0.5, 1, what="JobMaster"), wait("slot", 1, 5)], [("connection", 1), ("slot", 4)]),
        ([wait("registration", 2, 3, what="JobMaster"), wait("fencing", 1, 5)], [("connection", 1), ("fencing", 4)]),
        # a cancellation that its option did not end can be held up like others
        ([wait("registration", 2, 5), wait("cancellation", 1, 5)], [("connection", 1), ("cancellation", 1), ("registration", 3)]),
        # one that its option ended is held up by none
        ([wait("partition", 1, 5, Outcome.FIRED, **LIMIT), wait("partition", 2, 5, Outcome.EXPIRED, what="b", **LIMIT)], [("connection", 1), ("partition", 4)]),
    ],
)  # fmt: skip
def test_the_step_before_a_wait(waits: list[Wait], expected: Parts):
    """Each row has the waits after a connection that was closed at 1 s, and the path to 5 s."""
    assert rounded(path([CLOSED, *waits], 5, detected=1)) == expected


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([wait("checkpoint", 1, 2, what="a")], [(UNATTRIBUTED, 1), ("a", 1), ("b", 3)]),
        ([wait("checkpoint", 1, 1.995, what="a")], [(UNATTRIBUTED, 1), ("a", 0.995), (UNATTRIBUTED, 0.005), ("b", 3)]),
        ([wait("checkpoint", 1, 2.005, what="a")], [(UNATTRIBUTED, 1), ("a", 1), ("b", 3)]),
        ([wait("checkpoint", 1, 1.994, what="a")], [(UNATTRIBUTED, 2), ("b", 3)]),
        ([wait("checkpoint", 1, 2, Outcome.FAILED, what="a")], [(UNATTRIBUTED, 1), ("a", 1), ("b", 3)]),
        ([wait("checkpoint", 1, 2.5, what="a")], [(UNATTRIBUTED, 2), ("b", 3)]),  # both at once
    ],
)  # fmt: skip
def test_a_checkpoint_that_fails_the_job_began_with_the_end_of_another_one(
    before: list[Wait], expected: Parts
):
    """The last one, from 2 s on, expired at 5 s."""
    failed = wait("checkpoint", 2, 5, Outcome.EXPIRED, what="b", **LIMIT)
    found = owners([*before, failed, wait("slot", 5, 6)], 6, detected=5)
    assert found == [*expected, ("slot", 1)]


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ([wait("first-record", 1.5, 9, Outcome.CANCELLED)], ["deployment", UNATTRIBUTED, "first-record"]),
        # what ended before the event, or began with it, was not interrupted
        ([wait("restore", 2, 9, Outcome.CANCELLED)], ["deployment", UNATTRIBUTED]),
        ([wait("restore", 1.996, 9, Outcome.CANCELLED)], ["deployment", UNATTRIBUTED]),
        ([wait("restore", 0.5, 1.5, Outcome.CANCELLED)], ["deployment", UNATTRIBUTED]),
        # the allocation of slots only if nothing else was in progress, an iteration before all others, then what began first
        ([wait("slot", 0.5, 9, Outcome.CANCELLED), wait("partition", 1.5, 9, Outcome.CANCELLED)], ["deployment", UNATTRIBUTED, "partition"]),
        ([wait("restore", 1.2, 9, Outcome.CANCELLED), wait("iteration", 1.5, 9, Outcome.CANCELLED)], ["deployment", UNATTRIBUTED, "iteration"]),
        ([wait("open", 1.6, 9, Outcome.CANCELLED), wait("restore", 1.5, 9, Outcome.CANCELLED)], ["deployment", UNATTRIBUTED, "restore"]),
        # a wait for the end of another one, which was in progress then
        ([wait("first-record", 1.5, 9, Outcome.CANCELLED), wait("partition", 1.7, 8.9)], ["deployment", UNATTRIBUTED, "first-record", "partition"]),
        ([wait("slot", 1.2, 9, Outcome.CANCELLED), wait("replacement", 1.6, 8.9, Outcome.FIRED)], ["deployment", UNATTRIBUTED, "slot", "replacement"]),
        # a partition that arrives after the failure held up nothing of the interrupted wait
        ([wait("first-record", 1.5, 9, Outcome.CANCELLED), wait("partition", 2.5, 8.9)], ["deployment", UNATTRIBUTED, "first-record"]),
    ],
)  # fmt: skip
def test_a_failure_interrupts_what_was_in_progress(waits: list[Wait], expected: list[str]):
    """A task is deployed until 1 s; its connection is closed from 2 to 3 s."""
    every = [wait("deployment", 0, 1), *waits, wait("connection", 2, 3), wait("slot", 3, 4)]
    assert [kind for kind, _ in path(every, 4, detected=3)] == [*expected, "connection", "slot"]


def test_a_pause_that_began_before_what_it_delays_interrupted_something_else():
    """A partition is requested while its producer's process stands still. The pause interrupted the restore of that task."""
    restore, pause = wait("restore", 1, 5), wait("stalled", 2, 5)
    found = path([CLOSED, restore, pause, wait("partition", 3, 5.1)], 5.1, detected=1)
    assert rounded(found) == [("connection", 1), ("restore", 1), ("stalled", 3), ("partition", 0.1)]


@pytest.mark.parametrize(("known", "phase"), [(True, "deploy"), (False, "detect")])
def test_a_process_that_stands_still_after_the_detection_delays_the_restart(known: bool, phase: str):
    """Without a failure, the end of the pause is what was waited for."""
    last = wait("catch-up", 5, 5)
    waits = [CLOSED, wait("stalled", 1, 5)]
    found = attribute(waits, (), start=0, end=last.end_ns, last=last, detected=CLOSED.end_ns, known=known)
    assert [(s.kind, s.phase) for s in found] == [("connection", "detect"), ("stalled", phase)]


@pytest.mark.parametrize(
    ("a", "b", "owner"),
    [
        (("slot", 1, 4.98), ("slot", 2, 5), "a"),  # ended together, so the longer one
        (("slot", 1, 4.979), ("slot", 2, 5), "b"),
        (("slot", 1.02, 5, "fired", "o"), ("slot", 1, 5), "a"),  # began together, so the one that its option ended
        (("slot", 1.021, 5, "fired", "o"), ("slot", 1, 5), "b"),
        (("slot", 1.01, 5, "completed", "o"), ("slot", 1, 5), "b"),
        (("slot", 1.01, 5, "fired", ""), ("slot", 1, 5), "b"),
        (("slot", 1, 5, "completed", "", "tm-0"), ("slot", 1, 5, "completed", "", "JobMaster"), "b"),  # its own
        (("slot", 1, 5, "completed", "", "tm-0"), ("slot", 1, 5, "completed", "", "tm-1"), "a"),
    ],
)  # fmt: skip
def test_of_waits_that_ended_together_one_owns_the_time(a: tuple[Any, ...], b: tuple[Any, ...], owner: str):
    """They end within 20 ms. A deployment by the JobMaster follows."""

    def made(name: str, kind: str, start: float, end: float, outcome: str = "completed", option: str = "", who: str = "x") -> Wait:  # fmt: skip
        return wait(
            kind, start, end, Outcome(outcome), wait=name, what=name, option=option, value="v", who=who
        )

    waits = [CLOSED, made("a", *a), made("b", *b), wait("deployment", 5, 6)]
    assert [name for name, _ in owners(waits, 6) if name in "ab"] == [owner]


@pytest.mark.parametrize("kind", ["registration", "replacement", "start"])
def test_a_taskmanager_that_comes_while_a_task_is_deployed_delayed_nothing(kind: str):
    """However short the last of the steps after the slots is."""
    waits = [
        CLOSED, wait("slot", 1, 2.5), wait(kind, 2, 5), wait("deployment", 2.5, 5), wait("restore", 4.985, 5), wait("open", 5, 6),
    ]  # fmt: skip
    assert owners(waits, 6) == [("connection", 1), ("slot", 1.5), ("deployment", 2.5), ("open", 1)]


@pytest.mark.parametrize(("ended", "owner"), [(3.005, "heartbeat"), (3.006, UNATTRIBUTED)])
def test_a_failure_that_was_recorded_5_ms_after_it_was_known_is_the_same_one(ended: float, owner: str):
    """A later one only confirmed it."""
    waits = [wait("heartbeat", 0, ended, Outcome.EXPIRED), wait("slot", ended, 5)]
    assert [kind for kind, _ in path(waits, 5, detected=3)] == [owner, "slot"]


def test_missing_heartbeats_of_another_taskmanager_do_not_own_a_detection():
    """Both are lost, and the loss of the second one was noticed first."""
    waits = [
        wait("heartbeat", 0, 5, Outcome.EXPIRED, what="tm-0", **LIMIT),
        wait("heartbeat", 1, 4, Outcome.EXPIRED, what="tm-1", **LIMIT),
        wait("slot", 5, 6),
    ]
    assert owners(waits, 6, detected=5) == [("tm-0", 5), ("slot", 1)]


def test_a_gap_belongs_to_the_innermost_step():
    """The one that began last, or ended first. Its pieces are one segment, whatever other steps begin or end within it."""
    outer, inner = wait("restore", 0, 3, wait=""), wait("slot", 1, 5, wait="")
    assert path([], 5, steps=(outer, inner)) == [("restore", 1), ("slot", 4)]
    assert path([], 5, steps=(wait("restore", 1, 4, wait=""), inner)) == [(UNATTRIBUTED, 1), ("restore", 3), ("slot", 1)]  # fmt: skip


@pytest.mark.parametrize("recorded", [[("a", 1, 10), ("b", 0.5, 9)], [("a", 1, 9), ("b", 1, 10)]])
def test_a_gap_belongs_to_the_innermost_recorded_wait_of_its_step(recorded: list[Any]):
    """The one that began last, or ended first. The gap lasts from 1 to 3 s."""
    waits = [wait("deployment", a, b, Outcome.FIRED, wait=name, what=name) for name, a, b in recorded]
    steps = (wait("deployment", 1, 4, wait=""),)
    found = segments([CLOSED, wait("first-record", 3, 4), *waits], 4, steps=steps, detected=1)
    assert [(s.what, s.seconds) for s in found] == [("", 1), ("a", 2), ("", 1)]


@pytest.mark.parametrize(
    ("step", "until", "expected"),
    [
        ("slot", 3, [("connection", 1), ("completion", 2), ("deployment", 1)]),
        ("slot", 3.1, [("connection", 1), ("slot", 2), ("deployment", 1)]),  # it did not wait for that
        ("deployment", 3, [("connection", 1), ("deployment", 3)]),
    ],
)
def test_the_jobmaster_asks_for_slots_when_the_store_has_completed_a_checkpoint(
    step: str, until: float, expected: Parts
):
    """The store is slow while the job is to restart from the checkpoint that it completes. Its seconds count for the restore."""
    waits = [CLOSED, wait("completion", 0.5, until), wait("deployment", 3, 4)]
    found = segments(waits, 4, steps=(wait(step, 1, 3, wait=""),), detected=1)
    kinds = [(s.kind, s.seconds) for s in found]
    if step == "deployment":
        assert "completion" not in dict(kinds)
        return
    assert kinds == expected
    assert all(s.phase == "restore" for s in found if s.kind == "completion")


@pytest.mark.parametrize(("until", "owner"), [(3, "restart-delay"), (3.1, "slot")])
def test_a_restart_delay_that_a_lost_leadership_cut_off_is_no_allocation_of_slots(until: float, owner: str):
    """The JobManager failed the job at 1 s and lost its leadership at 3 s, before the delay had ended."""
    waits = [CLOSED, wait("restart-delay", 1, until, Outcome.CANCELLED), wait("leadership", 3, 4)]
    found = segments(waits, 4, steps=(wait("slot", 1, 4, wait=""),), detected=1)
    assert [(s.kind, s.seconds) for s in found[1:]] == [(owner, 2), ("leadership", 1)]


@pytest.mark.parametrize(
    ("kind", "outcome", "option", "phase"),
    [
        ("jobmanager", Outcome.EXPIRED, "heartbeat.timeout", "detect"),
        ("jobmanager", Outcome.EXPIRED, "other", ""),
        ("jobmanager", Outcome.COMPLETED, "heartbeat.timeout", ""),
        ("slot", Outcome.EXPIRED, "heartbeat.timeout", "slots"),
    ],
)
def test_a_taskmanager_that_gives_the_jobmanager_up_detects_a_failure(
    kind: str, outcome: Outcome, option: str, phase: str
):
    """Any other wait counts for the phase of its kind."""
    last = wait(kind, 0, 1, outcome, option=option, value="v")
    (found,) = attribute([], (), start=0, end=SECOND, last=last, detected=0)
    assert found.phase == (phase or found.phase)
    assert (found.phase == "detect") == (phase == "detect")


@pytest.mark.parametrize(
    ("last", "slack"),
    [
        (
            wait("replacement", 0, 12, Outcome.FIRED, option="replaceLost"),
            (12 - 6, KINDS["cancellation"].doc),
        ),
        (wait("restart-delay", 0, 12, Outcome.FIRED, option="o"), (-1, "")),
    ],
)
def test_a_wait_for_a_taskmanager_that_outlasts_a_failure_can_save_what_slots_would_still_need(
    last: Wait, slack: tuple[float, str]
):
    """The next failure is known at 8 s. Slots need the cancellation too, which ended at 6 s."""
    waits = [last, wait("cancellation", 2, 6)]
    (found,) = attribute(waits, (), start=0, end=8 * SECOND, last=last, detected=0, lasts=True)
    assert (found.kind, found.seconds) == (last.kind, 8)
    assert (found.slack_ns / SECOND if found.slack_ns >= 0 else -1, found.next) == slack


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        # the job caught up when it failed again
        ([wait("first-record", 4, 5, who="sink-0"), wait("catch-up", 5, 20.05, Outcome.CANCELLED)], [("first-record", 1), ("catch-up", 7)]),
        # no record had come to any sink
        ([], [("first-record", 8)]),
    ],
)  # fmt: skip
def test_a_sink_that_gets_no_record_does_not_hold_a_catch_up_up(waits: list[Wait], expected: Parts):
    """Sink 3 has waited since 4 s when the next failure, known at 20 s, begins at 12 s."""
    lost = wait("heartbeat", 12, 20, Outcome.EXPIRED)
    waits = [
        *waits,
        wait("deployment", 0, 4),
        wait("first-record", 4, 20.3, Outcome.CANCELLED, who="sink-3"),
        lost,
    ]
    found = attribute(waits, (), start=0, end=20 * SECOND, last=lost, detected=0)
    assert [(s.kind, round(s.seconds, 6)) for s in found] == [("deployment", 4), *expected, ("heartbeat", 8)]


@pytest.mark.parametrize(
    ("process", "end", "slack_s"),
    [("tm-1-1", 4, -1), ("tm-1-1", 3.98, -1), ("tm-1-1", 3.97, 0.03), ("tm-2-1", 4, 0)],
)
def test_a_taskmanager_that_waits_for_the_jobmanager_until_it_is_lost_limits_no_saving(
    process: str, end: float, slack_s: float
):
    """A loss that is noticed earlier also ends the wait of the lost TaskManager for the JobManager."""
    beats = {"what": "tm-1-1", "option": "heartbeat.timeout", "value": "4 s"}
    unheard = wait("jobmanager", 0, end, who=process, what="JobMaster")
    for judge in ("JobMaster", "ResourceManager"):  # one process
        lost = wait("heartbeat", 0, 4, Outcome.EXPIRED, who=judge, **beats)
        found = {s.kind: s for s in segments([lost, unheard, wait("slot", 4, 4.2)], 4.2, detected=4)}
        assert found["heartbeat"].slack_ns == (round(slack_s * SECOND) if slack_s >= 0 else -1)
