"""A network in virtual time: no sockets, only timers of the loop, and all randomness from one seeded Random.

Each directed link has latency, jitter, bandwidth, and the faults partition, stall and reset. It never reorders bytes.
Bytes count as sent (`on_sent`) when they enter the window, as with a kernel's socket buffers.

Each end calls its handler in the context of the process that connected or listened, so that the virtual loop can pause and
kill processes. In-flight data belongs to the kernel and arrives anyway.

    fabric = SimulatedFabric(random.Random(7))
    network = fabric.network("tm-0")        # a ports.network.Network; its address is ("tm-0", port)
    fabric.shape("tm-0", "tm-1", LinkProfile(latency_s=0.05))
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections.abc import Callable, Iterable
from random import Random

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.links import Flow, any_matches
from testbed_runtime.core.faults.retransmission import connects_at
from testbed_runtime.ports.network import Address, ConnectionHandler, format_address
from testbed_runtime.timeouts import timeout
from testbed_runtime.transport.links import Link, LinkProfile
from testbed_runtime.transport.simulatedconnection import SimulatedConnection, reset_error

FIRST_PORT = 20_000


class SimulatedListener:
    def __init__(
        self,
        fabric: SimulatedFabric,
        make_handler: Callable[[], ConnectionHandler],
        address: Address,
        owner: str,
    ) -> None:
        self._fabric = fabric
        self.owner = owner
        self.make_handler = make_handler
        self.context = contextvars.copy_context()
        """The context of the listening process, which accepts connections."""
        self.address = address

    async def close(self) -> None:
        self._fabric.forget(self.address)


class SimulatedFabric:
    """All processes, links and faults of one simulated testbed."""

    def __init__(self, random: Random, default: LinkProfile | None = None) -> None:
        self.random = random
        self._default = default or LinkProfile()
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[Address, SimulatedListener] = {}
        self._connections: dict[SimulatedConnection, None] = {}
        self._waiting: dict[asyncio.Future[None], tuple[str, str]] = {}
        self._next_port = FIRST_PORT
        self.send_cost: Callable[[str, str, object], float] | None = None
        """Returns how many seconds a frame keeps the sending thread busy, given sender, receiver and frame. None: sending takes no time."""
        self.kernel = contextvars.copy_context()
        """The context for in-flight data, which belongs to no process."""

    def network(self, name: str, *, owner: str | None = None) -> SimulatedNetwork:
        """Return the network as seen by the process `name`. A probe shares the name but has another `owner`, so that it
        survives the process."""
        return SimulatedNetwork(self, name, name if owner is None else owner)

    def link(self, source: str, destination: str) -> Link:
        """Return the state of one direction between two logical names."""
        return self._links.setdefault((source, destination), Link(self._default))

    def shape(self, source: str, destination: str, profile: LinkProfile | None) -> None:
        """Set latency, jitter and bandwidth of one direction from now on. None restores the default."""
        link = self.link(source, destination)
        limited = link.profile.bandwidth_bytes_per_s
        link.profile = profile or self._default
        if not link.profile.bandwidth_bytes_per_s:
            link.free_at = 0.0
            for connection in self._connections if limited else ():
                if (connection.local, connection.remote) == (source, destination):
                    connection.deliver_delayed()

    def hold(
        self,
        source: str,
        destination: str,
        *,
        lost: bool = False,
        stalled: bool = False,
        refused: bool = False,
        gone: bool = False,
    ) -> None:
        """Set all faults of one direction at once (`shape` stays). Held bytes continue in order when none is left.

        `lost`: nothing passes. Connections stay open, and new ones wait until their timeout or the end of the fault. After the
        fault, TCP sends again what was lost. `stalled`: bytes are held, connections are still accepted. `refused`: open
        connections are reset, new ones are refused. `gone`: the source's ends of connections are reset, and its new connections
        too. The other ends are reset when the fault ends."""
        link = self.link(source, destination)
        if (link.lost, link.stalled, link.refused, link.gone) == (lost, stalled, refused, gone):
            return
        began, ended = gone and not link.gone, link.gone and not gone
        passes = link.lost and not lost
        link.lost, link.stalled, link.refused, link.gone = lost, stalled, refused, gone
        link.held = lost or stalled
        if refused:
            self.reset(source, destination)
        elif began:
            self._fail(c for c in self._connections if (c.local, c.remote) == (source, destination))
        elif ended:
            ends = (destination, source)
            self._fail(c for c in self._connections if c.is_orphan and (c.local, c.remote) == ends)
        self._changed(source, destination, passes=passes)

    def resumes_at(self, flows: Iterable[Flow]) -> float:
        """Return when TCP has sent again everything that open connections have lost on these links; 0 if none has lost anything."""
        lost = [c for c in self._connections if not c.is_closed and any_matches(flows, c.local, c.remote)]
        return max((c.resumes_at for c in lost), default=0.0)

    def reset(self, source: str, destination: str) -> None:
        """Reset the open connections between both processes, once."""
        self._fail(c for c in self._connections if {c.local, c.remote} == {source, destination})

    def _fail(self, connections: Iterable[SimulatedConnection]) -> None:
        for connection in list(connections):
            connection.fail(reset_error())

    def names(self) -> list[str]:
        """Return all processes that ever had a link, in order."""
        return sorted({name for link in self._links for name in link})

    def kill(self, name: str) -> None:
        """Remove a killed process: its listeners disappear, and its peers see the end of their connections as soon as the links pass it."""
        for listener in [found for found in self._listeners.values() if found.owner == name]:
            del self._listeners[listener.address]
        for connection in [c for c in self._connections if c.owner == name]:
            connection.die()

    def _changed(self, source: str, destination: str, *, passes: bool) -> None:
        for connection in list(self._connections):
            if (connection.local, connection.remote) == (source, destination):
                if passes:
                    connection.send_again()
                connection.link_changed()
        for waiting, ends in list(self._waiting.items()):
            if not waiting.done() and self._passes(*ends):
                waiting.set_result(None)

    def _passes(self, first: str, second: str) -> bool:
        return not (self.link(first, second).lost or self.link(second, first).lost)

    async def handshake(self, source: str, destination: str) -> None:
        """Simulate SYN and SYN-ACK. Raises ConnectionRefusedError or ConnectionResetError."""
        if self.link(source, destination).gone:
            raise reset_error()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._passes(source, destination):
            waiting = loop.create_future()
            self._waiting[waiting] = (source, destination)
            try:
                await waiting
            finally:
                self._waiting.pop(waiting, None)
            await asyncio.sleep(connects_at(began, loop.time()) - loop.time())
        there, back = self.link(source, destination), self.link(destination, source)
        await asyncio.sleep(there.profile.latency_s + back.profile.latency_s)
        if there.refused or back.refused:
            raise reset_error()

    def listener_at(self, address: Address) -> SimulatedListener | None:
        return self._listeners.get(address)

    def register(self, listener: SimulatedListener) -> None:
        """Register a listener. Raises UserError if the port is in use."""
        host, port = listener.address
        if listener.address in self._listeners:
            raise UserError(
                "port",
                f"{port} on {host} is in use by another process",
                "choose another port, or 0 for a free one",
            )
        self._listeners[listener.address] = listener

    def forget(self, address: Address) -> None:
        self._listeners.pop(address, None)

    def opened(self, connection: SimulatedConnection) -> None:
        self._connections[connection] = None

    def closed(self, connection: SimulatedConnection) -> None:
        self._connections.pop(connection, None)

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port


class SimulatedNetwork:
    """The `ports.network.Network` of one simulated process, which listens at (its name, port)."""

    def __init__(self, fabric: SimulatedFabric, name: str, owner: str) -> None:
        self._fabric = fabric
        self.name = name
        self.owner = owner

    async def listen(
        self, make_handler: Callable[[], ConnectionHandler], address: Address
    ) -> SimulatedListener:
        port = address[1] or self._fabric.free_port()
        listener = SimulatedListener(self._fabric, make_handler, (self.name, port), self.owner)
        self._fabric.register(listener)
        return listener

    async def connect(
        self, address: Address, handler: ConnectionHandler, *, timeout_s: float | None
    ) -> SimulatedConnection:
        async with timeout(timeout_s):
            await self._fabric.handshake(self.name, address[0])
        listener = self._fabric.listener_at(address)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        ours = SimulatedConnection(
            self._fabric,
            lambda: handler,
            local=self.name,
            remote=address[0],
            peer_name=format_address(address),
            owner=self.owner,
            context=contextvars.copy_context(),
        )
        theirs = SimulatedConnection(
            self._fabric,
            listener.make_handler,
            local=address[0],
            remote=self.name,
            peer_name=format_address((self.name, self._fabric.free_port())),
            owner=listener.owner,
            context=listener.context,
        )
        ours.pair(theirs)
        theirs.pair(ours)
        theirs.start_soon()
        ours.start()
        return ours
