"""Values that do not fit their field: the error names the field and what to write."""

from __future__ import annotations

import pytest

from testbed_runtime.api.validate_kinds import validate_kind
from tests.api import documents
from tests.api.test_validate import errors, fault

BAD = {
    "too many trials": (
        lambda s: s.update(trials=101),
        "spec.trials: must be at most 100, got 101 (write a whole number from 1 to 100)",
    ),
    "number in quotes": (
        lambda s: s.update(trials="5"),
        "spec.trials: must be an integer, got '5' (write it without quotes: 5)",
    ),
    "number with a unit": (
        fault(network={"loss": {"percent": "5 %"}}),
        "spec.faults[0].network.loss.percent: must be an integer, got '5 %' (write a whole number from 1 to 100)",
    ),
    "number with a fraction": (
        fault(network={"loss": {"percent": 0.5}}),
        "spec.faults[0].network.loss.percent: 0.5 is not an integer (write a whole number from 1 to 100)",
    ),
    "number with an exponent": (
        lambda s: s["testbed"]["job"]["vertices"][0]["source"].update(recordsPerSecond=1e6),
        "source.recordsPerSecond: 1000000.0 is not an integer (write 1000000)",
    ),
    "number that is missing": (
        fault(network={"bandwidth": {}}),
        "spec.faults[0].network.bandwidth.bytesPerSecond: is missing (write a whole number from 1 to",
    ),
    "number that is null": (
        lambda s: s["testbed"]["taskManagers"].update(replicas=None),
        "spec.testbed.taskManagers.replicas: must be an integer, got nothing (leave it out, or write a whole number from 1 to",
    ),
    "mapping that is null": (
        lambda s: s["testbed"].update(flinkConfiguration=None),
        "spec.testbed.flinkConfiguration: must be a mapping, got nothing (leave it out, or write its fields below it)",
    ),
    "required mapping that is null": (
        lambda s: s["testbed"].update(job=None),
        "spec.testbed.job: must be a mapping, got nothing (write its fields below it)",
    ),
    "list that is null": (
        lambda s: s.update(expect=None),
        "spec.expect: must be a list, got nothing (leave it out, or write its items below it)",
    ),
    "item that is a text": (
        lambda s: s["testbed"]["job"]["edges"].append("source -> count"),
        "spec.testbed.job.edges[2]: must be a mapping, got 'source -> count' (write {from: …, to: …})",
    ),
    "fault kind that is null": (
        fault(process={"kill": None}),
        "spec.faults[0].process: needs exactly one kind of process fault of kill, pause: kill has no value (write kill: {}, or its",
    ),
    "target that is null": (
        fault(process={"kill": {}}, target={"jobManager": None}),
        "spec.faults[0].target: needs exactly one of taskManagers, jobManager: jobManager has no value (write jobManager: {}",
    ),
    "mapping without fields": (
        fault(process={"kill": {}}, target={"jobManager": True}),
        "spec.faults[0].target.jobManager: must be a mapping, got True (write {})",
    ),
    "required mapping that is a text": (
        lambda s: s["testbed"].update(job="word-count"),
        "spec.testbed.job: must be a mapping, got 'word-count' (write {vertices: …})",
    ),
    "role that is null": (
        lambda s: s["testbed"]["job"]["vertices"][1].update(operator=None),
        "spec.testbed.job.vertices[1]: needs exactly one of source, operator, sink, iteration: operator has no value (write it behind",
    ),
    "mapping that is missing": (
        lambda s: s["testbed"].pop("job"),
        "spec.testbed.job: is missing (write {vertices: …})",
    ),
    "two kinds of one family": (
        fault(process={"kill": {}, "pause": {}}),
        "needs exactly one kind of process fault of kill, pause; there are kill and pause",
    ),
    "only one field is possible": (
        fault(network={"bandwidth": {"rate": "10 MB"}}),
        "spec.faults[0].network.bandwidth.rate: is an unknown field (write bytesPerSecond)",
    ),
    "option of Headgate far from any": (
        lambda s: s["testbed"]["flinkConfiguration"].update({"headgate.nope": "1 s"}),
        "flinkConfiguration[headgate.nope]: is not an option of Headgate (there are headgate.",
    ),
    "option of Headgate near to one": (
        lambda s: s["testbed"]["flinkConfiguration"].update({"headgate.flow-controll": "tcp"}),
        "is not an option of Headgate (did you mean headgate.flow-control?)",
    ),
    "options nested as in config.yaml": (
        lambda s: s["testbed"]["flinkConfiguration"].update({"heartbeat": {"timeout": "5 s"}}),
        "flinkConfiguration.heartbeat: is nested (write the whole key in one line: heartbeat.timeout: '5 s')",
    ),
    "replaceLost in another case": (
        lambda s: s["testbed"]["taskManagers"].update(replaceLost="never"),
        "spec.testbed.taskManagers.replaceLost: 'never' is neither Never nor a duration such as '10 s'",
    ),
    "begin that is no time": (
        fault(process={"pause": {}}, at="soon"),
        "spec.faults[0].at: 'soon' is neither deploy nor a duration such as '10 s'",
    ),
    "duration beyond its bounds": (
        fault(process={"pause": {}}, duration="25 h"),
        "spec.faults[0].duration: 90000 s is out of range (write more than 0 and at most 86400 s)",
    ),
}


@pytest.mark.parametrize(("change", "text"), BAD.values(), ids=BAD.keys())
def test_a_value_that_does_not_fit_is_refused_with_what_fits(change, text):
    """Wrong types, bounds with both ends, and keys without a value, which are null in YAML."""
    found = errors(change)
    assert any(text in line for line in found), found


KINDS_OF_BAD = {
    "quantity with a space": (
        "Testbed",
        lambda s: s["pods"]["storage"].update(size="1 GB"),
        "spec.pods.storage.size: '1 GB' is not a quantity of Kubernetes (write it as in 500m, 2 or 1Gi)",
    ),
    "values of a study that are numbers": (
        "TuningStudy",
        lambda s: s["options"][0].update(values=[2, 4]),
        "spec.options[0].values[0]: must be text, got 2 (write it in quotes: '2', a duration with its unit)",
    ),
    "objective that is a text": (
        "TuningStudy",
        lambda s: s["objectives"][0].update(metric="job.state"),
        "spec.objectives[0].metric: job.state is a text, so no value is better (name another metric)",
    ),
    "kind in another case": (
        "fault",
        lambda s: None,
        "kind: 'fault' is not a kind of headgate.dev/v1alpha1 (did you mean Fault?)",
    ),
}


@pytest.mark.parametrize(("kind", "change", "text"), KINDS_OF_BAD.values(), ids=KINDS_OF_BAD.keys())
def test_a_bad_value_of_another_kind_is_refused_with_what_fits(kind, change, text):
    """As in a scenario."""
    data = documents.good(kind.title() if kind == "fault" else kind)
    change(data["spec"])
    assert text in [str(e) for e in validate_kind({**data, "kind": kind}).errors]


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({}, "is missing (write a name: lower-case letters, digits and dashes, beginning with a letter)"),
        ({"name": "a" * 80}, "has 80 characters (write at most 40)"),
        (
            {"name": "My_Job"},
            "'My_Job' is not a valid name (use lower-case letters, digits and dashes, beginning",
        ),
    ],
)
def test_a_name_that_does_not_fit_is_refused_with_what_does(metadata, text):
    """A missing, a too long and an invalid name each have a hint."""
    found = validate_kind({**documents.good("Scenario"), "metadata": metadata}).errors
    assert [str(e).startswith(f"metadata.name: {text}") for e in found] == [True]


@pytest.mark.parametrize(
    ("testbed", "variant", "hint"),
    [
        ("1.12", None, "write it in quotes: '1000'"),
        ("1.19", None, "write it in quotes: '1000'"),
        ("1.20", None, "write a unit: 1000 ms"),
        ("1.20", "1.12", "write it in quotes: '1000'"),
        ("1.12", "2.x", "write a unit: 1000 ms"),
    ],
)
def test_a_number_gets_a_unit_only_if_its_version_of_flink_reads_one(testbed, variant, hint):
    """Flink reads heartbeat.interval as whole milliseconds until 1.19."""
    data = documents.good("Scenario")
    data["spec"]["testbed"]["flinkVersion"] = testbed
    options = {"flinkConfiguration": {"heartbeat.interval": 1000}}
    if variant is None:
        data["spec"]["testbed"].update(options)
    else:
        data["spec"]["variants"] = [{"name": "other", "flinkVersion": variant, **options}]
    errors = [str(e) for e in validate_kind(data).errors if "heartbeat.interval" in e.path]
    assert [e.partition("must be text, got 1000 ")[2] for e in errors] == [f"({hint})"]


def test_milliseconds_that_flink_reads_without_a_unit_are_text_too():
    """In a scenario all options are texts."""
    data = documents.good("Testbed")
    data["spec"]["flinkConfiguration"] = {"taskmanager.network.request-backoff.max": 400}
    problem = "must be text, got 400 (write it in quotes: '400')"
    assert [problem in str(error) for error in validate_kind(data).errors] == [True]
    data["spec"]["flinkConfiguration"] = {"taskmanager.network.request-backoff.max": "400"}
    found = validate_kind(data)
    assert not any("request-backoff" in str(text) for text in (*found.errors, *found.warnings))


@pytest.mark.parametrize(
    ("kind", "change", "path"),
    [
        ("Fault", lambda s: s.update(duration="2"), "spec.duration"),
        ("Testbed", lambda s: s["taskManagers"].update(replaceLost="2"), "spec.taskManagers.replaceLost"),
        (
            "TuningStudy",
            lambda s: s["options"][0].update(key="pekko.ask.timeout", values=["1 s", "2"]),
            "spec.options[0].values[1]",
        ),
    ],
)
def test_a_duration_without_a_unit_is_a_warning_in_every_kind(kind, change, path):
    """A bare number is milliseconds, which is rarely meant."""
    data = documents.good(kind)
    change(data["spec"])
    found = validate_kind(data)
    assert found.errors == ()
    assert f"{path}: '2' has no unit, so it is 2 ms (write '2 s' or '2 ms')" in found.warnings


def test_a_study_of_milliseconds_is_no_doubt_before_the_versions_of_its_scenarios_are_known():
    """Flink 1.12 reads heartbeat.timeout without a unit. tune warns if a scenario has a later version."""
    data = documents.good("TuningStudy")
    data["spec"]["options"][0].update(key="heartbeat.timeout", values=["20000", "30000"])
    assert not any("unit" in warning for warning in validate_kind(data).warnings)


def test_the_only_valid_value_of_a_missing_field_is_what_to_write():
    """Not one of a list of one."""
    found = [str(error) for error in validate_kind({"kind": "Scenario"}).errors]
    assert "apiVersion: is missing (write headgate.dev/v1alpha1)" in found
