"""The handlers: one for each kind. A handler reads what its planner needs and makes the planner's calls to agents."""

from __future__ import annotations

from collections.abc import Mapping

from headgate_operator.handler import Handler
from headgate_operator.handlers import fault, scenariorun, study, testbed


def table() -> Mapping[str, Handler]:
    """Return the handlers by kind."""
    found = (testbed.HANDLER, fault.HANDLER, study.SCENARIO, scenariorun.HANDLER, study.HANDLER)
    return {handler.kind: handler for handler in found}
