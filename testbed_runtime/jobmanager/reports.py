"""The messages of attempts besides their state: checkpoint acknowledgements and declines, commits, questions about partitions, and
requests for input splits."""

from __future__ import annotations

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.ids import ResultPartitionID
from testbed_runtime.core.job.executiongraph import Execution, ExecutionGraph, ExecutionState
from testbed_runtime.core.job.failover import name_of
from testbed_runtime.core.job.messages import (
    Acknowledge,
    AcknowledgeCheckpoint,
    CommitRecords,
    DeclineCheckpoint,
    InputSplit,
    NotifyEndOfData,
    PartitionState,
    RequestNextInputSplit,
    RequestPartitionState,
    SinkCommit,
)
from testbed_runtime.core.job.splits import NO_SPLIT, SplitAssigner, split_records
from testbed_runtime.jobmanager.checkpoints import Checkpoints
from testbed_runtime.jobmanager.completed import CompletedCheckpoints, record_delivery
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.ports.rpc import Handler

NOT_FOUND = "The execution attempt {0} was not found."


class TaskReports:
    """Rejects reports of attempts that are no longer current; `stale` counts them."""

    def __init__(
        self,
        services: Services,
        graph: ExecutionGraph,
        checkpoints: Checkpoints,
        completed: CompletedCheckpoints,
    ) -> None:
        self._services = services
        self._graph = graph
        self._checkpoints = checkpoints
        self._completed = completed
        self._next_commit: dict[str, int] = {}
        """The next sequence number of each attempt: a flush that arrives twice is recorded once."""
        self._held: dict[str, list[SinkCommit]] = {}
        """The commits of attempts in a batch job, recorded when it has finished: even a FINISHED one may be restarted."""
        self.stale = 0

    def handlers(self) -> dict[type, Handler]:
        return {
            RequestPartitionState: self._partition_state,
            AcknowledgeCheckpoint: self._acknowledge,
            DeclineCheckpoint: self._decline,
            NotifyEndOfData: self._data_ended,
            CommitRecords: self._commit_records,
        }

    def forget_ended(self) -> None:
        """Drop the state of attempts that were replaced."""
        for attempt in [a for a in self._next_commit if self._graph.find(a) is None]:
            del self._next_commit[attempt]
            self._held.pop(attempt, None)

    def commit_held(self) -> None:
        """Record the commits of all attempts: the job has FINISHED."""
        for attempt, commits in self._held.items():
            execution = self._graph.find(attempt)
            if execution is not None:
                for commit in commits:
                    self._record(execution, commit)
        self._held.clear()

    def _record(self, execution: Execution, commit: SinkCommit) -> None:
        record_delivery(self._services, name_of(execution.task), execution.attempt.attempt, -1, commit)

    async def _partition_state(self, message: RequestPartitionState) -> PartitionState:
        partition = ResultPartitionID.parse(message.partition)
        execution = self._graph.find(str(partition.producer))
        if execution is None:
            return PartitionState("", disposed=True)
        return PartitionState(execution.state.value)

    async def _acknowledge(self, message: AcknowledgeCheckpoint) -> Acknowledge:
        execution = self._current(message.attempt)
        if execution is None:
            return self._reject(message.attempt, "acknowledgement", checkpoint=message.checkpoint)
        if self._checkpoints.acknowledge(execution, message):
            return Acknowledge()
        reason = f"The checkpoint {message.checkpoint} is not pending."
        return self._reject(message.attempt, "acknowledgement", checkpoint=message.checkpoint, reason=reason)

    async def _decline(self, message: DeclineCheckpoint) -> Acknowledge:
        execution = self._current(message.attempt)
        if execution is None:
            return Acknowledge(False, NOT_FOUND.format(message.attempt))
        self._checkpoints.decline(execution, message)
        return Acknowledge()

    async def _data_ended(self, message: NotifyEndOfData) -> Acknowledge:
        execution = self._current(message.attempt)
        if execution is None:
            return Acknowledge(False, NOT_FOUND.format(message.attempt))
        self._checkpoints.data_ended(execution)
        return Acknowledge()

    async def _commit_records(self, message: CommitRecords) -> Acknowledge:
        execution = self._current(message.attempt)
        if message.leader != self._services.leader or execution is None or execution.state.terminal:
            return self._reject(message.attempt, "record", count=_records_in(message.commit))
        if message.sequence >= self._next_commit.get(message.attempt, 0):
            self._next_commit[message.attempt] = message.sequence + 1
            if self._graph.graph.is_batch:
                self._held.setdefault(message.attempt, []).append(message.commit)
            else:
                self._record(execution, message.commit)
        self._completed.flush_before_next()
        return Acknowledge()

    def _current(self, attempt: str) -> Execution | None:
        """Return the execution, None when a newer attempt has replaced it or it has failed."""
        execution = self._graph.find(attempt)
        gone = (ExecutionState.CANCELED, ExecutionState.FAILED)
        return None if execution is None or execution.state in gone else execution

    def _reject(
        self, attempt: str, what: str, *, checkpoint: int = -1, count: int = 1, reason: str = ""
    ) -> Acknowledge:
        self.stale += count
        subject, number = self._graph.name_of(attempt)
        data = {"what": what, "count": count}
        self._services.event("stale.rejected", subject, attempt=number, checkpoint=checkpoint, data=data)
        return Acknowledge(False, reason or NOT_FOUND.format(attempt))


def _records_in(commit: SinkCommit) -> int:
    """Count the records of a commit: the set bits of all bitmaps."""
    return sum(int(chunk[2] or "0", 16).bit_count() for chunk in commit.chunks)


class InputSplits:
    """One assigner for each source vertex with splits."""

    def __init__(self, services: Services, graph: ExecutionGraph) -> None:
        self._services = services
        self._graph = graph
        self._assigners = {
            vertex.name: SplitAssigner(vertex.source.splits)
            for vertex in graph.graph.vertices
            if vertex.source is not None and vertex.source.splits
        }

    def handlers(self) -> dict[type, Handler]:
        return {RequestNextInputSplit: self._next}

    async def _next(self, message: RequestNextInputSplit) -> InputSplit:
        """Return the next split. Raises FlinkError for an attempt that is not the current one, or whose source has no splits."""
        execution = self._graph.find(message.attempt)
        assigner = self._assigners.get(execution.task[0]) if execution is not None else None
        if execution is None or assigner is None:
            raise FlinkError("Exception", f"Can not find Execution for attempt {message.attempt}.")
        number = assigner.next_split(execution.task[1], message.index)
        source = self._graph.graph.vertex(execution.task[0]).source
        if number == NO_SPLIT or source is None:
            execution.splits = message.index
            return InputSplit(NO_SPLIT)
        records = split_records(source.limit, source.splits)
        data = {"split": number, "records": records}
        subject = name_of(execution.task)
        self._services.event("input-split", subject, attempt=execution.attempt.attempt, data=data)
        return InputSplit(number, records)
