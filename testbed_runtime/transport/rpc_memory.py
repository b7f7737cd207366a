"""Rpc inside one event loop: the same mailboxes and messages as over HTTP, with a latency per link. Messages are not encoded: they
are immutable, and a descriptor of a large job names thousands of channels.

Meant for virtual time: only the loop's clock and the order of the calls decide the order of messages.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Unpack

from testbed_runtime.core.faults.links import Flow, any_matches
from testbed_runtime.core.faults.retransmission import resumes_at
from testbed_runtime.ports.network import Address
from testbed_runtime.transport.mailbox import Ask, when_answered
from testbed_runtime.transport.rpc_endpoints import EndpointOptions, EndpointRpc
from testbed_runtime.transport.wire_messages import check_message

FIRST_PORT = 6123
"""Ports count up from Flink's default port, for readability."""


@dataclass(slots=True)
class _Line:
    """One direction between two processes: first in, first out, for any sequence of latencies."""

    queue: deque[Callable[[], None]] = field(default_factory=deque)
    last_due: float = 0.0
    held: int = 0
    """The last messages of the queue, held until the link passes messages again."""
    held_since: float = 0.0
    resuming: asyncio.TimerHandle | None = None


class Switchboard:
    """Connects the MemoryRpcs of one loop. `latency_s(source, destination)` is drawn once a message, in order; None: the link
    is blocked, and messages wait for `release`.

    `pause` keeps what a process would receive until `resume`, as a stopped process does; closing an Rpc breaks its
    connections: asks that wait for it are never answered."""

    def __init__(self, latency_s: Callable[[str, str], float | None] | None = None) -> None:
        self._latency_s = latency_s
        self._at: dict[Address, MemoryRpc] = {}
        self._paused: list[str] = []
        self._next_port = FIRST_PORT

    def free_address(self) -> Address:
        """Return an unused address."""
        self._next_port += 1
        return ("127.0.0.1", self._next_port - 1)

    def attach(self, rpc: MemoryRpc, address: Address) -> None:
        if address in self._at:
            raise OSError(f"the address {address[0]}:{address[1]} is in use")
        self._at[address] = rpc

    def detach(self, address: Address) -> None:
        """Remove the process at this address."""
        self._at.pop(address, None)

    def at(self, address: Address) -> MemoryRpc | None:
        return self._at.get(address)

    def pause(self, name: str) -> None:
        if name not in self._paused:
            self._paused.append(name)

    def resume(self, name: str) -> None:
        if name in self._paused:
            self._paused.remove(name)
            for line in [
                line for rpc in self._at.values() if rpc.name == name for line in rpc.lines.values()
            ]:
                self._drain(line, len(line.queue))

    def send(self, source: str, destination: MemoryRpc, deliver: Callable[[], None]) -> None:
        """Call `deliver` when the message has crossed, as a callback of the process that receives it."""
        line = destination.lines.get(source)
        if line is None:
            line = destination.lines[source] = _Line()
        line.queue.append(deliver)
        latency = self._latency_s(source, destination.name) if self._latency_s else 0.0
        if latency is None or line.held:
            if not line.held:
                line.held_since = asyncio.get_running_loop().time()
            line.held += 1
        else:
            self._schedule(line, destination, latency)

    def passes(self, one: str, other: str) -> bool:
        """Return whether messages pass both ways. If not, messages to a process that is gone are not refused: its connections seem alive."""
        return self._latency_s is None or None not in (
            self._latency_s(one, other),
            self._latency_s(other, one),
        )

    def release(self, *, lost: Iterable[Flow] = ()) -> float:
        """Deliver, in order, the held messages of links that pass messages again. The links of `lost` have lost their messages, which TCP
        sends again later. Return when the last of these is sent."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        for destination in self._at.values():
            for source, line in destination.lines.items():
                if line.held and any_matches(lost, source, destination.name):
                    if line.resuming is not None:
                        line.resuming.cancel()
                    at = resumes_at(line.held_since, loop.time())
                    line.resuming = loop.call_at(at, self._resume, source, destination, line)
                    if self._latency_s is None or self._latency_s(source, destination.name) is not None:
                        last = max(last, at)
                elif line.resuming is None:
                    self._resume(source, destination, line)
        return last

    def _resume(self, source: str, destination: MemoryRpc, line: _Line) -> None:
        line.resuming = None
        latency = self._latency_s(source, destination.name) if self._latency_s else 0.0
        while line.held and latency is not None:
            line.held -= 1
            self._schedule(line, destination, latency)

    def _schedule(self, line: _Line, destination: MemoryRpc, latency: float) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        line.last_due = due = max(now + latency, line.last_due)
        if due <= now:
            loop.call_soon(self._due, destination.name, line, context=destination.context)
        else:
            loop.call_at(due, self._due, destination.name, line, context=destination.context)

    def _due(self, destination: str, line: _Line) -> None:
        if destination not in self._paused and line.queue:
            line.queue.popleft()()

    @staticmethod
    def _drain(line: _Line, count: int) -> None:
        for _ in range(count):
            if line.queue:
                line.queue.popleft()()


class MemoryRpc(EndpointRpc):
    """`ports.rpc.Rpc` on a Switchboard."""

    def __init__(
        self,
        name: str,
        switchboard: Switchboard,
        *,
        address: Address | None = None,
        **options: Unpack[EndpointOptions],
    ) -> None:
        super().__init__(name, **options)
        self._switchboard = switchboard
        self.address = address or switchboard.free_address()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._next_id = 0
        self._closed = False
        self.lines: dict[str, _Line] = {}
        """Messages in flight to this incarnation, by source. They are lost with it."""
        self.context = contextvars.copy_context()
        """The context in which messages are delivered: that of the simulated process that created this Rpc."""

    async def start(self) -> None:
        self._switchboard.attach(self, self.address)

    async def close(self) -> None:
        """Close this Rpc; a killed process is closed in the same way. Idempotent."""
        self._closed = True
        self._switchboard.detach(self.address)
        for answer in self._pending.values():
            _refuse(answer)
        await self._close_mailboxes()

    def _send(self, asked: Ask, call_id: str, answer: asyncio.Future[Any]) -> Callable[[], object]:
        check_message(asked.message)
        target = self._switchboard.at(asked.address)
        if self._closed or (target is None and self._switchboard.passes(self.name, asked.peer)):
            _refuse(answer)
            return _nothing
        self._next_id += 1
        number = self._next_id
        self._pending[number] = answer
        if target is not None:
            self._cross(asked, call_id, answer, target)
        return lambda: self._pending.pop(number, None)

    def _cross(self, asked: Ask, call_id: str, answer: asyncio.Future[Any], target: MemoryRpc) -> None:
        """Send a message to `target`. If `target` ends before it answers, there is neither an answer nor an error."""

        def arrive() -> None:
            if self._switchboard.at(asked.address) is not target:
                return
            result = target.deliver(asked.endpoint, asked.message, call_id)
            if result is None:
                refuse()
            else:
                when_answered(result, lambda value: self._reply(target, answer, value), refuse)

        def refuse() -> None:
            self._switchboard.send(target.name, self, lambda: _refuse(answer))

        self._switchboard.send(self.name, target, arrive)

    def _reply(self, callee: MemoryRpc, answer: asyncio.Future[Any], value: Any) -> None:
        check_message(value)
        self._switchboard.send(callee.name, self, lambda: _settle(answer, value))


def _refuse(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(ConnectionRefusedError())


def _settle(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():
        answer.set_result(value)


def _nothing() -> None:
    """Do nothing: a message without an answer has nothing to forget."""
