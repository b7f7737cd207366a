"""The operator's metrics: their values follow the objects, and their labels are bounded."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from headgate_operator.app import RESYNC_S, Operator, page
from headgate_operator.health import Metrics
from headgate_operator.population import OVERDUE_S, Population
from testbed_runtime.api import naming
from testbed_runtime.kube.api import Call
from tests.operator.test_runs import Lab, play
from tests.operator.world import STEP_S, World, a_testbed, simulate

SAMPLE = re.compile(r"^([a-z_]+)(\{[^}]*\})? ([-+0-9.e]+|NaN)$")


def values(lines: str) -> dict[str, float]:
    """Return the samples by name and labels. Fails on a line that is not of the text format."""
    found = {}
    for line in lines.splitlines():
        if not line.startswith("#"):
            matched = SAMPLE.match(line)
            assert matched is not None, line
            found[f"{matched[1]}{matched[2] or ''}"] = float(matched[3])
    return found


def shown(world: World) -> dict[str, float]:
    [operator] = world.operators.values()
    return values(page(operator, leading=True, info={"version": "1"}))


def an_object(kind: str, name: str, /, **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "lab"}
    return {"apiVersion": naming.API_VERSION, "kind": kind, "metadata": metadata, "status": status}


def test_a_run_is_counted_with_its_verdict_and_its_evaluation() -> None:
    """One Pass; the model evaluates for 2 s; a gauge for each phase; requests and the process itself are there."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.complete()
        found = shown(lab.world)
        assert found['headgate_runs_finished_total{verdict="Pass"}'] == 1
        assert found["headgate_evaluation_duration_seconds_count"] == 1
        assert found['headgate_evaluation_duration_seconds_bucket{le="5.0"}'] == 1
        assert found['headgate_runs{phase="Complete"}'] == 1
        assert found['headgate_runs{phase="Running"}'] == 0
        assert found["headgate_trials_voided_total"] == 0
        assert found["process_cpu_seconds_total"] > 0
        assert found["process_resident_memory_bytes"] > 10_000_000
        assert found["process_open_fds"] > 3

    play(scenario)


def test_testbeds_are_counted_by_phase_and_a_deleted_one_no_longer() -> None:
    """Ready, then none."""

    async def scenario(world: World) -> None:
        world.start()
        world.api.put(a_testbed())
        await world.until(
            lambda: bool(world.operators) and shown(world)['headgate_testbeds{phase="Ready"}'] == 1
        )
        world.api.remove(("Testbed", "lab", "bench"))
        await world.until(lambda: shown(world)['headgate_testbeds{phase="Ready"}'] == 0, limit_s=10)
        assert sum(n for name, n in shown(world).items() if name.startswith("headgate_testbeds{")) == 0

    simulate(scenario)


def remembered(operator: Operator, name: str) -> bool:
    """Whether any state of the operator's own parts still contains the name of an object."""
    parts: list[Any] = [value for key, value in vars(operator).items() if key != "_context"]
    return any(name in repr(vars(part) if hasattr(part, "__dict__") else part) for part in parts)


def test_an_object_whose_deletion_the_watch_lost_is_forgotten_at_the_next_list() -> None:
    """A watch that begins anew delivers what exists, not what was deleted meanwhile. Otherwise memory grows with each lost event."""

    async def scenario(world: World) -> None:
        world.start()
        world.api.put(a_testbed("short-lived"))
        await world.until(lambda: bool(world.operators))
        [operator] = world.operators.values()
        deliver = operator.on_event
        await world.until(lambda: remembered(operator, "short-lived"))
        operator.on_event = (  # type: ignore[method-assign]
            lambda type_, obj: None if type_ == "DELETED" else deliver(type_, obj)
        )
        world.api.remove(("Testbed", "lab", "short-lived"))
        await asyncio.sleep(STEP_S)
        assert remembered(operator, "short-lived")
        await world.until(lambda: not remembered(operator, "short-lived"), limit_s=2 * RESYNC_S)
        assert sum(n for name, n in shown(world).items() if name.startswith("headgate_testbeds{")) == 0

    simulate(scenario)


def test_a_fault_is_active_then_overdue_then_gone() -> None:
    """Overdue begins 30 s after the deadline; residue stays until the object is deleted."""
    population, deadline = Population(), 1_700_000_000.0
    status = {"phase": "Active", "kind": "network.latency", "deadline": "2023-11-14T22:13:20Z"}
    population.seen(an_object("Fault", "slow", **status), deadline - 5, gone=False)
    before = values("\n".join(population.lines(deadline + OVERDUE_S - 1)))
    assert before['headgate_faults_active{kind="network.latency"}'] == 1
    assert before["headgate_faults_overdue"] == 0
    assert values("\n".join(population.lines(deadline + OVERDUE_S + 1)))["headgate_faults_overdue"] == 1
    left = {**status, "phase": "Complete", "residue": {"tm-0": "a rule"}}
    population.seen(an_object("Fault", "slow", **left), deadline, gone=False)
    after = values("\n".join(population.lines(deadline + 99)))
    assert after["headgate_faults_overdue"] == 0
    assert after['headgate_residue{kind="Fault"}'] == 1
    population.forget("Fault", "lab/slow")
    assert 'headgate_residue{kind="Fault"}' not in values("\n".join(population.lines(deadline)))


def test_faults_of_a_run_are_active_then_overdue_until_it_reports_their_end() -> None:
    """Its status names kind and deadline of each."""
    population, deadline = Population(), 1_700_000_000.0
    fault = {"name": "slow", "kind": "network.latency", "deadline": "2023-11-14T22:13:20Z"}
    for faults, active, overdue in (([fault], 1, 1), ([], 0, 0)):
        population.seen(
            an_object("ScenarioRun", "r", phase="Running", activeFaults=faults), deadline - 5, gone=False
        )
        found = values("\n".join(population.lines(deadline + OVERDUE_S + 1)))
        assert found.get('headgate_faults_active{kind="network.latency"}', 0) == active
        assert found["headgate_faults_overdue"] == overdue


def test_voided_trials_are_counted_once_and_not_those_before_the_operator_began() -> None:
    """Two were voided before; then a third and a fourth."""
    population = Population()
    for voided in (2, 3, 3, 4):
        trials = [{"name": f"t-{n}", "voided": True} for n in range(voided)]
        population.seen(an_object("ScenarioRun", "r", phase="Running", trials=trials), 0.0, gone=False)
    assert values("\n".join(population.lines(0.0)))["headgate_trials_voided_total"] == 2


def test_labels_are_bounded() -> None:
    """An unknown phase, fault kind or verdict is `other`, and no name of an object is a label."""
    population = Population()
    for number in range(50):
        name = f"name-{number}"
        population.seen(an_object("Fault", name, phase="Active", kind=name), 0.0, gone=False)
        population.seen(an_object("Testbed", name, phase=name), 0.0, gone=False)
        population.seen(an_object("ScenarioRun", name, phase="Running"), 0.0, gone=False)
        population.seen(an_object("ScenarioRun", name, phase="Complete", verdict=name), 0.0, gone=False)
    text = "\n".join(population.lines(0.0))
    assert "name-" not in text
    found = values(text)
    assert found['headgate_faults_active{kind="other"}'] == 50
    assert found['headgate_testbeds{phase="other"}'] == 50
    assert found['headgate_runs_finished_total{verdict="other"}'] == 50


@pytest.mark.parametrize(
    ("status", "result"),
    [(200, "ok"), (403, "error"), (404, "missing"), (409, "conflict"), (0, "unreachable")],
)
def test_requests_are_counted_by_their_result(status: int, result: str) -> None:
    """Verb and resource in RBAC's terms."""
    metrics = Metrics()
    metrics.answered(Call("get", "", "pods", "lab"), status)
    found = values(metrics.text(depth=0, leader=True, info={}))
    assert found[f'headgate_api_requests_total{{verb="get",resource="pods",result="{result}"}}'] == 1
