"""Run the exchange on a network: one pump per connection between bytes, frames and the state machines in core.exchange.

    server = DataServer(network, manager, name="tm-0", options=options)
    address = await server.start(("127.0.0.1", 0))
    connections = ConnectionManager(network, name="tm-1", options=options)
    client = await connections.client("tm-0-1", address)      # a PartitionRequestClient: client.add(channel)

Frames are pulled from a state machine only while its connection is writable, so that few are in flight and a reported
backlog is up to date. The frames of one loop iteration are sent together. Buffers are recycled when their bytes have been
sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import ClassVar, TypeAlias

from testbed_runtime.core.errors import FlinkError, HeadgateError
from testbed_runtime.core.exchange.arrivals import Head
from testbed_runtime.core.exchange.client import PartitionRequestClient, peer_text
from testbed_runtime.core.exchange.codec import DISCARD, ClientDecoder, ServerDecoder
from testbed_runtime.core.exchange.encoding import encode, encode_run
from testbed_runtime.core.exchange.frames import (
    BufferResponse,
    BytesLike,
    CancelPartitionRequest,
    ClientFrame,
    DataType,
    Frame,
    PartitionRequest,
    ServerFrame,
)
from testbed_runtime.core.exchange.memory import Buffer, keep_all
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.server import PartitionRequestServer
from testbed_runtime.core.faults.links import link, logical_name, owner_of
from testbed_runtime.core.ids import InputChannelID, ResultPartitionID
from testbed_runtime.core.job.limits import connect_timeout_s
from testbed_runtime.core.options import MAX_TCP_CONNECTIONS, Options
from testbed_runtime.core.versions import CONNECTIONS_NAME_PEER, ONE_CONNECTION, has
from testbed_runtime.ports.interception import FrameInterceptor, FrameTap
from testbed_runtime.ports.network import (
    PLANE_DATA,
    Address,
    Connection,
    Listener,
    Network,
    ReceivingConnection,
    Resolver,
    SocketState,
)
from testbed_runtime.timeouts import cancel_all, timeout
from testbed_runtime.transport.sending import Pump, nothing
from testbed_runtime.transport.socketstate import states

EVENTS_KEPT = 64
"""Number of different events that are on their way at once to share buffers: more than the barriers and ends of any job."""
CLOSE_GRACE_S = 1.0
"""How long `ConnectionManager.close` waits until a queued CloseRequest has been sent."""


class PassThrough:
    """A FrameInterceptor that is never active, so the pump does not call it."""

    active: ClassVar = False

    def outgoing(
        self, link: str, frame: Frame, forward: Callable[[], None], drop: Callable[[], None]
    ) -> None:
        forward()


def flink_address(address: Address) -> str:
    """Format like Flink's resolved addresses: `host/host:port`."""
    return f"{address[0]}/{address[0]}:{address[1]}"


class _ServerPump(Pump):
    """The producer's end of one connection."""

    __slots__ = ("_decoder", "_named", "_owner", "_requested")

    machine: PartitionRequestServer

    def __init__(self, owner: DataServer) -> None:
        super().__init__(owner.version, owner.interceptor, owner.tap)
        self._owner = owner
        self._named = False
        """Whether a request has named the peer."""
        self._requested = False
        """Whether the last received frames added or removed requests."""
        self._decoder = ServerDecoder(owner.version)
        self.machine = PartitionRequestServer(owner.manager, self.wake, credit_based=owner.credit_based)

    def on_connected(self, connection: Connection) -> None:
        super().on_connected(connection)
        self._name_peer(connection.peer)
        self._owner.opened(self)

    def _name_peer(self, peer: str) -> None:
        self.link_out = link(self._owner.name, peer)
        self.link_in = link(peer, self._owner.name)

    def on_data(self, data: memoryview) -> None:
        decoder, position, end = self._decoder, 0, len(data)
        self._answering = True
        try:
            while position < end and not self._closed:
                position += decoder.feed(data, position)
                frame = decoder.next()
                if frame is not None:
                    self._on_frame(frame)
            if self._requested:
                self._arm()
            self._answer()
        except HeadgateError as error:
            # the rest of the stream is meaningless
            if self._connection is not None:
                self._connection.pause_reading()
            self._answering = False
            self.machine.fail(error)
        finally:
            self._answering = False

    def on_frames(self, frames: Sequence[ClientFrame]) -> int:
        """Handle what a FrameConnection delivers. Return how many frames were taken: all."""
        self._answering = True
        try:
            for frame in frames:
                if not self._closed:
                    self._on_frame(frame)
            if self._requested:
                self._arm()
            self._answer()
        except HeadgateError as error:
            self._answering = False
            self.machine.fail(error)
        finally:
            self._answering = False
        return len(frames)

    def _arm(self) -> None:
        self._requested = False
        self._owner.arm()

    def _on_frame(self, frame: ClientFrame) -> None:
        now = 0.0  # the other frames need no time
        if type(frame) is PartitionRequest:
            self._requested = True
            now = self._loop.time()
            if not self._named and (owner := owner_of(frame.receiver)):
                self._named = True
                self._name_peer(owner)
        elif type(frame) is CancelPartitionRequest:
            self._requested = True
        if self._tap is not None:
            self._tap.seen("received", self.link_in, frame)
        self.machine.on_frame(frame, now)

    def _encode_next(self, most: int, most_bytes: int, parts: list[BytesLike], buffers: list[Buffer]) -> int:
        """Append several data buffers of one channel together, or one frame of any kind."""
        tap, found = self._tap, self.machine.next_run(most, most_bytes)
        if found is not None:
            receiver, subpartition, run = found
            buffers += run.buffers
            if tap is not None:
                for buffer, backlog, sequence in run:
                    frame = _response(receiver, subpartition, buffer, backlog, sequence)
                    tap.seen("sent", self.link_out, frame)
            parts += encode_run(receiver, subpartition, run, self._version)
            return len(run.buffers)
        one = self.machine.next_frame()
        if one is None:
            return 0
        if one[1] is not None:
            buffers.append(one[1])
        if tap is not None:
            tap.seen("sent", self.link_out, one[0])
        parts += encode(one[0], self._version)
        return 1

    def on_closed(self, error: Exception | None) -> None:
        """Release the readers. A producer does not fail when its consumer disconnects: the JobManager cancels it."""
        self._end()
        self.machine.on_closed()
        self._owner.closed(self)


def _response(
    receiver: InputChannelID, subpartition: int, buffer: Buffer, backlog: int, sequence: int
) -> BufferResponse:
    return BufferResponse(
        receiver, subpartition, sequence, backlog, buffer.data_type, buffer.view(), buffer.compressed
    )


class DataServer:
    """Listens for consumers and serves the partitions of one TaskManager. Owns its connections until `close`."""

    def __init__(
        self,
        network: Network,
        manager: ResultPartitionManager,
        *,
        name: str,
        options: Options,
        interceptor: FrameInterceptor | None = None,
        tap: FrameTap | None = None,
        on_connection_closed: Callable[[], None] | None = None,
    ) -> None:
        """`name` is the logical process name (`tm-0`) used by taps and faults."""
        self.manager = manager
        self.name = logical_name(name)
        self.version = options.wire_version
        self.credit_based = options.credit_based
        self.interceptor = interceptor or PassThrough()
        self.tap = tap
        self._network = network
        self._on_connection_closed = on_connection_closed or nothing
        self._listener: Listener | None = None
        self._pumps: dict[_ServerPump, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> Address:
        """The address that this server listens on, after `start`."""
        assert self._listener is not None, "the data server has not been started"
        return self._listener.address

    @property
    def connections(self) -> tuple[PartitionRequestServer, ...]:
        """The state machines of the open connections."""
        return tuple([pump.machine for pump in self._pumps])

    def sockets(self) -> list[tuple[str, SocketState]]:
        """Return the peer and the socket state of each open connection that can be measured."""
        return states(pump.peer_connection() for pump in self._pumps)

    async def start(self, address: Address) -> Address:
        """Start listening and return the address. Raises UserError if the port is in use."""
        self._listener = await self._network.listen(lambda: _ServerPump(self), address)
        return self._listener.address

    async def close(self) -> None:
        """Close all connections and timers. Idempotent."""
        if self._listener is not None:
            await self._listener.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for pump in list(self._pumps):
            pump.abort()

    def opened(self, pump: _ServerPump) -> None:
        self._pumps[pump] = None

    def closed(self, pump: _ServerPump) -> None:
        self._pumps.pop(pump, None)
        self._on_connection_closed()

    def arm(self) -> None:
        """Set a timer for the first waiting partition request that expires."""
        deadline = self.manager.next_deadline
        if self._timer is not None and (deadline is None or self._timer.when() > deadline):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.manager.on_time(asyncio.get_running_loop().time())
        self.arm()


_Key: TypeAlias = "tuple[str, Address, int]"
"""ResourceID and address of the producer's TaskManager, and the index of the connection to it."""


def _at_once(settle: Callable[[], None]) -> None:
    """Copy what was received before `on_data` returns, because the connection uses its memory again."""
    settle()


def _keeps_nothing(data: memoryview) -> bool:
    """Refuse to deliver bytes again, because the connection cannot."""
    return False


@lru_cache(maxsize=EVENTS_KEPT)
def event_buffer(data: bytes | memoryview, data_type: DataType) -> Buffer:
    """Return the buffer of an event. All channels share it, because producers send the same event on all of them."""
    return Buffer.unpooled(data, data_type)


class _ClientPump(Pump):
    """The consumer's end of one connection."""

    __slots__ = ("_borrowed", "_decoder", "_lend", "_owner", "_rest", "_unread", "ended", "key")

    machine: PartitionRequestClient

    def __init__(self, owner: ConnectionManager, peer: str, address: Address, index: int) -> None:
        super().__init__(owner.version, owner.interceptor, owner.tap)
        self._owner = owner
        self._rest = b""
        self._borrowed: list[Buffer] = []
        """Buffers whose bytes may still be where they were received."""
        self._lend: Callable[[Callable[[], None]], None] = _at_once
        self._unread: Callable[[memoryview], bool] = _keeps_nothing
        self.ended = asyncio.Event()
        self.key: _Key = (peer, address, index)
        self.link_out = link(owner.name, logical_name(peer))
        self.link_in = link(logical_name(peer), owner.name)
        self.machine = PartitionRequestClient(
            flink_address(address),
            self.wake,
            resource_id=peer,
            reuse=owner.reuse,
            credit_based=owner.credit_based,
            names_peer=owner.names_peer,
            resume=self._resume,
        )
        self._decoder = ClientDecoder(owner.version, self.machine.allocate)

    def on_connected(self, connection: Connection) -> None:
        super().on_connected(connection)
        if connection.frames is None and isinstance(connection, ReceivingConnection):  # a slow question
            self._lend, self._unread = connection.lend, connection.unread

    def on_data(self, data: memoryview) -> None:
        self._answering = True
        try:
            self._consume(data)
        except HeadgateError as error:
            self._fail(error)
            return
        finally:
            self._answering = self._asked = False
        if self.machine.error is not None:
            self.abort()
        # not now: the readers woken by this run before the pull, so that one AddCredit covers what they return
        self.wake()

    def _consume(self, data: memoryview) -> None:
        decoder, machine, tap, position, end = self._decoder, self.machine, self._tap, 0, len(data)
        while not self._closed:
            found = decoder.heads(data, position)
            if found is not None:
                receiver, subpartition, heads = found
                buffers = machine.on_run(receiver, data, heads)
                taken = len(buffers)
                if taken:
                    self._borrowed += buffers
                    if len(self._borrowed) == taken:  # the first ones since `_settle`
                        self._lend(self._settle)
                    if tap is not None:
                        self._tell(tap, data, receiver, subpartition, heads[:taken])
                    position = heads[taken - 1][1]
                    if position == end:
                        return
                    # to decode it in two parts costs more than to read it again
                    if taken == len(heads) and decoder.lacks_little and self._unread(data[position:]):
                        return
                    continue
            position += decoder.feed(data, position)
            frame = decoder.next()
            if frame is not None:
                if tap is not None:
                    tap.seen("received", self.link_in, frame)
                machine.on_frame(frame, decoder.buffer)
            elif decoder.stalled:
                self._stall(data[position:])
                return
            elif position == end:
                return

    def _settle(self) -> None:
        """Copy what is still needed of the bytes that were received: nothing, if the readers were fast."""
        keep_all(self._borrowed)
        self._borrowed.clear()

    def _tell(
        self, tap: FrameTap, data: memoryview, receiver: InputChannelID, subpartition: int, heads: list[Head]
    ) -> None:
        """Show the tap data buffers that were handled together."""
        for start, stop, sequence, backlog, data_type, compressed in heads:
            frame = BufferResponse(
                receiver, subpartition, sequence, backlog, data_type, data[start:stop], compressed
            )
            tap.seen("received", self.link_in, frame)

    def on_frames(self, frames: Sequence[ServerFrame]) -> int:
        """Handle what a FrameConnection delivers. Return how many frames were taken: fewer if legacy mode stalls."""
        machine, tap = self.machine, self._tap
        try:
            for taken, frame in enumerate(frames):
                if self._closed:
                    break
                buffer = None
                if type(frame) is BufferResponse:
                    if not frame.data_type.is_buffer:
                        buffer = event_buffer(frame.data, frame.data_type)  # type: ignore[arg-type]  # nothing writes to it
                    else:
                        given = machine.allocate(frame.receiver, len(frame.data), frame.data_type)
                        if given is None:
                            self._stall(memoryview(b""))
                            return taken
                        if given is DISCARD:
                            continue
                        buffer = given
                        buffer.refer(frame.data)
                if tap is not None:
                    tap.seen("received", self.link_in, frame)
                machine.on_frame(frame, buffer)
        except HeadgateError as error:
            self._fail(error)
        if machine.error is not None:
            self.abort()
        return len(frames)

    def _stall(self, view: memoryview) -> None:
        """Legacy mode: stop reading the whole connection while one channel has no buffer (head-of-line blocking)."""
        self._rest = bytes(view)
        if self._connection is not None:
            self._connection.pause_reading()

    def _resume(self) -> None:
        """Continue reading, because a channel has a buffer again."""
        if not self._closed:
            self._loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        if self._closed or self._connection is None:
            return
        rest, self._rest = self._rest, b""
        self.on_data(memoryview(rest))
        if not self._decoder.stalled and not self._closed:
            self._connection.resume_reading()

    def _fail(self, error: HeadgateError) -> None:
        self.machine.on_closed(error)
        self.abort()

    def _encode_next(self, most: int, most_bytes: int, parts: list[BytesLike], buffers: list[Buffer]) -> int:
        """Append the next frames: without buffers, and small."""
        for taken in range(most):
            one = self.machine.next_frame()
            if one is None:
                return taken
            if self._tap is not None:
                self._tap.seen("sent", self.link_out, one[0])
            parts += encode(one[0], self._version)
        return most

    def on_closed(self, error: Exception | None) -> None:
        self._end()
        self._decoder.close()
        self._owner.forget(self)
        self.machine.on_closed(error)
        self.ended.set()


class ConnectionManager:
    """Connections to producers: one per peer, address and index, shared by channels and kept across jobs. Owns them and the
    attempts to open them until `close`."""

    def __init__(
        self,
        network: Network,
        *,
        name: str,
        options: Options,
        resolver: Resolver | None = None,
        interceptor: FrameInterceptor | None = None,
        tap: FrameTap | None = None,
    ) -> None:
        """`name` is the logical process name (`tm-0`); `resolver` may return a proxy's address."""
        self.name = logical_name(name)
        self.version = options.wire_version
        self.credit_based = options.credit_based
        self.names_peer = has(options.flink_version, CONNECTIONS_NAME_PEER)
        self.reuse = options.boolean("taskmanager.network.tcp-connection.enable-reuse-across-jobs")
        self.interceptor = interceptor or PassThrough()
        self.tap = tap
        self._network = network
        self._resolver = resolver
        self._retries = max(0, options.integer("taskmanager.network.retries"))
        self._timeout_s = connect_timeout_s(options)
        most = max(1, options.integer(MAX_TCP_CONNECTIONS))
        self._most = most if has(options.flink_version, ONE_CONNECTION) else None
        self._pumps: dict[_Key, _ClientPump] = {}
        self._attempts: dict[_Key, asyncio.Task[PartitionRequestClient]] = {}
        self._closed = False

    @property
    def clients(self) -> tuple[PartitionRequestClient, ...]:
        """The state machines of the open connections."""
        return tuple(pump.machine for pump in self._pumps.values())

    def sockets(self) -> list[tuple[str, SocketState]]:
        """Return the peer and the socket state of each open connection that can be measured."""
        return states(pump.peer_connection() for pump in self._pumps.values())

    def index_of(self, partition: ResultPartitionID) -> int:
        """Return the index of the connection for a partition. Since Flink 1.15 it is below `taskmanager.network.max-num-tcp-connections`
        (1 by default, and at least). Before, every exchange has a connection of its own."""
        drawn = int.from_bytes(partition.data_set[:4], "big")
        return drawn if self._most is None else drawn % self._most

    async def client(self, peer: str, address: Address, index: int = 0) -> PartitionRequestClient:
        """Return a connection to TaskManager `peer` (its ResourceID), and open it if necessary. Concurrent callers share
        one attempt. Raises FlinkError RemoteTransportException; the next call tries again."""
        key = (peer, (address[0], address[1]), index)
        pump = self._pumps.get(key)
        if pump is not None and not pump.machine.closing and pump.machine.error is None:
            return pump.machine
        if self._closed:
            raise FlinkError("IllegalStateException", "The connection manager has already been shut down.")
        attempt = self._attempts.get(key)
        if attempt is None:
            attempt = asyncio.create_task(self._connect(*key), name=f"connect to {peer}")
            self._attempts[key] = attempt
            attempt.add_done_callback(partial(self._attempt_done, key))
        # a cancelled caller must not cancel the attempt for the others
        return await asyncio.shield(attempt)

    def _attempt_done(self, key: _Key, attempt: asyncio.Task[PartitionRequestClient]) -> None:
        if self._attempts.get(key) is attempt:
            del self._attempts[key]
        if not attempt.cancelled():
            attempt.exception()  # retrieve it here too, because all callers may have been cancelled

    async def _connect(self, peer: str, advertised: Address, index: int) -> PartitionRequestClient:
        last: Exception | None = None
        for _ in range(self._retries + 1):
            pump = _ClientPump(self, peer, advertised, index)
            try:
                address = advertised
                if self._resolver is not None:
                    address = await self._resolver.resolve(peer, PLANE_DATA, advertised)
                await self._network.connect(address, pump, timeout_s=self._timeout_s)
            except (OSError, TimeoutError) as error:
                last = error
                continue
            if not pump.is_closed:
                self._pumps[pump.key] = pump
            return pump.machine
        named = peer_text(flink_address(advertised), peer if self.names_peer else "")
        failure = FlinkError(
            "RemoteTransportException",
            f"Connecting to remote task manager '{named}' has failed. "
            "This might indicate that the remote task manager has been lost.",
            lost_taskmanager=peer,
        )
        raise failure from last

    def forget(self, pump: _ClientPump) -> None:
        """Remove a pump whose connection has ended."""
        if self._pumps.get(pump.key) is pump:
            del self._pumps[pump.key]

    async def close(self) -> None:
        """Close all connections and attempts. Remaining channels are notified. Idempotent."""
        self._closed = True
        await cancel_all(*self._attempts.values())
        pumps = list(self._pumps.values())
        with contextlib.suppress(TimeoutError):
            async with timeout(CLOSE_GRACE_S):
                for pump in pumps:
                    if pump.machine.closing:
                        await pump.ended.wait()
        for pump in pumps:
            pump.abort()
