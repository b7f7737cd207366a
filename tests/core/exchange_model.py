"""A producer and a consumer joined in memory, frame by frame: what the tests of the exchange machines are built on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from testbed_runtime.core.exchange.backoff import Backoff, RemoteBackoff
from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.client import PartitionRequestClient
from testbed_runtime.core.exchange.codec import DISCARD
from testbed_runtime.core.exchange.events import AlignmentType, CheckpointBarrier, Event
from testbed_runtime.core.exchange.frames import BufferResponse, ClientFrame, DataType, ServerFrame
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.localchannel import LocalInputChannel
from testbed_runtime.core.exchange.memory import Buffer, MemorySegment
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.server import PartitionRequestServer
from testbed_runtime.core.ids import ExecutionAttemptID, InputChannelID, ResultPartitionID

SEGMENT_BYTES = 32
PEER = "127.0.0.1:6121"
RESOURCE = "tm-1-1"


def partition_id(number: int = 0) -> ResultPartitionID:
    """A partition of a made-up producer."""
    return ResultPartitionID(b"\xa0" * 16, number, ExecutionAttemptID(b"\xb0" * 16, b"\xc0" * 16, number, 0))


def receiver_id(number: int) -> InputChannelID:
    """The receiver of channel `number`."""
    return InputChannelID(number.to_bytes(16, "big"))


def barrier(
    number: int, alignment: AlignmentType = AlignmentType.ALIGNED, **fields: int
) -> CheckpointBarrier:
    """A checkpoint barrier."""
    return CheckpointBarrier(number, 0, alignment, **fields)


def nothing() -> None:
    """An unused wake callback."""


class CountingPool:
    """The real pool, with its requests and registrations counted."""

    def __init__(self, pool: LocalBufferPool) -> None:
        self._pool = pool
        self.requests = 0
        self.registrations = 0

    def request_segment(self) -> MemorySegment | None:
        self.requests += 1
        return self._pool.request_segment()

    def request_run(self, most: int) -> list[MemorySegment]:
        self.requests += len(run := self._pool.request_run(most))
        return run

    def add_listener(self, listener: Callable[[MemorySegment], bool]) -> bool:
        self.registrations += 1
        return self._pool.add_listener(listener)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def deliver(client: PartitionRequestClient, frame: ServerFrame) -> bool:
    """Act like the decoder: allocate, write the payload, deliver the frame. Return False if the payload was discarded."""
    if not isinstance(frame, BufferResponse):
        client.on_frame(frame)
        return True
    given = client.allocate(frame.receiver, len(frame.data), frame.data_type)
    if given is DISCARD:
        return False
    buffer = None
    if isinstance(given, Buffer):
        given.fill_view(len(frame.data))[:] = frame.data
        buffer = given
    elif frame.data_type.is_buffer:
        raise AssertionError("no buffer, and not discarded either")
    client.on_frame(frame, buffer)
    return True


def data_frame(number: int, sequence: int, backlog: int, data: bytes = b"x") -> BufferResponse:
    """A data buffer for channel `number`."""
    return BufferResponse(receiver_id(number), 0, sequence, backlog, DataType.DATA_BUFFER, data)


@dataclass
class Consumer:
    """A gate of remote channels over one connection without a producer."""

    segments: int = 16
    floating: tuple[int, int] = (8, 8)
    channels: int = 1
    exclusive: int = 2
    set_up: bool = True
    reuse: bool = True
    credit_based: bool = True
    backoff: tuple[float, float, float, bool] = (500, 1000, 500, True)
    not_found: list[RemoteInputChannel] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.network = NetworkBufferPool(self.segments, SEGMENT_BYTES)
        self.pool = self.network.create_buffer_pool(*self.floating)
        self.woken = 0
        self.resumed = 0
        self.gate = InputGate(
            self.network,
            self.pool,
            self._wake,
            exclusive=self.exclusive,
            on_partition_not_found=self.not_found.append,
        )
        initial, maximum, timeout, waits = self.backoff
        for number in range(self.channels):
            self.gate.add_remote(
                partition_id(),
                number,
                receiver=receiver_id(number),
                backoff=RemoteBackoff(initial, maximum, listener_timeout=timeout, waits_at_producer=waits),
            )
        if self.set_up:
            assert self.gate.set_up()
        self.client = PartitionRequestClient(
            PEER,
            nothing,
            resource_id=RESOURCE,
            reuse=self.reuse,
            credit_based=self.credit_based,
            resume=self._resume,
        )

    def _wake(self) -> None:
        self.woken += 1

    def _resume(self) -> None:
        self.resumed += 1

    def connect(self) -> list[ClientFrame]:
        """Add every channel; the requests that go out."""
        for number in range(self.channels):
            self.client.add(self.channel(number))
        return self.sent()

    def channel(self, number: int = 0) -> RemoteInputChannel:
        channel = self.gate.channels[number]
        assert isinstance(channel, RemoteInputChannel)
        return channel

    def sent(self) -> list[ClientFrame]:
        """Everything that goes out now."""
        frames = []
        while (taken := self.client.next_frame()) is not None:
            frames.append(taken[0])
        return frames


@dataclass
class Exchange(Consumer):
    """The consumer with its producer: one partition, one subpartition per channel. The test moves the frames."""

    producer_segments: int = 16
    producer_pool: int = 8
    local: bool = False
    waits: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.producer_network = NetworkBufferPool(self.producer_segments, SEGMENT_BYTES)
        self.manager = ResultPartitionManager(waits=self.waits)
        self.server = PartitionRequestServer(self.manager, nothing, credit_based=self.credit_based)
        self.partition = self.new_partition()
        self.to_client: deque[ServerFrame] = deque()
        self.to_server: deque[ClientFrame] = deque()

    def new_partition(self) -> ResultPartition:
        pool = producer_pool(self.producer_network, self.channels, self.producer_pool)
        return ResultPartition(partition_id(), self.channels, pool, exclusive=self.exclusive)

    def start(self) -> Exchange:
        """Register the partition and connect."""
        self.manager.register(self.partition)
        for number in range(self.channels):
            self.client.add(self.channel(number))
        self.settle()
        return self

    def server_step(self) -> bool:
        """Send one frame of the producer: its bytes are copied and its segment is recycled, as with a real socket."""
        out = self.server.next_frame()
        if out is None:
            return False
        frame, buffer = out
        if buffer is not None:
            assert isinstance(frame, BufferResponse)
            frame = BufferResponse(
                frame.receiver,
                frame.subpartition,
                frame.sequence_number,
                frame.backlog,
                frame.data_type,
                bytes(frame.data),
            )
            buffer.recycle()
        self.to_client.append(frame)
        return True

    def client_step(self) -> bool:
        """One frame leaves the consumer."""
        taken = self.client.next_frame()
        if taken is None:
            return False
        self.to_server.append(taken[0])
        return True

    def arrive_at_client(self) -> bool:
        if not self.to_client:
            return False
        deliver(self.client, self.to_client.popleft())
        return True

    def arrive_at_server(self, now: float = 0.0) -> bool:
        if not self.to_server:
            return False
        self.server.on_frame(self.to_server.popleft(), now)
        return True

    def settle(self) -> None:
        """Let everything travel until nothing moves."""
        while any((self.server_step(), self.client_step(), self.arrive_at_client(), self.arrive_at_server())):
            pass

    def poll(self) -> list[tuple[int, bytes | Event]]:
        """Everything the gate has; data buffers are read and recycled."""
        polled: list[tuple[int, bytes | Event]] = []
        while (item := self.gate.poll()) is not None:
            index, element = item
            if isinstance(element, Buffer):
                polled.append((index, bytes(element.view())))
                element.recycle()
            else:
                polled.append((index, element))
        return polled

    def run(self) -> list[tuple[int, bytes | Event]]:
        """Settle and poll until nothing moves."""
        polled: list[tuple[int, bytes | Event]] = []
        while True:
            self.settle()
            new = self.poll()
            if not new:
                return polled
            polled += new

    def close(self) -> None:
        """End both sides; no segment and no promise may be left anywhere."""
        self.gate.close()
        self.server.on_closed()
        self.manager.shut_down()
        self.partition.release()
        for network in (self.network, self.producer_network):
            assert network.outstanding == 0
            assert network.required == 0
            assert network.pools == []


def producer_pool(network: NetworkBufferPool, subpartitions: int, size: int) -> LocalBufferPool:
    """The pool of a result partition."""
    return network.create_buffer_pool(min(subpartitions + 1, size), size, subpartitions=subpartitions)


def local_channel(
    gate: InputGate, manager: ResultPartitionManager, *, backoff: tuple[float, float] = (0.5, 3.0)
) -> LocalInputChannel:
    """A local channel to subpartition 0."""
    return gate.add_local(partition_id(), 0, manager=manager, backoff=Backoff(*backoff))
