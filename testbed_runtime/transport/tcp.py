"""TCP with buffer ownership: sends with sendmsg directly from the caller's memory, and receives into one shared buffer.

`send` hands over at once, so give it many frames at a time.
`on_sent` means that the kernel has a copy. Works on asyncio and on uvloop. With TLS, `transport.tls` is between the two."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.exchange.frames import BytesLike
from testbed_runtime.ports.network import Address, ConnectionHandler, SocketState, format_address
from testbed_runtime.timeouts import cancel_all, timeout
from testbed_runtime.transport import socketstate
from testbed_runtime.transport.names import numeric
from testbed_runtime.transport.tls import DataTls, TlsSocket

HIGH_WATERMARK_BYTES = 64 * 1024
LOW_WATERMARK_BYTES = 32 * 1024
"""Netty's defaults: above the high watermark of unsent bytes a connection is not writable until it falls below the low
one."""
RECEIVE_BUFFER_BYTES = 384 * 1024
"""Size of the receive buffer, one per network. It fits the ten buffers of 32 KiB for which a channel has credit, so that none of them
is split."""
REREAD_BYTES = 64 * 1024
"""Maximum bytes that a handler may give back: a buffer of 32 KiB and its header. The receive buffer has extra room for them."""
READS_PER_WAKE = 4
"""Limits the work of one loop iteration to 1 MiB per connection."""
MAX_PARTS_PER_SEND = 64
"""Maximum views in one sendmsg: far below IOV_MAX (1024), enough for 64 KiB of 1 KiB frames."""
BACKLOG = 128
"""Maximum connections waiting to be accepted."""
ACCEPT_PAUSE_S = 0.1
"""Pause after accept failed because file descriptors ran out."""


def reset_on_close(sock: socket.socket | TlsSocket) -> None:
    """Make the next close of a socket send a TCP reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class ReceiveMemory:
    """The memory into which all connections of a loop receive, because `on_data` is called synchronously and never nested."""

    __slots__ = ("_settle", "_view")

    def __init__(self) -> None:
        self._view = memoryview(bytearray(RECEIVE_BUFFER_BYTES + REREAD_BYTES))
        self._settle: list[Callable[[], None]] = []

    def lend(self, settle: Callable[[], None]) -> None:
        """Call `settle` before the memory is used again."""
        self._settle.append(settle)

    def use(self) -> memoryview:
        """Return the memory, after the borrowers have copied the bytes that they still need."""
        while self._settle:
            self._settle.pop()()
        return self._view


class TcpConnection:
    """A `ports.network.Connection` on a connected, non-blocking socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket | TlsSocket,
        handler: ConnectionHandler,
        receive: ReceiveMemory,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._handler = handler
        self._receive = receive
        self._unread = b""
        """Bytes that the handler gave back."""
        self._parts: deque[BytesLike] = deque()
        self._queued = 0
        self._sent = 0
        self._units: deque[tuple[int, Callable[[], None]]] = deque()
        """One entry for each unit with an `on_sent`: the total of sent bytes at which the unit is complete, and its `on_sent`."""
        self._flushing = False
        self._writable = True
        self._reading = False
        self._writing = False
        self._closing = False
        self._closed = False
        self._failure: OSError | None = None
        """Why sending failed. The connection ends with it in the next loop iteration."""
        try:
            self._peer = format_address(sock.getpeername())
        except OSError:
            self._peer = "unknown"

    def start(self) -> None:
        """Notify the handler, then start reading."""
        self._handler.on_connected(self)
        self.resume_reading()
        if isinstance(self._sock, TlsSocket) and self._sock.received_early:
            self._loop.call_soon(self._read_early)

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def writable(self) -> bool:
        return self._writable and not self._closing

    @property
    def frames(self) -> None:
        return None

    def socket_state(self) -> SocketState | None:
        if self._closed:
            return None
        sock = self._sock.raw if isinstance(self._sock, TlsSocket) else self._sock
        return socketstate.read(sock, reading=self._reading, writable=self._writable)

    def send(self, parts: Sequence[BytesLike], on_sent: Callable[[], None] | None = None) -> None:
        if self._closing or self._closed:
            if on_sent is not None:
                on_sent()
            return
        if self._parts or self._flushing or self._units or len(parts) > MAX_PARTS_PER_SEND:
            self._enqueue(parts, on_sent)
            if self._writing or self._flushing:
                self._writable = self._writable and self._queued <= HIGH_WATERMARK_BYTES
            else:
                self._flush_now()
            return
        total = sum(map(len, parts))
        try:
            sent = self._sock.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._enqueue(parts, on_sent)
            self._fail_soon(error)
            return
        if sent == total:  # the usual case
            self._sent += total
            if on_sent is not None:
                on_sent()
            return
        self._enqueue(parts, on_sent)
        if sent:
            self._left(sent)
        self._watch_for_room()

    def _enqueue(self, parts: Sequence[BytesLike], on_sent: Callable[[], None] | None) -> None:
        queued = self._queued
        for part in parts:
            size = len(part)
            if size:
                self._parts.append(part)
            queued += size
        self._queued = queued
        if on_sent is not None:
            self._units.append((self._sent + queued, on_sent))

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if not self._reading and not self._closed:
            self._reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def lend(self, settle: Callable[[], None]) -> None:
        self._receive.lend(settle)

    def unread(self, data: memoryview) -> bool:
        if len(data) > REREAD_BYTES:
            return False
        self._unread = bytes(data)
        return True

    def close(self) -> None:
        if self._closing or self._closed:
            return
        self._closing = True
        self.pause_reading()
        if not self._parts:
            # never inside the caller's frame, like any other end that is reported to the owner
            self._loop.call_soon(self._end, None)

    def abort(self, *, reset: bool = False) -> None:
        if self._closed:
            return
        if reset:
            with contextlib.suppress(OSError):
                reset_on_close(self._sock)
        self._end(None, notify=not reset)

    def _flush_now(self) -> None:
        """Flush within `send`. Errors are reported later, never inside the caller's frame."""
        error = self._transmit()
        if error is not None:
            self._fail_soon(error)
        elif not self._closed:
            self._watch_for_room()

    def _fail_soon(self, error: OSError) -> None:
        self._writable = False
        self._failure = error  # keep the cause: from now on, a read only finds the end of the stream
        self._loop.call_soon(self._end, error)

    def _flush(self) -> None:
        error = self._transmit()
        if error is not None:
            self._end(error)
        elif not self._closed:
            self._after_flush()

    def _transmit(self) -> OSError | None:
        """Send queued parts until the kernel accepts no more, then call `on_sent` for the sent ones."""
        self._flushing = True
        try:
            while self._parts:
                batch = list(islice(self._parts, MAX_PARTS_PER_SEND))
                if self._left(self._sock.sendmsg(batch)) < len(batch):
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as failed:
            return failed
        finally:
            while self._units and self._units[0][0] <= self._sent:
                self._units.popleft()[1]()
            self._flushing = False
        return None

    def _left(self, sent: int) -> int:
        """Account for sent bytes. Return how many parts were sent completely."""
        self._sent += sent
        self._queued -= sent
        parts = self._parts
        if not self._queued:
            gone = len(parts)
            parts.clear()
            return gone
        gone = 0
        while sent >= len(parts[0]):
            sent -= len(parts.popleft())
            gone += 1
        if sent:
            parts[0] = memoryview(parts[0])[sent:]
        return gone

    def _watch_for_room(self) -> None:
        if self._parts:
            self._writable = self._writable and self._queued <= HIGH_WATERMARK_BYTES
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._flush)
        elif self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _after_flush(self) -> None:
        self._watch_for_room()
        if self._closing and not self._parts:
            self._end(None)
        elif not self._writable and self._queued <= LOW_WATERMARK_BYTES:
            self._writable = True
            self._handler.on_writable()

    def _read_early(self) -> None:
        if self._reading:
            self._on_readable()

    def _on_readable(self) -> None:
        for _ in range(READS_PER_WAKE):
            receive, kept = self._receive.use(), len(self._unread)
            if kept:
                receive[:kept] = self._unread
            try:
                count = self._sock.recv_into(receive[kept:] if kept else receive)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._end(error)
                return
            if count == 0:
                self._end(None)
                return
            self._unread = b""
            count += kept
            self._handler.on_data(receive[:count])
            if self._closed or not self._reading or count < len(receive):
                return

    def _end(self, error: Exception | None, *, notify: bool = True) -> None:
        """End the connection once: return all buffers and notify the owner. `notify`: with TLS, notify the peer too."""
        if self._closed:
            return
        error = error or self._failure
        self._closed = self._closing = True
        self._reading = False
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if error is None:
            self._drain()
            if notify and isinstance(self._sock, TlsSocket):
                self._sock.notify_close()
        self._sock.close()
        units, self._units = self._units, deque()
        self._parts.clear()
        self._queued = 0
        for _, on_sent in units:
            on_sent()
        self._handler.on_closed(error)

    def _drain(self) -> None:
        """Read the remaining input, because closing a socket with unread bytes sends a reset that may overtake the last
        sent bytes."""
        with contextlib.suppress(OSError):
            for _ in range(READS_PER_WAKE):
                if not self._sock.recv_into(self._receive.use()):
                    break


class TcpListener:
    """Accepts connections until it is closed. Open connections remain with their handlers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        make_handler: Callable[[], ConnectionHandler],
        receive: ReceiveMemory,
        tls: DataTls | None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._make_handler = make_handler
        self._receive = receive
        self._tls = tls
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        host, port = sock.getsockname()[:2]
        self._address: Address = (host, port)
        loop.add_reader(sock.fileno(), self._accept)

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        if self._sock.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        await cancel_all(*self._handshakes)

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._loop.remove_reader(self._sock.fileno())
                    self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
                return
            _prepare(sock)
            if self._tls is None:
                self._start(sock)
            else:
                handshake = self._loop.create_task(self._shake_hands(sock, self._tls), name="tls handshake")
                self._handshakes.add(handshake)
                handshake.add_done_callback(partial(self._handshake_ended, sock))

    def _handshake_ended(self, sock: socket.socket, handshake: asyncio.Task[None]) -> None:
        """Close the socket unless a connection has it, also if the task was cancelled before it began."""
        self._handshakes.discard(handshake)
        if handshake.cancelled() or handshake.exception() is not None:
            sock.close()

    async def _shake_hands(self, sock: socket.socket, tls: DataTls) -> None:
        """Close a connection whose peer does not have the testbed's certificate. The peer gets an alert with the reason."""
        try:
            made = await tls.wrap(sock, server_side=True)
        except (OSError, TimeoutError):
            sock.close()
        else:
            self._start(made)

    def _start(self, sock: socket.socket | TlsSocket) -> None:
        TcpConnection(self._loop, sock, self._make_handler(), self._receive).start()

    def _accept_again(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._accept)


class TcpNetwork:
    """A `ports.network.Network` over TCP. Create it inside the loop that it serves."""

    def __init__(self, socket_buffer_bytes: int = 0, *, tls: DataTls | None = None) -> None:
        """`socket_buffer_bytes`: size of the send and receive buffers of each socket; 0 or less: the system's, which grow. `tls`: all
        connections are encrypted, and peers without the testbed's certificate are refused."""
        self._loop = asyncio.get_running_loop()
        self._socket_buffer_bytes = socket_buffer_bytes
        self._tls = tls
        self._receive = ReceiveMemory()

    async def listen(self, make_handler: Callable[[], ConnectionHandler], address: Address) -> TcpListener:
        host, port = address
        sock = socket.socket(_family(host), socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._limit_buffers(sock)  # accepted sockets inherit it
            sock.bind((host, port))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise _listen_error(error, host, port) from None
        return TcpListener(self._loop, sock, make_handler, self._receive, self._tls)

    async def connect(
        self, address: Address, handler: ConnectionHandler, *, timeout_s: float | None
    ) -> TcpConnection:
        host, port = address
        async with timeout(timeout_s):
            host = await numeric(host, port)
            sock = socket.socket(_family(host), socket.SOCK_STREAM)
            try:
                _prepare(sock)
                self._limit_buffers(sock)
                await self._loop.sock_connect(sock, (host, port))
                _refuse_self_connection(sock)
                made = sock if self._tls is None else await self._tls.wrap(sock, server_side=False)
            except BaseException:
                sock.close()
                raise
        connection = TcpConnection(self._loop, made, handler, self._receive)
        connection.start()
        return connection

    def _limit_buffers(self, sock: socket.socket) -> None:
        if self._socket_buffer_bytes > 0:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, self._socket_buffer_bytes)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _prepare(sock: socket.socket) -> None:
    """Set the socket options of Flink's data connections."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _refuse_self_connection(sock: socket.socket) -> None:
    """Refuse a connection of an ephemeral port to itself: no process listens there."""
    if sock.getsockname()[:2] == sock.getpeername()[:2]:
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def _listen_error(error: OSError, host: str, port: int) -> UserError:
    if error.errno == errno.EADDRINUSE:
        problem = f"{port} on {host} is in use by another process"
        return UserError("port", problem, "choose another port, or 0 for a free one")
    if error.errno == errno.EACCES:
        return UserError("port", f"{port} on {host} needs privileges", "choose a port above 1023")
    return UserError(
        "address", f"cannot listen on {format_address((host, port))}: {os.strerror(error.errno or 0)}"
    )
