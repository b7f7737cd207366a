"""The three networks under a common name, and handlers that observe them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from testbed_runtime.ports.network import Address, Connection, Network

LIMIT_S = 10.0
"""No condition of these tests takes longer."""


class Watcher:
    """A ConnectionHandler that records what happens to it."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.received = bytearray()
        self.closed: list[Exception | None] = []
        self.writable_again = 0
        self.changed = asyncio.Event()
        self.after_close: list[str] = []
        self.on_data_hook: Callable[[memoryview], None] | None = None

    def on_connected(self, connection: Connection) -> None:
        assert self.connection is None
        self.connection = connection
        self.changed.set()

    def on_data(self, data: memoryview) -> None:
        self._not_after_close("on_data")
        self.received += data
        if self.on_data_hook is not None:
            self.on_data_hook(data)
        self.changed.set()

    def on_writable(self) -> None:
        self._not_after_close("on_writable")
        self.writable_again += 1
        self.changed.set()

    def on_closed(self, error: Exception | None) -> None:
        self.closed.append(error)
        self.changed.set()

    def _not_after_close(self, what: str) -> None:
        if self.closed:
            self.after_close.append(what)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Pair:
    """Two ends of one connection over a listener."""

    def __init__(self, network: Network, connecting: Network | None = None) -> None:
        self.network = network
        self.connecting = connecting or network
        self.server = Watcher()
        self.client = Watcher()
        self.listener = None

    async def open(self) -> Pair:
        self.listener = await self.network.listen(lambda: self.server, ("127.0.0.1", 0))
        await self.connecting.connect(self.listener.address, self.client, timeout_s=LIMIT_S)
        await self.server.until(lambda: self.server.connection is not None)
        return self

    async def close(self) -> None:
        for end in (self.client, self.server):
            if end.connection is not None:
                end.connection.abort()
        if self.listener is not None:
            await self.listener.close()

    @property
    def address(self) -> Address:
        assert self.listener is not None
        return self.listener.address
