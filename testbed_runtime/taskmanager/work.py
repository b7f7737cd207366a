"""Processor time in virtual time: the cores of a TaskManager, and what a task has to pay for its work.

Cores are shared as by an operating system: a task keeps its core for a time slice while others wait, and threads that are woken for a
moment, those of the network and the flushers, interrupt it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass

from testbed_runtime.core.job.cost import Prices, Work, cores, prices
from testbed_runtime.core.options import Options
from testbed_runtime.taskmanager.meter import TaskMeter
from testbed_runtime.taskmanager.output import TaskOutput

SLICE_S = 0.004
"""How long a task keeps its core while others wait: a tick of a Linux with CONFIG_HZ=250, as on the machine of the measurements. Its
`base_slice_ns` is shorter, but a slice ends with a tick."""
QUANTUM_S = 0.0001
"""A task pays from this amount on. Far less than a slice and than the shortest buffer timeout of 1 ms: a flusher finds in a buffer what
the task has written until then."""
RELEASE_S = 1e-9
"""A task that has not asked for more time by then waits for something else, and its core is free."""


@dataclass(slots=True, eq=False)
class _Core:
    owner: TaskWork | None = None
    used_s: float = 0.0
    """How much of its slice the owner has used."""
    interrupted_s: float = 0.0
    """Time that threads took since the owner's last work, which delays its next."""
    release: asyncio.TimerHandle | None = None


class Cores:
    """The cores of one TaskManager."""

    def __init__(self, prices: Prices, count: float) -> None:
        """A count that is no whole number is that of as many slower cores: 1.5 are two of 75 %."""
        whole = math.ceil(count)
        self.prices = prices
        self.spent_s = 0.0
        """Processor time since the start."""
        self.buffers = 0
        """Data buffers that it has sent to other TaskManagers."""
        self._slower = whole / count
        self._cores = [_Core() for _ in range(whole)]
        self._waiting: deque[tuple[TaskWork, asyncio.Future[_Core]]] = deque()

    @classmethod
    def of(cls, options: Options, slots: int) -> Cores | None:
        """Return the cores of a TaskManager, or None if work costs nothing."""
        found = prices(options)
        return None if found is None else cls(found, cores(options, slots))

    async def spend(self, owner: TaskWork, seconds: float) -> None:
        """Wait for a core, and until it has worked for this long."""
        core = next((c for c in self._cores if c.owner is owner), None)
        if core is not None and core.release is not None:
            core.release.cancel()
            if core.used_s >= SLICE_S and self._waiting:
                self._free(core)
                core = None
        if core is None:
            core = await self._acquire(owner)
        self.spent_s += seconds
        work_s = seconds * self._slower + core.interrupted_s
        core.interrupted_s = 0.0
        core.used_s += work_s
        try:
            await asyncio.sleep(work_s)
        finally:
            core.release = asyncio.get_running_loop().call_later(RELEASE_S, self._free, core)

    async def _acquire(self, owner: TaskWork) -> _Core:
        for core in self._cores:
            if core.owner is None:
                core.owner = owner
                return core
        ticket: asyncio.Future[_Core] = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, ticket))
        try:
            return await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():
                self._free(ticket.result())
            raise

    def _free(self, core: _Core) -> None:
        """Take the core from its owner, and give it to the task that has waited longest."""
        core.owner, core.used_s, core.release = None, 0.0, None
        while self._waiting:
            owner, ticket = self._waiting.popleft()
            if not ticket.done():
                core.owner = owner
                ticket.set_result(core)
                return

    def charge(self, seconds: float) -> None:
        """Let a core work for this long. The caller does not wait; if no core is free, the task that it interrupts does."""
        self.spent_s += seconds
        if all(core.owner is not None for core in self._cores):
            core = min(self._cores, key=lambda c: c.interrupted_s)
            core.interrupted_s += seconds * self._slower

    def send(self, size: int) -> float:
        """Charge the network thread for a buffer that it sends. Return how many seconds that keeps it busy."""
        seconds = self.prices.of_network(size)
        self.buffers += 1
        self.charge(seconds)
        return seconds * self._slower

    def receive(self, size: int) -> None:
        """Charge the network thread for a buffer that it receives."""
        self.charge(self.prices.of_network(size))


class TaskWork:
    """Pays for what one task has done."""

    def __init__(self, cores: Cores, meter: TaskMeter, output: TaskOutput) -> None:
        self._cores = cores
        self._meter = meter
        self._output = output
        self._paid = Work()

    async def pay(self) -> None:
        """Spend the price of the work since the last payment, once it is QUANTUM_S. The flusher's thread has its own time."""
        meter, output, prices = self._meter, self._output, self._cores.prices
        done = Work(meter.records_out, meter.records_in, meter.buffers_in, output.flushed, output.flushes)
        owed = done.since(self._paid)
        task_s, flusher_s = prices.of_task(owed), prices.of_flusher(owed)
        if task_s + flusher_s >= QUANTUM_S:
            self._paid = done
            self._cores.charge(flusher_s)
            await self._cores.spend(self, task_s)
