"""Probes of a simulated path: pings on a separate connection, on the fabric or the Switchboard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from testbed_runtime.core.job.messages import Acknowledge
from testbed_runtime.ports.network import Connection, Listener
from testbed_runtime.ports.rpc import NoAnswer
from testbed_runtime.timeouts import wait_until
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from testbed_runtime.transport.simulated import SimulatedFabric

PING = b"ping"
OWNER = "probe"
"""Probes use the address of a process but belong to this owner, so they survive the process."""


class _Echo:
    """A handler that echoes what it receives."""

    def __init__(self) -> None:
        self.connection: Connection | None = None

    def on_connected(self, connection: Connection) -> None:
        self.connection = connection

    def on_data(self, data: memoryview) -> None:
        if self.connection is not None:
            self.connection.send([bytes(data)])

    def on_writable(self) -> None:
        """Do nothing: the other end waits for its echo before it sends more."""

    def on_closed(self, error: Exception | None) -> None:
        self.connection = None


class FabricProbe(_Echo):
    """A probe of the data plane: connects to an echo handler at `destination`."""

    def __init__(self, fabric: SimulatedFabric, source: str, destination: str) -> None:
        super().__init__()
        self.error = ""
        self._from = fabric.network(source, owner=OWNER)
        self._at = fabric.network(destination, owner=OWNER)
        self._listener: Listener | None = None
        self._changed = asyncio.Event()
        self._missing = 0

    async def open(self) -> None:
        """Listen. The first ping connects."""
        self._listener = await self._at.listen(_Echo, ("", 0))

    @property
    def connected(self) -> bool:
        return self.connection is not None

    async def round_trip(self, *, timeout_s: float) -> float | None:
        return await self.bulk(len(PING), timeout_s=timeout_s)

    async def bulk(self, size: int, *, timeout_s: float) -> float | None:
        """Return the seconds until `size` bytes, and all outstanding bytes before them, have come back; None after the limit. Also None
        if a fault prevents the connection within the limit, although a real proxy would accept the connection."""
        if self.connection is None and not self.error:
            await self._connect(timeout_s)
        if self.connection is None:
            return None
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self._missing += size
        self.connection.send([bytes(size)])
        await self._until(lambda: self._missing <= 0, timeout_s)
        return loop.time() - begin if self._missing <= 0 and not self.error else None

    async def _connect(self, limit_s: float) -> None:
        assert self._listener is not None
        try:
            await self._from.connect(self._listener.address, self, timeout_s=limit_s)
        except TimeoutError:
            return
        except OSError:
            self.error = "refused"

    async def closed(self, *, timeout_s: float) -> bool:
        await self._until(lambda: False, timeout_s)
        return bool(self.error)

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        await wait_until(lambda: condition() or bool(self.error), self._changed, limit_s=timeout_s)

    async def close(self) -> None:
        if self.connection is not None:
            self.connection.abort()
        if self._listener is not None:
            await self._listener.close()

    def on_data(self, data: memoryview) -> None:
        self._missing -= len(data)
        self._changed.set()

    def on_closed(self, error: Exception | None) -> None:
        super().on_closed(error)
        self.error = self.error or ("reset" if error is not None else "closed")
        self._changed.set()


class RpcProbe:
    """A probe of the control plane: asks between two endpoints of its own at the addresses of the two processes."""

    def __init__(self, switchboard: Switchboard, source: str, destination: str) -> None:
        self.error = ""
        self.connected = True
        self._asking = MemoryRpc(source, switchboard)
        self._answering = MemoryRpc(destination, switchboard)

    async def open(self) -> None:
        await self._asking.start()
        await self._answering.start()
        self._answering.serve(OWNER, {Acknowledge: self._answer})

    @staticmethod
    async def _answer(message: Acknowledge) -> Acknowledge:
        return message

    async def bulk(self, size: int, *, timeout_s: float) -> float | None:
        """Return None: messages have no throughput."""

    async def closed(self, *, timeout_s: float) -> bool:
        """Return False: messages have no connection that could end."""
        return False

    async def round_trip(self, *, timeout_s: float) -> float | None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        address = self._answering.address
        try:
            await self._asking.ask(self._answering.name, address, OWNER, Acknowledge(), timeout_s=timeout_s)
        except NoAnswer:
            return None
        return loop.time() - begin

    async def close(self) -> None:
        await self._asking.close()
        await self._answering.close()
