"""Random producers and consumers over one connection: every byte arrives in order, nothing waits forever, no segment is left."""

from __future__ import annotations

import asyncio
import io
import random
from collections import Counter
from dataclasses import dataclass
from functools import partial

import pytest

from testbed_runtime.core.exchange.backoff import remote_backoff
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import AlignmentType, CheckpointBarrier, EndOfData, EndOfPartition
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import Buffer, recycle_all
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.faults.links import channel_id
from testbed_runtime.core.options import Options
from testbed_runtime.ports.network import Network
from testbed_runtime.transport.pump import ConnectionManager, DataServer
from tests.core.exchange_model import barrier
from tests.transport.exchanging import P
from tests.transport.inprocess_network import InProcessNetwork

SEGMENT = 64
LIMIT_S = 10.0
SEEDS = 200
LEGACY = {"taskmanager.network.credit-model": "false"}


@dataclass
class World:
    """Both ends, as one seed draws them: sizes of pools, credit, channels, and how fast they are."""

    seed: int

    def __post_init__(self) -> None:
        self.random = draw = random.Random(self.seed)
        self.legacy = draw.random() < 0.25
        self.blocking = draw.random() < 0.2
        self.channels = draw.choice([1, 1, 2, 3, 6])
        self.exclusive = draw.choice([1, 2]) if self.legacy else draw.choice([0, 0, 1, 2])
        self.floating = draw.choice([1, 2, 8])
        self.pool = draw.choice([self.channels + 1, self.channels + 3, 30])
        self.per_channel = draw.choice([2, 3, 10])
        self.overdraft = draw.choice([0, 3])
        self.debloats = draw.random() < 0.3
        self.dies = draw.random() < 0.2
        options = Options(LEGACY if self.legacy else {})
        network = self.network()
        self.loop = asyncio.get_running_loop()
        self.producer_pool, self.consumer_pool = (
            NetworkBufferPool(64, SEGMENT),
            NetworkBufferPool(64, SEGMENT),
        )
        self.manager = ResultPartitionManager(waits=True, started=self.loop.time())
        pool = self.producer_pool.create_buffer_pool(
            min(self.channels + 1, self.pool),
            self.pool,
            subpartitions=self.channels,
            max_buffers_per_channel=self.per_channel,
            max_overdraft=self.overdraft,
        )
        file = io.BytesIO() if self.blocking else None
        self.partition = ResultPartition(P, self.channels, pool, exclusive=self.exclusive, file=file)
        self.server = DataServer(network, self.manager, name="tm-0-1", options=options)
        self.ready = asyncio.Event()
        self.gate = InputGate(
            self.consumer_pool,
            self.consumer_pool.create_buffer_pool(1, self.floating),
            self.ready.set,
            exclusive=self.exclusive,
        )
        for index in range(self.channels):
            receiver = channel_id(1, bytes([index]) * 12)
            self.gate.add_remote(P, index, receiver=receiver, backoff=remote_backoff(options))
        self.connections = ConnectionManager(network, name="tm-1-1", options=options)
        self.held: list[Buffer] = []
        self.sent: list[list[object]] = [[] for _ in range(self.channels)]
        self.got: list[list[object]] = [[] for _ in range(self.channels)]

    def network(self) -> Network:
        return InProcessNetwork()

    def read(self, index: int, buffers: list[Buffer]) -> None:
        self.got[index] += [bytes(buffer.view()) for buffer in buffers]

    async def pause(self, share: float) -> None:
        while self.random.random() < share:
            await asyncio.sleep(0)

    async def produce(self) -> None:
        draw, partition = self.random, self.partition
        for step in range(draw.randrange(2, 60)):
            if not self.blocking and draw.random() < 0.1:
                kind = draw.choice([AlignmentType.ALIGNED, AlignmentType.UNALIGNED])
                sent = barrier(step, kind)
                partition.broadcast_barrier(sent)
                for stream in self.sent:
                    stream.append(sent)
            await self.emit(draw.randrange(self.channels))
            if draw.random() < 0.5:
                partition.flush_all()
            await self.pause(0.6)
        partition.notify_end_of_data()
        partition.finish()

    async def emit(self, index: int) -> None:
        draw = self.random
        size = draw.choice([1, 7, SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT, 11 * SEGMENT + 5])
        data, done = self.payload(size), 0
        while done < len(data):
            extend, overdraft = draw.random() < 0.5, done > 0 and draw.random() < 0.3
            done += self.partition.emit(index, data, offset=done, extend=extend, overdraft=overdraft)
            if done < len(data):
                self.partition.flush_all()  # as the flusher does sooner or later
                available = asyncio.Event()
                self.partition.pool.when_available(available.set)
                await available.wait()
        self.sent[index].append(data)

    def payload(self, size: int) -> bytes | bytearray:
        return self.random.randbytes(size)

    async def consume(self) -> None:
        draw, gate = self.random, self.gate
        blocked: dict[int, list[int]] = {}
        arrivals: Counter[int] = Counter()
        held = self.held
        while not gate.finished:
            self.ready.clear()
            polled = gate.poll_run(draw.choice([1, 3, 100]))
            if polled is None:
                recycle_all(held)
                held.clear()
                await self.ready.wait()
                continue
            index, found = polled
            if isinstance(found, list):
                self.read(index, found)
                held += found
                if draw.random() < 0.7:
                    recycle_all(held)
                    held.clear()
                if self.debloats and draw.random() < 0.3:
                    gate.announce_buffer_size(draw.choice([1, 9, SEGMENT, 4 * SEGMENT]))
            elif isinstance(found, CheckpointBarrier):
                self.got[index].append(found)
                if found.alignment is AlignmentType.ALIGNED:
                    arrived = blocked.setdefault(found.checkpoint_id, [])
                    arrived.append(index)
                    arrivals[found.checkpoint_id] += 1
                    if draw.random() < 0.3 or arrivals[found.checkpoint_id] == self.channels:
                        for channel in arrived:
                            gate.resume_consumption(channel)
                        arrived.clear()
            else:
                assert isinstance(found, EndOfData | EndOfPartition)
            await self.pause(0.5)

    async def run(self) -> None:
        address = await self.server.start(("127.0.0.1", 0))
        self.manager.register(self.partition)
        assert self.gate.set_up()
        client = await self.connections.client("tm-0-1", address)
        if self.blocking:
            async with asyncio.timeout(LIMIT_S):
                await self.produce()
        for channel in self.gate.channels:
            client.add(channel)
        tasks = [self.loop.create_task(self.consume())]
        if not self.blocking:
            tasks.append(self.loop.create_task(self.produce()))
        try:
            async with asyncio.timeout(LIMIT_S):
                if self.dies:
                    for _ in range(self.random.randrange(300)):
                        await asyncio.sleep(0)
                else:
                    await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        ends = [self.gate.close, self.partition.release, partial(recycle_all, self.held)]
        for end in self.random.sample(ends, len(ends)):
            end()
            await self.pause(0.7)
        await self.connections.close()
        await self.server.close()
        self.manager.shut_down()


def readable(stream: list[object]) -> tuple[list[object], list[object]]:
    """Return the data joined up to each barrier that does not overtake, with that barrier, and the barriers that overtake."""
    joined: list[object] = [b""]
    overtaking: list[object] = []
    for item in stream:
        if isinstance(item, bytes):
            joined[-1] += item
        elif item.alignment is AlignmentType.UNALIGNED:
            overtaking.append(item.checkpoint_id)
        else:
            joined += [item.checkpoint_id, b""]
    return joined, overtaking


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
async def test_random_exchanges_end_with_every_byte_in_order_and_no_segment_left(first: int) -> None:
    """With credit and without, pipelined and blocking, with barriers that block or overtake, and ends in the middle."""
    for seed in range(first, first + 50):
        world = World(seed)
        try:
            await world.run()
            if not world.dies:
                expected = [readable(stream) for stream in world.sent]
                assert [readable(stream) for stream in world.got] == expected, f"seed {seed}"
        except TimeoutError:
            pytest.fail(f"seed {seed}: something waits forever")
        finally:
            await world.close()
        left = (
            world.producer_pool.outstanding,
            world.producer_pool.required,
            world.consumer_pool.outstanding,
            world.consumer_pool.required,
        )
        assert left == (0, 0, 0, 0), f"seed {seed}"
