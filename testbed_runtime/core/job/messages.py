"""Every message between processes, by Flink's names. Structs that msgspec turns to JSON and back.

Ids travel as text (`str(ExecutionAttemptID)`, `str(ResultPartitionID)`, `str(TaskManagerID)`), times in seconds.
`leader` is the sender's or the addressee's leader session id: a message with another one is dropped (fencing).
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, field

from testbed_runtime.core.job.flowcontrol import QueueReport
from testbed_runtime.core.job.jobgraph import JobGraph, JobVertex

DISPATCHER = "dispatcher"
RESOURCEMANAGER = "resourcemanager"
JOBMASTER = "jobmaster"
TASKEXECUTOR = "taskexecutor"
"""Endpoints: the first three are in the JobManager process, the last one is in every TaskManager."""

TERMINAL_JOB_STATES = frozenset(("FINISHED", "CANCELED", "FAILED"))
JOB_STATES = TERMINAL_JOB_STATES | {
    "INITIALIZING", "CREATED", "RUNNING", "FAILING", "CANCELLING", "RESTARTING", "SUSPENDED", "RECONCILING",
}  # fmt: skip
"""Flink's JobStatus."""

# ---- TaskExecutor → ResourceManager -------------------------------------------------------------------------


class RegisterTaskManager(Struct, frozen=True):
    resource_id: str
    rpc_address: tuple[str, int]
    slots: int
    boot_id: str = ""


class SlotReport(Struct, frozen=True):
    """The slots of a TaskExecutor, sent after its registration. They are not available before."""

    resource_id: str
    leader: str
    registration: int
    allocations: tuple[tuple[int, str], ...] = ()
    """The slots that are allocated, by index."""


class DisconnectTaskExecutor(Struct, frozen=True):
    """TaskExecutor → ResourceManager: the TaskExecutor has disconnected, and registers again."""

    resource_id: str
    leader: str
    registration: int
    """The number of the registration that ends. A later registration stays valid."""
    cause: str
    wait: str
    """The kind of the wait that ended (core.job.causes)."""


class NotifySlotAvailable(Struct, frozen=True):
    """A slot that the ResourceManager had allocated is free again: no JobMaster accepted it, or not in
    time."""

    resource_id: str
    leader: str
    allocation: str


class RegistrationResult(Struct, frozen=True):
    """`outcome`: `success`, `failure` (try again later) or `rejection` (terminal)."""

    outcome: str
    leader: str = ""
    reason: str = ""
    registration: int = 0
    """The ResourceManager's number of this registration (InstanceID). Messages that name an earlier one are not meant for this one."""


# ---- TaskExecutor → JobMaster --------------------------------------------------------------------------------


class RegisterAtJobMaster(Struct, frozen=True):
    resource_id: str
    rpc_address: tuple[str, int]
    data_address: tuple[str, int]
    job: str
    leader: str
    session: int = 0
    """The number of this connection. It grows with each connection of this TaskExecutor to a JobMaster, and a
    larger number replaces the previous connection."""


class RemoteHandshakeMessage(Struct, frozen=True):
    """ResourceManager or JobMaster → TaskExecutor: the sender connects before it answers a registration."""


class DisconnectTaskManager(Struct, frozen=True):
    """The TaskExecutor has closed its connection: its tasks of the job fail, and the JobMaster loses its slots."""

    resource_id: str
    leader: str
    session: int
    cause_class: str = ""
    cause: str = ""
    wait: str = ""
    """The kind of the wait that it ended (core.job.causes), if the class does not say it."""


class OfferSlots(Struct, frozen=True):
    resource_id: str
    job: str
    leader: str
    slots: tuple[tuple[int, str], ...]
    """(slot index, allocation id)."""


class SlotOfferResult(Struct, frozen=True):
    accepted: tuple[str, ...]
    """Accepted allocation ids. The TaskExecutor frees the others."""
    at: float = 0.0
    """When the JobMaster accepted the slots, in seconds of its clock. A heartbeat that it sent before does
    not name them yet."""


class FailSlot(Struct, frozen=True):
    """The TaskExecutor does not hold a slot that the JobMaster has accepted: the tasks in it fail."""

    resource_id: str
    leader: str
    allocation: str
    cause: str


class UpdateTaskExecutionState(Struct, frozen=True):
    attempt: str
    state: str
    """DEPLOYING, INITIALIZING, RUNNING, FINISHED, CANCELED, FAILED."""
    resource_id: str
    cause_class: str = ""
    cause: str = ""
    failed_partition: str = ""
    """The ResultPartitionID that could not be read, if that was the cause. The region of its producer restarts too."""
    lost_taskmanager: str = ""
    """ResourceID of the TaskManager whose connection failed, if that was the cause. The job does not restart before that
    TaskManager answers a heartbeat or is lost."""
    wait: str = ""
    """The kind of the wait that the failure ended (core.job.causes), if its class does not say it."""


class RequestPartitionState(Struct, frozen=True):
    partition: str


class NotifyPartitionDataAvailable(Struct, frozen=True):
    """TaskExecutor → JobMaster: a result has its first record, so a consumer that waits for it may be deployed."""

    partition: str


class NotifyEndOfData(Struct, frozen=True):
    """TaskExecutor → JobMaster: the data of a task has ended. When the data of every task has ended, a
    checkpoint begins."""

    attempt: str


class RequestNextInputSplit(Struct, frozen=True):
    attempt: str
    index: int
    """How many splits this subtask has received so far, restored ones included. A repeated index gets the
    same split."""


class InputSplit(Struct, frozen=True):
    """The answer: the number of the split and its number of records. -1: no split is left."""

    number: int
    records: int = 0


class PartitionState(Struct, frozen=True):
    """The producer's execution state; `disposed` when the JobMaster does not know the attempt any more."""

    state: str
    disposed: bool = False


Chunk: TypeAlias = tuple[str, int, str, int, int, int]
"""Source `vertex-subtask`, base sequence number, bitmap hex of CHUNK_RECORDS bits, duplicates that are in no bitmap, out-of-order
seen, corrupt seen."""


class SinkCommit(Struct, frozen=True):
    """The records that a sink subtask wrote since the last checkpoint: the completed checkpoint *is* the commit.

    A number that arrived n times is in n chunks."""

    chunks: tuple[Chunk, ...] = ()
    weight: int = 0
    """The sum of counts for windows, where one output record represents many source records."""
    checkpoint: int = 0
    """The checkpoint whose barrier ended this part; 0 for an at-least-once flush."""
    earlier: tuple[SinkCommit, ...] = ()
    """Parts of earlier checkpoints, oldest first. The sink was not notified of their completion, because they
    failed or the notification was late. On completion, the JobMaster commits this part and those `earlier`
    parts whose checkpoint is above the last completed one."""


class CommitRecords(Struct, frozen=True):
    """TaskExecutor → JobMaster, answered by Acknowledge: the records that an at-least-once sink wrote since
    its last flush. It flushes every 200 ms, and once more when its task ends, however that happens. The
    JobMaster writes the `delivery` rows with checkpoint -1. It accepts nothing from an attempt that has ended
    or is not its subtask's current one. It then answers Acknowledge(accepted=False) and records
    `stale.rejected` with what = record and count = the records in `commit` (set bits of its bitmaps)."""

    attempt: str
    leader: str
    sequence: int
    """The number of the flush. It counts from 0 per attempt, without gaps. A repeated number is the same
    flush."""
    commit: SinkCommit


class AcknowledgeCheckpoint(Struct, frozen=True):
    attempt: str
    checkpoint: int
    state_handle: str
    """Blob key of the subtask's snapshot; empty without one."""
    state_bytes: int
    alignment_s: float
    commit: SinkCommit | None = None
    persisted_bytes: int = 0
    """Bytes of channel state in the snapshot."""
    shared_state: tuple[str, ...] = ()
    """Blob keys of the files that the snapshot refers to. Other checkpoints may refer to them too."""
    reused_bytes: int = 0
    """The part of `state_bytes` that an earlier checkpoint has already stored."""


class DeclineCheckpoint(Struct, frozen=True):
    attempt: str
    checkpoint: int
    reason: str
    """A name of CheckpointFailureReason."""


# ---- JobMaster / ResourceManager → TaskExecutor --------------------------------------------------------------


class RequestSlot(Struct, frozen=True):
    """ResourceManager → TaskExecutor: allocate a slot and offer it to the JobMaster."""

    slot: int
    allocation: str
    job: str
    jobmaster_address: tuple[str, int]
    jobmaster_leader: str
    leader: str


class FreeSlot(Struct, frozen=True):
    allocation: str
    cause: str
    leader: str


class DisconnectResourceManager(Struct, frozen=True):
    """The ResourceManager has disconnected this TaskExecutor, which registers again."""

    leader: str
    cause: str = ""


class DisconnectJobManager(Struct, frozen=True):
    """The JobMaster has disconnected this TaskExecutor, which fails the job's tasks and connects again."""

    job: str
    leader: str
    session: int
    cause: str = ""


class InputChannelDescriptor(Struct, frozen=True):
    """One producer subtask of an input gate."""

    partition: str
    producer: str
    """ResourceID of its TaskManager. The receiver's own id means a local channel."""
    data_address: tuple[str, int]
    subpartition: int


class RescaledExchange(Struct, frozen=True):
    """The checkpoint has another parallelism at one end: the consumers restore all data in flight of the exchange."""

    consumers: int
    """Parallelism in the checkpoint."""
    producers: int
    partition: int
    """Number of the result partition at its producers."""
    handles: tuple[str, ...]
    """Blob keys of the producers' snapshots."""


class InputGateDescriptor(Struct, frozen=True):
    source_vertex: str
    partitioning: str
    channels: tuple[InputChannelDescriptor, ...]
    rescaled: RescaledExchange | None = None
    announced_recovery: bool = True
    """Whether the producers announce the end of the data that they restore, and then wait."""
    blocking: bool = False
    """The result is written to files and read when it is complete."""


class ResultPartitionDescriptor(Struct, frozen=True):
    partition: str
    target_vertex: str
    partitioning: str
    subpartitions: int
    target_max_parallelism: int
    bounded: bool = True
    """Whether the pool of the result has at most as many buffers as its consumers have."""
    announced: bool = False
    """Whether the JobMaster waits for the first record of the result."""
    blocking: bool = False
    """It is written to a file and read when it is complete."""
    rescaled: bool = False
    """Whether the consumers restore the result's data in flight."""
    announced_recovery: bool = True
    """Whether the end of restored data is announced."""


class TaskDeploymentDescriptor(Struct, frozen=True):
    job: str
    leader: str
    attempt: str
    allocation: str
    vertex: JobVertex
    subtask: int
    attempt_number: int
    gates: tuple[InputGateDescriptor, ...]
    partitions: tuple[ResultPartitionDescriptor, ...]
    seed: int
    job_started: float
    """t0 of the open loop, on the JobManager's clock. It is the same for all attempts."""
    restore_checkpoint: int = 0
    restore_handles: tuple[str, ...] = ()
    """Blob keys of every subtask's snapshot of this vertex (a rescaled subtask reads those of its key groups)."""
    job_vertices: tuple[str, ...] = ()
    """Names of all vertices of the job in the graph's order: records name their origin by its index in this list."""
    batch: bool = False
    """The job is a batch job: it takes no checkpoints."""


class SubmitTask(Struct, frozen=True):
    descriptor: TaskDeploymentDescriptor


class CancelTask(Struct, frozen=True):
    attempt: str
    leader: str


class ReleasePartitions(Struct, frozen=True):
    """JobMaster → TaskExecutor: no consumer needs these blocking results any longer."""

    partitions: tuple[str, ...]
    leader: str


class TriggerCheckpoint(Struct, frozen=True):
    """Trigger a checkpoint. Sent to sources only; all other tasks learn of it from barriers."""

    attempt: str
    checkpoint: int
    timestamp_ms: int
    leader: str
    drain: bool = False
    """The final checkpoint of a stop with drain: the source ends after it."""


class NotifyCheckpointComplete(Struct, frozen=True):
    attempt: str
    checkpoint: int
    leader: str


class NotifyCheckpointAborted(Struct, frozen=True):
    """The checkpoint has failed or was subsumed. A task that its barrier has not reached takes no snapshot,
    and a task that is storing its snapshot stops."""

    attempt: str
    checkpoint: int
    leader: str
    latest_completed: int = 0
    """The latest completed checkpoint, because the notification about it may have been lost; 0 until 1.14, and if there is none."""


class Heartbeat(Struct, frozen=True):
    """Request (`jobmaster` or `resourcemanager` → TaskExecutor) and, in the other direction, the answer."""

    origin: str
    """`jobmanager`, `resourcemanager`, or a ResourceID."""
    leader: str = ""
    payload: dict[str, float] = field(default_factory=dict)
    asked_at: float = 0.0
    """When the request was sent, in seconds of its sender's clock. The answer repeats it."""
    executions: tuple[str, ...] = ()
    """In an answer to the JobMaster: the attempts of its job that the TaskManager holds, and those whose end is not yet reported
    (Flink's ExecutionDeploymentReport)."""
    allocations: tuple[tuple[int, str], ...] | None = None
    """Slots by index. An answer to the ResourceManager names the allocated slots (Flink's SlotReport). A
    request of the JobMaster names the slots that it holds at this TaskManager (AllocatedSlotReport)."""


class ReportQueue(Struct, frozen=True):
    """TaskExecutor → JobMaster: the receive queue of a task, for the coordinator of flow control."""

    attempt: str
    report: QueueReport


class SetSourceRate(Struct, frozen=True):
    """JobMaster → TaskExecutor: the coordinator of flow control limits a source subtask."""

    attempt: str
    rate: float
    """Records per second. 0 stops the source, a negative rate removes the limit."""


# ---- Client → Dispatcher -------------------------------------------------------------------------------------


class SubmitJob(Struct, frozen=True):
    graph: JobGraph
    configuration: dict[str, str]
    """Flink's option map with which this job runs (restart strategy, checkpointing, …)."""


class RequestJobStatus(Struct, frozen=True):
    job: str


class JobStatusReply(Struct, frozen=True):
    state: str
    cause_class: str = ""
    cause: str = ""
    restarts: int = 0
    tasks: dict[str, str] = field(default_factory=dict)
    """`vertex-subtask` → execution state of the newest attempt."""
    placement: dict[str, str] = field(default_factory=dict)
    """`vertex-subtask` → ResourceID of the newest attempt's TaskManager. For a client, the name of the
    TaskManager (`tm-2`)."""
    completed_checkpoints: int = 0
    taskmanagers: tuple[str, ...] = ()
    counters: dict[str, float] = field(default_factory=dict)
    """The gauges of live progress: records_per_s, credits, lag_s, …"""
    stop_refused: str = ""
    """Why the job cannot be stopped with a final checkpoint. Empty if the stop was not refused."""
    waits_for: str = ""
    """The wait of the JobMaster that has lasted longest, with its duration and the option that limits it. Empty if it waits for nothing."""

    @property
    def running_tasks(self) -> int:
        """The number of running tasks, including those that have finished."""
        states = list(self.tasks.values())
        return states.count("RUNNING") + states.count("FINISHED")

    @property
    def total_tasks(self) -> int:
        return len(self.tasks)


class CancelJob(Struct, frozen=True):
    job: str


class StopWithDrain(Struct, frozen=True):
    """Stop with a final checkpoint; the job ends FINISHED."""

    job: str


class Acknowledge(Struct, frozen=True):
    accepted: bool = True
    reason: str = ""


CHUNK_RECORDS = 4096
"""Sequence numbers per chunk of a SinkCommit's bitmap."""

MESSAGES: dict[str, type[Struct]] = {
    name: value
    for name, value in tuple(globals().items())
    if isinstance(value, type) and issubclass(value, Struct) and value.__module__ == __name__
}
"""Every message, by its name."""
