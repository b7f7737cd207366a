"""Limits of what a lower value saves, compared with what it did save: the same run with lower values. Several faults share each recovery."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.judgement.recovery import Recovery, TrialRecovery
from testbed_runtime.report.answer import savings
from tests.simulation.knownanswers import (
    ALL,
    ASK,
    DELAY,
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
    fault,
    of_case,
    of_region,
    regions,
    taskmanager,
)

pytestmark = pytest.mark.virtual

LONG = {**QUICK, DELAY: "10 s"}
QUICKEST = {"heartbeat.interval": "100 ms", "heartbeat.rpc-failure-threshold": "1"}
NO_DELAY = {DELAY: "0 s"}


def killed(name: str, number: int, at: str = "0 s") -> dict[str, Any]:
    return fault(name, "1 s", taskmanager(f"tm-{number}"), at=at, **KILL)


def paused(number: int, duration: str, at: str) -> dict[str, Any]:
    return fault("gc", duration, taskmanager(f"tm-{number}"), at=at, **PAUSE)


def cut(kind: str, number: int, duration: str, at: str) -> dict[str, Any]:
    return fault("cut", duration, taskmanager(f"tm-{number}"), at=at, network={kind: {}})


def three(delay: str) -> Case:
    faults = [fault(r, "1 s", of_region(r), at=f"{n} s", **KILL) for n, r in enumerate("abc")]
    return Case("three-regions", faults, "", 0.0, options={**QUICK, DELAY: delay}, managers={"replicas": 9})


@dataclass(frozen=True)
class Lowered:
    """A case, the option whose value becomes lower, and the values with which the most is saved."""

    case: Case
    option: str
    lower: Mapping[str, str] = field(default_factory=lambda: NO_DELAY)
    job: Mapping[str, Any] | None = None
    limited: bool = True
    """Whether the answer gives a limit. Otherwise it says that every second may be saved."""


def of_delay(name: str, *faults: dict[str, Any], **more: Any) -> Lowered:
    options = {**LONG, **more.pop("options", {})}
    case = Case(name, faults, "", 0.0, options=options, managers={"replicas": 8}, observation="21 s", **more)
    return Lowered(case, DELAY)


STRATEGY = {"jobmanager.execution.failover-strategy": "FULL", DELAY: "3 s"}  # Flink ignores the case
BOTH = [fault(r, "1 s", of_region(r), at=at, **KILL) for r, at in (("a", "0 s"), ("b", "1 s"))]
WHOLE = Case("whole", BOTH, "", 0.0, options={**QUICK, **STRATEGY}, managers={"replicas": 6})
PAUSED_REGION = Case(
    "paused-region",
    [
        fault("kill", "1 s", of_region("a"), **KILL),
        fault("gc", "3 s", {"taskManagers": {"running": "source-of-b", "mode": "one"}}, at="1 s", **PAUSE),
    ],
    "", 0.0, options=QUICK, managers={"replicas": 6},
)  # fmt: skip


def refused(name: str, second: dict[str, Any]) -> Lowered:
    """The delay of 5 s ends after both faults have begun. A shorter one restarts the job when the first has ended, after 3 s."""
    faults = [fault("reset", "3 s", SINK, network={"reset": {}}), second]
    options = {**QUICK, HEARTBEAT: "30 s", ASK: "30 s", DELAY: "5 s"}
    return Lowered(Case(name, faults, "", 0.0, options=options, observation="21 s"), DELAY, {DELAY: "500 ms"})


SLOW = fault("slow", "16 s", ALL, at="4 s", rpc={"delay": {"method": "SubmitTask", "delay": "3 s"}})
LATE = fault("late", "6 s", ALL, at="4500 ms", network={"latency": {"delay": "500 ms", "mode": "one-way"}})
CUT = fault("cut", "6 s", ALL, at="4500 ms", network={"partition": {}})
CUT_OF_ONE = fault("cut", "6 s", SINK, at="4500 ms", network={"partition": {}})
CASES = [
    refused("refused-and-delayed", SLOW),
    refused("refused-and-cut", CUT),
    of_delay("second-loss", killed("one", 0), killed("two", 1, "5 s")),
    of_delay("third-loss", killed("one", 0), killed("two", 1, "4 s"), killed("three", 2, "7 s")),
    of_delay("pause-below-the-timeout", killed("one", 0), paused(1, "3 s", "4 s")),
    of_delay("pause-above-the-timeout", killed("one", 0), paused(1, "8 s", "4 s")),
    of_delay("pause-that-ends-after-the-delay", killed("one", 0), paused(1, "4 s", "10 s")),
    of_delay(
        "pause-of-the-jobmanager", killed("one", 0), fault("gc", "3 s", JOBMANAGER, at="4 s", jobmanager={"pause": {}}),
        options={HEARTBEAT: "30 s"},
    ),
    of_delay("cut-in-the-delay", killed("one", 2), cut("partition", 0, "6500 ms", "4 s")),
    of_delay("cut-that-ends-after-the-delay", killed("one", 2), cut("partition", 0, "6500 ms", "8 s")),
    of_delay("stall-in-the-delay", killed("one", 2), cut("stall", 3, "3 s", "6 s")),
    Lowered(PAUSED_REGION, REACHABILITY, QUICKEST, REGIONS),
    Lowered(three("0 s"), REACHABILITY, QUICKEST, regions("abc"), limited=False),
    Lowered(three("5 s"), REACHABILITY, QUICKEST, regions("abc")),
    Lowered(WHOLE, REACHABILITY, QUICKEST, REGIONS, limited=False),
    Lowered(WHOLE, DELAY, NO_DELAY, REGIONS),
]  # fmt: skip


def behind_s(trial: TrialRecovery) -> float:
    """Return how long the job was behind. With a lower value it recovers from each fault on its own."""
    return sum(r.total_s for r in trial.recoveries)


def promised(found: Recovery, option: str) -> tuple[float, bool]:
    """Return what a lower value of an option saves at most, and whether the answer gives a limit."""
    own = [s for r in found.rounds for s in r.segments if s.option == option]
    limit = any(line.startswith(f"{option} = ") for line in savings(found))
    return sum(s.seconds if s.slack_ns < 0 else s.slack_ns / 1e9 for s in own), limit


@pytest.mark.parametrize("one", CASES, ids=lambda c: f"{c.case.name}-{c.option.rpartition('.')[2]}")
def test_a_lower_value_saves_what_the_answer_says(one: Lowered, tmp_path: Path):
    """No more than that, and not much less."""
    job = None if one.job is None else dict(one.job)
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    before = of_case(one.case, tmp_path / "before", job)
    lowered = replace(one.case, options={**one.case.options, **one.lower})
    saved_s = behind_s(before) - behind_s(of_case(lowered, tmp_path / "after", job))
    (found,) = (r for r in before.recoveries if r.total_s)
    most_s, limited = promised(found, one.option)
    assert limited is one.limited
    assert most_s > saved_s - TOLERANCE_S
    assert most_s - saved_s <= max(0.3, 0.2 * saved_s)


def test_a_pause_in_a_catch_up_limits_no_earlier_detection(tmp_path: Path):
    """A source pauses while the counts work off their backlog, and ends before they have. An earlier detection also makes the backlog
    smaller."""
    case = Case(
        "catch-up", [killed("one", 2), paused(0, "3 s", "4 s")], "", 0.0, options=QUICK, managers={"replicas": 6},
        vertex={"serviceTime": "8 ms"}, observation="26 s",
    )  # fmt: skip
    (tmp_path / "before").mkdir()
    before = of_case(case, tmp_path / "before")
    (found,) = before.recoveries
    assert not list(savings(found))
    (tmp_path / "after").mkdir()
    after = of_case(replace(case, options={**case.options, **QUICKEST}), tmp_path / "after")
    assert behind_s(before) - behind_s(after) == pytest.approx(1.9, abs=TOLERANCE_S)


def test_a_spare_taskmanager_that_is_paused_costs_nothing_before_it_is_needed(tmp_path: Path):
    """The job loses a sink 1 s after the pause of the only spare one began, and gets its slot when that ends."""
    faults = [paused(4, "6 s", "0 s"), fault("kill", "1 s", SINK, at="1 s", **KILL)]
    case = Case("spare", faults, "", 0.0, options={**QUICK, HEARTBEAT: "20 s"}, observation="12 s")
    (found,) = of_case(case, tmp_path).recoveries
    assert found.total_s == pytest.approx(5.1, abs=0.2)
    assert found.faults == ("kill", "gc")
    assert found.prices[0].text.startswith("tm-4's return")
    assert found.prices[0].seconds == pytest.approx(5.0, abs=TOLERANCE_S)


def test_requests_that_expire_at_once_are_blamed_on_what_was_late(tmp_path: Path):
    """Each restart requests partitions once. They are 3 s late until the fault ends, after 20 s, and a delay of 1 s begins the last restart
    then."""
    late = fault("late", "20 s", ALL, registration={"delay": {"delay": "3 s"}})
    backoff = "taskmanager.network.request-backoff"
    options = {**QUICK, DELAY: "1 s", f"{backoff}.initial": "1", f"{backoff}.max": "1"}
    kill = fault("kill", "1 s", SOURCE, at="500 ms", **KILL)
    case = Case("at-once", [late, kill], "", 0.0, options=options, version="1.14", observation="25 s")
    (found,) = of_case(case, tmp_path).recoveries
    assert found.faults == ("kill", "late")
    lines = {line.partition(" = ")[0]: line.partition(": ")[2] for line in savings(found)}
    assert re.fullmatch(
        r"a limit above 3.1 s, instead of 1.00 ms, would have avoided these 19\d* failovers \(set it to 1100 ms or more\), but would notice a real loss 3.10 s later",
        lines[f"{backoff}.max"],
    )
    assert lines[DELAY].startswith("a lower value saves at most 9")
    assert (
        " ms, then the job waits for a producer to register its partition, during the fault `late`"
        in lines[DELAY]
    )


def test_a_replacement_before_the_jobmanager_is_killed_saves_its_whole_delay(tmp_path: Path):
    """The JobManager is killed from 4 to 7 s, and TaskManagers register again when they have given it up. That has nothing to do with the
    first loss."""
    faults = [
        fault("kill", "1 s", SINK, **KILL),
        fault("jm", "3 s", JOBMANAGER, at="4 s", jobmanager={"kill": {}}),
    ]
    managers = {**NO_SPARE, "replaceLost": "6 s"}
    case = Case("sooner", faults, "", 0.0, options=QUICK, managers=managers, observation="15 s")
    (found,) = of_case(case, tmp_path).recoveries
    assert promised(found, "replaceLost") == (pytest.approx(4.0, abs=TOLERANCE_S), False)


def test_a_paused_region_has_the_seconds_after_another_one_has_restarted(tmp_path: Path):
    """The first sample after the pause counts what arrived in its last 0.1 s, too: the region got nothing before."""
    (found,) = of_case(PAUSED_REGION, tmp_path, REGIONS).recoveries
    owned = {price.option or price.text: price.seconds for price in found.prices}
    assert owned[REACHABILITY] == pytest.approx(1.9, abs=TOLERANCE_S)
    assert owned["end of the fault `gc`"] == pytest.approx(4.0 - 1.95, abs=TOLERANCE_S)


@pytest.mark.parametrize(("first", "second", "down_s"), [("pause", "kill", 4.0), ("kill", "pause", 5.0)])
def test_a_region_that_is_paused_is_down_until_the_pause_ends(
    first: str, second: str, down_s: float, tmp_path: Path
):
    """The other region is killed before or after the pause of 4 s begins, and restarts 2 s later, before the pause ends."""
    kinds: dict[str, Any] = {"kill": (KILL, "1 s"), "pause": (PAUSE, "4 s")}
    faults = [
        fault(name, kinds[name][1], of_region(region), at=at, **kinds[name][0])
        for name, region, at in ((first, "a", "0 s"), (second, "b", "1 s"))
    ]
    options = {**QUICK, HEARTBEAT: "20 s"}
    case = Case("regions", faults, "", 0.0, options=options, observation="10 s")
    (found,) = of_case(case, tmp_path, REGIONS).recoveries
    assert found.downtime_s == pytest.approx(down_s, abs=TOLERANCE_S)
    assert found.total_s == pytest.approx(down_s, abs=0.2)


def test_a_restart_while_credit_is_withheld_saves_nothing(tmp_path: Path):
    """An aligned checkpoint expires 5 s after the beginning. The job restarts, and is behind until it gets credit after 9 s, as it would
    be after an earlier restart."""
    withheld = fault("withheld", "9 s", ALL, frames={"withholdCredit": {}})
    options = {**QUICK, "execution.checkpointing.timeout": "3 s"}
    case = Case("credit", [withheld], "", 0.0, options=options, observation="14 s")
    (found,) = of_case(case, tmp_path).recoveries
    saved = promised(found, "execution.checkpointing.interval")
    assert saved == (pytest.approx(0.0, abs=TOLERANCE_S), True)


@pytest.mark.parametrize("second", [LATE, CUT_OF_ONE], ids=["late", "cut-from-one"])
def test_no_restart_saves_time_before_the_end_of_a_refusal(second: dict[str, Any], tmp_path: Path):
    """The restarts are refused for 3 of the 5 s of the delay, whatever begins then."""
    (found,) = (r for r in of_case(refused("refused", second).case, tmp_path).recoveries if r.total_s)
    assert promised(found, DELAY) == (pytest.approx(2.0, abs=TOLERANCE_S), True)


@pytest.mark.parametrize("kind", ["reset", "halfOpen"])
def test_a_fault_on_a_taskmanager_without_tasks_limits_no_saving(kind: str, tmp_path: Path):
    """Two kills cause the recovery. The connections of the spare TaskManager are refused meanwhile, which costs nothing."""
    faults = [
        fault("odd", "6500 ms", taskmanager("tm-6"), network={kind: {}}),
        fault("one", "1 s", taskmanager("tm-0"), at="500 ms", **KILL),
        fault("two", "1 s", taskmanager("tm-1"), at="1 s", **KILL),
    ]
    options = {**QUICK, DELAY: "6 s"}
    case = Case("odd", faults, "", 0.0, options=options, managers={"replicas": 7}, observation="20 s")
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    before, after = (
        of_case(one, tmp_path / name)
        for one, name in ((case, "before"), (replace(case, options={**options, DELAY: "0 s"}), "after"))
    )
    saved, _ = promised(max(before.recoveries, key=lambda r: r.total_s), DELAY)
    assert saved == pytest.approx(behind_s(before) - behind_s(after), abs=TOLERANCE_S)


def test_a_region_that_is_cut_is_down_until_tcp_sends_again(tmp_path: Path):
    """The cut of 6 s ends 0.7 s before that. The other region restarts meanwhile."""
    cut = fault("cut", "6 s", of_region("a"), network={"partition": {}})
    kill = fault("kill", "1 s", of_region("b"), at="1 s", **KILL)
    case = Case("cut", [cut, kill], "", 0.0, options={**QUICK, HEARTBEAT: "20 s"}, observation="12 s")
    (found,) = of_case(case, tmp_path, REGIONS).recoveries
    assert found.downtime_s == pytest.approx(6.7, abs=TOLERANCE_S)


def test_a_restart_while_records_are_late_saves_a_part_of_the_catch_up(tmp_path: Path):
    """The job is behind until the last late record arrives, 0.5 s after the fault. With an earlier restart, it may be back to normal before
    that."""
    late = fault("late", "12 s", ALL, network={"latency": {"delay": "500 ms", "mode": "one-way"}})
    kill = fault("kill", "1 s", SINK, at="500 ms", **KILL)
    totals = {}
    for delay in ("4 s", "1 s"):
        case = Case("late", [late, kill], "", 0.0, options={**QUICK, DELAY: delay}, observation="18 s")
        (found,) = of_case(case, tmp_path / delay).recoveries
        totals[delay] = found.total_s
        if delay == "4 s":
            saved, _ = promised(found, DELAY)
    assert 0.1 < totals["4 s"] - totals["1 s"] <= saved < 0.7


def test_a_restart_while_heartbeats_are_muted_lasts_until_the_last_loss(tmp_path: Path):
    """The TaskManager registers again and is lost every 3 s, which is also the delay. A shorter one adds a failure in the middle."""
    mute = fault(
        "mute", "10 s", taskmanager("tm-2"), at="500 ms", heartbeats={"mute": {"direction": "request"}}
    )
    options = {**QUICK, HEARTBEAT: "3 s", "heartbeat.rpc-failure-threshold": "-1", DELAY: "3 s"}
    case = Case("muted", [mute], "", 0.0, options=options, managers=NO_SPARE, observation="21 s")
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    before = of_case(case, tmp_path / "before")
    after = of_case(replace(case, options={**options, DELAY: "200 ms"}), tmp_path / "after")
    saved = [promised(found, DELAY) for found in before.recoveries]
    assert saved == [(pytest.approx(0, abs=TOLERANCE_S), True), (pytest.approx(3, abs=TOLERANCE_S), False)]
    assert sum(s for s, _ in saved) == pytest.approx(behind_s(before) - behind_s(after), abs=0.3)
