"""Bytes between TaskManagers: connections, listeners, address resolution. Callbacks, never a task per frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

BytesLike: TypeAlias = "bytes | bytearray | memoryview"
Address: TypeAlias = tuple[str, int]

PLANE_DATA = "data"
PLANE_RPC = "rpc"


class ConnectionHandler(Protocol):
    """What a connection tells its owner. Called on the loop; must not block or raise."""

    def on_connected(self, connection: Connection) -> None: ...

    def on_data(self, data: memoryview) -> None:
        """Bytes in order. The view is valid only during the call: copy or consume."""

    def on_writable(self) -> None:
        """`writable` became True again."""

    def on_closed(self, error: Exception | None) -> None:
        """Exactly once, after which nothing is called. None: closed by us or in an orderly way by the peer."""


class Connection(Protocol):
    """One ordered byte stream with buffer ownership (DESIGN §3)."""

    @property
    def peer(self) -> str:
        """`host:port` of the other end, as Flink prints it."""

    @property
    def writable(self) -> bool:
        """False while the write queue is above its high watermark (64 KiB, Netty's default)."""

    def send(self, parts: Sequence[BytesLike], on_sent: Callable[[], None] | None = None) -> None:
        """Queue the parts as one unit. They stay the caller's until `on_sent`; on a closed connection `on_sent` is
        called at once, so that segments are always given back."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Orderly: what is queued is sent first."""

    def abort(self, *, reset: bool = False) -> None:
        """At once; with `reset` the peer sees a TCP reset."""


class Listener(Protocol):
    @property
    def address(self) -> Address: ...

    async def close(self) -> None: ...


class Network(Protocol):
    async def listen(self, make_handler: Callable[[], ConnectionHandler], address: Address) -> Listener:
        """Port 0 picks a free one. Raises UserError when the port is in use."""

    async def connect(self, address: Address, handler: ConnectionHandler, *, timeout_s: float) -> Connection:
        """Raises OSError or TimeoutError. `on_connected` is called before this returns."""


class Resolver(Protocol):
    """Logical peer → address. With a proxy in the path this gives the proxy's route for (us, peer, plane)."""

    async def resolve(self, peer: str, plane: str, advertised: Address) -> Address: ...
