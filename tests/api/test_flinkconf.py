"""Flink's own configuration files: which options they set, and what is wrong with them."""

from __future__ import annotations

import pytest

from testbed_runtime.api import flinkconf
from testbed_runtime.core.errors import UserError

LEGACY = """\
# a comment: with a colon
jobmanager.rpc.address: jobmanager
heartbeat.timeout: 120000   # two minutes
env.java.opts.taskmanager: -XX:OnError="kill: %p"
metrics.scope.jm: *.jm
taskmanager.numberOfTaskSlots: 4
parallelism.default: 64
empty.key:
"""
NESTED = """\
taskmanager:
  numberOfTaskSlots: 4
  memory:
    process: {size: 16g}
state.backend.type: rocksdb
classloader:
  parent-first-patterns:
    additional: [com.example, org.example]
heartbeat:
  timeout: 120 s
  interval:
"""
DEPLOYMENT = """\
apiVersion: v1
kind: ServiceAccount
metadata: {name: flink}
---
apiVersion: flink.apache.org/v1beta1
kind: FlinkDeployment
metadata: {name: orders}
spec:
  flinkVersion: v1_20
  flinkConfiguration:
    taskmanager.numberOfTaskSlots: 4
    taskmanager.memory.process.size: 1g
    heartbeat: {timeout: 2 min}
    version.like: 1.20
  podTemplate:
    spec: {containers: [{name: flink-main-container}]}
  taskManager: {replicas: 16, resource: {memory: 16Gi, cpu: 4}}
  job: {jarURI: "local:///opt/orders.jar", parallelism: 64}
"""


def test_a_flink_conf_is_read_line_by_line_as_flink_does():
    """A value with `: `, `*` or `%`, which is not YAML, and a comment behind a value."""
    found = flinkconf.read(LEGACY, "conf/flink-conf.yaml")
    assert found.options == {
        "jobmanager.rpc.address": "jobmanager",
        "heartbeat.timeout": "120000",
        "env.java.opts.taskmanager": '-XX:OnError="kill: %p"',
        "metrics.scope.jm": "*.jm",
        "taskmanager.numberOfTaskSlots": "4",
        "parallelism.default": "64",
    }
    assert (found.slots, found.parallelism, found.version) == (4, 64, "1.20")
    assert found.line("flinkConfiguration[heartbeat.timeout]: …") == 3


def test_a_flink_conf_is_read_although_some_lines_are_no_pairs():
    """As Flink does: an indented line counts, and a line without a space after its colon is reported and ignored."""
    text = "heartbeat.timeout: 5 s\nrestart-strategy:none\n pekko.ask.timeout: 20 s\n"
    found = flinkconf.read(text, "conf/flink-conf.yaml")
    assert found.options == {"heartbeat.timeout": "5 s", "pekko.ask.timeout": "20 s"}
    (error,) = flinkconf.judge_options(found, "1.20").errors
    assert str(error) == (
        "line 2: 'restart-strategy:none' is not a `key: value` pair, so Flink ignores it (write a space after the colon)"
    )
    with pytest.raises(UserError, match="is not YAML"):
        flinkconf.read(text, "config.yaml")


def test_a_flink_conf_is_not_nested():
    """Flink 1.20 ignores the first line, and takes the key of the second one as it stands there."""
    found = flinkconf.read("heartbeat:\n  timeout: 5 s\n", "conf/flink-conf.yaml")
    assert found.options == {"timeout": "5 s"}
    (error,) = flinkconf.judge_options(found, "1.20").errors
    assert str(error) == (
        "line 1: 'heartbeat:' is not a `key: value` pair, so Flink ignores it "
        "(this file is not nested: write the whole key in each line, as in heartbeat.key: value)"
    )
    nested = flinkconf.read("heartbeat:\n  timeout: 5 s\n", "config.yaml")
    assert nested.options == {"heartbeat.timeout": "5 s"}


def test_a_digit_that_is_no_number_is_no_number_of_slots():
    """`²` is a digit for Python."""
    found = flinkconf.read('taskmanager.numberOfTaskSlots: "²"\nheartbeat.timeout: 5 s\n', "config.yaml")
    (error,) = flinkconf.judge_options(found, "2.3").errors
    assert (found.slots, error.problem) == (1, "'²' is not a number of slots")


def test_a_nested_config_has_the_same_keys_as_a_flat_one():
    """Nested and flat keys, a list, and an empty value, which is left out."""
    found = flinkconf.read(NESTED, "config.yaml")
    assert found.options == {
        "taskmanager.numberOfTaskSlots": "4",
        "taskmanager.memory.process.size": "16g",
        "state.backend.type": "rocksdb",
        "classloader.parent-first-patterns.additional": "[com.example, org.example]",
        "heartbeat.timeout": "120 s",
    }
    assert (found.version, found.line("flinkConfiguration[heartbeat.timeout]")) == ("2.x", 10)


PLAIN = {
    "0x1F": "31",
    "0o17": "15",
    "+5": "5",
    "-0": "0",
    "007": "7",
    "1e3": "1000.0",
    ".5": "0.5",
    "5.": "5.0",
    "1.10": "1.1",
    "1e-5": "1.0E-5",
    "TRUE": "true",
    "yes": "yes",
    "Yes": "Yes",
    "y": "y",
    "on": "on",
    "010": "10",
    "0o10": "8",
    "1:00": "1:00",
    "['*', '123', 'true']": "['*', '123', 'true']",
    "1_000": "1_000",
    "0b101": "0b101",
    "12:30": "12:30",
    ".inf": ".inf",
    "'0x1F'": "0x1F",
    '"+5"': "+5",
    "''": "",
    "[]": "[]",
    "[0x1F, True, [a, {b: 1}]]": "[31, true, [a, {b: 1}]]",
    "['a,b', \"5\", 5, yes, '0o17', 'a: b', ~, .INF, \"\"]": "['a,b', '5', 5, yes, '0o17', 'a: b', null, .inf, '']",
    "-.Inf": "-.inf",
    "1e400": ".inf",
    "!!str 007": "007",
    "!!str 0o17": "0o17",
    "!!float 5": "5.0",
    "!!int '5'": "5",
}
"""Values as a config.yaml has them, and as Flink's Configuration returns them as text."""


@pytest.mark.parametrize("written", PLAIN)
def test_a_plain_value_of_a_config_yaml_is_read_as_flinks_parser_reads_it(written):
    """J-172: YAML 1.2 with its core schema (YamlParserUtils), not YAML 1.1: `yes` and `1_000` are words. Quoted values stay as they are."""
    assert flinkconf.read(f"a: {{b: {written}}}\n", "config.yaml").options == {"a.b": PLAIN[written]}


@pytest.mark.parametrize("first", [1, 6], ids=["file", "config-map"])
def test_a_key_of_a_config_yaml_without_a_value_is_an_error_with_its_line(first):
    """GlobalConfiguration of 2.3.0: "Value must not be null." An empty text is a value."""
    lines = ["a.b: ''", "heartbeat:", "  interval:", "  timeout: 1 s", "x: ~"]
    text = "".join(f"{line}\n" for line in lines)
    if first > 1:
        head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: orders}\ndata:\n  config.yaml: |\n"
        text = head + "".join(f"    {line}\n" for line in lines)
    found = flinkconf.read(text, "config.yaml")
    errors = flinkconf.judge_options(found, "2.3").errors
    assert [(error.path, error.problem.partition(",")[0]) for error in errors] == [
        (f"line {first + 2}", "'interval' has no value"),
        (f"line {first + 4}", "'x' has no value"),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("0x1F: a", "the key '0x1F' is not a string"),
        ("true: a", "the key 'true' is not a string"),
        ("b: !mine 5", "the value of 'b' has the unknown tag '!mine'"),
        ("b: !!timestamp 2001-01-01", "the value of 'b' has the unknown tag 'tag:yaml.org"),
        ("b: !!int five", "the value of 'b' is not a number"),
        ("b: +.inf", "the value of 'b' is not a number"),
    ],
)
def test_what_flinks_parser_of_a_config_yaml_refuses_is_an_error_with_its_line(line, problem):
    """J-172, GlobalConfiguration of 2.3.0: "Error parsing YAML configuration." A date or `yes` without a tag is a word. The value is not
    shown: it may be a secret."""
    found = flinkconf.read(f"heartbeat:\n  timeout: 5 s\n  {line}\nc: 2001-01-01\nyes: no\n", "config.yaml")
    (error,) = flinkconf.judge_options(found, "2.3").errors
    assert (error.path, error.problem.partition(",")[0].partition(", so")[0]) == (
        "line 3",
        problem.partition(",")[0],
    )


@pytest.mark.parametrize("name", ["config.yaml", "conf/config.yaml", "cm.yaml: config.yaml"])
def test_a_config_yaml_is_never_read_line_by_line(name):
    """J-172: Flink 2.3.0 does not start with a duplicate key, and takes the last one in a flink-conf.yaml."""
    text = "heartbeat.timeout: 60 s\nheartbeat.timeout: 70 s\n"
    with pytest.raises(UserError, match=r"line 2: the key 'heartbeat.timeout' is a duplicate"):
        flinkconf.read(text, name)
    for other in ("flink-conf.yaml", "my-config.yaml"):
        assert flinkconf.read(text, other).options == {"heartbeat.timeout": "70 s"}


def test_a_flink_deployment_is_found_among_other_documents():
    """Its version, its cluster, and its memory, which the operator writes over the option. A version is not read as a number."""
    found = flinkconf.read(DEPLOYMENT, "orders.yaml")
    assert (found.kind, found.name, found.version) == ("FlinkDeployment", "orders", "1.20")
    assert (found.taskmanagers, found.slots, found.parallelism) == (16, 4, 64)
    assert found.options["taskmanager.memory.process.size"] == "17179869184 b"
    assert found.options["heartbeat.timeout"] == "2 min"
    assert found.options["version.like"] == "1.20"


def test_a_config_map_with_a_configuration_counts_lines_of_its_file():
    """As `kubectl get configmap -o yaml` prints it."""
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: flink-config-orders}\ndata:\n  flink-conf.yaml: |\n"
    text += "".join(f"    {line}\n" for line in LEGACY.splitlines())
    found = flinkconf.read(text, "cm.yaml")
    assert (found.kind, found.version, found.options["heartbeat.timeout"]) == ("ConfigMap", "1.20", "120000")
    plain = flinkconf.read("kind: ConfigMap\ndata: {flink-conf.yaml: 'heartbeat.timeout: 5 s'}\n", "cm.yaml")
    assert (plain.version, plain.options) == ("1.20", {"heartbeat.timeout": "5 s"}), "also if it is YAML"
    assert text.splitlines()[found.line("[heartbeat.timeout]") - 1].strip().startswith("heartbeat.timeout")


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: headgate.dev/v1alpha1\nkind: Scenario\nspec: {}\n",
        "spec:\n  heartbeat.timeout: 5 s\n kind: [",
        "",
        "- a\n",
        "hello\n",
        "kind: ConfigMap\ndata: {a: b}\n",
        "kind: FlinkDeployment\nmetadata: {name: {{ .Values.name }}}\nspec: {}\n",
    ],
)
def test_other_documents_are_no_flink_configuration(text):
    """Documents of Headgate, broken ones, and empty ones."""
    with pytest.raises(UserError, match=r"^mine\.yaml: "):
        flinkconf.read(text, "mine.yaml")
    assert flinkconf.find(text, "mine.yaml") == ()


def test_a_mapping_without_an_option_of_flink_is_not_taken_for_one():
    """A scenario whose apiVersion and kind were forgotten keeps its own message."""
    assert flinkconf.find("name: x\nspec: {testbed: {}}\n", "mine.yaml") == ()
    assert flinkconf.find("heartbeat.timeout: 5 s\n", "mine.yaml")


def test_a_list_has_one_configuration_and_of_several_none_is_chosen():
    """As `kubectl get flinkdeployments -o yaml` prints them."""
    one = "- {kind: FlinkDeployment, metadata: {name: a}, spec: {flinkConfiguration: {heartbeat.timeout: 5 s}}}\n"
    head = "kind: List\napiVersion: v1\nitems:\n"
    assert flinkconf.read(head + one, "all.yaml").options == {"heartbeat.timeout": "5 s"}
    with pytest.raises(
        UserError, match="more than one Flink configuration: FlinkDeployment a, FlinkDeployment b"
    ):
        flinkconf.read(head + one + one.replace("name: a", "name: b"), "all.yaml")


@pytest.mark.parametrize("kind", ["FlinkDeployment", "FlinkSessionJob"])
def test_a_kind_of_the_operator_needs_no_options(kind):
    """It then has Flink's defaults."""
    (found,) = flinkconf.find(f"kind: {kind}\nspec: {{flinkConfiguration: }}\n", "orders.yaml")
    assert (found.kind, found.options) == (kind, {})


def test_the_deployments_of_a_blue_green_deployment_have_the_options_of_its_template():
    """The operator creates both FlinkDeployments from it. Options of the operator itself are beside the template."""
    text = """
kind: FlinkBlueGreenDeployment
metadata: {name: orders}
spec:
  configuration: {kubernetes.operator.bluegreen.deployment-deletion.delay: 2s}
  template:
    spec:
      flinkVersion: v1_20
      flinkConfiguration: {heartbeat.timeout: 30 s}
      taskManager: {replicas: 3, resource: {memory: 4g}}
"""
    (found,) = flinkconf.find(text, "orders.yaml")
    assert (found.kind, found.name, found.version) == ("FlinkBlueGreenDeployment", "orders", "1.20")
    assert found.options == {"heartbeat.timeout": "30 s", "taskmanager.memory.process.size": "4g"}
    assert (found.taskmanagers, found.lines["heartbeat.timeout"]) == (3, 9)


def judged(version="1.20", **options):
    pairs = {key.replace("_", "."): value for key, value in options.items()}
    conf = flinkconf.FlinkConf(kind="Flink configuration", options=pairs, lines={})
    return flinkconf.judge_options(conf, version)


def test_valid_options_get_a_unit_if_flink_reads_one_and_keep_the_name_of_their_version():
    """Slots are a field of the testbed, and the checkpoint to start from belongs to another job."""
    conf = {
        "heartbeat.timeout": "120000", "restart-strategy.fixed-delay.delay": "500", "akka.ask.timeout": "1 min", "taskmanager.numberOfTaskSlots": "4",
        "execution.savepoint.path": "s3://x", "s3.secret-key": "hidden",
        "high-availability": "org.apache.flink.kubernetes.highavailability.KubernetesHaServicesFactory",
    }  # fmt: skip
    found = judged("1.17", **conf)
    assert found.errors == ()
    assert found.usable == {
        "heartbeat.timeout": "120000",
        "restart-strategy.fixed-delay.delay": "500 ms",
        "akka.ask.timeout": "1 min",
        "high-availability": conf["high-availability"],
    }
    assert "s3.secret-key" in found.without_effect
    assert not any("hidden" in text for text in found.warnings)


def test_of_two_names_of_an_option_only_the_value_that_counts_is_usable():
    """The other name is an error. This option is read in whole milliseconds."""
    found = judged(
        **{
            "taskmanager.net.request-backoff.max": "20000",
            "taskmanager.network.request-backoff.max": "10000",
        }
    )
    assert len(found.errors) == 1
    assert set(found.usable.values()) == {"10000"}


def test_a_value_that_only_flink_knows_is_left_out_with_a_warning():
    """ZooKeeper is no mistake in Flink."""
    found = judged(**{"high-availability.type": "zookeeper", "heartbeat.timeout": "50 s"})
    assert (found.errors, found.usable) == ((), {"heartbeat.timeout": "50 s"})
    assert found.warnings == (
        "flinkConfiguration[high-availability.type]: 'zookeeper' is not modelled, so it has no effect here "
        "(modelled are NONE, kubernetes)",
    )


def test_another_scheduler_is_a_warning():
    """It decides how long a job is down when slots are missing, so its absence must be known."""
    (warning,) = judged(**{"jobmanager.scheduler": "Adaptive"}).warnings
    assert warning.startswith(
        "flinkConfiguration[jobmanager.scheduler]: 'Adaptive' is not modelled: here a job"
    )
    assert judged(**{"jobmanager.scheduler": "Default"}).warnings == ()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"heartbeat.timeoutt": "5 s"}, "did you mean heartbeat.timeout?"),
        ({"taskmanager.numberOfTaskSlots": '"4"'}, """'"4"' is not a number of slots (write a whole number"""),
        ({"heartbeat.timeout": "5 parsecs"}, "'5 parsecs' is not a duration"),
        ({"heartbeat.timeout": "5 s", "heartbeat.interval": "6 s"}, "Flink does not start: The heartbeat timeout"),
        ({"taskmanager.memory.process.size": "600 mb"}, "TaskManager memory configuration failed"),
        ({"akka.ask.timeout": "5 s", "pekko.ask.timeout": "5 s"}, "is the same option as akka.ask.timeout"),
        ({"pekko.ask.timeout": "0 ms"}, "must be greater than 0: Flink's components send no RPC without time for the answer"),
        ({"taskmanager.network.request-backoff.max": "3 s"}, "Flink does not accept it: Flink reads whole milliseconds here"),
        ({"taskmanager.memory.segment-size": "5000 b"}, "Flink does not start with 5000 bytes"),
    ],
)  # fmt: skip
def test_mistakes_are_errors_that_name_the_option(options, text):
    """Keys, values and contradictions."""
    found = judged(**options)
    (error,) = (*found.errors, *found.contradictions)
    assert str(error).startswith("flinkConfiguration[")
    assert text in str(error)


def test_a_contradiction_is_named_by_the_key_that_the_file_has():
    """Also by a name of another version, so that its line is found. An option that is not set has the name of the version."""
    for version, key in (("2.x", "akka.ask.timeout"), ("1.15", "pekko.ask.timeout")):
        (error,) = judged(version, **{key: "0 ms"}).contradictions
        assert error.path == f"flinkConfiguration[{key}]"
    text = "akka.ask.timeout: 0 s\ntaskmanager.memory.managed.size: 0 b\nstate.backend: rocksdb\n"
    conf = flinkconf.read(text, "flink-conf.yaml")
    found = flinkconf.judge_options(conf, "2.x")
    assert [conf.line(error.path) for error in found.contradictions] == [1]
    alias = judged("2.x", **{"state.backend": "rocksdb", "taskmanager.memory.size": "0 b"})
    assert any(w.startswith("flinkConfiguration[taskmanager.memory.size]: 0 leaves") for w in alias.warnings)


@pytest.mark.parametrize(
    ("key", "version", "text"),
    [
        ("flink-conf.yaml", "2.0", "Flink 2.0 reads config.yaml instead of flink-conf.yaml"),
        ("config.yaml", "1.18", "Flink 1.18 reads flink-conf.yaml instead of config.yaml"),
        ("flink-conf.yaml", "1.20", ""),
        ("config.yaml", "2.0", ""),
    ],
)
def test_a_key_of_a_config_map_that_the_version_does_not_read_is_a_warning(key, version, text):
    """The key becomes the name of a file, whatever the file with the ConfigMap is called."""
    conf = flinkconf.read(f"kind: ConfigMap\ndata:\n  {key}: |\n    heartbeat.timeout: 5 s\n", "cm.yaml")
    assert conf.not_read_by(version, "cm.yaml").startswith(text)
    assert bool(conf.not_read_by(version, "cm.yaml")) == bool(text)


@pytest.mark.parametrize(
    ("key", "version", "is_error"),
    [
        ("heartbeat.timeout", "1.19", True),
        ("heartbeat.timeout", "1.20", False),
        ("web.backpressure.refresh-interval", "1.12", True),
        ("web.backpressure.refresh-interval", "1.13", False),
        ("taskmanager.network.memory.exclusive-buffers-request-timeout-ms", "1.19", True),
        ("taskmanager.network.memory.buffers-request-timeout", "1.19", False),
    ],
)
def test_a_unit_is_an_error_in_the_versions_that_read_the_key_in_whole_milliseconds(key, version, is_error):
    """A removed key and one of a later version are not read, so they do not stop Flink."""
    found = flinkconf.judge_options(flinkconf.FlinkConf(kind="", options={key: "50 s"}, lines={}), version)
    assert ["does not accept it" in str(error) for error in found.errors] == [True] * is_error


def test_settings_of_another_restart_strategy_are_a_warning():
    """They have no effect in Flink either."""
    found = judged(
        **{"restart-strategy.type": "exponential-delay", "restart-strategy.fixed-delay.attempts": "10"}
    )
    assert [w for w in found.warnings if "has no effect, in Flink too" in w]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("heartbeat.timeout:50000", "write a space after the colon"),
        ("heartbeat.timeout:\t50000", "write a space after the colon"),
        ("heartbeat.timeout = 50000", "write heartbeat.timeout: 50000"),
        ("timeouts", "remove it, or begin it with #"),
    ],
)
def test_a_line_that_flink_ignores_says_how_it_is_written(line, hint):
    """The hint fits what is wrong with the line."""
    conf = flinkconf.read(f"heartbeat.interval: 10000\n{line}\n", "flink-conf.yaml")
    (error,) = flinkconf.judge_options(conf, "1.17").errors
    assert (error.path, error.hint) == ("line 2", hint)
