"""The Dispatcher: accepts jobs, answers clients, recovers the stored job after the JobManager restarted."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.executiongraph import derive_id
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.job.messages import (
    TERMINAL_JOB_STATES,
    Acknowledge,
    CancelJob,
    JobStatusReply,
    RequestJobStatus,
    StopWithDrain,
    SubmitJob,
)
from testbed_runtime.core.job.restore import STATE_RECOVERY, with_max_parallelism
from testbed_runtime.core.options import Options
from testbed_runtime.jobmanager.completed import CompletedCheckpoints
from testbed_runtime.jobmanager.jobmaster import JobMaster
from testbed_runtime.jobmanager.jobstore import (
    CompletedCheckpoint,
    JobStore,
    StoredJob,
    StoredRecovery,
    StoredStatus,
)
from testbed_runtime.jobmanager.resourcemanager import ResourceManager
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.jobmanager.state import JobState
from testbed_runtime.ports.rpc import Handler

MAX_SUBTASKS = 10_000
"""Limit for one job."""
NO_JOB = "NONE"
"""The reported state while no job was submitted."""
CHECKPOINTING_DISABLED = (
    "Disabled Checkpointing. Checkpointing is not supported and not needed when executing jobs in BATCH mode."
)
"""Flink's text."""


class FormerSession(Struct, frozen=True):
    """How the previous leader session of the same process ended, and its latest knowledge of the job, which the store may not have."""

    why: str = ""
    job: str = ""
    status: StoredStatus | None = None

    def known(self, stored: StoredJob, status: StoredStatus) -> StoredStatus:
        """Return the status of a stored job, updated with numbers (such as attempts) that were not stored, so that none is used twice."""
        mine = self.status
        if mine is None or self.job != stored.job:
            return status
        if mine.state in TERMINAL_JOB_STATES:
            return mine
        return replace(
            status,
            attempt=max(status.attempt, mine.attempt),
            restarts=max(status.restarts, mine.restarts),
            failovers=max(status.failovers, mine.failovers),
            checkpoint=max(status.checkpoint, mine.checkpoint),
            draining=status.draining or mine.draining,
        )


NO_SESSION = FormerSession()


class Dispatcher:
    """Runs one job at a time; another may be submitted when it has ended.

    Clients name a job by its id or its name. An empty name means the newest job."""

    def __init__(self, services: Services, resourcemanager: ResourceManager) -> None:
        self._services = services
        self._rm = resourcemanager
        self._store = JobStore(services.blobs)
        self._submitted = 0
        self._ended: tuple[StoredJob, StoredStatus] | None = None
        """The newest job, if it had ended before this JobManager started."""
        self.jobmaster: JobMaster | None = None
        self.jobmaster_handlers: dict[type, Handler] = {}
        """The handlers of the endpoint `jobmaster`: those of the current JobMaster."""

    def handlers(self) -> dict[type, Handler]:
        return {
            SubmitJob: self._submit,
            RequestJobStatus: self._status,
            CancelJob: self._cancel,
            StopWithDrain: self._stop,
        }

    async def recover(self, former: FormerSession) -> None:
        """Recover the newest job of the store. Of one that has ended, recover only the result (Flink's JobResultStore)."""
        jobs = await self._store.jobs()
        self._submitted = len(jobs)
        if not jobs:
            return
        stored = jobs[-1]
        try:
            before = await self._store.status(stored.job)
        except KeyError:
            before = StoredStatus(state="CREATED", epoch=0, attempt=-1, restarts=0)
        status = former.known(stored, before)
        recovery = await self._recovery(stored.configuration)
        if recovery is not None:  # the killed JobManager may not have recorded it
            self._record_restored(recovery, stored.job)
        latest = await self._store.latest(stored.job)
        if status.state in TERMINAL_JOB_STATES:
            completed = CompletedCheckpoints(self._services, stored.job, self._store, latest)
            await completed.record_again()
            self._services.tasks.spawn(completed.mark_recorded(), f"record-{stored.job[:8]}")
            self._ended = stored, status
            if status != before:
                state = JobState(self._services, self._store, stored.job, lambda: status)
                state.name = status.state
                state.save()
        else:
            await self._run(stored, status, latest, former.why)

    async def submit_first(self, graph: JobGraph, configuration: Mapping[str, str]) -> None:
        """Submit the job in application mode, unless the store holds a job already, in any state. Raises FlinkError."""
        if not self._submitted:
            await self._submit(SubmitJob(graph, dict(configuration)))

    def status(self, job: str = "") -> JobStatusReply:
        """Return the status of the newest job, or of the named one. Raises FlinkError when it does not exist."""
        if (ended := self._ended_job(job)) is not None:
            return JobStatusReply(
                ended.state,
                cause_class=ended.cause_class,
                cause=ended.cause,
                restarts=ended.restarts,
                taskmanagers=self._rm.taskmanagers,
            )
        if self.jobmaster is None and not job:
            return JobStatusReply(NO_JOB, taskmanagers=self._rm.taskmanagers)
        return self._find(job).status()

    def _ended_job(self, job: str) -> StoredStatus | None:
        """Return the last status of a job that ended before this JobManager started."""
        if self._ended is None or job not in ("", self._ended[0].job, self._ended[0].graph.name):
            return None
        return self._ended[1]

    async def _submit(self, message: SubmitJob) -> Acknowledge:
        """Submit a job. The `reason` of the answer is the job's id."""
        current = self.jobmaster
        if current is not None and current.state not in TERMINAL_JOB_STATES:
            raise FlinkError("DuplicateJobSubmissionException", f"The job {current.job} is still running.")
        _check(message.graph)
        recovery = await self._recovery(message.configuration)
        self._submitted += 1
        identity: list[object] = ["job", message.graph.seed, message.graph.name, self._submitted]
        if recovery is not None:
            identity.append(recovery.checkpoint.checkpoint)  # it is not the job that took the checkpoint
        job = derive_id(*identity).hex()
        started = self._services.clock.now() - (recovery.elapsed_s if recovery is not None else 0.0)
        graph = message.graph if recovery is None else with_max_parallelism(message.graph, recovery.graph)
        stored = StoredJob(job, graph, dict(message.configuration), started)
        try:
            latest = await self._begin_at(recovery, job) if recovery is not None else None
            await self._store.put_job(stored)
            await self._run(stored, None, latest)
        except OSError as error:
            self.jobmaster = None
            self.jobmaster_handlers.clear()
            raise FlinkError("JobSubmissionException", f"The job cannot be stored: {error}") from None
        return Acknowledge(True, job)

    async def _recovery(self, configuration: Mapping[str, str]) -> StoredRecovery | None:
        if not self._options(configuration).text(STATE_RECOVERY):
            return None
        try:
            return await self._store.recovery()
        except KeyError:
            text = f"The checkpoint of {STATE_RECOVERY} is not in the checkpoint store."
            raise FlinkError("JobSubmissionException", text) from None

    async def _begin_at(self, recovery: StoredRecovery, job: str) -> CompletedCheckpoint:
        """Make a kept checkpoint the first one of a job, so that it survives the JobManager."""
        first = replace(recovery.checkpoint, job=job)
        await self._store.put_checkpoint(first)
        self._record_restored(recovery, job)
        return first

    def _record_restored(self, recovery: StoredRecovery, job: str) -> None:
        checkpoint, data = recovery.checkpoint.checkpoint, {"next": recovery.positions}
        self._services.event("job.restored", job, checkpoint=checkpoint, data=data)

    def _options(self, configuration: Mapping[str, str]) -> Options:
        base = self._services.options
        return Options({**base.as_map(), **configuration}, flink_version=base.flink_version)

    async def _run(
        self,
        stored: StoredJob,
        status: StoredStatus | None,
        latest: CompletedCheckpoint | None,
        revoked: str = "",
    ) -> None:
        self._ended = None
        if self.jobmaster is not None:
            self.jobmaster.close()
        options = self._options(stored.configuration)
        if stored.graph.is_batch and options.duration("execution.checkpointing.interval") > 0:
            self._services.event("note", stored.job, text=CHECKPOINTING_DISABLED)
        services = replace(self._services, options=options.of_job(batch=stored.graph.is_batch))
        self.jobmaster = JobMaster(
            services, self._rm, self._store, stored, recovered=status, latest=latest, revoked=revoked
        )
        self.jobmaster_handlers.clear()
        self.jobmaster_handlers.update(self.jobmaster.handlers)
        await self.jobmaster.start()

    def suspend(self, why: str) -> FormerSession:
        """Suspend the job after a loss of leadership, and return what the next session has to know."""
        if self.jobmaster is None:
            return FormerSession(why)
        self.jobmaster.suspend()
        return FormerSession(why, self.jobmaster.job, self.jobmaster.stored_status())

    def _find(self, job: str) -> JobMaster:
        if self.jobmaster is None or job not in ("", self.jobmaster.job, self.jobmaster.stored.graph.name):
            raise FlinkError("FlinkJobNotFoundException", f"Could not find Flink job ({job})")
        return self.jobmaster

    async def _status(self, message: RequestJobStatus) -> JobStatusReply:
        return self.status(message.job)

    async def _cancel(self, message: CancelJob) -> Acknowledge:
        """Cancel a job. One that has ended otherwise cannot be cancelled any more (Dispatcher.cancelJob)."""
        state = self.status(message.job).state
        if state in TERMINAL_JOB_STATES - {"CANCELED"}:
            job = self._ended[0].job if self._ended is not None else self._find(message.job).job
            raise FlinkError(
                "FlinkJobTerminatedWithoutCancellationException",
                f"Flink job ({job}) was not canceled, but instead {state}.",
            )
        if self._ended is None:
            self._find(message.job).cancel()
        return Acknowledge()

    async def _stop(self, message: StopWithDrain) -> Acknowledge:
        if self._ended_job(message.job) is None:
            self._find(message.job).stop_with_drain()
        return Acknowledge()


def _check(graph: JobGraph) -> None:
    subtasks = sum(vertex.parallelism for vertex in graph.vertices)
    if not 0 < subtasks <= MAX_SUBTASKS:
        raise FlinkError(
            "JobSubmissionException", f"A job has 1 to {MAX_SUBTASKS} subtasks, this one {subtasks}."
        )
    for edge in graph.edges:
        above, below = graph.vertex(edge.source), graph.vertex(edge.target)
        if edge.partitioning == "forward" and above.parallelism != below.parallelism:
            raise FlinkError(
                "UnsupportedOperationException",
                f"Forward partitioning does not allow change of parallelism. Upstream operation: {above.name} "
                f"parallelism: {above.parallelism}, downstream operation: {below.name} parallelism: "
                f"{below.parallelism} You must use another partitioning strategy, such as broadcast, rebalance, "
                "shuffle or global.",
            )
