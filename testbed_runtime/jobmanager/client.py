"""A client of the Dispatcher, as every TestbedHost uses it: submit a job, read its status, stop it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from testbed_runtime.core.errors import HeadgateError, StopRefused
from testbed_runtime.core.faults.links import logical_name
from testbed_runtime.core.ids import JOB, JOBMANAGER
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.job.messages import (
    DISPATCHER,
    TERMINAL_JOB_STATES,
    JobStatusReply,
    RequestJobStatus,
    StopWithDrain,
    SubmitJob,
)
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import NoAnswer, RemoteFailure, Rpc

ASK_S = 2.0
SUBMIT_LIMIT_S = 10.0
RECOVERY_S = 10.0
"""How long a JobManager that answers again may take to recover its job."""
POLL_S = 0.05
FIRST_POLL_S = 0.001
"""Slot reports follow registrations within a millisecond, so the next question comes soon. Each later one waits twice as long."""


class JobClient:
    """A client for the job of a testbed. Calls that wait ask again while the JobManager is unreachable (killed, paused)."""

    def __init__(self, rpc: Rpc, jobmanager: Address) -> None:
        self._rpc = rpc
        self._jobmanager = jobmanager

    async def until_registered(self, task_managers: int, *, limit_s: float) -> None:
        """Wait until this number of TaskManagers have registered and reported their slots. Raises HeadgateError on timeout."""
        registered, pause_s = 0, FIRST_POLL_S
        end = asyncio.get_running_loop().time() + limit_s
        while registered < task_managers:
            if asyncio.get_running_loop().time() >= end:
                raise HeadgateError(
                    f"{registered} of {task_managers} TaskManagers registered within {limit_s:g} s"
                )
            with contextlib.suppress(NoAnswer):
                registered = len((await self._ask(RequestJobStatus(""))).taskmanagers)
            if registered < task_managers:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, POLL_S)

    async def submit(self, graph: JobGraph, configuration: Mapping[str, str]) -> None:
        await self._ask(SubmitJob(graph, dict(configuration)), timeout_s=SUBMIT_LIMIT_S)

    async def status(self) -> JobStatusReply:
        """Return the job's status. Raises RecipientUnreachable or AskTimeout while the JobManager does not answer."""
        reply: JobStatusReply = await self._ask(RequestJobStatus(JOB))
        names = {resource: logical_name(resource) for resource in set(reply.placement.values())}
        placement = {task: names[resource] for task, resource in reply.placement.items()}
        return replace(reply, placement=placement)

    async def stop_with_drain(self, *, timeout_s: float, poll_s: float = POLL_S) -> bool:
        """Stop with a final checkpoint. Return whether the job was FINISHED within the limit, asked every `poll_s`. Raises
        StopRefused as soon as the JobMaster refuses it."""
        loop = asyncio.get_running_loop()
        end, asked = loop.time() + timeout_s, False
        patience = loop.time() + RECOVERY_S
        while loop.time() < end:
            try:
                if not asked:
                    await self._ask(StopWithDrain(JOB))
                    asked = True
                status = await self.status()
            except NoAnswer:
                patience = loop.time() + RECOVERY_S
            except RemoteFailure:  # a JobManager that restarts does not know the job at first
                if loop.time() >= patience:
                    raise
            else:
                if status.state in TERMINAL_JOB_STATES:
                    return status.state == "FINISHED"
                if status.stop_refused:
                    raise StopRefused(status.stop_refused)
            await asyncio.sleep(poll_s)
        return False

    async def _ask(self, message: Any, *, timeout_s: float = ASK_S) -> Any:
        return await self._rpc.ask(JOBMANAGER, self._jobmanager, DISPATCHER, message, timeout_s=timeout_s)
