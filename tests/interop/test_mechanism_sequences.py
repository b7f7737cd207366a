"""Restart strategies, failed checkpoints, buffer debloating and records that span buffers: random sequences beside Flink's classes."""

from __future__ import annotations

import random
import struct
from io import BytesIO

import pytest

from testbed_runtime.core.errors import LocalProtocolError
from testbed_runtime.core.exchange import records
from testbed_runtime.core.exchange.debloat import BufferDebloater, ThroughputCalculator
from testbed_runtime.core.exchange.records import RecordDeserializer
from testbed_runtime.core.job.checkpoints import CheckpointFailureManager, CheckpointFailureReason
from testbed_runtime.core.job.restart import (
    ExponentialConfig,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    RestartStrategy,
)
from testbed_runtime.core.values import MAX_INT
from tests.interop.sequences import COUNTS, compare, draw
from tests.transport.records import frame_record

pytestmark = pytest.mark.processes
FLINKS_LEAST_SPILL = 100 * 1024
"""Flink's deserializer spills no smaller records."""


def failures_and_waits(chance: random.Random) -> list[str]:
    """A strategy with short delays, failures, and time between them."""
    initial = chance.choice([1, 2, 3, 10, 100])
    kinds = {
        "exponential": f"{initial} {initial * chance.choice([1, 2, 7, 10000])} {chance.choice([1.1, 1.5, 2.0, 3.7])} "
        f"{chance.choice([1, 5, 20, 1000])} {chance.choice([1, 3, 5, MAX_INT])}",
        "rate": f"{chance.randint(1, 4)} {chance.choice([1, 5, 20])} {chance.choice([0, 1, 7])}",
        "fixed": f"{chance.randint(0, 4)} {chance.choice([0, 1, 7])}",
    }
    kind = chance.choice(["exponential", "exponential", "rate", "fixed"])
    waits = [f"wait {milliseconds}" for milliseconds in (1, 1, 2, 3, 5, 20, 200, 5000)]
    steps = range(chance.randint(1, 40))
    return [
        f"new {kind} {kinds[kind]}",
        *("fail" if chance.random() < 0.6 else chance.choice(waits) for _ in steps),
    ]


class Restarts:
    """A strategy and its clock in milliseconds."""

    def __init__(self) -> None:
        self._strategy: RestartStrategy = FixedDelay(0, 0.0)
        self._now_ms = 0

    def step(self, words: list[str]) -> str:
        match words:
            case "new", "exponential", initial, largest, multiplier, reset, attempts:
                initial_s, largest_s, reset_s = (int(each) / 1000 for each in (initial, largest, reset))
                config = ExponentialConfig(
                    initial_s, largest_s, float(multiplier), reset_s, 0.0, int(attempts)
                )
                self._strategy = ExponentialDelay(config, max)
            case "new", "rate", most, interval, delay:
                self._strategy = FailureRate(int(most), int(interval) / 1000, int(delay) / 1000)
            case "new", _, attempts, delay:
                self._strategy = FixedDelay(int(attempts), int(delay) / 1000)
            case "wait", milliseconds:
                self._now_ms += int(milliseconds)
            case _:
                return str(self._strategy.notify_failure(self._now_ms / 1000)).lower()
        return ""

    def state(self) -> str:
        now = self._now_ms / 1000
        try:
            delay = str(round(self._strategy.backoff_s(now) * 1000))
        except LocalProtocolError:
            delay = "none"
        return f" ; {str(self._strategy.can_restart(now)).lower()} {delay}"


def failed_checkpoints(chance: random.Random) -> list[str]:
    """Failures for any reason and successes, mostly of rising checkpoints."""
    lines, checkpoint = [f"new {chance.randint(0, 3)}"], 1
    for _ in range(chance.randint(1, 30)):
        checkpoint += chance.choice([0, 1, 1, 1, 2])
        number = max(1, checkpoint - chance.choice([0, 0, 0, 1, 2]))
        if chance.random() < 0.2:
            lines.append(f"success {number}")
        else:
            number = -1 if chance.random() < 0.1 else number
            lines.append(f"fail {number} {chance.choice(list(CheckpointFailureReason)).name}")
    return lines


class Failures:
    """The failure manager of a job."""

    version = "2.x"

    def __init__(self) -> None:
        self._manager = CheckpointFailureManager(0, self.version)

    def step(self, words: list[str]) -> str:
        match words:
            case "new", tolerable:
                self._manager = CheckpointFailureManager(int(tolerable), self.version)
            case "success", checkpoint:
                self._manager.on_success(int(checkpoint))
            case _, checkpoint, reason:
                return self._manager.on_failure(int(checkpoint), CheckpointFailureReason.of(reason)) or ""
        return ""

    def state(self) -> str:
        return ""


def sizes_and_throughput(chance: random.Random) -> list[str]:
    """A debloater, the data that its gate receives, and throughputs of any size."""
    least, largest = chance.choice([1, 16, 50, 256]), chance.choice([256, 1000, 32768])
    start, threshold = chance.choice([least, largest]), chance.choice([0, 25, 50, 100])
    lines = [
        f"new {chance.choice([1, 7, 100, 1000])} {start} {largest} {least} {threshold} {chance.choice([1, 3, 20, 10000])}"
    ]
    for _ in range(chance.randint(1, 40)):
        buffers = chance.choice([0, 1, 3, 16, 1000])
        match chance.choice(["measure", "wait", "pause", "resume", "data", "data", "recalculate"]):
            case "wait":
                lines.append(f"wait {chance.choice([1, 5, 50, 1000])}")
            case "data":
                lines.append(f"data {chance.choice([0, 1, 777, 32768, 10**9])}")
            case "measure":
                lines.append(f"measure {buffers}")
            case "recalculate":
                throughput = chance.choice([0, 1, 3333, 10**5, 10**7, 10**10, 10**14])
                lines.append(f"recalculate {throughput} {buffers}")
            case kind:
                lines.append(kind)
    return lines


class Debloating:
    """A debloater and the throughput of its gate."""

    whole = False

    def __init__(self) -> None:
        self._now_ms = 0
        self._throughput = ThroughputCalculator()
        self._debloater = BufferDebloater(target_ms=1, largest=1, least=1)

    def step(self, words: list[str]) -> str:
        now = self._now_ms
        match words:
            case "new", *numbers:
                target, start, largest, least, threshold, samples = map(int, numbers)
                self._debloater = BufferDebloater(
                    target_ms=target,
                    largest=largest,
                    least=least,
                    threshold_percent=threshold,
                    samples=samples,
                    start=largest if self.whole else start,
                    whole=self.whole,
                )
            case "wait", milliseconds:
                self._now_ms += int(milliseconds)
            case ["pause"]:
                self._throughput.pause(now)
            case ["resume"]:
                self._throughput.resume(now)
            case "data", size:
                self._throughput.incoming(int(size), now)
            case "measure", buffers:
                return self._recalculated(self._throughput.calculate(now), int(buffers))
            case _, throughput, buffers:
                return self._recalculated(int(throughput), int(buffers))
        return ""

    def _recalculated(self, throughput: int, buffers: int) -> str:
        size = self._debloater.recalculate(throughput, buffers)
        text = "none" if size is None else str(size)
        return f"{throughput} {text} {self._debloater.time_to_consume_ms}"

    def state(self) -> str:
        return ""


def records_in_pieces(chance: random.Random) -> list[str]:
    """Records of a few bytes, seldom of many, cut anywhere; the stream begins anew after it was cleared."""
    lines, stream = ["new"], b""
    for _ in range(chance.randint(1, 12)):
        body = chance.randbytes(chance.choice([0, 1, 3, 8, 20, 60]))
        if chance.random() < 0.01:
            body = bytes(FLINKS_LEAST_SPILL + chance.choice([-4, -3, 5000]))
        stream += frame_record(struct.pack(">i", len(body)) + body)
    while stream:
        size = chance.choice([1, 2, 3, 5, 8, 32, 100]) if len(stream) < 2000 else 32768
        piece, stream = stream[:size], stream[size:]
        lines.append(f"feed {len(piece)} {piece.rstrip(bytes(1)).hex()}".strip())
        if chance.random() < 0.02:
            return [*lines, "clear", *lines[1:]]
    return lines


def _summary(data: bytes) -> str:
    total = 0
    for each in data:
        total = (31 * total + each) & 0xFFFF
    return f"{len(data)}/{total}"


class Records:
    """The deserializer of a channel."""

    def __init__(self) -> None:
        self._deserializer = RecordDeserializer(BytesIO)

    def step(self, words: list[str]) -> str:
        if words[0] == "clear":
            self._deserializer.clear()
        if words[0] != "feed":
            return ""
        data = bytes.fromhex("".join(words[2:])).ljust(int(words[1]), b"\0")
        return ",".join(_summary(bytes(record)[4:]) for record in self._deserializer.feed(data))

    def state(self) -> str:
        return f" ; {_summary(self._deserializer.incomplete)}"


@pytest.mark.parametrize("count", COUNTS)
def test_random_failures_restart_a_job_as_flinks_strategies_do(flink, count):
    """Whether a failure is a new attempt, whether the job may restart, and after what delay."""
    compare(flink, "restarts", Restarts, draw(6, count, failures_and_waits))


@pytest.mark.parametrize("count", COUNTS)
def test_random_failures_of_checkpoints_fail_a_job_as_in_flink(flink, count, monkeypatch):
    """The text with which the job fails, for failures with every reason."""
    monkeypatch.setattr(Failures, "version", flink.name)
    compare(flink, "failures", Failures, draw(7, count, failed_checkpoints))


@pytest.mark.parametrize("count", COUNTS)
def test_random_throughputs_debloat_buffers_as_in_flink(flink, count, monkeypatch):
    """Throughput, announced size and time to consume."""
    monkeypatch.setattr(Debloating, "whole", flink.name != "2.x")
    compare(flink, "debloating", Debloating, draw(8, count, sizes_and_throughput))


@pytest.mark.parametrize("count", COUNTS)
def test_random_pieces_of_records_are_joined_as_in_flink(flink, count, monkeypatch):
    """The records that each buffer completes, and what is left of the next one, also while it waits in a file."""
    monkeypatch.setattr(records, "SPILL_BYTES", FLINKS_LEAST_SPILL)
    compare(flink, "records", Records, draw(9, count, records_in_pieces))
