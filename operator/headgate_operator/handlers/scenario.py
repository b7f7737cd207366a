"""Scenario: looked at, never acted on."""

from __future__ import annotations

from headgate_operator.handler import Context, Handler
from headgate_operator.plan import scenario as planner
from headgate_operator.plan.model import Ask, Key, Plan
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.core.errors import LocalProtocolError


class ScenarioHandler:
    kind = "Scenario"

    async def observe(self, context: Context, key: Key) -> planner.Observed | None:
        obj = await context.cluster.get(naming.API_VERSION, key.kind, key.namespace, key.name)
        return None if obj is None else planner.Observed(obj)

    def plan(self, observed: planner.Observed, settings: Settings, now: float) -> Plan:
        return planner.plan(observed, settings, now)

    async def ask(self, context: Context, observed: planner.Observed, ask: Ask) -> None:
        raise LocalProtocolError(f"a Scenario asks nothing of anybody, got {ask.what!r}")


HANDLER: Handler = ScenarioHandler()
