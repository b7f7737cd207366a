"""The proxy on real sockets: what the two ends of a connection see."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager

import pytest

from testbed_runtime.faults.backend import Rule
from testbed_runtime.faults.probes import EchoServer, ProbeConnection
from testbed_runtime.faults.proxy.observe import AFTER_PAUSE_S, AFTER_SERIES, Path, settled_after
from testbed_runtime.faults.proxy.server import Proxy, RouteKey
from tests.waiting import until

LONG_S = 60.0


@asynccontextmanager
async def proxied():
    """(proxy, the address of the route tm-0 → tm-1 to an echo)."""
    echo, proxy = EchoServer(), Proxy()
    upstream = await echo.start()
    route = await proxy.route(RouteKey("tm-0", "tm-1", "data", upstream))
    try:
        yield proxy, ("127.0.0.1", route.port)
    finally:
        await proxy.close()
        await echo.close()
        await asyncio.sleep(0)


def rule(kind: str, *, flows=(("tm-0", "*"), ("*", "tm-0")), seconds=LONG_S, gone=(), **params) -> Rule:
    deadline = asyncio.get_running_loop().time() + seconds
    return Rule(rule_id="r", kind=kind, deadline=deadline, flows=flows, gone=gone, params=params)


async def test_unshaped_bytes_pass_whole_and_in_order():
    """4 MB there and back, the same digest."""
    async with proxied() as (proxy, address):
        reader, writer = await asyncio.open_connection(*address)
        data = bytes(range(256)) * 16_384
        seen = hashlib.sha256()

        async def read() -> None:
            left = len(data)
            while left:
                piece = await reader.read(65_536)
                seen.update(piece)
                left -= len(piece)

        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(read())
            for at in range(0, len(data), 65_536):
                writer.write(data[at : at + 65_536])
                await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert seen.digest() == hashlib.sha256(data).digest()
        assert proxy.state()["held_bytes"] == 0


async def test_the_same_route_keeps_its_port():
    """Asking again changes nothing; another upstream is another route."""
    async with proxied() as (proxy, address):
        again = await proxy.route(RouteKey("tm-0", "tm-1", "data", ("127.0.0.1", 1)))
        assert again.port != address[1]
        assert (await proxy.route(again.key)).port == again.port


@pytest.mark.parametrize(
    ("flows", "expected"),
    [((("tm-0", "*"), ("*", "tm-0")), 0.1), ((("tm-0", "*"),), 0.05), ((("tm-5", "*"),), 0.0)],
    ids=["both ways", "one way", "somebody else"],
)
async def test_latency_is_added_once_for_each_direction_it_is_laid_on(flows, expected):
    """On a connection that was open before, from its next byte on."""
    async with proxied() as (proxy, address):
        probe = await ProbeConnection.open(address, timeout_s=5)
        before = min(await probe.round_trips(5, timeout_s=5))
        proxy.apply(rule("network.latency", flows=flows, latency_s=0.05))
        during = min(await probe.round_trips(3, timeout_s=5))
        proxy.remove("r")
        after = min(await probe.round_trips(5, timeout_s=5))
        assert expected - 0.005 <= during - before <= expected + 0.04
        assert after < before + 0.02
        probe.close()


@pytest.mark.parametrize("kind", ["network.partition", "network.stall"])
async def test_nothing_passes_and_the_connection_stays_until_it_heals(kind):
    """The held ping is answered then, on the same connection; so is one on a connection made meanwhile."""
    async with proxied() as (proxy, address):
        probe = await ProbeConnection.open(address, timeout_s=5)
        await probe.round_trips(1, timeout_s=5)
        proxy.apply(rule(kind))
        held = probe.ping()
        late = await ProbeConnection.open(address, timeout_s=5)
        late_ping = late.ping()
        assert await probe.answer(held, timeout_s=0.2) is None
        assert probe.error == ""
        proxy.remove("r")
        state = proxy.state()
        assert (state["held_bytes"], state["shaped_connections"]) == (0, 0), "no residue"
        assert (state["sent_again_s"] > 0) == (kind == "network.partition"), "TCP's next retransmission"
        assert await probe.answer(held, timeout_s=5) is not None
        assert await late.answer(late_ping, timeout_s=5) is not None
        probe.close()
        late.close()


async def test_a_one_way_partition_lets_the_other_way_pass():
    """Bytes from tm-0 arrive, no answer returns to it."""
    arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(4))
        writer.write(await reader.readexactly(4))
        arrived.set()
        await writer.drain()
        writer.close()

    async with proxied() as (proxy, _), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        route = await proxy.route(RouteKey("tm-0", "tm-1", "data", server.sockets[0].getsockname()))
        reader, writer = await asyncio.open_connection("127.0.0.1", route.port)
        writer.write(b"open")
        async with asyncio.timeout(5):
            assert await reader.readexactly(4) == b"open"
        proxy.apply(rule("network.partition", flows=(("*", "tm-0"),)))
        writer.write(b"ping")
        async with asyncio.timeout(5):
            await arrived.wait()
        answer = asyncio.create_task(reader.readexactly(4))
        assert not (await asyncio.wait([answer], timeout=0.2))[0]
        proxy.remove("r")
        assert await asyncio.wait_for(answer, 5) == b"ping"
        writer.close()
        await writer.wait_closed()


async def test_a_reset_hits_open_connections_and_new_ones():
    """Both ends see a TCP reset; a later connection stays open."""
    async with proxied() as (proxy, address):
        probe = await ProbeConnection.open(address, timeout_s=5)
        await probe.round_trips(1, timeout_s=5)
        proxy.apply(rule("network.reset"))
        assert await probe.closed(timeout_s=5)
        assert probe.error == "reset"
        new = await ProbeConnection.open(address, timeout_s=5)
        assert await new.closed(timeout_s=5)
        assert new.error == "reset"
        proxy.remove("r")
        healthy = await ProbeConnection.open(address, timeout_s=5)
        assert await healthy.round_trips(1, timeout_s=5)
        healthy.close()


async def test_half_open_removes_the_targets_end_and_does_not_notify_the_others():
    """The other end is reset when the fault ends."""
    async with proxied() as (proxy, address):
        probe = await ProbeConnection.open(address, timeout_s=5)
        await probe.round_trips(1, timeout_s=5)
        proxy.apply(rule("network.half-open", flows=(("tm-1", "*"), ("*", "tm-1")), gone=("tm-1",)))
        number = probe.ping()
        assert await probe.answer(number, timeout_s=0.2) is None
        assert probe.error == ""
        proxy.remove("r")
        assert await probe.closed(timeout_s=5)
        assert probe.error == "reset"


async def test_a_ceiling_is_kept():
    """200 kB/s, measured over 40 kB both ways."""
    async with proxied() as (proxy, address):
        proxy.apply(rule("network.bandwidth", bytes_per_s=200_000.0))
        probe = await ProbeConnection.open(address, timeout_s=5)
        seconds = await probe.bulk(40_000, timeout_s=60)
        assert seconds is not None
        assert seconds >= 0.19
        probe.close()


async def test_a_rule_ends_at_its_own_deadline():
    """Without a call to heal it."""
    async with proxied() as (proxy, address):
        probe = await ProbeConnection.open(address, timeout_s=5)
        proxy.apply(rule("network.stall", seconds=0.15))
        assert await probe.answer(probe.ping(), timeout_s=5) is not None
        assert proxy.state()["rules"] == {}
        probe.close()


async def test_a_refused_upstream_is_a_reset_downstream():
    """A dead process behind a route looks dead."""
    async with proxied() as (proxy, _):
        route = await proxy.route(RouteKey("tm-0", "tm-9", "data", ("127.0.0.1", 1)))
        probe = await ProbeConnection.open(("127.0.0.1", route.port), timeout_s=5)
        assert await probe.closed(timeout_s=5)


async def test_an_orderly_end_stays_orderly_and_behind_the_bytes():
    """Half-closed by the client, the echo's last bytes still come, then its end; no relay is left."""
    async with proxied() as (proxy, address):
        proxy.apply(rule("network.latency", latency_s=0.02))
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"good bye")
        writer.write_eof()
        async with asyncio.timeout(5):
            assert await reader.read() == b"good bye"
        writer.close()
        await writer.wait_closed()
        await until(lambda: not proxy.state()["connections"], seconds=5)


@pytest.mark.parametrize("stays", [False, True], ids=["passes by", "stays"])
async def test_what_passes_by_after_a_fault_is_no_residue(stays):
    """A delay of 50 ms that ends 0.6 s after the fault, as on a busy machine, and one that stays."""
    async with proxied() as (proxy, address):
        probe = await ProbeConnection.open(address, timeout_s=5)
        series = 0

        async def measure() -> list[float]:
            nonlocal series
            series += 1
            return await probe.round_trips(3, timeout_s=5)

        path = Path("tm-0", "tm-1", "data")
        path.before = await measure()
        proxy.apply(rule("network.latency", latency_s=0.05))
        asyncio.get_running_loop().call_later(LONG_S if stays else 3 * AFTER_PAUSE_S, proxy.remove, "r")
        clean, values = await settled_after(path, measure, 0.02)
        assert clean is not stays
        assert (series == 1 + AFTER_SERIES) is stays
        assert (values["added_s"] > 0.05) is stays
        probe.close()
