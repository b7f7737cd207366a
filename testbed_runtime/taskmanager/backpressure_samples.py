"""Samples of back-pressure, as Flink took them until 1.12: a round of instants, beside the time metrics of later versions."""

from __future__ import annotations

import asyncio
import json
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
        """`meters` returns those of the running tasks."""
        self._meters = meters
        self._history = history
        self._plan = SamplePlan.read(options)
        self._round = SampleRound(self._plan)
        self._timer: asyncio.TimerHandle | None = None
        self._sampled: list[tuple[str, TaskMeter]] = []
        """The tasks of the last sample, by name and attempt."""

    def start(self) -> None:
        """Start sampling. Idempotent; the sampler stops by itself when no task runs."""
        if self._timer is None:
            self._round = SampleRound(self._plan)
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
        if [meter for _, meter in self._sampled] != meters:
            self._sampled = [(f"{meter.task}#{meter.attempt}", meter) for meter in meters]
        complete = self._round.take([(name, meter.mode == BACKPRESSURED) for name, meter in self._sampled])
        if complete:
            self._write(dict(self._sampled))
            self._round = SampleRound(self._plan)
        self._arm(self._plan.pause_s if complete else self._plan.delay_s)

    def _write(self, meters: dict[str, TaskMeter]) -> None:
        """Write the round. A task that ended during the round has no result, as in Flink."""
        for name, (samples, pressed) in self._round.counts.items():
            if name in meters:
                self._history.append(
                    "events",
                    kind="backpressure.sampled",
                    subject=meters[name].task,
                    attempt=meters[name].attempt,
                    checkpoint=-1,
                    text="",
                    data=json.dumps({"backpressured": pressed, "samples": samples}),
                )
