"""The handlers: one for each kind. A handler reads what its planner needs and makes the planner's calls to agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from headgate_operator.handler import Handler
from headgate_operator.handlers import fault, scenariorun, study, testbed
from headgate_operator.settings import Settings


def table() -> Mapping[str, Handler]:
    """Return the handlers by kind."""
    found = (testbed.HANDLER, fault.HANDLER, study.SCENARIO, scenariorun.HANDLER, study.HANDLER)
    return {handler.kind: handler for handler in found}


@asynccontextmanager
async def ports(settings: Settings) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the ports that single kinds need besides the API server, by name (Context.ports)."""
    yield {}
