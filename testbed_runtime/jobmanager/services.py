"""The ports, options and background tasks that the three endpoints of the JobManager share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ParamSpec

from msgspec import Struct, field

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.messages import TASKEXECUTOR, RegistrationResult, RemoteHandshakeMessage
from testbed_runtime.core.job.rpcnames import actor_address
from testbed_runtime.core.options import Options
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.ports.execution import Clock, IdSource, RandomSource
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import ASK_FAILURES, Rpc
from testbed_runtime.ports.storage import BlobStore, HistorySink
from testbed_runtime.process.tasks import TaskKeeper

P = ParamSpec("P")


class RunAsync(Struct, frozen=True):
    """A step of an endpoint, posted to its own mailbox (Flink's RunAsync)."""

    step: Callable[[], None]


async def on_run_async(message: RunAsync) -> None:
    message.step()


class Services(Struct, frozen=True):
    """Shared by the endpoints of one leader session. `leader` is its id, new for each process and each grant of the leadership."""

    rpc: Rpc
    blobs: BlobStore
    history: HistorySink
    clock: Clock
    ids: IdSource
    random: RandomSource
    options: Options
    tasks: TaskKeeper
    leader: str
    waits: WaitLog
    parting: TaskKeeper = field(default_factory=TaskKeeper)
    """Messages that tell TaskManagers of a disconnection. They outlive the leader session, as `tasks` does not."""
    committed: dict[tuple[str, int], None] = field(default_factory=dict)
    """The newest checkpoints (job, id) whose commits this process has appended to the history."""

    def run_async(
        self, endpoint: str, step: Callable[P, None], *arguments: P.args, **named: P.kwargs
    ) -> None:
        """Run a step of an endpoint in its mailbox, after the messages that arrived before (MainThreadExecutable.runAsync)."""
        self.rpc.post(endpoint, RunAsync(partial(step, *arguments, **named)))

    async def ask(
        self, taskmanager: TaskManagerID, address: Address, message: object, *, call_id: str = ""
    ) -> object:
        """Ask the TaskExecutor of a TaskManager. Raises ASK_FAILURES."""
        timeout_s = self.options.duration("pekko.ask.timeout")
        return await self.rpc.ask(
            taskmanager.name, address, TASKEXECUTOR, message, timeout_s=timeout_s, call_id=call_id
        )

    def ask_async(
        self,
        endpoint: str,
        taskmanager: TaskManagerID,
        address: Address,
        message: object,
        handle: Callable[[object], None],
        *,
        name: str,
        call_id: str = "",
    ) -> None:
        """Ask in the background. `handle` gets the answer, or the error of ASK_FAILURES, in the endpoint's mailbox
        (CompletableFuture.handleAsync)."""

        async def asking() -> None:
            answer: object
            try:
                answer = await self.ask(taskmanager, address, message, call_id=call_id)
            except ASK_FAILURES as error:
                answer = error
            self.run_async(endpoint, handle, answer)

        self.tasks.spawn(asking(), name)

    async def tell(self, taskmanager: TaskManagerID, address: Address, message: object) -> None:
        """Send a TaskExecutor a message that may be lost."""
        with contextlib.suppress(*ASK_FAILURES):
            await self.ask(taskmanager, address, message)

    def event(
        self,
        kind: str,
        subject: str,
        *,
        text: str = "",
        data: Mapping[str, Any] | None = None,
        attempt: int = -1,
        checkpoint: int = -1,
    ) -> None:
        """Append a row to the `events` table; the kinds are in history.schema.EVENT_KINDS."""
        self.history.append(
            "events",
            kind=kind,
            subject=subject,
            attempt=attempt,
            checkpoint=checkpoint,
            text=text,
            data=dict(data or {}),
        )


def connected(
    services: Services,
    endpoint: str,
    taskmanager: TaskManagerID,
    address: Address,
    register: Callable[[], RegistrationResult],
) -> asyncio.Future[RegistrationResult]:
    """Connect an endpoint to a TaskExecutor before its registration is answered (RpcService.connect). Return the future answer:
    that of `register`, or a failure if the address cannot be connected."""
    registered: asyncio.Future[RegistrationResult] = asyncio.get_running_loop().create_future()

    def on_connected(answer: object) -> None:
        if isinstance(answer, ASK_FAILURES):
            where = actor_address(address, TASKEXECUTOR, services.options.flink_version)
            text = f"Could not connect to rpc endpoint under address {where}."
            result = RegistrationResult("failure", services.leader, text)
        else:
            result = register()
        if not registered.done():
            registered.set_result(result)

    services.ask_async(
        endpoint, taskmanager, address, RemoteHandshakeMessage(), on_connected, name=f"connect-{taskmanager}"
    )
    return registered
