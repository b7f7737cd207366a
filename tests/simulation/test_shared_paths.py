"""A network fault that begins while another one lets nothing pass, in virtual time: measured when that has ended."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.agent import FaultAgent
from testbed_runtime.faults.backend import FaultRequest
from testbed_runtime.faults.registry import SIMULATION
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.simulation.network import RpcConditions, SimNetworkBackend
from testbed_runtime.transport.rpc_memory import Switchboard
from testbed_runtime.transport.simulated import SimulatedFabric


class Running:
    """A JobManager and two TaskManagers."""

    def names(self) -> list[str]:
        return ["jobmanager", "tm-0", "tm-1"]


class WithoutSecond(SimNetworkBackend):
    """Does nothing for the fault `second`."""

    async def apply(self, request: FaultRequest) -> float:
        if request.fault.name == "second":
            return asyncio.get_running_loop().time()
        return await super().apply(request)


async def nested(backend: type[SimNetworkBackend], first: str, second: str, plane: str) -> dict[str, Any]:
    """Begin two faults and end the first one. Return the row that says what was measured of the second one."""
    conditions = RpcConditions()
    switchboard = Switchboard(conditions.latency_s)
    running: Any = Running()
    network = backend(SimulatedFabric(random.Random(1)), switchboard, conditions, running)
    agent = FaultAgent({"proxy": network}, SIMULATION)
    for name, kind in (("first", first), ("second", second)):
        fault = Fault(name=name, kind=kind, at_s=0.0, duration_s=10.0, plane=plane)
        await agent.inject(fault, fault_id=name, targets=("tm-0",), lease_s=None)
    await asyncio.sleep(1.0)
    await agent.heal("first")
    await asyncio.sleep(3.0)
    rows = [item["row"] for item in agent.journal.since(0)]
    await agent.heal("second")
    await agent.close()
    return next(r for r in rows if r["fault"] == "second" and r["state"] in ("verified", "unverified"))


CASES = [
    ("network.partition", "network.partition", "both"),
    ("network.partition", "network.partition", "data"),
    ("network.stall", "network.partition", "data"),
    ("network.partition", "network.stall", "data"),
    ("network.half-open", "network.partition", "data"),
    ("network.reset", "network.partition", "data"),
    ("network.partition", "network.half-open", "data"),
]


@pytest.mark.parametrize(("first", "second", "plane"), CASES)
def test_a_silent_fault_within_another_one_is_verified_when_that_has_ended(
    first: str, second: str, plane: str
) -> None:
    """No connection that the first one reset or did not let be made is used for it."""
    found = run_virtual(nested(SimNetworkBackend, first, second, plane))
    assert found["state"] == "verified", found["text"]
    assert all(path["silent_for_s"] >= 0.8 for path in found["measured"]["paths"].values())


@pytest.mark.parametrize(("first", "second", "plane"), CASES)
def test_a_fault_within_another_one_that_does_nothing_is_unverified(
    first: str, second: str, plane: str
) -> None:
    """A probe is answered after the end of the first one, on every path."""
    found = run_virtual(nested(WithoutSecond, first, second, plane))
    assert found["state"] == "unverified"
    assert found["text"] == "a probe was answered"
    assert {path["connection"] for path in found["measured"]["paths"].values()} == {"open"}
