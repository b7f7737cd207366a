"""Live counters of the TaskManagers on this machine, read from their control endpoints. No message of the job is affected."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.ids import is_task_manager
from testbed_runtime.core.job.livecounters import LiveCounters
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.local.process_host import LocalProcessHost
from testbed_runtime.ports.hosts import ProcessState
from testbed_runtime.ports.network import address_of
from testbed_runtime.process.config import COUNTERS_PATH
from testbed_runtime.timeouts import cancel_all

EVERY_S = 0.5
"""Between two readings; a person cannot follow more."""
ANSWER_LIMIT_S = 1.0
"""A TaskManager that takes longer is paused or gone; this reading skips it."""


class LiveReader:
    """`values` returns the newest counters and starts the next reading when it is due. Call `close` at the end."""

    def __init__(self, processes: LocalProcessHost) -> None:
        self._processes = processes
        self._control = ControlClient(processes.token, timeout_s=ANSWER_LIMIT_S)
        self._counters = LiveCounters()
        self._reading: asyncio.Task[None] | None = None
        self._read_at = float("-inf")
        self._closed = False

    def values(self) -> Mapping[str, float]:
        """Return the newest counters without waiting."""
        loop = asyncio.get_running_loop()
        idle = self._reading is None or self._reading.done()
        if idle and not self._closed and loop.time() >= self._read_at + EVERY_S:
            self._reading = loop.create_task(self._read(), name="live-counters")
        return self._counters.values

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            states = await self._processes.refresh()
        except HeadgateError:
            return  # the supervisor is gone or busy; the job's own status shows what happened
        finally:
            self._read_at = loop.time()
        running = [s for s in states if is_task_manager(s.name) and s.ready.get("control")]
        answers = await asyncio.gather(*(self._ask(s) for s in running))
        readings = {
            f"{s.name}-{s.incarnation}": a for s, a in zip(running, answers, strict=True) if a is not None
        }
        self._read_at = loop.time()
        self._counters.update(readings, self._read_at)

    async def _ask(self, state: ProcessState) -> Mapping[str, float] | None:
        try:
            return await self._control.call("GET", address_of(state.ready["control"]), COUNTERS_PATH)
        except HeadgateError:
            return None

    async def close(self) -> None:
        """Idempotent."""
        self._closed = True
        await cancel_all(self._reading)
        self._reading = None
        await self._control.close()
