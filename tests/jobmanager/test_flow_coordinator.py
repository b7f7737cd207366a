"""The coordinator of flow control sends every attempt of a source the rate that it should have."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.executiongraph import ExecutionGraph, ExecutionState
from testbed_runtime.core.job.flowcontrol import UNLIMITED, QueueReport
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex, SourceConfig
from testbed_runtime.core.job.messages import Acknowledge, ReportQueue, SetSourceRate
from testbed_runtime.core.options import Options
from testbed_runtime.jobmanager.flowcontrol import FlowCoordinator
from testbed_runtime.ports.rpc import AskTimeout
from testbed_runtime.simulation.loop import run_virtual

SOURCE = ("source", 0)
GRAPH = JobGraph(
    "job",
    (JobVertex("source", 1, 128, "a", source=SourceConfig()), JobVertex("one", 1, 128, "b"), JobVertex("two", 1, 128, "b")),
    (JobEdge("source", "one", "hash"), JobEdge("source", "two", "hash")),
)  # fmt: skip


WIDE = JobGraph(
    "job",
    (
        JobVertex("source", 1, 128, "a", source=SourceConfig()), JobVertex("other", 2, 128, "a", source=SourceConfig()),
        JobVertex("map", 1, 128, "b"), JobVertex("one", 1, 128, "b"), JobVertex("elsewhere", 1, 128, "a", source=SourceConfig()),
    ),
    (JobEdge("source", "map", "hash"), JobEdge("other", "map", "hash"), JobEdge("map", "one", "hash")),
)  # fmt: skip
"""Three subtasks of two sources are behind `one`, and a third source is not."""


class Fixture:
    """A coordinator whose messages and events are recorded, and whose messages are lost while `losing`."""

    def __init__(self, graph: JobGraph = GRAPH, mode: str = "watermark") -> None:
        self.graph = ExecutionGraph(graph, "job", epoch=1)
        for task in self.graph.tasks:
            self.graph.execution(task).state = ExecutionState.RUNNING
        self.rates: list[tuple[str, float]] = []
        """The rates that each vertex has asked for."""
        self.now_s = 0.0
        self.sent: list[tuple[str, float]] = []
        self.losing = False
        loop_tasks = SimpleNamespace(spawn=lambda coroutine, name: asyncio.create_task(coroutine, name=name))
        services: Any = SimpleNamespace(
            options=Options({"headgate.flow-control": mode}),
            clock=SimpleNamespace(now=lambda: self.now_s),
            event=lambda kind, vertex, data: self.rates.append((vertex, data["records_per_second"])),
            tasks=loop_tasks,
        )
        tasks: Any = SimpleNamespace(graph=self.graph, executors=self)
        self.coordinator = FlowCoordinator(services, graph, tasks)

    async def ask(self, taskmanager: TaskManagerID | None, message: SetSourceRate) -> Acknowledge:
        self.sent.append((message.attempt, message.rate))
        if self.losing:
            raise AskTimeout("lost")
        return Acknowledge()

    async def report(self, vertex: str, share: float, subtask: int = 0) -> list[float]:
        """Return the rates that are sent because of the report, a second after the one before."""
        self.sent.clear()
        self.now_s += 1.0
        attempt = str(self.graph.execution((vertex, subtask)).attempt)
        await self.coordinator.handlers()[ReportQueue](ReportQueue(attempt, QueueReport(share, 1, 1.0, 0.0)))
        await asyncio.sleep(1.0)
        return [rate for _, rate in self.sent]


def test_a_rate_that_was_lost_is_sent_again_with_the_next_report():
    """The queue stays full, so its rate does not change any more; once the source has it, nothing is sent."""

    async def main() -> list[list[float]]:
        world = Fixture()
        world.losing = True
        lost = await world.report("one", 0.95)
        world.losing = False
        return [lost, await world.report("one", 0.95), await world.report("one", 0.95)]

    assert run_virtual(main()) == [[0.0], [0.0], []]


def test_a_new_attempt_of_a_source_gets_the_current_rate():
    """Its first attempt was stopped, and a new one begins without a limit."""

    async def main() -> tuple[list[float], set[str]]:
        world = Fixture()
        await world.report("one", 0.95)
        world.graph.execution(SOURCE).state = ExecutionState.FAILED
        world.graph.reset([SOURCE])
        world.graph.execution(SOURCE).state = ExecutionState.RUNNING
        rates = await world.report("one", 0.95)
        return rates, {attempt for attempt, _ in world.sent} - {str(world.graph.execution(SOURCE).attempt)}

    assert run_virtual(main()) == ([0.0], set())


def test_a_source_stays_stopped_until_every_vertex_behind_it_frees_it():
    """`one` is full, `two` is full for a while; the source may go on when both are empty."""

    async def main() -> list[list[float]]:
        world = Fixture()
        reports = [("one", 0.95), ("two", 0.95), ("two", 0.1), ("one", 0.1)]
        return [await world.report(vertex, share) for vertex, share in reports]

    assert run_virtual(main()) == [[0.0], [], [], [UNLIMITED]]


def test_a_subtask_that_has_finished_stops_no_source():
    """Its queue was full. It sends no more reports, so the next one of the other subtask frees the source."""
    vertices = (JobVertex("source", 1, 128, "a", source=SourceConfig()), JobVertex("one", 2, 128, "b"))

    async def main() -> list[list[float]]:
        world = Fixture(JobGraph("job", vertices, (JobEdge("source", "one", "hash"),)))
        sent = [await world.report("one", 0.95, subtask) for subtask in (0, 1)]
        sent.append(await world.report("one", 0.1))
        world.graph.execution(("one", 1)).state = ExecutionState.FINISHED
        return [*sent, await world.report("one", 0.1)]

    assert run_virtual(main()) == [[0.0], [], [], [UNLIMITED]]


def test_a_rate_is_shared_among_the_subtasks_of_all_sources_behind_a_vertex():
    """Whatever lies between them. An attempt that is not known changes nothing."""

    async def main() -> Fixture:
        world = Fixture(WIDE, "pid")
        for share in (0.9, 0.2):
            await world.report("one", share)
        handle = world.coordinator.handlers()[ReportQueue]
        assert not (await handle(ReportQueue("unknown", QueueReport(0.9, 1, 1.0, 0.0)))).accepted
        return world

    world = run_virtual(main())
    assert world.rates == [("one", 100.0)]
    subtasks = [("source", 0), ("other", 0), ("other", 1)]
    assert world.sent == [(str(world.graph.execution(task).attempt), 100.0 / 3) for task in subtasks]
