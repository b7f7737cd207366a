"""A Scenario does nothing: it says whether it is accepted, in the words of the command line, and what of it has no effect. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headgate_operator.plan.conditions import merged, no, yes
from headgate_operator.plan.model import Manifest, Plan
from headgate_operator.settings import Settings
from testbed_runtime.api.crd_status import MAX_TARGETS
from testbed_runtime.api.validate_kinds import KindFindings, validate_kind


@dataclass(frozen=True, slots=True)
class Observed:
    object: Manifest


def plan(observed: Observed, settings: Settings, now: float) -> Plan:
    del settings
    return Plan(status=_status(observed.object, validate_kind(observed.object), now))


def _status(obj: Manifest, findings: KindFindings, now: float) -> dict[str, Any]:
    generation = int(obj["metadata"].get("generation", 0))
    before = dict(obj.get("status") or {})
    text = "\n".join(str(error) for error in findings.errors)
    warnings = [*findings.warnings]
    if findings.without_effect:
        warnings.append(f"changes nothing here: {', '.join(findings.without_effect)}")
    wanted = (
        [no("Accepted", "Invalid", text), no("Ready", "Invalid", "see Accepted")]
        if findings.errors
        else [yes("Accepted", "Valid"), yes("Ready", "Valid", "it does nothing by itself")]
    )
    variants = [v.get("name", "") for v in (obj.get("spec") or {}).get("variants") or ()]
    return {
        **before,
        "observedGeneration": generation,
        "phase": "Rejected" if findings.errors else "Accepted",
        "variants": variants[:MAX_TARGETS],
        "warnings": warnings[:MAX_TARGETS],
        "conditions": merged(before.get("conditions") or (), wanted, generation=generation, now=now),
    }
