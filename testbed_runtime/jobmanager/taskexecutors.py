"""The TaskManagers that the JobMaster is connected to, and its calls to their TaskExecutors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from msgspec import Struct

from testbed_runtime.core.ids import ResultPartitionID, TaskManagerID
from testbed_runtime.core.job.executiongraph import Execution, ExecutionState
from testbed_runtime.core.job.failover import name_of
from testbed_runtime.core.job.limits import option_limit
from testbed_runtime.core.job.messages import (
    JOBMASTER,
    Acknowledge,
    CancelTask,
    DisconnectJobManager,
    ReleasePartitions,
    SubmitTask,
)
from testbed_runtime.core.values import duration_text
from testbed_runtime.core.waits import JOBMASTER_NAME, Outcome
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable, RemoteFailure

CANCEL_CALLS = 4
"""Calls to cancel a task of which no one is answered, until it counts as cancelled (Execution.NUM_CANCEL_CALL_TRIES, and the first)."""


class Deployed(Struct, frozen=True):
    """The outcome of a SubmitTask. `class_name` is empty when the TaskExecutor accepted the task."""

    attempt: str
    class_name: str = ""
    text: str = ""
    refused: bool = False
    """The TaskExecutor answered with an error: it does not hold the slot."""
    unreachable: bool = False


class _Connection(Struct, frozen=True):
    rpc_address: Address
    data_address: Address
    session: int


class TaskExecutors:
    """The connected TaskManagers, by id."""

    def __init__(self, services: Services, on_cancelled: Callable[[Execution], None]) -> None:
        """`on_cancelled`: called when the TaskExecutor no longer runs an attempt that it had to cancel."""
        self._services = services
        self._on_cancelled = on_cancelled
        self._connections: dict[TaskManagerID, _Connection] = {}
        self._fence = services.options.boolean("headgate.restart.fence-dead-slots")
        self._ask_timeout = option_limit(services.options, "pekko.ask.timeout")
        self.ask_timeout_s = services.options.duration("pekko.ask.timeout")

    def __contains__(self, taskmanager: TaskManagerID | None) -> bool:
        return taskmanager in self._connections

    def session(self, taskmanager: TaskManagerID) -> int | None:
        """Return the session of the connection; None when it is not connected."""
        known = self._connections.get(taskmanager)
        return known.session if known is not None else None

    def connect(
        self, taskmanager: TaskManagerID, rpc_address: Address, data_address: Address, session: int
    ) -> None:
        self._connections[taskmanager] = _Connection(rpc_address, data_address, session)

    def disconnect(self, taskmanager: TaskManagerID, job: str, cause: str, *, gone: bool = False) -> bool:
        """Give up a TaskManager, and notify it unless it has disconnected itself (`gone`); the message may be lost. Return False when
        it was not connected."""
        known = self._connections.pop(taskmanager, None)
        if known is not None and not gone:
            message = DisconnectJobManager(job, self._services.leader, known.session, cause)
            telling = self._services.tell(taskmanager, known.rpc_address, message)
            self._services.parting.spawn(telling, f"disconnect-{taskmanager}")
        return known is not None

    def disconnect_all(self, job: str, cause: str) -> None:
        """Give up every TaskManager (JobMaster.disconnectTaskManagerResourceManagerConnections)."""
        for taskmanager in list(self._connections):
            self.disconnect(taskmanager, job, cause)

    def data_address(self, taskmanager: TaskManagerID) -> Address:
        """Return the address that serves its partitions; `("", 0)` when it is not connected."""
        known = self._connections.get(taskmanager)
        return known.data_address if known is not None else ("", 0)

    async def ask(self, taskmanager: TaskManagerID | None, message: object, *, call_id: str = "") -> object:
        """Raises ASK_FAILURES, RecipientUnreachable also when it is not connected."""
        if taskmanager is None or (known := self._connections.get(taskmanager)) is None:
            raise RecipientUnreachable(f"TaskManager with id {taskmanager} is not connected.")
        return await self._services.ask(taskmanager, known.rpc_address, message, call_id=call_id)

    def _tell(self, taskmanager: TaskManagerID | None, message: object, name: str) -> None:
        """Send a connected TaskExecutor a message that may be lost."""
        if taskmanager is not None and (known := self._connections.get(taskmanager)) is not None:
            self._services.tasks.spawn(self._services.tell(taskmanager, known.rpc_address, message), name)

    # ---- in background tasks, whose outcomes are handled in the JobMaster's mailbox

    def submit(
        self, execution: Execution, message: SubmitTask, on_answer: Callable[[Deployed], None]
    ) -> None:
        """Submit the task."""
        work = self._submit(execution, message, on_answer)
        self._services.tasks.spawn(work, f"submit-{name_of(execution.task)}")

    async def _submit(
        self, execution: Execution, message: SubmitTask, on_answer: Callable[[Deployed], None]
    ) -> None:
        attempt = str(execution.attempt)
        wait = self._services.waits.begin(
            "deployment",
            JOBMASTER_NAME,
            name_of(execution.task),
            attempt=execution.attempt.attempt,
            limit=self._ask_timeout,
        )
        ended = Outcome.FAILED
        try:
            await self.ask(execution.taskmanager, message, call_id=f"submit/{attempt}")
            outcome, ended = Deployed(attempt), Outcome.COMPLETED
        except RecipientUnreachable as error:
            outcome = Deployed(attempt, "RecipientUnreachableException", str(error), unreachable=True)
        except AskTimeout as error:
            outcome = Deployed(attempt, error.class_name, self._timeout_text(execution, error))
            ended = Outcome.EXPIRED
        except RemoteFailure as error:
            outcome = Deployed(attempt, error.class_name, error.message, refused=True)
        wait.end(ended, cause=outcome.text)
        self._services.run_async(JOBMASTER, on_answer, outcome)

    def _timeout_text(self, execution: Execution, error: AskTimeout) -> str:
        timeout = duration_text(self.ask_timeout_s, self._services.options.flink_version)
        return (
            f"Cannot deploy task {name_of(execution.task)} - TaskManager ({execution.taskmanager}) not responding "
            f"after a rpcTimeout of {timeout}: {error}"
        )

    def release(self, execution: Execution, partitions: Iterable[ResultPartitionID]) -> None:
        """Ask the TaskManager to release results of a task that has finished. If the message is lost, it releases them with the slot."""
        if names := tuple(map(str, partitions)):
            message = ReleasePartitions(names, self._services.leader)
            self._tell(execution.taskmanager, message, f"release-{name_of(execution.task)}")

    def cancel(self, execution: Execution) -> None:
        """Cancel the task, repeatedly, until it has ended or its TaskManager is disconnected."""
        self._services.tasks.spawn(self._cancel_until_ended(execution), f"cancel-{name_of(execution.task)}")

    def cancel_once(self, execution: Execution) -> None:
        """Cancel a task that counts as failed but may be running."""
        self._services.tasks.spawn(self._cancel_once(execution), f"cancel-{name_of(execution.task)}")

    def cancel_unknown(self, taskmanager: TaskManagerID, attempt: str) -> None:
        """Cancel an attempt that no longer belongs to an execution of the job."""
        message = CancelTask(attempt, self._services.leader)
        self._tell(taskmanager, message, f"cancel-unknown-{taskmanager}")

    async def _cancel_until_ended(self, execution: Execution) -> None:
        """Repeat the call after each timeout, because the report that the task ended may be lost too. Unless dead slots are fenced, it
        counts as ended when several calls in a row were not answered (Execution.sendCancelRpcCall)."""
        unanswered = 0
        while execution.state is ExecutionState.CANCELING and execution.taskmanager in self:
            ended = await self._cancel_once(execution)
            unanswered = unanswered + 1 if ended is None and not self._fence else 0
            if ended or unanswered == CANCEL_CALLS:
                self._services.run_async(JOBMASTER, self._on_cancelled, execution)
                return
            if not unanswered:
                await asyncio.sleep(self.ask_timeout_s)

    async def _cancel_once(self, execution: Execution) -> bool | None:
        """Return True when there is nothing left to wait for, None without an answer. With fenced dead slots an unreachable
        TaskManager is waited for until its heartbeat verdict."""
        message = CancelTask(str(execution.attempt), self._services.leader)
        try:
            answer = await self.ask(execution.taskmanager, message)
        except RemoteFailure:
            return True  # the attempt is unknown there
        except RecipientUnreachable:
            return not self._fence
        except AskTimeout:
            return None
        return isinstance(answer, Acknowledge) and not answer.accepted
