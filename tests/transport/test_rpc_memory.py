"""The in-memory Rpc: the common conformance, and what only a switchboard can do."""

from __future__ import annotations

import asyncio

import pytest

from testbed_runtime.core.job.messages import Acknowledge, CancelTask
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from tests.transport.rpc_conformance import RpcConformance


class TestMemoryRpc(RpcConformance):
    """MemoryRpc keeps what Rpc promises."""

    @pytest.fixture
    async def make_rpc(self):
        switchboard = Switchboard()
        made = []

        async def make(name, **options):
            rpc = MemoryRpc(name, switchboard, **options)
            await rpc.start()
            made.append(rpc)
            return rpc

        yield make
        for rpc in made:
            await rpc.close()


async def _pair(switchboard):
    a, b = MemoryRpc("a", switchboard), MemoryRpc("b", switchboard)
    seen = []

    async def handle(message):
        seen.append(message.attempt)
        return Acknowledge()

    for rpc in (a, b):
        await rpc.start()
    b.serve("taskexecutor", {CancelTask: handle})
    return a, b, seen


async def test_a_message_is_passed_on_as_it_is():
    """It is not encoded: the receiver gets the same object, and what is no message is refused as over HTTP."""
    switchboard = Switchboard()
    a, b, _ = await _pair(switchboard)
    got, message = [], CancelTask("1", "")

    async def keep(received):
        got.append(received)
        return Acknowledge()

    b.serve("other", {CancelTask: keep})
    await a.ask("b", b.address, "other", message, timeout_s=5)
    with pytest.raises(TypeError, match="dict is not a message"):
        await a.ask("b", b.address, "other", {"attempt": "1"}, timeout_s=5)
    assert got[0] is message
    await a.close()
    await b.close()


async def test_a_shrinking_latency_does_not_let_messages_overtake():
    """FIFO per link, whatever the latency that was drawn."""
    latencies = iter([0.03, 0.001, 0.0] + [0.0] * 10)
    a, b, seen = await _pair(Switchboard(lambda source, destination: next(latencies)))
    async with asyncio.TaskGroup() as group:
        for n in range(3):
            group.create_task(a.ask("b", b.address, "taskexecutor", CancelTask(str(n), ""), timeout_s=5))
    assert seen == ["0", "1", "2"]
    await a.close()
    await b.close()


async def test_a_paused_process_gets_its_messages_when_it_resumes():
    """It behaves like a stopped process: asks time out, nothing is lost, the order is kept."""
    switchboard = Switchboard(lambda source, destination: 0.001)
    a, b, seen = await _pair(switchboard)
    switchboard.pause("b")
    for n in range(2):
        with pytest.raises(AskTimeout):
            await a.ask("b", b.address, "taskexecutor", CancelTask(str(n), ""), timeout_s=0.01)
    assert seen == []
    switchboard.resume("b")
    await a.ask("b", b.address, "taskexecutor", CancelTask("2", ""), timeout_s=5)
    assert seen == ["0", "1", "2"]
    await a.close()
    await b.close()


async def test_an_address_in_use_is_refused():
    """Two processes cannot listen on one port."""
    switchboard = Switchboard()
    a = MemoryRpc("a", switchboard)
    await a.start()
    with pytest.raises(OSError, match="in use"):
        await MemoryRpc("b", switchboard, address=a.address).start()
    await a.close()


async def test_a_blocked_link_hides_that_a_process_is_gone():
    """An ask is refused only when the link passes bytes again, as if the machine were lost. Those before are never answered."""
    blocked = False
    switchboard = Switchboard(lambda source, destination: None if blocked else 0.001)
    a, b, _ = await _pair(switchboard)
    blocked = True
    waits = asyncio.create_task(a.ask("b", b.address, "taskexecutor", CancelTask("0", ""), timeout_s=0.2))
    await asyncio.sleep(0)
    await b.close()
    late = asyncio.create_task(a.ask("b", b.address, "taskexecutor", CancelTask("1", ""), timeout_s=0.2))
    await asyncio.sleep(0)
    blocked = False
    switchboard.release()
    with pytest.raises(RecipientUnreachable):
        await a.ask("b", b.address, "taskexecutor", CancelTask("2", ""), timeout_s=5)
    for ask in (waits, late):
        with pytest.raises(AskTimeout):
            await ask
    await a.close()


@pytest.mark.parametrize("lost", [True, False])
def test_the_end_of_another_fault_changes_nothing_for_a_link(lost):
    """TCP still sends later what a partition of the link has lost, and a stall of another link holds its messages until its end."""

    async def main():
        blocked = {"a", "c"}
        switchboard = Switchboard(lambda source, destination: None if source in blocked else 0.001)
        a, b, seen = await _pair(switchboard)
        c = MemoryRpc("c", switchboard)
        await c.start()
        loop = asyncio.get_running_loop()
        began = loop.time()
        asks = [
            loop.create_task(rpc.ask("b", b.address, "taskexecutor", CancelTask(rpc.name, ""), timeout_s=50))
            for rpc in (a, c)
        ]
        await asyncio.sleep(10)
        blocked.discard("a")
        switchboard.release(lost=[("a", "b")])
        await asyncio.sleep(1)
        switchboard.release(lost=[("d", "b")] if lost else ())
        await asyncio.sleep(1)
        assert seen == []
        blocked.discard("c")
        switchboard.release()
        await asks[1]
        assert (seen, loop.time() - began) == (["c"], pytest.approx(12, abs=0.01))
        await asks[0]
        assert (seen, loop.time() - began) == (["c", "a"], pytest.approx(13.44, abs=0.01))

    run_virtual(main())
