"""Addresses of peers, direct or through the proxy."""

from __future__ import annotations

import asyncio

import pytest

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.faults.probes import EchoServer, ProbeConnection
from testbed_runtime.faults.proxy.resolver import ProxyResolver
from testbed_runtime.faults.proxy.server import Proxy, application
from testbed_runtime.http import serve


async def test_the_proxy_resolver_gives_a_route_that_leads_there_and_asks_once():
    """Another plane is another route, another incarnation of the peer under the same address is not."""
    echo, proxy = EchoServer(), Proxy()
    upstream = await echo.start()
    runner, control = await serve(application(proxy, "token"), ("127.0.0.1", 0))
    resolver, stranger = ProxyResolver("tm-0", control, "token"), ProxyResolver("tm-0", control, "wrong")
    try:
        route = await resolver.resolve("tm-1-1", "data", upstream)
        assert await resolver.resolve("tm-1-2", "data", upstream) == route
        assert await resolver.resolve("tm-1", "rpc", upstream) != route
        probe = await ProbeConnection.open(route, timeout_s=5)
        assert await probe.round_trips(1, timeout_s=5)
        probe.close()
        assert proxy.state()["routes"] == 2
        with pytest.raises(HeadgateError, match="token"):
            await stranger.resolve("tm-1", "data", upstream)
    finally:
        await resolver.close()
        await stranger.close()
        await proxy.close()
        await runner.cleanup()
        await echo.close()


async def test_a_proxy_that_is_gone_makes_every_peer_unreachable():
    """As a refused connection."""
    resolver = ProxyResolver("tm-0", ("127.0.0.1", 1), "token")
    with pytest.raises(ConnectionRefusedError):
        await resolver.resolve("tm-1", "data", ("127.0.0.1", 5))
    await resolver.close()


async def test_those_who_ask_for_the_same_route_get_it_in_the_order_in_which_they_asked(
    monkeypatch: pytest.MonkeyPatch,
):
    """Otherwise a task's report RUNNING could overtake INITIALIZING. The last one asks just when the route is known."""
    answer = asyncio.get_running_loop().create_future()
    resolver = ProxyResolver("tm-0", ("127.0.0.1", 1), "token")
    monkeypatch.setattr(resolver, "_ask", lambda *key: answer)
    order: list[str] = []

    async def resolve(who: str) -> None:
        await resolver.resolve("jobmanager", "rpc", ("127.0.0.1", 5))
        order.append(who)

    async with asyncio.TaskGroup() as group:
        group.create_task(resolve("first"))
        group.create_task(resolve("second"))
        await asyncio.sleep(0)
        answer.set_result(("127.0.0.1", 6))
        group.create_task(resolve("third"))
    assert order == ["first", "second", "third"]
    await resolver.close()
