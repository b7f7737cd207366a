"""Decisions at the edge of an answer: a value just within a limit, and the same one just beyond it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from testbed_runtime.checking.progress import Progress
from testbed_runtime.checking.rounds import Outage, RoundSpan, start_of
from testbed_runtime.checking.waits import read_waits, submission_wait
from testbed_runtime.core.waits import REPLACE_LOST, Wait
from tests.checking.test_catchup import NS, STEP
from tests.checking.test_outages import END
from tests.checking.test_round_paths import answered, at, cause, fault, parts, survived, wait
from tests.checking.test_rules import effect
from tests.manifests import trial_entry


@pytest.mark.parametrize(
    ("late", "tolerated_s", "lag"), [(2, 0.2, 0.0), (2, 0.1, 1.5), (1, 0.1, 0.0), (3, 0.2, 1.5)]
)
def test_a_sink_behind_a_window_is_caught_up_if_its_next_result_is_not_too_late(
    late: int, tolerated_s: float, lag: float
):
    """Results come each 2 s. The one until 4 s came 1.5 s late. That until 6 s is `late` tenths late, and as much is tolerated."""
    t_ns = np.arange(100, dtype=np.int64) * STEP
    distinct, reached = np.zeros(100), np.zeros(100, dtype=np.int64)
    for tick, due in ((20, 20), (55, 40), (60 + late, 60)):
        distinct[tick:] += 1
        reached[tick:] = due * STEP
    one = Progress("sink-0", "sink", t_ns, distinct, reached, usual_gap_ns=2 * NS)
    found = one.lag_at(np.asarray([56 * STEP], dtype=np.int64), tolerated_s=tolerated_s)
    assert found.tolist() == pytest.approx([lag])


@pytest.mark.parametrize(("gap", "lag"), [(22, 0.0), (23, 1.5)])
def test_a_result_that_comes_later_than_usual_does_not_end_the_lag_before_it(gap: int, lag: float):
    """The usual gap is 2 s, and a quarter of a second more is allowed: a sample each tenth of a second shows 2.2 s."""
    t_ns = np.arange(100, dtype=np.int64) * STEP
    distinct, reached = np.zeros(100), np.zeros(100, dtype=np.int64)
    for tick, due in ((20, 20), (55, 40), (55 + gap, 55 + gap)):
        distinct[tick:] += 1
        reached[tick:] = due * STEP
    one = Progress("sink-0", "sink", t_ns, distinct, reached, usual_gap_ns=2 * NS)
    found = one.lag_at(np.asarray([56 * STEP], dtype=np.int64), tolerated_s=0.2)
    assert found.tolist() == pytest.approx([lag])


@pytest.mark.parametrize(("created", "waits"), [(1.25, True), (1.249, False)])
def test_a_submission_of_a_quarter_of_a_second_is_a_wait(history: Any, created: float, waits: bool):
    """The start begins with it. A shorter one is what every submission takes. Of two, the first one counts."""
    built = history.empty()
    built.event("job.submitted", "", 1.0)
    built.event("job.submitted", "", 1.2)
    built.event("job.state", "job", created, data={"from": "CREATED", "to": "RUNNING"})
    trial = built.trial()
    found, submission = start_of(trial, history.at(END)), submission_wait(trial)
    assert found is not None
    assert found.effect == history.at(1.0 if waits else created)
    assert (submission is not None) == waits
    assert submission_wait(history.empty().trial()) is None


def test_a_job_that_runs_and_never_catches_up_is_still_catching_up(history: Any):
    """Its sinks have records again at 11 s. The record ends at 20 s."""
    rounds = (RoundSpan(at(8), at(20), cause(9.5), running=at(11)),)
    outage = Outage(fault("a", 8, 9), at(8), at(20), rounds, False)
    found = answered(outage, [], trial=history.empty().trial())
    last = found.rounds[-1].segments[-1]
    assert (last.kind, last.seconds, last.outcome) == ("catch-up", 9, "open")
    assert found.rounds[-1].ended_by == "open"


@pytest.mark.parametrize(
    ("state", "t", "ended"),
    [("CANCELED", 20.005, "CANCELED"), ("CANCELED", 20.006, ""), ("RUNNING", 15, "")],
)
def test_an_outage_that_did_not_end_names_the_state_in_which_the_job_ended_with_it(
    history: Any, state: str, t: float, ended: str
):
    """It lasts until 20 s. Clocks differ by 5 ms."""
    built = history.empty()
    built.event("job.state", "job", t, data={"to": state})
    outage = survived((fault("a", 8, 9),), recovered=False)
    assert answered(outage, [], trial=built.trial()).ended == ended


def test_a_job_whose_lag_is_not_known_has_recovered_with_its_first_record(history: Any):
    """There is no catch-up then, and the last step ends at the first record."""
    rounds = (RoundSpan(at(8), at(12), cause(9.5), running=at(12)),)
    found = answered(Outage(fault("a", 8, 9), at(8), at(12), rounds, True), [wait("slot", 9.5, 12)], trial=history.empty().trial())  # fmt: skip
    assert [kind for kind, _ in parts(found)][-1] == "slot"


@pytest.mark.parametrize(("second", "owner"), [(6.9, "recorded"), (7.0, "computed")])
def test_a_replacement_that_was_recorded_before_the_last_end_is_one_of_an_earlier_incarnation(
    history: Any, second: float, owner: str
):
    """The supervisor recorded the first replacement, until 5 s. The process ended again at 4.9 s, or at that moment."""
    built = history.empty()
    built.event("process.exit", "tm-1-1", 2)
    built.event("process.exit", "tm-1-2", second - 2)
    built.wait("replacement", "supervisor", "tm-1-2", (2, 5))
    built.event("taskmanager.registered", "tm-1-3", 9)
    entry = trial_entry({"job": {"taskManagers": {"replaceLost": "1 s"}}})
    found: list[Wait] = read_waits(built.trial(), entry, [], history.at(20))
    own = [w for w in found if w.kind == "replacement" and w.what == "tm-1-3"]
    assert bool(own) == (owner == "computed")


@pytest.mark.parametrize(
    ("outcome", "task", "detector", "handled", "end"),
    [
        ("expired", "map-0", "Task", 8.0, 8.0),
        ("expired", "map-0", "Task", 4.0, 5.0),  # before it expired
        ("expired", "map-1", "Task", 8.0, 5.0),
        ("expired", "map-0", "JobMaster", 8.0, 5.0),
        ("completed", "map-0", "Task", 8.0, 5.0),
    ],
)
def test_a_report_that_expired_lasts_until_the_jobmaster_gets_to_it(
    history: Any, outcome: str, task: str, detector: str, handled: float, end: float
):
    """An ask that times out does not cancel its callee. The option that let the report expire does not limit that, and is no margin. A later
    failure of the task is another one."""
    built = history.empty()
    built.wait(
        "failure-report", "map-0", "JobMaster: FAILED", (2.0, 5.0), ("pekko.ask.timeout", "3 s", 3.0), outcome
    )
    for t in (handled, 9.5)[: 1 + (handled > 5)]:
        built.event("failover.failure", "1", t, data={"task": task, "detector": detector})
    (found,) = read_waits(built.trial(), trial_entry(), [], history.at(20))
    assert found.end_ns == history.at(end)
    assert (found.outcome == "completed") is (end == handled or outcome == "completed")
    assert (found.option == "") is (end == handled)


@pytest.mark.parametrize(
    ("region", "ends"),
    [
        (["map-0"], [5.0, 20.0]),  # restarted at 14 s for another reason
        (["map-1"], [18.0, 20.0]),
    ],
)
def test_each_expired_report_is_handled_before_the_next_restart_of_its_task(
    history: Any, region: list[str], ends: list[float]
):
    """The heartbeats of its TaskManager were missing, and a later attempt of the same task fails too."""
    built = history.empty()
    for attempt, span in enumerate(((2.0, 5.0), (15.0, 19.0))):
        built.wait(
            "failure-report", "map-0", "JobMaster: FAILED", span, ("pekko.ask.timeout", "3 s", 3.0), "expired", attempt=attempt
        )  # fmt: skip
    built.event("failover.started", "1", 14.0, data={"region": region})
    for number, t in enumerate((18.0, 20.0), 2):
        built.event("failover.failure", str(number), t, data={"task": "map-0", "detector": "Task"})
    found = sorted(read_waits(built.trial(), trial_entry(), [], history.at(30)), key=lambda w: w.start_ns)
    assert [w.end_ns for w in found] == [history.at(end) for end in ends]


@pytest.mark.parametrize(
    ("kind", "what", "fault", "expected"),
    [
        ("jobmanager", "ResourceManager", "jobmanager.kill", ("registration", 6.0)),
        ("registration", "ResourceManager", "jobmanager.kill", ("registration", 6.0)),
        ("registration", "JobMaster", "jobmanager.pause", ("registration", 6.0)),
        ("registration", "ResourceManager", "process.pause", ("registration", 2.0)),
        ("deployment", "map-0", "jobmanager.pause", ("deployment", 2.0)),
    ],
)
def test_a_taskmanager_registers_from_the_return_of_the_jobmanager_on(
    history: Any, kind: str, what: str, fault: str, expected: tuple[str, float]
):
    """A fault stops the JobManager from 1 to 6 s, which owns the wait until then."""
    built = history.empty()
    built.wait(kind, "tm-0-1", what, (2.0, 8.0))
    stopped = effect(fault, (1, 6), targets='["jobmanager"]')
    stopped = replace(stopped, injected_ns=history.at(1), ended_ns=history.at(6))
    waits = read_waits(built.trial(), trial_entry(), [stopped], history.at(20))
    (found,) = [w for w in waits if w.who == "tm-0-1"]
    assert (found.kind, found.start_ns) == (expected[0], history.at(expected[1]))


@pytest.mark.parametrize("kind", ["jobmanager", "registration"])
@pytest.mark.parametrize(
    ("targets", "blamed"),
    [
        ('["tm-1"]', False),
        ('["tm-0"]', True),
        ('["jobmanager"]', True),
        ("[]", True),
        ('["jobmanager->tm-1"]', False),
        ('["jobmanager->tm-0"]', True),
    ],
)
def test_a_taskmanager_that_misses_the_jobmanager_is_delayed_by_no_fault_on_another_one(
    history: Any, kind: str, targets: str, *, blamed: bool
):
    """The fault delays calls all the time."""
    built = history.empty()
    built.wait(kind, "tm-0-1", "ResourceManager", (2.0, 8.0))
    slow = replace(
        effect("rpc.delay", (1, 9), targets=targets), injected_ns=history.at(1), ended_ns=history.at(9)
    )
    (found,) = [
        w for w in read_waits(built.trial(), trial_entry(), [slow], history.at(20)) if w.who == "tm-0-1"
    ]
    assert bool(found.fault) is blamed


@pytest.mark.parametrize(
    ("outcome", "lacking"), [("expired", True), ("open", True), ("completed", False), ("failed", False)]
)
def test_slots_that_were_waited_for_in_vain_say_that_none_was_free(
    history: Any, outcome: str, *, lacking: bool
):
    """The request expired, or the record ended before it did."""
    built = history.empty()
    built.wait("slot", "JobMaster", "4 slots", (2.0, 8.0), ("slot.request.timeout", "5 min", 300.0), outcome)
    (found,) = read_waits(built.trial(), trial_entry(), [], history.at(20))
    assert found.detail == ("no TaskManager had a free slot" if lacking else "")


@pytest.mark.parametrize(("kind", "saved"), [("slot", -1), ("deployment", 1.5 * NS)])
def test_a_round_that_began_because_slots_were_missing_does_not_limit_the_wait_for_them(
    history: Any, kind: str, saved: float
):
    """A replacement comes at 15 s. In the second round, tasks are also cancelled, until 14.5 s."""
    failed = cause(12, kind)
    rounds = (RoundSpan(at(8), at(12), cause(9.5), failed), RoundSpan(at(12), at(16), failed, running=at(16)))
    waits = [
        wait(
            "replacement", 8, 15, "fired", who="supervisor", what="tm-0-2", option=REPLACE_LOST, value="7 s"
        ),
        wait("slot", 9.6, 12, "expired", who="JobMaster", option="slot.request.timeout", value="2 s"),
        wait("slot", 12, 15.02, who="JobMaster"),
        wait("cancellation", 12, 14.5, who="JobMaster"),
    ]
    outage = Outage(fault("a", 8, 9, "process.kill"), at(8), at(16), rounds, True, at(16))
    found = answered(outage, waits, trial=history.empty().trial())
    assert (found.rounds[1].segments[0].kind, found.rounds[1].segments[0].slack_ns) == ("replacement", saved)


@pytest.mark.parametrize(("kind", "seconds"), [("checkpoint", 3), ("heartbeat", 0)])
def test_the_interval_owns_the_time_until_the_checkpoint_that_failed(history: Any, kind: str, seconds: float):
    """A store fails at 8 s. The next checkpoints begin at 9 and 11 s, and the job fails at 12 s. Another failure has nothing to do with them."""
    built = history.empty()
    for number, t in enumerate((7, 9, 11)):
        built.add("jobmanager-1", "checkpoints", t, checkpoint=number, state="triggered")
    rounds = (RoundSpan(at(8), at(13), cause(12, kind), running=at(13)),)
    outage = Outage(fault("a", 8, 9, "store.failing"), at(8), at(13), rounds, True, at(13))
    found = answered(outage, [], trial=built.trial(), interval="2 s")
    own = [s.seconds for s in found.rounds[0].segments if s.option == "execution.checkpointing.interval"]
    assert sum(own) == seconds


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((15, 26), [("unattributed", 7), ("leadership", 5)]),
        ((15, 20), [("a", 1), ("catch-up", 11)]),
        ((20, 26), [("a", 1), ("catch-up", 11)]),
    ],
)
def test_a_jobmanager_that_leads_after_the_record_learns_of_the_failure_then(
    history: Any, span: tuple[float, float], expected: list[Any]
):
    """The job waits for its leader at the end of the record, at 20 s."""
    outage = survived((fault("a", 8, 9),), recovered=False, unnoticed=cause(26, "heartbeat"))
    assert parts(answered(outage, [wait("leadership", *span)], trial=history.empty().trial())) == expected


@pytest.mark.parametrize(
    ("fence", "expected"),
    [("false", ("fencing", 6)), ("true", ("connection", 3))],
)
def test_slots_that_are_not_fenced_are_gone_when_their_loss_is_noticed(
    history: Any, fence: str, expected: tuple[str, float]
):
    """The connection is closed at 11 s, the heartbeats are missing until 14 s, and the job runs at 15 s. Without a fence, a shorter delay would
    have deployed to the dead TaskManager again."""
    waits = [
        wait("heartbeat", 8, 14, "expired", who="JobMaster", what="tm-1-1"),
        wait("restart-delay", 11, 12, "fired", who="JobMaster", option="delay"),
        wait("slot", 12, 14.01, who="JobMaster"),
    ]
    failure = cause(11, "connection", taskmanager="tm-1-1")
    rounds = (RoundSpan(at(8), at(15), failure, running=at(15)),)
    outage = Outage(fault("k", 8, 9, "process.kill"), at(8), at(15), rounds, True)
    found = answered(
        outage, waits, trial=history.empty().trial(), more={"headgate.restart.fence-dead-slots": fence}
    )
    assert parts(found)[0] == expected


@pytest.mark.parametrize(
    ("coming", "expected"),
    [
        ((12, 26), [("slot", 2), ("replacement", 8)]),
        ((9, 26), [("replacement", 10)]),
        ((12, 19), [("slot", 10)]),  # it came, and the job still waits
    ],
)
def test_a_job_that_waits_for_slots_at_the_end_waits_for_the_taskmanager_that_is_coming(
    history: Any, coming: tuple[float, float], expected: list[Any]
):
    """It has waited since 10 s, and the record ends at 20 s."""
    outage = Outage(fault("a", 9, 10), at(10), at(20), (RoundSpan(at(10), at(20), cause(10)),), False)
    waits = [wait("slot", 10, 26), wait("replacement", *coming, who="supervisor", what="tm-1-2")]
    assert parts(answered(outage, waits, trial=history.empty().trial())) == expected


@pytest.mark.parametrize(
    ("until", "expected"), [(14, [("registration", 2)]), (12, [("start", 1.9), ("registration", 0.1)])]
)
def test_a_wait_that_lasts_over_a_failure_owns_the_end_of_its_round(
    history: Any, until: float, expected: list[Any]
):
    """The process had started at 11.9 s, just before the failure at 12 s. If the registration ends with the round, it was late because of that."""
    failed = cause(12, "deployment")
    rounds = (RoundSpan(at(10), at(12), cause(10), failed), RoundSpan(at(12), at(16), failed, running=at(16)))
    waits = [
        wait("start", 9, 11.9, who="supervisor", what="tm-1-2"),
        wait("registration", 9, until, who="tm-1-2", what="JobMaster"),
        wait("slot", 12, 14.01, who="JobMaster"),
    ]
    outage = Outage(fault("a", 8, 9), at(10), at(16), rounds, True)
    found = answered(outage, waits, trial=history.empty().trial())
    assert parts(found) == expected
