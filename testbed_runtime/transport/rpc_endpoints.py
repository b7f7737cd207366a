"""The code that Rpc over HTTP and in memory share: the mailboxes of one process, and how an ask to another process ends."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.versions import LATEST
from testbed_runtime.ports.execution import Cpu
from testbed_runtime.ports.interception import CallInterceptor
from testbed_runtime.ports.network import PLANE_RPC, Address, Resolver
from testbed_runtime.ports.rpc import Handler, RemoteFailure
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.timeouts import cancel_all, timeout
from testbed_runtime.transport.mailbox import (
    Ask,
    Mailbox,
    NoInterception,
    SleepingCpu,
    timed_out,
    unreachable,
)

MAX_REMEMBERED_CALLS = 4_096
"""Maximum results that a process keeps for repeated call ids."""


class EndpointOptions(TypedDict, total=False):
    """The options of every Rpc."""

    resolver: Resolver | None
    flink_version: str
    cpu: Cpu | None
    interceptor: CallInterceptor | None
    history: HistorySink | None


class EndpointRpc(ABC):
    """The part of `ports.rpc.Rpc` that does not depend on how messages are transported: the mailboxes of a process, and the results
    of its idempotent calls. Answers are values: a message, None or a FlinkError."""

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
        self._interceptor = interceptor or NoInterception()
        self._cpu = cpu or SleepingCpu()
        self._mailboxes: dict[str, Mailbox] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._remembered: OrderedDict[str, asyncio.Future[Any]] = OrderedDict()

    def serve(
        self, endpoint: str, handlers: Mapping[type[Any], Handler], *, service_time_s: float = 0.0
    ) -> None:
        if endpoint in self._mailboxes:
            raise ValueError(f"the endpoint {endpoint} is open already")
        mailbox = Mailbox(
            endpoint, handlers, service_time_s=service_time_s, cpu=self._cpu, interceptor=self._interceptor
        )
        self._mailboxes[endpoint] = mailbox
        loop = asyncio.get_running_loop()
        self._workers[endpoint] = loop.create_task(mailbox.run(), name=f"mailbox-{endpoint}")

    async def stop(self, endpoint: str) -> None:
        """Close an endpoint: the answers to the messages in its mailbox are cancelled. Do not call it from its own handlers."""
        mailbox, worker = self._mailboxes.pop(endpoint, None), self._workers.pop(endpoint, None)
        if mailbox is not None and worker is not None:
            await cancel_all(worker)
            mailbox.drop()

    async def _close_mailboxes(self) -> None:
        await cancel_all(*self._workers.values())
        self._workers.clear()
        self._mailboxes.clear()

    def post(self, endpoint: str, message: Any) -> None:
        """Put a message into a mailbox of this process. It is dropped if the endpoint is not open."""
        mailbox = self._mailboxes.get(endpoint)
        if mailbox is not None:
            mailbox.put(message, None)

    def deliver(self, endpoint: str, message: Any, call_id: str) -> asyncio.Future[Any] | None:
        """Put a message from a peer into its mailbox. Return the future answer, or None when the endpoint does not exist. The answer is
        cancelled if the endpoint is stopped before it has handled the message."""
        mailbox = self._mailboxes.get(endpoint)
        if mailbox is None:
            return None
        known = self._remembered.get(call_id) if call_id else None
        if known is not None and not known.cancelled():
            return known
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        mailbox.put(message, answer)
        if call_id:
            self._remembered[call_id] = answer
            if len(self._remembered) > MAX_REMEMBERED_CALLS:
                self._remembered.popitem(last=False)
        return answer

    def waiting(self, endpoint: str) -> int:
        """Number of messages in the endpoint's queue."""
        return len(self._mailboxes[endpoint])

    def busy_s(self, endpoint: str) -> float:
        return self._mailboxes[endpoint].busy_s() if endpoint in self._mailboxes else 0.0

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
            if self._resolver is None and not self._interceptor.active:
                timer = loop.call_later(timeout_s, _expire, answer)
                forget = self._send(asked, call_id, answer)
                result = await answer
            else:
                async with timeout(timeout_s):
                    if self._resolver is not None:
                        found = await self._resolver.resolve(peer, PLANE_RPC, address)
                        asked = asked._replace(address=found)
                    before = self._interceptor.before_ask
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
