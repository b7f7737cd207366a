"""Samples of back-pressure, as Flink took them until 1.12: rounds of instantaneous samples.

Later versions of Flink use the time metrics instead. Headgate records both for every version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from testbed_runtime.core.exchange.backpressure import SamplePlan, SampleRound
from testbed_runtime.core.options import Options
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.taskmanager.meter import BACKPRESSURED, TaskMeter


class BackPressureSampler:
    """One timer per TaskManager, armed while tasks run. Writes a `backpressure.sampled` event per task and round."""

    def __init__(
        self, meters: Callable[[], Iterable[TaskMeter]], history: HistorySink, options: Options
    ) -> None:
        """`meters` returns the meters of the running tasks."""
        self._meters = meters
        self._history = history
        self._plan = SamplePlan.read(options)
        self._round = SampleRound(self._plan)
        self._timer: asyncio.TimerHandle | None = None
        self._running: list[TaskMeter] = []
        self._samples = 0
        """Number of samples in a row that found the tasks of `_running`. `_pressed`: in how many of them a task was back-pressured."""
        self._pressed: dict[TaskMeter, int] = {}

    def start(self) -> None:
        """Start sampling. Idempotent; the sampler stops when no task runs."""
        if self._timer is None:
            self._round, self._samples = SampleRound(self._plan), 0
            self._pressed.clear()
            self._arm(self._plan.delay_s)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        meters = list(self._meters())
        if not meters:
            return
        if meters != self._running:
            self._add_up()
            self._running = meters
        self._samples += 1
        for meter in meters:
            if meter.mode == BACKPRESSURED:
                self._pressed[meter] = self._pressed.get(meter, 0) + 1
        complete = self._round.taken + self._samples >= self._plan.samples
        if complete:
            self._add_up()
            self._write()
            self._round = SampleRound(self._plan)
        self._arm(self._plan.pause_s if complete else self._plan.delay_s)

    def _add_up(self) -> None:
        """Add the samples that found the same tasks to the round."""
        if self._samples:
            found = {_name(meter): self._pressed.get(meter, 0) for meter in self._running}
            self._round.take(found, self._samples)
        self._samples = 0
        self._pressed.clear()

    def _write(self) -> None:
        """Write the round. A task that ended during the round has no result, as in Flink."""
        meters = {_name(meter): meter for meter in self._running}
        for name, (samples, pressed) in self._round.counts.items():
            if name in meters:
                self._history.append(
                    "events",
                    kind="backpressure.sampled",
                    subject=meters[name].task,
                    attempt=meters[name].attempt,
                    checkpoint=-1,
                    text="",
                    data={"backpressured": pressed, "samples": samples},
                )


def _name(meter: TaskMeter) -> str:
    return f"{meter.task}#{meter.attempt}"
