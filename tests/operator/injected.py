"""A Fault with its Testbed and its pods, as the operator's plan observes them."""

from __future__ import annotations

from typing import Any

from headgate_operator.agents import View
from headgate_operator.plan import fault as planner
from headgate_operator.plan.conditions import moment
from headgate_operator.plan.faulttarget import TestbedState
from headgate_operator.plan.model import Plan
from testbed_runtime.api import naming
from testbed_runtime.api.status import FaultStatus, to_json
from testbed_runtime.api.views import Fault, Pod, Testbed
from testbed_runtime.faults.fanout import Agent
from tests.operator.actors import a_fault
from tests.operator.test_scenario_study import NOW, SETTINGS
from tests.operator.world import a_testbed

UID = "0123456789"
NAMES = ("tm-0", "tm-1", "tm-2")
Obj = dict[str, Any]
TM0, TM1 = Agent("tm-0"), Agent("tm-1")
BOTH = {"taskManagers": {"names": ["tm-0", "tm-1"]}}
CLEAN = View(
    rows=({"state": "injected"}, {"state": "verified", "measured": {"paused": True}}, {"state": "clean"})
)
HELD = View(active={"id": "f", "remaining_s": 4.0}, rows=({"state": "injected"},))


def a_pod(name: str, uid: str = "", **metadata: Any) -> Pod:
    """A pod of the Testbed `bench`."""
    given = {"name": f"bench-{name}", "namespace": "lab", "uid": uid or f"{name}-uid"}
    return Pod({"metadata": {**given, "ownerReferences": [{"uid": "bench-uid"}], **metadata}})


def bench(
    *, ready: bool = True, pods: dict[str, Pod] | None = None, options: Obj | None = None, **more: Any
) -> TestbedState:
    """A Testbed of three TaskManagers whose `spec.pods` has these options."""
    found = a_testbed(pods=options or {})
    found["metadata"]["uid"] = "bench-uid"
    condition = {"type": "Ready", "status": "True" if ready else "False", "reason": "R", "message": ""}
    found["status"] = {"conditions": [condition]}
    there = {name: a_pod(name) for name in NAMES} if pods is None else pods
    return TestbedState(Testbed(found), pods=there, **more)


def made(status: FaultStatus | Obj | None = None, *, age_s: float = 0.0, **spec: Any) -> Obj:
    """A Fault `slow` that pauses tm-0 for 10 s, as old as that, with the finalizer."""
    found = a_fault(**spec)
    found["metadata"] |= {
        "uid": UID, "generation": 2, "creationTimestamp": moment(NOW - age_s), "finalizers": ["other", naming.FINALIZER],
    }  # fmt: skip
    if status is not None:
        found["status"] = to_json(status) if isinstance(status, FaultStatus) else status
    return found


def look(raw: Obj, testbed: TestbedState | None = None, *, now: float = NOW, **more: Any) -> Plan:
    return planner.plan(planner.Observed(Fault(raw), testbed, **more), SETTINGS, now)


def planned(now: float = NOW, **spec: Any) -> Obj:
    """The same Fault with its plan in the status."""
    found = look(made(**spec), bench(), now=now)
    assert isinstance(found.status, FaultStatus)
    return made(found.status, **spec)


def active(**spec: Any) -> Obj:
    """The same Fault after an agent began it, 1 s after NOW."""
    found = look(planned(**spec), bench(), now=NOW + 1, views={TM0: HELD, TM1: HELD})
    assert isinstance(found.status, FaultStatus)
    assert found.status.phase == "Active"
    return made(found.status, **spec)


def status_of(plan: Plan) -> FaultStatus:
    assert isinstance(plan.status, FaultStatus)
    return plan.status
