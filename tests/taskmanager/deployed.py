"""A deployed task: the test is its producers, its reader and its JobMaster. Everything between them is real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from msgspec import Struct

from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CheckpointBarrier,
    EndOfData,
    EndOfOutputChannelState,
    Event,
    StopMode,
    decode_event,
)
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.jobgraph import JobVertex, SourceConfig
from testbed_runtime.core.job.messages import (
    Acknowledge,
    AcknowledgeCheckpoint,
    CommitRecords,
    DeclineCheckpoint,
    InputChannelDescriptor,
    InputGateDescriptor,
    NotifyEndOfData,
    NotifyPartitionDataAvailable,
    ReportQueue,
    RequestNextInputSplit,
    RequestPartitionState,
    ResultPartitionDescriptor,
    TaskDeploymentDescriptor,
    TriggerCheckpoint,
    UpdateTaskExecutionState,
)
from testbed_runtime.core.job.statememory import StateBackendConfig
from testbed_runtime.core.options import Options
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.history.writer import MemoryHistory
from testbed_runtime.ports.interception import (
    NO_INTERCEPTION,
    Interception,
    PartitionRegistrationHook,
)
from testbed_runtime.process.clock import LoopClock
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.backchannel import IterationBroker
from testbed_runtime.taskmanager.environment import NetworkEnvironment
from testbed_runtime.taskmanager.gateway import JobMasterGateway
from testbed_runtime.taskmanager.meter import TaskMeter
from testbed_runtime.taskmanager.process import LocalFiles
from testbed_runtime.taskmanager.services import REAL_PACE, Pace, TaskServices
from testbed_runtime.taskmanager.statefiles import StateBackend
from testbed_runtime.taskmanager.task import Task
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.transport.mailbox import SleepingCpu
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from testbed_runtime.workload.records import RecordReader, Records, framed
from testbed_runtime.workload.snapshots import SubtaskSnapshot, decode_snapshot, encode_snapshot
from testbed_runtime.workload.sources import GeneratedSource
from tests.core.exchange_model import partition_id
from tests.transport.inprocess_network import InProcessNetwork

T0_S = 1000.0
"""The time at which a virtual loop begins."""
SOON_S = 1e-7
"""Everything that needs no time has happened after it: a virtual loop moves its clock when nothing else is left to do."""
OUTPUT = 100
"""Number of the task's own partition; those of its producers count from 0."""
ANSWERED = (
    AcknowledgeCheckpoint,
    CommitRecords,
    DeclineCheckpoint,
    NotifyEndOfData,
    NotifyPartitionDataAvailable,
    ReportQueue,
    RequestNextInputSplit,
    RequestPartitionState,
    UpdateTaskExecutionState,
)


def records(first: int, count: int, **config: Any) -> Records:
    """Records of a source, each due a millisecond after the one before it."""
    config = {"records_per_second": 1000.0, **config}
    made = GeneratedSource(
        SourceConfig(**config), vertex=0, subtask=0, parallelism=1, seed=3, t0_ns=int(T0_S * 1e9)
    )
    found = made.records(first, count)
    assert found is not None
    return found


def data(first: int, count: int, **config: Any) -> bytes:
    """The bytes of these records, as a producer writes them."""
    return bytes(framed(records(first, count, **config)))


class NotedCpu(SleepingCpu):
    """Calls a function when a task lets others run."""

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note

    async def yield_control(self) -> None:
        self._note()
        await super().yield_control()


class NotedClock(Struct, frozen=True):
    """Calls a function whenever a task reads the time: it does so before and after each wait."""

    clock: LoopClock
    note: Callable[[], None]

    @property
    def boot_id(self) -> str:
        return self.clock.boot_id

    def now(self) -> float:
        self.note()
        return self.clock.now()


class Deployed:
    """One task with `channels` producers on another TaskManager, and a reader of its first subpartition. Times are ms since
    the start. `outputs`: the partitioning, the number of subpartitions and the consumer of each result. An `idle` task is
    not started. `inputs`: the gates that share the channels. `recovered`: its producers have announced the end of their restored data."""

    def __init__(
        self,
        vertex: JobVertex,
        *,
        channels: int | None = None,
        inputs: int = 1,
        version: str = "2.x",
        pace: Pace = REAL_PACE,
        names: tuple[str, ...] = ("source", "work"),
        answers: dict[type, Callable[[Any], Awaitable[Any]]] | None = None,
        network: Any = None,
        registration: PartitionRegistrationHook = NO_INTERCEPTION.registration,
        restore: tuple[SubtaskSnapshot, ...] = (),
        outputs: tuple[tuple[str, int, str], ...] = (("hash", 1, "next"),),
        subtask: int = 0,
        blobs: MemoryBlobStore | None = None,
        announced: bool = False,
        started: bool = True,
        reading: bool = True,
        idle: bool = False,
        recovered: bool = True,
        clock: LoopClock | None = None,
        **options: str,
    ) -> None:
        configuration = {"execution.buffer-timeout.interval": "0 ms", **options}
        self.options = Options(configuration, flink_version=version)
        self.vertex, self.pace, self.names = vertex, pace, names
        self.channels = (0 if vertex.source else 2) if channels is None else channels
        self.inputs = inputs
        self.announced, self.started, self.restored = announced, started, restore
        self.outputs, self.subtask, self.reading = outputs, subtask, reading
        self.idle, self.registration, self.recovered = idle, registration, recovered
        self.answers = answers or {}
        self.network = network or InProcessNetwork()
        self.messages: list[tuple[float, Any]] = []
        """The messages that the JobMaster got, with times."""
        self.received: list[tuple[float, Any]] = []
        """The elements that the reader has read: a number of records, or an event, with times."""
        self.records: list[Records] = []
        self.reads = self.resumes = self.acknowledges = True
        """Whether the reader reads, resumes after a barrier, and acknowledges the end of the data."""
        self.yields = 0
        """How often the task has let others run although it had more to do."""
        self.totals: list[tuple[float, int]] = []
        """Number of records that had been emitted whenever the task read the time or let others run, with times."""
        self.modes: set[int] = set()
        """Whether it was busy when it let others run or had emitted records, idle, or back-pressured."""
        self.ended_at: float | None = None
        self.clock = clock or LoopClock("sim")
        self.history = MemoryHistory()
        self.blobs = blobs or MemoryBlobStore()
        self.producers: list[ResultPartition] = []
        self._meter: TaskMeter | None = None
        """The counters of the task, once it is deployed."""

    # ---- the parts around the task

    async def start(self) -> None:
        """Deploy the task, and begin to read what it emits."""
        clock, options = self.clock, self.options
        self.upstream = NetworkEnvironment(
            TaskManagerID(1, 1), options, self.network, clock=clock, entropy=Random(1), memory=True
        )
        interception = Interception(registration=self.registration)
        self.environment = NetworkEnvironment(
            TaskManagerID(0, 1),
            options,
            self.network,
            clock=clock,
            entropy=Random(0),
            interception=interception,
            memory=True,
        )
        address = await self.upstream.start(("127.0.0.1", 0))
        for number in range(self.channels):
            wanted = ResultPartitionDescriptor(str(partition_id(number)), "work", "hash", 1, 128)
            self.producers.append(self.upstream.create_partition(wanted, Wakeup()))
            if self.recovered:
                self.producers[-1].end_recovery()
        board = Switchboard()
        self.jobmanager, self.rpc = MemoryRpc("jobmanager", board), MemoryRpc("tm-0", board)
        await self.jobmanager.start()
        await self.rpc.start()
        self.jobmanager.serve("jobmaster", dict.fromkeys(ANSWERED, self._hear))
        history = self.history.sink("tm-0", lambda: int(clock.now() * 1e9))
        self.services = TaskServices(
            options,
            NotedClock(clock, self._note_total),
            NotedCpu(self._note_yield),
            self.blobs,
            history,
            self.network,
            self.environment,
            WaitLog(history, "tm-0-1", clock.now),
            StateBackend(StateBackendConfig.of(options, 1), LocalFiles().state),
            IterationBroker(lambda: self.environment.open_file("a back channel")),
            self.pace,
        )
        self.gateway = JobMasterGateway(self.rpc, self.jobmanager.address, "job", "leader", "tm-0-1", 1.0)
        self.descriptor = await self._descriptor(address)
        self.task = Task(self.descriptor, self.services, self.gateway, self._on_end, lambda task: None)
        self._meter = self.task.meter
        if self.started:
            for producer in self.producers:
                self.upstream.register(producer)
        if self.idle:
            return
        self.task.start()
        await self.settle()
        if self.reading and self.task.partitions and not self.task.ended:
            self.view = self.task.partitions[0].create_view(0, self._on_data)
            self._reader = RecordReader()
            self._on_data()
            await self.settle()

    async def _descriptor(self, address: tuple[str, int]) -> TaskDeploymentDescriptor:
        channels = [InputChannelDescriptor(str(p.partition_id), "tm-1-1", address, 0) for p in self.producers]
        each = len(channels) // self.inputs
        gates = tuple(
            InputGateDescriptor("source", "hash", tuple(channels[first : first + each]))
            for first in range(0, len(channels), each or 1)
        )
        outputs = tuple(
            ResultPartitionDescriptor(
                str(partition_id(OUTPUT + number)), target, how, count, 128, announced=self.announced
            )
            for number, (how, count, target) in enumerate(self.outputs)
        )
        handles = tuple(f"restored/{number}" for number in range(len(self.restored)))
        for handle, snapshot in zip(handles, self.restored, strict=True):
            await self.blobs.put(handle, encode_snapshot(snapshot))
        return TaskDeploymentDescriptor(
            job="job",
            leader="leader",
            attempt="attempt",
            allocation="allocation",
            vertex=self.vertex,
            subtask=self.subtask,
            attempt_number=2,
            gates=gates,
            partitions=() if self.vertex.sink is not None else outputs,
            seed=3,
            job_started=T0_S,
            restore_checkpoint=1 if handles else 0,
            restore_handles=handles,
            job_vertices=self.names,
        )

    def _note_yield(self) -> None:
        self.yields += 1
        self.modes.add(self.task.meter.mode)
        self._note_total()

    def _note_total(self) -> None:
        meter = self._meter
        if meter is None:
            return
        if meter.records_out > (self.totals[-1][1] if self.totals else 0):
            self.modes.add(meter.mode)
        self.totals.append((self.ms, meter.records_out))

    def _on_end(self, task: Task) -> None:
        self.ended_at = self.ms

    async def close(self) -> None:
        """End the task, if it has not ended, and see that it keeps no buffers."""
        self.task.cancel()
        await self.task.wait_ended()
        await self.task.reports.drained()
        for producer in self.producers:
            self.upstream.release(producer)
        await self.environment.close()
        await self.upstream.close()
        await self.rpc.close()
        await self.jobmanager.close()
        assert self.environment.segments_in_use == 0

    # ---- the JobMaster

    async def _hear(self, message: Any) -> Any:
        self.messages.append((self.ms, message))
        answer = self.answers.get(type(message))
        return Acknowledge() if answer is None else await answer(message)

    def heard(self, kind: type) -> list[Any]:
        """The messages of this kind that the JobMaster got."""
        return [message for _, message in self.messages if type(message) is kind]

    @property
    def states(self) -> list[str]:
        return [report.state for report in self.heard(UpdateTaskExecutionState)]

    @property
    def failure(self) -> tuple[str, str]:
        """Class and text of the cause that the task has reported."""
        last = self.heard(UpdateTaskExecutionState)[-1]
        return last.cause_class, last.cause

    @property
    def completed(self) -> list[tuple[int, float]]:
        """The checkpoints that were acknowledged, with times."""
        return [(m.checkpoint, ms) for ms, m in self.messages if isinstance(m, AcknowledgeCheckpoint)]

    @property
    def declined(self) -> list[tuple[int, str]]:
        return [(m.checkpoint, m.reason) for m in self.heard(DeclineCheckpoint)]

    async def snapshot(self, checkpoint: int) -> SubtaskSnapshot:
        """The stored snapshot of a checkpoint that was acknowledged."""
        (found,) = (m for m in self.heard(AcknowledgeCheckpoint) if m.checkpoint == checkpoint)
        return decode_snapshot(await self.blobs.get(found.state_handle))

    def trigger(self, checkpoint: int, *, drain: bool = False) -> None:
        self.task.trigger_checkpoint(TriggerCheckpoint("attempt", checkpoint, 7, "leader", drain))

    # ---- the producers

    def send(self, channel: int, *items: bytes | Event) -> None:
        """Write data and events to a channel. Data of one call shares its buffers."""
        producer = self.producers[channel]
        for item in items:
            if isinstance(item, CheckpointBarrier):
                producer.broadcast_barrier(item)
            elif isinstance(item, bytes):
                assert producer.emit(0, item) == len(item)
            else:
                producer.broadcast_event(item)
        producer.flush_all()

    def end(self, mode: StopMode = StopMode.DRAIN) -> None:
        """End every channel."""
        for producer in self.producers:
            producer.broadcast_event(EndOfData(mode))
            producer.finish()

    # ---- the reader

    def _on_data(self) -> None:
        if self.reads:
            asyncio.get_running_loop().call_soon(self.read)

    def read(self) -> None:
        """Read everything that may be read."""
        while self.reads and (polled := self.view.poll()) is not None:
            buffer = polled.buffer
            if buffer.data_type.is_buffer:
                found = self._reader.feed([buffer.view()])
                if found is not None and len(found):
                    self.records.append(found.copy())
                    self.received.append((self.ms, len(found)))
            else:
                self._on_event(decode_event(bytes(buffer.view())))
            buffer.recycle()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, EndOfOutputChannelState):
            self.view.resume_consumption()
            return
        self.received.append((self.ms, event))
        blocks = isinstance(event, CheckpointBarrier) and event.alignment is not AlignmentType.UNALIGNED
        if blocks and self.resumes:
            self.view.resume_consumption()
        if isinstance(event, EndOfData) and self.acknowledges:
            self.view.acknowledge_all_data_processed()

    def go_on(self) -> None:
        """Read again, and acknowledge everything."""
        self.reads = self.acknowledges = True
        self.read()
        if any(isinstance(event, EndOfData) for event in self.events):
            self.view.acknowledge_all_data_processed()

    @property
    def counts(self) -> list[int]:
        """How many records came together."""
        return [what for _, what in self.received if isinstance(what, int)]

    @property
    def events(self) -> list[Event]:
        return [what for _, what in self.received if not isinstance(what, int)]

    @property
    def emitted(self) -> list[tuple[float, int]]:
        """How many records the task emitted before it let others run, with times."""
        totals = [0, *(total for _, total in self.totals)]
        grown = [(ms, total - before) for (ms, total), before in zip(self.totals, totals, strict=False)]
        return [(ms, count) for ms, count in grown if count]

    @property
    def sequences(self) -> list[int]:
        """The sequence numbers of the records that were read."""
        return [int(number) for found in self.records for number in found["sequence"]]

    # ---- what was recorded

    def rows(self, table: str, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.history.trial().rows(table) if row["kind"] == kind]

    def noted(self, kind: str) -> list[dict[str, Any]]:
        """The data of each event of this kind."""
        return [json.loads(row["data"]) for row in self.rows("events", kind)]

    def waits(self, kind: str) -> list[tuple[str, float, float, str]]:
        """The waits of this kind: for what, from when until when, and how each ended."""
        return [
            (row["what"], _ms(row["start_ns"] / 1e9), _ms(row["t_ns"] / 1e9), row["outcome"])
            for row in self.rows("waits", kind)
        ]

    # ---- time

    @property
    def ms(self) -> float:
        return _ms(self.clock.now())

    async def at(self, ms: float) -> None:
        """Wait until this time."""
        await asyncio.sleep(T0_S + ms / 1000 - self.clock.now())

    async def settle(self) -> None:
        """Wait until everything that needs no time has happened."""
        await asyncio.sleep(SOON_S)


def _ms(seconds: float) -> float:
    return round((seconds - T0_S) * 1000, 2)


@asynccontextmanager
async def deployed(vertex: JobVertex, **settings: Any) -> AsyncIterator[Deployed]:
    one = Deployed(vertex, **settings)
    await one.start()
    try:
        yield one
    finally:
        await one.close()


def driven(
    vertex: JobVertex, drive: Callable[[Deployed], Coroutine[Any, Any, None]] | None = None, **settings: Any
) -> Deployed:
    """Deploy a task in virtual time, drive it, end it, and return it with everything that it did."""

    async def main() -> Deployed:
        async with deployed(vertex, **settings) as one:
            if drive is not None:
                await drive(one)
                await one.settle()
        return one

    return run_virtual(main())
