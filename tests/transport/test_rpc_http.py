"""The HTTP Rpc: the common conformance, the token, more routes, ports in use."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.job.messages import (
    Acknowledge,
    CancelTask,
)
from testbed_runtime.http import serve
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable
from testbed_runtime.transport.rpc_http import RPC_PATH, HttpRpc
from tests.transport.rpc_conformance import RpcConformance

LOOPBACK = ("127.0.0.1", 0)


class TestHttpRpc(RpcConformance):
    """HttpRpc keeps what Rpc promises."""

    @pytest.fixture
    async def make_rpc(self):
        made = []

        async def make(name, **options):
            rpc = HttpRpc(name, LOOPBACK, "secret", **options)
            await rpc.start()
            made.append(rpc)
            return rpc

        yield make
        for rpc in made:
            await rpc.close()


@pytest.fixture
async def callee():
    async def hello(request):
        return web.json_response({"hello": request.match_info["name"]})

    async def handle(message):
        del message
        return Acknowledge()

    rpc = HttpRpc("b", LOOPBACK, "secret")
    rpc.add_routes([web.get("/control/{name}", hello)])
    await rpc.start()
    rpc.serve("taskexecutor", {CancelTask: handle})
    yield rpc
    await rpc.close()


async def test_another_token_is_refused_and_not_taken_for_a_dead_peer(callee):
    """A wrong token must not count as unreachable."""
    stranger = HttpRpc("x", None, "guess")
    await stranger.start()
    with pytest.raises(HeadgateError, match="token") as caught:
        await stranger.ask("b", callee.address, "taskexecutor", CancelTask("", ""), timeout_s=5)
    assert not isinstance(caught.value, RecipientUnreachable)
    await stranger.close()


async def test_a_connect_timeout_of_0_is_no_limit(callee):
    """`pekko.tcp.timeout: 0 s` disables the timeout of Netty instead of failing every call."""
    caller = HttpRpc("a", None, "secret", connect_timeout_s=0.0)
    await caller.start()
    answer = await caller.ask("b", callee.address, "taskexecutor", CancelTask("", ""), timeout_s=5)
    assert answer == Acknowledge()
    assert caller._session is not None
    limits = caller._session.timeout  # aiohttp's own limits would end attempts after 30 s
    assert (limits.total, limits.connect, limits.sock_connect) == (None, None, None)
    await caller.close()


async def test_more_routes_stand_behind_the_same_token(callee):
    """add_routes: 401 without the token, the handler with it."""
    url = f"http://127.0.0.1:{callee.address[1]}/control/you"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            assert answer.status == 401
        async with session.get(url, headers={"Authorization": "Bearer secret"}) as answer:
            assert await answer.json() == {"hello": "you"}


async def test_garbage_on_the_socket_ends_that_connection_only(callee):
    """A peer that breaks the protocol is cut off, the others are served."""
    url = f"http://127.0.0.1:{callee.address[1]}/rpc"
    headers = {"Authorization": "Bearer secret"}
    async with aiohttp.ClientSession(headers=headers) as session, session.ws_connect(url) as socket:
        await socket.send_bytes(b"[1, 2")
        assert (await socket.receive(timeout=5)).type in {aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE}
    asker = HttpRpc("a", None, "secret")
    await asker.start()
    assert await asker.ask("b", callee.address, "taskexecutor", CancelTask("", ""), timeout_s=5)
    await asker.close()


async def test_an_ask_that_was_sent_before_its_connection_broke_times_out():
    """The peer is killed before it answers; when nothing listens at its address, it is unreachable."""

    async def killed(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        request.transport.abort()
        return socket

    app = web.Application()
    app.add_routes([web.get(RPC_PATH, killed)])
    runner, address = await serve(app, LOOPBACK)
    asker = HttpRpc("a", None, "t")
    await asker.start()
    with pytest.raises(AskTimeout):
        await asker.ask("b", address, "taskexecutor", CancelTask("", ""), timeout_s=0.5)
    await runner.cleanup()
    with pytest.raises(RecipientUnreachable):
        await asker.ask("b", address, "taskexecutor", CancelTask("", ""), timeout_s=5)
    await asker.close()


async def test_a_port_in_use_is_said_plainly(callee):
    """UserError with the address."""
    with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1"):
        await HttpRpc("c", callee.address, "secret").start()


async def test_a_restarted_peer_at_the_same_address_is_found_again():
    """The connection died with the old process; the next ask opens a new one."""

    async def handle(message):
        del message
        return Acknowledge()

    first = HttpRpc("jm", LOOPBACK, "t")
    await first.start()
    first.serve("e", {CancelTask: handle})
    asker = HttpRpc("a", None, "t")
    await asker.start()
    assert await asker.ask("jm", first.address, "e", CancelTask("", ""), timeout_s=5)
    await first.close()
    second = HttpRpc("jm", first.address, "t")
    await second.start()
    second.serve("e", {CancelTask: handle})
    for _ in range(2):
        try:
            answer = await asker.ask("jm", first.address, "e", CancelTask("", ""), timeout_s=5)
            break
        except RecipientUnreachable:
            continue
    assert answer == Acknowledge()
    await asker.close()
    await second.close()
