"""Waits: intervals in which something could not proceed, each with the option or resource that bounded it.

Processes record waits (`history.waits.WaitLog`), and `checking` walks back over them to find whose second it was. A kind
is declared once, in KINDS.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.core.options import ALIASES, LOCAL_RECOVERY, STANDALONE_START_UP

STALL_TICK_S = 0.1
"""How often a process compares the time with its own schedule, to notice that it stood still."""


class Outcome(StrEnum):
    """How a wait ended."""

    COMPLETED = "completed"
    """It happened."""
    EXPIRED = "expired"
    """The budget was spent."""
    FIRED = "fired"
    """A timer that simply had to run: a restart delay, a heartbeat interval, a buffer timeout."""
    CANCELLED = "cancelled"
    FAILED = "failed"
    """It became impossible."""
    OPEN = "open"
    """Not ended when the record ended."""

    @property
    def belongs_to_option(self) -> bool:
        """Whether the option's value decided the duration. Otherwise the cause did, and the option has a margin."""
        return self in (Outcome.EXPIRED, Outcome.FIRED)


class Limit(Struct, frozen=True):
    """The limit of a wait: an option (of a product: `a × b`), its value as text, and the seconds that it allows."""

    option: str = ""
    value: str = ""
    seconds: float | None = None
    """None: it sets no limit, or a fixed one is not known."""


NO_LIMIT = Limit()


class WaitKind(Struct, frozen=True, kw_only=True):
    """A kind of wait. `phase` is the phase of a recovery that it belongs to (`recovery.<phase>`)."""

    name: str
    phase: str
    doc: str
    after: tuple[str, ...] = ()
    """Kinds of waits that have to end before one of this kind can start; a wait may name its own."""
    options: tuple[str, ...] = ()
    """Options that can bound it. The recorded wait names the one that did, or several with PRODUCT between them."""
    ends_with: str = ""
    """The kind of a wait that may end this one too, if it is another kind."""
    gives_up: bool = False
    """Whether one that expired gives up what may only be late: a lower value of its option does not help."""

    def may_be_limited_by(self, option: str) -> bool:
        return all(part in self.options for part in named_today(option).split(PRODUCT))


def ended_by(kind: str) -> str:
    """Return the kind of a wait with whose end one of this kind ends: its own, or the one that `ends_with` names."""
    return (KINDS[kind].ends_with if kind in KINDS else "") or kind


PRODUCT = " × "
"""Between the options of a limit that is their product."""


def named_today(option: str) -> str:
    """Return the option of a wait, or a product of several, by the keys of the newest Flink: waits have those of their version."""
    return PRODUCT.join(ALIASES.get(part, part) for part in option.split(PRODUCT))


JOBMASTER_NAME, RM_NAME = "JobMaster", "ResourceManager"
"""Their names in waits and causes."""
GROWN = ", now "
"""In the value of a limit, between the option's value and the delay that has grown from it."""
DETECTORS = (JOBMASTER_NAME, RM_NAME, "TaskManager", "JobManager", "Task")
"""The components that detect a failure."""
EVERYTHING = "everything"
"""Waits for a process that a fault has stopped."""
OWN_PARTITION = "its own"
"""The subject of a producer's wait for the registration of its own partition."""
POD_STEPS = ("pending", "image")
"""The kinds of waits of a pod before its process starts, in their order."""
REPLACE_LOST = "replaceLost"
"""The field of a document that delays the replacement of a TaskManager."""
_HEARTBEAT = ("heartbeat.timeout", "heartbeat.interval", "heartbeat.rpc-failure-threshold")
"""The options whose timeouts declare a peer lost."""

KINDS: Mapping[str, WaitKind] = {
    kind.name: kind
    for kind in (
        WaitKind(name="heartbeat", phase="detect", doc="a heartbeat from a peer, since the last one received", options=_HEARTBEAT),
        WaitKind(name="connection", phase="detect", doc="the close of the TCP connection to a peer that is gone", options=("taskmanager.network.netty.client.connectTimeoutSec",), gives_up=True),
        WaitKind(name="lease", phase="detect", doc="the renewal of the JobManager's lease, since the last one that succeeded", options=("high-availability.kubernetes.leader-election.renew-deadline",), gives_up=True),
        WaitKind(name="failure-report", phase="detect", doc="a task's failure to be reported to the JobMaster", options=("pekko.ask.timeout",), gives_up=True),
        WaitKind(name="cancellation", phase="cancel", doc="the tasks of the region to terminate", after=("heartbeat", "connection", "failure-report", "partition", "deployment", "checkpoint", "slot"), options=("task.cancellation.timeout", *_HEARTBEAT), ends_with="heartbeat"),
        WaitKind(name="fencing", phase="slots", doc="a heartbeat or the loss of a TaskManager that may be dead", after=("cancellation",), options=_HEARTBEAT),
        WaitKind(name="restart-delay", phase="slots", doc="the delay of the restart strategy", after=("heartbeat", "connection", "failure-report", "partition", "deployment", "checkpoint", "slot"), options=("restart-strategy.fixed-delay.delay", "restart-strategy.failure-rate.delay", "restart-strategy.exponential-delay.initial-backoff", "restart-strategy.exponential-delay.max-backoff")),
        WaitKind(name="input", phase="first-record", doc="the first record or the full result of a producer, with which its consumers are deployed", after=("deployment",)),
        WaitKind(name="slot-request", phase="slots", doc="more changes of slots that are requested or free, before they are allocated", after=("cancellation", "restart-delay", "fencing", "input"), options=("slot.request.max-interval", "slotmanager.requirement-check.delay")),
        WaitKind(name="slot", phase="slots", doc="a slot for each task", after=("cancellation", "restart-delay", "fencing", "input"), options=("slot.request.timeout", STANDALONE_START_UP, "pekko.ask.timeout"), gives_up=True),
        WaitKind(name="replacement", phase="slots", doc="the replacement of a lost TaskManager to be started", options=(REPLACE_LOST,)),
        WaitKind(name="pending", phase="slots", doc="a pod to be created and scheduled", after=("replacement",)),
        WaitKind(name="image", phase="slots", doc="the image and the container of a pod", after=("pending", "replacement")),
        WaitKind(name="start", phase="slots", doc="a process to start", after=("image", "pending", "replacement")),
        WaitKind(name="registration", phase="slots", doc="a TaskManager to register", after=("start",), options=("taskmanager.registration.timeout", "taskmanager.slot.timeout", "cluster.registration.initial-timeout", "cluster.registration.max-timeout", "cluster.registration.error-delay", "cluster.registration.refused-registration-delay", "pekko.ask.timeout"), gives_up=True),
        WaitKind(name="deployment", phase="deploy", doc="the TaskManagers to acknowledge the tasks", after=("slot",), options=("pekko.ask.timeout", "headgate.jobmanager.service-time", "headgate.taskmanager.service-time"), gives_up=True),
        WaitKind(name="jobmanager", phase="deploy", doc="a JobManager that is paused, dead, busy or cut off", options=(*_HEARTBEAT, "pekko.ask.timeout", "taskmanager.registration.timeout"), gives_up=True),
        WaitKind(name="leadership", phase="deploy", doc="a JobManager to be granted the leadership", after=("lease", "start"), options=("high-availability.kubernetes.leader-election.lease-duration", "high-availability.kubernetes.leader-election.retry-period")),
        WaitKind(name="restore", phase="restore", doc="a task's state", after=("deployment", "partition"), options=(LOCAL_RECOVERY,)),
        WaitKind(name="open", phase="deploy", doc="the functions of a task to open", after=("deployment", "partition", "restore")),
        WaitKind(name="partition", phase="reconnect", doc="a producer to register its partition", after=("deployment", "restore"), options=("taskmanager.network.request-backoff.initial", "taskmanager.network.request-backoff.max", "taskmanager.network.partition-request-timeout"), gives_up=True),
        WaitKind(name="first-record", phase="first-record", doc="the first new record at a sink", after=("partition", "open", "restore", "deployment"), options=("execution.buffer-timeout.interval",)),
        WaitKind(name="checkpoint", phase="detect", doc="the acknowledgements of a checkpoint", options=("execution.checkpointing.timeout", "execution.checkpointing.interval", "execution.checkpointing.tolerable-failed-checkpoints"), gives_up=True),
        WaitKind(name="completion", phase="restore", doc="the checkpoint store to complete a checkpoint that every task has acknowledged", after=("checkpoint",)),
        WaitKind(name="final-checkpoint", phase="steady", doc="a checkpoint that covers the end of the data, before which no task finishes", after=("first-record",), options=("execution.checkpointing.interval",)),
        WaitKind(name="alignment", phase="steady", doc="the barriers of all channels", options=("execution.checkpointing.aligned-checkpoint-timeout",)),
        WaitKind(name="iteration", phase="first-record", doc="the supersteps of an iteration, before which it has no result", after=("partition", "open", "deployment")),
        WaitKind(name="credit", phase="catch-up", doc="credit for data that is ready to be sent; one row per channel and sample window", options=("taskmanager.network.memory.buffers-per-channel", "taskmanager.network.memory.floating-buffers-per-gate")),
        WaitKind(name="catch-up", phase="catch-up", doc="the backlog of the job, bounded by its spare capacity", after=("first-record",)),
        WaitKind(name="stalled", phase="detect", doc="a process that is paused, or an event loop that stood still"),
        WaitKind(name="fault", phase="catch-up", doc="the end of a fault that the job survives without a failover"),
    )
}  # fmt: skip


class Wait(Struct, frozen=True, kw_only=True):
    """One recorded wait. Times are nanoseconds of the monotonic clock."""

    wait: str
    """Its id, unique in the trial: `<process>/<number>`."""
    kind: str
    who: str
    """The waiting party: `JobMaster`, `ResourceManager`, a process (`tm-0-1`) or a task (`map-3`)."""
    what: str
    """The subject: a ResourceID, a partition, a task, a checkpoint."""
    start_ns: int
    end_ns: int
    attempt: int = -1
    """Execution attempt of a task, or the number of the deployment of the JobMaster; -1 when neither applies."""
    option: str = ""
    """The key of the option that limits this wait; empty if none does."""
    value: str = ""
    """The option's value in effect, as text. Of a product: `1 s × 2`."""
    budget_ns: int = -1
    """How long the option lets it wait; -1 without a limit."""
    outcome: Outcome = Outcome.COMPLETED
    cause: str = ""
    """The end of the wait, or the need for it, in words."""
    after: tuple[str, ...] = ()
    """Ids of waits of the same process that had to end first. Empty: the kind's `after` decides."""
    fault: str = ""
    """Name of the fault that `cause` blames; empty if it blames none. `checking` finds it."""
    producer_ran: bool = False
    """Whether the producer of the partition ran all the time, so that only its answer was missing. `checking` finds it."""
    detail: str = ""
    """The part of the cause that differs from trial to trial, such as the size of a backlog."""

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Wait:
        """Read a row of the history's table `waits`."""
        return cls(
            wait=row["wait"], kind=row["kind"], who=row["who"], what=row["what"],
            start_ns=int(row["start_ns"]), end_ns=int(row["t_ns"]), attempt=int(row["attempt"]),
            option=row["option"], value=row["value"], budget_ns=int(row["budget_ns"]),
            outcome=Outcome(row["outcome"]), cause=row["cause"], after=tuple(filter(None, row["after"].split(" "))),
        )  # fmt: skip


def processes(who: str, what: str) -> set[str]:
    """Return both ends of a wait as processes. The JobMaster and the ResourceManager are in one process."""
    return {JOBMANAGER if end in (JOBMASTER_NAME, RM_NAME) else end for end in (who, what)}
