"""Processes on this machine: the client of a supervisor that this process starts and holds a pipe to.

However this process ends, the pipe closes and the supervisor ends everything.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import to_builtins

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.ids import JOBMANAGER, PROXY, RECORDER, SUPERVISOR
from testbed_runtime.faults.backend import Unreachable
from testbed_runtime.faults.http import ControlClient, FaultClient
from testbed_runtime.faults.probes import path_from
from testbed_runtime.local import registry
from testbed_runtime.ports.hosts import ProcessState
from testbed_runtime.ports.network import Address, address_of
from testbed_runtime.process.config import SupervisorConfig
from testbed_runtime.supervisor.child import Child
from testbed_runtime.supervisor.supervisor import ChildSpec

SUPERVISOR_LIMIT_S = 20.0
"""Time limit for the supervisor to become ready. It usually takes a fraction of a second, or some seconds on a busy machine."""
DISPOSE_GRACE_S = 8.0
"""Time limit from closing the pipe to the end of the supervisor. After that it is killed, and its children with it."""
START_MARGIN_S = 5.0
TOKEN_BYTES = 32
NEEDED = (JOBMANAGER, RECORDER, PROXY)
"""Processes that every testbed needs. A lost TaskManager is handled by failover."""


class LocalProcessHost:
    """Starts processes through the supervisor, and gives access to its fault API (`faults`). `open` first, `close` at the end."""

    def __init__(self, *, run: str, trial: str, logs_folder: Path, seed: int = 1) -> None:
        self._run, self._trial, self._seed = run, trial, seed
        self._logs_folder = logs_folder
        self._states: dict[str, ProcessState] = {}
        self._supervisor: Child | None = None
        self._control: ControlClient | None = None
        self._faults: FaultClient | None = None
        self._address: Address = ("", 0)
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.work_folder = registry.state_folder() / f"{os.getpid()}-{secrets.token_hex(6)}"
        self._state_file = self.work_folder.with_suffix(".json")

    @property
    def token_file(self) -> Path:
        return self.work_folder / "token"

    @property
    def faults(self) -> FaultClient:
        if self._faults is None:
            raise HeadgateError("the supervisor is not running")
        return self._faults

    async def open(self) -> None:
        """Start the supervisor. Raises HeadgateError with the tail of its stderr."""
        registry.supervisors()  # removes the leftovers of killed supervisors
        self.work_folder.mkdir(mode=0o700)
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(self.token)
        config = SupervisorConfig(
            token_file=str(self.token_file),
            work_folder=str(self.work_folder),
            remove_work_folder=True,
            logs_folder=str(self._logs_folder),
            state_file=str(self._state_file),
            run=self._run,
            trial=self._trial,
            seed=self._seed,
        )
        path = self.work_folder / "supervisor.json"
        config.save(path)
        child = Child(SUPERVISOR, 1, self._logs_folder / "supervisor.log", tied=False)
        self._supervisor = child
        await child.spawn((sys.executable, "-m", "testbed_runtime.entry.supervisor", str(path)))
        await child.until_ready(SUPERVISOR_LIMIT_S)
        self._address = address_of(child.ready["control"])
        self._control = ControlClient(self.token)
        self._faults = FaultClient(self._address, self.token)

    async def close(self) -> None:
        """End all processes and remove all files. Idempotent, and safe after a failed `open`."""
        for client in (self._control, self._faults):
            if client is not None:
                await client.close()
        if self._supervisor is not None and self._supervisor.pid is not None:
            await self._supervisor.stop(DISPOSE_GRACE_S)
        self._supervisor = None
        self._state_file.unlink(missing_ok=True)
        shutil.rmtree(self.work_folder, ignore_errors=True)

    async def launch(self, spec: ChildSpec) -> ProcessState:
        """Start a process, with a rule for its next incarnations. Raises HeadgateError with the tail of its stderr."""
        answer = await self._call(
            "PUT", f"/v1/processes/{spec.name}", to_builtins(spec), timeout_s=spec.timeout_s + START_MARGIN_S
        )
        state = msgspec.convert(answer, ProcessState)
        self._states[spec.name] = state
        return state

    async def stop(self, name: str, *, grace_s: float = 3.0) -> None:
        path = f"/v1/processes/{name}/stop?grace_s={grace_s:g}"
        await self._call("POST", path, timeout_s=grace_s + START_MARGIN_S)

    def states(self) -> Sequence[ProcessState]:
        """Return the states as of the last `refresh` or `launch`."""
        return list(self._states.values())

    async def refresh(self) -> Sequence[ProcessState]:
        answer = await self._call("GET", "/v1/processes")
        states = msgspec.convert(answer["processes"], list[ProcessState])
        self._states = {state.name: state for state in states}
        return self.states()

    async def path(self) -> dict[str, Any]:
        """Measure loopback, from the supervisor to its own echo endpoint (`faults.probes.path_of`)."""
        if self._supervisor is None or self._control is None:
            raise Unreachable("the supervisor is not running")
        return await path_from(self._address, address_of(self._supervisor.ready["echo"]), self._control)

    async def check(self, names: Sequence[str] = NEEDED) -> None:
        """Raise HeadgateError if the supervisor or one of these processes is gone and Headgate did not end it."""
        supervisor = self._supervisor
        if supervisor is not None and supervisor.exit_code is not None:
            raise HeadgateError(lost(SUPERVISOR, supervisor.exit_code, supervisor.end_of_log()))
        try:
            states = await self.refresh()
        except Unreachable:
            return  # the supervisor is busy, or its end will be noticed soon
        for state in states:
            if state.name in names and state.exit_code is not None and not state.asked:
                raise HeadgateError(lost(state.name, state.exit_code, state.stderr_tail))

    async def _call(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        if self._control is None:
            raise Unreachable("the supervisor is not running")
        return await self._control.call(method, self._address, path, body, timeout_s=timeout_s)


def lost(name: str, exit_code: int, output: str) -> str:
    """Return how a process ended, with the last lines of its log, or the signal that killed it."""
    if exit_code >= 0:
        return f"the {name} ended with exit code {exit_code}" + (f": {output}" if output else "")
    how = signal.Signals(-exit_code).name
    return f"the {name} was killed by {how}, not by a fault of this run; what was recorded until then is kept"
