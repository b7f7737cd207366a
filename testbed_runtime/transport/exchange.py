"""Exchange one partition: serve generated records or fetch a subpartition. The other end may be a real Flink.

Both sides count with a tap what actually crossed the wire, so that the counts can be compared.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from testbed_runtime.core.errors import FlinkError, HeadgateError, UserError
from testbed_runtime.core.exchange.backoff import remote_backoff
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.events import (
    EndOfData,
    EndOfOutputChannelState,
    Event,
    WatermarkEvent,
    data_type_of,
)
from testbed_runtime.core.exchange.frames import AddCredit, BufferResponse, DataType, Frame, PartitionRequest
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition, check_index
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.records import LENGTH_BYTES, RecordDeserializer, frame_fixed
from testbed_runtime.core.exchange.subpartition import SubpartitionView, consumed_once
from testbed_runtime.core.faults.links import ENTROPY_BYTES, channel_id
from testbed_runtime.core.ids import InputChannelID, ResultPartitionID
from testbed_runtime.core.options import Options
from testbed_runtime.ports.network import Address, Network
from testbed_runtime.transport.pump import ConnectionManager, DataServer

Bytes: TypeAlias = npt.NDArray[np.uint8]

POOL_BUFFERS = 10
"""Buffers of each served subpartition: 2 exclusive and 8 floating buffers of its reader, as in Flink."""
CHUNK_BYTES = 256 * 1024
"""Records are generated and emitted in chunks of about this size."""
MAX_SUBPARTITIONS = 256
MAX_SEED = 2**63 - 1
MAX_RECORD_BYTES = 16 * 1024 * 1024
MAX_CREDIT = 4096
"""Maximum exclusive or floating buffers of one fetch: 128 MiB of 32 KiB segments."""
MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES = 4096, 1024 * 1024
"""Limits of `taskmanager.memory.segment-size`. Like Flink, Headgate requires at least one page and a power of two."""
POLLS_PER_TURN = 64
"""Number of elements that a fetch polls before it yields to the loop."""
SILENCE_S = 20.0
"""After this time without a first buffer, a fetch says that it waits. Within half of it (taskmanager.network.partition-request-timeout),
Flink answers a request for a partition that does not exist."""


@dataclass(slots=True)
class SubpartitionReport:
    """The totals of one subpartition on the wire. `bytes` and `sha256` cover data-buffer payloads, `events` counts event
    buffers, `credits` counts all granted credit including the initial one."""

    index: int
    buffers: int = 0
    bytes: int = 0
    records: int = 0
    events: int = 0
    credits: int = 0
    spilled: int = 0
    """Number of records above 5 MiB that the reader kept in a file until they were complete."""
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        return self.digest.hexdigest()

    def as_json(self) -> dict[str, int | str]:
        shown = ("index", "buffers", "bytes", "records", "sha256", "events", "credits", "spilled")
        return {name: getattr(self, name) for name in shown}


class _Meter:
    """A FrameTap that keeps the reports up to date."""

    def __init__(self, reports: dict[int, SubpartitionReport]) -> None:
        self._reports = reports
        self._by_receiver: dict[InputChannelID, SubpartitionReport] = {}
        self.watermark_types: deque[DataType] = deque()
        self.on_frame: Callable[[], None] | None = None
        """Called for each frame, except for requests and credit, which the consumer sends before any answer."""

    def seen(self, side: str, link: str, frame: Frame) -> None:
        if isinstance(frame, BufferResponse):
            report = self._by_receiver.get(frame.receiver)
            if report is not None:
                self._buffer(report, frame)
        elif isinstance(frame, AddCredit):
            report = self._by_receiver.get(frame.receiver)
            if report is not None:
                report.credits += frame.credit
        elif isinstance(frame, PartitionRequest):
            report = self._reports.get(frame.first_subpartition)
            if report is not None and not report.buffers:
                self._by_receiver[frame.receiver] = report
                report.credits = frame.initial_credit
        if self.on_frame is not None and not isinstance(frame, AddCredit | PartitionRequest):
            self.on_frame()

    def _buffer(self, report: SubpartitionReport, frame: BufferResponse) -> None:
        if frame.data_type.is_buffer:
            report.buffers += 1
            report.bytes += len(frame.data)
            report.digest.update(frame.data)
            return
        report.events += 1
        if frame.data_type in (DataType.ALIGNED_WATERMARK_EVENT, DataType.UNALIGNED_WATERMARK_EVENT):
            # the event itself does not say whether it blocks its producer
            self.watermark_types.append(frame.data_type)


# ---- serve ---------------------------------------------------------------------------------------------------


class _SplitPartition(ResultPartition):
    """A partition with one pool per subpartition, so that a late reader does not delay the others."""

    def __init__(self, partition_id: ResultPartitionID, parts: list[ResultPartition]) -> None:
        super().__init__(partition_id, 0, parts[0].pool)
        self.parts = parts
        self._opened = [False] * len(parts)
        for part in parts:
            part.when_consumed(self._part_consumed)

    def create_view(self, subpartition: int, on_data: Callable[[], None]) -> SubpartitionView:
        check_index(subpartition, len(self.parts))
        if self._opened[subpartition]:
            raise consumed_once(subpartition, str(self.partition_id))
        view = self.parts[subpartition].create_view(0, on_data)
        self._opened[subpartition] = True
        return view

    def _part_consumed(self, part: ResultPartition) -> None:
        if self.is_consumed:
            for callback in self._consumed_callbacks:
                callback(self)

    @property
    def is_consumed(self) -> bool:
        return all(part.is_consumed for part in self.parts)

    def abandoned(self) -> int | None:
        """A subpartition whose reader left before the end, or None. It cannot be read again."""
        for index, part in enumerate(self.parts):
            read = part.subpartitions[0]
            if self._opened[index] and read.view is None and not read.end_delivered:
                return index
        return None

    def release(self, cause: FlinkError | None = None) -> None:
        for part in self.parts:
            part.release(cause)
        super().release(cause)


class ServeRequest(Struct, frozen=True):
    partition: ResultPartitionID
    address: Address
    subpartitions: int
    records: int
    """Number of records of each subpartition."""
    record_bytes: int
    """Size without the 4-byte length."""
    seed: int
    buffer_bytes: int = 32 * 1024


def check_serve(request: ServeRequest) -> None:
    """Raise UserError if the request is invalid."""
    _in_range("--subpartitions", request.subpartitions, 1, MAX_SUBPARTITIONS)
    _in_range("--records", request.records, 0, 2**40)
    _in_range("--record-bytes", request.record_bytes, 0, MAX_RECORD_BYTES)
    _in_range("--seed", request.seed, 0, MAX_SEED)
    _check_segment(request.buffer_bytes)


def _in_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserError(name, f"{value} is out of range", f"choose {least} to {most}")


def _check_segment(size: int) -> None:
    if not MIN_SEGMENT_BYTES <= size <= MAX_SEGMENT_BYTES or size & (size - 1):
        problem = f"{size} bytes is not a valid segment size"
        hint = f"choose a power of two from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES} bytes"
        raise UserError("-D taskmanager.memory.segment-size", problem, hint)


async def serve(
    network: Network, request: ServeRequest, options: Options, *, listening: Callable[[Address], None]
) -> list[SubpartitionReport]:
    """Serve until every subpartition is consumed. Raises UserError (port in use) or HeadgateError (a reader left)."""
    check_serve(request)
    count = request.subpartitions
    pools = NetworkBufferPool(count * POOL_BUFFERS, request.buffer_bytes)
    producers = [_Producer(request, index, pools) for index in range(count)]
    partition = _SplitPartition(request.partition, [producer.part for producer in producers])
    manager = ResultPartitionManager(
        waits=options.requests_wait_at_producer,
        request_timeout_s=options.duration("taskmanager.network.partition-request-timeout"),
        started=asyncio.get_running_loop().time(),
    )
    manager.register(partition)
    reports = [producer.report for producer in producers]
    meter, changed = _Meter(dict(enumerate(reports))), asyncio.Event()
    meter.on_frame = changed.set
    server = DataServer(
        network, manager, name="serve", options=options, tap=meter, on_connection_closed=changed.set
    )
    try:
        listening(await server.start(request.address))
        async with asyncio.TaskGroup() as group:
            for producer in producers:
                group.create_task(producer.run(), name=f"produce {producer.report.index}")
            group.create_task(_watch(partition, changed), name="watch")
    finally:
        await server.close()
        manager.shut_down()
    return reports


async def _watch(partition: _SplitPartition, changed: asyncio.Event) -> None:
    """Wait until everything is consumed. Raise HeadgateError if a reader leaves early, because it cannot return."""
    partition.when_consumed(lambda _: changed.set())
    while True:
        left = partition.abandoned()
        if left is not None:
            raise HeadgateError(f"the reader of subpartition {left} left before the end of the partition")
        if partition.is_consumed:
            return
        await changed.wait()
        changed.clear()
        await asyncio.sleep(0)  # the tap sees the frame before the state machine handles it


class _Producer:
    """Produces one subpartition, with its own generator (seed + index), pool and report."""

    def __init__(self, request: ServeRequest, index: int, pools: NetworkBufferPool) -> None:
        self.report = SubpartitionReport(index)
        self._request = request
        self._generator = np.random.default_rng(request.seed + index)
        self._acknowledged = asyncio.Event()
        self._consumed = asyncio.Event()
        self.part = ResultPartition(
            request.partition,
            1,
            pools.create_buffer_pool(2, POOL_BUFFERS, subpartitions=1),
            on_consumed=lambda _: self._consumed.set(),
            on_all_data_processed=self._acknowledged.set,
        )

    async def run(self) -> None:
        """Produce until the reader has read to the end and left."""
        record_bytes, left = self._request.record_bytes, self._request.records
        chunk = max(1, CHUNK_BYTES // (record_bytes + LENGTH_BYTES))
        while left:
            count = min(chunk, left)
            await self._emit(_records(self._generator, count, record_bytes))
            left -= count
            self.report.records += count
        self.part.notify_end_of_data()
        await self._acknowledged.wait()
        self.part.finish()
        self.part.close()
        await self._consumed.wait()

    async def _emit(self, records: Bytes) -> None:
        data = records.data.toreadonly()  # so that it is not copied into buffers
        position = self.part.emit(0, data)
        while position < len(data):
            available = asyncio.Event()
            self.part.pool.when_available(available.set)
            await available.wait()
            position += self.part.emit(0, data, offset=position)


def _records(generator: np.random.Generator, count: int, record_bytes: int) -> Bytes:
    """Return random records, each preceded by its length."""
    if not record_bytes:
        return np.zeros(count * LENGTH_BYTES, dtype=np.uint8)
    data = generator.integers(0, 256, size=count * record_bytes, dtype=np.uint8)
    return frame_fixed(data.view(f"V{record_bytes}"))


# ---- fetch ---------------------------------------------------------------------------------------------------


class FetchRequest(Struct, frozen=True):
    partition: ResultPartitionID
    address: Address
    subpartition: int
    exclusive: int
    floating: int
    entropy: bytes
    """Random bytes (ENTROPY_BYTES) for the InputChannelID."""
    buffer_bytes: int = 32 * 1024


def check_fetch(request: FetchRequest) -> None:
    """Raise UserError if the request is invalid."""
    _in_range("--subpartition", request.subpartition, 0, 2**31 - 1)
    _in_range("--exclusive", request.exclusive, 0, MAX_CREDIT)
    _in_range("--floating", request.floating, 1, MAX_CREDIT)
    _check_segment(request.buffer_bytes)
    if len(request.entropy) < ENTROPY_BYTES:
        raise UserError("entropy", f"has {len(request.entropy)} bytes instead of {ENTROPY_BYTES}")


async def fetch(
    network: Network, request: FetchRequest, options: Options, *, waiting: Callable[[], None] = lambda: None
) -> SubpartitionReport:
    """Read the subpartition to its end, like a task. Call `waiting` if the producer sends nothing for SILENCE_S at first. Raises FlinkError
    and HeadgateError."""
    check_fetch(request)
    report = SubpartitionReport(request.subpartition)
    meter = _Meter({request.subpartition: report})
    # no other job will use this connection, so end it with a CloseRequest
    options = Options(
        {"taskmanager.network.tcp-connection.enable-reuse-across-jobs": "false"} | options.as_map(),
        flink_version=options.flink_version,
    )
    connections = ConnectionManager(network, name="fetch", options=options, tap=meter)
    pools = NetworkBufferPool(request.exclusive + request.floating + 1, request.buffer_bytes)
    fetcher = _Fetcher(request, options, pools, report, meter)
    try:
        client = await connections.client("producer", request.address)
        fetcher.gate.set_up()
        client.add(fetcher.channel)
        silence = asyncio.get_running_loop().call_later(SILENCE_S, waiting)
        meter.on_frame = silence.cancel  # a refusal is an answer too
        try:
            await fetcher.run()
        finally:
            silence.cancel()
    finally:
        fetcher.close()
        await connections.close()
    return report


def _spill_file() -> IO[bytes]:
    """Open a file without a name, for a record that is too large to wait in memory."""
    return tempfile.TemporaryFile()


class _Fetcher:
    """A minimal task that reads one channel."""

    def __init__(
        self,
        request: FetchRequest,
        options: Options,
        pools: NetworkBufferPool,
        report: SubpartitionReport,
        meter: _Meter,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._report = report
        self._meter = meter
        self._records = RecordDeserializer(_spill_file)
        self._retry: asyncio.TimerHandle | None = None
        pool = pools.create_buffer_pool(1, request.floating)
        self.gate = InputGate(
            pools, pool, self._ready.set, exclusive=request.exclusive, on_partition_not_found=self._not_found
        )
        self.channel = self.gate.add_remote(
            request.partition,
            request.subpartition,
            receiver=channel_id(0, request.entropy),
            backoff=remote_backoff(options),
        )

    async def run(self) -> None:
        """Read until END_OF_PARTITION."""
        while not self.gate.finished:
            if not self._poll():
                await self._ready.wait()
            else:
                await asyncio.sleep(0)
        self._report.records = self._records.records
        self._report.spilled = self._records.spilled
        if self._records.pending:
            raise HeadgateError(f"the partition ended within a record: {self._records.pending} bytes remain")

    def _poll(self) -> bool:
        """Poll the gate. Return False if nothing is available."""
        self._ready.clear()
        for _ in range(POLLS_PER_TURN):
            polled = self.gate.poll()
            if polled is None:
                return self.gate.finished
            _, element = polled
            if isinstance(element, Buffer):
                self._records.feed(element.view())
                element.recycle()
            else:
                self._on_event(element)
        return True

    def _on_event(self, event: Event) -> None:
        if isinstance(event, EndOfData):
            self.gate.acknowledge_all_records_processed()
        elif self._blocks_producer(event):
            self.gate.resume_consumption(0)

    def _blocks_producer(self, event: Event) -> bool:
        if isinstance(event, WatermarkEvent):
            return (
                bool(self._meter.watermark_types)
                and self._meter.watermark_types.popleft().is_blocking_upstream
            )
        return isinstance(event, EndOfOutputChannelState) or data_type_of(event).is_blocking_upstream

    def _not_found(self, channel: RemoteInputChannel) -> None:
        """Handle an unknown partition. There is no JobManager to ask, so retry within the backoff: the producer may still be
        starting."""
        if channel.error is not None:
            return
        delay = channel.retrigger(self._loop.time())
        if not isinstance(delay, FlinkError) and delay > 0:
            self._retry = self._loop.call_later(delay, self._request_again)

    def _request_again(self) -> None:
        self.gate.on_time(self._loop.time())

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._records.clear()
        self.gate.close()
