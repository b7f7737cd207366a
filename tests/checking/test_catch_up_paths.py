"""The owners of the seconds in which a job works off its backlog: its capacity, windows, and faults that starve it."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.answer import _Paths
from testbed_runtime.checking.backlog import backlog_words
from testbed_runtime.checking.catchup import CatchUp
from testbed_runtime.checking.common import Window, Windows
from testbed_runtime.checking.faults import FaultEffect
from testbed_runtime.checking.rounds import Outage, RoundSpan
from testbed_runtime.core.judgement.quantities import seconds
from tests.checking.test_outages import behind
from tests.checking.test_round_paths import NS, at, cause, fault, parts, wait
from tests.manifests import trial_entry


def catch_up(
    built: Any,
    faults: tuple[FaultEffect, ...],
    *,
    operator: str = "keyed-count",
    direct: bool = False,
    lag: CatchUp | None = None,
) -> list[Any]:
    """The owners of a recovery from 8 to 20 s whose job runs again at 10 s. The baseline is from 2 to 8 s. `direct`: another sink reads from
    the source."""
    names = (("source", "source"), ("count", "operator"), ("sink", "sink"), ("direct", "sink"))[: 3 + direct]
    edges = (("source", "count"), ("count", "sink"), ("source", "direct"))[: 2 + direct]
    job = {
        "vertices": [{"name": n, "role": r, "kind": operator, "parallelism": 1} for n, r in names],
        "edges": [{"from": source, "to": target} for source, target in edges],
    }
    rounds = (RoundSpan(at(8), at(20), cause(8), running=at(10)),)
    outage = Outage(fault("kill", 8, 9, "process.kill"), at(8), at(20), rounds, True, at(20), shared=faults)
    spans = Windows(Window(at(2), at(8)), None, None, None, at(60))
    paths = _Paths(built.trial(), trial_entry({"job": job}), [], spans)
    paths.catch_up = lag
    found = parts(paths.recovery(outage, ""))
    return [part for part in found if part[0] in ("catch-up", *(f.fault for f in faults))]


def receive(built: Any, task: str, received: Any) -> None:
    """Samples of a task from 0 to 20 s. `received`: its records by then."""
    vertex = task.partition("-")[0]
    role = "sink" if vertex in ("sink", "direct") else "operator"
    for tick in range(201):
        built.add("tm-0-1", "tasks", tick / 10, task=task, vertex=vertex, role=role, records_in=received(tick / 10))  # fmt: skip


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((12, 13), [3, 7]),
        ((12, 13, 19.7), [9.7, 0.3]),
        ((12, 13, 19.8), [10]),
        ((12, 13, 19.9), [3, 7]),
        ((12, 13, 20), [3, 7]),
        ((9.5,), [10]),  # nothing to catch up with
    ],
)
def test_the_end_of_a_window_ends_the_wait_since_the_last_records_before_it(
    history: Any, times: tuple[float, ...], expected: list[float]
):
    """The job has caught up at 20 s with the results of a window, which the last two samples may show. Earlier ones are no end of it."""
    built = history.empty()
    receive(built, "count-0", lambda t: round(20 * t))
    receive(built, "sink-0", lambda t: sum(t >= time for time in times))
    found = [seconds for _, seconds in catch_up(built, (), operator="window")]
    assert found == expected


@pytest.mark.parametrize(
    ("late", "expected"),
    [(("sink",), [3, 7]), (("sink", "direct"), [10]), (("direct",), [10]), ((), [10])],
)
def test_the_end_of_a_window_ends_the_wait_if_only_sinks_behind_one_were_late(
    history: Any, late: tuple[str, ...], expected: list[float]
):
    """Records arrive at the other sink all the time."""
    built = history.empty()
    receive(built, "direct-0", lambda t: round(20 * t))
    receive(built, "sink-0", lambda t: sum(t >= time for time in (12, 13, 20)))
    lags = {name: behind(((8, 20),) if name in late else (), f"{name}-0") for name in ("sink", "direct")}
    lag = CatchUp(tuple(one for found in lags.values() for one in found.subtasks), at(20))
    found = catch_up(built, (), operator="window", direct=True, lag=lag)
    assert [seconds for _, seconds in found] == expected


@pytest.mark.parametrize(("operator", "owner"), [("window", "catch-up"), ("keyed-count", "mild")])
def test_a_sink_between_two_windows_is_not_starved(history: Any, operator: str, owner: str):
    """It gets 100 records every 5 s, so none while the fault lasts."""
    built = history.empty()
    receive(built, "count-0", lambda t: round(20 * t))
    receive(built, "sink-0", lambda t: 100 * int(t / 5))
    found = catch_up(built, (fault("mild", 11, 14.5, "network.latency"),), operator=operator)
    assert owner in [name for name, _ in found]
    assert ("mild" in [name for name, _ in found]) == (owner == "mild")


@pytest.mark.parametrize(("state", "mild"), [("FINISHED", False), ("RUNNING", True)])
def test_a_task_that_has_finished_is_not_starved(history: Any, state: str, mild: bool):
    """It received its last record before the fault."""
    built = history.empty()
    receive(built, "count-0", lambda t: round(20 * min(t, 11)))
    receive(built, "sink-0", lambda t: round(20 * t))
    built.event("task.state", "count-0", 11, attempt=0, data={"to": state})
    assert catch_up(built, (fault("mild", 12, 15, "network.latency"),)) == (
        [("catch-up", 2), ("mild", 3), ("catch-up", 5)] if mild else [("catch-up", 10)]
    )


def test_a_fault_is_not_charged_for_the_task_that_another_one_starved_meanwhile(history: Any):
    """The delays last from 11 to 17 s. Records stop only from 13 to 16.8 s, while there is a partition."""
    built = history.empty()
    receive(built, "sink-0", lambda t: round(20 * (min(t, 13) + max(t - 16.8, 0))))
    delays, partition = fault("mild", 11, 17, "network.latency"), fault("cut", 13, 16.8, "network.partition")
    assert catch_up(built, (delays, partition)) == [("catch-up", 3), ("cut", 3.8), ("catch-up", 3.2)]


@pytest.mark.parametrize(
    ("rate", "until", "busy", "parts_s"),
    [
        # less than half of the usual records arrive, which counts in whole seconds
        (10, 11, 0, (1, 4, 5)),
        (10, 12.2, 0, (2, 3, 5)),
        (10, 13, 0, (3, 2, 5)),
        # the sink is busy with more records than usual, until it gets none
        (30, 14, 1, (4, 1, 5)),
        (30, 13.5, 1, (3.5, 1.5, 5)),
        (30, 14.1, 1, (4, 1, 5)),  # half of a step
        (30, 14.3, 1, (10,)),  # less than a second
    ],
)
def test_a_fault_is_not_charged_while_the_job_works_off_what_it_has(
    history: Any, rate: int, until: float, busy: int, parts_s: tuple[float, ...]
):
    """The fault lasts from 11 to 15 s."""
    built = history.empty()
    for tick in range(201):
        t = tick / 10
        received = round(20 * min(t, 11) + rate * max(0, min(t, until) - 11) + 20 * max(t - 15, 0))
        busy_ns = round(busy * (min(t, until) + max(t - 15, 0)) * NS)
        built.add("tm-0-1", "tasks", t, task="sink-0", vertex="sink", role="sink", records_in=received, busy_ns=busy_ns)  # fmt: skip
    owners = zip(("catch-up", "mild", "catch-up"), parts_s, strict=False)
    assert catch_up(built, (fault("mild", 11, 15, "network.latency"),)) == list(owners)


@pytest.mark.parametrize(
    ("waits", "recovered", "behind"),
    [
        ((), True, 2),
        ((wait("partition", 11, 12),), True, 4),
        ((wait("restore", 9, 14), wait("open", 11, 13)), True, 6),
        ((wait("partition", 11.1, 12),), True, 2),  # shorter than a second
        ((wait("slot", 11, 13),), True, 2),
        ((wait("partition", 11, 13, "expired"),), True, 2),
        ((wait("partition", 8, 9.5),), True, 2),  # before the job ran
        ((wait("partition", 11, 20),), True, 12),
        ((wait("partition", 11, 20.1),), True, 2),  # after the outage
        ((wait("partition", 11, 13),), False, 2),
    ],
)
def test_a_job_works_off_its_backlog_since_the_last_wait_that_held_records_back(
    history: Any, waits: tuple[Any, ...], recovered: bool, behind: int
):
    """The effect was at 8 s, the job runs again at 10 s, and it has caught up at 20 s."""
    rounds = (RoundSpan(at(8), at(20), cause(8), running=at(10)),)
    outage = Outage(fault("kill", 8, 9), at(8), at(20), rounds, recovered, at(20) if recovered else None)
    found = backlog_words(history.empty().trial(), outage, at(10), waits=waits, baseline=None, stored=False)
    assert found == f"backlog of {seconds(behind)}"
