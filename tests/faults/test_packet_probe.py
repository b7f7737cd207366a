"""Probes of packets on loopback: what a busy process is late with is neither loss nor latency."""

from __future__ import annotations

import asyncio
import time

import pytest

from testbed_runtime.faults.packets import probe as packet_probe
from testbed_runtime.faults.packets.probe import Echo, Prober

HERE = "127.0.0.1"
STALLS_S, STALL_S = (0.05, 0.5, 0.9), 0.3


@pytest.fixture(autouse=True)
def _free_ports(monkeypatch):
    """A prober's own ports are fixed, and tests that run at the same time would take them from each other."""
    monkeypatch.setattr(packet_probe, "PROBE_PORTS", {"data": 0, "rpc": 0})


@pytest.fixture
async def echo():
    made = Echo()
    await made.start(HERE, 0)
    yield (HERE, made.port)
    made.close()


async def test_a_process_that_is_held_up_loses_no_probe(echo):
    """The echo and the prober stand still three times: every probe is answered, and the last one says so."""
    loop = asyncio.get_running_loop()
    for at in STALLS_S:
        loop.call_later(at, time.sleep, STALL_S)
    found = await Prober(HERE).series(echo, "data", count=2_000, every_s=0.0005)
    assert (found.sent, found.echoed, found.answered, found.fenced) == (2_000, 2_000, 2_000, True)
    assert found.overtaken == found.forward_duplicates == found.backward_duplicates == 0


async def test_probes_beside_the_rules_go_at_the_same_times(echo):
    """One beside each, and on a path without a rule they take as long."""
    found = await Prober(HERE).series(echo, "data", count=50, every_s=0.005)
    assert found.answered == len(found.beside_backward_s) == 50
    assert min(found.backward_s) == pytest.approx(min(found.beside_backward_s), abs=0.002)


async def test_a_series_without_answers_ends(monkeypatch):
    """All probes are lost, and no echo reports a count."""
    monkeypatch.setattr(packet_probe, "SILENT_S", 0.1)
    found = await Prober(HERE).series((HERE, 9), "rpc", count=100, every_s=0.001)
    assert (found.sent, found.answered, found.fenced) == (100, 0, False)


async def test_a_series_ends_when_stop_is_set(echo):
    """Probes that were sent before `stop` count."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, stop.set)
    found = await Prober(HERE).series(echo, "data", count=10_000, every_s=0.001, stop=stop)
    assert 0 < found.sent == found.answered < 10_000
