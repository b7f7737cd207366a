"""Pauses and deaths of logical processes on the simulated network and on the Switchboard."""

from __future__ import annotations

import asyncio
import random

import pytest

from testbed_runtime.core.job.messages import Acknowledge, CancelTask
from testbed_runtime.ports.rpc import AskTimeout
from testbed_runtime.simulation.loop import run_virtual, spawn
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from testbed_runtime.transport.simulated import SimulatedFabric
from tests.simulation.simulating import virtual_loop
from tests.transport.conformance import LIMIT_S, Watcher


async def _connected(fabric: SimulatedFabric) -> tuple[Watcher, Watcher]:
    """A connection from the process `tm-0` to the process `tm-1`: (client, server)."""
    client, server = Watcher(), Watcher()
    listener = await spawn("tm-1", fabric.network("tm-1").listen(lambda: server, ("", 0)), name="listen")
    connecting = fabric.network("tm-0").connect(listener.address, client, timeout_s=LIMIT_S)
    await spawn("tm-0", connecting, name="connect")
    await server.until(lambda: server.connection is not None)
    return client, server


def test_a_paused_process_reads_nothing_and_its_peer_feels_it() -> None:
    """The window fills and the sender is not writable any more; on resume everything comes in order."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1))
        client, server = await _connected(fabric)
        assert client.connection is not None
        virtual_loop().pause("tm-1")
        for i in range(40):
            client.connection.send([bytes([i]) * 16_384])
        await asyncio.sleep(5)
        assert server.received == b""
        assert not client.connection.writable
        virtual_loop().resume("tm-1")
        await server.until(lambda: len(server.received) == 40 * 16_384)
        assert server.received == b"".join(bytes([i]) * 16_384 for i in range(40))

    run_virtual(main())


def test_what_a_process_sent_before_it_was_paused_still_arrives() -> None:
    """It is the kernel's by then."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1))
        client, server = await _connected(fabric)
        assert client.connection is not None
        sent = asyncio.Event()
        client.connection.send([b"before"], sent.set)
        await sent.wait()
        virtual_loop().pause("tm-0")
        await server.until(lambda: server.received == b"before")

    run_virtual(main())


def test_a_killed_process_hears_nothing_of_its_own_end() -> None:
    """Its handler is not called again, its peer sees the end of the stream after what was under way."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1))
        client, server = await _connected(fabric)
        assert client.connection is not None
        sent = asyncio.Event()
        client.connection.send([b"last"], sent.set)
        await sent.wait()
        virtual_loop().kill("tm-0")
        fabric.kill("tm-0")
        await server.until(lambda: bool(server.closed))
        assert server.received == b"last"
        assert server.closed == [None]
        assert client.closed == []

    run_virtual(main())


def test_a_death_behind_a_partition_is_heard_of_when_it_ends() -> None:
    """The end of the stream does not pass either."""

    async def main() -> None:
        fabric = SimulatedFabric(random.Random(1))
        _, server = await _connected(fabric)
        fabric.hold("tm-0", "tm-1", lost=True)
        virtual_loop().kill("tm-0")
        fabric.kill("tm-0")
        await asyncio.sleep(20)
        assert server.closed == []
        fabric.hold("tm-0", "tm-1")
        await server.until(lambda: bool(server.closed))

    run_virtual(main())


async def _serving(name: str, switchboard: Switchboard, seen: list[str]) -> MemoryRpc:
    rpc = MemoryRpc(name, switchboard)

    async def handle(message: CancelTask) -> Acknowledge:
        seen.append(message.attempt)
        return Acknowledge()

    await rpc.start()
    rpc.serve("taskexecutor", {CancelTask: handle})
    return rpc


def test_the_next_incarnation_does_not_get_the_messages_of_the_dead() -> None:
    """Messages on their way are lost with the process, and later ones reach only the next process."""

    async def main() -> None:
        switchboard = Switchboard(lambda source, destination: 0.01)
        asking = MemoryRpc("a", switchboard)
        await asking.start()
        old: list[str] = []
        new: list[str] = []
        first = await spawn("b-1", _serving("b", switchboard, old), name="first")
        lost = virtual_loop().create_task(
            asking.ask("b", first.address, "taskexecutor", CancelTask("1", ""), timeout_s=5)
        )
        await asyncio.sleep(0.001)
        virtual_loop().kill("b-1")
        switchboard.detach(first.address)
        second = await spawn("b-2", _serving("b", switchboard, new), name="second")
        for number in ("2", "3"):
            await asking.ask("b", second.address, "taskexecutor", CancelTask(number, ""), timeout_s=5)
        assert (old, new) == ([], ["2", "3"])
        assert isinstance((await asyncio.gather(lost, return_exceptions=True))[0], AskTimeout)

    run_virtual(main())


@pytest.mark.parametrize(("lost", "arrived_s"), [(True, 26.88), (False, 20.0)])
def test_messages_on_a_link_that_passes_nothing_wait_for_its_end(lost: bool, arrived_s: float) -> None:
    """As over TCP: late, in order, none lost. What a partition has lost is sent again later."""

    async def main() -> None:
        passing = False
        switchboard = Switchboard(lambda source, destination: 0.001 if passing else None)
        asking = MemoryRpc("a", switchboard)
        await asking.start()
        seen: list[str] = []
        there = await spawn("b", _serving("b", switchboard, seen), name="b")
        asks = [
            virtual_loop().create_task(
                asking.ask("b", there.address, "taskexecutor", CancelTask(str(n), ""), timeout_s=50)
            )
            for n in range(3)
        ]
        await asyncio.sleep(20)
        began = virtual_loop().time() - 20
        assert seen == []
        passing = True
        switchboard.release(lost=[("a", "b")] if lost else ())
        switchboard.release()  # another fault ends at the same time
        await asyncio.gather(*asks)
        assert seen == ["0", "1", "2"]
        assert virtual_loop().time() - began == pytest.approx(arrived_s, abs=0.01)

    run_virtual(main())
