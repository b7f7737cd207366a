"""Processor time in virtual time: the cores of a TaskManager, and what a task has to pay for its work."""

from __future__ import annotations

import asyncio
import heapq
import math

from testbed_runtime.core.job.cost import Prices, Work, cores, prices
from testbed_runtime.core.options import Options
from testbed_runtime.taskmanager.meter import TaskMeter
from testbed_runtime.taskmanager.output import TaskOutput

SLICE_S = 0.001
"""A task pays from this amount on: about a time slice of an operating system."""


class Cores:
    """The cores of one TaskManager. Its tasks get them in the order in which they ask, for one slice
    after another."""

    def __init__(self, prices: Prices, count: float) -> None:
        """A count that is no whole number is that of as many slower cores: 1.5 are two of 75 %."""
        whole = math.ceil(count)
        self.prices = prices
        self.spent_s = 0.0
        """Processor time since the start."""
        self.buffers = 0
        """Data buffers that it has sent to other TaskManagers."""
        self._slower = whole / count
        self._free = [0.0] * whole
        """When each core is free."""

    @classmethod
    def of(cls, options: Options, slots: int) -> Cores | None:
        """Return the cores of a TaskManager, or None if work costs nothing."""
        found = prices(options)
        return None if found is None else cls(found, cores(options, slots))

    async def spend(self, seconds: float) -> None:
        """Wait for a core, and until it has worked for this long."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._take(seconds) - loop.time())

    def charge(self, seconds: float) -> None:
        """Let a core work for this long. The caller does not wait, but later work does."""
        if seconds:
            self._take(seconds)

    def send(self, size: int) -> float:
        """Charge the network thread for a buffer that it sends. Return how many seconds that keeps it busy."""
        seconds = self.prices.of_network(size)
        self.buffers += 1
        self.charge(seconds)
        return seconds * self._slower

    def receive(self, size: int) -> None:
        """Charge the network thread for a buffer that it receives."""
        self.charge(self.prices.of_network(size))

    def _take(self, seconds: float) -> float:
        """Return when the core that is free first has done this work."""
        end = max(asyncio.get_running_loop().time(), self._free[0]) + seconds * self._slower
        heapq.heapreplace(self._free, end)
        self.spent_s += seconds
        return end


class TaskWork:
    """Pays for what one task has done."""

    def __init__(self, cores: Cores, meter: TaskMeter, output: TaskOutput) -> None:
        self._cores = cores
        self._meter = meter
        self._output = output
        self._paid = Work()

    async def pay(self) -> None:
        """Spend the price of the work since the last payment, once it is SLICE_S. The flusher's thread has its own time."""
        meter, output, prices = self._meter, self._output, self._cores.prices
        done = Work(meter.records_out, meter.records_in, meter.buffers_in, output.flushed, output.flushes)
        owed = done.since(self._paid)
        task_s, flusher_s = prices.of_task(owed), prices.of_flusher(owed)
        if task_s + flusher_s >= SLICE_S:
            self._paid = done
            self._cores.charge(flusher_s)
            await self._cores.spend(task_s)
