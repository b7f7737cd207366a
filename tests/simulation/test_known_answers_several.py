"""Known answers of several faults at a time, or of a fault with several effects: real shells in virtual time, with seconds known beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.judgement.recovery import Recovery, Segment
from testbed_runtime.report.answer import savings
from tests.simulation.knownanswers import (
    ALL,
    CUT,
    DELAY,
    DETECTION_S,
    DRAWN_CHECKPOINTS,
    EXPONENTIAL,
    FAULT_S,
    HEARTBEAT,
    JOBMANAGER,
    KILL,
    NO_SPARE,
    PAUSE,
    QUICK,
    REACHABILITY,
    REGIONS,
    SINK,
    SOURCE,
    TOLERANCE_S,
    Case,
    answered,
    document,
    fault,
    longest,
    of_case,
    of_region,
    regions,
    seconds,
    taskmanager,
)

pytestmark = pytest.mark.virtual

STALL = {"network": {"stall": {}}}
BARELY = {"network": {"latency": {"delay": "10 ms", "mode": "one-way"}}}
RPC_ALONE = {"plane": "rpc", **CUT}
UNUSED = {"taskManagers": {"names": ["tm-0"]}, "peers": {"names": ["tm-1"]}}
"""The link between the TaskManagers of both sources, over which no record passes."""
REGISTRATION = "cluster.registration.initial-timeout"
TWO_LARGE = {"replicas": 2, "slots": 6}
"""The loss of one of them leaves the other one with slots for all tasks, and is all that the job can wait for."""


def slow_messages(method: str, delay: str) -> dict[str, Any]:
    slow = {"rpc": {"delay": {"method": method, "delay": delay}}}
    return fault("slow", "30 s", taskmanager("tm-1"), **slow)


def test_messages_that_are_short_one_by_one_keep_a_taskmanager_busy_together(tmp_path: Path):
    """It handles the cancellation of two tasks for 2 s each, and is lost after 3 s. It alone has slots for the job then, so a lower timeout would
    have saved nothing."""
    kill = fault("kill", "1 s", taskmanager("tm-0"), at="500 ms", **KILL)
    case = Case(
        "cancellations", [slow_messages("CancelTask", "2 s"), kill], "", 0.0, options={**QUICK, HEARTBEAT: "3 s"},
        managers={"replicas": 2, "slots": 4}, observation="35 s",
    )  # fmt: skip
    found = longest(case, tmp_path)
    assert (found.prices[0].fault, found.prices[0].kind) == ("slow", "stalled")
    assert found.prices[0].seconds == pytest.approx(2 * 2.0, abs=TOLERANCE_S)
    assert not seconds(found, HEARTBEAT)


def test_a_taskmanager_whose_mailbox_holds_it_up_twice_is_charged_for_both(tmp_path: Path):
    """The ten tasks are submitted 1.4 s after the kill. It needs 15 s for them, and is lost meanwhile. They are submitted again then, until
    the fault ends 29.5 s after the kill."""
    kill = fault("kill", "1 s", taskmanager("tm-0"), at="500 ms", **KILL)
    case = Case(
        "submissions", [slow_messages("SubmitTask", "1500 ms"), kill], "", 0.0, options=QUICK, managers=TWO_LARGE,
        observation="36 s",
    )  # fmt: skip
    written = document(case)
    for vertex in written["spec"]["testbed"]["job"]["vertices"][1:]:
        vertex["parallelism"] = 4
    (found,) = answered(written, tmp_path).recoveries
    assert seconds(found, "tm-1 to handle the messages") == pytest.approx(29.5 - 1.4, abs=TOLERANCE_S)
    assert seconds(found, REACHABILITY) == pytest.approx(1.4, abs=TOLERANCE_S)
    assert not seconds(found, HEARTBEAT)


def test_a_small_fault_is_not_what_limits_a_catch_up(tmp_path: Path):
    """The link passes 6,500 bytes per second of the 5,200 that a source offers to a count. The latency lasts longer, but is 5 ms."""
    faults = [
        fault("tiny", "40 s", ALL, network={"latency": {"delay": "5 ms", "mode": "one-way"}}),
        fault("narrow", "35 s", ALL, at="100 ms", network={"bandwidth": {"bytesPerSecond": 6500}}),
        fault("kill", "1 s", SINK, at="500 ms", **KILL),
    ]
    case = Case("sizes", faults, "", 0.0, options=QUICK, version=DRAWN_CHECKPOINTS, observation="45 s")
    found = longest(case, tmp_path)
    assert found.prices[0].words.startswith("spare capacity of the job, during the fault `narrow`")
    assert found.prices[0].seconds > 10
    assert "tiny" not in found.faults


def test_registrations_that_keep_a_new_jobmanager_busy_have_their_seconds(tmp_path: Path):
    """It is away for 2 s. Each registration takes it 3 s and is repeated meanwhile, until the fault ends 22.5 s after the kill."""
    slow = {"rpc": {"delay": {"method": "RegisterTaskManager", "delay": "3 s"}}}
    faults = [
        fault("jm", "2 s", JOBMANAGER, jobmanager={"kill": {}}),
        fault("slow", "20 s", JOBMANAGER, at="2500 ms", **slow),
    ]
    case = Case("saturated", faults, "", 0.0, options=QUICK, managers={"replicas": 4}, observation="28 s")
    found = longest(case, tmp_path)
    assert found.prices[0].text == "a TaskManager to register, during the fault `slow`"
    assert found.prices[0].seconds == pytest.approx(22.5 - 2, abs=TOLERANCE_S)


@pytest.mark.parametrize("killed_s", [1, 3])
def test_a_loss_that_is_noticed_last_has_its_seconds_since_the_first_fault(killed_s: int, tmp_path: Path):
    """The TaskManager of one region is paused for longer than heartbeat.timeout. That of the other one is killed meanwhile, and its loss is
    noticed first or at the same time."""
    faults = [
        fault("gc", "8 s", of_region("a"), **PAUSE),
        fault("kill", "1 s", of_region("b"), at=f"{killed_s} s", **KILL),
    ]
    case = Case("regions", faults, "", 0.0, options=QUICK, managers={"replicas": 6}, observation="13 s")
    found = longest(case, tmp_path, REGIONS)
    assert (found.prices[0].option, found.prices[0].count) == (HEARTBEAT, 1)
    assert found.prices[0].seconds == pytest.approx(4.9, abs=TOLERANCE_S)
    assert not seconds(found, "return")


def test_a_cancellation_that_a_loss_ends_is_one_wait_with_it(tmp_path: Path):
    """The sink is paused for 8 s, and a source of its region is killed after 3 s: its tasks are cancelled when heartbeat.timeout has passed."""
    faults = [fault("gc", "8 s", SINK, **PAUSE), fault("kill", "1 s", SOURCE, at="3 s", **KILL)]
    case = Case("one-region", faults, "", 0.0, options=QUICK, managers={"replicas": 7}, observation="13 s")
    found = longest(case, tmp_path)
    assert (found.prices[0].option, found.prices[0].count) == (HEARTBEAT, 1)
    assert found.prices[0].seconds == pytest.approx(4.9, abs=TOLERANCE_S)
    phases = {s.kind: round(s.seconds, 1) for s in found.rounds[0].segments if s.seconds > 0.05}
    assert (phases["heartbeat"], phases["cancellation"]) == (3.0, 1.9)


def test_a_window_job_that_is_behind_has_not_caught_up_between_two_windows(tmp_path: Path):
    """Windows of 5 s end at 20, 25 and 30 s of virtual time. At 18.1 s a count is killed. 1.7 s since the checkpoint and 1.9 s until the job
    runs again are 100 records/s, of which 125 are processed: at 20 + 3.6 × 100 / 25 s nothing is left. The sources replay what they
    had sent."""
    written = document(
        Case(
            "behind", [fault("kill", "1 s", SINK, **KILL)], "", 0.0, options=QUICK,
            version=DRAWN_CHECKPOINTS, observation="20 s",
        )
    )  # fmt: skip
    count = {"operator": "window", "window": "5 s", "serviceTime": "8 ms"}
    written["spec"]["testbed"]["job"]["vertices"][1] |= count
    written["spec"]["timeline"] |= {"warmUp": "6 s", "baseline": "12 s"}
    (found,) = answered(written, tmp_path).recoveries
    assert found.recovered
    assert found.downtime_s == pytest.approx(DETECTION_S, abs=TOLERANCE_S)
    assert found.prices[0].text == "spare capacity of `count`"
    assert found.prices[0].seconds == pytest.approx(3.6 * 100 / (1 / 0.008 - 100), rel=0.2)
    replayed = found.prices[0].detail.partition(", ")[2].partition(" s of it replayed")[0]
    assert float(replayed) == pytest.approx(1.7 + DETECTION_S, abs=0.3)


@pytest.mark.parametrize(
    ("version", "option", "noticed_s"), [("1.12", HEARTBEAT, 4.9), ("2.x", REACHABILITY, DETECTION_S)]
)
def test_deployments_to_dead_slots_are_in_vain_until_the_loss_is_noticed(
    version: str, option: str, noticed_s: float, tmp_path: Path
):
    """As in Flink, tasks are deployed every 200 ms to the TaskManager that is dead. A shorter delay would only make that more often."""
    options = {**QUICK, "headgate.restart.fence-dead-slots": "false", DELAY: "200 ms"}
    options["restart-strategy.fixed-delay.attempts"] = "100"
    case = Case("in-vain", [fault("kill", "1 s", SOURCE, **KILL)], "", 0.0, options=options, version=version)
    found = longest(case, tmp_path)
    rounds = 1 + noticed_s // 0.2
    assert len(found.rounds) == pytest.approx(rounds, abs=1)
    assert (found.prices[0].option, found.prices[0].count) == (option, 1)
    assert found.prices[0].seconds == pytest.approx(noticed_s, abs=0.2)
    assert seconds(found, DELAY) <= 0.21


def test_a_replacement_that_finds_no_jobmanager_waits_for_its_return(tmp_path: Path):
    """It comes 10 s after the kill. The JobManager is away from 5 to 13 s after it, and ended last of what the job needed."""
    faults = [
        fault("kill", "1 s", SINK, **KILL),
        fault("jm", "8 s", JOBMANAGER, at="5 s", jobmanager={"kill": {}}),
    ]
    managers = {**NO_SPARE, "replaceLost": "10 s"}
    case = Case("away", faults, "", 0.0, options=QUICK, managers=managers, observation="19 s")
    found = longest(case, tmp_path)
    assert seconds(found, "the JobManager's return (killed by the fault `jm`)") == pytest.approx(8.0, abs=0.1)
    assert seconds(found, "replaceLost") == pytest.approx(5.0, abs=TOLERANCE_S)
    assert seconds(found, "a TaskManager to register") < 0.6


def test_the_end_of_a_latency_on_a_spare_taskmanager_ends_the_catch_up(tmp_path: Path):
    """It cost nothing before the job needed that TaskManager. From then on each record is 0.5 s late, until 0.5 s after the latency."""
    far = {"plane": "both", "network": {"latency": {"delay": "500 ms", "mode": "one-way"}}}
    faults = [fault("far", "20 s", taskmanager("tm-4"), **far), fault("kill", "1 s", SINK, at="1 s", **KILL)]
    options = {**QUICK, HEARTBEAT: "20 s"}
    found = longest(Case("spare", faults, "", 0.0, options=options, observation="26 s"), tmp_path)
    assert found.total_s == pytest.approx(20 - 1 + 0.5, abs=0.2)
    assert (found.prices[0].kind, found.prices[0].fault) == ("catch-up", "far")
    assert not seconds(found, "spare capacity") > 0.2


def test_an_outage_of_which_a_busy_jobmanager_hears_late_began_before(tmp_path: Path):
    """Reports of the restarted tasks keep it busy for 2 s each. They expire after 10 s, at 24 s of virtual time, and tasks fail. The JobManager
    gets to that at 40 s, and its fault ends at 44.1 s. Then it declares TaskManagers lost, of which it had heard nothing while it was busy."""
    slow = {"rpc": {"delay": {"method": "UpdateTaskExecutionState", "delay": "2 s"}}}
    faults = [fault("slow", "40 s", JOBMANAGER, **slow), fault("kill", "1 s", SINK, at="500 ms", **KILL)]
    options = {**QUICK, HEARTBEAT: "20 s"}
    trial = of_case(Case("late", faults, "", 0.0, options=options, observation="47 s"), tmp_path)
    one, two = trial.recoveries
    assert (one.fault, two.fault) == ("kill", "slow")
    assert two.effect_ns / 1e9 % 100 == pytest.approx(24.0, abs=0.4)
    assert two.total_s == pytest.approx(45.1 - 24.0, abs=0.5)
    assert two.prices[0].fault == "slow"
    assert seconds(two, HEARTBEAT) == 0


def test_heartbeats_that_one_fault_delayed_are_not_those_that_another_one_stopped(tmp_path: Path):
    """A sink is paused for 3 s. The loss that fails the job is that of a source, which is cut off after 2 s: its heartbeat.timeout began then."""
    cut = {"plane": "both", "network": {"partition": {}}}
    faults = [fault("gc", "3 s", SINK, **PAUSE), fault("cut", "8 s", SOURCE, at="2 s", **cut)]
    case = Case("apart", faults, "", 0.0, options=QUICK, managers={"replicas": 6}, observation="15 s")
    found = longest(case, tmp_path)
    assert seconds(found, "return (paused by the fault `gc`)") == pytest.approx(2.0, abs=TOLERANCE_S)
    assert seconds(found, HEARTBEAT) == pytest.approx(4.9, abs=TOLERANCE_S)


def test_a_lower_timeout_saves_nothing_of_a_cut_that_lasts_longer(tmp_path: Path):
    """Nothing reaches the JobManager for 8 s, and what was lost first, 0.9 s after the beginning, is sent again at 14.3 s. It gives the
    TaskManagers up, and they can register again then, whatever the timeout below that."""
    cut = fault("cut", "8 s", JOBMANAGER, plane="rpc", direction="to", network={"partition": {}})
    found = {}
    for timeout in ("5 s", "3 s", "14600 ms"):
        options = {**QUICK, HEARTBEAT: timeout}
        case = Case("cut", [cut], "", 0.0, options=options, observation="20 s", managers={"replicas": 5})
        found[timeout] = longest(case, tmp_path / timeout)
    for timeout in ("5 s", "3 s"):
        higher, lower = savings(found[timeout])
        assert " a limit above 14.5 s, instead of " in higher
        assert lower.startswith(f"{HEARTBEAT} = {timeout}: a lower value saves nothing")
        assert lower.endswith("waits for a TaskManager to register, during the fault `cut`")
    assert found["14600 ms"].total_s == 0
    assert found["3 s"].total_s == pytest.approx(found["5 s"].total_s, abs=0.05)


def test_a_shorter_delay_saves_nothing_before_dead_slots_are_noticed(tmp_path: Path):
    """Restarts deploy to the dead TaskManager until its loss is noticed. The last delay goes on for seconds after that, which shorter ones save."""
    found = {}
    for backoff, lasted in (("1 s", 13.2), ("100 ms", 11.3)):
        options = {
            "headgate.restart.fence-dead-slots": "false", "restart-strategy.type": "exponential-delay",
            f"{EXPONENTIAL}.jitter-factor": "0", f"{EXPONENTIAL}.initial-backoff": backoff,
        }  # fmt: skip
        case = Case(
            "dead", [fault("kill", "1 s", SOURCE, **KILL)], "", 0.0, options=options, observation="26 s"
        )
        found[backoff] = longest(case, tmp_path / backoff)
        assert seconds(found[backoff], EXPONENTIAL) > 5
        detected, delayed = savings(found[backoff])
        assert detected.endswith(f"more than these {lasted} s: the job then restarts fewer times")
        assert delayed.endswith(f"then the job waits for {REACHABILITY} = 10 s × 2")
    noticed = [r.total_s - last_delay(r).slack_ns / 1e9 for r in found.values()]
    assert noticed[0] == pytest.approx(noticed[1], abs=0.05)


def last_delay(found: Recovery) -> Segment:
    return next(s for s in found.rounds[-1].segments if s.kind == "restart-delay")


def test_missing_heartbeats_of_one_region_last_over_failures_of_another_one(tmp_path: Path):
    """Region a is killed, b paused 1 s later, and the connections of c are reset from 2 to 5 s: its restarts fail each second. The JobMaster gives
    b up 5 s after its last heartbeat, which ended last."""
    faults = [
        fault("a", "1 s", of_region("a"), **KILL),
        fault("b", "8 s", of_region("b"), at="1 s", **PAUSE),
        fault("c", "3 s", of_region("c"), at="2 s", network={"reset": {}}),
    ]
    case = Case(
        "regions",
        faults,
        "",
        0.0,
        options={**QUICK, DELAY: "1 s"},
        managers={"replicas": 9},
        observation="14 s",
    )
    found = longest(case, tmp_path, regions("abc"))
    assert len(found.rounds) > 2
    assert seconds(found, HEARTBEAT) == pytest.approx(5.0, abs=TOLERANCE_S)
    assert seconds(found, DELAY) == pytest.approx(1.0, abs=TOLERANCE_S)


def test_registrations_that_expire_on_a_slow_network_are_charged_to_their_timeout(tmp_path: Path):
    """Each message takes 1 s: attempts with timeouts from 100 ms to 1.6 s expire, 3.1 s together, and the next one is answered after 2 s, as
    the JobMaster has connected to the TaskManager by then. With a timeout of 10 s, the first one is answered after 4 s."""
    far = fault(
        "far", "30 s", ALL, at="deploy", plane="rpc", network={"latency": {"delay": "1 s", "mode": "one-way"}}
    )
    found = {}
    for timeout in ("100 ms", "10 s"):
        options = {**QUICK, HEARTBEAT: "20 s", REGISTRATION: timeout}
        found[timeout] = longest(
            Case("far", [far], "", 0.0, options=options, observation="5 s"), tmp_path / timeout
        )
    assert (found["100 ms"].prices[0].option, found["100 ms"].prices[0].value) == (REGISTRATION, "100 ms")
    assert seconds(found["100 ms"], REGISTRATION) == pytest.approx(3.1, abs=TOLERANCE_S)
    assert seconds(found["10 s"], REGISTRATION) == 0
    assert found["100 ms"].total_s - found["10 s"].total_s == pytest.approx(3.1 + 2 - 4, abs=TOLERANCE_S)


@pytest.mark.parametrize(
    ("kind", "cut_s", "later", "later_s", "owned_s"),
    [
        (CUT, 0.0, BARELY, 0.0, 13.5),
        (CUT, 0.0, BARELY, 0.1, 13.5),
        (CUT, 0.0, BARELY, 0.4, 13.5),
        (CUT, 0.0, BARELY, 0.6, 13.5),
        (CUT, 0.0, BARELY, 2.0, 13.5),
        (CUT, 0.4, BARELY, 0.0, 13.5),
        (CUT, 0.0, CUT, 0.4, 13.5),
        (STALL, 0.0, BARELY, 0.4, 9.0),
    ],
)
def test_a_cut_has_its_seconds_however_soon_another_fault_begins(
    kind: dict[str, Any], cut_s: float, later: dict[str, Any], later_s: float, owned_s: float, tmp_path: Path
):
    """Nothing leaves a source for 9 s. TCP sends what a partition has lost again 4.5 s after its end; a stall has lost nothing. That records are
    missing shows after some 0.5 s."""
    faults = [
        fault("cut", "9 s", taskmanager("tm-0"), at=f"{cut_s * 1000:.0f} ms", **kind),
        fault("other", "9 s", taskmanager("tm-3"), at=f"{later_s * 1000:.0f} ms", **later),
    ]
    case = Case("soon", faults, "", 0.0, options={**QUICK, HEARTBEAT: "60 s"}, observation="25 s")
    found = longest(case, tmp_path)
    assert found.fault == "cut"
    assert found.effect_ns / 1e9 % 1 == pytest.approx((FAULT_S + cut_s) % 1, abs=0.02)
    assert seconds(found, "end of the fault `cut`") == pytest.approx(owned_s, abs=TOLERANCE_S)


@pytest.mark.parametrize(
    ("target", "kind"), [(taskmanager("tm-4"), CUT), (UNUSED, CUT), (taskmanager("tm-0"), RPC_ALONE)]
)
def test_a_cut_on_which_no_records_pass_costs_nothing_before_the_next_fault(
    target: dict[str, Any], kind: dict[str, Any], tmp_path: Path
):
    """A spare TaskManager, a link without channels, or messages alone, without checkpoints: what follows is the cost of the pause."""
    faults = [fault("cut", "9 s", target, **kind), fault("gc", "3 s", SINK, at="400 ms", **PAUSE)]
    options = {**QUICK, HEARTBEAT: "60 s", "execution.checkpointing.interval": "60 s"}
    found = longest(Case("unused", faults, "", 0.0, options=options, observation="25 s"), tmp_path)
    assert found.faults == ("gc",)
    assert found.prices[0].seconds == pytest.approx(3.0, abs=TOLERANCE_S)


def test_a_killed_jobmanager_interrupts_the_region_that_waited_longest(tmp_path: Path):
    """A region waits for a replacement from the first kill on. Five seconds later another one loses its sink, and waits for its restart delay when
    the JobManager is killed at 7.5 s."""
    faults = [
        fault("ka", "1 s", of_region("a"), **KILL),
        fault("kb", "1 s", of_region("b"), at="5 s", **KILL),
        fault("jm", "1 s", JOBMANAGER, at="7500 ms", jobmanager={"kill": {}}),
    ]
    options = {"heartbeat.interval": "1 s", HEARTBEAT: "20 s", DELAY: "2 s"}
    managers = {"replicas": 4, "replaceLost": "12 s"}
    case = Case("regions", faults, "", 0.0, options=options, managers=managers, observation="29 s")
    found = longest(case, tmp_path, REGIONS)
    assert seconds(found, "replaceLost") == pytest.approx(7.5, abs=TOLERANCE_S)


def test_a_lower_restart_delay_saves_more_if_a_pause_had_taken_the_spare(tmp_path: Path):
    """A sink is killed at 0 s, and a TaskManager is paused at 3 s for longer than the heartbeats are tolerated. One is spare, and a replacement
    comes after 7 s."""
    faults = [
        fault("kill", "1 s", SINK, **KILL),
        fault("gc", "10 s", taskmanager("tm-0"), at="3 s", **PAUSE),
    ]
    managers = {"replicas": 5, "replaceLost": "7 s"}
    case = Case(
        "spare", faults, "", 0.0, options={**QUICK, DELAY: "9 s"}, managers=managers, observation="14 s"
    )
    (line,) = [line for line in savings(longest(case, tmp_path)) if line.startswith(DELAY)]
    assert "saves at most 4.0" in line
