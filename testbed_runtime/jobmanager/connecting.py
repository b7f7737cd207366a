"""Connect an endpoint of the JobManager to a TaskExecutor before its registration is answered (RpcService.connect)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.messages import TASKEXECUTOR, RegistrationResult, RemoteHandshakeMessage
from testbed_runtime.core.job.rpcnames import actor_address
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import ASK_FAILURES


class Connector:
    """Connects to TaskExecutors for one endpoint. A registration continues in its mailbox."""

    def __init__(self, services: Services, endpoint: str) -> None:
        self._services = services
        self._endpoint = endpoint

    def connect(
        self, taskmanager: TaskManagerID, address: Address, register: Callable[[], RegistrationResult]
    ) -> asyncio.Future[RegistrationResult]:
        """Return the future answer to a registration: that of `register`, or a failure if the address cannot be connected."""
        answer: asyncio.Future[RegistrationResult] = asyncio.get_running_loop().create_future()
        connecting = self._connect(taskmanager, address, register, answer)
        self._services.tasks.spawn(connecting, f"connect-{taskmanager}")
        return answer

    async def _connect(
        self,
        taskmanager: TaskManagerID,
        address: Address,
        register: Callable[[], RegistrationResult],
        answer: asyncio.Future[RegistrationResult],
    ) -> None:
        failure = ""
        try:
            await self._services.ask(taskmanager, address, RemoteHandshakeMessage())
        except ASK_FAILURES:
            where = actor_address(address, TASKEXECUTOR, self._services.options.flink_version)
            failure = f"Could not connect to rpc endpoint under address {where}."
        self._services.run_async(self._endpoint, self._on_connected, answer, register, failure)

    def _on_connected(
        self,
        answer: asyncio.Future[RegistrationResult],
        register: Callable[[], RegistrationResult],
        failure: str,
    ) -> None:
        result = RegistrationResult("failure", self._services.leader, failure) if failure else register()
        if not answer.done():
            answer.set_result(result)
