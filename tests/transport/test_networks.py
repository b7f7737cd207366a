"""One suite for TCP, TCP with TLS and simulated networks: order, ownership, back-pressure, and every way to end."""

from __future__ import annotations

import asyncio
import random
import socket
from functools import partial

import pytest
import uvloop

from testbed_runtime.core.errors import UserError
from testbed_runtime.transport.simulated import SimulatedFabric
from testbed_runtime.transport.tcp import HIGH_WATERMARK_BYTES, REREAD_BYTES, TcpNetwork
from tests.transport.conformance import LIMIT_S, Pair, Watcher
from tests.transport.encrypted import encrypted_network


@pytest.fixture(params=["tcp", "tls", "simulated"])
async def pair(request):
    if request.param == "simulated":
        fabric = SimulatedFabric(random.Random(7))
        made = Pair(fabric.network("tm-0"), fabric.network("tm-1"))
    else:
        made = Pair({"tcp": TcpNetwork, "tls": encrypted_network}[request.param]())
    await made.open()
    yield made
    await made.close()


def connections(pair: Pair):
    assert pair.client.connection is not None
    assert pair.server.connection is not None
    return pair.client.connection, pair.server.connection


async def test_bytes_arrive_in_order_whatever_their_parts_are(pair: Pair) -> None:
    """Parts of all sizes, in both directions at once."""
    client, server = connections(pair)
    draw = random.Random(3)
    sent = {client: bytearray(), server: bytearray()}
    for connection in (client, server):
        for _ in range(200):
            parts = [draw.randbytes(draw.choice([0, 1, 9, 100, 5000])) for _ in range(draw.randint(1, 4))]
            connection.send(parts)
            sent[connection] += b"".join(parts)
    await pair.server.until(lambda: len(pair.server.received) >= len(sent[client]))
    await pair.client.until(lambda: len(pair.client.received) >= len(sent[server]))
    assert pair.server.received == sent[client]
    assert pair.client.received == sent[server]


@pytest.mark.parametrize("network", [TcpNetwork, encrypted_network])
@pytest.mark.parametrize("ends", [False, True], ids=["another connection receives", "the connection ends"])
async def test_what_a_handler_was_lent_stays_until_settled(network, ends: bool) -> None:
    """The bytes stay where they were received, although `on_data` has returned."""
    pair = await Pair(network()).open()
    client, server = connections(pair)
    kept: list[bytes] = []
    pair.server.on_data_hook = lambda data: server.lend(lambda: kept.append(bytes(data)))
    client.send([b"abcdef"])
    await pair.server.until(lambda: len(pair.server.received) == 6)
    assert not kept
    if ends:
        client.close()
        await pair.server.until(lambda: bool(pair.server.closed))
    else:
        server.send([b"0123456789"])
        await pair.client.until(lambda: len(pair.client.received) == 10)
    assert kept == [b"abcdef"]
    await pair.close()


@pytest.mark.parametrize("network", [TcpNetwork, encrypted_network])
async def test_what_a_handler_gives_back_is_delivered_again_in_front_of_what_follows(network) -> None:
    """Other connections, which share the receive buffer, may receive in between."""
    pair = await Pair(network()).open()
    client, server = connections(pair)
    given = []

    def give_back(data: memoryview) -> None:
        if not given and len(pair.server.received) == 6:
            assert not server.unread(memoryview(bytes(REREAD_BYTES + 1)))
            assert server.unread(data[-3:])
            given.append(bytes(data[-3:]))

    pair.server.on_data_hook = give_back
    client.send([b"abcdef"])
    await pair.server.until(lambda: bool(given))
    server.send([b"0123456789"])
    await pair.client.until(lambda: len(pair.client.received) == 10)
    client.send([b"ghi"])
    await pair.server.until(lambda: len(pair.server.received) == 12)
    assert pair.server.received == b"abcdefdefghi"
    client.send([b"jkl"])
    await pair.server.until(lambda: len(pair.server.received) == 15)
    assert pair.server.received.endswith(b"ghijkl")
    await pair.close()


async def test_a_segment_that_is_reused_after_on_sent_does_not_change_what_was_sent(pair: Pair) -> None:
    """Buffer ownership: one segment, filled again each time it comes back."""
    client, _ = connections(pair)
    segment = bytearray(4096)
    count, done = 0, asyncio.Event()

    def send_next() -> None:
        nonlocal count
        if count == 64:
            done.set()
            return
        segment[:] = bytes([count]) * len(segment)
        count += 1
        client.send([memoryview(segment)], send_next)

    send_next()
    async with asyncio.timeout(LIMIT_S):
        await done.wait()
    await pair.server.until(lambda: len(pair.server.received) == 64 * 4096)
    assert pair.server.received == b"".join(bytes([i]) * 4096 for i in range(64))


async def test_a_peer_that_does_not_read_makes_the_sender_unwritable_and_then_writable_again(
    pair: Pair,
) -> None:
    """Back-pressure: nothing is lost, and on_sent comes once for each part."""
    client, server = connections(pair)
    server.pause_reading()
    unit, sent, returned = bytes(32 * 1024), 0, 0

    def back() -> None:
        nonlocal returned
        returned += 1

    for _ in range(2000):
        if not client.writable:
            await asyncio.sleep(0.001)
            if not client.writable:
                break
        client.send([unit], back)
        sent += 1
        await asyncio.sleep(0)
    assert not client.writable, "the window never filled"
    assert sent - returned > HIGH_WATERMARK_BYTES // len(unit)
    server.resume_reading()
    await pair.client.until(lambda: client.writable)
    await pair.server.until(lambda: len(pair.server.received) == sent * len(unit))
    assert pair.client.writable_again >= 1
    assert returned == sent


async def test_an_orderly_close_sends_what_is_queued_first(pair: Pair) -> None:
    """The peer gets everything and then the end, without an error, once on each side."""
    client, _ = connections(pair)
    returned = []
    data = bytes(range(256)) * 4096
    client.send([data], lambda: returned.append(1))
    client.close()
    assert not client.writable
    await pair.server.until(lambda: bool(pair.server.closed))
    await pair.client.until(lambda: bool(pair.client.closed))
    assert pair.server.received == data
    assert pair.server.closed == [None]
    assert pair.client.closed == [None]
    assert returned == [1]


@pytest.mark.parametrize("reset", [False, True])
async def test_an_abort_gives_everything_back_once(pair: Pair, reset: bool) -> None:
    """A congested connection calls each on_sent once, then on_closed. After a reset the peer sees one."""
    client, server = connections(pair)
    server.pause_reading()
    returned: list[int] = []
    for i in range(40):
        client.send([bytes(32 * 1024)], lambda i=i: returned.append(i))
    await asyncio.sleep(0)
    client.abort(reset=reset)
    assert sorted(returned) == list(range(40))
    assert pair.client.closed == [None]
    server.resume_reading()
    await pair.server.until(lambda: bool(pair.server.closed))
    (error,) = pair.server.closed
    if reset:
        assert isinstance(error, ConnectionResetError)
    await asyncio.sleep(0)
    assert len(returned) == 40


async def test_what_is_sent_after_the_end_is_given_back_at_once(pair: Pair) -> None:
    """Segments are never lost with a connection."""
    client, _ = connections(pair)
    client.abort()
    returned = []
    client.send([b"late"], lambda: returned.append(1))
    assert returned == [1]
    client.close()
    client.abort()
    assert pair.client.closed == [None]


async def test_nothing_is_called_after_on_closed(pair: Pair) -> None:
    """Neither data nor writable, on both sides."""
    client, server = connections(pair)
    server.send([bytes(1000)] * 10)
    client.send([bytes(100_000)])
    client.abort()
    await pair.server.until(lambda: bool(pair.server.closed))
    for _ in range(5):
        await asyncio.sleep(0)
    assert pair.client.after_close == []
    assert pair.server.after_close == []
    assert len(pair.client.closed) == len(pair.server.closed) == 1


async def test_a_handler_may_end_its_connection_while_it_receives(pair: Pair) -> None:
    """Abort from within on_data."""
    client, server = connections(pair)
    pair.server.on_data_hook = lambda _: server.abort()
    client.send([b"x"])
    await pair.client.until(lambda: bool(pair.client.closed))
    assert pair.server.closed == [None]
    assert pair.server.received == b"x"


async def test_a_refused_connection_is_an_os_error(pair: Pair) -> None:
    """The listener is closed."""
    address = pair.address
    await pair.listener.close()
    with pytest.raises(ConnectionRefusedError):
        await pair.connecting.connect(address, Watcher(), timeout_s=LIMIT_S)


async def test_a_closed_listener_keeps_its_connections(pair: Pair) -> None:
    """They belong to their handlers."""
    client, _ = connections(pair)
    await pair.listener.close()
    client.send([b"still here"])
    await pair.server.until(lambda: pair.server.received == b"still here")


async def test_a_port_in_use_names_the_port_and_the_fix(pair: Pair) -> None:
    """The error is a readable sentence."""
    with pytest.raises(UserError, match=rf"{pair.address[1]} on .* is in use by another process \(choose"):
        await pair.network.listen(Watcher, pair.address)


async def test_a_cancelled_connect_leaves_nothing(pair: Pair) -> None:
    """No connection appears later."""
    late = Watcher()
    task = asyncio.create_task(pair.connecting.connect(pair.address, late, timeout_s=LIMIT_S))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert late.connection is None


async def test_the_peer_is_named_by_host_and_port(pair: Pair) -> None:
    """The format is Flink's."""
    client, _ = connections(pair)
    host, port = pair.address
    assert client.peer == f"{host}:{port}"


async def test_tcp_sets_what_flink_sets() -> None:
    """No delay, keep-alive, on both ends."""
    pair = await Pair(TcpNetwork()).open()
    for end in (pair.client, pair.server):
        sock = end.connection._sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    await pair.close()


async def test_the_buffers_of_both_sockets_are_limited() -> None:
    """taskmanager.network.netty.sendReceiveBufferSize; the kernel doubles it for its own bookkeeping."""
    pair = await Pair(TcpNetwork(32 * 1024)).open()
    for end in (pair.client, pair.server):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            assert end.connection._sock.getsockopt(socket.SOL_SOCKET, option) == 2 * 32 * 1024
    await pair.close()


async def test_a_size_below_0_leaves_the_buffers_of_the_operating_system() -> None:
    """NettyClient and NettyServer set only a size above 0. The kernel reads -1 as the largest size."""
    default = await Pair(TcpNetwork()).open()
    found = await Pair(TcpNetwork(-1)).open()
    sizes = [
        pair.client.connection._sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        for pair in (default, found)
    ]
    assert sizes[0] == sizes[1]
    await default.close()
    await found.close()


async def test_tcp_gives_up_connecting_after_its_time_limit() -> None:
    """A backlog that is full answers nothing."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        with pytest.raises(TimeoutError):
            await TcpNetwork().connect(full.getsockname(), Watcher(), timeout_s=0.1)
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize("make", [TcpNetwork, encrypted_network])
def test_tcp_works_on_uvloop_too(make) -> None:
    """The same ownership and order there, also with TLS."""

    async def run() -> None:
        pair = await Pair(make()).open()
        await test_a_segment_that_is_reused_after_on_sent_does_not_change_what_was_sent(pair)
        await test_bytes_arrive_in_order_after_more(pair)
        await pair.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_bytes_arrive_in_order_after_more(pair: Pair) -> None:
    """A megabyte behind what was there."""
    client, _ = connections(pair)
    before = len(pair.server.received)
    data = random.Random(5).randbytes(1024 * 1024)
    client.send([data])
    await pair.server.until(lambda: len(pair.server.received) == before + len(data))
    assert pair.server.received[before:] == data


async def test_units_larger_than_a_batch_come_back_once_and_in_order_while_more_is_sent(pair: Pair) -> None:
    """Sending from within on_sent, above every watermark, neither nests without end nor forgets a unit."""
    client, _ = connections(pair)
    unit, total, returned, sent = bytes(range(256)) * 1024, 40, [], 0

    def back(number: int) -> None:
        nonlocal sent
        returned.append(number)
        if sent < total:
            sent += 1
            client.send([unit[:47], unit[47:]], partial(back, sent))

    sent = 1
    client.send([unit[:47], unit[47:]], partial(back, 1))
    await pair.server.until(lambda: len(pair.server.received) == total * len(unit))
    await pair.client.until(lambda: len(returned) == total)
    assert returned == list(range(1, total + 1))
    assert pair.server.received == unit * total
