"""A fault whose packet agent died: what `KubeTestbed.heal` makes of what the agents say at its end. Real HTTP, agents that forget."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from testbed_runtime.core.errors import FaultLapsed
from testbed_runtime.faults.http import Unreachable, serve
from testbed_runtime.faults.model import Fault
from testbed_runtime.kube.host import capabilities
from testbed_runtime.kube.testbed import KubeTestbed, Place
from testbed_runtime.ports.hosts import TrialContext
from testbed_runtime.spec.models import TestbedSpec
from tests.entry.pods import SPEC

NOBODY = ("127.0.0.1", 1)
LOSS = Fault(
    name="loss", kind="network.loss", at_s=0.0, duration_s=30.0, direction="to", params={"percent": 5.0}
)


@dataclass
class Agent:
    """The calls that an injection and its end are made of; `forgets` is what a restart does to it."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    healed: list[str] = field(default_factory=list)

    def forgets(self) -> None:
        self.rows.clear()

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/faults", self._inject)
        app.router.add_delete("/v1/faults", self._heal)
        app.router.add_get("/v1/journal", self._journal)
        return app

    async def _inject(self, request: web.Request) -> web.Response:
        asked = await request.json()
        row = {"fault": LOSS.name, "state": "injected"}
        self.rows.append({"number": len(self.rows), "table": "faults", "row": row})
        handle = {"fault": asked["fault_id"], "backend": "nfqueue", "why": "", "targets": ["tm-0"]}
        return web.json_response(handle)

    async def _heal(self, request: web.Request) -> web.Response:
        self.healed.append((await request.json())["fault_id"])
        return web.json_response({})

    async def _journal(self, request: web.Request) -> web.Response:
        return web.json_response({"rows": self.rows})


@dataclass
class World:
    agent: Agent
    testbed: KubeTestbed
    runner: web.AppRunner

    async def inject(self, **changes: Any) -> None:
        fault = Fault(**{f: getattr(LOSS, f) for f in LOSS.__dataclass_fields__} | changes)
        await self.testbed.inject(fault, fault_id="main-1/loss", targets=("tm-0",), lease_s=10.0)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    agent = Agent()
    runner, address = await serve(agent.application(), ("127.0.0.1", 0))
    place = Place(
        "lab", "bench", "token", NOBODY, "", capabilities(packet_faults=True), lambda process, port: address
    )
    testbed = KubeTestbed(TestbedSpec.model_validate(SPEC), TrialContext("run", "main-1", 7), place)
    testbed._fanout._outage_s = 0.5  # what an outage of 6 s would show, sooner
    made = World(agent, testbed, runner)
    try:
        yield made
    finally:
        await testbed.close()
        await runner.cleanup()


async def restarted(world: World) -> None:
    world.agent.forgets()


async def silent(world: World) -> None:
    """Nobody listens there any more."""
    await world.runner.cleanup()


async def test_a_fault_that_was_held_to_its_end_is_ended_and_that_is_all():
    """The agent's journal knows of it."""
    async with world() as made:
        await made.inject()
        await made.testbed.heal("main-1/loss")
        assert made.agent.healed == ["main-1/loss"]


@pytest.mark.parametrize("rule", ["Expire", "Reapply"])
@pytest.mark.parametrize("died", [restarted, silent])
async def test_an_agent_that_died_in_its_pod_is_a_lapse_at_the_end(
    died: Callable[[World], Awaitable[None]], rule: str
):
    """Also before the deadline, when the job ended early; what should have been put back and was not, too."""
    async with world() as made:
        await made.inject(on_target_restart=rule)
        await died(made)
        with pytest.raises(FaultLapsed, match="tm-0/packets died while it held the fault"):
            await made.testbed.heal("main-1/loss")


async def test_a_pod_that_is_another_one_now_is_no_lapse():
    """Its address changed: that is what a killed pod does, and `onTargetRestart` decides on it."""
    async with world() as made:
        await made.inject()
        made.agent.forgets()
        made.testbed._injected["main-1/loss"].pods.update(
            dict.fromkeys(made.testbed._injected["main-1/loss"].pods, "127.0.0.9")
        )
        await made.testbed.heal("main-1/loss")


async def test_an_agent_of_another_pod_that_is_silent_before_the_deadline_is_told():
    """Nobody knows whether that part ended."""
    async with world() as made:
        await made.inject()
        made.testbed._injected["main-1/loss"].pods.clear()
        await silent(made)
        with pytest.raises(Unreachable):
            await made.testbed.heal("main-1/loss")
