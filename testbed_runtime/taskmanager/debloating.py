"""Buffer debloating of a task: measures the throughput of its gates and announces smaller buffers to their producers."""

from __future__ import annotations

from dataclasses import dataclass

from testbed_runtime.core.exchange.debloat import DEBLOAT, LEAST, START, BufferDebloater, ThroughputCalculator
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.options import Options
from testbed_runtime.core.processmemory import SEGMENT
from testbed_runtime.core.versions import GATES_DEBLOATED_ALONE, STARTING_SEGMENT_SIZE, has

LEAST_TIMER_S = 0.001
"""The shortest timer of a task in Flink (ProcessingTimeServiceUtil.getProcessingTimeDelay)."""


def starting_size(options: Options) -> int | None:
    """Return the size of buffers before the first announcement, or None without debloating."""
    if not options.boolean(DEBLOAT + "enabled"):
        return None
    largest = options.memory(SEGMENT)
    if not has(options.flink_version, STARTING_SEGMENT_SIZE):
        return largest
    return min(largest, options.memory(START))


@dataclass(slots=True)
class _Debloated:
    """Gates with the same buffer size: one, or in 1.14 all gates of the task."""

    gates: list[InputGate]
    debloater: BufferDebloater
    throughput: ThroughputCalculator
    counted_bytes: int = 0

    def recalculate(self, now_ms: float) -> None:
        received = sum(gate.received_bytes for gate in self.gates)
        self.throughput.incoming(received - self.counted_bytes, now_ms)
        self.counted_bytes = received
        in_use = sum(max(1, gate.buffers_in_use) for gate in self.gates)
        size = self.debloater.recalculate(self.throughput.calculate(now_ms), in_use)
        for gate in self.gates:
            if size is not None and not gate.finished:
                gate.announce_buffer_size(size)


class TaskDebloating:
    """Recalculates the buffer size of each gate every `period` (Flink's BufferDebloater). Times are in seconds."""

    def __init__(self, gates: list[InputGate], options: Options) -> None:
        self._gates = gates
        self._debloated: list[_Debloated] = []
        self._period_s = max(options.duration(DEBLOAT + "period"), LEAST_TIMER_S)
        self.deadline: float | None = None
        """When `on_time` recalculates next; None without debloating and before `start`."""
        start = starting_size(options)
        self.active = start is not None and bool(gates)
        """Whether any gate has its buffers debloated."""
        if start is None or not gates:
            return
        alone = has(options.flink_version, GATES_DEBLOATED_ALONE)
        samples = options.integer(DEBLOAT + "samples")
        for together in [[gate] for gate in gates] if alone else [gates]:
            debloater = BufferDebloater(
                target_ms=round(options.duration(DEBLOAT + "target") * 1000),
                largest=options.memory(SEGMENT),
                least=options.memory(LEAST),
                samples=samples if alone else 1,
                threshold_percent=options.integer(DEBLOAT + "threshold-percentages"),
                start=start,
                whole=not has(options.flink_version, STARTING_SEGMENT_SIZE),
                averages=alone,
            )
            throughput = ThroughputCalculator() if alone else ThroughputCalculator(samples)
            self._debloated.append(_Debloated(together, debloater, throughput))

    def start(self, now: float) -> None:
        """Begin the first period: the task runs. Its time counts until the task waits for input."""
        if self._debloated:
            self.deadline = now + self._period_s
            self.resume(now)

    def pause(self, now: float) -> None:
        """Stop counting time: the task waits for input."""
        for each in self._debloated:
            each.throughput.pause(now * 1000)

    def resume(self, now: float) -> None:
        """Count time again: the task has input."""
        for each in self._debloated:
            each.throughput.resume(now * 1000)

    def on_time(self, now: float) -> None:
        """Recalculate if a period has passed. Missed periods are skipped. Periods before every channel has sent its request are
        skipped too, because a Flink task does not run yet then."""
        if self.deadline is None or now < self.deadline:
            return
        self.deadline = now + self._period_s
        if not all(gate.requested for gate in self._gates):
            return
        for each in self._debloated:
            if not all(gate.finished for gate in each.gates):
                each.recalculate(now * 1000)
