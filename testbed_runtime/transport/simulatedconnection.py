"""One end of a connection in virtual time. `simulated.py` has the network around it."""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from testbed_runtime.core.exchange.client import RESET
from testbed_runtime.core.exchange.frames import BytesLike
from testbed_runtime.core.faults.retransmission import resumes_at
from testbed_runtime.ports.network import ConnectionHandler
from testbed_runtime.transport.tcp import HIGH_WATERMARK_BYTES, LOW_WATERMARK_BYTES

if TYPE_CHECKING:
    from testbed_runtime.transport.simulated import SimulatedFabric


WINDOW_BYTES = 256 * 1024
"""Maximum bytes in flight or unread per direction: the socket buffers of both ends."""

_Frame: TypeAlias = tuple[object, int]
"""A frame on its way, with its size on the wire."""
_Payload: TypeAlias = "bytes | _Frame | Exception | None"


class BusyThread:
    """The sending thread in a simulation in which sending takes processor time. Calls `on_free` in `context` when all work is done."""

    __slots__ = ("_context", "_loop", "_on_free", "_timer", "_until")

    def __init__(self, on_free: Callable[[], None], context: contextvars.Context) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_free = on_free
        self._context = context
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        return self._loop.time() < self._until

    def work(self, seconds: float) -> None:
        self._until = max(self._loop.time(), self._until) + seconds
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        self._timer = self._loop.call_at(self._until, self._rest, context=self._context)

    def _rest(self) -> None:
        self._timer = None
        if self.is_busy:
            self._arm()
        else:
            self._on_free()


class SimulatedConnection:
    """One end of a connection. `_link` is its outgoing direction; received data waits in `_inbox` until it is read."""

    __slots__ = (
        "_arrival", "_closing", "_context", "_dead", "_eof", "_eof_error", "_fabric", "_handler", "_inbox",
        "_last_arrival", "_link", "_loop", "_make_handler", "_moving", "_other", "_out", "_queued",
        "_reading", "_reading_soon", "_thread", "_under_way", "_window", "is_closed", "local", "owner",
        "peer", "remote", "resumes_at", "writable",
    )  # fmt: skip

    def __init__(
        self,
        fabric: SimulatedFabric,
        make_handler: Callable[[], ConnectionHandler],
        *,
        local: str,
        remote: str,
        peer_name: str,
        owner: str,
        context: contextvars.Context,
    ) -> None:
        """`context` belongs to `owner`, the process at this end. `start` calls `make_handler` in it."""
        self._fabric = fabric
        self._loop = asyncio.get_running_loop()
        self._make_handler = make_handler
        self._handler: ConnectionHandler | None = None
        self._context = context
        self.owner = owner
        self.local = local
        self.remote = remote
        self.peer = peer_name
        self._link = fabric.link(local, remote)
        self._other: SimulatedConnection | None = None
        self._out: deque[tuple[list[memoryview] | _Frame, int, Callable[[], None] | None]] = deque()
        self._queued = 0
        self.writable = True
        self._thread = BusyThread(self._move, context)
        self._moving: asyncio.Handle | None = None
        self._under_way: deque[tuple[float, list[_Payload]]] = deque()  # each entry arrives at one instant
        self._arrival: asyncio.TimerHandle | None = None
        self._last_arrival = 0.0
        self.resumes_at = 0.0
        """When TCP retransmits what the outgoing link has lost."""
        self._window = 0
        self._inbox: deque[bytes | _Frame] = deque()
        self._reading = True
        self._reading_soon: asyncio.Handle | None = None
        self._eof = False
        self._eof_error: Exception | None = None
        self._closing = False
        self.is_closed = False
        self._dead = False
        fabric.opened(self)

    @property
    def frames(self) -> SimulatedConnection:
        return self

    @property
    def is_orphan(self) -> bool:  # this end is open and the other one is not
        return not self.is_closed and self._other is not None and self._other.is_closed

    def pair(self, other: SimulatedConnection) -> None:
        """Set the other end. Must be called first."""
        self._other = other

    def start(self) -> None:
        """Create the handler, in the process of this end. Data received earlier waits for it."""
        if self.is_closed:
            return
        self._handler = self._make_handler()
        self._handler.on_connected(self)
        self._read_soon()

    def start_soon(self) -> None:
        """Schedule `start`, like a process that accepts a connection when it next runs."""
        self._loop.call_soon(self.start, context=self._context)

    def send(self, parts: Sequence[BytesLike], on_sent: Callable[[], None] | None = None) -> None:
        if self._closing or self.is_closed:
            if on_sent is not None and not self._dead:
                on_sent()
            return
        views = [memoryview(part).cast("B") for part in parts]
        self._queue(views, sum(map(len, views)), on_sent)

    def send_frame(self, frame: object, size: int, on_sent: Callable[[], None] | None = None) -> None:
        """Send a frame without encoding it. It takes `size` bytes of the link's bandwidth and window. A frame that fits into
        the window leaves at once, because an all-to-all job sends millions of frames."""
        if self._closing or self.is_closed:
            if on_sent is not None and not self._dead:
                on_sent()
        elif (
            self._out or self._eof_error is not None or (self._window and self._window + size > WINDOW_BYTES)
        ):
            self._queue((frame, size), size, on_sent)
        else:
            self._depart((frame, size), size)
            if on_sent is not None:
                on_sent()

    @property
    def room(self) -> int:
        """Number of bytes that leave at once. 0 while something waits, and if sending keeps the thread busy: after each frame, then,
        it may have to wait."""
        if self._closing or self._out or self._eof_error is not None or self._fabric.send_cost is not None:
            return 0
        return WINDOW_BYTES - self._window

    def send_frames(self, frames: list[_Frame], size: int) -> None:
        """Send frames that all fit into `room`. Takes the list over."""
        link = self._link
        profile = link.profile
        if profile.bandwidth_bytes_per_s or profile.jitter_s or link.free_at:
            for frame in frames:
                self._depart(frame, frame[1])
        else:
            due = self._loop.time() + profile.latency_s
            self._leave(frames, size, due)  # type: ignore[arg-type]  # frames are payloads

    def _queue(self, data: list[memoryview] | _Frame, size: int, on_sent: Callable[[], None] | None) -> None:
        self._out.append((data, size, on_sent))
        self._queued += size
        if self._queued > HIGH_WATERMARK_BYTES:
            self.writable = False
        self._move_soon()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._read_soon()

    def close(self) -> None:
        if self._closing or self.is_closed:
            return
        self._closing, self.writable = True, False
        self._reading = False
        self._inbox.clear()
        self._move_soon()

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection: data in the kernel is still delivered, unless `reset` is set."""
        if self.is_closed:
            return
        if reset:
            self._under_way.clear()
        self._depart(reset_error() if reset else None, 0)
        self._end(None)

    def fail(self, error: Exception) -> None:
        """End the connection at this end now. Its process is notified when it runs."""
        self._inbox.clear()
        self._under_way.clear()
        self._window = 0
        self._eof, self._eof_error = True, error
        self._loop.call_soon(self._end, error, context=self._context)

    def die(self) -> None:
        """Handle the death of this end's process: its handler is never called again. After the in-flight data the peer gets the end
        of the stream, or a reset if the process had not read everything, or not accepted the connection."""
        if self._dead:
            return
        self._dead = True
        if not self.is_closed:
            unread = self._inbox or self._handler is None
            self._depart(reset_error() if unread else None, 0)
        self.is_closed = self._closing = True
        self.writable = False
        self._reading = False
        self._inbox.clear()
        self._out.clear()
        if not self._under_way:
            self._fabric.closed(self)

    def _move_soon(self) -> None:
        if self._moving is None and not self.is_closed:
            self._moving = self._loop.call_soon(self._move, context=self._context)

    def _move(self) -> None:
        """Send what fits into the window, but at least one unit if the window is empty."""
        self._moving = None
        if self._eof_error is not None:
            self._end(self._eof_error)  # like a write to a connection that was reset
        if self.is_closed:
            return
        done: list[Callable[[], None]] = []
        while self._out:
            parts, size, on_sent = self._out[0]
            if self._window and self._window + size > WINDOW_BYTES:
                break
            self._out.popleft()
            self._queued -= size
            self._depart(parts if isinstance(parts, tuple) else b"".join(parts), size)
            if on_sent is not None:
                done.append(on_sent)
        for on_sent in done:
            on_sent()
        if not self.is_closed:
            self._after_move()

    def _after_move(self) -> None:
        if self._closing and not self._out:
            self._depart(None, 0)
            self._end(None)
        elif (
            not (self.writable or self._closing)
            and self._queued <= LOW_WATERMARK_BYTES
            and not self._thread.is_busy
        ):
            self.writable = True
            if self._handler is not None:
                self._handler.on_writable()

    def _depart(self, data: _Payload, size: int) -> None:
        """Send bytes, or the end of the stream (None or an error). They arrive in order."""
        link = self._link
        profile = link.profile
        due = self._loop.time() + profile.latency_s
        if profile.bandwidth_bytes_per_s or profile.jitter_s or link.free_at:
            due = link.due(self._loop.time(), size, self._fabric.random)
        self._leave([data], size, due)
        cost = self._fabric.send_cost
        if cost and type(data) is tuple and (seconds := cost(self.local, self.remote, data[0])):
            self.writable = False
            self._thread.work(seconds)

    def _leave(self, data: list[_Payload], size: int, due: float) -> None:
        """Put what leaves together on its way. Nothing overtakes what left before."""
        under_way = self._under_way
        if due > self._last_arrival or not under_way:
            self._last_arrival = max(due, self._last_arrival)
            under_way.append((self._last_arrival, data))
        else:
            under_way[-1][1].extend(data)
        self._window += size
        if self._arrival is None:
            self._arm()

    def _arm(self) -> None:
        if self._arrival is None and self._under_way and not self._link.held:
            due = max(self._under_way[0][0], self.resumes_at)
            self._arrival = self._loop.call_at(due, self._arrive, context=self._fabric.kernel)

    def deliver_delayed(self) -> None:
        """Deliver the bytes that only the bandwidth limit of the outgoing link had delayed. The limit has ended."""
        latest = self._loop.time() + self._link.profile.latency_s
        self._under_way = deque((min(due, latest), parts) for due, parts in self._under_way)
        self._last_arrival = min(self._last_arrival, latest)
        self.link_changed()

    def send_again(self) -> None:
        """Let bytes that were lost on the outgoing link wait until TCP sends them again. The link passes bytes from now on."""
        if self._under_way:
            lost = self._under_way[0][0] - self._link.profile.latency_s
            self.resumes_at = resumes_at(lost, self._loop.time())

    def link_changed(self) -> None:
        """React to a fault that started or ended on the outgoing link: held bytes continue in order."""
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        self._arm()

    def _arrive(self) -> None:
        self._arrival = None
        now = self._loop.time()
        other, under_way, link = self._other, self._under_way, self._link
        arrived: list[_Payload] = []
        while under_way and under_way[0][0] <= now and not link.held:
            data = under_way.popleft()[1]
            arrived = arrived + data if arrived else data
        if other is not None and arrived:
            other.receive(arrived)
        if under_way:
            self._arm()
        elif self.is_closed:
            self._fabric.closed(self)

    def receive(self, arrived: list[_Payload]) -> None:
        """Receive what arrives at one instant at this end: bytes, frames, or the end of the stream (None or an error)."""
        last = arrived[-1]
        if type(last) is not tuple and (last is None or isinstance(last, Exception)):
            self._eof, self._eof_error = True, last
            arrived.pop()
        data: list[bytes | _Frame] = arrived  # type: ignore[assignment]  # nothing else follows, nor precedes the end
        if not (self._closing or self.is_closed):
            self._inbox += data
        elif self._other is not None:
            self._other.acknowledged(sum([part[1] if type(part) is tuple else len(part) for part in data]))
            if not self._eof:
                return
        self._read_soon()

    def _read_soon(self) -> None:
        if self._reading_soon is None and self._handler is not None and not self.is_closed:
            self._reading_soon = self._loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        self._reading_soon = None
        handler = self._handler
        assert handler is not None
        while self._reading and self._inbox and not self.is_closed:
            if type(self._inbox[0]) is tuple:
                self._read_frames(handler)
                continue
            data = self._inbox.popleft()
            if self._other is not None:
                self._other.acknowledged(len(data))
            handler.on_data(memoryview(data))  # type: ignore[arg-type]  # bytes: see above
        if self._eof and not self._inbox and not self.is_closed:
            self._end(self._eof_error)

    def _read_frames(self, handler: ConnectionHandler) -> None:
        """Hand over all frames at once. The handler may pause reading and leave some."""
        inbox = self._inbox
        frames, sizes = zip(*inbox, strict=True)  # a connection carries frames or bytes
        taken = handler.on_frames(frames)  # type: ignore[attr-defined]  # its peer sent frames
        if self._closing:  # the handler has closed the connection
            return
        if taken == len(frames):
            inbox.clear()
        else:
            for _ in range(taken):
                inbox.popleft()
        if self._other is not None:
            self._other.acknowledged(sum(sizes[:taken]))

    def acknowledged(self, size: int) -> None:
        """Free window space, because the other end has read."""
        self._window = self._window - size if size < self._window else 0
        if self._out:
            self._move_soon()

    def _end(self, error: Exception | None) -> None:
        if self.is_closed:
            return
        self.is_closed = self._closing = True
        self.writable = False
        self._reading = False
        self._inbox.clear()
        if self._other is not None and self._other.is_closed:
            self._under_way.clear()
            if self._arrival is not None:
                self._arrival.cancel()
        if not self._under_way:
            self._fabric.closed(self)
        units, self._out = self._out, deque()
        self._queued = 0
        for _, _, on_sent in units:
            if on_sent is not None:
                on_sent()
        if self._handler is not None:
            self._handler.on_closed(error)


def reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, RESET)
