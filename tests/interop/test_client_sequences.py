"""The consumer's end of a connection: random bytes of the producer, requests of the task and failures, beside Flink's client, its decoder
and handler."""

from __future__ import annotations

import random
import re
import struct

import pytest

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.core.exchange.client import PartitionRequestClient
from testbed_runtime.core.exchange.codec import ClientDecoder
from testbed_runtime.core.exchange.encoding import encode
from testbed_runtime.core.exchange.events import data_type_of, encode_event
from testbed_runtime.core.exchange.frames import (
    MAGIC,
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    ClientFrame,
    CloseRequest,
    DataType,
    ErrorResponse,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    ServerFrame,
    WireVersion,
)
from tests.core.exchange_model import receiver_id
from tests.interop.sequences import BARRIERS, COUNTS, compare, draw
from tests.interop.test_gate_sequences import ENDS, Gate, made_event

pytestmark = pytest.mark.processes
PEER, RESOURCE = "embedded", "tm"
"""The address of Flink's embedded channel, and the id that the driver gives the producer."""
STRANGER = 9
"""A receiver that the client does not have."""
HEADER_BYTES = 25
"""A frame is cut within these bytes, before Flink takes a buffer for it: what it takes for one that is incomplete may differ."""
OF_CHANNEL = ("resume", "acknowledge", "retrigger", "release")
CLOSED = {
    "Connection_reset_by_peer": ConnectionResetError("Connection reset by peer"),
    "Broken_pipe_at_home": OSError("Broken pipe at home"),
}
BROKEN = [
    f"bytes {(struct.pack('>iIB', length, magic, number) + bytes(41)).hex()}"
    for length, magic, number in [
        (25, MAGIC + 1, 0),
        (-1, MAGIC, 0),
        (50, MAGIC, 2),
        (50, MAGIC, 12),
        (29, MAGIC, 9),
    ]
]
"""A wrong magic number, a negative length, unknown messages, and a backlog of 0."""


class _Drawing:
    """The frames of the producer so far."""

    def __init__(self, chance: random.Random, version: WireVersion) -> None:
        self._chance, self._version = chance, version
        self.channels, exclusive = chance.randint(1, 3), chance.choice([0, 1, 2, 2])
        floating = chance.choice([1, 2, 4, 8])
        segments = self.channels * exclusive + floating + chance.choice([0, 0, 4])
        reuse = chance.choice(["reuse", "close"])
        self.lines = [f"new {segments} {self.channels} {exclusive} {floating} {reuse}"]
        self._sequence = [0] * (STRANGER + 1)
        self._number = 0
        self._bytes = b""
        self._released = set[int]()
        self._writable = True

    def step(self) -> None:
        chance = self._chance
        kinds = [
            "frame",
            "poll",
            "recycle",
            "resume",
            "acknowledge",
            "size",
            "take",
            "return",
            "retrigger",
            "release",
            "writable",
            "broken",
        ]
        kind = chance.choices(kinds, [45, 20, 12, 4, 2, 2, 2, 2, 2, 2, 6, 0.3])[0]  # fmt: skip
        channel = chance.randrange(self.channels)
        if not self._writable and (channel in self._released or kind in ("release", "retrigger")):
            return  # Flink writes some of its answers at once, ahead of what waits
        if kind == "writable":
            self._writable = not self._writable
            self._deliver(len(self._bytes))
        if kind == "frame":
            frame = b"".join(map(bytes, encode(self._frame(channel), self._version)))
            before = len(self._bytes)
            self._bytes += frame
            self._deliver(
                chance.choice([len(self._bytes)] * 3 + [before, before + chance.randint(0, HEADER_BYTES)])
            )
            return
        if kind in OF_CHANNEL and channel in self._released:
            return
        if kind == "release":
            self._released.add(channel)
        line = {
            "recycle": f"recycle {chance.randint(0, 5)}",
            "size": f"size {chance.randint(1, 32)}",
            "writable": f"writable {self._writable}".lower(),
            "broken": chance.choice(["closed", *(f"broken {text}" for text in CLOSED), *BROKEN]),
        }.get(kind, f"{kind} {channel}" if kind in OF_CHANNEL else kind)
        if line in BROKEN:
            self._deliver(len(self._bytes))
        self.lines.append(line)

    def _frame(self, channel: int) -> ServerFrame:
        chance = self._chance
        channel = chance.choices([channel, STRANGER], [96, 4 * self._writable])[0]
        receiver = receiver_id(channel)
        kind = chance.choices(["data", "event", "backlog", "error"], [65, 18, 15, 2])[0]
        if kind == "backlog":
            return BacklogAnnouncement(chance.choice([1, 2, 4, 8, 16]), receiver)
        if kind == "error":
            name = chance.choice(["PartitionNotFoundException", "IOException"])
            return ErrorResponse(
                f"{PACKAGES[name]}.{name}", "it failed", chance.choice([receiver, receiver, None])
            )
        sequence = self._sequence[channel]
        partials = self._partials() if kind == "data" else ()
        self._sequence[channel] += max(1, len(partials)) + chance.choices([0, 2], [99, 1])[0]
        if kind == "data":
            data = bytes(sum(partials) or chance.choice([1, 2, 5, 32]))
            backlog = chance.choice([0, 0, 1, 2, 3, 6])
            data_type = chance.choice(
                [DataType.DATA_BUFFER, DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END]
            )
            return BufferResponse(receiver, 0, sequence, backlog, data_type, data, False, partials)
        self._number += 1
        name = chance.choice([*BARRIERS, *ENDS] if chance.random() < 0.2 else BARRIERS)
        if name == "end-of-partition":
            self._released.add(channel)
        event = made_event(name, self._number)
        backlog = chance.choices([0, 2], [95, 5])[0]
        return BufferResponse(receiver, 0, sequence, backlog, data_type_of(event), encode_event(event))

    def _partials(self) -> tuple[int, ...]:
        chance = self._chance
        if self._version is not WireVersion.V2 or chance.random() > 0.1:
            return ()
        return tuple(chance.randint(1, 8) for _ in range(chance.randint(1, 4)))

    def _deliver(self, end: int) -> None:
        if end:
            self.lines.append(f"bytes {self._bytes[:end].hex()}")
            self._bytes = self._bytes[end:]


THROWN = re.compile(
    "^(IllegalReferenceCount|IO|Runtime|BufferReordering|PartitionNotFound|(Remote|Local)Transport)Exception"
)
PACKAGES = {
    "PartitionNotFoundException": "org.apache.flink.runtime.io.network.partition",
    "IOException": "java.io",
}


class Client(Gate):
    """A connection, and the gate of Gate."""

    version = WireVersion.V2

    def step(self, words: list[str]) -> str:
        self._notes: list[str] = []
        try:
            return self._step(words)
        finally:
            while self._writable and (found := self._connection.next_frame()):
                self._notes.append(_described(found[0]))

    def _step(self, words: list[str]) -> str:
        match words:
            case "new", *sizes, reuse:
                self._writable = True
                self._connection = PartitionRequestClient(
                    PEER, lambda: None, resource_id=RESOURCE, reuse=reuse == "reuse"
                )
                self._decoder = ClientDecoder(self.version, self._connection.allocate)
                self._start(*map(int, sizes))
                for channel in self._channels:
                    self._connection.add(channel)
            case "bytes", text if self._connection.error is None:
                try:
                    self._feed(memoryview(bytes.fromhex(text)))
                except RemoteProtocolError as error:
                    self._connection.on_closed(error)
            case "bytes", _:
                pass
            case "writable", writable:
                self._writable = writable == "true"
            case ["closed"]:
                self._connection.on_closed(None)
            case "broken", text:
                self._connection.on_closed(CLOSED[text])
            case "release", channel:
                self._channels[int(channel)].release()
            case _:
                return super().step(words)
        return ""

    def _attach(self, channel) -> None:
        """The connection does so."""

    def on_partition_not_found(self, channel) -> None:
        self._notes.append("partition state")

    def _feed(self, data: memoryview) -> None:
        """Act as the pump does."""
        position, decoder, client = 0, self._decoder, self._connection
        while client.error is None:
            found = decoder.heads(data, position)
            if found is not None and (taken := client.on_run(found[0], data, found[2])):
                position = found[2][len(taken) - 1][1]
                continue
            position += decoder.feed(data, position)
            frame = decoder.next()
            if frame is not None:
                client.on_frame(frame, decoder.buffer)
            elif position == len(data):
                return

    def state(self) -> str:
        self._client.sent[:] = self._notes
        return super().state() + " ; " + " | ".join(map(_failure, self._channels))


def _normal(answer: str) -> str:
    """Return an answer without the class of what a call throws because its channel has failed, without what Netty
    throws for the rest of a closed connection, and with the address that its embedded channel has until then."""
    return THROWN.sub("", answer.replace("'null [", f"'{PEER} ["))


def _failure(channel) -> str:
    if channel.error is None:
        return ""
    name = channel.error.class_name
    return name + (f" {channel.error.message}" if name.endswith("TransportException") else "")


def _described(frame: ClientFrame) -> str:
    receiver = -1 if isinstance(frame, CloseRequest) else frame.receiver[-1]
    receiver = -1 if receiver == STRANGER else receiver
    match frame:
        case AddCredit():
            return f"AddCredit {receiver} {frame.credit}"
        case NewBufferSize():
            return f"NewBufferSize {receiver} {frame.buffer_size}"
        case PartitionRequest():
            return f"PartitionRequest {receiver} {frame.initial_credit}"
        case ResumeConsumption() | AckAllUserRecordsProcessed() | CancelPartitionRequest():
            return f"{type(frame).__name__} {receiver}"
        case _:
            return type(frame).__name__


@pytest.mark.parametrize("count", COUNTS)
def test_random_bytes_and_failures_of_a_connection_are_handled_as_by_flinks_client(flink, count, monkeypatch):
    """Frames to the producer, failures and buffers of each channel after every command of each sequence."""
    version = WireVersion.V2 if flink.name == "2.x" else WireVersion.V1_20
    monkeypatch.setattr(Client, "version", version)

    def a_sequence(chance: random.Random) -> list[str]:
        drawing = _Drawing(chance, version)
        for _ in range(chance.randint(5, 50)):
            drawing.step()
        return drawing.lines

    compare(flink, "clients", Client, draw(12, count, a_sequence), normal=_normal)
