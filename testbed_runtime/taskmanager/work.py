"""Processor time in virtual time: the cores of a TaskManager, and what a task has to pay for its work.

Cores are shared as in Linux: of the tasks that wait, the one that has received the least time runs next. It keeps its core for a
time slice. The threads of the network and of the flushers run for a moment only, and interrupt the task.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from dataclasses import dataclass

from testbed_runtime.core.job.cost import Prices, Work, cores, prices
from testbed_runtime.core.options import Options
from testbed_runtime.taskmanager.meter import TaskMeter
from testbed_runtime.taskmanager.output import TaskOutput

SLICE_S = 0.0014
"""How long a task keeps its core in any case: `base_slice_ns` of Linux 6.15 and later, 0.7 ms * (1 + log2 of the CPUs), on the two
CPUs of the measurements. Afterwards it runs until the next thread is woken, but not longer than until a tick."""
TICK_S = 0.004
"""A tick of a Linux with CONFIG_HZ=250, as on that machine. A task that has waited for something is owed at most this much time."""
QUANTUM_S = 0.0001
"""A task pays for its work once it owes this much. This is far less than a slice and than the shortest buffer timeout of 1 ms, so a
flusher finds in a buffer what the task has written until then."""
RELEASE_S = 1e-9
"""If a task has not asked for more time after this, it is waiting for something else, and its core becomes free."""


@dataclass(slots=True, eq=False)
class _Core:
    owner: TaskWork | None = None
    used_s: float = 0.0
    """How long the owner has had the core."""
    wanted: bool = False
    """A thread was woken after the owner's slice."""
    interrupted_s: float = 0.0
    """Time that interrupting threads took since the owner's last work. It delays the owner's next work."""
    release: asyncio.TimerHandle | None = None


class Cores:
    """The cores of one TaskManager."""

    def __init__(self, prices: Prices, count: float) -> None:
        """A fractional count stands for slower cores: 1.5 are two cores at 75 %."""
        whole = math.ceil(count)
        self.prices = prices
        self.spent_s = 0.0
        """Processor time since the start."""
        self.buffers = 0
        """Number of data buffers that were sent to other TaskManagers."""
        self._slower = whole / count
        self._cores = [_Core() for _ in range(whole)]
        self._waiting: list[tuple[float, int, TaskWork, asyncio.Future[_Core]]] = []
        """A heap of the tasks that wait, by received time, and in the order of their requests."""
        self._requests = itertools.count()
        self._least_s = 0.0
        """The least received time of the tasks that have a core or wait for one. It never falls."""

    @classmethod
    def of(cls, options: Options, slots: int) -> Cores | None:
        """Return the cores of a TaskManager, or None if work costs nothing."""
        found = prices(options)
        return None if found is None else cls(found, cores(options, slots))

    @property
    def count(self) -> int:
        """The number of tasks that can work at the same time."""
        return len(self._cores)

    @property
    def shared(self) -> bool:
        """Whether tasks wait for a core."""
        return bool(self._waiting)

    async def spend(self, owner: TaskWork, seconds: float) -> None:
        """Wait for a core, then occupy it for this long."""
        core = next((c for c in self._cores if c.owner is owner), None)
        if core is not None and core.release is not None:
            core.release.cancel()
            if (
                (core.wanted or core.used_s >= TICK_S)
                and self._waiting
                and self._waiting[0][0] < owner.received_s
            ):
                self._free(core)
                core = None
        if core is None:
            core = await self._acquire(owner)
        self.spent_s += seconds
        work_s = seconds * self._slower + core.interrupted_s
        core.interrupted_s = 0.0
        core.used_s += seconds * self._slower
        owner.received_s += seconds * self._slower
        received = [c.owner.received_s for c in self._cores if c.owner is not None]
        received += [waiting[0] for waiting in self._waiting[:1]]
        self._least_s = max(self._least_s, min(received))
        try:
            await asyncio.sleep(work_s)
        finally:
            core.release = asyncio.get_running_loop().call_later(RELEASE_S, self._free, core)

    async def _acquire(self, owner: TaskWork) -> _Core:
        owner.received_s = max(owner.received_s, self._least_s - TICK_S)
        for core in self._cores:
            if core.owner is None:
                core.owner = owner
                return core
        self._wake()
        ticket: asyncio.Future[_Core] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (owner.received_s, next(self._requests), owner, ticket))
        try:
            return await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():
                self._free(ticket.result())
            raise

    def _free(self, core: _Core) -> None:
        """Take the core from its owner, and give it to the waiting task that has received the least."""
        core.owner, core.used_s, core.wanted, core.release = None, 0.0, False, None
        while self._waiting:
            _, _, owner, ticket = heapq.heappop(self._waiting)
            if not ticket.done():
                core.owner = owner
                ticket.set_result(core)
                return

    def _wake(self) -> None:
        """Mark cores whose tasks have used up their slices as wanted, because Linux's scheduler chooses again when a thread is woken."""
        for core in self._cores:
            core.wanted = core.wanted or core.used_s >= SLICE_S

    def charge(self, seconds: float) -> None:
        """Occupy a core for this long. The caller does not wait. If no core is free, a running task is interrupted for this long."""
        self.spent_s += seconds
        if seconds and all(core.owner is not None for core in self._cores):
            self._wake()
            core = min(self._cores, key=lambda c: c.interrupted_s)
            core.interrupted_s += seconds * self._slower

    def send(self, size: int) -> float:
        """Charge the network thread for a buffer that it sends. Return how many seconds that keeps it busy."""
        seconds = self.prices.of_network(size, shared=self.shared)
        self.buffers += 1
        self.charge(seconds)
        return seconds * self._slower

    def receive(self, size: int) -> None:
        """Charge the network thread for a buffer that it receives."""
        self.charge(self.prices.of_network(size, shared=self.shared))


class TaskWork:
    """Pays for what one task has done."""

    def __init__(self, cores: Cores, meter: TaskMeter, output: TaskOutput) -> None:
        self._cores = cores
        self._meter = meter
        self._output = output
        self._paid = Work()
        self.received_s = 0.0
        """Time that the task has had on a core. After a long wait for something else, it is raised to a tick less than the least time of
        the other tasks, so that the task cannot claim a core for long."""

    async def pay(self) -> None:
        """Spend the price of the work since the last payment, once it reaches QUANTUM_S. The work of the flusher's thread is charged
        separately."""
        meter, output, prices = self._meter, self._output, self._cores.prices
        done = Work(
            records_out=meter.records_out,
            records_in=meter.records_in,
            buffers_in=meter.buffers_in,
            flushed=output.flushed,
            flushes=output.flushes,
            records_flushed=meter.records_out if output.flushes_each else 0,
        )
        owed = done.since(self._paid)
        task_s, flusher_s = prices.of_task(owed, shared=self._cores.shared), prices.of_flusher(owed)
        if task_s + flusher_s >= QUANTUM_S:
            self._paid = done
            self._cores.charge(flusher_s)
            await self._cores.spend(self, task_s)
