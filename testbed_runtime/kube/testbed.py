"""A testbed of pods for the engine: the job by RPC, faults by the pods' agents, the record at the run's recorder."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.api import naming
from testbed_runtime.core.documents import FILES_FOLDER, HISTORY_FOLDER
from testbed_runtime.core.errors import HeadgateError, TestbedDisrupted
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.faults.vocabulary import POD_BACKEND
from testbed_runtime.core.ids import JOBMANAGER, PROXY, RUNNER, STORE, SUPERVISOR
from testbed_runtime.core.job.messages import JobStatusReply
from testbed_runtime.core.trial.plan import TestbedPlan
from testbed_runtime.faults.backend import Unreachable
from testbed_runtime.faults.fanout import PACKETS, Agent
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.faults.probes import path_from
from testbed_runtime.faults.registry import Capabilities, check_fault
from testbed_runtime.history.recording.sink import StreamingSink
from testbed_runtime.jobmanager.client import JobClient
from testbed_runtime.kube.agentfaults import AddressOf, AgentFaults
from testbed_runtime.kube.disruptions import Disruptions
from testbed_runtime.kube.podfaults import PodFaults
from testbed_runtime.kube.podstarts import PodStarts
from testbed_runtime.kube.recorder import RecorderFolder
from testbed_runtime.ports.hosts import STOP_GRACE_S, FaultHandle, TrialContext
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.process.clock import system_boot_id
from testbed_runtime.process.config import ProcessConfig
from testbed_runtime.store.http import HttpBlobStore
from testbed_runtime.store.outputs import keep_outputs
from testbed_runtime.timeouts import repeated
from testbed_runtime.transport.rpc_http import HttpRpc

STOP_LIMIT_S = 12.0
"""Time limit of the request that waits until the process has ended."""
SEAL_LIMIT_S = 60.0
RECORDER_BACK_LIMIT_S = 120.0
"""A lost recorder pod is recreated and started within this time."""
RETRY_S = 1.0
RECORDER_AWAY_LIMIT_S = 150.0
"""A recorder that is unreachable for longer is lost, and the trial is no longer recorded."""
EXISTENCE_CHECK_S = 10.0
"""Interval between two checks that the Testbed still exists."""


class TrialAccess(Struct, frozen=True):
    """How the runner reaches a trial's testbed. `recorder` is the run's, `recorder_path` the trial's part of it."""

    token: str
    recorder: Address
    recorder_path: str
    capabilities: Capabilities
    address: AddressOf


class TestbedGone(HeadgateError):
    """The Testbed was deleted during the trial."""

    __test__ = False


TESTBED_GONE = "the Testbed of this trial was deleted"
Gone = Callable[[], Awaitable[bool]]
"""Returns whether the Testbed was deleted. Raises HeadgateError if the API server is unreachable."""


class KubeTestbed:
    """A `ports.hosts.Testbed`. Call `open` when its pods are ready and `close` at the end. The host owns the pods."""

    __test__ = False

    def __init__(
        self,
        plan: TestbedPlan,
        context: TrialContext,
        access: TrialAccess,
        *,
        pods: PodFaults,
        disruptions: Disruptions,
        gone: Gone,
        folder: RecorderFolder,
    ) -> None:
        self.plan = plan
        self.context = context
        self._access = access
        self._names = plan.task_managers
        self._pods = pods
        self._disruptions = disruptions
        self._gone = gone
        self._folder = folder
        self._agent_faults = AgentFaults(access.address, access.token, plan.task_managers)
        self._control = ControlClient(access.token)
        self._rpc: HttpRpc | None = None
        self._sinks: dict[str, StreamingSink] = {}
        self._starts: PodStarts | None = None
        self._recorder_seen = 0.0
        self._next_existence_check = 0.0

    async def open(self, *, register_limit_s: float) -> None:
        """Connect, and wait until every TaskManager has registered. Raises HeadgateError on timeout."""
        self._rpc = HttpRpc(RUNNER, None, self._access.token, flink_version=self.plan.flink_version)
        await self._rpc.start()
        with tempfile.NamedTemporaryFile("w", suffix=".token") as file:  # mode 0600
            file.write(self._access.token)
            file.flush()
            for process in (RUNNER, SUPERVISOR):
                config = ProcessConfig(
                    name=process,
                    run=self.context.run,
                    trial=self.context.trial,
                    recorder=self._access.recorder,
                    recorder_path=self._access.recorder_path,
                    token_file=file.name,
                )
                self._sinks[process] = await StreamingSink.connect(
                    config, process=process, boot_id=system_boot_id()
                )
        self._agent_faults.sink = self._sinks[SUPERVISOR]
        self._pods.sink = self._sinks[SUPERVISOR]
        self._recorder_seen = asyncio.get_running_loop().time()
        self._starts = PodStarts(self._sinks[RUNNER], asyncio.get_running_loop().time)
        self._disruptions.on_pod = self._starts.see
        self._disruptions.open()
        await self._jobs().until_registered(len(self._names), limit_s=register_limit_s)

    async def bring(self, objects: Mapping[str, bytes]) -> None:
        """Put the objects of a kept checkpoint into the store, before the job is submitted. Raises HeadgateError."""
        try:
            async with self._store() as store:
                for key, data in objects.items():
                    await store.put(key, data)
        except OSError as error:
            raise HeadgateError(f"the store does not take the kept checkpoint: {error}") from error

    @contextlib.asynccontextmanager
    async def _store(self) -> AsyncIterator[HttpBlobStore]:
        store = HttpBlobStore(self._access.address(STORE, naming.STORE_PORT), self._access.token)
        try:
            yield store
        finally:
            await store.close()

    @property
    def agents(self) -> tuple[Agent, ...]:
        """Every agent that could hold a fault of this testbed."""
        names = [JOBMANAGER, *self._names]
        found = [Agent(name) for name in names] + ([Agent(PROXY)] if self.plan.proxy else [])
        return (*found, *(Agent(n, PACKETS) for n in names if self.plan.packet_faults))

    # ---- the job

    @property
    def history(self) -> HistorySink | None:
        return self._sinks.get(RUNNER)

    async def paths(self) -> Mapping[str, Mapping[str, Any]]:
        """Measure the pod network from the first TaskManager to the second (or the JobManager)."""
        source, destination = self._names[0], [*self._names, JOBMANAGER][1]
        agent = self._access.address(source, naming.SUPERVISOR_PORT)
        echo = self._access.address(destination, naming.ECHO_PORT)
        return {f"{source}->{destination}": await path_from(agent, echo, self._control)}

    async def submit(self) -> None:
        await self._jobs().submit(self.plan.job, self.plan.configuration)

    async def job_status(self) -> JobStatusReply:
        """Raises RecipientUnreachable or AskTimeout while the JobManager is unreachable."""
        return await self._jobs().status()

    async def stop_job(self, *, timeout_s: float) -> bool:
        return await self._jobs().stop_with_drain(timeout_s=timeout_s)

    # ---- faults

    async def inject(
        self, fault: Fault, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        backend, why = check_fault(fault, self._access.capabilities)
        if backend == POD_BACKEND:
            return await self._pods.inject(fault, fault_id=fault_id, targets=targets)
        handle = await self._agent_faults.inject(
            fault, backend=backend, fault_id=fault_id, targets=targets, lease_s=lease_s
        )
        return replace(handle, why=handle.why or why)

    async def renew(self, fault_id: str) -> None:
        """Raises FaultHealed if a user ended the fault, or HeadgateError if it has lapsed."""
        await self._agent_faults.renew(fault_id)

    async def heal(self, fault_id: str) -> None:
        """Raises FaultLapsed if a packet agent did not hold its part until now."""
        holder = self._pods if self._pods.holds(fault_id) else self._agent_faults
        await holder.heal(fault_id)

    async def residue(self) -> Mapping[str, Any]:
        return await self._agent_faults.residue()

    # ---- the record

    async def check(self) -> None:
        """Raise HeadgateError if the recorder or the Testbed is lost, TestbedDisrupted if anything but a fault removes a pod."""
        loop = asyncio.get_running_loop()
        try:
            self._disruptions.check()
        except TestbedDisrupted:
            if await self._deleted():
                raise TestbedGone(TESTBED_GONE) from None
            raise
        try:
            status = await self._control.call(
                "GET", self._access.recorder, f"{self._access.recorder_path}/status", timeout_s=RETRY_S
            )
        except Unreachable:
            if loop.time() - self._recorder_seen > RECORDER_AWAY_LIMIT_S:
                raise HeadgateError(
                    f"the recorder has not answered for {RECORDER_AWAY_LIMIT_S:g} s"
                ) from None
            return
        self._recorder_seen = loop.time()
        if status.get("failure"):
            raise HeadgateError(str(status["failure"]))
        if loop.time() >= self._next_existence_check:
            self._next_existence_check = loop.time() + EXISTENCE_CHECK_S
            if await self._deleted():
                raise TestbedGone(TESTBED_GONE)

    async def _deleted(self) -> bool:
        """Return whether the Testbed was deleted; False if that is not known now."""
        try:
            return bool(await self._gone())
        except HeadgateError:
            return False

    async def finish_history(self) -> str:
        """Stop every process, which flushes its record, then seal the history."""
        # if a process ends while its recorder is away, the rows that were not acknowledged are lost
        await self._ask_recorder("GET", "status", timeout_s=RETRY_S)
        names = [*self._names, JOBMANAGER]
        await asyncio.gather(*(self._stop(name) for name in names))
        await self._keep_outputs()
        await self._agent_faults.record_journals(self.agents)
        if self._starts is not None:
            self._starts.close()
        await self._close_sinks()
        await self._ask_recorder("POST", "seal", timeout_s=SEAL_LIMIT_S)
        return f"{HISTORY_FOLDER}/{self.context.trial}"

    async def _stop(self, name: str) -> None:
        """Stop a process. A lost pod has nothing left to flush."""
        path = f"/v1/processes/{name}/stop?grace_s={STOP_GRACE_S:g}"
        address = self._access.address(name, naming.SUPERVISOR_PORT)
        with contextlib.suppress(HeadgateError):
            await self._control.call("POST", address, path, timeout_s=STOP_LIMIT_S)

    async def _keep_outputs(self) -> None:
        paths = self.plan.output_paths
        if not paths:
            return
        root = self._folder.path
        async with self._store() as store:
            names = await keep_outputs(store, paths, root / FILES_FOLDER / self.context.trial)
        await self._folder.keep(*(str(Path(file).relative_to(root)) for file in names))

    async def _ask_recorder(self, method: str, what: str, *, timeout_s: float) -> None:
        """Repeat a request until a recorder that is restarting answers. Raises Unreachable after RECORDER_BACK_LIMIT_S."""
        path = f"{self._access.recorder_path}/{what}"
        await repeated(
            lambda: self._control.call(method, self._access.recorder, path, timeout_s=timeout_s),
            lambda e: isinstance(e, Unreachable),
            limit_s=RECORDER_BACK_LIMIT_S,
            every_s=RETRY_S,
        )

    # ---- closing

    async def close(self) -> None:
        """Close all connections and end all tasks. Idempotent. The pods are not touched."""
        await self._disruptions.close()
        await self._pods.close()
        if self._rpc is not None:
            await self._rpc.close()
            self._rpc = None
        await self._close_sinks()
        await self._agent_faults.close()
        await self._control.close()

    async def _close_sinks(self) -> None:
        sinks, self._sinks = self._sinks, {}
        self._agent_faults.sink = None
        await asyncio.gather(*(sink.close() for sink in sinks.values()))

    def _jobs(self) -> JobClient:
        if self._rpc is None:
            raise HeadgateError("the testbed is closed")
        return JobClient(self._rpc, self._access.address(JOBMANAGER, naming.JOBMANAGER_PORT))
