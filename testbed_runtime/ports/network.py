"""Ports for bytes between TaskManagers: connections, listeners, address resolution. Callbacks, not a task per frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from testbed_runtime.core.exchange.frames import BytesLike

Address: TypeAlias = tuple[str, int]

PLANE_DATA = "data"
PLANE_RPC = "rpc"


def format_address(address: Address) -> str:
    """Format as `host:port`, with brackets around an IPv6 host."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def http_url(address: Address, path: str) -> str:
    """Return the URL of a path of Headgate's HTTP services."""
    return f"http://{format_address(address)}{path}"


def address_of(reported: Sequence[Any]) -> Address:
    """Return the address in a process's ready line, which JSON carries as a list."""
    return str(reported[0]), int(reported[1])


class ConnectionHandler(Protocol):
    """Callbacks of a connection to its owner. They run on the loop and must not block or raise."""

    def on_connected(self, connection: Connection) -> None: ...

    def on_data(self, data: memoryview) -> None:
        """Receive bytes in order. The view is valid only during the call."""

    def on_writable(self) -> None:
        """Called when `writable` is True again."""

    def on_closed(self, error: Exception | None) -> None:
        """Called exactly once, as the last callback. `error` is None after a close by either side."""


class Connection(Protocol):
    """An ordered byte stream with buffer ownership."""

    @property
    def peer(self) -> str:
        """The `host:port` of the other end, as Flink prints it."""

    @property
    def writable(self) -> bool:
        """Whether to send more: False while the write queue is above its high watermark (64 KiB, as in Netty)."""

    @property
    def frames(self) -> FrameConnection | None:
        """The same connection if it carries whole frames, None for a byte stream."""

    def send(self, parts: Sequence[BytesLike], on_sent: Callable[[], None] | None = None) -> None:
        """Queue the parts as one unit. The caller must not change them before `on_sent`. On a closed connection `on_sent`
        is called at once, so that segments are always returned."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Close gracefully, after sending the queued data."""

    def abort(self, *, reset: bool = False) -> None:
        """Close immediately. With `reset` the peer sees a TCP reset."""


class SocketState(Struct, frozen=True):
    """A TCP connection as its kernel sees it. Sizes are bytes."""

    ports: tuple[int, int]
    """The ports of this end and of the other end."""
    reading: bool
    """Whether the owner of the connection reads."""
    receive_queue: int
    receive_window: int
    """Free space that was advertised to the peer."""
    writable: bool
    send_queue: int
    """Queued bytes that the peer has not acknowledged, sent or not."""
    peer_window: int
    probes: int
    """Zero-window probes since the peer's window closed."""
    limited_s: float
    """Total seconds in which the peer's window limited sending."""


@runtime_checkable
class SocketConnection(Protocol):
    """A connection on a socket of this machine."""

    def socket_state(self) -> SocketState | None:
        """Return the state of the socket now; None where the kernel does not have it, or after the end."""


@runtime_checkable
class ReceivingConnection(Protocol):
    """A connection whose handler may keep references to received bytes after `on_data`, or return the last bytes to the connection."""

    def lend(self, settle: Callable[[], None]) -> None:
        """Keep the bytes of the current `on_data` valid after the call. `settle` is called before their memory is used again: it must
        copy the bytes that are still needed."""

    def unread(self, data: memoryview) -> bool:
        """Deliver these last bytes of the current `on_data` again, in front of the next bytes. They are copied. If there are too many,
        do nothing and return False."""


class FrameConnection(Protocol):
    """A connection that carries whole frames, as in virtual time: nothing is encoded. Its handler has `on_frames`."""

    def send_frame(self, frame: object, size: int, on_sent: Callable[[], None] | None = None) -> None:
        """Queue a frame that takes `size` bytes on the wire. See `Connection.send`."""

    @property
    def room(self) -> int:
        """Number of bytes that leave at once. 0 if frames have to be sent one by one."""

    def send_frames(self, frames: list[tuple[object, int]], size: int) -> None:
        """Send frames that all fit into `room`, each with its size. `size` is their total. Takes the list over."""


class Listener(Protocol):
    @property
    def address(self) -> Address: ...

    async def close(self) -> None: ...


class Network(Protocol):
    async def listen(self, make_handler: Callable[[], ConnectionHandler], address: Address) -> Listener:
        """Listen; port 0 selects a free port. Raises UserError if the port is in use."""

    async def connect(
        self, address: Address, handler: ConnectionHandler, *, timeout_s: float | None
    ) -> Connection:
        """Connect. `on_connected` is called before this returns. Raises OSError or TimeoutError."""


class Resolver(Protocol):
    """Resolves a logical peer to an address: with a proxy in the path, to the proxy's route for this pair and plane."""

    async def resolve(self, peer: str, plane: str, advertised: Address) -> Address: ...
