"""The JobManager: one process with the endpoints `dispatcher`, `resourcemanager` and `jobmaster`, on ports.

manager = JobManager(rpc, blobs, history, clock, ids=SystemIds(), random=SeededRandom(seed), options=options)
await manager.start()        # opens the endpoints, recovers the job of the store, starts the Rpc
await manager.close()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from testbed_runtime.core.faults.links import logical_name
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.job.leaderelection import LeaderElectionConfig
from testbed_runtime.core.job.messages import DISPATCHER, JOBMASTER, RESOURCEMANAGER
from testbed_runtime.core.options import Options
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.jobmanager.dispatcher import NO_SESSION, Dispatcher
from testbed_runtime.jobmanager.leadership import Leadership
from testbed_runtime.jobmanager.resourcemanager import ResourceManager
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.ports.execution import Clock, IdSource, RandomSource
from testbed_runtime.ports.rpc import Handler, Rpc
from testbed_runtime.ports.storage import BlobStore, HistorySink
from testbed_runtime.process.clock import StallMeter
from testbed_runtime.process.tasks import TaskKeeper


class JobManager:
    """Takes ownership of the Rpc: starts it and closes it.

    Without high availability it leads from `start` to `close`. With high availability, it leads while it holds the lease (`Leadership`),
    each time with a new leader session. Calls `on_fatal(text)` if it cannot lead: the process has to end."""

    def __init__(
        self,
        rpc: Rpc,
        blobs: BlobStore,
        history: HistorySink,
        clock: Clock,
        *,
        ids: IdSource,
        random: RandomSource,
        options: Options,
        name: str = "jobmanager-1",
        on_fatal: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._name = name
        self._rpc = rpc
        self._services = Services(
            rpc=rpc,
            blobs=blobs,
            history=history,
            clock=clock,
            ids=ids,
            random=random,
            options=options,
            tasks=TaskKeeper(),
            leader=ids.bytes16().hex(),
            waits=WaitLog(history, name, clock.now),
        )
        self._create_components(self._services)
        self._stalls = StallMeter(self._on_stall, lambda: self.resourcemanager.heartbeats.watching)
        self._former = NO_SESSION
        self._first: tuple[JobGraph, Mapping[str, str]] | None = None
        election = LeaderElectionConfig.of(options)
        self._leadership: Leadership | None = None
        if election is not None:
            self._leadership = Leadership(
                election,
                self._services,
                identity=ids.bytes16().hex(),
                on_grant=self._grant_leadership,
                on_revoke=self._revoke_leadership,
                on_fatal=on_fatal,
            )

    def _create_components(self, services: Services) -> None:
        """Create what runs in one leader session (DispatcherLeaderProcess, JobMasterServiceProcess, ResourceManager)."""
        self._session = services
        self.resourcemanager = ResourceManager(services)
        self.dispatcher = Dispatcher(services, self.resourcemanager)

    @property
    def leader(self) -> str:
        """The id of the current leader session, or of the last one."""
        return self._session.leader

    async def start(self) -> None:
        """Open the endpoints and recover the stored job, if there is one. With high availability another process may have the
        lease: then this happens when the lease has expired."""
        if self._leadership is None:
            await self._open()
            await self._rpc.start()
        else:
            await self._rpc.start()
            await self._leadership.start()

    async def _open(self) -> None:
        service_time_s = self._services.options.duration("headgate.jobmanager.service-time")
        handlers = self._metered(self.resourcemanager.handlers())
        self._rpc.serve(DISPATCHER, self.dispatcher.handlers())
        self._rpc.serve(RESOURCEMANAGER, handlers)
        self._rpc.serve(JOBMASTER, self.dispatcher.jobmaster_handlers, service_time_s=service_time_s)
        await self.dispatcher.recover(self._former)

    async def submit_first(self, graph: JobGraph, configuration: Mapping[str, str]) -> None:
        """Submit the job of application mode, after `start`, unless the store holds a job already. If this process does not lead
        yet, it does so as soon as it leads. Raises FlinkError."""
        self._first = (graph, configuration)
        if self._leadership is None or self._leadership.granted:
            await self.dispatcher.submit_first(graph, configuration)

    # ---- leadership

    async def _grant_leadership(self) -> None:
        """Start the services of a new leader session (DefaultDispatcherRunner.grantLeadership)."""
        if self._former is not NO_SESSION:
            leader = self._services.ids.bytes16().hex()
            self._create_components(replace(self._services, leader=leader, tasks=TaskKeeper()))
        text = f"DefaultDispatcherRunner was granted leadership with leader id {self.leader}. Creating new DispatcherLeaderProcess."
        self._record_leadership(text, granted=True)
        await self._open()
        if self._leadership is not None:
            await self._leadership.confirm(self.leader)
        if self._first is not None:
            await self.dispatcher.submit_first(*self._first)

    async def _revoke_leadership(self, why: str) -> None:
        """Stop the services (DefaultDispatcherRunner.revokeLeadership). The job is suspended, TaskManagers fail its tasks and look
        for the next leader."""
        text = f"DefaultDispatcherRunner was revoked the leadership with leader id {self.leader}. Stopping the DispatcherLeaderProcess."
        self._record_leadership(f"{text} {why}", granted=False)
        for endpoint in (DISPATCHER, JOBMASTER, RESOURCEMANAGER):
            await self._rpc.stop(endpoint)
        await self._session.tasks.close()
        ended = self.dispatcher.suspend(why)
        # lost again before the job was recovered: the numbers of the session before are still the newest
        self._former = ended if ended.status is not None else replace(self._former, why=why)
        self.resourcemanager.close()
        self._services.waits.cancel()

    def _record_leadership(self, text: str, *, granted: bool) -> None:
        data = {"granted": granted, "leader": self.leader}
        self._services.event("leadership", self._name, text=text, data=data)

    # ---- status, end

    def job_summary(self) -> dict[str, Any]:
        """Summarize the newest job; its state is `NONE` when there is none. TaskManagers have their logical names.

        `{state, cause, running, total, restarts, checkpoints, placement: {task: tm}, registered: [tm]}`"""
        status = self.dispatcher.status()
        return {
            "state": status.state,
            "cause": status.cause,
            "running": sum(1 for state in status.tasks.values() if state == "RUNNING"),
            "total": len(status.tasks),
            "restarts": status.restarts,
            "checkpoints": status.completed_checkpoints,
            "placement": {task: logical_name(name) for task, name in status.placement.items()},
            "registered": sorted(logical_name(name) for name in status.taskmanagers),
        }

    async def close(self) -> None:
        """Close the endpoints and release the lease; the job stays in the store. Idempotent."""
        self._stalls.close()
        if self._leadership is not None:
            await self._leadership.close()
        if self.dispatcher.jobmaster is not None:
            self.dispatcher.jobmaster.close()
        self.resourcemanager.close()
        await self._session.tasks.close()
        await self._services.parting.close()
        await self._rpc.close()
        self._services.waits.close()

    def _metered(self, handlers: dict[type, Handler]) -> dict[type, Handler]:
        """Start the stall meter with the first message: from then on there may be TaskManagers to watch."""

        async def metered(handler: Handler, message: Any) -> Any:
            self._stalls.start()
            return await handler(message)

        return {kind: partial(metered, handler) for kind, handler in handlers.items()}

    def _on_stall(self, seconds: float) -> None:
        self._services.event("loop.stall", self._name, data={"seconds": seconds})
        self._services.waits.stalled(self._name, seconds)
        self.resourcemanager.heartbeats.extend(seconds)
        if self.dispatcher.jobmaster is not None:
            self.dispatcher.jobmaster.heartbeats.extend(seconds)
