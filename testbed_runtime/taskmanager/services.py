"""The ports that tasks share, and the context in which an invokable runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from testbed_runtime.core.exchange.events import CancelCheckpointMarker
from testbed_runtime.core.job.messages import TaskDeploymentDescriptor, TriggerCheckpoint
from testbed_runtime.core.options import Options
from testbed_runtime.core.waits import NO_LIMIT, Limit, Outcome
from testbed_runtime.history.waits import OpenWait, WaitLog
from testbed_runtime.ports.execution import Clock, Cpu
from testbed_runtime.ports.network import Network
from testbed_runtime.ports.storage import BlobStore, HistorySink
from testbed_runtime.taskmanager.backchannel import IterationBroker
from testbed_runtime.taskmanager.checkpoints import Begun, FinalCheckpoint, TaskCheckpoints
from testbed_runtime.taskmanager.environment import NetworkEnvironment
from testbed_runtime.taskmanager.gateway import JobMasterGateway, RecordCommitter
from testbed_runtime.taskmanager.input import TaskInput
from testbed_runtime.taskmanager.localstate import LocalState
from testbed_runtime.taskmanager.meter import TaskMeter, to_ns
from testbed_runtime.taskmanager.output import TaskOutput
from testbed_runtime.taskmanager.partition_requests import PartitionRequests
from testbed_runtime.taskmanager.statefiles import AttemptFiles, StateBackend
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.taskmanager.work import Cores, TaskWork
from testbed_runtime.workload.keyedstate import SubtaskContext
from testbed_runtime.workload.snapshots import SubtaskSnapshot


class Pace(Struct, frozen=True):
    """How often a TaskManager acts without an input. The defaults are those of a real process."""

    sample_s: float = 0.1
    """Interval between two samples of a task."""
    channel_stride: int = 1
    """Thins out the record of a job with many channels. A channel is sampled only if its subtask numbers add up to a multiple of
    this number. First partition requests are recorded only for channels whose index is such a multiple."""
    channel_every: int = 1
    """The channels are sampled once in this many samples of the tasks."""
    lazy: bool = False
    """Whether the pace is that of virtual time. A source then emits just before its flusher runs and not every few
    milliseconds, because nothing is read in between. A TaskManager checks for stalls only after `expect_pause`, not ten times a
    second."""


REAL_PACE = Pace()


class TaskServices(Struct, frozen=True):
    """The ports and services of one TaskManager, shared by its tasks."""

    options: Options
    clock: Clock
    cpu: Cpu
    blobs: BlobStore
    history: HistorySink
    network: Network
    environment: NetworkEnvironment
    waits: WaitLog
    state_backend: StateBackend
    iterations: IterationBroker
    pace: Pace
    local_state: LocalState = msgspec.field(default_factory=LocalState)
    cores: Cores | None = None
    """The simulated cores; None if work costs no processor time."""


@dataclass(slots=True)
class TaskRun:
    """One attempt while it runs: the parts that its invokable uses."""

    descriptor: TaskDeploymentDescriptor
    services: TaskServices
    subtask: SubtaskContext
    meter: TaskMeter
    input: TaskInput
    output: TaskOutput
    checkpoints: TaskCheckpoints
    files: AttemptFiles
    committer: RecordCommitter
    wakeup: Wakeup
    requests: PartitionRequests
    gateway: JobMasterGateway
    now: Callable[[], float]
    """The time of `services.clock`."""
    final: FinalCheckpoint
    work: TaskWork | None = None
    """Pays for processor time; None if work costs nothing."""
    running_at: float = 0.0
    """When it switched to RUNNING."""
    triggers: deque[TriggerCheckpoint] = field(default_factory=deque)
    """Checkpoints that begin at this task: at a source, or after all its producers have finished."""
    on_rate: Callable[[float], None] = lambda _: None
    """Called with the rate that the coordinator of flow control sets; set by a source."""
    on_completed: Callable[[int], None] = lambda _: None
    """Called for each completed checkpoint; set by the invokable."""

    @property
    def name(self) -> str:
        return self.meter.task

    def now_ns(self) -> int:
        return int(self.now() * 1e9)

    def event(self, kind: str, *, checkpoint: int = -1, data: dict[str, Any] | None = None) -> None:
        """Append a row about this attempt to `events`."""
        self.services.history.append(
            "events",
            kind=kind,
            subject=self.name,
            attempt=self.descriptor.attempt_number,
            checkpoint=checkpoint,
            data=data or {},
        )

    def wait(
        self,
        kind: str,
        what: str,
        *,
        since_s: float,
        limit: Limit = NO_LIMIT,
        outcome: Outcome = Outcome.COMPLETED,
    ) -> None:
        """Record a wait of this attempt that ends now."""
        self.begin_wait(kind, what, limit=limit, since_s=since_s).end(outcome)

    def begin_wait(self, kind: str, what: str, *, limit: Limit, since_s: float | None = None) -> OpenWait:
        """Begin a wait of this attempt. `since_s` defaults to now."""
        attempt = self.descriptor.attempt_number
        return self.services.waits.begin(kind, self.name, what, attempt=attempt, limit=limit, since_s=since_s)

    def begin_checkpoint(self, checkpoint: int, *, ended: bool, stop: bool) -> bool:
        """Begin a checkpoint at its barrier. Return whether the task takes a snapshot. `ended`: it follows the end of the data. `stop`:
        it is that of a stop with savepoint. If the JobMaster has aborted it, the consumers are notified instead."""
        self.final.begin(checkpoint, ended=ended, stop=stop)
        begun = self.checkpoints.begin(checkpoint)
        if begun is Begun.ABORTED:
            self.output.broadcast(CancelCheckpointMarker(checkpoint))
        return begun is Begun.SNAPSHOT

    def may_finish(self, *, ended: bool) -> bool:
        """Return whether the task may finish: see FinalCheckpoint."""
        processed = self.output.all_data_processed
        return self.final.may_finish(self.checkpoints.last_completed, ended=ended, processed=processed)

    def empty_snapshot(self, checkpoint: int) -> SubtaskSnapshot:
        """Return a snapshot of this subtask without state."""
        vertex = self.descriptor.vertex
        return SubtaskSnapshot(
            checkpoint, vertex.name, self.descriptor.subtask, vertex.parallelism, vertex.max_parallelism
        )


def subtask_context(descriptor: TaskDeploymentDescriptor) -> SubtaskContext:
    vertex = descriptor.vertex
    names = descriptor.job_vertices or (vertex.name,)
    return SubtaskContext(
        names.index(vertex.name),
        vertex.name,
        descriptor.subtask,
        vertex.parallelism,
        vertex.max_parallelism,
        to_ns(descriptor.job_started),
        names,
    )
