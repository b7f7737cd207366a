"""A network of bytes within one event loop, which overwrites what was received as soon as the port allows it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from testbed_runtime.ports.network import Address, ConnectionHandler

POISON = b"\xdd"
MEMORY_BYTES = 4096
MOST_UNSENT_BYTES = 2048


class Memory:
    """The memory into which all connections of one end receive."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(MEMORY_BYTES))
        self.loans: list[Callable[[], None]] = []
        self.borrowed = 0
        """Number of loans until now."""

    def poison(self) -> None:
        """Let the borrowers copy what they need, then overwrite everything."""
        while self.loans:
            self.loans.pop()()
        self.view[:] = POISON * len(self.view)


class PoisonedConnection:
    """One end. What it sends stays in the sender's memory until it is delivered, in pieces that begin and end anywhere."""

    peer = "127.0.0.1:1"

    def __init__(self, random: Random, memory: Memory) -> None:
        self._random, self._memory = random, memory
        self._loop = asyncio.get_running_loop()
        self.other: PoisonedConnection | None = None
        self.handler: ConnectionHandler | None = None
        self._unsent: deque[tuple[Sequence[bytes], Callable[[], None] | None]] = deque()
        self._arrived, self._again = bytearray(), b""
        self._reading, self._closed, self._was_full = True, False, False
        self.delivered_again = 0

    # ---- out -----------------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        unsent = sum(len(part) for parts, _ in self._unsent for part in parts)
        self._was_full = self._was_full or unsent > MOST_UNSENT_BYTES
        return not self._closed and unsent <= MOST_UNSENT_BYTES

    @property
    def frames(self) -> None:
        return None

    def send(self, parts, on_sent=None) -> None:
        if self._closed:
            if on_sent is not None:
                on_sent()
            return
        self._unsent.append((list(parts), on_sent))
        self._loop.call_soon(self._transmit)

    def _transmit(self) -> None:
        if not self._unsent:
            return
        if self._random.random() < 0.3:
            self._loop.call_soon(self._transmit)
            return
        parts, on_sent = self._unsent.popleft()
        if self.other is not None and not self.other._closed:
            self.other._arrived += b"".join(parts)
            self._loop.call_soon(self.other._receive)
        if on_sent is not None:
            on_sent()
        if self._was_full and self.writable:
            self._was_full = False
            self.handler.on_writable()

    # ---- in ------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        if not self._reading or self._closed or not self._arrived:
            return
        memory, again = self._memory, self._again
        memory.poison()
        room = len(memory.view) - len(again)
        most = min(len(self._arrived), room)
        new = bytes(self._arrived[: self._random.choice([most, self._random.randint(1, most)])])
        del self._arrived[: len(new)]
        count = len(again) + len(new)
        memory.view[:count] = again + new
        self._again = b""
        self.handler.on_data(memory.view[:count])
        if self._random.random() < 0.5:
            memory.poison()
        if self._arrived:
            self._loop.call_soon(self._receive)

    def lend(self, settle: Callable[[], None]) -> None:
        self._memory.borrowed += 1
        self._memory.loans.append(settle)

    def unread(self, data: memoryview) -> bool:
        self.delivered_again += 1
        self._again = bytes(data)
        return True

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._receive)

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._loop.call_soon(self.abort)

    def abort(self, *, reset: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        while self._unsent:
            _, on_sent = self._unsent.popleft()
            if on_sent is not None:
                on_sent()
        self.handler.on_closed(None)
        if self.other is not None:
            self._loop.call_soon(self.other.abort)


class PoisonedNetwork:
    """A `ports.network.Network` with one listener."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.here, self.there = Memory(), Memory()
        self.connections: list[PoisonedConnection] = []
        self.address: Address = ("127.0.0.1", 1)

    async def listen(self, make_handler, address) -> PoisonedNetwork:
        del address
        self._make_handler = make_handler
        return self

    async def connect(self, address, handler, *, timeout_s) -> PoisonedConnection:
        del address, timeout_s
        ends = PoisonedConnection(self._random, self.here), PoisonedConnection(self._random, self.there)
        for end, other, its in zip(ends, ends[::-1], (handler, self._make_handler()), strict=True):
            end.other, end.handler = other, its
            its.on_connected(end)
        self.connections.append(ends[0])
        return ends[0]

    async def close(self) -> None:
        """Stop listening: nothing to do."""
