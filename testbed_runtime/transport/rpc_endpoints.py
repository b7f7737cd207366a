"""The code that Rpc over HTTP and in memory share: the mailboxes of one process, and how an ask to another process ends."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.versions import LATEST
from testbed_runtime.ports.execution import Cpu
from testbed_runtime.ports.interception import CallInterceptor
from testbed_runtime.ports.network import PLANE_RPC, Address, Resolver
from testbed_runtime.ports.rpc import Handler, RemoteFailure
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.timeouts import timeout
from testbed_runtime.transport.mailbox import Ask, Endpoints, timed_out, unreachable


class EndpointOptions(TypedDict, total=False):
    """The options of every Rpc."""

    resolver: Resolver | None
    flink_version: str
    cpu: Cpu | None
    interceptor: CallInterceptor | None
    history: HistorySink | None


class EndpointRpc(ABC):
    """The part of `ports.rpc.Rpc` that does not depend on how messages are transported."""

    def __init__(
        self,
        name: str,
        *,
        resolver: Resolver | None = None,
        flink_version: str = LATEST,
        cpu: Cpu | None = None,
        interceptor: CallInterceptor | None = None,
        history: HistorySink | None = None,
    ) -> None:
        self.name = name
        self.history = history
        self._resolver = resolver
        self._flink_version = flink_version
        self._endpoints = Endpoints(cpu=cpu, interceptor=interceptor)

    def serve(
        self, endpoint: str, handlers: Mapping[type[Any], Handler], *, service_time_s: float = 0.0
    ) -> None:
        self._endpoints.open(endpoint, handlers, service_time_s)

    async def stop(self, endpoint: str) -> None:
        await self._endpoints.stop(endpoint)

    def post(self, endpoint: str, message: Any) -> None:
        self._endpoints.post(endpoint, message)

    def waiting(self, endpoint: str) -> int:
        """Number of messages in the endpoint's queue."""
        return self._endpoints.waiting(endpoint)

    def busy_s(self, endpoint: str) -> float:
        return self._endpoints.busy_s(endpoint)

    async def ask(
        self, peer: str, address: Address, endpoint: str, message: Any, *, timeout_s: float, call_id: str = ""
    ) -> Any:
        asked = Ask(self.name, peer, address, endpoint, message, timeout_s)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        forget: Callable[[], object] | None = None
        timer: asyncio.TimerHandle | None = None
        try:
            # nothing to wait for but the answer
            if self._resolver is None and not self._endpoints.interceptor.active:
                timer = loop.call_later(timeout_s, _expire, answer)
                forget = self._send(asked, call_id, answer)
                result = await answer
            else:
                async with timeout(timeout_s):
                    if self._resolver is not None:
                        found = await self._resolver.resolve(peer, PLANE_RPC, address)
                        asked = asked._replace(address=found)
                    before = self._endpoints.interceptor.before_ask
                    if await before(f"{self.name}->{peer}", endpoint, message):
                        forget = self._send(asked, call_id, answer)
                    result = await answer
        except TimeoutError:
            self._on_silence(asked)
            raise timed_out(self.history, self._flink_version, asked) from None
        except ConnectionError:
            raise unreachable(asked) from None
        finally:
            if timer is not None:
                timer.cancel()
            if forget is not None:
                forget()
        if isinstance(result, FlinkError):
            raise RemoteFailure(result.class_name, result.message)
        return result

    @abstractmethod
    def _send(self, asked: Ask, call_id: str, answer: asyncio.Future[Any]) -> Callable[[], object]:
        """Send the message; `answer` gets the result, or an error if it could not be sent. Return a function that forgets the ask."""

    def _on_silence(self, asked: Ask) -> None:  # noqa: B027 - in memory there is nothing to do
        """Called when an ask has timed out."""


def _expire(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())
