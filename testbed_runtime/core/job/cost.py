"""Prices of a task's work in processor time. They are used in virtual time, where work costs nothing
otherwise."""

from __future__ import annotations

from msgspec import Struct

from testbed_runtime.core.errors import OptionRefused
from testbed_runtime.core.options import Options

COST = "headgate.simulation.cost"
CORES = "taskmanager.cpu.cores"


class Work(Struct, frozen=True):
    """The work of a task since its start."""

    records_out: int = 0
    records_in: int = 0
    buffers_in: int = 0
    """Data buffers that it has read."""
    flushed: int = 0
    """Buffers that left before they were full, on the buffer timeout."""
    flushes: int = 0
    """Runs of its output flusher."""
    records_flushed: int = 0
    """Records that were flushed one by one: all emitted records with a buffer timeout of 0."""

    def since(self, before: Work) -> Work:
        return Work(
            self.records_out - before.records_out,
            self.records_in - before.records_in,
            self.buffers_in - before.buffers_in,
            self.flushed - before.flushed,
            self.flushes - before.flushes,
            self.records_flushed - before.records_flushed,
        )


class Prices(Struct, frozen=True):
    """Prices of each unit of work, in seconds of one core. A buffer costs less while threads wait for cores
    (`shared`): its thread waits too, and then handles all buffers that have gathered."""

    record_out_s: float
    record_in_s: float
    buffer_in_s: float
    """Price in the task that reads the buffer, including its wake-up."""
    shared_in_s: float
    """The same while threads wait for cores."""
    flushed_s: float
    """Price in the flusher's thread of a buffer that it flushes."""
    flush_s: float
    """Price in the flusher's thread of each run."""
    flush_record_s: float
    """Price in the task that emits a record, for the flush after it."""
    network_buffer_s: float
    """Price in the network thread that sends the buffer to another TaskManager, and in the thread that
    receives it."""
    network_shared_s: float
    """The same while threads wait for cores."""
    network_byte_s: float

    def of_task(self, work: Work, *, shared: bool) -> float:
        """Return the processor time of the task's own thread. The task waits for it."""
        return (
            self.record_out_s * work.records_out
            + self.flush_record_s * work.records_flushed
            + self.record_in_s * work.records_in
            + (self.shared_in_s if shared else self.buffer_in_s) * work.buffers_in
        )

    def of_network(self, size: int, *, shared: bool) -> float:
        """Return the time of a network thread, at one end, for a buffer of this many bytes."""
        return (self.network_shared_s if shared else self.network_buffer_s) + self.network_byte_s * size

    def of_flusher(self, work: Work) -> float:
        """Return the time of the flusher's thread."""
        return self.flushed_s * work.flushed + self.flush_s * work.flushes


CALIBRATIONS: dict[str, Prices] = {
    "flink-2.3": Prices(
        record_out_s=202e-9,
        record_in_s=64.9e-9,
        buffer_in_s=8.97e-6,
        shared_in_s=6.17e-6,
        flushed_s=0.109e-6,
        flush_s=16e-6,
        flush_record_s=87.3e-9,
        network_buffer_s=12.2e-6,
        network_shared_s=1.89e-6,
        network_byte_s=0.752e-9,
    )
}
"""Fitted by `benchmarks/flink_timeout_bench.py --fit` to a real Flink's processor time; the method is in benchmarks/cost.md."""


def prices(options: Options) -> Prices | None:
    """Return the prices that the configuration asks for. None if work costs nothing."""
    return CALIBRATIONS.get(options.string(COST))


def cores(options: Options, slots: int) -> float:
    """Return the cores of a TaskManager: Flink's default is one for each slot. Raises OptionRefused as Flink's
    TaskExecutorProcessUtils does."""
    found = options.number(CORES) if options.is_set(CORES) else float(slots)
    if found <= 0:
        text = f"TaskExecutors need to be started with a positive number of CPU cores. Please configure {CORES} accordingly."
        raise OptionRefused(
            "IllegalConfigurationException", text, CORES, "leave it out for one core per slot"
        )
    return found
