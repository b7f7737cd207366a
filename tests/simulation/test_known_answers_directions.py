"""Known answers of which value of an option would have helped: each is given to the option in a second run of the same scenario."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.job.limits import CONNECT_TIMEOUT
from testbed_runtime.core.judgement.recovery import Recovery
from testbed_runtime.report.answer import savings
from tests.simulation.knownanswers import (
    ALL,
    ASK,
    BACKOFF,
    DELAY,
    HEARTBEAT,
    JOBMANAGER,
    KILL,
    LEADER,
    PAUSE,
    QUICK,
    RENEW,
    SINK,
    SOURCE,
    Case,
    fault,
    of_case,
)

pytestmark = pytest.mark.virtual

CHECKPOINT = "execution.checkpointing.timeout"
ENOUGH = re.compile(r"a limit above ([0-9.]+) s, instead of [0-9.]+ s, would have avoided (this|these \d+)")
LATE = fault("late", "30 s", ALL, registration={"delay": {"delay": "6 s", "vertex": "source"}})
KILLED = fault("kill", "1 s", SOURCE, at="500 ms", **KILL)
STORE = fault("slow", "12 s", ALL, store={"slow": {"delay": "8 s"}})
SLOW = fault("slow", "8 s", ALL, rpc={"delay": {"method": "SubmitTask", "delay": "5 s"}})
JOBMANAGER_GC = fault("gc", "8 s", JOBMANAGER, jobmanager={"pause": {}})
JOBMANAGER_GCS = [
    fault(name, length, JOBMANAGER, at=begin, jobmanager={"pause": {}})
    for name, begin, length in (("one", "0 s", "4 s"), ("two", "2 s", "6 s"))
]
TM_0 = {"taskManagers": {"names": ["tm-0"]}}
CUT = fault("cut", "25 s", TM_0, at="deploy", network={"partition": {}})
RPC_CUT = fault("cut", "6 s", TM_0, plane="rpc", network={"partition": {}})


def submitted_late(*names: str) -> Any:
    """TaskManagers that work for 6 s at each task that they get in the first deployment."""
    target = {"taskManagers": {"names": list(names)}}
    delay = {"method": "SubmitTask", "delay": "6 s"}
    return fault("slow", "30 s", target, at="deploy", rpc={"delay": delay})


def far(mode: str, delay: str, direction: str) -> Any:
    latency = {"latency": {"delay": delay, "mode": mode}}
    return fault("far", "20 s", TM_0, plane="rpc", network=latency, direction=direction)


BUSY = {"headgate.jobmanager.service-time": "50 ms"}
PATIENT = {"heartbeat.interval": "1 s"}
UNTOLERANT = {"execution.checkpointing.tolerable-failed-checkpoints": "0"}


def ran(case: Case, folder: Path, option: str, value: str) -> tuple[list[Recovery], list[str]]:
    """Return the recoveries of a run with this value, and what the answer says of values of the option."""
    options = {**case.options, option: value}
    again = Case(
        case.name, case.faults, "", 0.0, options=options, version=case.version, observation=case.observation
    )
    found = list(of_case(again, folder).recoveries)
    return found, [line for r in found for line in savings(r) if line.startswith(option)]


def failovers(found: list[Recovery]) -> int:
    return sum(bool(r.cause) for one in found for r in one.rounds)


def case(name: str, *faults: Any, version: str = "2.x", observation: str = "25 s", **options: str) -> Case:
    return Case(name, faults, "", 0.0, options={**QUICK, **options}, version=version, observation=observation)


@pytest.mark.parametrize(
    ("known", "option", "value", "enough_s"),
    [
        # the last heartbeat came 0.1 s before the fault
        (case("gc", fault("gc", "7 s", SINK, **PAUSE)), HEARTBEAT, "5 s", 7.1),
        # the next heartbeat after the fault comes within an interval
        (
            case("mute", fault("mute", "7 s", SINK, heartbeats={"mute": {"direction": "response"}})),
            HEARTBEAT,
            "4 s",
            8.1,
        ),
        (
            case("mute-request", fault("mute", "7 s", SINK, heartbeats={"mute": {"direction": "request"}})),
            HEARTBEAT,
            "4 s",
            8.1,
        ),
        # neither hears the other. What the TaskManager lost first, its answer 0.9 s after the beginning, is sent again 6.7 s later
        (case("cut", RPC_CUT), HEARTBEAT, "5 s", 7.7),
        # the next request comes 0.9 s after the beginning, and it and its answer take 3 s each
        (case("far", far("one-way", "3 s", "both")), HEARTBEAT, "5 s", 7.0),
        (case("far-there-and-back", far("round-trip", "6 s", "both")), HEARTBEAT, "5 s", 7.0),
        (case("far-there", far("one-way", "6 s", "to")), HEARTBEAT, "5 s", 7.0),
        (case("far-back", far("one-way", "6 s", "from")), HEARTBEAT, "5 s", 7.0),
        # each attempt of a producer registers 6 s late; budgets of 0.1 + 0.2 + … s
        (case("late", LATE, KILLED, version="1.18", observation="37 s"), BACKOFF, "1000", 6.0),
        (case("late-2", LATE, KILLED, version="1.12", observation="37 s"), BACKOFF, "2000", 6.0),
        # the tasks are submitted 1.4 s after the kill, and the last of them are there when the fault ends
        (Case("submit", [SLOW, KILLED], "", 0.0, options=PATIENT, observation="14 s"), ASK, "4 s", 6.1),
        # a TaskManager handles one task after the other: tm-0 a source, tm-2 a count and a sink
        (Case("one-task", [submitted_late("tm-0")], "", 0.0, options=PATIENT), ASK, "4 s", 6.0),
        (Case("two-tasks", [submitted_late("tm-2")], "", 0.0, options=PATIENT), ASK, "4 s", 12.0),
        (
            Case("two-each", [submitted_late("tm-2", "tm-3")], "", 0.0, options=PATIENT),
            ASK,
            "4 s",
            12.0,
        ),
        # and if the JobManager submits them 50 ms apart
        (Case("apart", [submitted_late("tm-2")], "", 0.0, options=PATIENT | BUSY), ASK, "6500 ms", 12.0),
        # each write takes 8 s, and the tasks write side by side; the fault ends 2 s later
        (case("store", STORE, **UNTOLERANT), CHECKPOINT, "5 s", 8.0),
        # the seconds are those of the pause; the last heartbeat and the last renewal of the lease came 0.1 s before it
        (case("jobmanager", JOBMANAGER_GC), HEARTBEAT, "5 s", 8.1),
        (case("pauses", *JOBMANAGER_GCS), HEARTBEAT, "5 s", 8.1),
        (case("lease", JOBMANAGER_GC, **LEADER), RENEW, "5 s", 8.1),
        # whole seconds; TCP repeats the first handshake 19 and 35 s after it. The second one begins after a restart delay of 0 s
        (case("connect", CUT, observation="37 s"), CONNECT_TIMEOUT, "10", 35.0),
    ],
    ids=lambda c: c.name if isinstance(c, Case) else "",
)
def test_the_named_limit_would_have_avoided_the_failovers(
    known: Case, option: str, value: str, enough_s: float, tmp_path: Path
):
    """With a tenth of a second more than that, all of them are gone. A lower value does not help."""
    before, lines = ran(known, tmp_path / "before", option, value)
    (line,) = [one for one in lines if "limit above" in one]
    assert not any("a lower value saves at most" in one for one in lines)
    found = ENOUGH.search(line)
    assert found is not None
    assert float(found[1]) == pytest.approx(enough_s, abs=0.25)
    avoided = int(found[2].partition(" ")[2] or 1)
    more = f"{round(float(found[1]) * 1000) + 100}"
    written = {BACKOFF: more, CONNECT_TIMEOUT: f"{math.ceil(float(found[1]) + 0.1)}"}
    after, _ = ran(known, tmp_path / "after", option, written.get(option, f"{more} ms"))
    assert failovers(before) - failovers(after) >= avoided
    assert avoided >= 1


def test_a_limit_below_the_named_one_is_not_enough(tmp_path: Path):
    """A pause of 7 s began 0.1 s after the last heartbeat."""
    known = case("gc", fault("gc", "7 s", SINK, **PAUSE))
    found, _ = ran(known, tmp_path, HEARTBEAT, "6900 ms")
    assert failovers(found) == 1


def test_nothing_is_promised_of_a_fault_that_its_job_did_not_outlive(tmp_path: Path):
    """The job fails for good after three restarts, and the fault is healed 40 s early: when its partitions would have come is unknown. The
    job would only have failed earlier with lower values."""
    late = fault("late", "60 s", ALL, registration={"delay": {"delay": "40 s"}})
    known = case("spent", late, KILLED, version="1.12", **{"restart-strategy.fixed-delay.attempts": "3"})
    options = {**known.options, BACKOFF: "1000"}
    spent = Case("spent", known.faults, "", 0.0, options=options, version="1.12", observation="70 s")
    (found,) = of_case(spent, tmp_path).recoveries
    assert found.reason == "JobFailed"
    assert list(savings(found)) == []


@pytest.mark.parametrize(("option", "value", "low"), [(DELAY, "1 s", "50 ms"), (HEARTBEAT, "5 s", "1200 ms")])
def test_restarts_that_come_earlier_in_a_fault_save_only_what_comes_after_it(
    option: str, value: str, low: str, tmp_path: Path
):
    """Seven of them fail in 1.12, as each producer is 6 s late and requests give up after 2.5 s. The job can start when the fault ends."""
    options = {BACKOFF: "1000", DELAY: "1 s"}
    known = case("late", LATE, KILLED, version="1.12", observation="37 s", **options)
    (before,), lines = ran(known, tmp_path / "before", option, value)
    (line,) = [one for one in lines if "a lower value saves at most" in one]
    assert line.endswith("a producer to register its partition, during the fault `late`")
    assert before.total_s > 28
    (after,), _ = ran(known, tmp_path / "after", option, low)
    assert after.total_s == pytest.approx(before.total_s, abs=1.0)


def test_a_replacement_that_comes_sooner_saves_the_restarts_without_slots(tmp_path: Path):
    """It comes after 25 s. Requests for slots expire after 8 s until then, twice, and the delay of restarts grows to 4 s. Only the first of
    these delays would be left."""
    backoff = "restart-strategy.exponential-delay"
    options = {
        **QUICK, "slot.request.timeout": "8 s", "restart-strategy.type": "exponential-delay", f"{backoff}.jitter-factor": "0.0",
        f"{backoff}.initial-backoff": "1 s", f"{backoff}.backoff-multiplier": "2.0",
    }  # fmt: skip
    found = {}
    for replaced in ("25 s", "50 ms"):
        managers = {"replicas": 4, "replaceLost": replaced}
        kill = fault("kill", "1 s", SINK, **KILL)
        one = Case(
            "slots", [kill], "", 0.0, options=options, managers=managers, version="1.14", observation="60 s"
        )
        (found[replaced],) = of_case(one, tmp_path / replaced).recoveries
    assert list(savings(found["25 s"])) == [
        f"replaceLost = 25 s: a lower value saves at most 24.0 s, then the job waits for {backoff}.initial-backoff = 1 s"
    ]
    assert found["25 s"].total_s - found["50 ms"].total_s == pytest.approx(24.0, abs=0.3)


def test_a_shorter_delay_saves_nothing_before_a_store_that_is_slow_anyway(tmp_path: Path):
    """A read takes 8 s, or until the fault ends. The restart after a failed checkpoint reads the state from then on."""
    known = case("store", STORE, **UNTOLERANT, **{CHECKPOINT: "5 s"})
    (before,), (line,) = ran(known, tmp_path / "before", DELAY, "1 s")
    assert (
        line
        == f"{DELAY} = 1 s: a lower value saves nothing: the job then waits for a task's state, during the fault `slow`"
    )
    (after,), _ = ran(known, tmp_path / "after", DELAY, "50 ms")
    assert after.total_s == pytest.approx(before.total_s, abs=0.1)


def test_an_outage_of_a_slow_store_begins_with_the_checkpoint_that_failed(tmp_path: Path):
    """Checkpoints begin every 10 s, the next one 5.9 s after the fault: until then, nothing had to do with the store."""
    options = {**QUICK, **UNTOLERANT, CHECKPOINT: "3 s", "execution.checkpointing.interval": "10 s"}
    slow = fault("slow", "20 s", ALL, store={"slow": {"delay": "8 s"}})
    one = Case("slow", [slow], "", 0.0, options=options, observation="50 s")
    found, *_ = of_case(one, tmp_path).recoveries
    first = found.rounds[0].segments[0]
    assert (first.kind, first.option) == ("checkpoint", CHECKPOINT)
    assert first.seconds == pytest.approx(3.0, abs=0.1)
    assert not any(p.option == "execution.checkpointing.interval" for p in found.prices)
