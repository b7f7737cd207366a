"""The process backend: kill and pause by the parent of the process, or by the simulation.

The effect is measured at the process: its state is `T`, or it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from testbed_runtime.core.faults.links import owners_of
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.faults.backend import FaultRequest, Measurement, require_running, stopped_within
from testbed_runtime.timeouts import timeout

POLL_S = 0.01
STOPPED, GONE = "T", "gone"
END_LIMIT_S = 1.0
"""Limit from SIGKILL to the end of a process. A slower one keeps its connections open, for example because one of its threads waits for the
disk."""


class ProcessTable(Protocol):
    """The supervisor's children or the simulated processes, by logical name."""

    def pid(self, name: str) -> int | None:
        """Return the pid of the running incarnation (simulated: its number); None if none runs."""

    def state(self, name: str, pid: int) -> str:
        """Return the state letter of an incarnation (`R`, `S`, `T`, `Z`, …); empty when it does not exist."""

    def paused(self) -> Sequence[str]:
        """Return the processes that were paused and not resumed."""

    def signal_kill(self, name: str) -> None: ...

    def pause(self, name: str) -> None: ...

    def resume(self, name: str) -> None:
        """Resume a process. Harmless if it is not paused or does not exist."""

    async def restart(self, name: str) -> None:
        """Start the next incarnation of a process and wait until it is ready. Does nothing while one runs."""


def process_state(pid: int) -> str:
    """Return the kernel's state letter (`R`, `S`, `T`, `Z`, …); empty when the process does not exist. `X` is a
    process whose first thread has ended: it keeps its sockets open until the last one has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "X" if state == "Z" and int(fields[16]) > 1 else state


class ProcessBackend:
    """process.kill, process.pause, jobmanager.kill, jobmanager.pause."""

    def __init__(self, table: ProcessTable) -> None:
        self._table = table
        self._pids: dict[str, dict[str, int]] = {}
        self._pausing: dict[tuple[str, int | None], set[str]] = {}
        """The active faults that pause each incarnation (name, pid). It is resumed when the last of them ends."""

    async def prepare(self, request: FaultRequest) -> None:
        pids = {name: self._table.pid(name) for name in target_names(request)}
        require_running(name for name, pid in pids.items() if pid is None)
        self._pids[request.fault_id] = {name: pid for name, pid in pids.items() if pid is not None}

    async def apply(self, request: FaultRequest) -> float:
        begin = asyncio.get_running_loop().time()
        for name in target_names(request):
            if request.fault.kind.endswith(".kill"):
                self._table.signal_kill(name)
            else:
                self._pausing.setdefault((name, self._table.pid(name)), set()).add(request.fault_id)
                self._table.pause(name)
        return begin

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        pids = self._pids.get(request.fault_id, {})
        kill = request.fault.kind.endswith(".kill")
        wanted = (GONE, "Z") if kill else (STOPPED,)

        def took_effect() -> bool:
            return all(state in wanted for state in self._states(pids).values())

        ok = await (_ends(took_effect) if kill else _poll_until(took_effect, stop)) and bool(pids)
        late = f"a killed process still had threads after {END_LIMIT_S:g} s, and its connections were open until then"
        return Measurement(
            ok,
            {"pids": pids, "states": self._states(pids), "after_s": round(loop.time() - begin, 6)},
            "" if ok else late if kill and pids else "the process was not seen in the requested state",
        )

    async def remove(self, request: FaultRequest) -> None:
        for name in target_names(request):
            if request.fault.kind.endswith(".pause"):
                pausing = self._pausing.get((name, self._table.pid(name)), set())
                if request.fault_id in pausing:
                    pausing.remove(request.fault_id)
                    if not pausing:
                        self._table.resume(name)
            elif request.fault.kind == "jobmanager.kill":
                await self._table.restart(name)

    async def check(self, request: FaultRequest) -> Measurement:
        pids = self._pids.pop(request.fault_id, {})
        states = self._states(pids)
        stopped = [name for name, state in states.items() if state == STOPPED]
        left = [name for name in stopped if not self._pausing.get((name, pids[name]))]
        return Measurement(not left, {"states": states}, f"still stopped: {', '.join(left)}" if left else "")

    def _states(self, pids: Mapping[str, int]) -> dict[str, str]:
        return {name: self._table.state(name, pid) or GONE for name, pid in pids.items()}

    async def residue(self) -> Mapping[str, Any]:
        paused = list(self._table.paused())
        return {"paused": paused} if paused else {}


def target_names(request: FaultRequest) -> tuple[str, ...]:
    """Return the processes that a fault kills or pauses."""
    return (JOBMANAGER,) if request.fault.kind.startswith("jobmanager.") else owners_of(request.targets)


async def _poll_until(condition: Callable[[], bool], stop: asyncio.Event) -> bool:
    """Check `condition` periodically until it is true or `stop` is set. Return its last value."""
    while not condition():
        if await stopped_within(stop, POLL_S):
            return condition()
    return True


async def _ends(gone: Callable[[], bool]) -> bool:
    """Wait until a killed process is gone, at most END_LIMIT_S. Nothing undoes a kill, so the end of a short fault does not matter."""
    with contextlib.suppress(TimeoutError):
        async with timeout(END_LIMIT_S):
            return await _poll_until(gone, asyncio.Event())
    return gone()
