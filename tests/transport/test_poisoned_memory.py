"""Received memory that is overwritten as early as allowed: every record arrives as it was sent, however slow its reader is."""

from __future__ import annotations

import asyncio
import io
from collections import Counter

import pytest

from testbed_runtime.core.exchange import records as wire_records
from testbed_runtime.core.exchange.backoff import remote_backoff
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.records import RecordDeserializer
from testbed_runtime.core.faults.links import channel_id
from testbed_runtime.core.ids import ResultPartitionID
from testbed_runtime.core.options import Options
from testbed_runtime.ports.network import Network
from tests.transport.poisoned import POISON, PoisonedNetwork
from tests.transport.records import frame_record
from tests.transport.test_random_exchange import SEGMENT, World

SPILLED_BYTES = 3 * SEGMENT
OTHER = ResultPartitionID.from_bytes(bytes(range(60)))
SEEDS = 240


class PoisonedWorld(World):
    """A world whose streams are records, with a second reader on the same connection that is cancelled at some time."""

    def network(self) -> Network:
        self.wire = PoisonedNetwork(self.random)
        return self.wire

    def __post_init__(self) -> None:
        super().__post_init__()
        # what is not read stays in the stream of one connection without credit, so a second reader would wait for the first
        self.cancelled_at = -1 if self.legacy or self.blocking else self.random.randrange(40)
        self.readers = [RecordDeserializer(io.BytesIO) for _ in range(self.channels)]
        self.records: list[list[bytes]] = [[] for _ in range(self.channels)]
        self.written: list[list[bytes]] = [[] for _ in range(self.channels)]
        self.kept: list[tuple[Buffer, bytes]] = []
        """The buffers that the slow reader holds, with their bytes at first sight."""
        self.late = 0

    def payload(self, size: int) -> bytes | bytearray:
        """Return a record in memory that never changes, or in some that is used again after `emit`."""
        framed = frame_record(self.random.randbytes(size))
        return bytearray(framed) if self.random.random() < 0.5 else framed

    async def emit(self, index: int) -> None:
        await super().emit(index)
        data = self.sent[index][-1]
        self.written[index].append(bytes(data[wire_records.LENGTH_BYTES :]))
        if isinstance(data, bytearray):
            data[:] = POISON * len(data)

    def read(self, index: int, buffers: list[Buffer]) -> None:
        super().read(index, buffers)
        for buffer in buffers:
            self.records[index] += map(bytes, self.readers[index].feed(buffer.view()))
        self.kept = [(buffer, data) for buffer, data in self.kept if buffer in self.held]
        self.check_kept()
        self.kept += [(buffer, bytes(buffer.view())) for buffer in buffers]

    def check_kept(self) -> None:
        """Compare what a slow reader holds with what it was at first, wherever the bytes are by now."""
        for buffer, data in self.kept:
            assert bytes(buffer.view()) == data, f"seed {self.seed}"
            self.late += 1

    async def consume(self) -> None:
        cancelled = self.loop.create_task(self.read_until_cancelled()) if self.cancelled_at >= 0 else None
        try:
            await super().consume()
        finally:
            if cancelled is not None:
                cancelled.cancel()
                await asyncio.gather(cancelled, return_exceptions=True)

    async def read_until_cancelled(self) -> None:
        """Read another partition over the same connection, and leave in the middle of its data."""
        pool = self.producer_pool.create_buffer_pool(1, 4, subpartitions=1)
        partition = ResultPartition(OTHER, 1, pool)
        self.manager.register(partition)
        ready, got, data = asyncio.Event(), b"", bytes(range(251)) * 4
        gate = InputGate(self.consumer_pool, self.consumer_pool.create_buffer_pool(1, 2), ready.set)
        receiver = channel_id(2, bytes(12))
        gate.add_remote(OTHER, 0, receiver=receiver, backoff=remote_backoff(Options({})))
        try:
            gate.set_up()
            self.connections.clients[0].add(gate.channels[0])
            position = 0
            for _ in range(self.cancelled_at):
                position = (position + partition.emit(0, data, offset=position)) % len(data)
                while (polled := gate.poll()) is not None:
                    got += bytes(polled[1].view())
                    polled[1].recycle()
                await asyncio.sleep(0)
            assert got == (data * (len(got) // len(data) + 1))[: len(got)], f"seed {self.seed}"
        finally:
            gate.close()
            partition.release()
            pool.destroy()


def options_of(world: PoisonedWorld) -> list[str]:
    kinds = {"legacy": world.legacy, "blocking": world.blocking, "dies": world.dies}
    return [name for name, is_so in kinds.items() if is_so]


@pytest.mark.parametrize("first", range(0, SEEDS, 60))
async def test_no_reader_sees_received_memory_that_was_overwritten(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers are slow or cancelled, some records wait in a file, with credit and in legacy mode, between barriers."""
    monkeypatch.setattr(wire_records, "SPILL_BYTES", SPILLED_BYTES)
    seen: Counter[str] = Counter()
    for seed in range(first, first + 60):
        world = PoisonedWorld(seed)
        try:
            await world.run()
        except TimeoutError:
            pytest.fail(f"seed {seed}: something waits forever")
        finally:
            held = [(buffer, data) for buffer, data in world.kept if buffer in world.held]
            assert all(bytes(buffer.view()) == data for buffer, data in held), f"seed {seed}"
            await world.close()
        for got, written in zip(world.records, world.written, strict=True):
            assert got == written if not world.dies else got == written[: len(got)], f"seed {seed}"
            assert POISON * 8 not in b"".join(got), f"seed {seed}"
        left = (
            world.producer_pool.outstanding,
            world.consumer_pool.outstanding,
            world.consumer_pool.required,
        )
        assert left == (0, 0, 0), f"seed {seed}"
        seen.update(options_of(world))
        seen["late"] += world.late
        seen["borrowed"] += world.wire.here.borrowed
        seen["spilled"] += sum(reader.spilled for reader in world.readers)
        seen["again"] += sum(connection.delivered_again for connection in world.wire.connections)
        seen["cancelled"] += world.cancelled_at >= 0
    names = ("legacy", "blocking", "dies", "late", "borrowed", "spilled", "again", "cancelled")
    assert all(seen[name] for name in names), seen
