"""Probes of packets: UDP, one packet a probe, so that one lost packet is one lost probe. An echo at the far end counts what it got.

A prober sends from a port of its plane (`PROBE_PORTS`), which the rules of that plane cover: what is measured is the rule itself. No frame
of the job's connections is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.faults.netlink import SO_RCVBUFFORCE
from testbed_runtime.faults.packets.measure import PathReading
from testbed_runtime.faults.packets.model import ECHO_PORT, PROBE_PORTS
from testbed_runtime.ports.network import Address

_PROBE = struct.Struct(">4sQIIIIBd")
_MAGIC = b"hgp1"
_PING, _ASK = 0, 1
MAX_SESSIONS = 64
MAX_PROBES = 20_000
"""Of one series."""
MAX_PENDING_S = 1.0
"""After the last probe of a series: what has not come by then is lost."""
PENDING_AT_STOP_S = 0.5
"""The same when the fault is to end now: the agent waits 2 s for its last measurement."""
CATCH_UP = 16
"""Probes sent at once after this process was held up: more would overflow sockets, and be taken for losses."""
BUFFER_BYTES = 8 * 1024 * 1024
"""Of sockets that probes arrive at: some seconds of them, on a machine that is too busy to read."""
ASK_LIMIT_S = 1.0
ASK_EVERY_S = 0.05
"""Asking the echo for its count: through the same fault, so again and again."""


@dataclass(slots=True)
class _Session:
    seen: set[int] = field(default_factory=set)
    duplicates: int = 0
    overtaken: int = 0
    newest: int = -1


class Echo(asyncio.DatagramProtocol):
    """Answers probes with what it has counted of their series."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._transport: asyncio.DatagramTransport | None = None
        self.port = 0

    async def start(self, host: str, port: int = ECHO_PORT) -> None:
        """Raises HeadgateError when the port is taken."""
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(host, port))
        except OSError as error:
            raise HeadgateError(f"the echo cannot use port {port}: {error.strerror}") from error
        _widen(self._transport.get_extra_info("socket"))
        self.port = int(self._transport.get_extra_info("sockname")[1])

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if len(data) != _PROBE.size or self._transport is None:
            return
        magic, series, number, _, _, _, kind, _ = _PROBE.unpack(data)
        now = asyncio.get_running_loop().time()
        if magic != _MAGIC or number >= MAX_PROBES:
            return
        session = self._sessions.setdefault(series, _Session())
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        if kind == _PING:
            session.duplicates += number in session.seen
            session.overtaken += number < session.newest
            session.seen.add(number)
            session.newest = max(session.newest, number)
        answer = _PROBE.pack(
            _MAGIC, series, number, len(session.seen), session.duplicates, session.overtaken, kind, now
        )
        self._transport.sendto(answer, addr)

    def close(self) -> None:
        """Idempotent."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None


class _Series(asyncio.DatagramProtocol):
    """The answers of one series."""

    def __init__(self, series: int) -> None:
        self.series = series
        self.sent_at: list[float] = []
        self.times: dict[int, float] = {}
        self.duplicates = 0
        self.overtaken = 0
        self.echoed = -1
        self.forward = (0, 0)
        self.forward_s: list[float] = []
        self.backward_s: list[float] = []
        self.changed = asyncio.Event()
        self._newest = -1

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        del addr
        now = asyncio.get_running_loop().time()
        if len(data) != _PROBE.size:
            return
        magic, series, number, seen, duplicates, overtaken, kind, there = _PROBE.unpack(data)
        if magic != _MAGIC or series != self.series:
            return
        if kind == _ASK:
            self.echoed, self.forward = seen, (duplicates, overtaken)
        elif number in self.times:
            self.duplicates += 1
        elif number < len(self.sent_at):
            self.times[number] = now - self.sent_at[number]
            self.forward_s.append(there - self.sent_at[number])
            self.backward_s.append(now - there)
            self.overtaken += number < self._newest
            self._newest = max(self._newest, number)
        self.changed.set()

    def error_received(self, exc: Exception) -> None:
        """Refused or unreachable: the probe counts as lost."""


class Prober:
    """Series of probes from this network namespace, one at a time for each plane."""

    def __init__(self, host: str = "") -> None:
        self._host = host or "0.0.0.0"  # noqa: S104 - where probes are sent from; nothing is served there
        self._locks = {plane: asyncio.Lock() for plane in PROBE_PORTS}
        self._numbers = itertools.count(1)

    async def series(
        self, echo: Address, plane: str, *, count: int, every_s: float, stop: asyncio.Event | None = None
    ) -> PathReading:
        """`count` probes, or fewer when `stop` is set. Never raises for the network's sake: see `error`."""
        async with self._locks[plane]:
            loop = asyncio.get_running_loop()
            number = (int(loop.time() * 1e6) << 20 | next(self._numbers)) & (1 << 64) - 1
            series = _Series(number)
            try:
                with contextlib.closing(_bound(self._host, PROBE_PORTS[plane])) as opened:
                    opened.connect(echo)
                    transport, _ = await loop.create_datagram_endpoint(lambda: series, sock=opened)
                    try:
                        return await self._measure(series, transport, min(count, MAX_PROBES), every_s, stop)
                    finally:
                        transport.close()
            except OSError as error:
                return PathReading(error=f"probes cannot be sent: {error.strerror}")

    async def _measure(
        self,
        series: _Series,
        transport: asyncio.DatagramTransport,
        count: int,
        every_s: float,
        stop: asyncio.Event | None,
    ) -> PathReading:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while len(series.sent_at) < count and not (stop is not None and stop.is_set()):
            due = int((loop.time() - begin) / every_s) + 1 if every_s else count
            due = min(due, len(series.sent_at) + CATCH_UP)
            while len(series.sent_at) < min(count, due):
                series.sent_at.append(loop.time())
                transport.sendto(
                    _PROBE.pack(_MAGIC, series.series, len(series.sent_at) - 1, 0, 0, 0, _PING, 0.0)
                )
            await asyncio.sleep(max(0.0, begin + due * every_s - loop.time()))
        stopped = stop is not None and stop.is_set()
        pending_s = PENDING_AT_STOP_S if stopped else MAX_PENDING_S
        await _until(series, lambda: len(series.times) >= len(series.sent_at), pending_s)
        await self._ask(series, transport)
        times = tuple(series.times[n] for n in sorted(series.times))
        return PathReading(
            sent=len(series.sent_at),
            echoed=max(series.echoed, len(series.times)),
            answered=len(series.times),
            forward_duplicates=series.forward[0],
            backward_duplicates=series.duplicates - series.forward[0],
            overtaken=series.overtaken + series.forward[1],
            round_trips_s=times,
            forward_s=tuple(series.forward_s),
            backward_s=tuple(series.backward_s),
        )

    async def _ask(self, series: _Series, transport: asyncio.DatagramTransport) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + (ASK_LIMIT_S if series.times else ASK_EVERY_S)
        while series.echoed < 0 and loop.time() < end:
            transport.sendto(_PROBE.pack(_MAGIC, series.series, 0, 0, 0, 0, _ASK, 0.0))
            await _until(series, lambda: series.echoed >= 0, ASK_EVERY_S)


async def _until(series: _Series, condition: Callable[[], bool], limit_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not condition():
                series.changed.clear()
                await series.changed.wait()


def _widen(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):  # without NET_ADMIN the system's limit stands
        opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)


def _bound(host: str, port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        _widen(opened)
        opened.bind((host, port))
    except BaseException:
        opened.close()
        raise
    return opened
