"""Readers of the operator's plans: conditions, Events and other actions, whatever the kind of the object."""

from __future__ import annotations

from headgate_operator.plan.model import Action, Emit, Plan
from testbed_runtime.api.status import Condition


def _conditions(plan: Plan) -> tuple[Condition, ...]:
    assert plan.status is not None
    return tuple(plan.status.conditions)


def conditions(plan: Plan) -> dict[str, str]:
    """Return `status/reason` of each condition by its type."""
    return {c.type: f"{c.status}/{c.reason}" for c in _conditions(plan)}


def message(plan: Plan, type_: str) -> str:
    """Return the message of the only condition of this type."""
    [found] = [c.message for c in _conditions(plan) if c.type == type_]
    return found


def events(plan: Plan) -> list[tuple[str, str, str]]:
    """Return type, reason and text of each Event."""
    return [(a.type, a.reason, a.text) for a in plan.actions if isinstance(a, Emit)]


def others(plan: Plan) -> list[Action]:
    """Return the actions that are no Events."""
    return [a for a in plan.actions if not isinstance(a, Emit)]
