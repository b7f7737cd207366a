"""ResultPartition: random records, buffer sizes, flushes, barriers and reads, beside Flink's PipelinedResultPartition."""

from __future__ import annotations

import random

import pytest

from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import NO_TIMEOUT_MS, CheckpointBarrier
from testbed_runtime.core.exchange.partition import EVERY, ResultPartition
from tests.core.exchange_model import partition_id
from tests.interop.sequences import ALIGNMENTS, BARRIER_TIMEOUT_MS, BARRIERS, COUNTS, compare, draw

pytestmark = pytest.mark.processes
SEGMENT_BYTES = 32


def a_sequence(chance: random.Random) -> list[str]:
    """Up to three subpartitions whose readers ask for smaller buffers, and records that may need several."""
    subpartitions, size = chance.randint(1, 3), chance.randint(4, 12)
    lines = [f"new {subpartitions} {size} {chance.choice([1, 2, 10])}"]
    share = chance.choice([0, 0.2, 0.8])  # of the records that go to every subpartition
    kinds = ["emit", "poll", "size", "flush", "flush-all", "barrier", "resume", "finish"]
    for number, kind in enumerate(chance.choices(kinds, [30, 35, 8, 6, 4, 4, 6, 1], k=chance.randint(3, 60))):
        index = chance.randrange(subpartitions)
        match kind:
            case "emit":
                index = EVERY if chance.random() < share else index
                lines.append(f"emit {index} {chance.choice([1, 2, 5, 8, 16, 31, 32, 33, 40, 64, 70])}")
            case "size":
                lines.append(f"size {index} {chance.choice([1, 5, 8, 16, 31, 32, 1000])}")
            case "barrier":
                lines.append(f"barrier {chance.choice(BARRIERS)} {number + 1}")
            case "flush-all":
                lines.append(kind)
            case "finish":
                lines.append(kind)
            case _:
                lines.append(f"{kind} {index}")
    return lines


class Partition:
    """A partition, its pool and its readers."""

    passes_block = True

    def __init__(self) -> None:
        self._start(1, 1, 1)

    def _start(self, subpartitions: int, size: int, most: int) -> None:
        network = NetworkBufferPool(size, SEGMENT_BYTES)
        self._pool = network.create_buffer_pool(
            size, size, subpartitions=subpartitions, max_buffers_per_channel=most
        )
        self._partition = ResultPartition(partition_id(), subpartitions, self._pool)
        for subpartition in self._partition.subpartitions:
            subpartition.priority_passes_block = self.passes_block
        self._notified = False
        self._views = [self._partition.create_view(i, self._notify) for i in range(subpartitions)]

    def _notify(self) -> None:
        self._notified = True

    def step(self, words: list[str]) -> str:
        partition = self._partition
        match words:
            case "new", *numbers:
                self._start(*map(int, numbers))
            case "emit", index, size:
                return self._emit(int(index), int(size))
            case "size", index, size:
                self._views[int(index)].notify_new_buffer_size(int(size))
            case "flush", index:
                partition.flush(int(index))
            case ["flush-all"]:
                partition.flush_all()
            case "barrier", kind, number:
                timeout = BARRIER_TIMEOUT_MS if kind == "timeoutable" else NO_TIMEOUT_MS
                partition.broadcast_event(CheckpointBarrier(int(number), 0, ALIGNMENTS[kind], timeout))
            case "resume", index:
                self._views[int(index)].resume_consumption()
            case ["finish"]:
                partition.finish()
            case _, index:
                return self._polled(int(index))
        return ""

    def _emit(self, index: int, size: int) -> str:
        if 1 + size // SEGMENT_BYTES > self._pool.size - self._pool.used:
            return "blocked"
        accepted = self._partition.emit(index, bytes(size), record_bytes=size, overdraft=True)
        return "" if accepted == size else f"{accepted} of {size}"

    def _polled(self, index: int) -> str:
        polled = self._views[index].poll()
        if polled is None:
            return "none"
        buffer = polled.buffer
        size = f" {buffer.size}" if buffer.is_buffer else ""
        text = f"{buffer.data_type.name}{size} {polled.backlog} {polled.next_type.name}"
        buffer.recycle()
        return text

    def state(self) -> str:
        notified, self._notified = self._notified, False
        available = str(self._pool.is_available).lower()
        return f" ; {str(notified).lower()} {self._pool.used} {available} {self._partition.queued}"


@pytest.mark.parametrize("count", COUNTS)
def test_random_sequences_on_a_partition_are_flinks(flink, count, monkeypatch):
    """Buffers and their sizes, backlog, notifications and the pool after every command of each sequence."""
    monkeypatch.setattr(Partition, "passes_block", flink.name == "2.x")
    compare(flink, "partitions", Partition, draw(10, count, a_sequence))
