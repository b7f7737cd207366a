"""What attempts report beside their state: acknowledgements, declines, commits, questions. Stale ones are rejected and counted."""

from __future__ import annotations

from testbed_runtime.core.ids import ResultPartitionID
from testbed_runtime.core.job.executiongraph import Execution, ExecutionGraph, ExecutionState
from testbed_runtime.core.job.messages import (
    Acknowledge,
    AcknowledgeCheckpoint,
    CommitRecords,
    DeclineCheckpoint,
    PartitionState,
    RequestPartitionState,
)
from testbed_runtime.jobmanager.checkpoints import Checkpoints, CommitLog, records_in
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.ports.rpc import Handler

NOT_FOUND = "The execution attempt {0} was not found."


class TaskReports:
    """Handlers of the endpoint `jobmaster`; `stale` counts what was rejected."""

    def __init__(self, services: Services, graph: ExecutionGraph, checkpoints: Checkpoints) -> None:
        self._services = services
        self._graph = graph
        self._checkpoints = checkpoints
        self._commits = CommitLog(services)
        self.stale = 0

    def handlers(self) -> dict[type, Handler]:
        return {
            RequestPartitionState: self._partition_state,
            AcknowledgeCheckpoint: self._acknowledge,
            DeclineCheckpoint: self._decline,
            CommitRecords: self._commit_records,
        }

    def forget_ended(self) -> None:
        """New attempts have taken over."""
        self._commits.forget(lambda attempt: self._graph.find(attempt) is None)

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
        if not self._checkpoints.acknowledge(execution, message):
            reason = f"The checkpoint {message.checkpoint} is not pending."
            return self._reject(
                message.attempt, "acknowledgement", checkpoint=message.checkpoint, reason=reason
            )
        return Acknowledge()

    async def _decline(self, message: DeclineCheckpoint) -> Acknowledge:
        if self._current(message.attempt) is None:
            return Acknowledge(False, NOT_FOUND.format(message.attempt))
        self._checkpoints.decline(message)
        return Acknowledge()

    async def _commit_records(self, message: CommitRecords) -> Acknowledge:
        execution = self._current(message.attempt)
        if message.leader != self._services.leader or execution is None or execution.state.terminal:
            return self._reject(message.attempt, "record", count=records_in(message.commit))
        self._commits.record(execution, message)
        self._checkpoints.committed_at_once()
        return Acknowledge()

    def _current(self, attempt: str) -> Execution | None:
        """The execution, unless a newer attempt has taken over or this one has failed."""
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
