"""The kernel's state of a connection: parsed, and read from real sockets whose reader stops."""

from __future__ import annotations

import asyncio
import struct
import sys

import pytest

from testbed_runtime.ports.network import SocketConnection, SocketState
from testbed_runtime.transport.socketstate import parse
from testbed_runtime.transport.tcp import TcpConnection, TcpNetwork
from tests.transport.conformance import Watcher

LIMIT_S = 10.0


def tcp_info(
    *, size: int = 280, backoff: int = 0, limited_us: int = 0, theirs: int = 0, ours: int = 0
) -> bytes:
    """A `struct tcp_info` with these fields, as Linux 6.18 has it."""
    raw = bytearray(280)
    raw[4] = backoff
    struct.pack_into("=Q", raw, 176, limited_us)
    struct.pack_into("=II", raw, 228, theirs, ours)
    return bytes(raw[:size])


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (tcp_info(ours=65536, theirs=400, limited_us=1_500_000), (65536, 400, 0, 1.5)),
        (tcp_info(backoff=3), (0, 0, 3, 0.0)),
        (tcp_info(backoff=3, theirs=1), (0, 1, 0, 0.0)),
        (tcp_info(size=236, ours=7), (7, 0, 0, 0.0)),
        (tcp_info(size=235), None),
        (b"", None),
    ],
)
def test_windows_probes_and_the_limited_time_are_read_from_tcp_info(raw: bytes, found: object):
    """Probes count only while the window is closed. An older kernel has no windows: then nothing is known."""
    assert parse(raw) == found


def state(connection: object) -> SocketState:
    assert isinstance(connection, SocketConnection)
    found = connection.socket_state()
    assert found is not None
    return found


async def until(condition) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the state of Linux's sockets")
async def test_a_reader_that_stops_closes_the_window_and_fills_both_queues():
    """Not writable, peer's window 0, probes; when it reads again, everything arrives and the window opens."""
    network, ends = TcpNetwork(), []

    def accept() -> Watcher:
        ends.append(Watcher())
        return ends[-1]

    listener = await network.listen(accept, ("127.0.0.1", 0))
    sender = await network.connect(listener.address, Watcher(), timeout_s=LIMIT_S)
    await until(lambda: ends and ends[0].connection is not None)
    reader = ends[0].connection
    assert isinstance(reader, TcpConnection)
    assert state(sender).ports == state(reader).ports[::-1]
    assert state(reader).reading
    reader.pause_reading()
    chunk, sent = bytes(64 * 1024), 0
    while sender.writable:
        sender.send([chunk])
        sent += len(chunk)
        await asyncio.sleep(0)
    await until(lambda: state(sender).peer_window == 0 and state(sender).probes > 0)
    stopped, blocked = state(reader), state(sender)
    assert not stopped.reading
    assert stopped.receive_window == 0
    assert stopped.receive_queue > 0
    assert not blocked.writable
    assert blocked.send_queue > 64 * 1024
    assert blocked.limited_s > 0
    reader.resume_reading()
    await until(lambda: len(ends[0].received) == sent)
    await until(lambda: state(sender).send_queue == 0)
    assert state(sender).peer_window > 0
    sender.close()
    await until(lambda: sender.socket_state() is None)
    await listener.close()
