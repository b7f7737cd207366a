"""Rpc over aiohttp: one WebSocket per pair of processes and direction, which keeps the order of messages.

Every request, the upgrade too, carries `Authorization: Bearer <token>`. A refused connection makes its asks unreachable. What was
sent over a connection that breaks is lost without notice, as with Pekko's remoting; an ask that timed out just stops waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Unpack

import aiohttp
import msgspec
from aiohttp import web

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.http import bearer_token, serve
from testbed_runtime.ports.network import Address, http_url
from testbed_runtime.ports.rpc import RecipientUnreachable
from testbed_runtime.timeouts import cancel_all, timeout
from testbed_runtime.transport.mailbox import Ask, when_answered
from testbed_runtime.transport.names import connector, numeric
from testbed_runtime.transport.rpc_endpoints import EndpointOptions, EndpointRpc
from testbed_runtime.transport.wire_messages import decode_message, encode_message

RPC_PATH = "/rpc"
MAX_MESSAGE_BYTES = 10_485_760
"""pekko.framesize."""
MAX_OUTBOX = 100_000
"""Limit of messages queued for a peer that does not read; beyond it the connection is closed."""
CLOSE_TIMEOUT_S = 1.0
"""Time limit for the closing handshake and for requests in flight when the process ends."""
MAX_CALL_ID = 200
"""Maximum characters."""


class _Call(msgspec.Struct, frozen=True, array_like=True):
    number: int
    endpoint: str
    call_id: str
    message: msgspec.Raw


class _Reply(msgspec.Struct, frozen=True, array_like=True):
    number: int
    known_endpoint: bool
    message: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_call = msgspec.json.Decoder(_Call)
_reply = msgspec.json.Decoder(_Reply)


class _Outbox:
    """The messages to be written to one WebSocket. `put` never waits; one task writes them in order."""

    def __init__(self) -> None:
        self._queue: deque[bytes] = deque()
        self._filled = asyncio.Event()

    def put(self, data: bytes) -> bool:
        """Queue a message. Return False when too many are queued because the peer does not read."""
        if len(self._queue) >= MAX_OUTBOX:
            return False
        self._queue.append(data)
        self._filled.set()
        return True

    async def run(self, socket: web.WebSocketResponse | aiohttp.ClientWebSocketResponse) -> None:
        """Write until cancelled or until the connection breaks (its reader then ends too)."""
        while True:
            await self._filled.wait()
            while self._queue:
                try:
                    await socket.send_bytes(self._queue.popleft())
                except (OSError, aiohttp.ClientError):
                    return
            self._filled.clear()


class _Link:
    """The outgoing connection to one peer: connects, sends, matches answers; ends with the connection."""

    def __init__(self, open_socket: Callable[[], Awaitable[aiohttp.ClientWebSocketResponse]]) -> None:
        self._open_socket = open_socket
        self._outbox = _Outbox()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self.task: asyncio.Task[None] | None = None
        self.over = False
        self.remote = ""
        """The address that the peer's name was resolved to."""

    def call(
        self, endpoint: str, call_id: str, message: bytes, answer: asyncio.Future[Any]
    ) -> Callable[[], None]:
        """Send a call. Return a function that forgets it."""
        self._next += 1
        number = self._next
        self._pending[number] = answer
        if not self._outbox.put(_encode(_Call(number, endpoint, call_id, msgspec.Raw(message)))):
            answer.set_exception(ConnectionRefusedError())
        return lambda: (self._pending.pop(number, None), None)[1]

    async def run(self) -> None:
        error: Exception | None = ConnectionRefusedError()
        try:
            socket = await self._open_socket()
            error = None
            await self._converse(socket)
        except aiohttp.WSServerHandshakeError as refusal:
            if refusal.status == web.HTTPUnauthorized.status_code:
                error = HeadgateError("the peer does not accept our token")
        except (OSError, aiohttp.ClientError, TimeoutError, msgspec.DecodeError, HeadgateError):
            pass
        except asyncio.CancelledError:  # this side has closed it
            error = ConnectionRefusedError()
            raise
        finally:
            self.over = True
            for answer in self._pending.values():
                if error is not None and not answer.done():
                    answer.set_exception(error)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        peer = socket.get_extra_info("peername")
        self.remote = str(peer[0]) if peer else ""
        writer = asyncio.get_running_loop().create_task(self._outbox.run(socket), name="rpc-writer")
        try:
            async for frame in socket:
                if frame.type is aiohttp.WSMsgType.BINARY:
                    self._on_reply(_reply.decode(frame.data))
        finally:
            await cancel_all(writer)
            await socket.close()

    def _on_reply(self, reply: _Reply) -> None:
        answer = self._pending.get(reply.number)
        if answer is None or answer.done():
            return  # it timed out here
        if reply.known_endpoint:
            answer.set_result(decode_message(bytes(reply.message)))
        else:
            answer.set_exception(ConnectionRefusedError())


class HttpRpc(EndpointRpc):
    """`ports.rpc.Rpc` over HTTP. With `bind=None` it only asks and serves nothing. A `connect_timeout_s` of 0 is no limit, as for
    Pekko's Netty."""

    def __init__(
        self,
        name: str,
        bind: Address | None,
        token: str,
        *,
        connect_timeout_s: float = 20.0,
        **options: Unpack[EndpointOptions],
    ) -> None:
        super().__init__(name, **options)
        self._bind = bind
        self._token = token
        self._connect_timeout_s = connect_timeout_s
        self._links: dict[Address, _Link] = {}
        self._link_tasks: list[asyncio.Task[None]] = []
        self._clients: list[asyncio.BaseTransport] = []
        self._routes: list[web.RouteDef] = []
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self.address: Address = bind or ("", 0)

    def add_routes(self, routes: Iterable[web.RouteDef]) -> None:
        """Add HTTP endpoints (control, faults) behind the same token. Call it before `start`."""
        self._routes.extend(routes)

    async def start(self) -> None:
        """Raises UserError when the port is in use."""
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._token}"},
            connector=connector(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # `_connect` has its own
        )
        if self._bind is None:
            return
        app = web.Application(middlewares=[bearer_token(self._token)], client_max_size=MAX_MESSAGE_BYTES)
        app.add_routes([web.get(RPC_PATH, self._serve_peer), *self._routes])
        try:
            self._runner, self.address = await serve(app, self._bind)
        except UserError:
            await self.close()
            raise

    async def close(self) -> None:
        """Close everything; pending asks become unreachable. Idempotent."""
        await cancel_all(*self._link_tasks)
        self._link_tasks.clear()
        for transport in self._clients:
            transport.close()
        await self._close_mailboxes()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _send(self, asked: Ask, call_id: str, answer: asyncio.Future[Any]) -> Callable[[], object]:
        return self._link(asked.address).call(asked.endpoint, call_id, encode_message(asked.message), answer)

    def _on_silence(self, asked: Ask) -> None:
        self._look_for(asked.address)

    def _link(self, address: Address) -> _Link:
        link = self._links.get(address)
        if link is None or link.over:
            if self._session is None:
                raise RecipientUnreachable(f"the Rpc of {self.name} is closed")
            link = self._links[address] = _Link(lambda: self._connect(address))
            task = asyncio.get_running_loop().create_task(link.run(), name=f"rpc-link-{address[1]}")
            self._link_tasks.append(task)
            link.task = task
            task.add_done_callback(self._link_tasks.remove)
        return link

    def _look_for(self, address: Address) -> None:
        """Resolve the name of a silent peer again, because its pod may have been replaced by one with another address."""
        link = self._links.get(address)
        if link is None or link.over or not link.remote or link.remote == address[0]:
            return
        task = asyncio.get_running_loop().create_task(_leave_if_moved(link, address), name="rpc-look")
        self._link_tasks.append(task)
        task.add_done_callback(self._link_tasks.remove)

    async def _connect(self, address: Address) -> aiohttp.ClientWebSocketResponse:
        if self._session is None:
            raise ConnectionRefusedError
        async with timeout(self._connect_timeout_s or None):
            return await self._session.ws_connect(
                http_url(address, RPC_PATH),
                max_msg_size=MAX_MESSAGE_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
            )

    async def _serve_peer(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(
            max_msg_size=MAX_MESSAGE_BYTES, timeout=CLOSE_TIMEOUT_S, compress=False
        )
        await socket.prepare(request)
        transport = request.transport
        if transport is None:
            return socket
        outbox = _Outbox()
        writer = asyncio.get_running_loop().create_task(outbox.run(socket), name="rpc-replies")
        self._clients.append(transport)
        try:
            async for frame in socket:
                if frame.type is aiohttp.WSMsgType.BINARY:
                    self._on_call(frame.data, outbox, transport)
        except (msgspec.DecodeError, HeadgateError):
            transport.close()
        finally:
            await cancel_all(writer)
            self._clients.remove(transport)
        return socket

    def _on_call(self, data: bytes, outbox: _Outbox, transport: asyncio.BaseTransport) -> None:
        call = _call.decode(data)
        message = decode_message(bytes(call.message))
        answer = self.deliver(call.endpoint, message, call.call_id[:MAX_CALL_ID])

        def reply(known_endpoint: bool, value: Any) -> None:
            encoded = msgspec.Raw(encode_message(value))
            if not outbox.put(_encode(_Reply(call.number, known_endpoint, encoded))):
                transport.close()

        if answer is None:
            reply(False, None)
        else:
            when_answered(answer, lambda value: reply(True, value), lambda: reply(False, None))


async def _leave_if_moved(link: _Link, address: Address) -> None:
    with contextlib.suppress(OSError):  # not resolvable at the moment: keep the connection
        if await numeric(*address) != link.remote and link.task is not None:
            link.task.cancel()
