"""The coordinator of flow control: receivers report their queues to it, and it sets the rates of the sources behind them."""

from __future__ import annotations

from testbed_runtime.core.job.executiongraph import Execution, ExecutionState
from testbed_runtime.core.job.failover import Task
from testbed_runtime.core.job.flowcontrol import UNLIMITED, Coordinator, FlowControl
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.job.messages import Acknowledge, ReportQueue, SetSourceRate
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.jobmanager.state import JobTasks
from testbed_runtime.ports.rpc import ASK_FAILURES, Handler


class FlowCoordinator:
    """One Coordinator per vertex that has a receive queue. Runs in the JobMaster's mailbox."""

    def __init__(self, services: Services, graph: JobGraph, tasks: JobTasks) -> None:
        self._services = services
        self._graph = graph
        self._tasks = tasks
        self._flow = FlowControl.read(services.options)
        self._coordinators: dict[str, Coordinator] = {}
        self._wanted_rates: dict[tuple[str, str], float] = {}
        """The rate of each subtask of a source that a vertex behind it wants, by both names."""
        self._known: dict[Task, tuple[str, float | None]] = {}
        """The rate that an attempt of a source has; None: the last one may have been lost."""
        self._telling: set[str] = set()

    def handlers(self) -> dict[type, Handler]:
        return {ReportQueue: self._on_report}

    async def _on_report(self, message: ReportQueue) -> Acknowledge:
        execution = self._tasks.graph.find(message.attempt)
        if execution is None:
            return Acknowledge(accepted=False)
        vertex = execution.task[0]
        coordinator = self._coordinators.setdefault(vertex, Coordinator(self._flow))
        running = (e for e in self._tasks.graph.executions if e.state is ExecutionState.RUNNING)
        coordinator.retain({e.task for e in running if e.task[0] == vertex} | {execution.task})
        rate = coordinator.report(execution.task, message.report, self._services.clock.now())
        sources = self._sources_of(vertex)
        if rate is not None:
            self._set_wanted_rate(vertex, sources, rate)
        self._send(sources)
        return Acknowledge()

    def _set_wanted_rate(self, vertex: str, sources: set[str], rate: float) -> None:
        """Share the rate among the subtasks of all sources from which this vertex gets records."""
        subtasks = sum(self._graph.vertex(name).parallelism for name in sources)
        share = rate / subtasks if rate > 0 and subtasks else rate
        self._services.event("source.rate", vertex, data={"records_per_second": rate})
        self._wanted_rates.update({(vertex, name): share for name in sources})

    def _send(self, sources: set[str]) -> None:
        """Send every subtask its rate, unless its attempt already has it."""
        for execution in self._tasks.graph.executions:
            attempt = str(execution.attempt)
            running = execution.state is ExecutionState.RUNNING and execution.task[0] in sources
            if running and attempt not in self._telling and not self._has_rate(execution):
                self._telling.add(attempt)
                self._services.tasks.spawn(self._tell(execution), f"rate-{attempt}")

    def _rate_of(self, source: str) -> float:
        """The smallest rate that a vertex behind the source wants."""
        wanted = [rate for (_, name), rate in self._wanted_rates.items() if name == source]
        return min((rate for rate in wanted if rate >= 0), default=UNLIMITED)

    def _has_rate(self, execution: Execution) -> bool:
        attempt, rate = self._known.get(execution.task, ("", None))
        if attempt != str(execution.attempt):
            rate = UNLIMITED  # a new attempt begins without a limit
        return rate == self._rate_of(execution.task[0])

    async def _tell(self, execution: Execution) -> None:
        """Send the rate until the attempt has the newest one. After a failure, the next report has it sent again."""
        attempt = str(execution.attempt)
        try:
            while execution.state is ExecutionState.RUNNING and not self._has_rate(execution):
                rate = self._rate_of(execution.task[0])
                self._known[execution.task] = (attempt, None)
                answer = await self._tasks.executors.ask(execution.taskmanager, SetSourceRate(attempt, rate))
                if answer != Acknowledge():
                    return
                self._known[execution.task] = (attempt, rate)
        except ASK_FAILURES:
            return
        finally:
            self._telling.discard(attempt)

    def _sources_of(self, vertex: str) -> set[str]:
        todo, seen = [vertex], {vertex}
        while todo:
            for edge in self._graph.inputs(todo.pop()):
                if edge.source not in seen:
                    seen.add(edge.source)
                    todo.append(edge.source)
        return {name for name in seen if self._graph.vertex(name).source is not None}
