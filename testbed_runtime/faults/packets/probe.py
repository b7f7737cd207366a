"""Packet probes: UDP with one packet per probe, so one lost packet is one lost probe. An echo at the other end counts what it receives.

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
from functools import partial

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.faults.packets.measure import PathReading
from testbed_runtime.faults.packets.netlink import SO_RCVBUFFORCE
from testbed_runtime.faults.packets.placing import ECHO_PORT, PROBE_PORTS
from testbed_runtime.ports.network import Address
from testbed_runtime.timeouts import wait_until

_PROBE = struct.Struct(">4sQIIIIBd")
_MAGIC = b"hgp1"
_PING, _FENCE = 0, 1
MAX_SESSIONS = 64
MAX_PROBES = 20_000
"""Maximum probes of one series."""
WINDOW = 64
"""Maximum pending probes. It slows down the probes of a machine that is too busy to answer, so that no queue overflows."""
STALL_S = 0.2
"""If there is no answer for this long, pending probes count as lost and the next ones are sent."""
TICK_S = 0.004
"""Probes closer together than this are sent in small groups: fewer wake-ups for the same number."""
FENCE_LIMIT_S = 2.5
"""Time limit for the answer to the fence, the last probe of a series. Answers arrive in order, so a late probe never counts as lost."""
FENCE_AT_STOP_S = 1.2
"""Time limit for the fence when the fault ends now, because the agent waits only 2 s for its last measurement."""
FENCE_EVERY_S = 0.05
"""The fence passes through the same fault, so it is sent repeatedly."""
SILENT_S = 1.0
"""Limit for the fence of a series without any answer."""
SETTLE_S = 0.1
"""Quiet time after the fence, so that probes arrive that were held to let others overtake them."""
BUFFER_BYTES = 8 * 1024 * 1024
"""Receive buffer of the probe sockets: seconds of probes, on a machine that is too busy to read."""
BATCH = 64
"""Maximum datagrams that are read before timers run."""
DATAGRAM_BYTES = 512


@dataclass(slots=True)
class _Session:
    seen: set[int] = field(default_factory=set)
    duplicates: int = 0
    overtaken: int = 0
    newest: int = -1


class Echo:
    """Answers probes with its count of their series."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._end: _DatagramEnd | None = None
        self.port = 0

    async def start(self, host: str, port: int = ECHO_PORT) -> None:
        """Raises HeadgateError when the port is taken."""
        try:
            self._end = _DatagramEnd(host, port, self._on_datagram)
        except OSError as error:
            raise HeadgateError(f"the echo cannot use port {port}: {error.strerror}") from error
        self.port = self._end.port

    def _on_datagram(self, data: bytes, sender: Address, now: float) -> None:
        if len(data) != _PROBE.size or self._end is None:
            return
        magic, series, number, _, _, _, kind, _ = _PROBE.unpack(data)
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
        self._end.send(answer, sender)

    def close(self) -> None:
        """Idempotent."""
        if self._end is not None:
            self._end.close()
            self._end = None


class _DatagramEnd:
    """A socket that is read in batches: asyncio's transport reads one datagram per loop iteration, too few under load.

    `on_datagram(data, sender, now)`. Raises OSError when the port is taken."""

    def __init__(self, host: str, port: int, on_datagram: Callable[[bytes, Address, float], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_datagram = on_datagram
        self._socket = _bound(host, port)
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def send(self, data: bytes, to: Address) -> None:
        with contextlib.suppress(OSError):  # full or unreachable: the probe counts as lost
            self._socket.sendto(data, to)

    def close(self) -> None:
        """Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _on_readable(self) -> None:
        for _ in range(BATCH):
            try:
                data, sender = self._socket.recvfrom(DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError:  # an ICMP error for a datagram that was refused
                continue
            self._on_datagram(data, sender, self._loop.time())
            if self._socket.fileno() < 0:
                return


class _Series:
    """The probes of one series from one port, and their answers."""

    def __init__(self, number: int, host: str, port: int, echo: Address) -> None:
        self.number = number
        self.sent_at: list[float] = []
        self.times: dict[int, float] = {}
        self.duplicates = 0
        self.overtaken = 0
        self.echoed = -1
        self.forward = (0, 0)
        self.forward_s: list[float] = []
        self.backward_s: list[float] = []
        self.changed = asyncio.Event()
        self.newest = -1
        self.given_up = -1
        self.end = _DatagramEnd(host, port, self._on_datagram)
        self._echo = echo

    def ping(self, now: float) -> None:
        self.sent_at.append(now)
        self._send(len(self.sent_at) - 1, _PING)

    def fence(self) -> None:
        self._send(0, _FENCE)

    def _send(self, probe: int, kind: int) -> None:
        self.end.send(_PROBE.pack(_MAGIC, self.number, probe, 0, 0, 0, kind, 0.0), self._echo)

    def _on_datagram(self, data: bytes, sender: Address, now: float) -> None:
        if len(data) != _PROBE.size or sender != self._echo:
            return
        magic, series, number, seen, duplicates, overtaken, kind, seen_at = _PROBE.unpack(data)
        if magic != _MAGIC or series != self.number:
            return
        if kind == _FENCE:
            self.echoed, self.forward = seen, (duplicates, overtaken)
        elif number in self.times:
            self.duplicates += 1
        elif number < len(self.sent_at):
            self.times[number] = now - self.sent_at[number]
            self.forward_s.append(seen_at - self.sent_at[number])
            self.backward_s.append(now - seen_at)
            self.overtaken += number < self.newest
            self.newest = max(self.newest, number)
        self.changed.set()


class Prober:
    """Sends series of probes from this network namespace, one at a time for each plane."""

    def __init__(self, host: str = "") -> None:
        self._host = host or "0.0.0.0"  # noqa: S104 - where probes are sent from; nothing is served there
        self._locks = {plane: asyncio.Lock() for plane in PROBE_PORTS}
        self._numbers = itertools.count(1)

    async def series(
        self, echo: Address, plane: str, *, count: int, every_s: float, stop: asyncio.Event | None = None
    ) -> PathReading:
        """Send `count` probes, or fewer when `stop` is set, and as many simultaneous ones from a port that no rule covers, which
        measure the delay of the two machines. Network errors are not raised: see `error`."""
        stop = stop or asyncio.Event()
        async with self._locks[plane]:
            try:
                with contextlib.ExitStack() as ends:
                    through, beside = (
                        _Series(self._number(), self._host, port, echo) for port in (PROBE_PORTS[plane], 0)
                    )
                    ends.callback(through.end.close)
                    ends.callback(beside.end.close)
                    paced = every_s >= TICK_S
                    await _send(through, beside if paced else None, min(count, MAX_PROBES), every_s, stop)
                    await _fenced(through, FENCE_AT_STOP_S if stop.is_set() else FENCE_LIMIT_S)
                    return _reading(through, beside)
            except OSError as error:
                return PathReading(error=f"probes cannot be sent: {error.strerror}")

    def _number(self) -> int:
        now = asyncio.get_running_loop().time()
        return (int(now * 1e6) << 20 | next(self._numbers)) & (1 << 64) - 1


async def _send(
    through: _Series, beside: _Series | None, count: int, every_s: float, stop: asyncio.Event
) -> None:
    """Send at the planned times, or later while WINDOW probes are pending."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while (sent := len(through.sent_at)) < count and not stop.is_set():
        room = WINDOW - _under_way(through)
        if room <= 0:
            if not await wait_until(lambda: _under_way(through) < WINDOW, through.changed, limit_s=STALL_S):
                through.given_up = sent - 1
            begin = max(begin, loop.time() - sent * every_s - TICK_S)  # missed probes are not sent later
            continue
        due = int((loop.time() - begin) / every_s) + 1
        for number in range(sent, min(count, due, sent + room)):
            first, second = (through, beside) if number % 2 else (beside, through)
            for series in (first, second):
                if series is not None:
                    series.ping(loop.time())
        await asyncio.sleep(
            max(
                0.0, begin + len(through.sent_at) * every_s - loop.time(), TICK_S if every_s < TICK_S else 0.0
            )
        )


def _under_way(series: _Series) -> int:
    return len(series.sent_at) - 1 - max(series.newest, series.given_up)


async def _fenced(series: _Series, limit_s: float) -> None:
    """Wait until no further answer can arrive."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while series.echoed < 0 and loop.time() - begin < (limit_s if series.times else min(limit_s, SILENT_S)):
        series.fence()
        await wait_until(lambda: series.echoed >= 0, series.changed, limit_s=FENCE_EVERY_S)
    answered = -1
    while series.echoed >= 0 and answered < len(series.times) < series.echoed:
        answered = len(series.times)
        await wait_until(partial(_more_than, series, answered), series.changed, limit_s=SETTLE_S)


def _more_than(series: _Series, answered: int) -> bool:
    return len(series.times) > answered


def _reading(through: _Series, beside: _Series) -> PathReading:
    return PathReading(
        sent=len(through.sent_at),
        echoed=max(through.echoed, len(through.times)),
        answered=len(through.times),
        fenced=through.echoed >= 0,
        forward_duplicates=through.forward[0],
        backward_duplicates=max(0, through.duplicates - through.forward[0]),
        overtaken=through.overtaken + through.forward[1],
        round_trips_s=tuple(through.times[n] for n in sorted(through.times)),
        forward_s=tuple(through.forward_s),
        backward_s=tuple(through.backward_s),
        beside_forward_s=tuple(beside.forward_s),
        beside_backward_s=tuple(beside.backward_s),
    )


def _bound(host: str, port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        with contextlib.suppress(OSError):  # without NET_ADMIN the system's limit applies
            opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        opened.bind((host, port))
    except BaseException:
        opened.close()
        raise
    return opened
