"""InputGate with remote channels: random data, events, polls, returned buffers and backlog, beside Flink's SingleInputGate."""

from __future__ import annotations

import random

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.backoff import RemoteBackoff
from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.events import (
    NO_TIMEOUT_MS,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    Event,
    StopMode,
    data_type_of,
    encode_event,
)
from testbed_runtime.core.exchange.frames import (
    AckAllUserRecordsProcessed,
    ClientFrame,
    DataType,
    NewBufferSize,
    ResumeConsumption,
)
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import Buffer, MemorySegment
from tests.core.exchange_model import partition_id, receiver_id
from tests.interop.sequences import ALIGNMENTS, BARRIER_TIMEOUT_MS, BARRIERS, COUNTS, compare, draw

pytestmark = pytest.mark.processes
SEGMENT_BYTES = 32
ENDS: dict[str, Event] = {
    "end-of-partition": EndOfPartition(),
    "end-of-data": EndOfData(StopMode.DRAIN),
    "stop": EndOfData(StopMode.NO_DRAIN),
}
METHODS = {
    ResumeConsumption: "resumeConsumption",
    AckAllUserRecordsProcessed: "acknowledgeAllRecordsProcessed",
    NewBufferSize: "notifyNewBufferSize",
}
"""The methods of Flink's PartitionRequestClient that send these frames."""


def a_sequence(chance: random.Random) -> list[str]:
    """Up to three channels. Most elements come in order, and a few have a wrong number or backlog."""
    channels, exclusive, floating = (
        chance.randint(1, 3),
        chance.choice([0, 1, 2, 2]),
        chance.choice([1, 2, 4, 8]),
    )
    lines = [
        f"new {channels * exclusive + floating + chance.choice([0, 0, 4])} {channels} {exclusive} {floating}"
    ]
    sequence, ended, barriers = [0] * channels, set[int](), [(0, 1)] * channels
    kinds = ["data", "event", "backlog", "poll", "recycle", "credit", "resume", "acknowledge", "size", "take"]
    kinds += ["return", "retrigger", "in-flight", "prioritize"]
    weights = [28, 12, 7, 21, 12, 6, 3, 1, 2, 3, 3, 1, 8, 2]
    for number, kind in enumerate(chance.choices(kinds, weights, k=chance.randint(5, 60))):
        channel = chance.randrange(channels)
        match kind:
            case "data" | "event" if channel in ended:
                continue
            case "data":
                at = sequence[channel] + chance.choices([0, 3], [99, 1])[0]
                backlog, size = chance.choice([0, 0, 1, 2, 3, 6, -1]), chance.choice([1, 2, 5, 5, 0])
                lines.append(f"data {channel} {at} {backlog} {size}")
                sequence[channel] += 1
            case "event":
                event = chance.choice([*BARRIERS, *ENDS] if chance.random() < 0.2 else BARRIERS)
                if event == "end-of-partition":
                    ended.add(channel)
                elif event in BARRIERS:
                    barriers[channel] = (sequence[channel], number)
                backlog = chance.choices([0, 2], [97, 3])[0]
                lines.append(f"event {channel} {sequence[channel]} {backlog} {event} {number}")
                sequence[channel] += 1
            case "backlog":
                lines.append(f"backlog {channel} {chance.choice([0, 1, 2, 4, 8, 16])}")
            case "poll" | "take" | "return":
                lines.append(kind)
            case "recycle":
                lines.append(f"recycle {chance.randint(0, 5)}")
            case "size":
                lines.append(f"size {chance.randint(1, 32)}")
            case "in-flight" | "prioritize":
                lines.append(f"{kind} {channel} {barriers[channel][kind == 'in-flight']}")
            case _:
                lines.append(f"{kind} {channel}")
    return lines


class _Client:
    """Notes what the channels send, except requests."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, frame: ClientFrame, channel: RemoteInputChannel | None = None) -> None:
        method = METHODS.get(type(frame))
        if method is not None and channel is not None:
            size = f" {frame.buffer_size}" if isinstance(frame, NewBufferSize) else ""
            self.sent.append(f"{method} {channel.index}{size}")

    def announce_credit(self, channel: RemoteInputChannel) -> None:
        self.sent.append(f"notifyCreditAvailable {channel.index}")

    def remove(self, channel: RemoteInputChannel) -> None:
        self.sent.append(f"close {channel.index}")


class Gate:
    """A gate, its pools, and the buffers that its task holds."""

    def __init__(self) -> None:
        self._start(1, 1, 0, 1)

    def _start(self, segments: int, channels: int, exclusive: int, floating: int) -> None:
        self._network = NetworkBufferPool(segments, SEGMENT_BYTES)
        self._pool: LocalBufferPool = self._network.create_buffer_pool(1, floating)
        self._client = _Client()
        self._held: list[Buffer] = []
        self._taken: list[MemorySegment] = []
        self._gate = InputGate(
            self._network,
            self._pool,
            lambda: None,
            exclusive=exclusive,
            on_partition_not_found=self.on_partition_not_found,
        )
        self._channels: list[RemoteInputChannel] = []
        for index in range(channels):
            backoff = RemoteBackoff(500, 1000, listener_timeout=500)
            channel = self._gate.add_remote(
                partition_id(), index, receiver=receiver_id(index), backoff=backoff
            )
            self._attach(channel)
            self._channels.append(channel)
        assert self._gate.set_up()

    def _attach(self, channel: RemoteInputChannel) -> None:
        channel.attach(self._client)  # type: ignore[arg-type]

    def on_partition_not_found(self, channel: RemoteInputChannel) -> None:
        """Leave it: there is no JobManager to ask."""

    def step(self, words: list[str]) -> str:
        kind, rest = words[0], words[1:]
        self._client.sent.clear()
        match kind:
            case "new":
                self._start(*map(int, rest))
            case "poll":
                return self._polled()
            case "recycle" if self._held:
                self._held.pop(int(rest[0]) % len(self._held)).recycle()
            case "resume":
                if self._gate.finished:
                    raise FlinkError("IllegalStateException", "InputGate already finished.")
                self._channels[int(rest[0])].resume_consumption()
            case "size":
                self._gate.announce_buffer_size(int(rest[0]))
            case "take":
                segment = self._pool.request_segment()
                if segment is not None:
                    self._taken.append(segment)
            case "return" if self._taken:
                self._pool.recycle(self._taken.pop(0))
            case "recycle" | "return":
                pass
            case _:
                return self._act(self._channels[int(rest[0])], kind, rest[1:])
        return ""

    def _act(self, channel: RemoteInputChannel, kind: str, rest: list[str]) -> str:
        match kind:
            case "data":
                return _receive(channel, *map(int, rest))
            case "event":
                sequence, backlog, name, number = rest
                event = made_event(name, int(number))
                buffer = Buffer.unpooled(encode_event(event), data_type_of(event))
                channel.on_buffer(buffer, int(sequence), int(backlog))
            case "backlog":
                channel.on_sender_backlog(int(rest[0]))
            case "credit":
                return str(channel.take_unannounced_credit())
            case "in-flight":
                return " ".join(str(len(data)) for data in channel.in_flight(int(rest[0])))
            case "prioritize":
                channel.prioritize(int(rest[0]))
            case "acknowledge":
                channel.acknowledge_all_records_processed()
            case "retrigger":
                channel.retrigger(0.0)
        return ""

    def _polled(self) -> str:
        polled = self._gate.poll()
        if polled is None:
            return "none"
        index, found = polled
        if isinstance(found, Buffer):
            self._held.append(found)
            return f"data {index} {found.size}"
        name = type(found).__name__
        return f"event {index} {name if name != 'EndOfPartition' else 'EndOfPartitionEvent'}"

    def state(self) -> str:
        pool, gate = self._pool, self._gate
        text = f" ; {', '.join(sorted(self._client.sent))}"
        text += f" ; free {self._network.free}, pool {pool.size} {pool.available_segments}"
        for channel in self._channels:
            if channel.is_released:
                text += " | released"
                continue
            manager = channel.buffers
            assert manager is not None
            waiting = str(manager.waiting).lower()
            text += f" | {manager.required} {manager.available} {channel.buffers.unannounced} {waiting}"
            text += f" {channel.queued} {channel.buffers_in_use}"
        ended = (
            ("DRAINED" if gate.draining else "STOPPED") if gate.received_end_of_data else "NOT_END_OF_DATA"
        )
        return f"{text} ; {str(gate.finished).lower()} {ended}"


def _receive(channel: RemoteInputChannel, sequence: int, backlog: int, size: int) -> str:
    """Receive a data buffer as the pump does: together with others if it is usual, else by itself."""
    data = memoryview(bytes(size))
    if (
        size
        and backlog >= 0
        and channel.on_run(data, [(0, size, sequence, backlog, DataType.DATA_BUFFER, False)])
    ):
        return ""
    buffer = channel.request_buffer()
    if buffer is None:
        return "no buffer"
    if size:
        buffer.fill_view(size)[:] = data
        channel.on_buffer(buffer, sequence, backlog)
    else:
        buffer.recycle()
        channel.on_empty_buffer(sequence, backlog)
    return ""


def made_event(name: str, number: int) -> Event:
    if name in ENDS:
        return ENDS[name]
    timeout = BARRIER_TIMEOUT_MS if name == "timeoutable" else NO_TIMEOUT_MS
    return CheckpointBarrier(number, 0, ALIGNMENTS[name], timeout)


def _has_failed(answer: str) -> bool:
    """Whether a channel has failed. Flink leaves its state half changed then."""
    errors = ("BufferReorderingException", "RuntimeException", "IOException", "IllegalArgumentException")
    return answer.startswith(errors)


@pytest.mark.parametrize("count", COUNTS)
def test_random_sequences_on_a_gate_are_flinks(flink, count):
    """Polled elements, frames to the producers, and the buffers of every channel after every command of each sequence."""
    compare(flink, "gates", Gate, draw(5, count, a_sequence), is_undefined=_has_failed)
