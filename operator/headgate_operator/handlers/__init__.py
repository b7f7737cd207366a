"""The handlers: one for each kind. A handler reads what its planner needs and makes the planner's calls to agents."""

from __future__ import annotations

from collections.abc import Mapping

from headgate_operator.handler import Handler
from headgate_operator.handlers.fault import FaultHandler
from headgate_operator.handlers.scenariorun import ScenarioRunHandler
from headgate_operator.handlers.study import ScenarioHandler, StudyHandler
from headgate_operator.handlers.testbed import TestbedHandler


def table() -> Mapping[str, Handler]:
    """Return the handlers by kind."""
    found = (TestbedHandler(), FaultHandler(), ScenarioHandler(), ScenarioRunHandler(), StudyHandler())
    return {handler.kind: handler for handler in found}
