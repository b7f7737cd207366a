"""Report whether a Scenario is accepted, with the messages of the command line, and which settings have no effect. Pure."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from headgate_operator.plan.conditions import CORRECT_IT, no, with_conditions, yes
from headgate_operator.plan.model import Plan
from headgate_operator.settings import Settings
from testbed_runtime.api.status import MAX_TARGETS, REJECTED
from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.api.views import Manifest, Scenario

NOTHING = "a Scenario does nothing by itself"


class Observed(Struct, frozen=True):
    object: Manifest


def plan(observed: Observed, settings: Settings, now: float) -> Plan:
    del settings
    scenario, findings = Scenario(observed.object), validate_kind(observed.object)
    text = "\n".join(str(error) for error in findings.errors)
    wanted = (
        [no("Accepted", "Invalid", text), no("Ready", "Invalid", text), yes("Stalled", "Invalid", CORRECT_IT)]
        if findings.errors
        else [yes("Accepted", "Valid"), yes("Ready", "Valid", NOTHING), no("Stalled", "Valid")]
    )
    variants = [v.get("name", "") for v in scenario.spec.get("variants") or ()]
    status = replace(
        scenario.status,
        phase=REJECTED if findings.errors else "Accepted",
        variants=tuple(variants[:MAX_TARGETS]),
        warnings=findings.notes[:MAX_TARGETS],
    )
    return Plan(status=with_conditions(scenario, status, wanted, now))
