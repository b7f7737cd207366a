"""One thin module a kind: what is observed for the planner, and what is asked of agents. Each has its `HANDLER`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from headgate_operator.handler import Handler
from headgate_operator.settings import Settings

MODULES = {
    "Testbed": "headgate_operator.handlers.testbed",
    "Fault": "headgate_operator.handlers.fault",
    "Scenario": "headgate_operator.handlers.scenario",
    "ScenarioRun": "headgate_operator.handlers.scenariorun",
    "TuningStudy": "headgate_operator.handlers.study",
}


def table() -> Mapping[str, Handler]:
    """The handlers by kind."""
    return {kind: import_module(module).HANDLER for kind, module in MODULES.items()}


@asynccontextmanager
async def ports(settings: Settings) -> AsyncIterator[Mapping[str, Any]]:
    """What single kinds act through beside the API server, by name (Context.ports); closed when the operator ends."""
    yield {}
