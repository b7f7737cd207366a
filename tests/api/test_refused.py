"""A document that the models refuse: what is judged in the rest of it."""

from __future__ import annotations

import pytest

from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.cli.validate import check
from tests.api import documents
from tests.api.test_validate import errors


def test_options_and_metrics_are_judged_beside_fields_that_do_not_exist():
    """A field that is misspelled hides no other mistake; what may depend on it is judged when it is corrected."""

    def change(spec):
        spec["trails"] = 3
        spec["faults"][0]["duratoin"] = "8 s"
        spec["testbed"]["taskManagers"] = {"replcas": 5, "slots": 1}
        spec["testbed"]["flinkConfiguration"]["heartbeat.timout"] = "1 s"
        spec["variants"][1]["flinkConfiguration"]["pekko.ask.timeout"] = "soon"
        spec["expect"].append({"metric": "recovery.totl", "max": "3 s", "phase": "outage/long-gc"})

    assert [line.split(":")[0].removeprefix("spec.") for line in errors(change)] == [
        "testbed.taskManagers.replcas",
        "faults[0].duratoin",
        "trails",
        "testbed.flinkConfiguration[heartbeat.timout]",
        "variants[1].flinkConfiguration[pekko.ask.timeout]",
        "expect[1].metric",
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["testbed"]["job"]["vertices"][0].pop("name"),
        lambda spec: spec["testbed"]["job"]["edges"].append("source to sink"),
    ],
    ids=["a field is missing", "an item of a list is refused"],
)
def test_a_document_that_lacks_a_part_is_judged_by_its_fields_only(change):
    """Paths behind an item that goes would be those of other items."""

    def both(spec):
        change(spec)
        spec["testbed"]["flinkConfiguration"]["heartbeat.timout"] = "1 s"

    assert errors(both) == errors(change) != []


def test_a_study_is_judged_beside_fields_that_do_not_exist():
    """Its options, values and objectives."""
    study = documents.good("TuningStudy")
    study["spec"] |= {"budgt": {}, "options": [{"key": "heartbeat.timeot", "values": ["1 s"]}]}
    paths = [e.path for e in validate_kind(study).errors]
    assert paths == ["spec.budgt", "spec.options[0].key"]


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (lambda spec: spec.update(faults={"name": "f"}), "(write [{name: …, duration: …}], with as many items as you need)"),
        (lambda spec: spec["faults"][0]["target"]["taskManagers"].update(names="tm-1", running=None), "(write [tm-1], with as many items as you need)"),
    ],
    ids=["of mappings", "of names"],
)  # fmt: skip
def test_a_value_instead_of_a_list_says_how_an_item_is_written(change, hint):
    """With the fields that it needs, or with the value itself."""
    assert any(line.endswith(hint) and "must be a list" in line for line in errors(change)), errors(change)


def test_the_advice_for_a_refused_option_is_the_default_of_the_version():
    """The maximum backoff was 5 min until 1.18."""

    def change(spec):
        strategy = {"type": "exponential-delay", "exponential-delay.max-backoff": "0 ms"}
        options = {f"restart-strategy.{key}": value for key, value in strategy.items()}
        spec["testbed"]["flinkVersion"] = "1.18"
        spec["testbed"]["flinkConfiguration"].update(options)

    (error,) = errors(change)
    assert error.endswith(
        "max-backoff]: Flink does not start: Maximum backoff must be at least 1. (it is '0 ms': the default is 5 min)"
    )


@pytest.mark.parametrize("kind", documents.GOOD)
@pytest.mark.parametrize("metadata", ["text", 7, True, ["a"], [{"name": "a"}]], ids=repr)
def test_metadata_that_is_no_mapping_is_refused_and_never_raises(kind, metadata):
    """Each kind, with the field that the message names."""
    findings = validate_kind({**documents.good(kind), "metadata": metadata})
    assert [problem.path for problem in findings.errors] == ["metadata"]


def test_a_kind_that_is_a_list_is_refused_by_its_command_and_never_raises(tmp_path):
    """Such a file is still taken for one of Headgate's, by its apiVersion."""
    path = tmp_path / "scenario.yaml"
    path.write_text("apiVersion: headgate.dev/v1alpha1\nkind: [[]]\nmetadata: {name: a}\nspec: {}\n")
    (checked,) = check(path, on=None)
    assert [error["path"] for error in checked.errors] == ["kind"]
