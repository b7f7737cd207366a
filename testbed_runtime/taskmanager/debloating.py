"""Buffer debloating of a task: measures the throughput of its gates and announces smaller buffers to their producers."""

from __future__ import annotations

from dataclasses import dataclass, field

from testbed_runtime.core.exchange.debloat import DEBLOAT, LEAST, START, BufferDebloater, ThroughputCalculator
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.options import Options
from testbed_runtime.core.processmemory import SEGMENT
from testbed_runtime.core.versions import STARTING_SEGMENT_SIZE, has


def starting_size(options: Options) -> int | None:
    """Return the size of buffers before the first announcement, or None without debloating."""
    if not options.boolean(DEBLOAT + "enabled"):
        return None
    largest = options.memory(SEGMENT)
    if not has(options.flink_version, STARTING_SEGMENT_SIZE):
        return largest
    return min(largest, options.memory(START))


@dataclass(slots=True)
class _GateDebloating:
    gate: InputGate
    debloater: BufferDebloater
    throughput: ThroughputCalculator = field(default_factory=ThroughputCalculator)
    counted_bytes: int = 0

    def recalculate(self, now_ms: float) -> None:
        received = self.gate.received_bytes
        self.throughput.incoming(received - self.counted_bytes, now_ms)
        self.counted_bytes = received
        size = self.debloater.recalculate(self.throughput.calculate(now_ms), self.gate.buffers_in_use)
        if size is not None:
            self.gate.announce_buffer_size(size)


class TaskDebloating:
    """Recalculates the buffer size of each gate every `period` (Flink's BufferDebloater). Times are in seconds."""

    def __init__(self, gates: list[InputGate], options: Options) -> None:
        self._gates: list[_GateDebloating] = []
        self._period_s = options.duration(DEBLOAT + "period")
        self.deadline: float | None = None
        """When `on_time` recalculates next; None without debloating and before `start`."""
        start = starting_size(options)
        self.active = start is not None and bool(gates)
        """Whether any gate has its buffers debloated."""
        if start is None:
            return
        for gate in gates:
            debloater = BufferDebloater(
                target_ms=round(options.duration(DEBLOAT + "target") * 1000),
                largest=options.memory(SEGMENT),
                least=options.memory(LEAST),
                samples=options.integer(DEBLOAT + "samples"),
                threshold_percent=options.integer(DEBLOAT + "threshold-percentages"),
                start=start,
                whole=not has(options.flink_version, STARTING_SEGMENT_SIZE),
            )
            self._gates.append(_GateDebloating(gate, debloater))

    def start(self, now: float) -> None:
        """Begin the first period: the task runs."""
        if self._gates:
            self.deadline = now + self._period_s

    def pause(self, now: float) -> None:
        """Stop counting time: the task waits for input."""
        for each in self._gates:
            each.throughput.pause(now * 1000)

    def resume(self, now: float) -> None:
        """Count time again: the task has input."""
        for each in self._gates:
            each.throughput.resume(now * 1000)

    def on_time(self, now: float) -> None:
        """Recalculate if a period has passed. Missed periods are skipped. Periods before every channel has sent its request are
        skipped too, because a Flink task does not run yet then."""
        if self.deadline is None or now < self.deadline:
            return
        self.deadline = now + self._period_s
        if not all(each.gate.requested for each in self._gates):
            return
        for each in self._gates:
            if not each.gate.finished:
                each.recalculate(now * 1000)
