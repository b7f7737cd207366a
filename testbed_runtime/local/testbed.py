"""Testbeds on this machine: a supervisor, a recorder, a proxy if a fault needs it, a JobManager and TaskManagers, all on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from testbed_runtime.api.certificates import make_certificate
from testbed_runtime.core.documents import FILES_FOLDER, HISTORY_FOLDER, LOGS_FOLDER
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.ids import JOBMANAGER, PROXY, RECORDER, RUNNER, SUPERVISOR, is_task_manager, role_of
from testbed_runtime.core.job.livecounters import LiveCounters
from testbed_runtime.core.job.messages import JobStatusReply
from testbed_runtime.core.trial.plan import TestbedPlan
from testbed_runtime.faults.http import ControlClient, FaultClient
from testbed_runtime.faults.registry import LOCAL, Capabilities
from testbed_runtime.history.recording.sink import StreamingSink
from testbed_runtime.jobmanager.client import JobClient
from testbed_runtime.jobmanager.recovery import KeptCheckpoint
from testbed_runtime.local.packets import LocalPackets
from testbed_runtime.local.process_host import LocalProcessHost
from testbed_runtime.ports.hosts import STOP_GRACE_S, FaultHandle, ProcessState, TrialContext
from testbed_runtime.ports.network import Address, address_of
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.process.clock import system_boot_id
from testbed_runtime.process.config import COUNTERS_PATH, ProcessConfig
from testbed_runtime.process.tasks import TaskKeeper
from testbed_runtime.runner.ownedhost import OwnedTestbedHost
from testbed_runtime.store.blobstore import FolderBlobStore
from testbed_runtime.store.outputs import keep_outputs
from testbed_runtime.supervisor.supervisor import AGENT_PREFIX, CONFIG, ChildSpec
from testbed_runtime.transport.rpc_http import HttpRpc

REGISTER_LIMIT_S = 30.0
"""Limit from the moment when all processes are ready until every TaskManager has registered."""
SEAL_LIMIT_S = 30.0
EVERY_S = 0.5
"""Interval between two readings of the live counters. A user cannot follow more."""
ANSWER_LIMIT_S = 1.0
"""Time limit for a TaskManager's answer. A TaskManager that takes longer is paused or gone, and this reading skips it."""


class LiveReader:
    """Reads the live counters of the TaskManagers from their control endpoints, from `start` to `close`: no message of the job is
    affected."""

    def __init__(self, processes: LocalProcessHost) -> None:
        self._processes = processes
        self._control = ControlClient(processes.token, timeout_s=ANSWER_LIMIT_S)
        self._counters = LiveCounters()
        self._tasks = TaskKeeper()

    @property
    def values(self) -> Mapping[str, float]:
        """The newest counters."""
        return self._counters.values

    def start(self) -> None:
        self._tasks.spawn(self._run(), "live-counters")

    async def _run(self) -> None:
        while True:
            # without the supervisor, the job's own status shows what happened
            with contextlib.suppress(HeadgateError):
                await self._read()
            await asyncio.sleep(EVERY_S)

    async def _read(self) -> None:
        states = await self._processes.refresh()
        running = [s for s in states if is_task_manager(s.name) and s.ready.get("control")]
        answers = await asyncio.gather(*(self._ask(s) for s in running))
        readings = {
            f"{s.name}-{s.incarnation}": a for s, a in zip(running, answers, strict=True) if a is not None
        }
        self._counters.update(readings, asyncio.get_running_loop().time())

    async def _ask(self, state: ProcessState) -> Mapping[str, float] | None:
        try:
            return await self._control.call("GET", address_of(state.ready["control"]), COUNTERS_PATH)
        except HeadgateError:
            return None

    async def close(self) -> None:
        """Idempotent."""
        await self._tasks.close()
        await self._control.close()


class LocalTestbed:
    """A running testbed. Made by LocalTestbedHost; implements ports.hosts.Testbed."""

    __test__ = False

    def __init__(
        self, plan: TestbedPlan, context: TrialContext, run_folder: Path, *, packets: LocalPackets | None
    ) -> None:
        self.plan = plan
        self.packets = packets
        self.context = context
        self.processes = LocalProcessHost(
            run=context.run,
            trial=context.trial,
            logs_folder=run_folder / LOGS_FOLDER / context.trial,
            seed=context.seed,
        )
        self._live = LiveReader(self.processes)
        self.history_folder = run_folder / HISTORY_FOLDER / context.trial
        self.run_folder = run_folder
        self._certificate_file: Path | None = None
        self._rpc: HttpRpc | None = None
        self._sinks: dict[str, StreamingSink] = {}
        self._jobmanager: Address = ("", 0)
        self._recorder: Address | None = None
        self._proxy: Address | None = None
        self._journal_next = 0
        self._journal_lock = asyncio.Lock()

    # ---- starting

    async def open(self) -> None:
        """Start all processes and wait until every TaskManager has registered. Raises HeadgateError with the output of a failed one."""
        if self.packets is not None:
            self.packets.open()
        await self.processes.open()
        if self.packets is not None:
            await self.packets.launch_agents(self.processes, self.context.seed)
        if self.plan.tls:
            self._certificate_file = self.processes.work_folder / "certificate.pem"
            write_certificate(self._certificate_file)
        (self.processes.work_folder / "blobs").mkdir()
        if path := self.plan.recovery_path:
            kept = await KeptCheckpoint.read(FolderBlobStore(path), path)
            into = FolderBlobStore(self.processes.work_folder / "blobs")
            await kept.bring(into, self.plan.job, self.plan.flink_version)
        self.history_folder.mkdir(parents=True, exist_ok=True)
        async with asyncio.TaskGroup() as group:
            recorder = group.create_task(self._launch(RECORDER), name="launch-recorder")
            proxy = group.create_task(self._launch(PROXY), name="launch-proxy") if self.plan.proxy else None
        self._recorder = _address(recorder.result(), "rpc")
        self._proxy = _address(proxy.result(), "control") if proxy is not None else None
        self._jobmanager = _address(await self._launch(JOBMANAGER, keep_address=True), "rpc")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._open_sinks(), name="open-sinks")
            for name in self.plan.task_managers:
                launch = self._launch(name, replace_lost_s=self.plan.replace_lost_s)
                group.create_task(launch, name=name)
        self._rpc = HttpRpc(RUNNER, None, self.processes.token, flink_version=self.plan.flink_version)
        await self._rpc.start()
        await self._jobs().until_registered(self.plan.replicas, limit_s=REGISTER_LIMIT_S)
        self._live.start()

    async def _launch(
        self, name: str, *, keep_address: bool = False, replace_lost_s: float | None = None
    ) -> ProcessState:
        prefix = self.packets.prefix(name) if self.packets is not None else ()
        argv = (*prefix, sys.executable, "-m", f"testbed_runtime.entry.{role_of(name)}", CONFIG)
        child = ChildSpec(
            name,
            argv,
            config=msgspec.to_builtins(self._config(name)),
            keep_address=keep_address,
            replace_lost_s=replace_lost_s,
        )
        return await self.processes.launch(child)

    def _config(self, name: str) -> ProcessConfig:
        return ProcessConfig(
            name=name,
            run=self.context.run,
            trial=self.context.trial,
            seed=self.context.seed,
            flink_version=self.plan.flink_version,
            configuration=dict(self.plan.configuration),
            jobmanager=self._jobmanager if self._jobmanager[1] else None,
            recorder=self._recorder,
            proxy=self._proxy,
            slots=self.plan.slots,
            blob_folder=str(self.processes.work_folder / "blobs"),
            local_folder=str(self.processes.work_folder / "local-state"),
            history_folder=str(self.history_folder),
            token_file=str(self.processes.token_file),
            certificate_file=str(self._certificate_file or ""),
            **(self.packets.binds(name) if self.packets is not None else {}),
        )

    async def _open_sinks(self) -> None:
        boot_id = system_boot_id()
        for process in (RUNNER, SUPERVISOR):
            config = replace(self._config(process), name=process)
            self._sinks[process] = await StreamingSink.connect(config, process=process, boot_id=boot_id)

    # ---- ports.hosts.Testbed

    @property
    def history(self) -> HistorySink | None:
        return self._sinks.get(RUNNER)

    async def paths(self) -> Mapping[str, Mapping[str, Any]]:
        """Measure between the first two TaskManagers if each has its own network, otherwise loopback."""
        if self.packets is not None:
            return await self.packets.paths()
        return {"loopback": await self.processes.path()}

    async def submit(self) -> None:
        await self._jobs().submit(self.plan.job, self.plan.configuration)

    async def job_status(self) -> JobStatusReply:
        """Raises RecipientUnreachable or AskTimeout while the JobManager does not answer."""
        status = await self._jobs().status()
        return replace(status, counters={**status.counters, **self._live.values})

    async def stop_job(self, *, timeout_s: float) -> bool:
        return await self._jobs().stop_with_drain(timeout_s=timeout_s)

    async def inject(
        self, fault: Fault, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        try:
            if self.packets is not None and self.packets.carries(fault):
                return await self.packets.inject(fault, fault_id=fault_id, targets=targets, lease_s=lease_s)
            return await self.processes.faults.inject(
                fault, fault_id=fault_id, targets=targets, lease_s=lease_s
            )
        finally:
            await self._record_journal()

    async def renew(self, fault_id: str) -> None:
        await self._holder(fault_id).renew(fault_id)
        await self._record_journal()

    async def heal(self, fault_id: str) -> None:
        await self._holder(fault_id).heal(fault_id)
        await self._record_journal()

    def _holder(self, fault_id: str) -> LocalPackets | FaultClient:
        """Return the client of the holder of a fault: the packet agents or the supervisor."""
        packets = self.packets
        return packets if packets is not None and packets.holds(fault_id) else self.processes.faults

    async def residue(self) -> Mapping[str, Any]:
        left = dict(await self.processes.faults.residue())
        if self.packets is not None:
            left |= await self.packets.residue()
        await self._record_journal()
        return left

    async def check(self) -> None:
        await self.processes.check()

    async def finish_history(self) -> str:
        """Stop every process so that it flushes, then let the recorder seal."""
        await self._live.close()
        await self.processes.check((RECORDER,))
        await self._record_journal()
        states = await self.processes.refresh()
        names = [
            s.name for s in states if s.name not in (RECORDER, PROXY) and not s.name.startswith(AGENT_PREFIX)
        ]
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self.processes.stop(name, grace_s=STOP_GRACE_S), name=f"stop-{name}")
        await keep_outputs(
            FolderBlobStore(self.processes.work_folder / "blobs"),
            self.plan.output_paths,
            self.run_folder / FILES_FOLDER / self.context.trial,
        )
        await self._record_journal()
        await self._close_sinks()
        if self._recorder is None:
            raise HeadgateError("the testbed has no recorder")
        control = ControlClient(self.processes.token, timeout_s=SEAL_LIMIT_S)
        try:
            await control.call("POST", self._recorder, "/seal")
        finally:
            await control.close()
        return str(self.history_folder)

    # ---- closing

    async def close(self) -> None:
        """End every process and remove every port and temporary file. Idempotent, and safe after a failed `open`."""
        # run the steps in reverse order, and every step even if one is cancelled
        async with contextlib.AsyncExitStack() as steps:
            if self.packets is not None:
                steps.push_async_callback(self.packets.close)
            steps.push_async_callback(self.processes.close)
            steps.push_async_callback(self._close_sinks)
            steps.push_async_callback(self._live.close)
            if self._rpc is not None:
                rpc, self._rpc = self._rpc, None
                steps.push_async_callback(rpc.close)

    async def _close_sinks(self) -> None:
        """Close them concurrently: each waits some seconds for a recorder that is gone."""
        sinks, self._sinks = self._sinks, {}
        await asyncio.gather(*(sink.close() for sink in sinks.values()))

    async def _record_journal(self) -> None:
        """Copy the new entries of the fault journals into the history. A supervisor that is gone has none."""
        async with self._journal_lock:
            sink = self._sinks.get(SUPERVISOR)
            if sink is None:
                return
            with contextlib.suppress(HeadgateError):
                for item in await self.processes.faults.journal(self._journal_next):
                    self._journal_next = int(item["number"]) + 1
                    sink.append(str(item["table"]), **item["row"])
            if self.packets is not None:
                for item in await self.packets.journal():
                    sink.append(str(item["table"]), **item["row"])

    def _jobs(self) -> JobClient:
        if self._rpc is None:
            raise HeadgateError("the testbed is closed")
        return JobClient(self._rpc, self._jobmanager)


class LocalTestbedHost(OwnedTestbedHost[LocalTestbed]):
    """The `ports.hosts.TestbedHost` of this machine. `run_folder` gets `logs/<trial>/` and `history/<trial>/`."""

    def __init__(
        self, run_folder: Path, *, capabilities: Capabilities = LOCAL, packets: bool = False
    ) -> None:
        """`packets`: give each process that a fault can target its own network (needs root); then `capabilities` include
        the packet backends."""
        super().__init__(run_folder)
        self.capabilities = capabilities
        self._packets = packets

    def make(self, testbed: TestbedPlan, context: TrialContext) -> LocalTestbed:
        packets = LocalPackets(self.capabilities, testbed.task_managers) if self._packets else None
        return LocalTestbed(testbed, context, self.run_folder, packets=packets)


def _address(state: ProcessState, what: str) -> Address:
    address = state.ready.get(what)
    if not address:
        raise HeadgateError(f"{state.name} did not report its {what} address")
    return address_of(address)


def write_certificate(path: Path) -> None:
    """Create a file of mode 0600 with a new private key and its certificate. Raises UserError if `cryptography` is missing."""
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(make_certificate(datetime.datetime.now(datetime.UTC)))
