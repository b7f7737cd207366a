"""A testbed of pods as the engine sees it: the job by RPC, faults by the agents of the pods, the record at the run's recorder."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed_runtime.api import naming
from testbed_runtime.core.errors import FaultHealed, FaultLapsed, HeadgateError
from testbed_runtime.core.faults.lease import LEASE_S
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.ids import JOB, JOBMANAGER
from testbed_runtime.core.trial.plan import TestbedPlan
from testbed_runtime.faults.fanout import PACKETS, PROXY, Agent, FaultFanout, Part, knows, split
from testbed_runtime.faults.http import ControlClient, Unreachable
from testbed_runtime.faults.registry import Capabilities, check_fault
from testbed_runtime.history.recording.sink import StreamingSink
from testbed_runtime.jobmanager.client import JobClient
from testbed_runtime.kube.podfaults import BACKEND, PodFaults
from testbed_runtime.kube.recorder import RecorderFolder
from testbed_runtime.ports.hosts import FaultHandle, JobStatus, TrialContext
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.process.clock import system_boot_id
from testbed_runtime.process.config import ProcessConfig
from testbed_runtime.store.http import HttpBlobStore
from testbed_runtime.store.outputs import OUTPUTS, keep_outputs
from testbed_runtime.transport.rpc_http import HttpRpc

STOP_GRACE_S = 5.0
"""For a process to flush what it recorded."""
STOP_LIMIT_S = 12.0
"""For the call that waits for it."""
SEAL_LIMIT_S = 60.0
SEAL_AWAY_LIMIT_S = 120.0
"""A recorder's pod that is gone is made again and started within so long."""
RETRY_S = 1.0
PATH_LIMIT_S = 9.0
"""Above the limits in faults.api together."""
RECORDER_AWAY_LIMIT_S = 150.0
"""A recorder that is silent for longer does not come again: what the trial does is not recorded any more."""
WATCH_EVERY_S = 10.0
"""Between two looks at whether somebody deleted the Testbed."""

AddressOf = Callable[[str, int], Address]
"""(process, port) → where it is reached from here."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a trial's testbed is reached by. `recorder` is the run's, `recorder_path` this trial's part of it."""

    namespace: str
    testbed: str
    token: str
    recorder: Address
    recorder_path: str
    capabilities: Capabilities
    address: AddressOf


@dataclass(slots=True)
class _Injected:
    fault: Fault
    parts: dict[Agent, Part]
    deadline: float
    renewed: dict[Agent, float] = field(default_factory=dict)
    pods: dict[Agent, str] = field(default_factory=dict)
    """Addresses of the pods whose packet agents hold it."""


class TestbedGone(HeadgateError):
    """Somebody deleted the Testbed in the middle of a trial."""

    __test__ = False


Gone = Callable[[], Awaitable[bool]]
"""Whether the Testbed is there no more; raises HeadgateError when that cannot be known now."""


class KubeTestbed:
    """A `ports.hosts.Testbed`. `open` when its pods are ready, `close` at the end; the pods are the host's."""

    __test__ = False

    def __init__(
        self,
        plan: TestbedPlan,
        context: TrialContext,
        place: Place,
        *,
        pods: PodFaults | None = None,
        gone: Gone | None = None,
        folder: RecorderFolder | None = None,
    ) -> None:
        self.plan = plan
        self.context = context
        self.place = place
        self._names = plan.task_managers
        self._pods = pods
        self._gone = gone
        self._folder = folder
        self._fanout = FaultFanout(self._agent_address, place.token)
        self._control = ControlClient(place.token)
        self._rpc: HttpRpc | None = None
        self._sinks: dict[str, StreamingSink] = {}
        self._injected: dict[str, _Injected] = {}
        self._used: dict[Agent, None] = {}
        self._journal_lock = asyncio.Lock()
        self._recorder_seen = 0.0
        self._watch_at = 0.0

    async def open(self, *, register_limit_s: float) -> None:
        """Until every TaskManager is registered. Raises HeadgateError."""
        self._rpc = HttpRpc("runner", None, self.place.token, flink_version=self.plan.flink_version)
        await self._rpc.start()
        with tempfile.NamedTemporaryFile("w", suffix=".token") as file:  # mode 0600
            file.write(self.place.token)
            file.flush()
            for process in ("runner", "supervisor"):
                config = ProcessConfig(
                    name=process,
                    run=self.context.run,
                    trial=self.context.trial,
                    recorder=self.place.recorder,
                    recorder_path=self.place.recorder_path,
                    token_file=file.name,
                )
                self._sinks[process] = await StreamingSink.connect(
                    config, process=process, boot_id=system_boot_id()
                )
        if self._pods is not None:
            self._pods.sink = self._sinks["supervisor"]
        self._recorder_seen = asyncio.get_running_loop().time()
        await self._jobs().until_registered(len(self._names), limit_s=register_limit_s)

    def _agent_address(self, agent: Agent) -> Address:
        port = naming.AGENT_PORT if agent.container == PACKETS else naming.SUPERVISOR_PORT
        return self.place.address(agent.process, port)

    @property
    def agents(self) -> tuple[Agent, ...]:
        """Every one that could hold a fault of this testbed."""
        names = [JOBMANAGER, *self._names]
        found = [Agent(name) for name in names] + ([Agent(PROXY)] if self.plan.proxy else [])
        return (*found, *(Agent(n, PACKETS) for n in names if self.plan.packet_faults))

    # ---- the job

    @property
    def history(self) -> HistorySink | None:
        return self._sinks.get("runner")

    async def paths(self) -> Mapping[str, Mapping[str, Any]]:
        """The pod network, from the first TaskManager's pod to the next one's (or the JobManager's), by its supervisor."""
        source, destination = self._names[0], [*self._names, JOBMANAGER][1]
        host, _ = self.place.address(destination, naming.ECHO_PORT)
        found = await self._control.call(
            "GET",
            self.place.address(source, naming.SUPERVISOR_PORT),
            f"/v1/path?host={host}&port={naming.ECHO_PORT}",
            timeout_s=PATH_LIMIT_S,
        )
        return {f"{source}->{destination}": found}

    async def submit(self) -> None:
        await self._jobs().submit(self.plan.job, self.plan.configuration)

    async def job_status(self) -> JobStatus:
        """Raises RecipientUnreachable or AskTimeout while the JobManager is away."""
        return await self._jobs().status()

    async def stop_job(self, *, timeout_s: float) -> bool:
        return await self._jobs().stop_with_drain(timeout_s=timeout_s)

    # ---- faults

    async def inject(
        self, fault: Fault, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        backend, why = check_fault(fault, self.place.capabilities)
        if backend == BACKEND:
            if self._pods is None:
                raise HeadgateError(f"{fault.kind}: there is no API server to ask")
            return await self._pods.inject(fault, fault_id=fault_id, targets=targets)
        parts = split(fault, targets, backend=backend, task_managers=self._names)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        self._used.update(dict.fromkeys(part.agent for part in parts))
        try:
            handle = await self._fanout.inject(parts, fault_id=fault_id, lease_s=lease_s)
        finally:
            await self._record_journal()
        by_agent = {part.agent: part for part in parts}
        pods = {agent: await self._pod_address(agent) for agent in by_agent if agent.container == PACKETS}
        deadline, now = asked_at + fault.duration_s, loop.time()
        self._injected[fault_id] = _Injected(fault, by_agent, deadline, dict.fromkeys(by_agent, now), pods)
        return replace(handle, why=handle.why or why, targets=tuple(targets))

    async def renew(self, fault_id: str) -> None:
        """An agent that is silent for less than a lease is asked again the next time; one in a pod that came again is treated as
        `onTargetRestart` says. Raises FaultHealed, or HeadgateError when a part lapsed."""
        active = self._injected.get(fault_id)
        if active is None:
            return
        loop = asyncio.get_running_loop()
        failed = await self._fanout.renew(list(active.parts), fault_id)
        for agent in active.parts:
            if agent not in failed:
                active.renewed[agent] = loop.time()
        for agent, error in failed.items():
            await self._not_renewed(active, fault_id, agent, error)
        await self._record_journal()

    async def _not_renewed(
        self, active: _Injected, fault_id: str, agent: Agent, error: HeadgateError
    ) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(error, FaultHealed):
            raise error
        if isinstance(error, Unreachable):
            if now - active.renewed[agent] > LEASE_S:
                raise error
            return
        if await knows(self._fanout.client(agent), active.fault.name):
            raise error
        await self._came_again(active, fault_id, agent, now)

    async def _came_again(self, active: _Injected, fault_id: str, agent: Agent, now: float) -> None:
        """The pod that held this part is another one now. A packet agent that came again in the same pod took the fault away from a
        target that was not touched: that is a lapse."""
        rule, left = active.fault.on_target_restart, active.deadline - now
        if rule != "Reapply" and await self._same_pod(active, agent):
            raise FaultLapsed(f"the agent of {agent} was started again and no longer holds the fault")
        part = active.parts.pop(agent)
        if rule == "Fail":
            raise HeadgateError(f"the pod of {agent.process} came again while the fault was active")
        if rule == "Reapply" and left > 0:
            again = replace(part, fault=replace(part.fault, duration_s=left))
            await self._fanout.inject([again], fault_id=fault_id, lease_s=LEASE_S)
            active.parts[agent] = part
            active.renewed[agent] = now

    async def _same_pod(self, active: _Injected, agent: Agent) -> bool:
        """Whether a packet agent is, or would be, in the pod it held the fault in."""
        known = active.pods.get(agent, "")
        return known != "" and known == await self._pod_address(agent)

    async def _pod_address(self, agent: Agent) -> str:
        """Empty: not known now."""
        host, port = self.place.address(agent.process, naming.AGENT_PORT)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port)
        except OSError:
            return ""
        return str(found[0][4][0])

    async def heal(self, fault_id: str) -> None:
        """Raises FaultLapsed when it is ended, but a packet agent did not hold its part until now."""
        if self._pods is not None and self._pods.holds(fault_id):
            await self._pods.heal(fault_id)
            return
        active = self._injected.pop(fault_id, None)
        if active is None:
            return
        silent: Unreachable | None = None
        try:
            await self._fanout.heal(list(active.parts), fault_id)
        except Unreachable as error:
            silent = error
        finally:
            await self._record_journal()
        await self._require_held(active)
        if silent is not None and asyncio.get_running_loop().time() < active.deadline:
            raise silent  # after its deadline nothing is left to be ended

    async def _require_held(self, active: _Injected) -> None:
        """A renewal notices a dead agent only when it is back, or silent for a lease: a shorter fault is over by then."""
        agents = [agent for agent in active.parts if await self._same_pod(active, agent)]
        held = await asyncio.gather(*(self._fanout.held(agent, active.fault.name) for agent in agents))
        for agent, so in zip(agents, held, strict=True):
            if not so:
                raise FaultLapsed(f"the agent of {agent} died while it held the fault")

    async def residue(self) -> Mapping[str, Any]:
        """Of the agents that held something; one whose pod is gone left nothing behind."""
        left = await self._fanout.residue(list(self._used))
        await self._record_journal()
        return left

    # ---- the record

    async def check(self) -> None:
        """Pods that are needed come again by the operator; only what does not come again ends the trial: the recorder's disk, or
        the Testbed itself."""
        loop = asyncio.get_running_loop()
        try:
            said = await self._control.call(
                "GET", self.place.recorder, f"{self.place.recorder_path}/status", timeout_s=RETRY_S
            )
        except Unreachable:
            if loop.time() - self._recorder_seen > RECORDER_AWAY_LIMIT_S:
                raise HeadgateError(
                    f"the recorder has been away for more than {RECORDER_AWAY_LIMIT_S:g} s"
                ) from None
            return
        self._recorder_seen = loop.time()
        if said.get("failure"):
            raise HeadgateError(str(said["failure"]))
        if self._gone is not None and loop.time() >= self._watch_at:
            self._watch_at = loop.time() + WATCH_EVERY_S
            if await self._deleted():
                raise TestbedGone("the Testbed of this trial was deleted")

    async def _deleted(self) -> bool:
        """False also while the API server is away."""
        if self._gone is None:
            return False
        try:
            return bool(await self._gone())
        except HeadgateError:
            return False

    async def finish_history(self) -> str:
        """Every process flushes and ends, then the recorder seals."""
        names = [*self._names, JOBMANAGER]
        await asyncio.gather(*(self._stop(name) for name in names))
        await self._keep_outputs()
        await self._record_journal(self.agents)
        await self._close_sinks()
        await self._seal()
        return f"history/{self.context.trial}"

    async def _stop(self, name: str) -> None:
        """A pod that is gone has nothing more to say."""
        path = f"/v1/processes/{name}/stop?grace_s={STOP_GRACE_S:g}"
        address = self.place.address(name, naming.SUPERVISOR_PORT)
        with contextlib.suppress(HeadgateError):
            await self._control.call("POST", address, path, timeout_s=STOP_LIMIT_S)

    async def _keep_outputs(self) -> None:
        paths = self.plan.output_paths
        if not paths or self._folder is None:
            return
        root = self._folder.path
        store = HttpBlobStore(self.place.address("store", naming.STORE_PORT), self.place.token)
        try:
            kept = await keep_outputs(store, paths, root / OUTPUTS / self.context.trial)
        finally:
            await store.close()
        await self._folder.keep(*(str(Path(file).relative_to(root)) for file in kept))

    async def _seal(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + SEAL_AWAY_LIMIT_S
        path = f"{self.place.recorder_path}/seal"
        while True:
            try:
                await self._control.call("POST", self.place.recorder, path, timeout_s=SEAL_LIMIT_S)
            except Unreachable:
                if loop.time() >= end:
                    raise
            else:
                return
            await asyncio.sleep(RETRY_S)

    async def _record_journal(self, agents: Sequence[Agent] = ()) -> None:
        """What the agents wrote down since the last time, into the history."""
        async with self._journal_lock:
            sink = self._sinks.get("supervisor")
            if sink is None:
                return
            for item in await self._fanout.journal(list(agents or self._used)):
                sink.append(str(item["table"]), **item["row"])

    # ---- going away

    async def close(self) -> None:
        """No connection or task is left. Idempotent; the pods are not touched."""
        if self._pods is not None:
            await self._pods.close()
        if self._rpc is not None:
            await self._rpc.close()
            self._rpc = None
        await self._close_sinks()
        await self._fanout.close()
        await self._control.close()

    async def _close_sinks(self) -> None:
        sinks, self._sinks = self._sinks, {}
        await asyncio.gather(*(sink.close() for sink in sinks.values()))

    def _jobs(self) -> JobClient:
        if self._rpc is None:
            raise HeadgateError("the testbed is closed")
        return JobClient(self._rpc, self.place.address(JOBMANAGER, naming.JOBMANAGER_PORT), job=JOB)
