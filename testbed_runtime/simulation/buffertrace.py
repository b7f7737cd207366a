"""Follow one network buffer from its builder to the credit that its segment brings back, in virtual time, or list the buffers
that are sent, each with the reason.

A producer and a consumer use the environments of two TaskManagers over the simulated network. Nothing in them is changed: the
steps are seen by the frame taps of both ends, and by the producer and the consumer, which stand for the tasks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random

from msgspec import Struct

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.exchange.alignment import BarrierPolicy
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.events import CheckpointBarrier, SnapshotType
from testbed_runtime.core.exchange.frames import AddCredit, BufferResponse, Frame
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.subpartition import SendReason
from testbed_runtime.core.ids import ExecutionAttemptID, ResultPartitionID, TaskManagerID
from testbed_runtime.core.job.messages import (
    InputChannelDescriptor,
    InputGateDescriptor,
    ResultPartitionDescriptor,
)
from testbed_runtime.core.options import Options
from testbed_runtime.core.processmemory import SEGMENT
from testbed_runtime.ports.interception import Interception
from testbed_runtime.process.clock import LoopClock
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.environment import NetworkEnvironment
from testbed_runtime.taskmanager.output import OutputFlusher
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.timeouts import cancel_all, timeout
from testbed_runtime.transport.links import LinkProfile
from testbed_runtime.transport.simulated import SimulatedFabric

LIMIT_S = 3600.0
"""Virtual seconds after which an unfinished trace is abandoned."""
MAX_SEQUENCE = 10_000
PRODUCER, CONSUMER = "producer", "consumer"
RECORD_BYTES = 104
"""A record of 100 bytes and its length."""
PARTITION = ResultPartitionID(bytes(16), 0, ExecutionAttemptID(bytes(16), bytes(16), 0, 0))


class TraceRequest(Struct, frozen=True):
    """The buffer to follow, by its sequence number, and the exchange that it is part of."""

    sequence: int
    options: Options
    latency_s: float
    service_time_s: float
    """How long the consumer works on each buffer."""
    rate: float = 0.0
    """Records of RECORD_BYTES that the producer writes per second; 0: as many as there are buffers for."""
    barriers_s: float = 0.0
    """The interval of checkpoint barriers; 0: none."""


class SentBuffer(Struct, frozen=True):
    """One element that the producer sent."""

    at_s: float
    sequence: int
    size: int
    reason: str
    """`full`, `timeout` or `event` for a data buffer, otherwise the data type of the event."""
    backlog: int
    credit: int
    """The credit that the producer has left."""


class Sent(Struct, frozen=True):
    buffers: list[SentBuffer]
    flushes: int
    """How often the thread of the output flusher ran meanwhile. It runs at each tick, even if nothing was written."""


class Step(Struct, frozen=True):
    """One step of the buffer, with the state of the channel right after it."""

    at_s: float
    side: str
    place: str
    text: str
    credit: int
    """The producer's credit."""
    backlog: int
    """The producer's backlog."""
    unannounced: int
    """The consumer's credit that the producer does not know yet."""
    producer_buffers: int
    consumer_buffers: int
    """Segments in use on each side."""


def trace_buffer(request: TraceRequest) -> list[Step]:
    """Return the steps of one buffer. Raises HeadgateError if it does not arrive."""

    trace, ended = _traced(request, until_sent=False)
    if not ended:
        raise HeadgateError(
            f"buffer {request.sequence} did not bring its credit back within {LIMIT_S:g} s of virtual time"
        )
    return trace.steps


def trace_sent(request: TraceRequest) -> Sent:
    """Return what the producer sends, up to the buffer of the request or as much as it sends in LIMIT_S."""
    trace, _ = _traced(request, until_sent=True)
    return Sent(trace.sent, trace.flushes)


def _traced(request: TraceRequest, *, until_sent: bool) -> tuple[_Trace, bool]:
    """Run a trace. Return it, and whether it is complete."""

    async def main() -> tuple[_Trace, bool]:
        trace = _Trace(request, until_sent=until_sent)
        try:
            async with timeout(LIMIT_S):
                await trace.run()
        except TimeoutError:
            return trace, False
        finally:
            await trace.close()
        return trace, True

    return run_virtual(main(), start_s=0.0)


class _Tap:
    """Reports the frames that one end sees."""

    def __init__(self, trace: _Trace) -> None:
        self._trace = trace

    def seen(self, side: str, link: str, frame: Frame) -> None:
        del link
        self._trace.on_frame(side, frame)


class _Trace:
    def __init__(self, request: TraceRequest, *, until_sent: bool) -> None:
        self._request = request
        self._policy = BarrierPolicy.of(request.options)
        self._until_sent = until_sent
        self._segment = request.options.memory(SEGMENT)
        fabric = SimulatedFabric(Random(1), LinkProfile(latency_s=request.latency_s))  # noqa: S311
        self._producer, self._consumer = (
            NetworkEnvironment(
                TaskManagerID(ordinal, 1),
                request.options,
                fabric.network(f"tm-{ordinal}"),
                clock=LoopClock("trace"),
                entropy=Random(ordinal),  # noqa: S311
                interception=Interception(tap=_Tap(self)),
                memory=True,
            )
            for ordinal in (0, 1)
        )
        self.steps: list[Step] = []
        self.sent: list[SentBuffer] = []
        self._counted = [0] * len(SendReason)
        self._reasons: deque[SendReason] = deque()
        """Reasons of the buffers that have left the subpartition, but are not sent yet."""
        self._recycled = False
        self._announced = False
        self._done = Wakeup()
        self._wake = Wakeup()
        self._partition = self._producer.create_partition(
            ResultPartitionDescriptor(str(PARTITION), "sink", "rebalance", 1, 128), Wakeup()
        )
        self._flusher = OutputFlusher(request.options.buffer_timeout_s, self._partition.flush_all)
        self.flushes = 0
        self._gate: InputGate | None = None

    async def run(self) -> None:
        address = await self._producer.start(("tm-0", 0))
        self._producer.register(self._partition)
        channel = InputChannelDescriptor(str(PARTITION), str(self._producer.resource_id), address, 0)
        gate = self._gate = self._consumer.create_gate(
            InputGateDescriptor("source", "rebalance", (channel,)), self._wake, _never
        )
        await self._consumer.set_up(gate)
        client = await self._consumer.connections.client(str(self._producer.resource_id), address)
        client.add(self._channel)
        produce = self._produce_at_rate() if self._request.rate else self._produce()
        tasks = [asyncio.create_task(work) for work in (produce, self._consume(gate), self._send_barriers())]
        try:
            await self._done.wait()
        finally:
            self.flushes = self._flusher.runs(asyncio.get_running_loop().time())
            await cancel_all(*tasks)
            self._flusher.close()

    async def close(self) -> None:
        if self._gate is not None:
            self._gate.close()
        await self._consumer.close()
        await self._producer.close()

    # ---- both ends

    async def _produce(self) -> None:
        """Fill one segment after the other, without end, each in two halves."""
        halves, number = (self._segment // 2, self._segment - self._segment // 2), 0
        while True:
            for half, size in enumerate(halves):
                await self._write(bytes(size))
                if number == self._request.sequence:
                    self._built(filled=half == 1)
            number += 1
            await asyncio.sleep(0)

    async def _produce_at_rate(self) -> None:
        """Write one record after the other, each when it is due."""
        loop, number = asyncio.get_running_loop(), 0
        begun = loop.time()
        while True:
            await self._write(bytes(RECORD_BYTES))
            number += 1
            await asyncio.sleep(begun + number / self._request.rate - loop.time())

    async def _write(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            position += self._partition.emit(0, data, offset=position)
            self._flusher.touched()
            if position < len(data):
                await _available(self._partition)

    async def _send_barriers(self) -> None:
        checkpoint = 0
        while self._request.barriers_s:
            await asyncio.sleep(self._request.barriers_s)
            checkpoint += 1
            now_ms = int(asyncio.get_running_loop().time() * 1000)
            self._partition.broadcast_event(self._policy.barrier(checkpoint, now_ms, SnapshotType.CHECKPOINT))

    def _built(self, *, filled: bool) -> None:
        pool, queued = self._partition.pool, len(self._partition.subpartitions[0])
        if filled:
            self._step(
                PRODUCER,
                "subpartition",
                f"the segment is full; {queued} {'element is' if queued == 1 else 'elements are'} queued",
            )
        else:
            taken = f"the partition's pool has {pool.used} of at most {pool.size} in use"
            self._step(PRODUCER, "builder", f"takes a segment of {self._segment} bytes; {taken}")

    async def _consume(self, gate: InputGate) -> None:
        number = 0
        while True:
            polled = gate.poll()
            if polled is None:
                await self._wake.wait()
                continue
            _, element = polled
            if isinstance(element, CheckpointBarrier) and (
                self._policy.timeout_ms or not self._policy.unaligned
            ):
                gate.resume_consumption(0)
            traced = number == self._request.sequence
            number += 1
            if traced:
                self._step(CONSUMER, "reader", "the gate hands it to the task")
            await asyncio.sleep(self._request.service_time_s)
            if isinstance(element, Buffer):
                element.recycle()
            if traced:
                self._recycled = True
                stats = self._channel.stats()
                free = f"{stats.exclusive} exclusive and {stats.floating} floating segments are free"
                self._step(CONSUMER, "recycle", f"the segment returns; {free}")

    def on_frame(self, side: str, frame: Frame) -> None:
        """Note the steps on the wire."""
        if isinstance(frame, BufferResponse) and side == "sent":
            self._note_sent(frame)
        if isinstance(frame, BufferResponse) and frame.sequence_number == self._request.sequence:
            if side == "sent":
                sent = f"sent as number {frame.sequence_number} with backlog {frame.backlog}, for one credit"
                self._step(PRODUCER, "wire", sent)
            else:
                waiting = self._channel.stats().queued
                before = "1 buffer is" if waiting == 1 else f"{waiting or 'no'} buffers are"
                self._step(CONSUMER, "channel", f"received; {before} queued before it")
        elif isinstance(frame, AddCredit) and self._recycled:
            if side == "sent" and not self._announced:
                self._announced = True
                self._step(CONSUMER, "credit", f"AddCredit({frame.credit}) is sent")
            elif side == "received" and self._announced:
                self._step(PRODUCER, "credit", f"AddCredit({frame.credit}) arrives", more=frame.credit)
                self._done.set()

    def _note_sent(self, frame: BufferResponse) -> None:
        """Record the buffers that have left the subpartition, each with its reason. Several leave at once only if they are full, except that an
        event may have ended the last one."""
        counts = self._partition.subpartitions[0].sent
        for reason in SendReason:
            self._reasons.extend([reason] * (counts[reason] - self._counted[reason]))
        self._counted = list(counts)
        named = (self._reasons.popleft() if frame.data_type.is_buffer else frame.data_type).name.lower()
        now, readers = asyncio.get_running_loop().time(), self._producer.server.connections[0].readers
        size, number = len(frame.data), frame.sequence_number
        if not self._until_sent or number <= self._request.sequence:
            self.sent.append(SentBuffer(now, number, size, named, frame.backlog, readers[0].credit))
        if self._until_sent and number >= self._request.sequence:
            self._done.set()

    # ---- the state after a step

    @property
    def _channel(self) -> RemoteInputChannel:
        assert self._gate is not None
        channel = self._gate.channels[0]
        assert isinstance(channel, RemoteInputChannel)
        return channel

    def _step(self, side: str, place: str, text: str, *, more: int = 0) -> None:
        connections = self._producer.server.connections
        readers = connections[0].readers if connections else ()
        self.steps.append(
            Step(
                asyncio.get_running_loop().time(),
                side,
                place,
                text,
                credit=more + (readers[0].credit if readers else 0),
                backlog=self._partition.subpartitions[0].backlog,
                unannounced=self._channel.stats().credit,
                producer_buffers=self._producer.segments_in_use,
                consumer_buffers=self._consumer.segments_in_use,
            )
        )


async def _available(partition: ResultPartition) -> None:
    available = Wakeup()
    partition.pool.when_available(available.set)
    await available.wait()


def _never(channel: RemoteInputChannel) -> None:
    raise HeadgateError(f"the partition of channel {channel.index} was not found")
