"""The code that both ends of a connection share: it pulls frames from a state machine while the connection is writable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.exchange.encoding import encode
from testbed_runtime.core.exchange.frames import BufferResponse, BytesLike, Frame, WireVersion
from testbed_runtime.core.exchange.memory import Buffer, recycle_all
from testbed_runtime.core.exchange.wiresize import FIXED_BYTES, header_bytes, wire_size
from testbed_runtime.core.faults.links import split_link
from testbed_runtime.ports.interception import FrameInterceptor, FrameTap
from testbed_runtime.ports.network import Connection, FrameConnection

FRAMES_PER_PULL = 64
"""Limits the work of one loop iteration for a connection with many small frames."""
BATCH_BYTES = 180 * 1024
"""Buffers are sent in pieces that end once they have this size. It is six buffers of 32 KiB, about half of a channel's credit of ten.
The next piece follows one loop iteration later, when the producer has filled the segments that were recycled. If everything were
sent at once, the last buffer would report a backlog of 0, and the consumer would release its floating buffers."""


class Machine(Protocol):
    """The interface that the state machines of both ends share."""

    closing: bool
    """Whether the connection is to be closed once nothing is left to send."""

    def has_more(self) -> bool:
        """Whether the state machine may have a frame to send."""

    def next_frame(self) -> tuple[Frame, Buffer | None] | None:
        """Return the next frame and its buffer, or None."""


class Pump:
    """The part shared by both ends: sends frames through tap and interceptor while the connection is writable."""

    __slots__ = (
        "_answering", "_asked", "_carrier", "_closed", "_connection", "_interceptor", "_loop", "_pulling",
        "_tap", "_version", "link_in", "link_out", "machine",
    )  # fmt: skip

    machine: Machine

    def __init__(self, version: WireVersion, interceptor: FrameInterceptor, tap: FrameTap | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._version = version
        self._interceptor = interceptor
        self._tap = tap
        self._connection: Connection | None = None
        self._carrier: FrameConnection | None = None
        self._pulling: asyncio.Handle | None = None
        self._answering = False
        """Received frames are being handled; `_answer` pulls the frames that answer them."""
        self._asked = False
        self._closed = False
        self.link_out = ""
        self.link_in = ""

    def on_connected(self, connection: Connection) -> None:
        self._connection = connection
        self._carrier = connection.frames

    def wake(self) -> None:
        """Schedule a pull in the next loop iteration (once for many calls), because there may be something to send."""
        if self._answering:
            self._asked = True
        elif self._pulling is None and not self._closed:
            self._pulling = self._loop.call_soon(self._pull)

    def on_writable(self) -> None:
        self.wake()

    def _answer(self) -> None:
        """Pull now, one loop iteration earlier, because received frames may have produced responses."""
        self._answering = False
        if self._asked or self._pulling is not None:
            self._asked = False
            if self._pulling is not None:
                self._pulling.cancel()
            self._pull()

    def _drained(self) -> None:
        """Called when there is nothing to send."""
        if self.machine.closing and self._connection is not None:
            self._connection.close()

    def _pull(self) -> None:
        self._pulling = None
        connection = self._connection
        if connection is None or self._closed:
            return
        carrier = self._carrier
        if self._interceptor.active:
            self._pull_intercepted(connection)
        elif carrier is None:
            self._pull_together(connection)
        elif connection.writable:
            self._pull_frames(connection, carrier)

    def _pull_intercepted(self, connection: Connection) -> None:
        """Send frames one by one, each through the interceptor."""
        for _ in range(FRAMES_PER_PULL):
            if not connection.writable:
                return
            taken = self.machine.next_frame()
            if taken is None:
                self._drained()
                return
            if self._tap is not None:
                self._tap.seen("sent", self.link_out, taken[0])
            self._dispatch(connection, *taken)
        self.wake()

    def _pull_frames(self, connection: Connection, carrier: FrameConnection) -> None:
        """Send whole frames. Those that fit into the connection's window leave together."""
        tap, following, version = self._tap, self.machine.next_frame, self._version
        header = header_bytes(version)
        left, room, size = FRAMES_PER_PULL, carrier.room, 0
        frames: list[tuple[object, int]] = []
        while left and (taken := following()) is not None:
            left -= 1
            frame, buffer = taken
            if tap is not None:
                tap.seen("sent", self.link_out, frame)
            if type(frame) is BufferResponse:
                its_size = header + len(frame.data)  # this server sends no partial buffers
                if buffer is not None and buffer.is_volatile:
                    frame = self._kept(frame, buffer)
            else:
                its_size = FIXED_BYTES.get(type(frame)) or wire_size(frame, version)
            if size + its_size <= room:
                frames.append((frame, its_size))
                size += its_size
                if buffer is not None:
                    buffer.recycle()
                continue
            if frames:
                carrier.send_frames(frames, size)
            carrier.send_frame(frame, its_size, None if buffer is None else buffer.recycle)
            if not connection.writable:
                return
            room, frames, size = carrier.room, [], 0
        if frames:
            carrier.send_frames(frames, size)
        if left:
            self._drained()
        else:
            self.wake()

    def _pull_together(self, connection: Connection) -> None:
        """Send one piece of what the state machine has, many frames with one system call."""
        if not connection.writable:
            return
        parts: list[BytesLike] = []
        buffers: list[Buffer] = []
        left, room, has_more = FRAMES_PER_PULL, BATCH_BYTES, self.machine.has_more
        more = has_more()
        try:
            while more and left > 0 and room > 0:
                left -= self._encode_next(left, room, parts, buffers)
                more = has_more()
                if more:
                    room = BATCH_BYTES - sum(map(len, parts))
        except HeadgateError:
            recycle_all(buffers)
            connection.abort()
            raise
        if parts:
            connection.send(parts, partial(recycle_all, buffers) if buffers else None)
        if more:
            self.wake()
        else:
            self._drained()

    def _encode_next(self, most: int, most_bytes: int, parts: list[BytesLike], buffers: list[Buffer]) -> int:
        """Append the next frames and their buffers. Return the number of frames."""
        raise NotImplementedError

    def _dispatch(self, connection: Connection, frame: Frame, buffer: Buffer | None) -> None:
        on_sent = None if buffer is None else buffer.recycle
        try:
            forward = self._forward(connection, frame, buffer, on_sent)
        except HeadgateError:
            if on_sent is not None:
                on_sent()
            connection.abort()
            raise
        if not self._interceptor.active:
            forward()
            return
        self._interceptor.outgoing(self.link_out, frame, forward, on_sent or nothing)

    def _forward(
        self, connection: Connection, frame: Frame, buffer: Buffer | None, on_sent: Callable[[], None] | None
    ) -> Callable[[], None]:
        if self._carrier is None:
            return partial(connection.send, encode(frame, self._version), on_sent)
        frame = self._kept(frame, buffer)
        return partial(self._carrier.send_frame, frame, wire_size(frame, self._version), on_sent)

    @staticmethod
    def _kept(frame: Frame, buffer: Buffer | None) -> Frame:
        """Return a frame that stays the same when its buffer is recycled."""
        if buffer is not None and buffer.is_volatile and type(frame) is BufferResponse:
            return replace(frame, data=bytes(frame.data))
        return frame

    def _end(self) -> None:
        self._closed = True
        if self._pulling is not None:
            self._pulling.cancel()
            self._pulling = None

    @property
    def is_closed(self) -> bool:
        return self._closed

    def peer_connection(self) -> tuple[str, object]:
        """Return the peer's name, and the connection to it."""
        return split_link(self.link_out)[1], self._connection

    def abort(self, *, reset: bool = False) -> None:
        """Abort the connection now. The state machine is notified through `on_closed`."""
        if self._connection is not None and not self._closed:
            self._connection.abort(reset=reset)


def nothing() -> None:
    """Do nothing: the recycler of a frame without a buffer."""
