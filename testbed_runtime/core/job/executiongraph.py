"""The running job: one execution per subtask and attempt, their states, and the deployment of each."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct, field

from testbed_runtime.core.errors import LocalProtocolError
from testbed_runtime.core.ids import ABSTRACT_ID_BYTES, ExecutionAttemptID, ResultPartitionID, TaskManagerID
from testbed_runtime.core.job.failover import Link, Regions, Task
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph
from testbed_runtime.core.job.messages import (
    InputChannelDescriptor,
    InputGateDescriptor,
    RescaledExchange,
    ResultPartitionDescriptor,
    TaskDeploymentDescriptor,
)
from testbed_runtime.core.job.results import BLOCKING, BOUNDED, FIRST_RECORD
from testbed_runtime.core.job.slots import HeldSlot, SlotKey, slot_key


class ExecutionState(StrEnum):
    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    def __init__(self, value: str) -> None:
        self.terminal = value in ("FINISHED", "CANCELED", "FAILED")


_S = ExecutionState
NEXT_STATES: dict[ExecutionState, tuple[ExecutionState, ...]] = {
    _S.CREATED: (_S.SCHEDULED, _S.CANCELED, _S.FAILED),
    _S.SCHEDULED: (_S.DEPLOYING, _S.CANCELED, _S.FAILED),
    _S.DEPLOYING: (_S.INITIALIZING, _S.RUNNING, _S.FINISHED, _S.CANCELING, _S.CANCELED, _S.FAILED),
    _S.INITIALIZING: (_S.RUNNING, _S.FINISHED, _S.CANCELING, _S.CANCELED, _S.FAILED),
    _S.RUNNING: (_S.FINISHED, _S.CANCELING, _S.CANCELED, _S.FAILED),
    _S.CANCELING: (_S.CANCELED,),
    _S.FINISHED: (),
    _S.CANCELED: (),
    _S.FAILED: (),
}
"""A task that fails or finishes while CANCELING counts as CANCELED (Execution.markFailed, markFinished)."""


def derive_id(*parts: object) -> bytes:
    """Derive 16 bytes from the parts: the same job has the same ids in every environment."""
    return hashlib.blake2b("\x00".join(map(str, parts)).encode(), digest_size=ABSTRACT_ID_BYTES).digest()


@dataclass(slots=True)
class Execution:
    """The newest attempt of one subtask."""

    task: Task
    attempt: ExecutionAttemptID
    state: ExecutionState = ExecutionState.CREATED
    slot: HeldSlot | None = None
    splits: int = 0
    """How many input splits it has read; set when there are no more."""

    @property
    def taskmanager(self) -> TaskManagerID | None:
        return self.slot.owner if self.slot is not None else None


class Transition(Struct, frozen=True):
    task: Task
    attempt: int
    before: ExecutionState
    after: ExecutionState
    taskmanager: TaskManagerID | None


class Restore(Struct, frozen=True):
    """The checkpoint to restore. `handles` holds the blob keys of each vertex's subtasks."""

    checkpoint: int
    handles: dict[str, tuple[str, ...]]
    parallelism: dict[str, int] = field(default_factory=dict)
    """Parallelism of each vertex, if the checkpoint is from another job."""


NOTHING_TO_RESTORE = Restore(0, {})


class DeploymentContext(Struct, frozen=True):
    """The part that all descriptors of one deployment share."""

    job: str
    leader: str
    job_started: float
    restore: Restore
    data_address: Callable[[TaskManagerID], tuple[str, int]]


class ExecutionGraph:
    """Executions of one job under one leader. `first_attempt` continues the numbers of an earlier leader."""

    def __init__(self, graph: JobGraph, job: str, *, epoch: int, first_attempt: int = 0) -> None:
        self.graph = graph
        self.id = derive_id("execution-graph", graph.seed, job, epoch)
        self._vertex_ids = {v.name: derive_id("vertex", graph.seed, v.name) for v in graph.vertices}
        self._data_sets = {
            e: derive_id("data-set", graph.seed, e.source, e.target, e.partitioning) for e in graph.edges
        }
        self.tasks: list[Task] = [(v.name, i) for v in graph.vertices for i in range(v.parallelism)]
        self._executions = {
            task: Execution(task, self._attempt_id(task, first_attempt)) for task in self.tasks
        }
        self._by_attempt = {str(e.attempt): e for e in self._executions.values()}
        self._in_state = Counter(e.state for e in self._executions.values())
        self._producers: dict[tuple[JobEdge, int], tuple[ExecutionAttemptID, TaskManagerID, str, str]] = {}
        """The attempt and TaskManager of each producer, and the names of its partition and TaskManager for all consumers."""
        self.regions = Regions(self.tasks, self._links())

    def _attempt_id(self, task: Task, number: int) -> ExecutionAttemptID:
        return ExecutionAttemptID(self.id, self._vertex_ids[task[0]], task[1], number)

    def _links(self) -> Iterable[Link]:
        """Return links that connect the same regions as the links of all channels would: a star for each
        pipelined all-to-all exchange. Each channel of a blocking result has its own link, because it may be
        lost alone."""
        for edge in self.graph.edges:
            producers, consumers = self._parallelism(edge)
            if edge.result == BLOCKING:
                yield from (
                    Link(producer, (edge.target, i), pipelined=False)
                    for i in range(consumers)
                    for producer in self._producers_of(edge, i)
                )
            elif edge.partitioning == "forward":
                yield from (
                    Link((edge.source, i), (edge.target, i)) for i in range(min(producers, consumers))
                )
            else:
                yield from (Link((edge.source, i), (edge.target, 0)) for i in range(producers))
                yield from (Link((edge.source, 0), (edge.target, i)) for i in range(1, consumers))

    def _parallelism(self, edge: JobEdge) -> tuple[int, int]:
        return self.graph.vertex(edge.source).parallelism, self.graph.vertex(edge.target).parallelism

    def _producers_of(self, edge: JobEdge, consumer: int) -> list[Task]:
        """Return the subtasks that a consumer reads."""
        forward = edge.partitioning == "forward"
        return [(edge.source, i) for i in ((consumer,) if forward else range(self._parallelism(edge)[0]))]

    # ---- states

    def execution(self, task: Task) -> Execution:
        return self._executions[task]

    @property
    def executions(self) -> list[Execution]:
        return list(self._executions.values())

    def find(self, attempt: str) -> Execution | None:
        """Return the execution of this attempt. None unless it is the newest attempt of its subtask."""
        return self._by_attempt.get(attempt)

    def name_of(self, attempt: str) -> tuple[str, int]:
        """Return (`vertex-subtask`, attempt number) of any attempt, for the history. An unknown vertex is
        named by its id."""
        try:
            parsed = ExecutionAttemptID.parse(attempt)
        except ValueError:
            return attempt, -1
        names = {vertex_id: name for name, vertex_id in self._vertex_ids.items()}
        return f"{names.get(parsed.job_vertex, parsed.job_vertex.hex())}-{parsed.subtask}", parsed.attempt

    def transition(self, task: Task, after: ExecutionState) -> Transition | None:
        """Change a state. Return None when the state machine does not allow it (a late or repeated report)."""
        execution = self._executions[task]
        if execution.state is ExecutionState.CANCELING and after in (_S.FAILED, _S.FINISHED):
            after = ExecutionState.CANCELED
        if after not in NEXT_STATES[execution.state]:
            return None
        before, execution.state = execution.state, after
        self._in_state[before] -= 1
        self._in_state[after] += 1
        return Transition(task, execution.attempt.attempt, before, after, execution.taskmanager)

    def reset(self, tasks: Iterable[Task]) -> None:
        """Create new attempts of these tasks. Raises LocalProtocolError if an attempt is still running."""
        for task in tasks:
            old = self._executions[task]
            if not old.state.terminal and old.state is not ExecutionState.CREATED:
                raise LocalProtocolError(f"{task[0]}-{task[1]} is {old.state.value} and cannot start again")
            if old.state is not ExecutionState.CREATED:
                new = Execution(task, self._attempt_id(task, old.attempt.attempt + 1))
                self._in_state[old.state] -= 1
                self._in_state[new.state] += 1
                del self._by_attempt[str(old.attempt)]
                self._by_attempt[str(new.attempt)] = self._executions[task] = new

    def assign(self, task: Task, slot: HeldSlot) -> None:
        self._executions[task].slot = slot

    def key(self, task: Task) -> SlotKey:
        return slot_key(self.graph.vertex(task[0]), task[1])

    def all_in(self, *states: ExecutionState) -> bool:
        return sum(self._in_state[state] for state in states) == len(self._executions)

    @property
    def partly_finished(self) -> bool:
        """Whether a task has finished while a source has not. If checkpoints after tasks have finished are
        off, no further checkpoint is possible then."""
        sources = {v.name for v in self.graph.vertices if not self.graph.inputs(v.name)}
        finished = [task for task, e in self._executions.items() if e.state is _S.FINISHED]
        going_on = any(
            e.state is not _S.FINISHED and task[0] in sources for task, e in self._executions.items()
        )
        return bool(finished) and going_on

    @property
    def ended(self) -> bool:
        """Whether every task is in a terminal state."""
        return self.all_in(*(state for state in ExecutionState if state.terminal))

    def to_trigger(self) -> list[Task]:
        """Return the tasks at which a checkpoint starts: running tasks whose producers, if any, have all
        finished."""
        finished = {
            vertex.name: [
                self._executions[vertex.name, i].state is ExecutionState.FINISHED
                for i in range(vertex.parallelism)
            ]
            for vertex in self.graph.vertices
        }
        ended = {name: all(subtasks) for name, subtasks in finished.items()}
        return [
            (vertex.name, i)
            for vertex in self.graph.vertices
            for i in range(vertex.parallelism)
            if not finished[vertex.name][i]
            and all(
                finished[edge.source][i] if edge.partitioning == "forward" else ended[edge.source]
                for edge in self.graph.inputs(vertex.name)
            )
        ]

    # ---- blocking results

    @property
    def has_blocking(self) -> bool:
        return any(edge.result == BLOCKING for edge in self.graph.edges)

    def incomplete_inputs(self) -> set[str]:
        """Return the vertices that have to wait for a blocking result: one of their own inputs, or an input
        of a vertex to which pipelined results connect them."""
        vertices = [v.name for v in self.graph.vertices]
        links = [Link((e.source, 0), (e.target, 0), e.result != BLOCKING) for e in self.graph.edges]
        together = Regions([(name, 0) for name in vertices], links)
        found: set[str] = set()
        for edge in self.graph.edges:
            if edge.result == BLOCKING and not self.finished_all(edge.source):
                found.update(name for name, _ in together.region((edge.target, 0)))
        return found

    def finished_all(self, vertex: str) -> bool:
        count = self.graph.vertex(vertex).parallelism
        return all(self._executions[vertex, i].state is ExecutionState.FINISHED for i in range(count))

    def consumed_by(self, task: Task) -> dict[Task, list[ResultPartitionID]]:
        """Return the blocking results that the region of a FINISHED task was the last to read, by their producers."""
        region = self.regions.region(task)
        found: dict[Task, list[ResultPartitionID]] = {}
        if not self._all_finished(region):
            return found
        for vertex in dict.fromkeys(name for name, _ in region):
            for edge in self.graph.inputs(vertex):
                if edge.result != BLOCKING:
                    continue
                inputs = (p for name, i in region if name == vertex for p in self._producers_of(edge, i))
                for producer in dict.fromkeys(inputs):
                    if all(
                        self._all_finished(self.regions.region(c)) for c in self._consumers_of(edge, producer)
                    ):
                        found.setdefault(producer, []).append(self.partition(edge, producer[1]))
        return found

    def _all_finished(self, tasks: Iterable[Task]) -> bool:
        return all(self._executions[task].state is ExecutionState.FINISHED for task in tasks)

    def _consumers_of(self, edge: JobEdge, producer: Task) -> list[Task]:
        forward = edge.partitioning == "forward"
        return [(edge.target, i) for i in ((producer[1],) if forward else range(self._parallelism(edge)[1]))]

    def blocking_results(self, task: Task, target: str = "") -> list[ResultPartitionID]:
        """Return the blocking results of a task: those for the vertex `target`, or all."""
        return [
            self.partition(edge, task[1])
            for edge in self.graph.outputs(task[0])
            if edge.result == BLOCKING and target in ("", edge.target)
        ]

    def pipelined_results(self, task: Task) -> list[ResultPartitionID]:
        """Return the results of a task that are read while it runs."""
        edges = self.graph.outputs(task[0])
        return [self.partition(edge, task[1]) for edge in edges if edge.result != BLOCKING]

    # ---- partitions

    def partition(self, edge: JobEdge, producer: int) -> ResultPartitionID:
        execution = self._executions[edge.source, producer]
        return ResultPartitionID(self._data_sets[edge], producer, execution.attempt)

    def producer_of(self, partition: ResultPartitionID) -> Task | None:
        """Return the subtask that produces this partition, in any attempt."""
        vertex = {v: k for k, v in self._vertex_ids.items()}.get(partition.producer.job_vertex)
        task = (vertex, partition.producer.subtask) if vertex is not None else None
        return task if task in self._executions else None

    # ---- deployment

    def descriptor(self, task: Task, context: DeploymentContext) -> TaskDeploymentDescriptor:
        """Build the description from which the TaskExecutor runs the task. Every execution of the region must have its slot."""
        execution = self._executions[task]
        if execution.slot is None:
            raise LocalProtocolError(f"{task[0]}-{task[1]} has no slot")
        vertex = self.graph.vertex(task[0])
        return TaskDeploymentDescriptor(
            job=context.job,
            leader=context.leader,
            attempt=str(execution.attempt),
            allocation=execution.slot.allocation,
            vertex=vertex,
            subtask=task[1],
            attempt_number=execution.attempt.attempt,
            gates=tuple(self._gate(edge, task[1], context) for edge in self.graph.inputs(task[0])),
            partitions=tuple(
                self._output(edge, task[1], context.restore) for edge in self.graph.outputs(task[0])
            ),
            seed=self.graph.seed,
            job_started=context.job_started,
            restore_checkpoint=context.restore.checkpoint,
            restore_handles=context.restore.handles.get(task[0], ()),
            job_vertices=tuple(v.name for v in self.graph.vertices),
            batch=self.graph.is_batch,
        )

    def _rescaled(self, edge: JobEdge, restore: Restore) -> RescaledExchange | None:
        if not restore.parallelism:
            return None
        now = self._parallelism(edge)
        before = tuple(
            restore.parallelism.get(v, p) for v, p in zip((edge.source, edge.target), now, strict=True)
        )
        if before == now:
            return None
        number = self.graph.outputs(edge.source).index(edge)
        return RescaledExchange(before[1], before[0], number, restore.handles.get(edge.source, ()))

    def _output(self, edge: JobEdge, producer: int, restore: Restore) -> ResultPartitionDescriptor:
        return ResultPartitionDescriptor(
            partition=str(self.partition(edge, producer)),
            target_vertex=edge.target,
            partitioning=edge.partitioning,
            subpartitions=1 if edge.partitioning == "forward" else self._parallelism(edge)[1],
            target_max_parallelism=self.graph.vertex(edge.target).max_parallelism,
            bounded=edge.result == BOUNDED,
            announced=edge.deployment == FIRST_RECORD,
            blocking=edge.result == BLOCKING,
            rescaled=self._rescaled(edge, restore) is not None,
            announced_recovery=self._announces_recovery(edge),
        )

    def _gate(self, edge: JobEdge, consumer: int, context: DeploymentContext) -> InputGateDescriptor:
        forward = edge.partitioning == "forward"
        channels = []
        for producer in (consumer,) if forward else range(self._parallelism(edge)[0]):
            execution = self._executions[edge.source, producer]
            owner = execution.taskmanager
            if owner is None:
                raise LocalProtocolError(f"{edge.source}-{producer} has no slot")
            known = self._producers.get((edge, producer))
            if known is None or known[0] is not execution.attempt or known[1] is not owner:
                known = execution.attempt, owner, str(self.partition(edge, producer)), str(owner)
                self._producers[edge, producer] = known
            channels.append(
                InputChannelDescriptor(
                    partition=known[2],
                    producer=known[3],
                    data_address=context.data_address(owner),
                    subpartition=0 if forward else consumer,
                )
            )
        rescaled = self._rescaled(edge, context.restore)
        return InputGateDescriptor(
            edge.source,
            edge.partitioning,
            tuple(channels),
            rescaled,
            announced_recovery=self._announces_recovery(edge),
            blocking=edge.result == BLOCKING,
        )

    def _announces_recovery(self, edge: JobEdge) -> bool:
        """Whether the producers of a connection announce the end of the data that they restore. They do not
        with iterations (isGraphContainingLoops), and not if the result is read only when it is complete."""
        return edge.result != BLOCKING and not any(vertex.iteration for vertex in self.graph.vertices)
