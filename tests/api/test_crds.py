"""The CustomResourceDefinitions: current, structural, bounded; what the planners see is what the models mean."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from testbed_runtime.api import kinds
from testbed_runtime.api.compile import compile_fault
from testbed_runtime.api.crds import definitions
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.core.judgement.expectations import NEEDS_BOUND
from tests.api import documents
from tests.test_docs import ROOT

SCHEMAS = {
    d["spec"]["names"]["kind"]: d["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for d in definitions()
}


def below(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below one, itself included."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from below(inner, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from below(schema[word], f"{path}[]")


def test_the_files_are_those_that_the_code_gives():
    """`make docs` writes them."""
    said = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_crds.py"), "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_every_field_of_a_spec_is_bounded_described_and_of_one_type(kind: str):
    """No unknown field is kept, no list, map or text is without an end, no $ref and no anyOf is left."""
    for path, schema in below(SCHEMAS[kind]["properties"]["spec"], f"{kind}.spec"):
        assert not {"$ref", "anyOf", "oneOf", "x-kubernetes-preserve-unknown-fields"} & set(schema), path
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        if schema.get("type") == "string" and "enum" not in schema:
            assert "maxLength" in schema, path
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path
        if not path.endswith("[]"):
            assert schema.get("description"), path


@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_the_api_server_adds_no_default_to_the_items_of_a_list(kind: str):
    """`kubectl apply` compares a list as a whole, and would find each unchanged object changed."""
    for path, schema in below(SCHEMAS[kind]["properties"]["spec"], "spec"):
        if schema.get("type") == "array":
            assert not [inner for inner, part in below(schema["items"], path) if "default" in part]


def test_kubectl_explain_describes_the_conditions_and_the_parts_of_a_runs_status():
    """Their fields are what a user looks up first."""
    for kind, root in SCHEMAS.items():
        conditions = root["properties"]["status"]["properties"]["conditions"]["items"]
        assert all(field.get("description") for field in conditions["properties"].values()), kind
    status = SCHEMAS["ScenarioRun"]["properties"]["status"]["properties"]
    parts = (status, *(status[part]["items"]["properties"] for part in ("trials", "faults", "activeFaults")))
    missing = [name for part in parts for name, field in part.items() if not field.get("description")]
    assert missing == []


@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_kubectl_explain_describes_every_field_of_a_status(kind: str):
    """The recovery of a run and the rows of a study, too, which `kubectl explain` shows with their fields."""
    status = SCHEMAS[kind]["properties"]["status"]
    missing = [
        path
        for path, schema in below(status, "status")
        if path != "status" and not path.endswith("[]") and not schema.get("description")
    ]
    assert missing == []


def test_every_rule_of_the_api_server_says_what_to_do():
    """CEL without a message shows the expression."""
    for kind, root in SCHEMAS.items():
        for path, schema in below(root, kind):
            for rule in schema.get("x-kubernetes-validations", ()):
                assert len(rule["message"]) > 20, path


@pytest.mark.parametrize("kind", sorted(documents.GOOD))
def test_what_the_api_server_adds_to_an_object_is_left_aside(kind: str):
    """uid, managed fields, long annotations, a status."""
    document = documents.good(kind)
    document["metadata"] |= {
        "uid": "x", "resourceVersion": "7", "generation": 1, "managedFields": [{}], "namespace": "1st-team",
        "annotations": {"a": "b" * 5000},
    }  # fmt: skip
    document["status"] = {"phase": "Running"}
    findings = validate_kind(document)
    assert findings.errors == ()
    assert findings.resource is not None


def test_a_generated_name_is_not_asked_for():
    """`generateName` comes before the name."""
    document = documents.good("ScenarioRun")
    document["metadata"] = {"generateName": "late-"}
    assert validate_kind(document).errors == ()


@pytest.mark.parametrize("name", sorted(documents.BAD))
def test_a_bad_object_is_refused_by_the_models_too(name: str):
    """Before it reaches an API server."""
    document, _ = documents.bad(name)
    assert validate_kind(document).errors


def test_a_run_tells_its_scenarios_problems_where_they_stand():
    """The same words as for the Scenario alone."""
    document = documents.good("ScenarioRun")
    document["spec"]["scenario"]["testbed"]["job"]["edges"][0]["to"] = "cuont"
    document["spec"]["variants"] = ["shrt"]
    texts = [str(e) for e in validate_kind(document).errors]
    assert any(
        t.startswith("spec.scenario.testbed.job.edges[0].to: vertex 'cuont' does not exist") for t in texts
    )
    assert any("spec.variants[0]" in t and "did you mean short" in t for t in texts)


def test_a_fault_of_its_own_becomes_one_of_a_timeline():
    """At 0, under its name; targets of its testbed are not asked for here."""
    resource = validate_kind(documents.good("Fault")).resource
    assert isinstance(resource, kinds.Fault)
    fault = compile_fault(resource.spec.named("slow"))
    assert (fault.name, fault.kind, fault.at_s, fault.duration_s) == ("slow", "network.latency", 0.0, 2.0)
    bad = copy.deepcopy(documents.good("Fault"))
    bad["spec"]["target"] = {"taskManagers": {"mode": "fixed"}}
    found = [str(e) for e in validate_kind(bad).errors]
    assert found == ["spec.target.taskManagers.value: mode fixed needs a value (write value: 1 or more)"]


def test_an_unknown_kind_is_reported_with_the_known_ones():
    """Whatever else it holds."""
    assert "Testbed, Fault, Scenario, ScenarioRun, TuningStudy" in str(
        validate_kind({"kind": "Pod"}).errors[0]
    )
    assert set(SCHEMAS) == set(CUSTOM_RESOURCES)


def test_an_expectation_without_a_bound_has_the_words_of_the_command_line():
    """The rule is written in crd_rules.yaml, and the message is also that of the validation."""
    schema = SCHEMAS["Scenario"]["properties"]["spec"]["properties"]["expect"]["items"]
    assert NEEDS_BOUND in [rule["message"] for rule in schema["x-kubernetes-validations"]]
