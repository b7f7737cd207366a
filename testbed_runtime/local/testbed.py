"""Testbeds of this machine: a supervisor, a recorder, perhaps a proxy, a JobManager and N TaskManagers, all processes on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from testbed_runtime.api.models import TestbedSpec
from testbed_runtime.api.to_core import job_graph, output_paths, task_manager_names
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.options import parse_duration
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.faults.registry import LOCAL, Capabilities
from testbed_runtime.history.recording.sink import StreamingSink
from testbed_runtime.jobmanager.client import JobClient
from testbed_runtime.local.live import LiveReader
from testbed_runtime.local.packets import LocalPackets
from testbed_runtime.local.process_host import LocalProcessHost
from testbed_runtime.ports.hosts import FaultHandle, JobStatus, ProcessState, Testbed, TrialContext
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.process.clock import system_boot_id
from testbed_runtime.process.config import ProcessConfig
from testbed_runtime.store.blobstore import FolderBlobStore
from testbed_runtime.store.outputs import OUTPUTS, keep_outputs
from testbed_runtime.supervisor.supervisor import AGENT_PREFIX, ChildSpec
from testbed_runtime.transport.rpc_http import HttpRpc

JOB_NAME = "job"
REGISTER_LIMIT_S = 30.0
"""From the last process being ready to every TaskManager registered."""
STOP_GRACE_S = 5.0
"""For a process to flush what it recorded."""
SEAL_LIMIT_S = 30.0
NEVER = "Never"


class LocalTestbed:
    """A running testbed. Made by LocalTestbedHost; implements ports.hosts.Testbed."""

    __test__ = False

    def __init__(
        self,
        spec: TestbedSpec,
        context: TrialContext,
        run_folder: Path,
        *,
        packets: LocalPackets | None = None,
    ) -> None:
        self.spec = spec
        self.packets = packets
        self.context = context
        self.processes = LocalProcessHost(
            run=context.run,
            trial=context.trial,
            logs_folder=run_folder / "logs" / context.trial,
            seed=context.seed,
        )
        self._live = LiveReader(self.processes)
        self.history_folder = run_folder / "history" / context.trial
        self.run_folder = run_folder
        self._rpc: HttpRpc | None = None
        self._sinks: dict[str, StreamingSink] = {}
        self._jobmanager: Address = ("", 0)
        self._recorder: Address | None = None
        self._proxy: Address | None = None
        self._journal_next = 0
        self._journal_lock = asyncio.Lock()

    # ---- coming up

    async def open(self, *, use_proxy: bool) -> None:
        """Until every TaskManager is registered. Raises HeadgateError with what the failed process said."""
        if self.packets is not None:
            self.packets.open()
        await self.processes.open()
        if self.packets is not None:
            await self.packets.launch_agents(self.processes, self.context.seed)
        (self.processes.work_folder / "blobs").mkdir()
        self.history_folder.mkdir(parents=True, exist_ok=True)
        async with asyncio.TaskGroup() as group:
            recorder = group.create_task(self._launch("recorder", "recorder"), name="launch-recorder")
            proxy = (
                group.create_task(self._launch("proxy", "proxy"), name="launch-proxy") if use_proxy else None
            )
        self._recorder = _address(recorder.result(), "rpc")
        self._proxy = _address(proxy.result(), "control") if proxy is not None else None
        jobmanager = await self._launch("jobmanager", "jobmanager", keep_address=True)
        self._jobmanager = _address(jobmanager, "rpc")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._open_sinks(), name="open-sinks")
            for ordinal in range(self.spec.task_managers.replicas):
                name = f"tm-{ordinal}"
                group.create_task(
                    self._launch(name, "taskmanager", replace_after_s=self._replace_after_s()), name=name
                )
        self._rpc = HttpRpc("runner", None, self.processes.token, flink_version=self.spec.flink_version)
        await self._rpc.start()
        await self._jobs().until_registered(self.spec.task_managers.replicas, limit_s=REGISTER_LIMIT_S)

    async def _launch(self, name: str, entry: str, **rule: Any) -> ProcessState:
        prefix = self.packets.prefix(name) if self.packets is not None else ()
        argv = (*prefix, sys.executable, "-m", f"testbed_runtime.entry.{entry}", "{config}")
        config = msgspec.to_builtins(self._config(name))
        return await self.processes.launch(ChildSpec(name, argv, config=config, **rule))

    def _config(self, name: str) -> ProcessConfig:
        return ProcessConfig(
            name=name,
            run=self.context.run,
            trial=self.context.trial,
            seed=self.context.seed,
            flink_version=self.spec.flink_version,
            configuration=dict(self.spec.flink_configuration),
            jobmanager=self._jobmanager if self._jobmanager[1] else None,
            recorder=self._recorder,
            proxy=self._proxy,
            slots=self.spec.task_managers.slots,
            blob_folder=str(self.processes.work_folder / "blobs"),
            history_folder=str(self.history_folder),
            scenario_folder=str(self.run_folder),
            token_file=str(self.processes.token_file),
            **(self.packets.binds(name) if self.packets is not None else {}),
        )

    def _replace_after_s(self) -> float | None:
        text = self.spec.task_managers.replace_lost
        return None if text == NEVER else parse_duration(text)

    async def _open_sinks(self) -> None:
        boot_id = system_boot_id()
        for process in ("runner", "supervisor"):
            config = replace(self._config(process), name=process)
            self._sinks[process] = await StreamingSink.connect(config, process=process, boot_id=boot_id)

    # ---- ports.hosts.Testbed

    @property
    def history(self) -> HistorySink | None:
        return self._sinks.get("runner")

    async def paths(self) -> Mapping[str, Mapping[str, Any]]:
        """Between the first two TaskManagers where each has a network of its own, else of loopback."""
        if self.packets is not None:
            return await self.packets.paths()
        return {"loopback": await self.processes.path()}

    async def submit(self) -> None:
        graph = job_graph(self.spec, name=JOB_NAME, seed=self.context.seed)
        await self._jobs().submit(graph, self.spec.flink_configuration)

    async def job_status(self) -> JobStatus:
        """Raises RecipientUnreachable or AskTimeout while the JobManager is away."""
        status = await self._jobs().status()
        return replace(status, counters={**status.counters, **self._live.values()})

    async def stop_job(self, *, timeout_s: float) -> bool:
        return await self._jobs().stop_with_drain(timeout_s=timeout_s)

    async def inject(
        self, fault: Any, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        assert isinstance(fault, Fault)
        try:
            if self.packets is not None and self.packets.carries(fault):
                return await self.packets.inject(fault, fault_id=fault_id, targets=targets, lease_s=lease_s)
            return await self.processes.faults.inject(
                fault, fault_id=fault_id, targets=targets, lease_s=lease_s
            )
        finally:
            await self._record_journal()

    async def renew(self, fault_id: str) -> None:
        if self.packets is not None and self.packets.holds(fault_id):
            await self.packets.renew(fault_id)
        else:
            await self.processes.faults.renew(fault_id)
        await self._record_journal()

    async def heal(self, fault_id: str) -> None:
        if self.packets is not None and self.packets.holds(fault_id):
            await self.packets.heal(fault_id)
        else:
            await self.processes.faults.heal(fault_id)
        await self._record_journal()

    async def residue(self) -> Mapping[str, Any]:
        left = dict(await self.processes.faults.residue())
        if self.packets is not None:
            left |= await self.packets.residue()
        await self._record_journal()
        return left

    async def check(self) -> None:
        await self.processes.check()

    async def finish_history(self) -> str:
        """Every process flushes and ends, then the recorder seals."""
        await self.processes.check(("recorder",))
        await self._record_journal()
        states = await self.processes.refresh()
        names = [
            s.name
            for s in states
            if s.name not in ("recorder", "proxy") and not s.name.startswith(AGENT_PREFIX)
        ]
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self.processes.stop(name, grace_s=STOP_GRACE_S), name=f"stop-{name}")
        await keep_outputs(
            FolderBlobStore(self.processes.work_folder / "blobs"),
            output_paths(self.spec.job),
            self.run_folder / OUTPUTS / self.context.trial,
        )
        await self._record_journal()
        await self._close_sinks()
        if self._recorder is None:
            raise HeadgateError("there is no recorder")
        control = ControlClient(self.processes.token, timeout_s=SEAL_LIMIT_S)
        try:
            await control.call("POST", self._recorder, "/seal")
        finally:
            await control.close()
        return str(self.history_folder)

    # ---- going away

    async def close(self) -> None:
        """No process, port or temporary file is left. Idempotent, and safe after a failed `open`."""
        # the last one first; all of them, also when one is cancelled
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
        """Together: each waits some seconds for a recorder that is gone."""
        sinks, self._sinks = self._sinks, {}
        await asyncio.gather(*(sink.close() for sink in sinks.values()))

    async def _record_journal(self) -> None:
        """What the supervisor wrote down since the last time, into the history. A supervisor that is gone has nothing to say."""
        async with self._journal_lock:
            sink = self._sinks.get("supervisor")
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
        return JobClient(self._rpc, self._jobmanager, job=JOB_NAME)


class LocalTestbedHost:
    """A `ports.hosts.TestbedHost` of this machine. `run_folder` gets `logs/<trial>/` and `history/<trial>/`."""

    __test__ = False
    place = "local"

    def __init__(
        self, run_folder: Path, *, capabilities: Capabilities = LOCAL, packets: bool = False
    ) -> None:
        """`packets`: each process that a fault can hit gets a network of its own (root); `capabilities` are of that then."""
        self._run_folder = run_folder
        self.capabilities = capabilities
        self._packets = packets

    async def create(self, testbed: Any, *, context: TrialContext, use_proxy: bool) -> LocalTestbed:
        assert isinstance(testbed, TestbedSpec)
        packets = LocalPackets(self.capabilities, task_manager_names(testbed)) if self._packets else None
        made = LocalTestbed(testbed, context, self._run_folder, packets=packets)
        try:
            await made.open(use_proxy=use_proxy)
        except BaseException as error:
            await made.close()
            if isinstance(error, ExceptionGroup):
                raise _first(error) from error
            raise
        return made

    async def dispose(self, testbed: Testbed) -> None:
        assert isinstance(testbed, LocalTestbed)
        await testbed.close()


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """Of processes that failed together the first one's words are enough."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


def _address(state: ProcessState, what: str) -> Address:
    address = state.ready.get(what)
    if not address:
        raise HeadgateError(f"{state.name} did not say its {what} address")
    return str(address[0]), int(address[1])
