"""The processes of a simulated testbed: the real process code, each as a logical process of the virtual loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.exchange.frames import BufferResponse
from testbed_runtime.core.ids import JOBMANAGER, TaskManagerID, ordinal_of
from testbed_runtime.core.job.cost import prices
from testbed_runtime.core.job.limits import replacement_limit
from testbed_runtime.core.options import Options
from testbed_runtime.core.waits import Outcome
from testbed_runtime.faults.channel.process import ChannelFaults
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.history.writer import MemoryHistory, MemorySink
from testbed_runtime.jobmanager.process import JobManager
from testbed_runtime.ports.interception import Interception
from testbed_runtime.ports.network import Address
from testbed_runtime.process.clock import LoopClock, SeededIds, SeededRandom
from testbed_runtime.simulation.loop import VirtualLoop, spawn
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.process import LocalFiles, TaskManager
from testbed_runtime.taskmanager.services import Pace
from testbed_runtime.taskmanager.work import Cores
from testbed_runtime.timeouts import cancel_all, timeout
from testbed_runtime.transport.mailbox import SleepingCpu
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from testbed_runtime.transport.simulated import SimulatedFabric
from testbed_runtime.transport.tap import HistorySampler

BOOT_ID = "sim"
JOBMANAGER_ADDRESS: Address = (JOBMANAGER, 6123)
FATAL_EXIT = 1
CLOSE_LIMIT_S = 30.0
"""Virtual seconds for a graceful stop of a process."""


def virtual_loop() -> VirtualLoop:
    """Return the running loop. Raises HeadgateError if it is not a VirtualLoop."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise HeadgateError("a simulation must run under `simulation.loop.run_virtual`")
    return loop


class World(Struct, frozen=True):
    """The objects that all processes of one testbed share."""

    options: Options
    seed: int
    slots: int
    fabric: SimulatedFabric
    switchboard: Switchboard
    blobs: MemoryBlobStore
    history: MemoryHistory
    pace: Pace
    frame_faults: bool = True

    def sink(self, process: str) -> MemorySink:
        return self.history.sink(process, virtual_loop().time_ns)


class _Shell(Protocol):
    async def close(self) -> None: ...


@dataclass(slots=True)
class SimProcess:
    """One incarnation of a process. The history uses `key` (`tm-0-1`), faults use `name` (`tm-0`). The virtual loop uses
    `logical`, which is unique across trials, so that killed processes do not affect the next trial."""

    name: str
    incarnation: int
    logical: str
    faults: ChannelFaults
    rpc: MemoryRpc
    shell: _Shell
    state: str = "running"

    @property
    def key(self) -> str:
        return f"{self.name}-{self.incarnation}"


class Processes:
    """Starts, kills, pauses and resumes processes. The process table of the simulation's process backend."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._live: dict[str, SimProcess] = {}
        self._incarnations: dict[str, int] = {}
        self._replacing: list[asyncio.Task[None]] = []
        self._cores: dict[str, Cores] = {}
        if prices(world.options) is not None:
            world.fabric.send_cost = self._send
        self.replace_lost_s: float | None = None
        self._history = world.sink("supervisor")
        self._waits = WaitLog(self._history, "supervisor", lambda: virtual_loop().time())
        self._context = contextvars.copy_context()
        """The context of the simulation. Tasks that are started in it belong to no process, even if a process causes them."""

    def names(self) -> Sequence[str]:
        return sorted(self._live)

    def get(self, name: str) -> SimProcess | None:
        return self._live.get(name)

    def counters(self) -> dict[str, dict[str, float]]:
        """Return the live counters of each running TaskManager, by key."""
        running = [p for n in self.names() if (p := self.get(n)) is not None and p.state == "running"]
        return {p.key: p.shell.counters() for p in running if isinstance(p.shell, TaskManager)}

    def _send(self, sender: str, receiver: str, frame: object) -> float:
        """Charge both TaskManagers for a buffer. Return how long it keeps the thread of the connection busy."""
        if not isinstance(frame, BufferResponse) or not frame.data_type.is_buffer:
            return 0.0
        size = len(frame.data)
        self._cores[receiver].receive(size)
        return self._cores[sender].send(size)

    async def start(self, name: str) -> SimProcess:
        """Start the next incarnation of a process and wait until its endpoints are open."""
        incarnation = self._incarnations.get(name, 0) + 1
        self._incarnations[name] = incarnation
        open_process = self._open_jobmanager if name == JOBMANAGER else self._open_taskmanager
        logical = f"{self._world.history.trial_name}/{name}-{incarnation}"
        wait = self._waits.begin("start", "supervisor", f"{name}-{incarnation}")
        process = await spawn(logical, open_process(name, incarnation, logical), name=f"start {name}")
        wait.end()
        self._live[name] = process
        return process

    async def _open_jobmanager(self, name: str, incarnation: int, logical: str) -> SimProcess:
        world = self._world
        key = f"{name}-{incarnation}"
        faults = ChannelFaults(name)
        sink = world.sink(key)
        rpc = self._rpc(name, faults, sink, JOBMANAGER_ADDRESS)
        manager = JobManager(
            rpc,
            faults.store(world.blobs),
            sink,
            LoopClock(BOOT_ID),
            ids=SeededIds(f"{world.seed}/{key}"),
            random=SeededRandom(f"{world.seed}/{key}"),
            options=world.options,
            name=key,
            on_fatal=partial(self._on_fatal, name, incarnation, sink),
        )
        await manager.start()
        return SimProcess(name, incarnation, logical, faults, rpc, manager)

    async def _open_taskmanager(self, name: str, incarnation: int, logical: str) -> SimProcess:
        world = self._world
        resource = TaskManagerID(ordinal_of(name), incarnation)
        faults = ChannelFaults(name)
        sink = world.sink(str(resource))
        rpc = self._rpc(name, faults, sink, None)
        cores = Cores.of(world.options, world.slots)
        if cores is not None:
            self._cores[name] = cores
        await rpc.start()
        manager = TaskManager(
            resource,
            options=world.options,
            rpc=rpc,
            network=world.fabric.network(name),
            blobs=faults.store(world.blobs),
            history=sink,
            clock=LoopClock(BOOT_ID),
            cpu=SleepingCpu(),
            random=SeededRandom(f"{world.seed}/{resource}"),
            jobmanager=JOBMANAGER_ADDRESS,
            slots=world.slots,
            interception=self._interception(faults, sink),
            on_fatal=partial(self._on_fatal, name, incarnation, sink),
            pace=world.pace,
            files=LocalFiles(MemoryBlobStore()),
            cores=cores,
        )
        await manager.start((name, 0))
        return SimProcess(name, incarnation, logical, faults, rpc, manager)

    def _interception(self, faults: ChannelFaults, sink: MemorySink) -> Interception:
        """Return the hooks of a process. Without a reader it has no tap, which would cost a thirtieth of a large job."""
        if self._world.pace.channel_stride == 1:
            return faults.interception(HistorySampler(sink, virtual_loop().time))
        if self._world.frame_faults:
            return faults.interception()
        return Interception(faults.frames, registration=faults.registration)

    def _on_fatal(self, name: str, incarnation: int, sink: MemorySink, text: str) -> None:
        """Terminate a process after a fatal error, as its entry point does on a real machine."""
        sink.append("events", kind="note", subject=name, text=text)
        process = self._live.get(name)
        if process is not None and process.incarnation == incarnation:
            self._end_process(name, {"code": FATAL_EXIT, "asked": False})

    def _rpc(self, name: str, faults: ChannelFaults, sink: MemorySink, address: Address | None) -> MemoryRpc:
        return MemoryRpc(
            name,
            self._world.switchboard,
            address=address,
            flink_version=self._world.options.flink_version,
            cpu=SleepingCpu(),
            interceptor=faults.calls,
            history=sink,
        )

    # ---- signals

    def kill(self, name: str) -> None:
        """Simulate SIGKILL: no more callbacks, and the peers see connection resets."""
        self._end_process(name, {"signal": "SIGKILL", "asked": True})

    def _end_process(self, name: str, how: dict[str, Any]) -> None:
        process = self._live.pop(name, None)
        if process is None:
            return
        process.state = "killed"
        virtual_loop().kill(process.logical)
        self._world.switchboard.detach(process.rpc.address)
        self._world.fabric.kill(name)
        self._history.append("events", kind="process.exit", subject=process.key, data=how)
        if self.replace_lost_s is not None and name != JOBMANAGER:
            loop, context = asyncio.get_running_loop(), self._context.copy()
            replacing = loop.create_task(self._replace(name), name=f"replace {name}", context=context)
            self._replacing.append(replacing)

    async def _replace(self, name: str) -> None:
        delay_s = self.replace_lost_s or 0.0
        wait = self._waits.begin("replacement", "supervisor", name, limit=replacement_limit(delay_s))
        await asyncio.sleep(delay_s)
        wait.end(Outcome.FIRED)
        await self.start(name)

    def pause(self, name: str) -> None:
        process = self._live.get(name)
        if process is not None:
            process.state = "paused"
            if isinstance(process.shell, TaskManager):
                process.rpc.context.copy().run(process.shell.expect_pause)
            virtual_loop().pause(process.logical)

    def resume(self, name: str) -> None:
        """Resume a process. Does nothing if it is not paused or not running."""
        process = self._live.get(name)
        if process is not None and process.state == "paused":
            process.state = "running"
            virtual_loop().resume(process.logical)

    def paused(self) -> Sequence[str]:
        return [name for name, process in sorted(self._live.items()) if process.state == "paused"]

    async def close(self) -> None:
        """Stop every process gracefully. One that exceeds the limit is killed."""
        await cancel_all(*self._replacing)
        self._waits.close()
        for name in [*(n for n in self.names() if n != JOBMANAGER), JOBMANAGER]:
            process = self._live.pop(name, None)
            if process is None:
                continue
            virtual_loop().resume(process.logical)
            try:
                async with timeout(CLOSE_LIMIT_S):
                    await spawn(process.logical, _end(process), name=f"end {name}")
            except TimeoutError:
                virtual_loop().kill(process.logical)


async def _end(process: SimProcess) -> None:
    process.faults.remove_all()
    await process.shell.close()
    await process.rpc.close()
