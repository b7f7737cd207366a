"""The JobMaster's calls to TaskExecutors: whom it is connected to, submit and cancel with what their failures mean."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.executiongraph import Execution, ExecutionState
from testbed_runtime.core.job.messages import JOBMASTER, TASKEXECUTOR, Acknowledge, CancelTask, SubmitTask
from testbed_runtime.jobmanager.record import name_of
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable, RemoteFailure


@dataclass(frozen=True, slots=True)
class Deployed:
    """Outcome of a SubmitTask; `class_name` is empty when the TaskExecutor took the task."""

    attempt: str
    class_name: str = ""
    text: str = ""
    refused: bool = False
    """The TaskExecutor answered with an error: it does not hold the slot."""
    unreachable: bool = False


@dataclass(frozen=True, slots=True)
class CancelEnded:
    """There is nothing left to cancel."""

    attempt: str


class TaskExecutors:
    """The connected TaskManagers, by id."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._addresses: dict[TaskManagerID, tuple[Address, Address]] = {}
        self._fence = services.options.boolean("headgate.restart.fence-dead-slots")
        self.ask_timeout_s = services.options.duration("pekko.ask.timeout")

    def __contains__(self, taskmanager: TaskManagerID | None) -> bool:
        return taskmanager in self._addresses

    def connect(self, taskmanager: TaskManagerID, rpc_address: Address, data_address: Address) -> None:
        rpc, data = (rpc_address[0], rpc_address[1]), (data_address[0], data_address[1])
        self._addresses[taskmanager] = (rpc, data)

    def disconnect(self, taskmanager: TaskManagerID) -> bool:
        """False: it was not connected."""
        return self._addresses.pop(taskmanager, None) is not None

    def data_address(self, taskmanager: TaskManagerID) -> Address:
        """Where its partitions are served; nowhere when it is not connected any more."""
        known = self._addresses.get(taskmanager)
        return known[1] if known is not None else ("", 0)

    async def ask(self, taskmanager: TaskManagerID | None, message: object, *, call_id: str = "") -> object:
        """Raises AskTimeout, RecipientUnreachable (also when it is not connected), RemoteFailure."""
        if taskmanager is None or taskmanager not in self._addresses:
            raise RecipientUnreachable(f"TaskManager with id {taskmanager} is not connected.")
        address = self._addresses[taskmanager][0]
        return await self._services.rpc.ask(
            taskmanager.name,
            address,
            TASKEXECUTOR,
            message,
            timeout_s=self.ask_timeout_s,
            call_id=call_id,
        )

    # ---- in tasks of their own

    def submit(self, execution: Execution, message: SubmitTask) -> None:
        """A `Deployed` comes back into the mailbox."""
        self._services.tasks.spawn(self._submit(execution, message), f"submit-{name_of(execution.task)}")

    async def _submit(self, execution: Execution, message: SubmitTask) -> None:
        attempt = str(execution.attempt)
        try:
            await self.ask(execution.taskmanager, message, call_id=f"submit/{attempt}")
            outcome = Deployed(attempt)
        except RecipientUnreachable as error:
            outcome = Deployed(attempt, "RecipientUnreachableException", str(error), unreachable=True)
        except AskTimeout as error:
            outcome = Deployed(attempt, self._timeout_class(), self._timeout_text(execution, error))
        except RemoteFailure as error:
            outcome = Deployed(attempt, error.class_name, error.message, refused=True)
        self._services.rpc.post(JOBMASTER, outcome)

    def _timeout_class(self) -> str:
        return "AskTimeoutException" if self._services.options.flink_version == "1.12" else "TimeoutException"

    def _timeout_text(self, execution: Execution, error: AskTimeout) -> str:
        return (
            f"Cannot deploy task {name_of(execution.task)} - TaskManager ({execution.taskmanager}) not responding "
            f"after a rpcTimeout of {round(self.ask_timeout_s * 1000)} ms: {error}"
        )

    def cancel(self, execution: Execution) -> None:
        """Until the task has ended or its TaskManager is disconnected."""
        self._services.tasks.spawn(self._cancel_until_ended(execution), f"cancel-{name_of(execution.task)}")

    def cancel_once(self, execution: Execution) -> None:
        """A task that counts as failed already but may run all the same."""
        self._services.tasks.spawn(self._cancel_once(execution), f"cancel-{name_of(execution.task)}")

    async def _cancel_until_ended(self, execution: Execution) -> None:
        """Asks again: the report of the task's end may have been lost too."""
        while execution.state is ExecutionState.CANCELING and execution.taskmanager in self:
            if await self._cancel_once(execution):
                self._services.rpc.post(JOBMASTER, CancelEnded(str(execution.attempt)))
                return
            await asyncio.sleep(self.ask_timeout_s)

    async def _cancel_once(self, execution: Execution) -> bool:
        """True: there is nothing left to wait for. An unreachable TaskManager is waited for until its verdict, if dead slots
        are fenced."""
        message = CancelTask(str(execution.attempt), self._services.leader)
        try:
            answer = await self.ask(execution.taskmanager, message)
        except RemoteFailure:
            return True  # it does not know the attempt
        except RecipientUnreachable:
            return not self._fence
        except AskTimeout:
            return False
        return isinstance(answer, Acknowledge) and not answer.accepted
