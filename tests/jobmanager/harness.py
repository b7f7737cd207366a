"""A JobManager in virtual time with TaskManagers that keep to the protocol and do what a test says, without an exchange."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex
from testbed_runtime.core.job.messages import (
    Acknowledge,
    AcknowledgeCheckpoint,
    CancelTask,
    FreeSlot,
    Heartbeat,
    JobStatusReply,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    OfferSlots,
    RegisterAtJobMaster,
    RegisterTaskManager,
    RemoteHandshakeMessage,
    RequestJobStatus,
    RequestSlot,
    SinkCommit,
    SlotReport,
    SubmitJob,
    SubmitTask,
    TaskDeploymentDescriptor,
    TriggerCheckpoint,
    UpdateTaskExecutionState,
)
from testbed_runtime.core.options import Options
from testbed_runtime.history.schema import by_column
from testbed_runtime.jobmanager.process import JobManager
from testbed_runtime.process.clock import LoopClock, SeededIds, SeededRandom
from testbed_runtime.simulation.loop import run_virtual, spawn
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from tests.waiting import until

GRAPH = JobGraph(
    "job",
    (
        JobVertex("source", 2, 128, "src"),
        JobVertex("count", 2, 128, "main"),
        JobVertex("sink", 2, 128, "main"),
    ),
    (JobEdge("source", "count", "hash"), JobEdge("count", "sink", "forward")),
    seed=7,
)
CONFIGURATION = {
    "heartbeat.interval": "1 s",
    "heartbeat.timeout": "5 s",
    "execution.checkpointing.interval": "1 s",
    "pekko.ask.timeout": "3 s",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000",
    "restart-strategy.fixed-delay.delay": "0 s",
}
ASK_S = 30.0


class Rows:
    """A HistorySink that keeps rows with the time at which they came."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def append(self, table: str, **row: Any) -> None:
        self.rows.append({"table": table, "t": asyncio.get_running_loop().time(), **row})

    def put(self, table: str, values: tuple[Any, ...]) -> None:
        self.append(table, **by_column(table, values))

    async def flush(self) -> bool:
        return True

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["table"] == "events" and row["kind"] == kind]

    def table(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["table"] == name]


@dataclass
class ScriptedTaskManager:
    """Takes slots and tasks, acknowledges checkpoints. Fields say what it does not do."""

    resource_id: TaskManagerID
    switchboard: Switchboard
    jobmanager: tuple[str, int]
    slots: int = 1
    options: dict[str, str] = field(default_factory=dict)
    starts_tasks: bool = True
    reports_end: bool = True
    acknowledges: bool = True
    finishes: bool = True
    """Its tasks end some time after the final checkpoint."""
    withheld: int = 0
    """Slots that it grants first, and frees without an offer."""
    refusals: int = 0
    """Slot requests to refuse first."""
    service_time_s: float = 0.0
    answers: tuple[str, ...] = ("resourcemanager", "jobmaster")
    """Whose heartbeats it answers."""
    commit: SinkCommit | None = None
    tasks: dict[str, TaskDeploymentDescriptor] = field(default_factory=dict)
    submitted: list[TaskDeploymentDescriptor] = field(default_factory=list)
    notified: list[int] = field(default_factory=list)
    aborted: list[tuple[str, int]] = field(default_factory=list)
    """Attempts, and the checkpoints that were aborted."""
    named_completed: list[int] = field(default_factory=list)
    """The completed checkpoints that those notifications name."""
    free: list[str] = field(default_factory=list)
    allocated: dict[str, int] = field(default_factory=dict)
    """Allocations and the indices of their slots."""
    requested_at: list[float] = field(default_factory=list)
    """When slots were requested, in seconds of the loop's time."""
    leader: str = ""
    registration: int = 0
    handlers: dict[type[Any], Any] = field(default_factory=dict)
    """How it handles each message."""
    background: list[asyncio.Task[Any]] = field(default_factory=list)

    async def start(self) -> None:
        self.rpc = MemoryRpc(self.resource_id.name, self.switchboard)
        await self.rpc.start()
        self.handlers = {
            RequestSlot: self._request_slot,
            FreeSlot: self._free_slot,
            SubmitTask: self._submit,
            CancelTask: self._cancel,
            TriggerCheckpoint: self._trigger,
            NotifyCheckpointComplete: self._notify,
            NotifyCheckpointAborted: self._abort,
            Heartbeat: self._heartbeat,
            RemoteHandshakeMessage: self._handshake,
        }
        self.rpc.serve("taskexecutor", self.handlers, service_time_s=self.service_time_s)
        await self.register()

    async def register(self) -> None:
        message = RegisterTaskManager(str(self.resource_id), self.rpc.address, self.slots, "sim")
        answer = await self.ask("resourcemanager", message)
        self.registration = answer.registration
        report = SlotReport(str(self.resource_id), answer.leader, answer.registration, self.slot_report)
        await self.ask("resourcemanager", report)

    @property
    def slot_report(self) -> tuple[tuple[int, str], ...]:
        return tuple((index, allocation) for allocation, index in self.allocated.items())

    @property
    def data(self) -> tuple[str, int]:
        return ("127.0.0.1", 7000 + self.resource_id.ordinal)

    async def ask(self, endpoint: str, message: Any, timeout_s: float = ASK_S) -> Any:
        return await self.rpc.ask("jobmanager", self.jobmanager, endpoint, message, timeout_s=timeout_s)

    async def die(self) -> None:
        """As SIGKILL: the connections are reset."""
        for task in self.background:
            task.cancel()
        await asyncio.gather(*self.background, return_exceptions=True)
        await self.rpc.close()

    def later(self, work: Any) -> None:
        self.background.append(asyncio.get_running_loop().create_task(work))

    async def _handshake(self, message: RemoteHandshakeMessage) -> Acknowledge:
        del message
        return Acknowledge()

    async def _request_slot(self, message: RequestSlot) -> Acknowledge:
        self.leader = message.jobmaster_leader
        self.requested_at.append(asyncio.get_running_loop().time())
        if self.refusals > 0:
            self.refusals -= 1
            raise FlinkError("SlotOccupiedException", "The slot is already assigned.")
        if self.withheld > 0:
            self.withheld -= 1
            return Acknowledge()
        self.allocated[message.allocation] = message.slot
        self.later(self._offer(message))
        return Acknowledge()

    async def _offer(self, message: RequestSlot) -> None:
        rid = str(self.resource_id)
        register = RegisterAtJobMaster(
            rid, self.rpc.address, self.data, message.job, message.jobmaster_leader
        )
        await self.ask("jobmaster", register)
        offer = OfferSlots(rid, message.job, message.jobmaster_leader, ((message.slot, message.allocation),))
        await self.ask("jobmaster", offer)

    async def _free_slot(self, message: FreeSlot) -> Acknowledge:
        self.free.append(message.allocation)
        self.allocated.pop(message.allocation, None)
        return Acknowledge()

    async def _submit(self, message: SubmitTask) -> Acknowledge:
        descriptor = message.descriptor
        self.submitted.append(descriptor)
        self.tasks[descriptor.attempt] = descriptor
        if self.starts_tasks:
            self.later(self._run(descriptor.attempt))
        return Acknowledge()

    async def _run(self, attempt: str) -> None:
        for state in ("INITIALIZING", "RUNNING"):
            await self.report(attempt, state)

    async def report(
        self,
        attempt: str,
        state: str,
        cause_class: str = "",
        cause: str = "",
        partition: str = "",
        lost_taskmanager: str = "",
    ) -> Any:
        message = UpdateTaskExecutionState(
            attempt, state, str(self.resource_id), cause_class, cause, partition, lost_taskmanager
        )
        return await self.ask("jobmaster", message)

    async def report_lost_connection(self, attempt: str, peer: ScriptedTaskManager) -> Any:
        """Report a task that failed because the connection to `peer` closed."""
        lost = str(peer.resource_id)
        return await self.report(
            attempt, "FAILED", "RemoteTransportException", LOST.format(lost), lost_taskmanager=lost
        )

    async def _cancel(self, message: CancelTask) -> Acknowledge:
        if self.tasks.pop(message.attempt, None) is None:
            return Acknowledge(accepted=False)
        if self.reports_end:
            self.later(self.report(message.attempt, "CANCELED"))
        return Acknowledge()

    async def _trigger(self, message: TriggerCheckpoint) -> Acknowledge:
        descriptor = self.tasks[message.attempt]
        if self.acknowledges and (descriptor.vertex.name, descriptor.subtask) == ("source", 0):
            for peer in self.neighbours:
                for attempt in list(peer.tasks):
                    peer.later(peer.acknowledge(attempt, message))
        return Acknowledge()

    asked_at: list[float] = field(default_factory=list)
    """When the ResourceManager sent a heartbeat, in seconds of the loop's time."""
    neighbours: list[ScriptedTaskManager] = field(default_factory=list)
    """Whose tasks get the barriers of the first source: set by the Cluster."""

    async def acknowledge(self, attempt: str, trigger: TriggerCheckpoint) -> Any:
        descriptor = self.tasks[attempt]
        is_sink = descriptor.vertex.name == "sink"
        commit = replace(self.commit, checkpoint=trigger.checkpoint) if is_sink and self.commit else None
        key = f"jobs/{descriptor.job}/checkpoints/{trigger.checkpoint}/{descriptor.vertex.name}-{descriptor.subtask}"
        message = AcknowledgeCheckpoint(
            attempt, trigger.checkpoint, key, 100, 0.01, commit, persisted_bytes=7, reused_bytes=40
        )
        answer = await self.ask("jobmaster", message)
        if trigger.drain and answer.accepted and self.finishes:
            await asyncio.sleep(0.1)
            if self.tasks.pop(attempt, None) is not None:
                await self.report(attempt, "FINISHED")
        return answer

    async def _notify(self, message: NotifyCheckpointComplete) -> Acknowledge:
        self.notified.append(message.checkpoint)
        return Acknowledge()

    async def _abort(self, message: NotifyCheckpointAborted) -> Acknowledge:
        self.aborted.append((message.attempt, message.checkpoint))
        self.named_completed.append(message.latest_completed)
        return Acknowledge()

    async def _heartbeat(self, message: Heartbeat) -> Acknowledge:
        endpoint = "resourcemanager" if message.origin == "resourcemanager" else "jobmaster"
        if endpoint == "resourcemanager":
            self.asked_at.append(asyncio.get_running_loop().time())
        payload = {"records_out": 10.0, "lag_s": float(self.resource_id.ordinal)}
        held = tuple(self.tasks)
        rid, slots = str(self.resource_id), self.slot_report
        answer = Heartbeat(rid, message.leader, payload, message.asked_at, held, slots)
        if endpoint in self.answers:
            self.later(_quietly(self.ask(endpoint, answer, 5.0)))
        return Acknowledge()


async def _quietly(work: Any) -> None:
    try:
        await work
    except Exception:
        return


class Cluster:
    """`async with Cluster(n, **options) as cluster:` in virtual time."""

    def __init__(self, count: int, configuration: dict[str, str] | None = None, **options: Any) -> None:
        self.configuration = {**CONFIGURATION, **(configuration or {})}
        self.flink_version = options.pop("flink_version", "2.x")
        self.rows = Rows()
        self.blobs = options.pop("blobs", None) or MemoryBlobStore()
        self.switchboard = Switchboard(lambda source, destination: 0.001)
        self.address = self.switchboard.free_address()
        self._count = count
        self._options = options
        self.tms: list[ScriptedTaskManager] = []
        self._leaders = 0

    async def __aenter__(self) -> Cluster:
        await self.start_jobmanager()
        self.client = MemoryRpc("runner", self.switchboard)
        await self.client.start()
        for ordinal in range(self._count):
            await self.add(TaskManagerID(ordinal, 1), **self._options)
        return self

    async def start_jobmanager(self) -> None:
        """As the simulated process `jobmanager`."""
        await spawn("jobmanager", self._start_jobmanager(), name="jobmanager")

    async def _start_jobmanager(self) -> None:
        self._leaders += 1
        options = Options(self.configuration, flink_version=self.flink_version)
        rpc = MemoryRpc(
            "jobmanager",
            self.switchboard,
            address=self.address,
            flink_version=self.flink_version,
            history=self.rows,
        )
        self.manager = JobManager(
            rpc,
            self.blobs,
            self.rows,
            LoopClock("sim"),
            ids=SeededIds(self._leaders),
            random=SeededRandom(7),
            options=options,
        )
        await self.manager.start()

    async def add(self, resource_id: TaskManagerID, **options: Any) -> ScriptedTaskManager:
        made = ScriptedTaskManager(resource_id, self.switchboard, self.address, **options)
        self.tms.append(made)
        for tm in self.tms:
            tm.neighbours = self.tms
        await made.start()
        return made

    async def __aexit__(self, *exc: object) -> None:
        for tm in self.tms:
            await tm.die()
        await self.client.close()
        await self.manager.close()

    async def submit(self, graph: JobGraph = GRAPH) -> str:
        message = SubmitJob(graph, {})
        answer = await self.client.ask("jobmanager", self.address, "dispatcher", message, timeout_s=ASK_S)
        return answer.reason

    async def dispatch(self, message: Any) -> Any:
        return await self.client.ask("jobmanager", self.address, "dispatcher", message, timeout_s=ASK_S)

    @property
    def free_slots(self) -> int:
        return self.manager.resourcemanager._table.free

    async def status(self) -> JobStatusReply:
        return await self.dispatch(RequestJobStatus(""))

    async def until(self, condition: Any, limit_s: float = 120.0) -> None:
        """Wait until `condition()` holds; in virtual time polling costs nothing."""
        await until(condition, seconds=limit_s, poll_s=0.01)

    async def until_running(self) -> None:
        jobmaster = self.manager.dispatcher.jobmaster
        assert jobmaster is not None
        await self.until(
            lambda: (
                jobmaster.state == "RUNNING"
                and all(e.state.value == "RUNNING" for e in jobmaster.graph.executions)
            )
        )

    async def until_state(self, state: str, limit_s: float = 120.0) -> None:
        await self.until(lambda: self.manager.dispatcher.jobmaster.state == state, limit_s)

    def running_on(self, name: str) -> ScriptedTaskManager:
        """The TaskManager with the newest attempt of a subtask (`count-0`)."""
        placed = self.manager.dispatcher.jobmaster.status().placement[name]
        return next(tm for tm in self.tms if str(tm.resource_id) == placed)

    def attempt_of(self, name: str) -> str:
        vertex, _, subtask = name.rpartition("-")
        return str(self.manager.dispatcher.jobmaster.graph.execution((vertex, int(subtask))).attempt)


COMMIT = SinkCommit(chunks=(("source-0", 0, "0f", 0, 0, 0),))
LOST = "Connection unexpectedly closed by remote task manager '127.0.0.1:7001 [ {} ] '. This might indicate that the remote task manager was lost."


@contextlib.asynccontextmanager
async def running_job(count: int, configuration: dict[str, str] | None = None, **options: Any):
    """A cluster whose job is RUNNING."""
    async with Cluster(count, configuration, **options) as cluster:
        await cluster.submit()
        await cluster.until_running()
        yield cluster


def virtually(test):
    """Run a coroutine test in virtual time."""

    def run():
        run_virtual(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def data_of(row):
    """An event's data, whether it was written as text or not."""
    return row["data"] if isinstance(row["data"], dict) else json.loads(row["data"])


def jobmaster_waits(cluster, *kinds):
    """The JobMaster's waits of these kinds: kind, for what, round, option, outcome, cause and milliseconds."""
    rows = [r for r in cluster.rows.table("waits") if r["who"] == "JobMaster" and r["kind"] in kinds]
    columns = ("kind", "what", "attempt", "option", "outcome", "cause")
    return [(*(r[c] for c in columns), round((r["t_ns"] - r["start_ns"]) / 1e6)) for r in rows]


def heartbeats_waited_for(cluster):
    """The waits for heartbeats: who waited and for whom, option, outcome, cause and seconds."""
    rows = [row for row in cluster.rows.table("waits") if row["kind"] == "heartbeat"]
    columns = ("who", "what", "option", "outcome", "cause")
    return [(*(r[c] for c in columns), round((r["t_ns"] - r["start_ns"]) / 1e9, 2)) for r in rows]


def times(cluster, kind):
    """When events of that kind were written."""
    return [row["t"] for row in cluster.rows.events(kind)]
