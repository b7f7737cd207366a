"""The blocking results of one job: which of them can be read, and when their TaskManagers may delete them."""

from __future__ import annotations

from collections.abc import Iterable

from testbed_runtime.core.ids import ResultPartitionID
from testbed_runtime.core.job.executiongraph import ExecutionGraph, ExecutionState
from testbed_runtime.core.job.failover import Task
from testbed_runtime.core.job.slots import SlotPool
from testbed_runtime.jobmanager.taskexecutors import TaskExecutors

_GONE = (ExecutionState.CANCELING, ExecutionState.CANCELED, ExecutionState.FAILED)


class BlockingResults:
    """Flink's partition tracker and its release strategy. A result is deleted with the slot of its producer, or lost with its
    TaskManager, so the job has it only while the slot is in its pool."""

    def __init__(self, graph: ExecutionGraph, executors: TaskExecutors, pool: SlotPool) -> None:
        self._graph = graph
        self._executors = executors
        self._pool = pool
        self._released: set[ResultPartitionID] = set()

    def available(self, producer: Task, consumer: Task) -> bool:
        """Whether the results of the producer that the consumer reads exist, or a live execution will produce them."""
        execution = self._graph.execution(producer)
        if execution.state is not ExecutionState.FINISHED or execution.slot is None:
            return execution.state not in _GONE
        return execution.slot in self._pool.all_held and self._released.isdisjoint(
            self._graph.blocking_results(producer, consumer[0])
        )

    def on_finished(self, task: Task) -> None:
        """Release what the region of a FINISHED task was the last to read."""
        for producer, partitions in self._graph.consumed_by(task).items():
            self._release(producer, [p for p in partitions if p not in self._released])

    def release(self, tasks: Iterable[Task]) -> None:
        """Release the results of FINISHED tasks, before a restart replaces them."""
        for task in tasks:
            if self._graph.execution(task).state is ExecutionState.FINISHED:
                self._release(task, self._graph.blocking_results(task))

    def _release(self, producer: Task, partitions: list[ResultPartitionID]) -> None:
        self._released.update(partitions)
        self._executors.release(self._graph.execution(producer), partitions)
