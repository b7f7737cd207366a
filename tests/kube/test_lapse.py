"""A fault whose packet agent died: what `KubeTestbed.heal` makes of it. The agent is the real one over HTTP, on a backend that touches no
packets (those need root: tests/faults/test_packet_namespaces.py); tests/kubernetes/test_runs.py kills the real container."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from testbed_runtime.api.compile import compile_testbed
from testbed_runtime.api.models import TestbedSpec
from testbed_runtime.core.errors import FaultLapsed, HeadgateError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.agent import FaultAgent
from testbed_runtime.faults.backend import FaultRequest, Measurement, Unreachable
from testbed_runtime.faults.http import fault_routes
from testbed_runtime.http import bad_input, serve
from testbed_runtime.kube.host import capabilities
from testbed_runtime.kube.testbed import KubeTestbed, TrialAccess
from testbed_runtime.ports.hosts import TrialContext
from testbed_runtime.ports.network import Address
from tests.entry.pods import SPEC
from tests.kube.unwatched import no_folder, unwatched

NO_ADDRESS = ("127.0.0.1", 1)
PACKETS = capabilities(packet_faults=True)
LOSS = Fault(
    name="loss", kind="network.loss", at_s=0.0, duration_s=30.0, direction="to", params={"percent": 5.0}
)


class NoPackets:
    """A backend with nothing to shape."""

    async def prepare(self, request: FaultRequest) -> None: ...

    async def apply(self, request: FaultRequest) -> float:
        return asyncio.get_running_loop().time()

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        return Measurement(True)

    async def remove(self, request: FaultRequest) -> None: ...

    async def check(self, request: FaultRequest) -> Measurement:
        return Measurement(True)

    async def residue(self) -> Mapping[str, Any]:
        return {}


class World:
    """A testbed and one agent. The agent keeps its port when it restarts; the address of its pod is `host`."""

    def __init__(self) -> None:
        self.agent = FaultAgent({}, PACKETS)
        self.runner: web.AppRunner | None = None
        self.host, self.port = "127.0.0.1", 0

    def address(self, process: str, port: int) -> Address:
        del process, port
        return self.host, self.port

    async def start(self) -> None:
        """Start an agent that knows no fault."""
        self.agent = FaultAgent({"nfqueue": NoPackets()}, PACKETS)
        app = web.Application(middlewares=[bad_input])
        app.add_routes(fault_routes(self.agent))
        # reachable at each address of its pods
        self.runner, (_, self.port) = await serve(app, ("0.0.0.0", self.port))

    async def die(self) -> None:
        """Stop the agent; its port is closed."""
        if self.runner is not None:
            await self.runner.cleanup()
        await self.agent.close()

    async def open(self) -> None:
        await self.start()
        access = TrialAccess("token", NO_ADDRESS, "", PACKETS, self.address)
        self.testbed = KubeTestbed(
            compile_testbed(TestbedSpec.model_validate(SPEC), seed=7),
            TrialContext("run", "main-1", 7),
            access,
            folder=no_folder(),
            **unwatched(),
        )
        self.testbed._agent_faults._fanout._outage_s = 0.5  # what an outage of 6 s would show, sooner

    async def inject(self, **changes: Any) -> None:
        fault = replace(LOSS, **changes)
        await self.testbed.inject(fault, fault_id="main-1/loss", targets=("tm-0",), lease_s=10.0)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    await made.open()
    try:
        yield made
    finally:
        await made.testbed.close()
        await made.die()


async def restarted(world: World) -> None:
    await world.die()
    await world.start()


async def silent(world: World) -> None:
    await world.die()


async def replaced(world: World) -> None:
    """The next pod of the process has its own address, and an agent that knows no fault."""
    await world.die()
    world.host = "127.0.0.2"
    await world.start()


async def test_a_fault_that_was_held_until_its_end_is_healed_without_an_error():
    """The agent's journal has its end."""
    async with world() as made:
        await made.inject()
        await made.testbed.heal("main-1/loss")
        assert made.agent.active() == []
        assert [r["row"]["state"] for r in made.agent.journal.since(0)][-2:] == ["ended", "clean"]


@pytest.mark.parametrize("rule", ["Expire", "Reapply"])
@pytest.mark.parametrize("died", [restarted, silent])
async def test_an_agent_that_died_in_its_pod_is_a_lapse_at_the_end(
    died: Callable[[World], Awaitable[None]], rule: str
):
    """Also before the deadline, when the job ended early, and for a fault that should have been reapplied."""
    async with world() as made:
        await made.inject(on_target_restart=rule)
        await died(made)
        with pytest.raises(FaultLapsed, match="tm-0/packets died while it held the fault"):
            await made.testbed.heal("main-1/loss")


@pytest.mark.parametrize("rule", ["Expire", "Reapply", "Fail"])
async def test_a_replaced_pod_is_no_lapse(rule: str):
    """The target restarted with its agent, also if no renewal found that before the end."""
    async with world() as made:
        await made.inject(on_target_restart=rule)
        await replaced(made)
        await made.testbed.heal("main-1/loss")
        assert made.agent.journal.since(0) == [], "nothing was injected in the new pod"


async def test_a_fault_expires_with_its_pod():
    """The renewal drops the part: the end needs no answer from the new pod's agent."""
    async with world() as made:
        await made.inject()
        await replaced(made)
        await made.testbed.renew("main-1/loss")
        assert made.agent.journal.since(0) == []
        await silent(made)
        await made.testbed.heal("main-1/loss")


async def test_a_fault_is_applied_again_in_a_replaced_pod():
    """The new pod holds it for the time that remains, and until its end."""
    async with world() as made:
        await made.inject(on_target_restart="Reapply")
        await replaced(made)
        await made.testbed.renew("main-1/loss")
        (held,) = made.agent.active()
        assert 0 < held["remaining_s"] <= LOSS.duration_s
        await made.testbed.heal("main-1/loss")
        assert made.agent.active() == []


async def test_a_fault_fails_with_its_pod():
    """`onTargetRestart: Fail` names the process, and is still no lapse at the end."""
    async with world() as made:
        await made.inject(on_target_restart="Fail")
        await replaced(made)
        with pytest.raises(HeadgateError, match="the pod of tm-0 was replaced while the fault was active"):
            await made.testbed.renew("main-1/loss")
        await made.testbed.heal("main-1/loss")


async def test_an_unreachable_agent_of_a_replaced_pod_is_an_error_before_the_deadline():
    """It is unknown whether that part ended."""
    async with world() as made:
        await made.inject()
        await replaced(made)
        await silent(made)
        with pytest.raises(Unreachable):
            await made.testbed.heal("main-1/loss")
