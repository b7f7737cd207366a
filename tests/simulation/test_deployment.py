"""When consumers are deployed: with their producers, or on a first record of all or any of their inputs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.api.validate import validate
from testbed_runtime.core.ids import JOB
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.core.job.results import COMBINATIONS, FIRST_RECORD
from testbed_runtime.simulation.loop import run_virtual
from tests.simulation.simulating import Ran
from tests.simulation.smallworld import SmallWorld, small_world
from tests.simulation.test_waits import ran

FIRST = {"result": "pipelined-bounded", "deployment": "on-first-record"}


def job(inputs: str = "all", *, edge: dict[str, str] | None = None) -> dict[str, Any]:
    """`fast` writes at once, `late` works for 0.9 s on each record."""
    edge = FIRST if edge is None else edge
    source = {"recordsPerSecond": 100, "recordBytes": 100}
    return {
        "vertices": [
            {"name": "fast", "parallelism": 1, "slotSharingGroup": "a", "source": source},
            {
                "name": "other",
                "parallelism": 1,
                "slotSharingGroup": "b",
                "source": {**source, "recordsPerSecond": 1},
            },
            {
                "name": "late",
                "parallelism": 1,
                "slotSharingGroup": "b",
                "operator": "map",
                "serviceTime": "900 ms",
            },
            {"name": "merge", "parallelism": 1, "slotSharingGroup": "c", "operator": "map", "inputs": inputs},
            {"name": "sink", "parallelism": 1, "slotSharingGroup": "c", "sink": "ledger"},
        ],
        "edges": [
            {"from": "other", "to": "late", "partitioning": "hash"},
            {"from": "fast", "to": "merge", "partitioning": "rebalance", **edge},
            {"from": "late", "to": "merge", "partitioning": "rebalance", **edge},
            {"from": "merge", "to": "sink", "partitioning": "forward"},
        ],
    }


def deployed_s(run: Ran, attempt: int = 0) -> dict[str, float]:
    """Return when each vertex was deployed, in seconds after the first one."""
    rows = [r for r in run.trial.rows("events") if r["kind"] == "task.state" and r["attempt"] == attempt]
    found = {r["subject"][:-2]: r["t_ns"] for r in rows if json.loads(r["data"])["to"] == "DEPLOYING"}
    return {vertex: (t - min(found.values())) / 1e9 for vertex, t in found.items()}


@pytest.mark.parametrize(("inputs", "least", "most"), [("any", 0.0, 0.5), ("all", 0.8, 1.5)])
def test_a_consumer_is_deployed_on_the_first_record_of_any_or_all_inputs(
    inputs: str, least: float, most: float, tmp_path: Path
):
    """`fast` has a record at once, `late` after 0.9 s. What follows the consumer eagerly comes with it; nothing is lost."""
    run = ran(tmp_path, job=job(inputs), observation="5 s")
    times = deployed_s(run)
    assert times["fast"] == times["other"] == times["late"] == 0.0
    assert least <= times["merge"] <= most
    assert times["sink"] == times["merge"]
    assert run.metrics["deployment.spread"] == times["merge"]
    assert [run.metrics[name] for name in ("delivery.lost", "delivery.duplicated")] == [0, 0]


def test_eager_consumers_are_deployed_with_their_producers(tmp_path: Path):
    """The default, also for an unbounded result."""
    run = ran(tmp_path, job=job(edge={"result": "pipelined"}), observation="2 s")
    assert set(deployed_s(run).values()) == {0.0}


@pytest.mark.parametrize(
    ("options", "owners"),
    [
        ({}, {"tm-0-1", "tm-1-1", "tm-2-1"}),
        ({"cluster.evenly-spread-out-slots": "false"}, {"tm-0-1", "tm-1-1"}),
    ],
    ids=["spread", "filled"],
)
def test_slots_are_spread_over_the_taskmanagers_or_fill_one_after_the_other(
    options: dict[str, str], owners: set[str], tmp_path: Path
):
    """Three groups of one slot each, three TaskManagers with two slots. Headgate spreads by default, Flink fills."""
    run = ran(tmp_path, job=job(), options=options, replicas=3, slots=2, observation="2 s")
    rows = [r for r in run.trial.rows("events") if r["kind"] == "task.state"]
    placed = {json.loads(r["data"]).get("taskmanager") for r in rows} - {None, ""}
    assert placed == owners


def test_a_restart_waits_for_a_first_record_again(tmp_path: Path):
    """A TaskManager dies: the next attempt deploys the consumer after its producers too, and nothing is lost."""
    fault = {"duration": "1 s", "target": {"taskManagers": {"running": "merge", "mode": "one"}}, "process": {"kill": {}}}  # fmt: skip
    run = ran(tmp_path, fault, job=job("any"), observation="12 s")
    times = deployed_s(run, attempt=1)
    assert times["merge"] > times["fast"]
    assert [run.metrics[name] for name in ("failovers.count", "delivery.lost")] == [1, 0]


@pytest.mark.parametrize(("pair", "refusal"), [(p, r) for p, r in COMBINATIONS.items() if r is not None])
def test_other_combinations_are_refused_with_the_reason(pair: tuple[str, str], refusal: Any):
    """The error names the field and how to correct it."""
    result, deployment = pair
    testbed = {
        "taskManagers": {"replicas": 3},
        "job": job(edge={"result": result, "deployment": deployment}),
    }
    document = {
        "apiVersion": "headgate.dev/v1alpha1", "kind": "Scenario", "metadata": {"name": "x"},
        "spec": {"hypothesis": "x", "testbed": testbed},
    }  # fmt: skip
    errors = [e for e in validate(document).errors if "deployment" in str(e)]
    assert [e.path for e in errors][:1] == ["spec.testbed.job.edges[1]"]
    assert refusal.reason in str(errors[0])


@pytest.mark.parametrize(
    ("change", "path", "text"),
    [
        ({}, "", ""),
        ({"limit": 0}, "spec.testbed.job.vertices[0].source", "never ends with an unbounded source"),
        ({"interval": "1 s"}, "spec.testbed.flinkConfiguration[execution.checkpointing.interval]", "takes no checkpoints"),
    ],
)  # fmt: skip
def test_a_blocking_result_needs_sources_that_end_and_no_checkpoints(
    change: dict[str, Any], path: str, text: str
):
    """Otherwise the result would never be complete."""
    document = job(edge={"result": "blocking", "deployment": "on-full-result"})
    for one in document["vertices"]:
        if "source" in one:
            one["source"] = {"limit": 100, **{k: v for k, v in change.items() if k == "limit"}}
    options = {"execution.checkpointing.interval": change["interval"]} if "interval" in change else {}
    spec = {"hypothesis": "x", "testbed": {"taskManagers": {"replicas": 3}, "job": document, "flinkConfiguration": options}}  # fmt: skip
    found = validate({"apiVersion": "headgate.dev/v1alpha1", "kind": "Scenario", "metadata": {"name": "x"}, "spec": spec})  # fmt: skip
    assert [e.path for e in found.errors][:1] == [path][: len(text) and 1]
    assert all(text in str(e) for e in found.errors)


@pytest.mark.parametrize(
    ("result", "refused"),
    [
        (("pipelined", "blocking", "blocking"), [1, 2]),
        (("pipelined", "pipelined", "blocking"), [2]),
        (("blocking", "blocking", "blocking"), []),
        (("blocking", "blocking", "pipelined"), []),
    ],
)
def test_a_blocking_result_is_refused_if_its_producer_starts_only_with_its_consumer(
    result: tuple[str, str, str], refused: list[int]
):
    """A diamond: source to sink, source to map, map to sink. No task of such a job would ever start."""
    ways = (("source", "sink"), ("source", "map"), ("map", "sink"))
    edges = [
        {
            "from": a,
            "to": b,
            "result": kind,
            "deployment": "on-full-result" if kind == "blocking" else "eager",
        }
        for (a, b), kind in zip(ways, result, strict=True)
    ]
    vertices = [{"name": "source", "source": {"limit": 100}}, {"name": "map", "operator": "map"}, {"name": "sink", "sink": "ledger"}]  # fmt: skip
    spec = {"hypothesis": "x", "testbed": {"taskManagers": {"replicas": 3}, "job": {"vertices": vertices, "edges": edges}}}  # fmt: skip
    found = validate({"apiVersion": "headgate.dev/v1alpha1", "kind": "Scenario", "metadata": {"name": "x"}, "spec": spec})  # fmt: skip
    assert [e.path for e in found.errors] == [f"spec.testbed.job.edges[{i}].result" for i in refused]
    assert all("wait for each other" in str(e) for e in found.errors)


def vertex(name: str, group: str, **what: Any) -> JobVertex:
    return JobVertex(name, 1, 128, group, **what)


def states_of(world: SmallWorld) -> dict[str, str]:
    """Return the latest state of every task that has one."""
    rows = [row for row in world.rows("events") if row["kind"] == "task.state"]
    return {row["subject"]: json.loads(row["data"])["to"] for row in rows}


def test_a_failover_of_another_region_still_deploys_consumers_that_wait():
    """`slow` has its first record after 6 s. Before that, the sink of the other region dies and is replaced."""

    async def main() -> tuple[dict[str, str], dict[str, str]]:
        async with small_world(taskmanagers=5, slots=1) as world:
            graph = JobGraph(
                JOB,
                (
                    vertex("a", "a", source=SourceConfig(records_per_second=0.5)),
                    vertex("slow", "a", operator=OperatorConfig("map", service_time_s=6.0)),
                    vertex("lazy", "b", sink=SinkConfig()),
                    vertex("x", "c", source=SourceConfig(records_per_second=100.0)),
                    vertex("sink", "d", sink=SinkConfig()),
                ),
                (
                    JobEdge("a", "slow", "forward"),
                    JobEdge("slow", "lazy", "rebalance", deployment=FIRST_RECORD),
                    JobEdge("x", "sink", "rebalance"),
                ),
            )
            await world.submit(graph)
            await asyncio.sleep(3)
            before = states_of(world)
            world.processes.kill((await world.client.status()).placement["sink-0"])
            await asyncio.sleep(15)
            after = states_of(world)
            await world.drain()
            return before, after

    before, after = run_virtual(main())
    assert "lazy-0" not in before
    assert after == dict.fromkeys(["a-0", "slow-0", "lazy-0", "x-0", "sink-0"], "RUNNING")


def filtering(function: Path, *, limit: int = 0) -> JobGraph:
    """`filter` emits nothing, and its consumer waits for a first record."""
    function.write_text("def drop(record):\n    return None\n")
    dropping = OperatorConfig("python", function=f"{function}:drop")
    return JobGraph(
        JOB,
        (
            vertex("source", "a", source=SourceConfig(records_per_second=100.0, limit=limit)),
            vertex("filter", "b", operator=dropping),
            vertex("sink", "c", sink=SinkConfig()),
        ),
        (
            JobEdge("source", "filter", "rebalance"),
            JobEdge("filter", "sink", "rebalance", deployment=FIRST_RECORD),
        ),
    )


def test_a_drain_deploys_what_waits_for_a_first_record(tmp_path: Path):
    """Without the sink the final checkpoint would never begin."""

    async def main() -> dict[str, str]:
        async with small_world(taskmanagers=3, slots=1) as world:
            await world.submit(filtering(tmp_path / "function.py"))
            await asyncio.sleep(3)
            assert "sink-0" not in states_of(world)
            await world.drain()
            return states_of(world)

    assert set(run_virtual(main()).values()) == {"FINISHED"}


def test_the_end_of_a_result_without_records_deploys_its_consumer(tmp_path: Path):
    """The source ends by itself after 100 records, all of which are dropped."""

    async def main() -> dict[str, str]:
        async with small_world(taskmanagers=3, slots=1) as world:
            await world.submit(filtering(tmp_path / "function.py", limit=100))
            await asyncio.sleep(10)
            return states_of(world)

    assert set(run_virtual(main()).values()) == {"FINISHED"}


def test_a_consumer_waits_while_a_producer_of_it_has_no_slot():
    """Its own slot is there already, and so is the first record of its other producer."""
    vertices = (
        JobVertex("one", 1, 128, "a", source=SourceConfig(records_per_second=100)),
        JobVertex("two", 1, 128, "a", source=SourceConfig(records_per_second=1)),
        JobVertex("middle", 1, 128, "b", operator=OperatorConfig("map")),
        JobVertex("sink", 1, 128, "a", sink=SinkConfig()),
    )
    edges = (
        JobEdge("one", "middle", "hash", deployment=FIRST_RECORD),
        JobEdge("middle", "sink", "hash"),
        JobEdge("two", "sink", "hash", deployment=FIRST_RECORD),
    )

    async def run() -> SmallWorld:
        async with small_world(taskmanagers=1, slots=1) as world:
            await world.submit(JobGraph(JOB, vertices, edges))
            await asyncio.sleep(2)
            await world.processes.start("tm-1")
            await asyncio.sleep(2)
            await world.drain()
        return world

    run_virtual(run()).assert_exact()
