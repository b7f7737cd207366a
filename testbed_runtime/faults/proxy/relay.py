"""One proxied connection: two sockets, two directions, each with its shaper. Only callbacks of one loop; no tasks.

Unshaped bytes pass from one socket to the other in the same turn. An orderly end stays orderly, a reset stays a reset, and both travel
behind the bytes that were sent before them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from random import Random

from testbed_runtime.faults.backend import Rule
from testbed_runtime.faults.proxy.shaper import End, FlowShaper, Shape, shape_of
from testbed_runtime.timeouts import Timer
from testbed_runtime.transport.tcp import reset_on_close

WRITE_HIGH_BYTES = 256 * 1024
"""Unsent bytes in one socket above which the other one is not read."""
PULL_BYTES = 256 * 1024


class SocketEnd(asyncio.Protocol):
    """One socket of a relay."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.writable = True
        self.lost = False
        self.silenced = False
        """Whether this end of a half-open connection has vanished: its events are not passed on."""
        self.incoming: Direction | None = None
        self.outgoing: Direction | None = None
        self.on_made: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self._reading = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._reading:
            transport.pause_reading()
        self.on_made()

    def read(self, wanted: bool) -> None:
        if wanted == self._reading:
            return
        self._reading = wanted
        if self.transport is None or self.lost:
            return
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self.incoming is not None:
            self.incoming.on_data(data)

    def eof_received(self) -> bool:
        if self.incoming is not None and not self.silenced:
            self.incoming.on_end(End.EOF)
        return True

    def pause_writing(self) -> None:
        self.writable = False
        if self.outgoing is not None:
            self.outgoing.steer()

    def resume_writing(self) -> None:
        self.writable = True
        if self.outgoing is not None:
            self.outgoing.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self.incoming is not None and not self.silenced:
            self.incoming.on_end(End.RESET if exc is not None else End.EOF)
        if self.outgoing is not None:
            self.outgoing.steer()
        self.on_lost()

    def reset(self) -> None:
        """Close the socket so that its peer sees a TCP reset."""
        if self.transport is None or self.lost:
            return
        reset_on_close(self.transport.get_extra_info("socket"))
        self.transport.abort()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class Direction:
    """Bytes from one socket to the other."""

    def __init__(
        self, source: SocketEnd, sink: SocketEnd, shaper: FlowShaper, finished: Callable[[], None]
    ) -> None:
        self.shaper = shaper
        self.ended: End | None = None
        """How the stream ended at the other socket."""
        self._source = source
        self._sink = sink
        self._finished = finished
        self._timer = Timer()
        self._end_seen = False
        source.incoming = self
        sink.outgoing = self

    def on_data(self, data: bytes) -> None:
        transport = self._sink.transport
        if self.shaper.idle and transport is not None and self._sink.writable and not self._sink.lost:
            transport.write(data)
            return
        self.shaper.push(data, asyncio.get_running_loop().time())
        self.pump()

    def on_end(self, how: End) -> None:
        if self._end_seen and how is End.EOF:
            return
        self._end_seen = True
        self.shaper.end(how, asyncio.get_running_loop().time())
        self.pump()

    def reshape(self, shape: Shape) -> None:
        if shape != self.shaper.shape:
            self.shaper.reshape(shape, asyncio.get_running_loop().time())
            self.pump()

    def pump(self) -> None:
        """Write what is due while the sink accepts it, and set the timer for the rest."""
        self._timer.cancel()
        transport = self._sink.transport
        if transport is None:
            self.steer()
            return
        loop = asyncio.get_running_loop()
        while self._sink.writable and (due := self.shaper.pull(loop.time(), PULL_BYTES)):
            for piece in due:
                if isinstance(piece, End):
                    self._finish(piece)
                elif not self._sink.lost:
                    transport.write(piece)
        may_write = self._sink.writable and not self._sink.lost
        self._timer.set(self.shaper.next_time() if may_write else None, self.pump)
        self.steer()

    def steer(self) -> None:
        """Start or stop reading. Bytes that are discarded anyway need no sink."""
        sink_takes = self._sink.transport is not None and self._sink.writable
        self._source.read(self.shaper.wants_more and (sink_takes or self.shaper.shape.void))

    def stop(self) -> None:
        self._timer.cancel()
        self.shaper.discard()

    def _finish(self, how: End) -> None:
        self.ended = how
        if how is End.RESET:
            self._sink.reset()
        elif (
            self._sink.transport is not None and not self._sink.lost and self._sink.transport.can_write_eof()
        ):
            self._sink.transport.write_eof()
        self._finished()


class Relay:
    """A connection from `source` to `destination` (logical names) on a plane."""

    def __init__(
        self, source: str, destination: str, plane: str, *, seed: str, on_closed: Callable[[Relay], None]
    ) -> None:
        self.source, self.destination, self.plane = source, destination, plane
        self.near, self.far = SocketEnd(), SocketEnd()
        self.gone = ""
        """The side of a half-open connection that vanished, `source` or `destination`; empty if none has."""
        self.was_reset = False
        self.closed = False
        self._on_closed = on_closed
        forward, backward = Random(seed + ">"), Random(seed + "<")  # noqa: S311 - seeded on purpose
        self.forward = Direction(self.near, self.far, FlowShaper(forward), self._on_end)
        self.backward = Direction(self.far, self.near, FlowShaper(backward), self._on_end)
        self.near.on_lost = self._check_closed
        self.far.on_lost = self._check_closed

    def shape(self, rules: list[Rule]) -> None:
        """Apply these rules to both directions now."""
        if self.was_reset:
            return
        forward = shape_of(rules, self.source, self.destination, self.plane)
        backward = shape_of(rules, self.destination, self.source, self.plane)
        if forward.reset or backward.reset:
            self.reset()
            return
        if (forward.void or backward.void) and not self.gone:
            self._vanish(rules)
        elif self.gone and not (forward.void or backward.void):
            self.reset()
            return
        self.forward.reshape(forward)
        self.backward.reshape(backward)

    @property
    def may_connect(self) -> bool:
        """Whether a handshake passes: neither direction is partitioned and no end has vanished."""
        shapes = (self.forward.shaper.shape, self.backward.shaper.shape)
        return not self.was_reset and not self.gone and not any(s.blocked for s in shapes)

    @property
    def held_bytes(self) -> int:
        return self.forward.shaper.held_bytes + self.backward.shaper.held_bytes

    @property
    def resumes_at(self) -> float:
        """Return when TCP has retransmitted what a partition has lost; 0 if it has lost nothing."""
        return max(self.forward.shaper.resumes_at, self.backward.shaper.resumes_at)

    def connected(self) -> None:
        """Use the far socket, which is connected now: send the bytes that waited for it."""
        self.forward.pump()
        self.backward.pump()

    def reset(self) -> None:
        """Reset both ends."""
        self.was_reset = True
        for direction in (self.forward, self.backward):
            direction.stop()
        for end in (self.near, self.far):
            end.silenced = True
            end.reset()
        self._check_closed()

    def _vanish(self, rules: list[Rule]) -> None:
        gone = {name for rule in rules for name in rule.gone}
        self.gone = "source" if self.source in gone else "destination"
        end = self.near if self.gone == "source" else self.far
        end.silenced = True
        for direction in (self.forward, self.backward):
            direction.stop()
        end.reset()

    def _on_end(self) -> None:
        if self.forward.ended is not None and self.backward.ended is not None:
            self.near.close()
            self.far.close()

    def _check_closed(self) -> None:
        """Finish once both sockets are closed; a far one that was never opened counts as closed."""
        if self.closed or not self.near.lost or not (self.far.lost or self.far.transport is None):
            return
        self.closed = True
        self.forward.stop()
        self.backward.stop()
        self._on_closed(self)
