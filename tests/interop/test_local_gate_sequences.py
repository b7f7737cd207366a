"""InputGate with local channels: random data, events, polls and releases of its producers, beside Flink's SingleInputGate."""

from __future__ import annotations

import random

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.backoff import Backoff
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import EndOfData, StopMode
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from tests.core.exchange_model import partition_id
from tests.interop.sequences import BARRIERS, COUNTS, SEGMENT_BYTES, Writer, compare, draw

pytestmark = pytest.mark.processes


def a_sequence(chance: random.Random) -> list[str]:
    """Up to three channels. Their producers write as long as they have not ended."""
    channels, ended = chance.randint(1, 3), set[int]()
    lines = [f"new {chance.choice([0, 2, 2])} {channels}"]
    kinds = [
        "data",
        "append",
        "finish",
        "barrier",
        "time-out",
        "end-of-data",
        "end",
        "flush",
        "poll",
        "resume",
    ]
    weights = [24, 3, 4, 12, 3, 1.5, 2, 8, 35, 9, 1.5, 1.5, 0.3]
    kinds += ["size", "acknowledge", "release"]
    for number, kind in enumerate(chance.choices(kinds, weights, k=chance.randint(5, 60))):
        channel = chance.randrange(channels)
        match kind:
            case "poll" | "acknowledge":
                lines.append(kind)
            case "size":
                lines.append(f"size {chance.randint(1, 9)}")
            case "resume":
                lines.append(f"resume {channel}")
            case "release":
                ended.add(channel)
                lines.append(f"release {channel} {chance.choice(['failed', 'finished'])}")
            case _ if channel in ended:
                pass
            case _:
                if kind == "end":
                    ended.add(channel)
                lines.append(_written(chance, kind, channel, number))
    return lines


def _written(chance: random.Random, kind: str, channel: int, number: int) -> str:
    """Return a command for the producer of a channel."""
    match kind:
        case "data":
            size, end = chance.choice([0, 1, 3, SEGMENT_BYTES]), chance.choice(["open", "finished"])
            return f"data {channel} {size} {end}"
        case "append":
            return f"append {channel} {chance.choice([1, 4])}"
        case "barrier":
            return f"barrier {channel} {chance.choice(BARRIERS)} {number}"
        case "time-out":
            return f"time-out {channel} {chance.randrange(max(1, number))}"
        case "end-of-data":
            return f"end-of-data {channel} {chance.choice(['drain', 'stop'])}"
        case _:
            return f"{kind} {channel}"


class LocalGate:
    """A gate and the writers of its producers."""

    passes_block = True

    def __init__(self) -> None:
        self._start(2, 1)

    def _start(self, exclusive: int, channels: int) -> None:
        network = NetworkBufferPool(8 + channels, SEGMENT_BYTES)
        self._manager = ResultPartitionManager(request_timeout_s=0)
        self._gate = InputGate(network, network.create_buffer_pool(1, 4), lambda: None)
        self._writers = []
        for index in range(channels):
            partition = ResultPartition(
                partition_id(index), 1, network.create_buffer_pool(1, 1), exclusive=exclusive
            )
            partition.subpartitions[0].priority_passes_block = self.passes_block
            self._manager.register(partition)
            self._writers.append(Writer(partition.subpartitions[0]))
            self._gate.add_local(partition_id(index), 0, manager=self._manager, backoff=Backoff(0, 0))
        assert self._gate.set_up()
        for channel in self._gate.channels:
            channel.request(0.0)

    def step(self, words: list[str]) -> str:
        gate = self._gate
        match words:
            case "new", exclusive, channels:
                self._start(int(exclusive), int(channels))
            case ["poll"]:
                return self._polled()
            case "resume", channel:
                if gate.finished:
                    raise FlinkError("IllegalStateException", "InputGate already finished.")
                gate.channels[int(channel)].resume_consumption()
            case "size", size:
                gate.announce_buffer_size(int(size))
            case ["acknowledge"]:
                gate.acknowledge_all_records_processed()
            case kind, channel, *rest:
                self._produce(self._writers[int(channel)], int(channel), kind, rest)
        return ""

    def _produce(self, writer: Writer, channel: int, kind: str, rest: list[str]) -> None:
        match kind:
            case "data":
                writer.data(int(rest[0]), finished=rest[1] == "finished")
            case "append":
                writer.append(int(rest[0]))
            case "finish":
                writer.finish()
            case "barrier":
                writer.barrier(rest[0], int(rest[1]))
            case "time-out":
                writer.subpartition.overtake(int(rest[0]))
            case "end-of-data":
                writer.event(EndOfData(StopMode.DRAIN if rest[0] == "drain" else StopMode.NO_DRAIN))
            case "end":
                writer.end()
            case "flush":
                writer.subpartition.flush()
            case _:
                writer.finish()
                cause = FlinkError("IOException", "failed") if rest[0] == "failed" else None
                self._manager.release(partition_id(channel), cause)

    def _polled(self) -> str:
        polled = self._gate.poll()
        if polled is None:
            return "none"
        index, found = polled
        if isinstance(found, Buffer):
            text = str(found.size)
            found.recycle()
        else:
            text = type(found).__name__
            text = text if text != "EndOfPartition" else "EndOfPartitionEvent"
        return f"{index} {text} {_java(self._gate.has_data)} {_java(self._gate.has_priority)}"

    def state(self) -> str:
        gate = self._gate
        ended = (
            ("DRAINED" if gate.draining else "STOPPED") if gate.received_end_of_data else "NOT_END_OF_DATA"
        )
        text = f" ; {_java(gate.is_available)} {_java(gate.finished)} {ended}"
        for channel in gate.channels:
            text += f" | {_java(channel.is_released)} {channel.queued}"
        return text


def _java(flag: bool) -> str:
    return str(flag).lower()


def _has_failed(answer: str) -> bool:
    """Whether a channel has failed. Flink's gate stays available then."""
    return answer.startswith(("CancelTaskException", "ProducerFailedException", "IOException"))


def _normal(answer: str) -> str:
    return answer.partition(" ")[0] if _has_failed(answer) else answer


@pytest.mark.parametrize("count", COUNTS)
def test_random_sequences_on_a_gate_with_local_channels_are_flinks(flink, count, monkeypatch):
    """Polled elements, availability, and what each channel has queued, after every command of each sequence."""
    monkeypatch.setattr(LocalGate, "passes_block", flink.name == "2.x")
    compare(flink, "local-gates", LocalGate, draw(11, count, a_sequence), is_last=_has_failed, normal=_normal)
