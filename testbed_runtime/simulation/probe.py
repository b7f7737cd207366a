"""Pings on a connection of their own over the simulated fabric."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from testbed_runtime.ports.network import Address, Connection
from testbed_runtime.transport.simulated import SimulatedFabric

PING = b"ping"


class Echo:
    """A handler that sends back what comes."""

    def __init__(self) -> None:
        self._connection: Connection | None = None

    @classmethod
    @asynccontextmanager
    async def on(cls, fabric: SimulatedFabric, name: str) -> AsyncIterator[Address]:
        """Listen at that process's network, beside its own listeners."""
        listener = await fabric.network(name).listen(cls, (name, 0))
        try:
            yield listener.address
        finally:
            await listener.close()

    def on_connected(self, connection: Connection) -> None:
        self._connection = connection

    def on_data(self, data: memoryview) -> None:
        if self._connection is not None:
            self._connection.send([bytes(data)])

    def on_writable(self) -> None:
        """Pings are too small to fill anything."""

    def on_closed(self, error: Exception | None) -> None:
        self._connection = None


class _Pinger(Echo):
    def __init__(self) -> None:
        super().__init__()
        self.answered = asyncio.Event()
        self.over = False

    def on_data(self, data: memoryview) -> None:
        self.answered.set()

    def on_closed(self, error: Exception | None) -> None:
        self.over = True
        self.answered.set()


async def round_trip(
    fabric: SimulatedFabric, source: str, address: Address, *, count: int, limit_s: float
) -> list[float]:
    """Seconds of each ping that was answered within the limit."""
    loop = asyncio.get_running_loop()
    pinger = _Pinger()
    times: list[float] = []
    try:
        async with asyncio.timeout(limit_s):
            connection = await fabric.network(source).connect(address, pinger, timeout_s=limit_s)
            for _ in range(count):
                pinger.answered.clear()
                begin = loop.time()
                connection.send([PING])
                await pinger.answered.wait()
                if pinger.over:
                    break
                times.append(loop.time() - begin)
            connection.close()
    except (OSError, TimeoutError):
        return []
    return times
