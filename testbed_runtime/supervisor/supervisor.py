"""The supervisor: starts every process of a testbed and carries out its faults.

It starts, watches, pauses, kills and resumes children, starts the next incarnation of a lost one (`replaceLost`), serves the fault API on
loopback behind the bearer token, and kills every child when it ends itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.faults.links import logical_name
from testbed_runtime.core.ids import PROXY, RECORDER, SUPERVISOR, is_task_manager
from testbed_runtime.core.job.limits import replacement_limit
from testbed_runtime.core.waits import Outcome
from testbed_runtime.faults.agent import FaultAgent, Journal
from testbed_runtime.faults.backend import Backend
from testbed_runtime.faults.channel.backend import ChannelBackend
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.faults.probes import EchoServer
from testbed_runtime.faults.process.backend import ProcessBackend, process_state
from testbed_runtime.faults.proxy.backend import ProxyBackend
from testbed_runtime.faults.registry import LOCAL
from testbed_runtime.files import write_whole
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.ports.hosts import ProcessState
from testbed_runtime.ports.network import Address, address_of
from testbed_runtime.process.config import REGISTERED_PATH, SupervisorConfig
from testbed_runtime.process.tasks import TaskKeeper
from testbed_runtime.supervisor.child import Child
from testbed_runtime.timeouts import timeout

MAX_CHILDREN = 256
READY_LIMIT_S = 60.0
"""Time limit for a child to start: an interpreter with its imports takes about a second, and more than 30 where 20 busy processes share two
cores."""
END_LIMIT_S = 5.0
"""Time limit from SIGKILL of every child to the last one reaped; the kernel needs milliseconds."""
ANSWER_LIMIT_S = 1.0
"""Time limit for a child's answer about its readiness, for which a readiness probe waits."""
MIN_RESPAWN_S = 0.1
"""Pause between two incarnations: a child that dies at once must not keep the machine busy."""
MAX_INCARNATIONS = 100
"""Maximum starts of one child. After that it is not replaced any more."""
_INFRASTRUCTURE = (PROXY, RECORDER)
AGENT_PREFIX = "agent-"
"""Prefix of the name of a process's packet agent, which does not belong to the testbed's job."""
CONFIG = "{config}"
Peers: TypeAlias = Callable[[], Mapping[str, Address]]


class ChildSpec(Struct, frozen=True):
    """How to start a child. `{config}` in argv is replaced by the path of the incarnation's configuration."""

    name: str
    argv: tuple[str, ...]
    config: Mapping[str, Any] | None = None
    """The child's configuration, which is written as JSON with the `incarnation` filled in."""
    replace_lost_s: float | None = None
    """Delay from its loss to the start of the next incarnation; None: it is not replaced."""
    replace_killed: bool = True
    """Whether the child is replaced even if a fault killed it. If not, the fault restarts it."""
    keep_address: bool = False
    """Whether the next incarnation binds the same RPC address."""
    timeout_s: float = READY_LIMIT_S


class Supervisor:
    """Owns its children. It is also the ProcessTable and the peers that the fault backends see."""

    def __init__(self, config: SupervisorConfig, *, peers: Peers | None = None) -> None:
        """`peers` returns the control addresses of the testbed's processes by logical name. None: all are children."""
        self.config = config
        self.given_up = asyncio.Event()
        """Set when a lost child is not replaced; the reason is in `reason`."""
        self.reason = ""
        self.on_lost: Callable[[str], None] = lambda _: None
        """Called for each child that ended unexpectedly."""
        self._peers = peers
        self.journal = Journal()
        self._waits = WaitLog(self.journal, config.name or "supervisor", _now)
        self.echo = EchoServer()
        self._specs: dict[str, ChildSpec] = {}
        self._children: dict[str, Child] = {}
        self._tasks = TaskKeeper()
        self._closing = False
        self._control = ControlClient(config.token())
        backends: dict[str, Backend] = {
            "supervisor": ProcessBackend(self),
            "proxy": ProxyBackend(self._control, self._proxy, lambda: self.echo.address, self),
            "channel": ChannelBackend(self._control, self, own=self._own_names),
        }
        backends = {name: backend for name, backend in backends.items() if name in config.backends}
        capabilities = replace(LOCAL, environment=config.environment, backends=config.backends)
        self.agent = FaultAgent(backends, capabilities, journal=self.journal, seed=config.seed)

    async def start(self) -> None:
        await self.echo.start(*self.config.echo_bind)

    async def close(self) -> None:
        """Kill and reap every child, stopped ones too, and cancel every task. Idempotent."""
        if self._closing:
            return
        self._closing = True
        for child in self._children.values():
            child.kill()
        await self._tasks.close()
        with contextlib.suppress(TimeoutError):
            async with timeout(END_LIMIT_S):
                for child in list(self._children.values()):  # a child that was being started may be added
                    if child.pid is not None:
                        await child.exited.wait()
        with contextlib.suppress(TimeoutError):
            async with timeout(END_LIMIT_S):
                await self.agent.close()
        await self.echo.close()
        await self._control.close()

    # ---- processes

    async def launch(self, spec: ChildSpec) -> ProcessState:
        """Start a child and wait until it is ready. Raises UserError (name taken) or HeadgateError with the tail of its stderr."""
        living = self._children.get(spec.name)
        if living is not None and living.pid is not None:
            raise UserError(
                "name", f"{spec.name} is already running", "stop it first, or choose another name"
            )
        if len(self._specs) >= MAX_CHILDREN:
            raise UserError("name", f"{MAX_CHILDREN} processes are running already", "use a smaller testbed")
        self._specs[spec.name] = spec
        return await self._spawn(spec)

    async def _spawn(self, spec: ChildSpec) -> ProcessState:
        last = self._children.get(spec.name)
        incarnation = self._next_incarnation(last)
        child = Child(spec.name, incarnation, Path(self.config.logs_folder) / f"{spec.name}.log")
        child.on_exit = self._on_exit
        argv = [part.replace(CONFIG, self._write_config(spec, incarnation, last)) for part in spec.argv]
        await child.spawn(argv)
        self._children[spec.name] = child
        if self._closing:
            child.kill()
        wait = self._waits.begin("start", SUPERVISOR, f"{spec.name}-{incarnation}")
        try:
            await child.until_ready(spec.timeout_s)
        except HeadgateError as error:
            wait.end(Outcome.FAILED, cause=str(error))
            child.kill()
            raise
        wait.end()
        return self.state_of(child)

    def _next_incarnation(self, last: Child | None) -> int:
        """Return the next incarnation. Raises HeadgateError after too many starts: the next number belongs to another pod."""
        if not self.config.starts_file:
            return self.config.first_incarnation if last is None else last.incarnation + 1
        path = Path(self.config.starts_file)
        start = 1 + (int(path.read_text()) if path.exists() else 0)
        if start > MAX_INCARNATIONS:
            raise HeadgateError(
                f"{self.config.name} was started {MAX_INCARNATIONS} times, which is the limit"
            )
        write_whole(path, str(start).encode(), durable=False)
        return self.config.first_incarnation + start - 1

    def _write_config(self, spec: ChildSpec, incarnation: int, last: Child | None) -> str:
        if spec.config is None:
            return ""
        config = {**spec.config, "incarnation": incarnation}
        if spec.keep_address and last is not None and "rpc" in last.ready:
            config["bind"] = last.ready["rpc"]
        path = Path(self.config.work_folder) / f"{spec.name}-{incarnation}.json"
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(config))
        return str(path)

    async def stop(self, name: str, grace_s: float) -> None:
        child = self._children.get(name)
        if child is not None and child.pid is not None:
            await child.stop(grace_s)

    def states(self) -> list[ProcessState]:
        return [self.state_of(child) for child in self._children.values()]

    def state_of(self, child: Child) -> ProcessState:
        return ProcessState(
            name=child.name,
            pid=child.pid,
            incarnation=child.incarnation,
            state=child.state,
            ready=child.ready,
            exit_code=child.exit_code,
            stderr_tail=child.end_of_log() if child.exit_code else "",
            asked=child.asked_to_end,
        )

    # ---- ProcessTable

    def pid(self, name: str) -> int | None:
        child = self._children.get(name)
        return child.pid if child is not None else None

    def state(self, name: str, pid: int) -> str:
        del name
        return process_state(pid)

    def paused(self) -> Sequence[str]:
        return [name for name, child in self._children.items() if child.paused]

    def signal_kill(self, name: str) -> None:
        self._known(name).kill()

    def pause(self, name: str) -> None:
        self._known(name).signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None and child.paused:
            child.signal(signal.SIGCONT)

    async def restart(self, name: str) -> None:
        spec, child = self._specs.get(name), self._children.get(name)
        if child is not None and child.asked_to_end:
            await child.exited.wait()  # just killed: its end may not be noticed yet
        if spec is None or self._closing or (child is not None and child.pid is not None):
            return
        await self._spawn(spec)
        await self.agent.target_restarted(name)

    # ---- Peers

    def names(self) -> Sequence[str]:
        return self._own_names() if self._peers is None else list(self._peers())

    def _own_names(self) -> Sequence[str]:
        return [
            n
            for n, child in self._children.items()
            if n not in _INFRASTRUCTURE and not n.startswith(AGENT_PREFIX) and child.pid is not None
        ]

    def control(self, name: str) -> Address | None:
        child = self._children.get(logical_name(name))
        if child is None and self._peers is not None:
            return self._peers().get(logical_name(name))
        if child is None or child.pid is None:
            return None
        reported = child.ready.get("control") or child.ready.get("rpc")
        return address_of(reported) if reported else None

    async def unready(self, name: str) -> str:
        """Return why this child is not ready; empty when it is. A TaskManager has to be registered."""
        child = self._children.get(name)
        address = self.control(name) if child is not None else None
        if child is None or child.pid is None:
            return f"{name} is not running"
        if child.paused:
            return f"{name} is paused"
        if address is None:
            return f"{name} is starting"
        if not is_task_manager(name):
            return ""
        try:
            answer = await self._control.call("GET", address, REGISTERED_PATH, timeout_s=ANSWER_LIMIT_S)
        except HeadgateError as error:
            return str(error)
        return "" if answer.get("registered") else f"{name} is not registered at the ResourceManager"

    # ---- inside

    def _known(self, name: str) -> Child:
        child = self._children.get(name)
        if child is None or child.pid is None:
            raise HeadgateError(f"{name} is not running")
        return child

    def _proxy(self) -> Address | None:
        return self.control(PROXY)

    def _on_exit(self, child: Child) -> None:
        code = child.exit_code or 0
        data = {
            "pid": child.last_pid,
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "asked": child.asked_to_end,
            "incarnation": child.incarnation,
        }
        text = "" if child.asked_to_end else child.stderr_tail()[-500:]
        self.journal.add(
            "events", {"kind": "process.exit", "subject": child.name, "text": text, "data": data}
        )
        if not child.asked_to_end:
            words = child.end_of_log()
            self.on_lost(f"{child.name} ended with {code}" + (f": {words}" if words else ""))
        spec = self._specs.get(child.name)
        lost = (
            spec is not None
            and spec.replace_lost_s is not None
            and not child.stopping
            and bool(child.ready)
            and (spec.replace_killed or not child.asked_to_end)
        )
        starts = child.incarnation - self.config.first_incarnation + 1
        if lost and starts >= MAX_INCARNATIONS:
            self._give_up(f"{child.name} was lost {starts} times")
        elif spec is not None and lost and not self._closing:
            self._tasks.spawn(self._replace(spec), f"replace-{child.name}")

    async def _replace(self, spec: ChildSpec) -> None:
        """Start the next incarnation of a lost child after its delay. If it does not become ready, report this and set `given_up`."""
        delay_s = max(MIN_RESPAWN_S, spec.replace_lost_s or 0.0)
        wait = self._waits.begin("replacement", SUPERVISOR, spec.name, limit=replacement_limit(delay_s))
        try:
            await asyncio.sleep(delay_s)
        except asyncio.CancelledError:
            wait.end(Outcome.CANCELLED)
            raise
        wait.end(Outcome.FIRED)
        try:
            await self.restart(spec.name)
        except HeadgateError as error:
            text = f"{spec.name} was lost and could not be restarted: {error}"
            self.journal.add("events", {"kind": "note", "subject": spec.name, "text": text, "data": {}})
            self._give_up(text)

    def _give_up(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.given_up.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
