"""The simulated network's own: latency, bandwidth, partition, stall, reset, all in virtual time."""

from __future__ import annotations

import asyncio
import random
import selectors

import pytest

from testbed_runtime.transport.links import LinkProfile
from testbed_runtime.transport.simulated import SimulatedFabric
from testbed_runtime.transport.simulatedconnection import WINDOW_BYTES
from tests.transport.conformance import LIMIT_S, Pair, Watcher


class _NoWait(selectors.SelectSelector):
    """Never waits: the loop's time moves instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        if timeout is not None and timeout > 0:
            self._loop.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_NoWait(self))

    def time(self) -> float:
        return self.now


def virtually(main) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


async def opened(fabric: SimulatedFabric) -> Pair:
    return await Pair(fabric.network("tm-0"), fabric.network("tm-1")).open()


def test_latency_is_exact_per_direction() -> None:
    """Fifty milliseconds one way are fifty, and none the other way."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1), LinkProfile(latency_s=0.0))
        pair = await opened(fabric)
        fabric.shape("tm-1", "tm-0", LinkProfile(latency_s=0.05))
        loop = asyncio.get_running_loop()
        start = loop.time()
        pair.client.connection.send([b"ping"])
        await pair.server.until(lambda: pair.server.received == b"ping")
        assert loop.time() - start == pytest.approx(0.05)
        pair.server.connection.send([b"pong"])
        await pair.client.until(lambda: pair.client.received == b"pong")
        assert loop.time() - start == pytest.approx(0.05)
        await pair.close()

    virtually(main)


def test_bandwidth_is_a_ceiling() -> None:
    """A megabyte at 1 MB/s takes a second."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1), LinkProfile(latency_s=0.0))
        fabric.shape("tm-1", "tm-0", LinkProfile(latency_s=0.0, bandwidth_bytes_per_s=1e6))
        pair = await opened(fabric)
        start = asyncio.get_running_loop().time()
        for _ in range(100):
            pair.client.connection.send([bytes(10_000)])
        await pair.server.until(lambda: len(pair.server.received) == 1_000_000)
        assert asyncio.get_running_loop().time() - start == pytest.approx(1.0, rel=0.01)
        await pair.close()

    virtually(main)


def test_what_a_bandwidth_held_up_arrives_when_it_ends() -> None:
    """10 KB at 1 KB/s take 10 s. After 2 s the limit is gone, and the rest has only the latency before it; so has what follows."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1), LinkProfile(latency_s=0.1))
        fabric.shape("tm-1", "tm-0", LinkProfile(latency_s=0.1, bandwidth_bytes_per_s=1e3))
        pair = await opened(fabric)
        loop = asyncio.get_running_loop()
        start = loop.time()
        for _ in range(10):
            pair.client.connection.send([bytes(1000)])
        await pair.server.until(lambda: len(pair.server.received) == 2000)
        await asyncio.sleep(start + 2.5 - loop.time())
        fabric.shape("tm-1", "tm-0", None)
        pair.client.connection.send([b"after"])
        await pair.server.until(lambda: len(pair.server.received) == 10_005)
        assert loop.time() - start == pytest.approx(2.6, abs=0.01)
        assert pair.server.received.endswith(b"after")
        await pair.close()

    virtually(main)


def test_jitter_is_seeded_and_keeps_the_order() -> None:
    """The same seed gives the same arrivals; nothing overtakes."""

    def arrivals(seed: int) -> list[float]:
        times: list[float] = []

        async def main() -> None:
            fabric = SimulatedFabric(random.Random(seed))
            fabric.shape("tm-1", "tm-0", LinkProfile(latency_s=0.05, jitter_s=0.04))
            pair = await opened(fabric)
            loop = asyncio.get_running_loop()
            pair.server.on_data_hook = lambda _: times.append(loop.time())
            for i in range(50):
                pair.client.connection.send([bytes([i])])
                await asyncio.sleep(0.001)
            await pair.server.until(lambda: len(pair.server.received) == 50)
            assert pair.server.received == bytes(range(50))
            await pair.close()

        virtually(main)
        return times

    assert arrivals(3) == arrivals(3)
    assert arrivals(3) != arrivals(4)


@pytest.mark.parametrize(("fault", "late_s"), [("lost", 107.52 - 100), ("stalled", 0.0)])
def test_what_is_held_arrives_in_order_when_it_ends(fault: str, late_s: float) -> None:
    """The connection stays, nothing passes, nothing is lost. What a partition has lost arrives when TCP sends it again."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1))
        pair = await opened(fabric)
        fabric.hold("tm-1", "tm-0", **{fault: True})
        for i in range(20):
            pair.client.connection.send([bytes([i]) * 10])
        pair.server.connection.send([b"the other way passes"])
        await pair.client.until(lambda: pair.client.received == b"the other way passes")
        await asyncio.sleep(100)
        assert pair.server.received == b""
        assert not pair.server.closed
        fabric.hold("tm-1", "tm-0")
        ended = asyncio.get_running_loop().time()
        await pair.server.until(lambda: len(pair.server.received) == 200)
        assert asyncio.get_running_loop().time() - ended == pytest.approx(late_s, abs=0.01)
        assert pair.server.received == b"".join(bytes([i]) * 10 for i in range(20))
        await pair.close()

    virtually(main)


def test_a_partition_holds_up_new_connections_until_their_time_limit_or_its_end() -> None:
    """A connect waits; a stall accepts."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1))
        pair = await opened(fabric)
        fabric.hold("tm-0", "tm-1", lost=True)
        with pytest.raises(TimeoutError):
            await pair.connecting.connect(pair.address, Watcher(), timeout_s=2.0)
        pair.server.connection = None
        task = asyncio.create_task(pair.connecting.connect(pair.address, Watcher(), timeout_s=LIMIT_S))
        await asyncio.sleep(1)
        assert not task.done()
        await asyncio.sleep(0.5)
        fabric.hold("tm-0", "tm-1")
        ended = asyncio.get_running_loop().time()
        (await task).abort()
        assert asyncio.get_running_loop().time() - ended == pytest.approx(0.5, abs=0.01), "the next handshake"
        await pair.close()

    virtually(main)


def test_a_reset_ends_both_ends_and_refusing_keeps_others_out() -> None:
    """Connection reset by peer, on both sides, until it is healed."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1))
        pair = await opened(fabric)
        fabric.hold("tm-0", "tm-1", refused=True)
        for end in (pair.client, pair.server):
            await end.until(lambda end=end: bool(end.closed))
            assert isinstance(end.closed[0], ConnectionResetError)
        with pytest.raises(ConnectionResetError):
            await pair.connecting.connect(pair.address, Watcher(), timeout_s=1.0)
        fabric.hold("tm-0", "tm-1")
        pair.server.connection = None
        (await pair.connecting.connect(pair.address, Watcher(), timeout_s=1.0)).abort()
        await pair.close()

    virtually(main)


def test_an_end_that_is_gone_is_reset_at_once_and_the_other_when_the_fault_ends() -> None:
    """As with the proxy: the peer is not notified meanwhile, and what it sent is lost."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1))
        pair = await opened(fabric)
        fabric.hold("tm-1", "tm-0", lost=True, gone=True)
        fabric.hold("tm-0", "tm-1", lost=True)
        await pair.client.until(lambda: bool(pair.client.closed))
        assert isinstance(pair.client.closed[0], ConnectionResetError)
        with pytest.raises(ConnectionResetError):
            await pair.connecting.connect(pair.address, Watcher(), timeout_s=1.0)
        pair.server.connection.send([b"anybody there?"])
        await asyncio.sleep(10)
        assert not pair.server.closed
        fabric.hold("tm-1", "tm-0")
        fabric.hold("tm-0", "tm-1")
        await pair.server.until(lambda: bool(pair.server.closed))
        assert isinstance(pair.server.closed[0], ConnectionResetError)
        assert not pair.client.received
        await pair.close()

    virtually(main)


@pytest.mark.parametrize("unread", [False, True])
def test_a_killed_process_takes_its_listeners_and_connections_along(unread: bool) -> None:
    """Its peers see the end of the stream, as with a kernel: a reset only if it had unread data. Its port refuses connections."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1))
        pair = await opened(fabric)
        if unread:
            pair.server.connection.pause_reading()
        pair.client.connection.send([b"data"])
        await asyncio.sleep(1)
        fabric.kill("tm-0")
        await pair.client.until(lambda: bool(pair.client.closed))
        assert isinstance(pair.client.closed[0], ConnectionResetError) == unread
        assert pair.server.closed == []
        with pytest.raises(ConnectionRefusedError):
            await pair.connecting.connect(pair.address, Watcher(), timeout_s=1.0)

    virtually(main)


def test_a_handler_may_close_the_connection_while_frames_are_handed_over() -> None:
    """As a producer does at its consumer's CloseRequest: both ends close, and nothing is raised."""

    class Closing(Watcher):
        def on_frames(self, frames: list[str]) -> int:
            self.received += "".join(frames).encode()
            self.connection.close()
            return len(frames)

    async def main() -> None:
        raised: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        fabric = SimulatedFabric(random.Random(1))
        pair = Pair(fabric.network("tm-0"), fabric.network("tm-1"))
        pair.server = Closing()
        await pair.open()
        for frame in ("first", "second"):
            pair.client.connection.send_frame(frame, 10)
        await pair.client.until(lambda: bool(pair.client.closed))
        await pair.server.until(lambda: bool(pair.server.closed))
        assert pair.server.received == b"firstsecond"
        assert raised == []

    virtually(main)


@pytest.mark.parametrize(
    "profile",
    [LinkProfile(), LinkProfile(bandwidth_bytes_per_s=1000.0), LinkProfile(jitter_s=0.01)],
    ids=["latency", "bandwidth", "jitter"],
)
def test_frames_that_leave_together_arrive_as_if_each_left_alone(profile: LinkProfile) -> None:
    """At the same times, in the same order, and they take the same room in the window until they are read."""
    frames = [("first", 100), ("second", 20), ("third", 3)]

    class Timed(Watcher):
        def __init__(self) -> None:
            super().__init__()
            self.arrived: list[tuple[float, str]] = []

        def on_frames(self, frames: list[str]) -> int:
            self.arrived += [(asyncio.get_running_loop().time(), frame) for frame in frames]
            self.changed.set()
            return len(frames)

    async def arrivals(*, together: bool) -> list[tuple[float, str]]:
        pair = Pair(*map(SimulatedFabric(random.Random(1), profile).network, ("tm-0", "tm-1")))
        pair.server = timed = Timed()
        await pair.open()
        connection = pair.client.connection
        room = connection.room
        if together:
            connection.send_frames(frames, 123)
        else:
            for frame, size in frames:
                connection.send_frame(frame, size)
        assert connection.room == room - 123
        await timed.until(lambda: len(timed.arrived) == len(frames))
        await asyncio.sleep(0)
        assert connection.room == room
        return timed.arrived

    async def main() -> None:
        began = asyncio.get_running_loop().time()
        alone, apart = await arrivals(together=False), asyncio.get_running_loop().time() - began
        assert await arrivals(together=True) == [
            (pytest.approx(time + apart, abs=1e-9), frame) for time, frame in alone
        ]

    virtually(main)


def test_there_is_no_room_for_frames_together_while_one_waits_or_costs_time() -> None:
    """They have to be sent one by one then: each may have to wait."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1))
        pair = await opened(fabric)
        connection = pair.client.connection
        assert connection.room == WINDOW_BYTES
        fabric.send_cost = lambda sender, receiver, frame: 0.0
        assert connection.room == 0
        fabric.send_cost = None
        connection.send_frame("large", WINDOW_BYTES - 1)
        assert connection.room == 1
        connection.send_frame("waits", 2)
        assert connection.room == 0

    virtually(main)
