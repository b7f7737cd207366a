"""A producer and a consumer of one partition on any network, and a network that fails on purpose."""

from __future__ import annotations

import asyncio

from testbed_runtime.core.exchange.backoff import remote_backoff
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.faults.links import channel_id
from testbed_runtime.core.ids import ResultPartitionID
from testbed_runtime.core.options import Options
from testbed_runtime.transport.pump import ConnectionManager, DataServer

P = ResultPartitionID.parse(
    "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf#0@b0b1b2b3b4b5b6b7b8b9babbbcbdbebf_c0c1c2c3c4c5c6c7c8c9cacbcccdcecf_0_0"
)
SEGMENT = 1024
LIMIT_S = 10.0


class Producer:
    """One partition of `subpartitions`, served."""

    def __init__(
        self, network, *, subpartitions: int = 1, options: Options | None = None, file=None, **hooks
    ) -> None:
        self.options = options or Options({})
        self.pools = NetworkBufferPool(64, SEGMENT)
        self.manager = ResultPartitionManager(
            waits=self.options.requests_wait_at_producer, started=asyncio.get_running_loop().time()
        )
        self.partition = ResultPartition(
            P,
            subpartitions,
            self.pools.create_buffer_pool(subpartitions + 1, 40, subpartitions=subpartitions),
            file=file,
        )
        self.server = DataServer(network, self.manager, name="tm-0-1", options=self.options, **hooks)

    async def start(self):
        self.manager.register(self.partition)
        return await self.server.start(("127.0.0.1", 0))

    def emit(self, data: bytes, subpartition: int = 0) -> None:
        assert self.partition.emit(subpartition, data) == len(data)
        self.partition.flush_all()

    async def close(self) -> None:
        await self.server.close()
        self.manager.shut_down()
        assert self.pools.outstanding == 0


class Consumer:
    """A gate with channels to subpartitions of one producer."""

    def __init__(
        self,
        network,
        address,
        *,
        subpartitions=(0,),
        options: Options | None = None,
        floating: int = 8,
        exclusive: int = 2,
        **hooks,
    ) -> None:
        self.options = options or Options({})
        self.address = address
        self.ready = asyncio.Event()
        self.pools = NetworkBufferPool(64, SEGMENT)
        self.gate = InputGate(
            self.pools, self.pools.create_buffer_pool(1, floating), self.ready.set, exclusive=exclusive
        )
        for index in subpartitions:
            self.gate.add_remote(
                P,
                index,
                receiver=channel_id(1, bytes([index]) * 12),
                backoff=remote_backoff(self.options),
            )
        self.connections = ConnectionManager(network, name="tm-1-1", options=self.options, **hooks)

    async def connect(self, peer: str = "tm-0-1"):
        assert self.gate.set_up()
        client = await self.connections.client(peer, self.address)
        for channel in self.gate.channels:
            client.add(channel)
        return client

    async def poll(self):
        async with asyncio.timeout(LIMIT_S):
            while True:
                self.ready.clear()
                polled = self.gate.poll()
                if polled is not None:
                    return polled
                await self.ready.wait()

    async def read(self, count: int) -> bytes:
        """Bytes of data buffers, recycled at once."""
        data = b""
        while len(data) < count:
            _, element = await self.poll()
            assert isinstance(element, Buffer), element
            data += bytes(element.view())
            element.recycle()
        return data

    async def close(self) -> None:
        self.gate.close()
        await self.connections.close()
        assert self.pools.outstanding == 0


class Unreliable:
    """A network whose first `failures` connects are refused; counts them all."""

    def __init__(self, network, failures: int) -> None:
        self._network = network
        self.failures = failures
        self.connects = 0

    async def listen(self, make_handler, address):
        return await self._network.listen(make_handler, address)

    async def connect(self, address, handler, *, timeout_s):
        self.connects += 1
        if self.connects <= self.failures:
            raise ConnectionRefusedError("refused")
        return await self._network.connect(address, handler, timeout_s=timeout_s)


async def eventually(condition) -> None:
    """Let the loop run until it is so."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0)
