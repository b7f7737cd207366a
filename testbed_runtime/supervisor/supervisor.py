"""The supervisor: parent of every process of a testbed, holder of its faults.

It starts, watches, pauses, kills and resumes children, starts the next incarnation of a lost one (`replaceLost`), serves the fault API on
loopback behind the bearer token, and ends every child at once when it ends itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.faults.links import logical_name
from testbed_runtime.core.ids import PROXY, RECORDER
from testbed_runtime.faults.agent import FaultAgent, Journal
from testbed_runtime.faults.channel.mechanism import ChannelBackend
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.faults.mechanism import Backend
from testbed_runtime.faults.probes import EchoServer
from testbed_runtime.faults.process.mechanism import ProcessBackend
from testbed_runtime.faults.proxy.mechanism import ProxyBackend
from testbed_runtime.faults.registry import LOCAL
from testbed_runtime.ports.hosts import ProcessState
from testbed_runtime.ports.network import Address
from testbed_runtime.process.config import REGISTERED_PATH
from testbed_runtime.supervisor.child import Child
from testbed_runtime.supervisor.config import SupervisorConfig

MAX_CHILDREN = 256
READY_LIMIT_S = 30.0
"""For a child: an interpreter with its imports takes about a second, on a busy machine ten."""
END_LIMIT_S = 5.0
"""From SIGKILL of every child to the last one reaped; the kernel needs milliseconds."""
ANSWER_LIMIT_S = 1.0
"""For a child that is asked whether it is ready: a probe waits for the answer."""
MIN_RESPAWN_S = 0.1
"""Between two incarnations: a child that dies at once must not keep the machine busy."""
MAX_INCARNATIONS = 100
"""Of one child; beyond it, it is left lost."""
_INFRASTRUCTURE = (PROXY, RECORDER)
AGENT_PREFIX = "agent-"
"""Before the name of a process: its packet agent, which is no process of the testbed's job."""
_CONFIG = "{config}"
People: TypeAlias = Callable[[], Mapping[str, Address]]


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to start every incarnation of a child. `{config}` in argv becomes the path of this incarnation's configuration."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    """Written as JSON with the `incarnation` filled in."""
    replace_after_s: float | None = None
    """Start the next incarnation this long after it was lost; None: never."""
    replace_killed: bool = True
    """Also when one of ours killed it; False: whoever kills it starts it again."""
    keep_address: bool = False
    """The next incarnation binds the rpc address that the last one had."""
    timeout_s: float = READY_LIMIT_S


class Supervisor:
    """Owner of its children and tasks. Also what the fault backends see: a ProcessTable and a Peers."""

    def __init__(self, config: SupervisorConfig, *, people: People | None = None) -> None:
        """`people` says who else is in the testbed, by logical name: control addresses. None: everybody is a child of ours."""
        self.config = config
        self.given_up = asyncio.Event()
        """A child that should run was lost and does not come again; `reason` says why."""
        self.reason = ""
        self.on_lost: Callable[[str], None] = lambda _: None
        """Told of each child that ended although nobody of ours asked for it."""
        self._people = people
        self.journal = Journal()
        self.echo = EchoServer()
        self._specs: dict[str, ChildSpec] = {}
        self._children: dict[str, Child] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._control = ControlClient(config.token())
        backends: dict[str, Backend] = {
            "supervisor": ProcessBackend(self),
            "proxy": ProxyBackend(self._control, self._proxy, lambda: self.echo.address, self),
            "channel": ChannelBackend(self._control, self, own=self._own_names),
        }
        backends = {name: backend for name, backend in backends.items() if name in config.backends}
        capabilities = replace(LOCAL, environment=config.place, backends=config.backends)
        self.agent = FaultAgent(backends, capabilities, journal=self.journal, seed=config.seed)

    async def start(self) -> None:
        await self.echo.start(*self.config.echo_bind)

    async def close(self) -> None:
        """Every child is killed and reaped, stopped ones too; no task is left. Idempotent."""
        if self._closing:
            return
        self._closing = True
        for child in self._children.values():
            child.kill()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_LIMIT_S):
                for child in list(self._children.values()):  # one that was being started may join
                    if child.pid is not None:
                        await child.exited.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_LIMIT_S):
                await self.agent.close()
        await self.echo.close()
        await self._control.close()

    # ---- processes

    async def launch(self, spec: ChildSpec) -> ProcessState:
        """Start a child, until it is ready. Raises UserError (name taken) or HeadgateError with the tail of its stderr."""
        living = self._children.get(spec.name)
        if living is not None and living.pid is not None:
            raise UserError("name", f"{spec.name} runs already", "stop it first, or choose another name")
        if len(self._specs) >= MAX_CHILDREN:
            raise UserError("name", f"{MAX_CHILDREN} processes are here already", "use a smaller testbed")
        self._specs[spec.name] = spec
        return await self._spawn(spec)

    async def _spawn(self, spec: ChildSpec) -> ProcessState:
        last = self._children.get(spec.name)
        incarnation = self._next_incarnation(last)
        child = Child(spec.name, incarnation, Path(self.config.logs_folder) / f"{spec.name}.log")
        child.on_exit = self._on_exit
        argv = [part.replace(_CONFIG, self._write_config(spec, incarnation, last)) for part in spec.argv]
        await child.spawn(argv, spec.env)
        self._children[spec.name] = child
        if self._closing:
            child.kill()
        try:
            await child.until_ready(spec.timeout_s)
        except HeadgateError:
            child.kill()
            raise
        return self.state_of(child)

    def _next_incarnation(self, last: Child | None) -> int:
        """Raises HeadgateError when there was one start too many: its number would be another pod's."""
        if not self.config.starts_file:
            return self.config.first_incarnation if last is None else last.incarnation + 1
        path = Path(self.config.starts_file)
        start = 1 + (int(path.read_text()) if path.exists() else 0)
        if start > MAX_INCARNATIONS:
            raise HeadgateError(f"{self.config.name} was started {MAX_INCARNATIONS} times already")
        beside = path.with_suffix(".new")
        beside.write_text(str(start))
        beside.replace(path)
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
            stderr_tail=child.last_words() if child.exit_code else "",
            asked=child.asked_to_end,
        )

    # ---- ProcessTable

    def pid(self, name: str) -> int | None:
        child = self._children.get(name)
        return child.pid if child is not None else None

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
            await child.exited.wait()  # killed a moment ago: its end may still be on its way
        if spec is None or self._closing or (child is not None and child.pid is not None):
            return
        await self._spawn(spec)
        await self.agent.target_restarted(name)

    # ---- Peers

    def names(self) -> Sequence[str]:
        return self._own_names() if self._people is None else list(self._people())

    def _own_names(self) -> Sequence[str]:
        return [
            n
            for n, child in self._children.items()
            if n not in _INFRASTRUCTURE and not n.startswith(AGENT_PREFIX) and child.pid is not None
        ]

    def control(self, name: str) -> Address | None:
        child = self._children.get(logical_name(name))
        if child is None and self._people is not None:
            return self._people().get(logical_name(name))
        if child is None or child.pid is None:
            return None
        return _address(child.ready.get("control") or child.ready.get("rpc"))

    async def unready(self, name: str) -> str:
        """Why this child does not do its work now; empty when it does. A TaskManager has to be registered."""
        child = self._children.get(name)
        address = self.control(name) if child is not None else None
        if child is None or child.pid is None:
            return f"{name} does not run"
        if child.paused:
            return f"{name} is paused"
        if address is None:
            return f"{name} is starting"
        if not name.startswith("tm-"):
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
            raise HeadgateError(f"{name} does not run")
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
        self.journal.add(
            "events",
            {
                "kind": "process.exit",
                "subject": child.name,
                "attempt": -1,
                "checkpoint": -1,
                "text": "" if child.asked_to_end else child.stderr_tail()[-500:],
                "data": data,
            },
        )
        if not child.asked_to_end:
            words = child.last_words()
            self.on_lost(f"{child.name} ended with {code}" + (f": {words}" if words else ""))
        spec = self._specs.get(child.name)
        lost = (
            spec is not None
            and spec.replace_after_s is not None
            and not child.stopping
            and bool(child.ready)
            and (spec.replace_killed or not child.asked_to_end)
        )
        starts = child.incarnation - self.config.first_incarnation + 1
        if lost and starts >= MAX_INCARNATIONS:
            self._give_up(f"{child.name} was lost {starts} times")
        elif spec is not None and lost and not self._closing:
            task = asyncio.get_running_loop().create_task(self._replace(spec), name=f"replace-{child.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _replace(self, spec: ChildSpec) -> None:
        """The next incarnation of a lost child, after its delay. One that does not become ready is told and left."""
        await asyncio.sleep(max(MIN_RESPAWN_S, spec.replace_after_s or 0.0))
        try:
            await self.restart(spec.name)
        except HeadgateError as error:
            text = f"{spec.name} was lost and did not come again: {error}"
            row = {
                "kind": "note",
                "subject": spec.name,
                "attempt": -1,
                "checkpoint": -1,
                "text": text,
                "data": {},
            }
            self.journal.add("events", row)
            self._give_up(text)

    def _give_up(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.given_up.set()


def _address(value: Any) -> Address | None:
    return (str(value[0]), int(value[1])) if value else None
