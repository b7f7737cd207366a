"""Known answers of waits that a failure does not end: they own their seconds in every round over which they last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.judgement.recovery import Recovery
from testbed_runtime.core.options import STANDALONE_START_UP
from testbed_runtime.report.answer import savings
from tests.simulation.knownanswers import (
    ALL,
    ASK,
    DELAY,
    HEARTBEAT,
    JOBMANAGER,
    KILL,
    NO_SPARE,
    QUICK,
    REGIONS,
    SINK,
    SLOT,
    SOURCE,
    TOLERANCE_S,
    Case,
    fault,
    of_case,
    of_region,
    seconds,
)

pytestmark = pytest.mark.virtual

LOST = [fault("kill", "1 s", SINK, **KILL)]
EXPIRING = {**QUICK, SLOT: "4 s", DELAY: "1 s"}


def recovery(case: Case, folder: Path, job: dict[str, Any] | None = None) -> Recovery:
    (found,) = of_case(case, folder, job).recoveries
    return found


def test_a_pause_has_every_second_although_a_timeout_expires_in_it(tmp_path: Path):
    """The only spare slot is taken by the region that failed first, so the other one needs the TaskManager that comes back 8 s after
    the pause began. No shorter heartbeat.timeout would have helped."""
    faults = [
        fault("gc", "8 s", of_region("a"), process={"pause": {}}),
        fault("kill", "1 s", of_region("b"), at="2 s", **KILL),
    ]
    case = Case("regions", faults, "", 0.0, options=QUICK, managers={"replicas": 5}, observation="14 s")
    found = recovery(case, tmp_path, REGIONS)
    assert len(found.rounds) == 2
    assert found.prices[0].fault == "gc"
    assert found.prices[0].seconds == pytest.approx(8.0, abs=TOLERANCE_S)


def test_a_taskmanager_that_pauses_in_a_replacement_has_the_seconds_after_it(tmp_path: Path):
    """The replacement would have come 2 s after the pause began, but the job needs both, and the pause ends last."""
    faults = [
        *LOST,
        fault("gc", "7 s", {"taskManagers": {"names": ["tm-0"]}}, at="4 s", process={"pause": {}}),
    ]
    case = Case("pause", faults, "", 0.0, options=QUICK, managers={**NO_SPARE, "replaceLost": "6 s"}, observation="17 s")  # fmt: skip
    found = recovery(case, tmp_path)
    assert len(found.rounds) == 2
    assert seconds(found, "tm-0's return") == pytest.approx(7.0, abs=TOLERANCE_S)
    assert seconds(found, "replaceLost") == pytest.approx(4.0, abs=TOLERANCE_S)
    assert seconds(found, "heartbeat") == pytest.approx(0.0, abs=TOLERANCE_S)


def test_two_regions_that_lose_a_taskmanager_each_wait_for_both_replacements(tmp_path: Path):
    """The second one is lost 1 s after the first: until then the first replacement ran, and then the second one for its 4 s. Neither
    detection cost anything."""
    faults = [fault(r, "1 s", of_region(r), at=at, **KILL) for r, at in (("a", "0 s"), ("b", "1 s"))]
    case = Case(
        "regions", faults, "", 0.0, options={**QUICK, DELAY: "1 s"},
        managers={**NO_SPARE, "replaceLost": "4 s"}, observation="11 s",
    )  # fmt: skip
    found = recovery(case, tmp_path, REGIONS)
    (price, *_) = found.prices
    assert (len(found.rounds), price.option, price.count) == (2, "replaceLost", 2)
    assert price.seconds == pytest.approx(1 + 4, abs=TOLERANCE_S)


@pytest.mark.parametrize(
    ("replaced", "rounds", "owned_s", "limit"),
    [("13500 ms", 3, 13.5, f"then the job waits for {DELAY} = 1 s"), ("12400 ms", 3, 11.9, "")],
)
def test_an_earlier_replacement_saves_what_the_report_says_over_several_rounds(
    replaced: str, rounds: int, owned_s: float, limit: str, tmp_path: Path
):
    """Requests for slots expire twice before it comes, the second time 11.9 s after the kill. If it comes at once, its registration shows that
    the process before it is lost, so only the restart delay is left. If it comes in a later delay, the rest of that is saved too."""
    found = {
        after: recovery(
            Case("rounds", LOST, "", 0.0, options=EXPIRING, managers={**NO_SPARE, "replaceLost": after}, observation="19 s"),
            tmp_path / after,
        )
        for after in (replaced, "50 ms")
    }  # fmt: skip
    long, short = found[replaced], found["50 ms"]
    assert (len(long.rounds), len(short.rounds)) == (rounds, 1)
    assert (long.prices[0].option, long.prices[0].count) == ("replaceLost", 1)
    assert long.prices[0].seconds == pytest.approx(owned_s, abs=TOLERANCE_S)
    parts = [s for r in long.rounds for s in r.segments if s.option == "replaceLost"]
    saved = sum(s.seconds if s.slack_ns < 0 else s.slack_ns / 1e9 for s in parts)
    assert saved == pytest.approx(long.total_s - short.total_s, abs=TOLERANCE_S)
    lines = [line for line in savings(long) if line.startswith("replaceLost")]
    assert [line.endswith(limit) for line in lines] == ([True] if limit else [])


def test_a_jobmanager_that_is_back_before_a_replacement_cost_nothing(tmp_path: Path):
    """It is away from 4 to 7 s after the kill, and requests for slots expire once more, but the replacement after 12 s decides.
    With an earlier one the job runs again until the JobManager is killed, and then lacks it for 4.95 s."""
    faults = [*LOST, fault("jm", "3 s", JOBMANAGER, at="4 s", jobmanager={"kill": {}})]
    options = {**QUICK, SLOT: "3 s"}
    case = Case("jm", faults, "", 0.0, options=options, managers={**NO_SPARE, "replaceLost": "12 s"}, observation="18 s")  # fmt: skip
    found = recovery(case, tmp_path)
    assert len(found.rounds) == 3
    assert (found.prices[0].option, found.prices[0].count) == ("replaceLost", 1)
    assert found.prices[0].seconds == pytest.approx(12.0, abs=TOLERANCE_S)
    (line,) = savings(found)
    assert line.startswith(
        "replaceLost = 12 s: a lower value saves at most 7.05 s, then the job waits for the JobManager's return"
    )


def test_a_restart_delay_after_the_jobmanagers_return_is_no_registration(tmp_path: Path):
    """It is back after 3 s, and the TaskManagers give the dead one up 11.9 s after the kill. Requests for slots that expire at 5 s and 11 s
    cost a restart delay each, and the JobMaster asks for no slot until 15 s. A shorter delay helps until the TaskManagers are back."""
    options = {**QUICK, HEARTBEAT: "12 s", SLOT: "2 s", DELAY: "4 s"}
    faults = [fault("jm", "3 s", JOBMANAGER, jobmanager={"kill": {}})]
    case = Case("rejoining", faults, "", 0.0, options=options, managers=NO_SPARE, observation="21 s")
    found = recovery(case, tmp_path)
    assert len(found.rounds) == 3
    assert seconds(found, "the JobManager's return (killed by the fault `jm`)") == pytest.approx(
        3.0, abs=TOLERANCE_S
    )
    assert seconds(found, HEARTBEAT) == pytest.approx(8.0, abs=TOLERANCE_S)
    assert seconds(found, DELAY) == pytest.approx(4.0, abs=TOLERANCE_S)
    sooner, line = savings(found)
    assert (
        sooner
        == f"{HEARTBEAT} = 12 s: a lower value saves at most 12.0 s, more than these 8.00 s: the job then restarts fewer times"
    )
    assert line.startswith(
        f"{DELAY} = 4 s: a lower value saves at most 3.10 s, then the job waits for {HEARTBEAT}"
    )


def test_a_fault_that_fails_the_job_again_has_every_detection(tmp_path: Path):
    """The TaskManager is lost 4.9 s after its answers are muted. It registers again, and is lost again and again until the fault ends: in
    5 s and the answer that was not muted, 0.05 s later."""
    mute = fault("mute", "16 s", SINK, heartbeats={"mute": {"direction": "response"}})
    case = Case("muted", [mute], "", 0.0, options=QUICK, managers=NO_SPARE, observation="21 s")
    found = of_case(case, tmp_path).recoveries
    assert len(found) == 3
    for one in found:
        assert seconds(one, HEARTBEAT) == pytest.approx(4.8, abs=0.2)
        assert any("would have avoided this failover" in line for line in savings(one))


def test_each_deployment_that_is_not_answered_in_time_belongs_to_its_option(tmp_path: Path):
    """Two tasks of one TaskManager wait for each other for 2 × 2.5 s, and the ask for the second one expires after 3 s in each of three
    attempts. The next attempt begins when the TaskManager has handled the messages of the one before, 2 s later. The fault ends 20 s
    after it began, 18.1 s after the first deployment."""
    slow = fault("slow", "20 s", ALL, rpc={"delay": {"method": "SubmitTask", "delay": "2500 ms"}})
    options = {**QUICK, ASK: "3 s", DELAY: "1 s"}
    case = Case(
        "asked",
        [slow, fault("kill", "1 s", SINK, at="500 ms", **KILL)],
        "",
        0.0,
        options=options,
        observation="26 s",
    )
    found = recovery(case, tmp_path)
    assert len(found.rounds) == 4
    assert (found.prices[0].option, found.prices[0].count) == (ASK, 3)
    assert found.prices[0].seconds == pytest.approx(3 * 3.0, abs=TOLERANCE_S)
    assert seconds(found, "to handle the messages in its mailbox") == pytest.approx(3 * 2.05, abs=TOLERANCE_S)
    assert any("would have avoided these 3 failovers" in line for line in savings(found))


def test_a_pause_in_a_catch_up_has_the_seconds_in_which_nothing_was_left_to_do(tmp_path: Path):
    """The counts process 1/7 ms = 143 records per second of 100. A source pauses from 3 to 6 s after the kill, and they work off what the
    other one has sent and sends until they wait, about 1 s after the pause began."""
    kill = fault("kill", "1 s", SINK, at="50 ms", **KILL)
    pause = fault("gc", "3 s", SOURCE, at="3050 ms", process={"pause": {}})
    case = Case("idle", [kill, pause], "", 0.0, options=QUICK, managers={"replicas": 6}, observation="18 s", vertex={"serviceTime": "7 ms"})  # fmt: skip
    found = recovery(case, tmp_path)
    assert seconds(found, "end of the fault `gc`") == pytest.approx(2.0, abs=0.3)
    assert seconds(found, "spare capacity of `count`") == pytest.approx(8.7, abs=0.3)


def test_a_jobmanager_that_is_killed_again_is_waited_for_twice(tmp_path: Path):
    """Each kill takes 3 s, and it is back for 1 s between them. The TaskManagers, which ask for it since the first one, register when
    it is back for good."""
    faults = [
        fault(name, "3 s", JOBMANAGER, at=at, jobmanager={"kill": {}})
        for name, at in (("a", "0 s"), ("b", "4 s"))
    ]
    case = Case("twice", faults, "", 0.0, options=QUICK, managers={"replicas": 5}, observation="13 s")
    found = recovery(case, tmp_path)
    assert len(found.rounds) == 2
    for name in "ab":
        own = f"the JobManager's return (killed by the fault `{name}`)"
        assert seconds(found, own) == pytest.approx(3.0, abs=TOLERANCE_S)
    assert seconds(found, "a TaskManager to register") < 0.6


def test_a_replacement_that_outruns_the_detection_saves_all_its_seconds(tmp_path: Path):
    """Tasks on the lost TaskManager are cancelled when its loss is noticed: after 1.9 s, or when its replacement registers."""
    found = {
        after: recovery(
            Case(
                "outrun", [fault("kill", "1 s", {"taskManagers": {"names": ["tm-0"]}}, **KILL)], "", 0.0, options=QUICK,
                managers={"replicas": 2, "slots": 2, "replaceLost": after}, observation="10 s",
            ),
            tmp_path / after,
        )
        for after in ("4 s", "100 ms")
    }  # fmt: skip
    assert found["4 s"].prices[0].option == "replaceLost"
    assert found["100 ms"].downtime_s == pytest.approx(0.15, abs=0.05)
    assert not list(savings(found["4 s"]))


def test_a_pause_owns_the_requests_that_expire_before_its_end(tmp_path: Path):
    """Three requests of 4 s expire. It comes back after 20 s, 0.1 s after a delay of 1 s began: a longer slot.request.timeout
    would have saved the rest of that."""
    pause = fault("gc", "20 s", SINK, process={"pause": {}})
    case = Case("expired", [pause], "", 0.0, options=EXPIRING, managers=NO_SPARE, observation="27 s")
    found = recovery(case, tmp_path)
    assert len(found.rounds) == 4
    assert seconds(found, "return (paused by the fault `gc`)") == pytest.approx(19.9, abs=TOLERANCE_S)
    assert seconds(found, DELAY) == pytest.approx(1.0, abs=TOLERANCE_S)


@pytest.mark.parametrize("attempts", ["20", "1"])
def test_a_replacement_owns_the_requests_that_a_standalone_resourcemanager_fails(
    tmp_path: Path, attempts: str
):
    """The loss is noticed after 1.9 s. Two restarts, after a delay of 1 s each, fail 70 ms later for want of a slot, and the third begins
    0.1 s after the replacement was started. With one attempt, the first of them ends the job: that belongs to the option."""
    options = {
        **QUICK,
        DELAY: "1 s",
        "restart-strategy.fixed-delay.attempts": attempts,
        STANDALONE_START_UP: "2 s",
    }
    case = Case("standalone", LOST, "", 0.0, options=options, managers={**NO_SPARE, "replaceLost": "5 s"}, observation="20 s")  # fmt: skip
    found = recovery(case, tmp_path)
    owned = {price.option: price.seconds for price in found.prices if price.option}
    if attempts == "1":
        assert owned[STANDALONE_START_UP] == pytest.approx(0.07, abs=0.001)
        return
    assert len(found.rounds) == 3
    assert owned["replaceLost"] == pytest.approx(4.04, abs=TOLERANCE_S)
    assert owned[DELAY] == pytest.approx(1.0, abs=TOLERANCE_S)
