"""Cases of PartitionRequestClientFactoryTest: which connections are shared, and which are replaced."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.options import MAX_TCP_CONNECTIONS, Options
from tests.transport.exchanging import Consumer, P, Producer, Unreliable, eventually
from tests.transport.inprocess_network import InProcessNetwork


@pytest.mark.parametrize("most", [-1, 0, 1, 2, 5, 10])
async def test_G_25_a_hundred_exchanges_share_as_many_connections_as_are_allowed(most: int) -> None:
    """testReuseNettyPartitionRequestClient of 1.15: `max-num-tcp-connections`. Less than 1 counts as 1."""
    network, draw = InProcessNetwork(), Random(most)
    producer = Producer(network)
    address = await producer.start()
    consumer = Consumer(network, address, options=Options({MAX_TCP_CONNECTIONS: str(most)}))
    results = [replace(P, data_set=draw.randbytes(16)) for _ in range(100)]
    clients = [
        await consumer.connections.client("tm-0-1", address, consumer.connections.index_of(result))
        for result in results
    ]
    assert len({id(client) for client in clients}) == max(1, most)
    await consumer.close()
    await producer.close()


@pytest.mark.parametrize(("failures", "attempts"), [(1, 2), (2, 3)])
async def test_G_29_a_failed_connect_is_not_remembered(failures: int, attempts: int) -> None:
    """testExceptionsAreNotCached and testFailureReportedToSubsequentRequests: without retries each request is one attempt."""
    network = Unreliable(InProcessNetwork(), failures)
    producer = Producer(network)
    address = await producer.start()
    consumer = Consumer(network, address)
    for _ in range(failures):
        with pytest.raises(FlinkError) as failed:
            await consumer.connections.client("tm-0-1", address)
        assert failed.value.class_name == "RemoteTransportException"
    await consumer.connect()
    assert network.connects == attempts
    await consumer.close()
    await producer.close()


async def test_G_30_a_connection_that_the_peer_has_closed_is_replaced() -> None:
    """testConnectionReuseWhenRemoteCloseAndNoInputChannel: no channel has used it."""
    network = InProcessNetwork()
    producer = Producer(network)
    address = await producer.start()
    consumer = Consumer(network, address)
    first = await consumer.connections.client("tm-0-1", address)
    await producer.close()
    await eventually(lambda: not consumer.connections.clients)
    again = Producer(network)
    again.manager.register(again.partition)
    await again.server.start(address)
    assert await consumer.connections.client("tm-0-1", address) is not first
    await consumer.close()
    await again.close()
