"""Service time of a task: owed per record, paid in steps that a timer can keep."""

from __future__ import annotations

from testbed_runtime.ports.execution import Clock, Cpu

STEP_S = 0.001
"""epoll's timers have whole milliseconds: what is owed is paid from here on."""
CREDIT_MAX_S = 0.010
"""Most that a late timer may have paid in advance; longer stalls are not service time."""


class ServiceTime:
    """Adds up what a task owes and spends it through the Cpu port; what a sleep took too long counts as paid."""

    def __init__(self, cpu: Cpu, clock: Clock) -> None:
        self._cpu = cpu
        self._clock = clock
        self._owed_s = 0.0

    async def spend(self, seconds: float) -> None:
        self._owed_s += seconds
        if self._owed_s < STEP_S:
            return
        begin = self._clock.now()
        await self._cpu.spend(self._owed_s)
        self._owed_s = max(-CREDIT_MAX_S, self._owed_s - (self._clock.now() - begin))
