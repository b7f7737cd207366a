"""The JobManager: one process with the endpoints `dispatcher`, `resourcemanager` and `jobmaster`, on ports.

manager = JobManager(rpc, blobs, history, clock, ids=SystemIds(), random=SeededRandom(seed), options=options)
await manager.start()        # opens the endpoints, recovers the job of the store, starts the Rpc
await manager.close()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from testbed_runtime.core.faults.links import logical_name
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.job.messages import DISPATCHER, JOBMASTER, RESOURCEMANAGER
from testbed_runtime.core.options import Options
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.jobmanager.dispatcher import Dispatcher
from testbed_runtime.jobmanager.resourcemanager import ResourceManager
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.ports.execution import Clock, IdSource, RandomSource
from testbed_runtime.ports.rpc import Handler, Rpc
from testbed_runtime.ports.storage import BlobStore, HistorySink
from testbed_runtime.process.clock import StallMeter
from testbed_runtime.process.tasks import TaskKeeper


class JobManager:
    """Takes ownership of the Rpc: starts it and closes it."""

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
        self.resourcemanager = ResourceManager(self._services)
        self.dispatcher = Dispatcher(self._services, self.resourcemanager, self._with_options)
        self._stalls = StallMeter(self._on_stall, self._is_watching)

    @property
    def leader(self) -> str:
        return self._services.leader

    async def start(self) -> None:
        """Open the endpoints and recover the stored job, if there is one."""
        options = self._services.options
        service_time_s = options.duration("headgate.jobmanager.service-time")
        self._rpc.serve(DISPATCHER, self.dispatcher.handlers())
        self._rpc.serve(RESOURCEMANAGER, self._metered(self.resourcemanager.handlers()))
        self._rpc.serve(JOBMASTER, _JobMasterHandlers(self.dispatcher), service_time_s=service_time_s)
        await self.dispatcher.recover()
        await self._rpc.start()

    async def submit_first(self, graph: JobGraph, configuration: Mapping[str, str]) -> bool:
        """Submit the job of application mode, after `start`. Return False when the store holds a job already. Raises FlinkError."""
        return await self.dispatcher.submit_first(graph, configuration)

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
        """Close the endpoints; the job stays in the store. Idempotent."""
        self._stalls.close()
        if self.dispatcher.jobmaster is not None:
            self.dispatcher.jobmaster.close()
        self.resourcemanager.close()
        await self._services.tasks.close()
        await self._rpc.close()
        self._services.waits.close()

    def _with_options(self, options: Options) -> Services:
        return replace(self._services, options=options)

    def _metered(self, handlers: dict[type, Handler]) -> dict[type, Handler]:
        """Start the stall meter with the first message: from then on there may be TaskManagers to watch."""

        async def metered(handler: Handler, message: Any) -> Any:
            self._stalls.start()
            return await handler(message)

        return {kind: partial(metered, handler) for kind, handler in handlers.items()}

    def _is_watching(self) -> bool:
        return self.resourcemanager.heartbeats.watching

    def _on_stall(self, seconds: float) -> None:
        self._services.event("loop.stall", self._name, data={"seconds": seconds})
        self._services.waits.stalled(self._name, seconds)
        self.resourcemanager.heartbeats.extend(seconds)
        if self.dispatcher.jobmaster is not None:
            self.dispatcher.jobmaster.heartbeats.extend(seconds)


class _JobMasterHandlers(Mapping[type[Any], Handler]):
    """The handlers of the endpoint `jobmaster`: those of the current JobMaster."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def _current(self) -> Mapping[type[Any], Handler]:
        jobmaster = self._dispatcher.jobmaster
        return {} if jobmaster is None else jobmaster.handlers

    def __getitem__(self, kind: type[Any]) -> Handler:
        return self._current()[kind]

    def __iter__(self) -> Iterator[type[Any]]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())
