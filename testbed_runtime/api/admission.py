"""Rules that ValidatingAdmissionPolicies check at `kubectl apply`, with texts like those of the command line. Pure data.

They check what CEL can express: names that do not exist and options that do not exist. The operator repeats every check, so a cluster
without these policies reports the same problems in the condition Accepted. Typing mistakes in Flink's own options and long cycles need
the operator, whose webhook can refuse them at once.
"""

from __future__ import annotations

from typing import Any

from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES, CustomResource
from testbed_runtime.api.iteration_rules import CYCLE_HINT
from testbed_runtime.api.naming import GROUP, VERSION
from testbed_runtime.core.options import EFFECTIVE, OWN_PREFIX

_OWN = sorted(option.key for option in EFFECTIVE if option.key.startswith(OWN_PREFIX))

CHANGED = {
    "name": "spec-changed",
    "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec",
}
"""Finalizers of an object that became invalid can still be removed."""


def policies() -> dict[str, dict[str, Any]]:
    """Return the spec of a policy for each kind that has rules, by the plural of the kind."""
    return {
        declared.plural: _policy(kind, declared)
        for kind, declared in CUSTOM_RESOURCES.items()
        if declared.testbed
    }


def _policy(kind: str, declared: CustomResource) -> dict[str, Any]:
    rule = {
        "apiGroups": [GROUP],
        "apiVersions": [VERSION],
        "operations": ["CREATE", "UPDATE"],
        "resources": [declared.plural],
    }
    return {
        "failurePolicy": "Ignore",  # if a rule cannot be evaluated, the operator judges the object
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [CHANGED],
        "variables": _variables(declared.testbed),
        "validations": [*_testbed(declared.testbed), *(_RUN if kind == "ScenarioRun" else ())],
    }


def _variables(path: str) -> list[dict[str, str]]:
    own = ", ".join(f"'{key}'" for key in _OWN)
    bed = f"object.{path}"
    return [
        {"name": "vertices", "expression": f"{bed}.job.vertices.map(v, v.name)"},
        {"name": "edges", "expression": f"has({bed}.job.edges) ? {bed}.job.edges : []"},
        {"name": "dataEdges", "expression": "variables.edges.filter(e, !has(e.feedback) || !e.feedback)"},
        {
            "name": "unknownEnds",
            "expression": "variables.edges.map(e, [e.from, e.to]).map(ends, "
            "ends.filter(name, !(name in variables.vertices))).filter(ends, ends.size() > 0)",
        },
        {
            "name": "unknownOptions",
            "expression": f"has({bed}.flinkConfiguration) ? {bed}.flinkConfiguration.map(key, key)"
            f".filter(key, key.startsWith('{OWN_PREFIX}') && !(key in [{own}])) : []",
        },
    ]


def _testbed(path: str) -> list[dict[str, str]]:
    return [
        {
            "expression": "variables.unknownEnds.size() == 0",
            "messageExpression": f'"{path}.job.edges: vertex \'" + variables.unknownEnds[0][0] + "\' does not exist"',
            "message": f"{path}.job.edges: names a vertex that does not exist",
        },
        {
            "expression": "variables.dataEdges.all(e, e.from != e.to && "
            "!variables.dataEdges.exists(back, back.from == e.to && back.to == e.from))",
            "message": f"{path}.job.edges: there is a cycle ({CYCLE_HINT})",
        },
        {
            "expression": "variables.unknownOptions.size() == 0",
            "messageExpression": f'"{path}.flinkConfiguration: unknown option " + variables.unknownOptions[0]',
            "message": f"{path}.flinkConfiguration: an option with the prefix {OWN_PREFIX} does not exist",
        },
    ]


_UNKNOWN = (
    "object.spec.variants.filter(v, !has(object.spec.scenario.variants)"
    " || !object.spec.scenario.variants.exists(known, known.name == v))"
)
_RUN: tuple[dict[str, str], ...] = (
    {
        "expression": f"!has(object.spec.variants) || {_UNKNOWN}.size() == 0",
        "messageExpression": f'"spec.variants: variant \'" + {_UNKNOWN}[0] + "\' does not exist"',
        "message": "spec.variants: names a variant that does not exist",
    },
)
