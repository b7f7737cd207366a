"""A network inside one event loop with the semantics of TCP, but without sockets and latency.

Each direction has a receive window. What fits is copied at once, as by a kernel (`on_sent`), and delivered in the next
loop iteration. If the peer does not read, the window fills up and the sender is no longer writable.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence

from testbed_runtime.core.errors import UserError
from testbed_runtime.ports.network import Address, BytesLike, ConnectionHandler
from testbed_runtime.transport.tcp import HIGH_WATERMARK_BYTES, LOW_WATERMARK_BYTES, format_address

WINDOW_BYTES = 256 * 1024
"""Maximum unread bytes per direction: about what Linux gives a new connection."""
FIRST_PORT = 40_000
DELIVERIES_PER_TURN = 16
"""Limits the work per connection in one loop iteration."""


class InProcessConnection:
    """One end of a connection. `_peer` is the other; both end together."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handler: ConnectionHandler, peer_name: str) -> None:
        self._loop = loop
        self._handler = handler
        self._peer_name = peer_name
        self._other: InProcessConnection | None = None
        self._out: deque[tuple[list[memoryview], int, Callable[[], None] | None]] = deque()
        self._queued = 0
        self._writable = True
        self._inbox: deque[bytes] = deque()
        self._unread = 0
        self._reading = True
        self._moving: asyncio.Handle | None = None
        self._reading_soon: asyncio.Handle | None = None
        self._closing = False
        self._closed = False
        self._eof = False

    @property
    def peer(self) -> str:
        return self._peer_name

    @property
    def writable(self) -> bool:
        return self._writable and not self._closing

    def send(self, parts: Sequence[BytesLike], on_sent: Callable[[], None] | None = None) -> None:
        if self._closing or self._closed:
            if on_sent is not None:
                on_sent()
            return
        views = [memoryview(part).cast("B") for part in parts]
        size = sum(map(len, views))
        self._out.append((views, size, on_sent))
        self._queued += size
        if self._queued > HIGH_WATERMARK_BYTES:
            self._writable = False
        self._move_soon()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._read_soon()

    def close(self) -> None:
        if self._closing or self._closed:
            return
        self._closing = True
        self._reading = False
        self._inbox.clear()
        self._move_soon()

    def abort(self, *, reset: bool = False) -> None:
        if self._closed:
            return
        other = self._other
        self._end(None)
        if other is not None:
            other.peer_gone(
                ConnectionResetError(errno.ECONNRESET, "Connection reset by peer") if reset else None
            )

    def pair(self, other: InProcessConnection) -> None:
        """Set the other end. Must be called first."""
        self._other = other

    def start(self) -> None:
        self._handler.on_connected(self)

    def peer_gone(self, error: Exception | None) -> None:
        """Handle the end of the peer: at once with an error, otherwise after its data has been read."""
        if self._closed:
            return
        if error is not None:
            self._inbox.clear()
            self._loop.call_soon(self._end, error)
            return
        self._eof = True
        self._read_soon()

    def _move_soon(self) -> None:
        if self._moving is None and not self._closed:
            self._moving = self._loop.call_soon(self._move)

    def _move(self) -> None:
        """Copy what fits into the peer's window, but at least one unit if the window is empty."""
        self._moving = None
        other = self._other
        if self._closed or other is None:
            return
        done: list[Callable[[], None]] = []
        while self._out:
            views, size, on_sent = self._out[0]
            if other.unread and other.unread + size > WINDOW_BYTES:
                break
            self._out.popleft()
            self._queued -= size
            other.receive(b"".join(views))
            if on_sent is not None:
                done.append(on_sent)
        for on_sent in done:
            on_sent()
        if not self._closed:
            self._after_move(other)

    def _after_move(self, other: InProcessConnection) -> None:
        if self._closing and not self._out:
            self._end(None)
            other.peer_gone(None)
        elif not self._writable and self._queued <= LOW_WATERMARK_BYTES:
            self._writable = True
            self._handler.on_writable()

    @property
    def unread(self) -> int:
        """Number of bytes in this end's window."""
        return self._unread

    def receive(self, data: bytes) -> None:
        """Receive bytes into the window."""
        if self._closing or self._closed:
            return
        self._inbox.append(data)
        self._unread += len(data)
        self._read_soon()

    def _read_soon(self) -> None:
        if self._reading_soon is None and not self._closed:
            self._reading_soon = self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._reading_soon = None
        for _ in range(DELIVERIES_PER_TURN):
            if not (self._reading and self._inbox and not self._closed):
                break
            data = self._inbox.popleft()
            self._unread -= len(data)
            self._handler.on_data(memoryview(data))
        if self._closed:
            return
        if self._other is not None:
            self._other.window_opened()
        if self._inbox and self._reading:
            self._read_soon()
        elif self._eof and not self._inbox:
            self._end(None)

    def window_opened(self) -> None:
        if self._out:
            self._move_soon()

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = self._closing = True
        self._reading = False
        self._inbox.clear()
        units, self._out = self._out, deque()
        self._queued = self._unread = 0
        for _, _, on_sent in units:
            if on_sent is not None:
                on_sent()
        self._handler.on_closed(error)


class InProcessListener:
    def __init__(
        self, network: InProcessNetwork, make_handler: Callable[[], ConnectionHandler], address: Address
    ) -> None:
        self._network = network
        self.make_handler = make_handler
        self._address = address

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        self._network.forget(self._address)


class InProcessNetwork:
    """A `ports.network.Network`. Each object is a separate network with its own ports."""

    def __init__(self) -> None:
        self._listeners: dict[Address, InProcessListener] = {}
        self._next_port = FIRST_PORT

    async def listen(
        self, make_handler: Callable[[], ConnectionHandler], address: Address
    ) -> InProcessListener:
        host, port = address
        if not port:
            port = self._free_port()
        if (host, port) in self._listeners:
            raise UserError(
                "port",
                f"{port} on {host} is in use by another process",
                "choose another port, or 0 for a free one",
            )
        listener = InProcessListener(self, make_handler, (host, port))
        self._listeners[(host, port)] = listener
        return listener

    async def connect(
        self, address: Address, handler: ConnectionHandler, *, timeout_s: float
    ) -> InProcessConnection:
        async with asyncio.timeout(timeout_s):
            await asyncio.sleep(0)
        listener = self._listeners.get((address[0], address[1]))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        loop = asyncio.get_running_loop()
        ours = InProcessConnection(loop, handler, format_address(address))
        client_name = format_address((address[0], self._free_port()))
        theirs = InProcessConnection(loop, listener.make_handler(), client_name)
        ours.pair(theirs)
        theirs.pair(ours)
        theirs.start()
        ours.start()
        return ours

    def forget(self, address: Address) -> None:
        self._listeners.pop(address, None)

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port
