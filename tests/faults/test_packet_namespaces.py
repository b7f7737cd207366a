"""Packet faults on real packets: two agents in network namespaces that the test made. Root only."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import msgspec
import pytest

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.http import FaultClient
from testbed_runtime.faults.packets.commands import run
from testbed_runtime.faults.probes import ProbeConnection
from testbed_runtime.local import namespaces
from testbed_runtime.process.config import AgentConfig
from testbed_runtime.supervisor.child import Child
from tests.local.helpers import no_packets

pytestmark = pytest.mark.processes
READY_S, EFFECT_S = 20.0, 15.0
NAMES = ("tm-0", "tm-1")
ECHO = """
import asyncio, sys
from testbed_runtime.faults.probes import EchoServer
async def serve():
    await EchoServer().start(sys.argv[1], 6121)
    print('{"ready": {"port": 6121}}', flush=True)
    await asyncio.Event().wait()
asyncio.run(serve())
"""


@pytest.fixture(autouse=True, scope="module")
def _packets() -> None:
    if why := no_packets():
        pytest.skip(why)


@dataclass
class Agents:
    """Two agents, each with a client."""

    network: namespaces.LocalNetwork
    folder: object
    children: dict
    clients: dict

    async def launch(self, name):
        member = self.network.members[name]
        config = AgentConfig(
            name=name,
            bind=(member.address, 6132),
            ports=naming.PLANE_PORTS,
            address=member.address,
            hosts={n: m.address for n, m in self.network.members.items()},
            token_file=str(self.folder / "token"),
        )
        path = self.folder / f"{name}.json"
        path.write_bytes(msgspec.json.encode(config))
        child = self.children[name] = Child(name, 1, self.folder / f"{name}.log")
        await child.spawn((*member.prefix, sys.executable, "-m", "testbed_runtime.entry.agent", str(path)))
        await child.until_ready(READY_S)
        if name not in self.clients:
            self.clients[name] = FaultClient((member.address, 6132), "secret")

    async def inject(self, kind, duration_s=30.0, *, name="", direction="to", **params):
        fault = Fault(name or kind, kind, 0, duration_s, direction=direction, params=params)
        await self.clients["tm-0"].inject(fault, fault_id=fault.name, targets=["tm-0"], lease_s=None)

    async def row(self, *states, fault=""):
        """The first row of one of these states."""
        async with asyncio.timeout(EFFECT_S):
            while True:
                for item in await self.clients["tm-0"].journal(0):
                    if item["row"]["state"] in states and fault in ("", item["row"]["fault"]):
                        return item["row"]
                await asyncio.sleep(0.05)

    async def kernel(self, name):
        """Every rule in the mangle table and every table of nft, in that namespace."""
        prefix = self.network.members[name].prefix
        legacy = await run((*prefix, "iptables-legacy", "-t", "mangle", "-S"))
        tables = await run((*prefix, "nft", "list", "tables"))
        return f"{legacy.output}\n{tables.output}"

    async def serve_data_port(self, name):
        """An echo on the port that faults of the data plane hit."""
        member = self.network.members[name]
        child = self.children["echo"] = Child("echo", 1, self.folder / "echo.log")
        await child.spawn((*member.prefix, sys.executable, "-c", ECHO, member.address))
        await child.until_ready(READY_S)

    async def answers_on_data_port(self, name):
        """Whether a new connection gets one answer within two seconds."""
        probe = await ProbeConnection.open((self.network.members[name].address, 6121), timeout_s=2)
        try:
            return bool(await probe.round_trips(1, timeout_s=2))
        finally:
            probe.close()


@pytest.fixture
async def agents(tmp_path):
    (tmp_path / "token").write_text("secret")
    made = Agents(namespaces.create(NAMES), tmp_path, {}, {})
    try:
        for name in NAMES:
            await made.launch(name)
        yield made
    finally:
        for client in made.clients.values():
            await client.close()
        for child in made.children.values():
            await child.stop(5)
        namespaces.remove(made.network.id)


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("network.latency", {"latency_s": 0.02, "mode": "one-way"}),
        ("network.loss", {"percent": 5}),
        ("network.loss", {"percent": 10, "burst": 4}),
        ("network.reorder", {"percent": 10, "delay_s": 0.01}),
        ("network.corrupt", {"percent": 5}),
        ("network.partition", {}),
        ("network.half-open", {}),
    ],
)
async def test_what_is_asked_is_measured_and_leaves_nothing(agents, kind, params):
    """Verified within its tolerance by probes of its own, clean after the heal, nothing of it in the kernel."""
    before = await agents.kernel("tm-0")
    await agents.inject(kind, **params)
    row = await agents.row("verified", "unverified")
    assert row["state"] == "verified", (row["text"], row["measured"])
    await agents.clients["tm-0"].heal(kind)
    row = await agents.row("clean", "residue")
    assert row["state"] == "clean", (row["text"], row["measured"])
    assert await agents.clients["tm-0"].residue() == {}
    assert await agents.kernel("tm-0") == before


async def test_latency_is_exact_to_a_millisecond_over_two_hundred_probes(agents):
    """20 ms one way: the median of at least 200 probes is within ±1 ms."""
    await agents.inject("network.latency", latency_s=0.02, mode="one-way")
    (path,) = (await agents.row("verified"))["measured"]["paths"].values()
    assert path["probes"] >= 200
    assert abs(path["backward_added_s"] - 0.02) <= 0.001


async def test_loss_is_inside_the_interval_of_two_thousand_packets(agents):
    """5 %: inside Wilson's 99.99 % interval."""
    await agents.inject("network.loss", percent=5)
    (path,) = (await agents.row("verified"))["measured"]["paths"].values()
    low, high = path["backward_interval_percent"]
    assert path["backward_probes"] >= 2_000
    assert low <= 5 <= high


async def test_a_fault_ends_at_its_deadline(agents):
    """Without a call to heal it."""
    await agents.inject("network.latency", 1.0, latency_s=0.02, mode="one-way")
    assert (await agents.row("clean", "residue"))["state"] == "clean"
    assert await agents.clients["tm-0"].faults() == []


async def test_a_killed_agent_lets_traffic_flow_and_the_next_one_cleans_up(agents):
    """SIGKILL while everything is lost: packets pass at once (bypass); the next agent removes what the dead one left."""
    clean = await agents.kernel("tm-0")
    await agents.serve_data_port("tm-0")
    assert await agents.answers_on_data_port("tm-0")
    await agents.inject("network.loss", percent=100)
    assert not await agents.answers_on_data_port("tm-0")
    os.kill(agents.children["tm-0"].pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        await agents.children["tm-0"].exited.wait()
    assert await agents.answers_on_data_port("tm-0")
    left = await agents.kernel("tm-0")
    assert "--queue-bypass" in left
    await agents.launch("tm-0")
    assert await agents.kernel("tm-0") == clean


async def test_a_partition_of_a_killed_agent_ends_at_the_deadline(agents):
    """The kernel itself lets go of the ports; the next agent removes the empty table."""
    await agents.inject("network.partition", 2.0)
    os.kill(agents.children["tm-0"].pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        await agents.children["tm-0"].exited.wait()
    prefix = agents.network.members["tm-0"].prefix
    assert "headgate_" in (await run((*prefix, "nft", "list", "ruleset"))).output
    async with asyncio.timeout(10):
        while "6121" in (await run((*prefix, "nft", "list", "ruleset"))).output:
            await asyncio.sleep(0.1)
    await agents.launch("tm-0")
    assert "headgate_" not in (await run((*prefix, "nft", "list", "ruleset"))).output


async def test_overlapping_faults_are_composed_or_refused_by_name(agents):
    """Latency and loss hold together; a partition beside them is refused with both names."""
    await agents.inject("network.latency", name="slow", latency_s=0.02, mode="one-way")
    await agents.row("verified", fault="slow")
    await agents.inject("network.loss", name="lossy", percent=5)
    assert (await agents.row("verified", "unverified", fault="lossy"))["state"] == "verified"
    with pytest.raises((UserError, HeadgateError), match=r"cut .*overlap"):
        await agents.inject("network.partition", name="cut")
    await agents.clients["tm-0"].heal_all()
    assert await agents.clients["tm-0"].residue() == {}


async def test_without_the_token_nothing_is_changed(agents):
    """Every endpoint but /healthz wants it."""
    stranger = FaultClient((agents.network.members["tm-0"].address, 6132), "wrong")
    try:
        with pytest.raises(HeadgateError, match="token"):
            await stranger.heal_all()
    finally:
        await stranger.close()


def links() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


def test_networks_of_dead_owners_are_swept():
    """The next run (perhaps beside this test) removes a network whose creator is gone; others stay."""
    mine = namespaces.create(("tm-0",))
    code = "from testbed_runtime.local import namespaces; print(namespaces.create(('tm-0',)).id)"
    orphan = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        assert mine.id not in namespaces.sweep()
        assert f"hgb{mine.id}" in links()
        deadline = time.monotonic() + 30
        while f"hgb{orphan}" in links():
            assert time.monotonic() < deadline, "the orphan's bridge is still there"
            time.sleep(0.05)
    finally:
        namespaces.remove(mine.id)
        namespaces.remove(orphan)
