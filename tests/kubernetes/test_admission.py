"""The chart's admission policies on a real API server, in one namespace: what each rule refuses, and that it refuses nothing else."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from testbed_runtime.api import naming
from testbed_runtime.api.admission import policies
from tests.kubernetes.rendering import chart
from tests.kubernetes.spaces import Space
from tests.kubernetes.test_faults import a_testbed
from tests.kubernetes.test_runs import SMALL

pytestmark = pytest.mark.cluster

ACTIVE_LIMIT_S = 60.0
"""Limit for the API server to evaluate a new policy."""
LABEL = "headgate.test/faults"

Change = Callable[[dict[str, Any]], Any]


def scenario_spec() -> dict[str, Any]:
    return dict(copy.deepcopy(SMALL["spec"]))


def run_of(spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "ScenarioRun",
        "metadata": {"name": "one"},
        "spec": {"scenario": spec, "scenarioName": "small", **more},
    }


def document(kind: str, change: Change) -> dict[str, Any]:
    """Return an object of that kind whose testbed is changed."""
    if kind == "testbeds":
        found = a_testbed("one")
        change(found["spec"])
        return found
    spec = scenario_spec()
    change(spec["testbed"])
    if kind == "scenarios":
        return {**SMALL, "spec": spec}
    return run_of(spec)


RULES: dict[str, tuple[Change, str]] = {
    "an edge to nowhere": (
        lambda bed: bed["job"]["edges"].append({"from": "source", "to": "nowhere"}),
        "job.edges: vertex 'nowhere' does not exist",
    ),
    "a cycle": (
        lambda bed: bed["job"]["edges"].append({"from": "sink", "to": "source"}),
        "job.edges: there is a cycle",
    ),
    "a typo": (
        lambda bed: bed["flinkConfiguration"].update({"headgate.flow-contrl": "tcp"}),
        "flinkConfiguration: unknown option headgate.flow-contrl",
    ),
}
KINDS = ("testbeds", "scenarios", "scenarioruns")


def submit(space: Space, wanted: dict[str, Any], *more: str) -> str:
    """Return why the API server refuses the object; empty if it would take it. Nothing is created."""
    try:
        space.kubectl("create", "--dry-run=server", "-f", "-", *more, text=json.dumps(wanted))
    except AssertionError as error:
        return str(error)
    return ""


def until(space: Space, wanted: dict[str, Any], words: str, *more: str) -> None:
    """Wait until a new policy refuses the object with these words."""
    ends = time.monotonic() + ACTIVE_LIMIT_S
    while words not in (said := submit(space, wanted, *more)):
        assert time.monotonic() < ends, f"not refused with {words!r}: {said}"
        time.sleep(0.5)


def named(space: Space) -> str:
    """Return the name of an installation of which nothing is installed but the policies."""
    return f"t-{space.name[-8:]}"


@pytest.fixture
def guarded(space: Space) -> Iterator[Callable[..., None]]:
    """Apply the policies that the chart renders with these values, to this namespace only. An error of an expression refuses."""
    applied: list[str] = []

    def apply(*values: str) -> None:
        rendered = copy.deepcopy(chart("--set", f"fullnameOverride={named(space)}", *values))
        objects = [o for o in rendered if o["kind"].startswith("ValidatingAdmissionPolicy")]
        for one in objects:
            if one["kind"] == "ValidatingAdmissionPolicy":
                one["spec"]["failurePolicy"] = "Fail"
                continue
            here = {"matchLabels": {"kubernetes.io/metadata.name": space.name}}
            one["spec"]["matchResources"] = {"namespaceSelector": here}
        space.cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects))
        applied.extend(f"{o['kind']}/{o['metadata']['name']}" for o in objects)

    yield apply
    if applied:
        space.cluster.kubectl("delete", *applied)


def test_every_rule_of_every_kind_refuses_what_it_is_for_and_nothing_else(
    space: Space, guarded: Callable[..., None]
):
    """With the texts of the command line."""
    guarded("--set", "admissionPolicy.validate=true")
    change, words = RULES["a typo"]
    for kind in KINDS:
        until(space, document(kind, change), words)
    for kind in KINDS:
        assert submit(space, document(kind, lambda bed: None)) == ""
        for bad, expected in RULES.values():
            assert expected in submit(space, document(kind, bad))
    variants = run_of(scenario_spec(), variants=["nosuch"])
    assert "spec.variants: variant 'nosuch' does not exist" in submit(space, variants)
    tested = len(RULES) * len(KINDS) + 1
    assert tested == sum(len(policy["validations"]) for policy in policies().values())


def test_an_operator_is_refused_in_a_namespace_without_the_label(space: Space, guarded: Callable[..., None]):
    """The policy is about the operator's account only, and lets it in with the label."""
    guarded("--set", f"admissionPolicy.namespaceLabel={LABEL}")
    account = "system:serviceaccount:headgate-system:"
    names = [
        o["metadata"]["name"]
        for o in chart("--set", f"fullnameOverride={named(space)}")
        if o["kind"] == "ServiceAccount"
    ]
    operator = next(name for name in names if name.endswith("operator"))
    as_operator = ("--as", account + operator, "--as-group", "system:masters")
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}}
    until(space, made, f"{LABEL}=allowed", *as_operator)
    assert submit(space, made) == ""
    space.cluster.kubectl("label", "namespace", space.name, f"{LABEL}=allowed")
    assert submit(space, made, *as_operator) == ""
