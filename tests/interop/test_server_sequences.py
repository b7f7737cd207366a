"""PartitionRequestServer: random requests, credit, data and events of two channels, beside Flink's handler and queue."""

from __future__ import annotations

import random
import re
import struct

import pytest

from testbed_runtime.core.errors import FlinkError, RemoteProtocolError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.codec import ServerDecoder
from testbed_runtime.core.exchange.frames import (
    MAGIC,
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    ClientFrame,
    DataType,
    ErrorResponse,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    ServerFrame,
    WireVersion,
)
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.server import PartitionRequestServer
from tests.core.exchange_model import partition_id, receiver_id
from tests.interop.sequences import BARRIERS, COUNTS, SEGMENT_BYTES, Writer, compare, draw

pytestmark = pytest.mark.processes
CHANNELS = 2
UNREADABLE = re.compile(
    r"(DecoderException to all java.lang.IndexOutOfBounds|DecoderException to all java.lang.IllegalArgument|"
    r"DecoderException to all java.lang.ClassCast|DecoderException to all java.net.Protocol|CorruptedFrame|TooLongFrame)"
    r"Exception.*?(?=$| closed)"
)
"""Flink's texts name Netty's buffers, or nothing."""


def _broken() -> list[bytes]:
    """Frames that break the protocol, or that a client without readers sends."""
    partition, receiver = partition_id().to_bytes(), receiver_id(0)
    numbers = {name: struct.pack(">i", value) for name, value in (("none", 0), ("less", -1), ("one", 1))}

    def frame(number: int, *parts: bytes, magic: int = MAGIC, length: int = 0) -> bytes:
        body = b"".join(parts)
        return struct.pack(">iIB", length or 9 + len(body), magic, number & 255) + body

    request = (partition, bytes(8), receiver)
    return [
        frame(7, receiver, magic=MAGIC + 1),
        *(frame(7, receiver, length=length) for length in (-1, 1, 3, 4, 8, 24)),
        *(frame(number, receiver * 4) for number in (-1, 0, 1, 9, 12, 127)),
        *(frame(number, receiver[1:]) for number in (4, 6, 7, 8, 10)),
        *(frame(6, number, receiver) for number in numbers.values()),
        *(frame(10, number, receiver) for number in numbers.values()),
        *(frame(11, numbers["none"], number, receiver) for number in numbers.values()),
        *(frame(number, receiver_id(9), b"more") for number in (4, 7, 8)),
        frame(2, *request, numbers["less"]),
        frame(2, partition_id(7).to_bytes(), bytes(8), receiver, numbers["less"]),
        frame(2, partition, numbers["one"], numbers["none"], receiver, numbers["one"]),
        frame(2, partition, numbers["less"], numbers["one"], receiver, numbers["one"]),
        frame(2, partition, struct.pack(">ii", 5, 5), receiver, numbers["one"]),
        frame(2, partition[:-8], numbers["less"], bytes(4), bytes(8), receiver, numbers["one"]),
        frame(2, partition[:-4], numbers["less"], bytes(8), receiver, numbers["one"]),
        *(frame(3, struct.pack(">i", size), partition, receiver) for size in (-1, 0, 500)),
        *(frame(3, struct.pack(">ii", 4, kind), partition, receiver) for kind in (0, 77)),
        frame(5, b"more"),
    ]


BROKEN = _broken()


def a_sequence(chance: random.Random) -> list[str]:
    """Two channels of one connection. What needs a reader comes after its request."""
    exclusive, requested, barriers, late = chance.choice([0, 2, 2]), set[int](), 0, chance.random() < 0.2
    lines = [f"new {exclusive}"]
    kinds = [
        "bytes",
        "data",
        "finish",
        "barrier",
        "end",
        "flush",
        "credit",
        "resume",
        "acknowledge",
        "size",
        "release",
    ]
    for _ in range(chance.randint(5, 50)):
        channel = chance.randrange(CHANNELS)
        if channel not in requested and chance.random() < 0.5:
            requested.add(channel)
            lines.append(f"request {channel} {exclusive}")
            continue
        if late and chance.random() < 0.15:
            late = chance.random() < 0.7
            lines.append(f"late {channel} {chance.randint(0, 2)}" if late else "register")
            continue
        kind = chance.choices(kinds, [1.5, 28, 3, 11, 1, 12, 17, 10, 1.5, 2, 0.5])[0]
        match kind:
            case "bytes":
                lines.append(f"bytes {chance.choice(BROKEN).hex()}")
            case "data":
                size, end = chance.choice([0, 1, 3, SEGMENT_BYTES]), chance.choice(["open", "finished"])
                lines.append(f"data {channel} {size} {end}")
            case "barrier":
                barriers += 1
                lines.append(f"barrier {channel} {chance.choice(BARRIERS)} {barriers}")
            case "credit" | "resume" | "acknowledge" if channel not in requested:
                pass
            case "credit":
                lines.append(f"credit {channel} {chance.randint(1, 3)}")
            case "size":
                lines.append(f"size {channel} {chance.randint(1, 9)}")
            case "release":
                lines.append(f"release {chance.choice(['failed', 'finished'])}")
            case _:
                lines.append(f"{kind} {channel}")
    return lines


class Server:
    """The producer's end of one connection. Frames are taken as the pump does: runs of data buffers first."""

    passes_block = True

    def __init__(self) -> None:
        self._start(2)

    def _start(self, exclusive: int) -> None:
        self._pools = NetworkBufferPool(SEGMENT_BYTES, SEGMENT_BYTES)
        pool = self._pools.create_buffer_pool(CHANNELS + 1, CHANNELS + 1, subpartitions=CHANNELS)
        self._manager = ResultPartitionManager(request_timeout_s=0)
        partition = ResultPartition(partition_id(), CHANNELS, pool, exclusive=exclusive)
        for subpartition in partition.subpartitions:
            subpartition.priority_passes_block = self.passes_block
        self._manager.register(partition)
        self._writers = [Writer(subpartition) for subpartition in partition.subpartitions]
        self._server = PartitionRequestServer(self._manager, lambda: None)
        self._decoder = ServerDecoder(WireVersion.V2)

    def step(self, words: list[str]) -> str:
        failure = ""
        try:
            self._act(words)
        except FlinkError as error:
            failure = error.class_name + " "
        closed = " closed" if self._server.closing else ""
        return failure + ", ".join(self._sent()) + closed

    def _act(self, words: list[str]) -> None:
        match words:
            case "new", exclusive:
                self._start(int(exclusive))
            case ["register"]:
                pool = self._pools.create_buffer_pool(CHANNELS + 1, CHANNELS + 1, subpartitions=CHANNELS)
                self._manager.register(ResultPartition(partition_id(1), CHANNELS, pool))
            case "bytes", text:
                self._feed(bytes.fromhex(text))
            case "data", channel, size, end:
                self._writers[int(channel)].data(int(size), finished=end == "finished")
            case "finish", channel:
                self._writers[int(channel)].finish()
            case "barrier", channel, kind, number:
                self._writers[int(channel)].barrier(kind, int(number))
            case "end", channel:
                self._writers[int(channel)].end()
            case "flush", channel:
                self._writers[int(channel)].subpartition.flush()
            case "release", how:
                for writer in self._writers:
                    writer.finish()
                cause = FlinkError("IOException", "failed") if how == "failed" else None
                self._manager.release(partition_id(), cause)
            case kind, channel, *numbers:
                self._server.on_frame(_frame(kind, int(channel), [int(n) for n in numbers]), 0.0)

    def _feed(self, data: bytes) -> None:
        """Act as the pump does."""
        position = 0
        try:
            while position < len(data):
                position += self._decoder.feed(data, position)
                frame = self._decoder.next()
                if frame is not None:
                    self._server.on_frame(frame, 0.0)
        except RemoteProtocolError as error:
            self._server.fail(error)

    def _sent(self) -> list[str]:
        sent = []
        while True:
            found = self._server.next_run(64, 1 << 20)
            if found is not None:
                receiver, _, run = found
                for buffer, backlog, sequence in run:
                    sent.append(_element(receiver, buffer.data_type, sequence, buffer.size, backlog))
                    buffer.recycle()
                continue
            one = self._server.next_frame()
            if one is None:
                return sent
            frame, buffer = one
            sent.append(_described(frame))
            if buffer is not None:
                buffer.recycle()

    def state(self) -> str:
        return ""


def _frame(kind: str, channel: int, numbers: list[int]) -> ClientFrame:
    receiver = receiver_id(channel)
    match kind:
        case "request" | "late":
            partition = partition_id(int(kind == "late"))
            return PartitionRequest(partition, channel, channel, receiver, numbers[0])
        case "credit":
            return AddCredit(numbers[0], receiver)
        case "resume":
            return ResumeConsumption(receiver)
        case "acknowledge":
            return AckAllUserRecordsProcessed(receiver)
        case _:
            return NewBufferSize(numbers[0], receiver)


def _channel(receiver: bytes) -> int:
    return 0 if receiver == receiver_id(0) else 1


def _element(receiver: bytes, data_type: DataType, sequence: int, size: int, backlog: int) -> str:
    size = size if data_type.is_buffer else 0
    channel = _channel(receiver)
    return f"{data_type.name} to {channel}, number {sequence}, {size} bytes, backlog {backlog}"


def _described(frame: ServerFrame) -> str:
    match frame:
        case BufferResponse():
            size = len(frame.data)
            return _element(frame.receiver, frame.data_type, frame.sequence_number, size, frame.backlog)
        case BacklogAnnouncement(backlog, receiver):
            return f"backlog {backlog} to {_channel(receiver)}"
        case ErrorResponse():
            receiver = "all" if frame.receiver is None else str(_channel(frame.receiver))
            return f"{frame.class_name} to {receiver} {frame.message}"


def _is_last(answer: str) -> bool:
    return "closed" in answer


def _normal(answer: str) -> str:
    """Requests that wait for one partition time out in no order: PartitionRequestListenerManager keeps them in a HashMap."""
    answer = UNREADABLE.sub("unreadable to all", answer)
    frames = answer.split(", ")
    waited = all(frame.startswith("PartitionNotFoundException") for frame in frames)
    return ", ".join(sorted(frames)) if waited else answer


@pytest.mark.parametrize("count", COUNTS)
def test_random_sequences_on_a_connection_are_sent_as_flink_sends_them(flink, count, monkeypatch):
    """Frames in their order, with numbers, sizes and backlog, errors and the end, after every command of each sequence."""
    monkeypatch.setattr(Server, "passes_block", flink.name == "2.x")
    compare(flink, "servers", Server, draw(3, count, a_sequence), is_last=_is_last, normal=_normal)
