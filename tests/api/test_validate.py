"""Bad input: every problem at once, each with the field's path, the problem and how to fix it."""

from __future__ import annotations

import copy

import pytest
import yaml

from testbed_runtime.api.validate import validate
from testbed_runtime.api.validate_kinds import validate_kind
from tests.api import documents

GOOD = yaml.safe_load(
    """
apiVersion: headgate.dev/v1alpha1
kind: Scenario
metadata: {name: good}
spec:
  testbed:
    flinkVersion: 2.x
    taskManagers: {replicas: 5, slots: 1, replaceLost: Never}
    flinkConfiguration: {heartbeat.interval: 1 s, heartbeat.timeout: 5 s, execution.checkpointing.interval: 1 s}
    job:
      vertices:
        - {name: source, parallelism: 2, slotSharingGroup: src, source: {recordsPerSecond: 2000, keySkew: "1.1"}}
        - {name: count, parallelism: 2, slotSharingGroup: main, operator: keyed-count, serviceTime: 5us}
        - {name: sink, parallelism: 2, slotSharingGroup: main, sink: ledger}
      edges:
        - {from: source, to: count, partitioning: hash}
        - {from: count, to: sink, partitioning: forward}
  timeline: {warmUp: 3s, baseline: 4s, observation: 12s}
  faults:
    - {name: long-gc, at: 0s, duration: 8s, target: {taskManagers: {running: count, mode: one}}, process: {pause: {}}}
  variants:
    - {name: short, expect: [{metric: recovery.detect, max: 5.5s}]}
    - {name: long, flinkConfiguration: {heartbeat.timeout: 12 s}}
  expect: [{metric: delivery.lost, equals: 0}]
"""
)


def changed(change):
    document = copy.deepcopy(GOOD)
    change(document["spec"])
    return validate(document)


def errors(change):
    return [str(e) for e in changed(change).errors]


def fault(**fields):
    """One fault instead of the good one's."""
    base = {"name": "f", "duration": "1 s", "target": {"taskManagers": {}}}
    return lambda spec: spec.update(faults=[{**base, **fields}])


def test_the_document_of_the_design_is_valid():
    """No error, no warning."""
    findings = validate(GOOD)
    assert (findings.errors, findings.warnings, findings.without_effect) == ((), (), ())


def configured(options):
    return lambda spec: spec["testbed"]["flinkConfiguration"].update(options)


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (
            configured({"pekko.ask.timeout": "15"}),
            "spec.testbed.flinkConfiguration[pekko.ask.timeout]: '15' has no unit, so it is 15 ms (write '15 s' or '15 ms')",
        ),
        (
            lambda s: s["timeline"].update({"warmUp": "4"}),
            "spec.timeline.warmUp: '4' has no unit, so it is 4 ms (write '4 s' or '4 ms')",
        ),
        (
            lambda s: s["faults"][0].update({"duration": "800"}),
            "spec.faults[0].duration: '800' has no unit, so it is 800 ms (write '800 s' or '800 ms')",
        ),
        (
            configured({"restart-strategy.exponential-delay.jitter-factor": "10"}),
            "spec.testbed.flinkConfiguration[restart-strategy.exponential-delay.jitter-factor]: "
            "10 is a share of 1,000 % (write '0.1' for 10 %)",
        ),
        (
            configured({"restart-strategy.failure-rate.delay": "2 s"}),
            "spec.testbed.flinkConfiguration[restart-strategy.failure-rate.delay]: has no effect, in Flink too, because "
            "restart-strategy.type is not set (write restart-strategy.type: failure-rate)",
        ),
        (
            configured({"slot.request.timeout": "70 ms"}),
            "spec.testbed.flinkConfiguration[slot.request.timeout]: is not more than slot.request.max-interval and "
            "slotmanager.requirement-check.delay together, so every request for a slot expires before it is looked at",
        ),
        (
            configured({"heartbeat.timeout": "1 s"}),
            "spec.testbed.flinkConfiguration[heartbeat.timeout]: is not more than heartbeat.interval, so a TaskManager can be lost "
            "without a fault",
        ),
        (
            configured({"taskmanager.network.memory.max-buffers-per-channel": "1"}),
            "spec.testbed.flinkConfiguration[taskmanager.network.memory.max-buffers-per-channel]: with 1, a task that has begun a "
            "buffer processes nothing more until a checkpoint barrier ends it (write at least 2)",
        ),
        (
            lambda s: s["expect"].append({"metric": "throughput.relative", "min": 95}),
            "spec.expect[1].min: 95 is 9,500 % (write '95 %' or '0.95')",
        ),
        (
            lambda s: s["variants"][0]["expect"].append(
                {"metric": "latency.relative", "quantile": "p99", "max": 150}
            ),
            "spec.variants[0].expect[1].max: 150 is 15,000 % (write '150 %' or '1.5')",
        ),
        (
            lambda s: s["expect"].append({"metric": "recovery.total", "max": "5"}),
            "spec.expect[1].max: 5 has no unit, so it is 5 s (write '5 s' or '5 ms')",
        ),
    ],
)
def test_a_value_that_was_probably_not_meant_is_a_warning(change, warning):
    """A bare number is milliseconds in Flink, and a share above 1 was a percentage."""
    findings = changed(change)
    assert findings.errors == ()
    assert warning in findings.warnings


def test_bounds_that_say_what_they_mean_have_no_warning():
    """A percentage, a share, a factor of a ratio that grows, a count, and zero seconds."""
    bounds = [
        {"metric": "throughput.relative", "min": "95 %"},
        {"metric": "throughput.relative", "min": "0.95", "phase": "fault"},
        {"metric": "latency.relative", "quantile": "p99", "max": 3},
        {"metric": "failovers.count", "max": 95},
        {"metric": "recovery.cancel", "max": 0},
    ]
    findings = changed(lambda s: s["expect"].extend(bounds))
    assert (findings.errors, findings.warnings) == ((), ())


def test_nought_needs_no_unit():
    """`0` is the same in every unit."""
    options = {"execution.checkpointing.min-pause": "0"}
    assert changed(configured(options)).warnings == ()


BAD = {
    "unknown field": (
        lambda s: s.update(testbd={}),
        "spec.testbd: is an unknown field (did you mean testbed?",
    ),
    "unknown field deep": (
        lambda s: s["testbed"]["taskManagers"].update(replica=1),
        "spec.testbed.taskManagers.replica: is an unknown field (did you mean replicas?",
    ),
    "option within a typo": (
        configured({"heartbeat.timout": "1 s"}),
        "spec.testbed.flinkConfiguration[heartbeat.timout]: is not a Flink option (did you mean heartbeat.timeout?)",
    ),
    "own option unknown": (
        configured({"headgate.fence": "1 s"}),
        "spec.testbed.flinkConfiguration[headgate.fence]: is not an option of Headgate (",
    ),
    "option value": (
        configured({"heartbeat.timeout": "soon"}),
        "spec.testbed.flinkConfiguration[heartbeat.timeout]: 'soon' is not a duration: write an integer and a unit",
    ),
    "option choice": (
        configured({"restart-strategy.type": "never"}),
        "spec.testbed.flinkConfiguration[restart-strategy.type]: 'never' is not one of none, fixed-delay",
    ),
    "option that is a number": (
        configured({"heartbeat.rpc-failure-threshold": 2}),
        "spec.testbed.flinkConfiguration[heartbeat.rpc-failure-threshold]: must be text, got 2 (write it in quotes: '2')",
    ),
    "duration of an option that is a number": (
        configured({"heartbeat.timeout": 15}),
        "spec.testbed.flinkConfiguration[heartbeat.timeout]: must be text, got 15 (write a unit: 15 s or 15 ms)",
    ),
    "duration of a field that is a number": (
        lambda s: s["timeline"].update({"baseline": 4}),
        "spec.timeline.baseline: must be text, got 4 (write a unit: 4 s or 4 ms)",
    ),
    "option that the testbed sets": (
        configured({"taskmanager.numberOfTaskSlots": "2"}),
        "spec.testbed.flinkConfiguration[taskmanager.numberOfTaskSlots]: is set by the testbed itself (write it as taskManagers.slots)",
    ),
    "option twice": (
        configured({"akka.ask.timeout": "1 s", "pekko.ask.timeout": "1 s"}),
        "spec.testbed.flinkConfiguration[pekko.ask.timeout]: is the same option as akka.ask.timeout",
    ),
    "a lease that is never renewed in time": (
        configured({"high-availability.kubernetes.leader-election.renew-deadline": "5 s"}),
        "spec.testbed.flinkConfiguration[high-availability.kubernetes.leader-election.renew-deadline]: '5 s' is not more than "
        "high-availability.kubernetes.leader-election.retry-period ('5 s')",
    ),
    "a backoff that is no int": (
        configured({"taskmanager.network.request-backoff.max": "2147483648 ms"}),
        "spec.testbed.flinkConfiguration[taskmanager.network.request-backoff.max]: must be at most 2147483647 ms (an int in Flink)",
    ),
    "a request for buffers that never waits": (
        configured({"taskmanager.network.memory.buffers-request-timeout": "0 ms"}),
        "spec.testbed.flinkConfiguration[taskmanager.network.memory.buffers-request-timeout]: Flink does not start: The timeout for "
        "requesting exclusive buffers should be positive. (write at least 1 ms)",
    ),
    "a negative backoff": (
        configured({"taskmanager.network.request-backoff.initial": "-5"}),
        "spec.testbed.flinkConfiguration[taskmanager.network.request-backoff.initial]: '-5' is too small: it must be at least 0",
    ),
    "options against each other": (
        configured({"heartbeat.timeout": "500 ms"}),
        "spec.testbed.flinkConfiguration[heartbeat.timeout]: Flink does not start: The heartbeat timeout should be larger "
        "or equal than the heartbeat interval. (it is '500 ms': make it a few times heartbeat.interval, 1 s)",
    ),
    "no transfer of state": (
        configured({"state.backend.rocksdb.checkpoint.transfer.thread.num": "-2"}),
        "num]: must be at least -1: Flink uses the threads of cluster.io-pool.size for less, which Headgate does not have (-1 stands for",
    ),
    "share that is more than all": (
        configured({"state.backend.rocksdb.memory.write-buffer-ratio": "1.5"}),
        "write-buffer-ratio]: must be between 0 and 1 (the default is 0.5)",
    ),
    "unaligned checkpoints of records in a queue": (
        configured({"headgate.flow-control": "pid", "execution.checkpointing.unaligned.enabled": "true"}),
        "unaligned.enabled]: headgate.flow-control pid queues records in the task",
    ),
    "state that does not expire": (
        lambda s: s["testbed"]["job"]["vertices"][-1].update(stateTtl="5 s"),
        "stateTtl: only `operator: keyed-count` has state that expires (leave it out)",
    ),
    "records of two sizes at one vertex": (
        lambda s: s["testbed"]["job"].update(
            vertices=[
                *s["testbed"]["job"]["vertices"],
                {"name": "large", "parallelism": 1, "source": {"recordBytes": 1000}},
            ],
            edges=[
                *s["testbed"]["job"]["edges"],
                {"from": "large", "to": s["testbed"]["job"]["vertices"][-1]["name"]},
            ],
        ),
        "gets records of 100 and 1000 bytes, and can read only one size (write the same recordBytes",
    ),
    "fraction that Flink refuses": (
        configured({"taskmanager.memory.network.fraction": "10"}),
        "spec.testbed.flinkConfiguration[taskmanager.memory.network.fraction]: Flink does not start: TaskManager memory "
        "configuration failed: Inconsistently configured Key: 'taskmanager.memory.network.fraction'",
    ),
    "process that is too small": (
        configured({"taskmanager.memory.process.size": "512m"}),
        "spec.testbed.flinkConfiguration[taskmanager.memory.process.size]: Flink does not start: TaskManager memory "
        "configuration failed: Sum of configured Framework Heap Memory (128.000mb (134217728 bytes)), ",
    ),
    "version that is a number": (
        lambda s: s["testbed"].update(flinkVersion=1.12),
        "spec.testbed.flinkVersion: 1.12 is a number (write the version in quotes: '1.12')",
    ),
    "unknown version": (
        lambda s: s["testbed"].update(flinkVersion="1.11"),
        "spec.testbed.flinkVersion: '1.11' is not a known version of Flink (the nearest is '1.12';",
    ),
    "unknown fault kind": (
        fault(procss={"kill": {}}),
        "spec.faults[0].procss: is neither a fault kind nor a field of a fault (did you mean process?",
    ),
    "unknown kind in a family": (
        fault(network={"latncy": {}}),
        "spec.faults[0].network.latncy: is neither a fault kind nor a field of a fault (did you mean latency?",
    ),
    "no fault kind": (fault(), "spec.faults[0]: needs exactly one fault kind of network, frames"),
    "two fault kinds": (
        fault(process={"kill": {}}, store={"failing": {}}),
        "needs exactly one fault kind of network, frames, registration, heartbeats, rpc, process, pod, jobmanager, store; there are process and store",
    ),
    "edge to a missing vertex": (
        lambda s: s["testbed"]["job"]["edges"][1].update(to="snk"),
        "spec.testbed.job.edges[1].to: vertex 'snk' does not exist (did you mean sink?)",
    ),
    "cycle": (
        lambda s: s["testbed"]["job"]["edges"].append({"from": "count", "to": "count"}),
        "spec.testbed.job.edges: there is a cycle among count (remove",
    ),
    "negative duration": (
        lambda s: s["faults"][0].update(duration="-3s"),
        "spec.faults[0].duration: '-3s' is negative: a duration is 0 or more, as in '500 ms' or '10 s'",
    ),
    "fraction": (
        lambda s: s["timeline"].update(warmUp="1.5s"),
        "spec.timeline.warmUp: '1.5s' has a fraction: write a smaller unit",
    ),
    "zero duration": (
        lambda s: s["faults"][0].update(duration="0 s"),
        "spec.faults[0].duration: must be greater than 0",
    ),
    "too few slots": (
        lambda s: s["testbed"]["taskManagers"].update(replicas=3),
        "spec.testbed.taskManagers: the job needs 4 slots (the largest parallelism of each slotSharingGroup, added up), but there are 3 (3 × 1)",
    ),
    "forward with other parallelism": (
        lambda s: s["testbed"]["job"]["vertices"][2].update(parallelism=1),
        "spec.testbed.job.edges[1].partitioning: forward needs equal parallelism, count has 2 and sink 1",
    ),
    "vertex twice": (
        lambda s: s["testbed"]["job"]["vertices"][2].update(name="count"),
        "spec.testbed.job.vertices[2].name: 'count' is a duplicate",
    ),
    "vertex without a role": (
        lambda s: s["testbed"]["job"]["vertices"][2].pop("sink"),
        "spec.testbed.job.vertices[2]: needs exactly one of source, operator, sink, iteration; there is none",
    ),
    "source with an input": (
        lambda s: s["testbed"]["job"]["edges"].append({"from": "count", "to": "source"}),
        "spec.testbed.job.vertices[0]: the source 'source' has an input",
    ),
    "operator without output": (
        lambda s: s["testbed"]["job"]["edges"].pop(),
        "spec.testbed.job.vertices[1]: 'count' has no output (add an edge with from: count, or make it a sink)",
    ),
    "records below their header": (
        lambda s: s["testbed"]["job"]["vertices"][0]["source"].update(recordBytes=8),
        "spec.testbed.job.vertices[0].source.recordBytes: must be at least 48, got 8",
    ),
    "fault outlives the observation": (
        lambda s: s["faults"][0].update(duration="30s"),
        "spec.faults[0].duration: the fault ends 30 s after the baseline, the observation only lasts 12 s",
    ),
    "fault twice": (
        lambda s: s["faults"].append(s["faults"][0]),
        "spec.faults[1].name: 'long-gc' is a duplicate",
    ),
    "target that runs nothing": (
        lambda s: s["faults"][0]["target"]["taskManagers"].update(running="cuont"),
        "spec.faults[0].target.taskManagers.running: the vertex 'cuont' does not exist (did you mean count?)",
    ),
    "target that is not there": (
        fault(process={"kill": {}}, target={"taskManagers": {"names": ["tm-9"]}}),
        "spec.faults[0].target.taskManagers.names[0]: 'tm-9' does not exist (there are tm-0 to tm-4)",
    ),
    "target of the wrong side": (
        fault(jobmanager={"kill": {}}),
        "spec.faults[0].target: jobmanager.kill hits the JobManager",
    ),
    "message to the other side": (
        fault(rpc={"delay": {"method": "SubmitTask", "delay": "1s"}}, target={"jobManager": {}}),
        "spec.faults[0].target: SubmitTask is a message to TaskManagers, so the JobManager never receives it (write target: {taskManagers: {}})",
    ),
    "message to the JobManager": (
        fault(rpc={"delay": {"method": "OfferSlots", "delay": "1s"}}),
        "spec.faults[0].target: OfferSlots is a message to the JobManager, so TaskManagers never receive it (write target: {jobManager: {}})",
    ),
    "running at deploy": (
        fault(
            at="deploy",
            registration={"delay": {"delay": "1s"}},
            target={"taskManagers": {"running": "count"}},
        ),
        "spec.faults[0].target: nothing runs before the job is submitted",
    ),
    "mode without value": (
        fault(process={"kill": {}}, target={"taskManagers": {"mode": "fixed"}}),
        "spec.faults[0].target.taskManagers.value: mode fixed needs a value",
    ),
    "peers of a process": (
        fault(process={"kill": {}}, target={"taskManagers": {}, "peers": {"names": ["tm-1"]}}),
        "spec.faults[0].target.peers: process.kill hits processes, not links",
    ),
    "vertex of a registration": (
        fault(registration={"delay": {"attempts": 2, "vertex": "sorce"}}),
        "spec.faults[0].registration.delay.vertex: the vertex 'sorce' does not exist (did you mean source?)",
    ),
    "unknown message": (
        fault(rpc={"delay": {"method": "SubmitTsk", "delay": "1s"}}),
        "spec.faults[0].rpc.delay.method: the message 'SubmitTsk' does not exist (did you mean SubmitTask?)",
    ),
    "jitter above the delay": (
        fault(network={"latency": {"delay": "10ms", "mode": "one-way", "jitter": "20ms"}}),
        "spec.faults[0].network.latency.jitter: is more than the delay",
    ),
    "unknown metric": (
        lambda s: s["expect"].append({"metric": "delivery.lots", "equals": 0}),
        "spec.expect[1].metric: 'delivery.lots' is not a metric (did you mean delivery.lost",
    ),
    "expectation without a bound": (
        lambda s: s["expect"].append({"metric": "delivery.lost"}),
        "spec.expect[1]: set either `equals`, or `min`, `max` or both",
    ),
    "bound in another unit": (
        lambda s: s["expect"].append({"metric": "recovery.detect", "max": "5 apples"}),
        "spec.expect[1].max: '5 apples' is not a valid bound",
    ),
    "bound that is a float": (
        lambda s: s["expect"].append({"metric": "recovery.detect", "max": 5.5}),
        "spec.expect[1].max: 5.5 is not an integer (write it in quotes: '5.5')",
    ),
    "variant twice": (
        lambda s: s["variants"].append({"name": "short"}),
        "spec.variants[2].name: 'short' is a duplicate",
    ),
    "problem of one variant": (
        lambda s: s["variants"][1]["flinkConfiguration"].update({"heartbeat.timeout": "900 ms"}),
        "spec.variants[1].flinkConfiguration[heartbeat.timeout]: Flink does not start: The heartbeat timeout",
    ),
    "name that is no label": (
        lambda s: s["faults"][0].update(name="Long GC"),
        "spec.faults[0].name: 'Long GC' is not a valid name (use lower-case letters, digits and dashes, beginning with a letter)",
    ),
    "comparison with an unknown variant": (
        lambda s: s["expect"].append({"metric": "recovery.detect", "versus": "shrt", "improvesBy": "20 %"}),
        "spec.expect[1].versus: variant 'shrt' does not exist (did you mean short?)",
    ),
    "improvement of a metric without a better direction": (
        lambda s: s["expect"].append(
            {"metric": "checkpoints.persisted", "versus": "short", "improvesBy": "20 %"}
        ),
        "checkpoints.persisted has no better direction, so it cannot improve",
    ),
    "comparison without a bound": (
        lambda s: s["expect"].append({"metric": "recovery.detect", "versus": "short"}),
        "spec.expect[1]: with `versus`, set either `improvesBy` or `within`",
    ),
    "stop without a comparison": (
        lambda s: s.update(trials=20, stopEarly={"minTrials": 7}),
        "spec.stopEarly: needs an expectation with versus",
    ),
    "jitter beyond the observation": (
        lambda s: s["faults"][0].update(jitter="10 s"),
        "spec.faults[0].duration: the fault ends 18 s after the baseline",
    ),
    "wrong type": (lambda s: s.update(faults={}), "spec.faults: must be a list, got {}"),
    "missing": (lambda s: s.pop("testbed"), "spec.testbed: is missing"),
    "missing, with few values": (
        lambda s: s["faults"][0].update(network={"latency": {"delay": "5 ms"}}, process=None),
        "spec.faults[0].network.latency.mode: is missing (write one of one-way, round-trip)",
    ),
    "missing, a duration": (
        lambda s: s["faults"][0].update(network={"latency": {"mode": "one-way"}}, process=None),
        "spec.faults[0].network.latency.delay: is missing (write an integer and a unit",
    ),
}


@pytest.mark.parametrize(("change", "text"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_reported_with_path_problem_and_fix(change, text):
    """One line a problem, and it starts with the path of the field."""
    found = errors(change)
    assert any(text in line for line in found), found
    assert all(line.startswith("spec") for line in found)


def test_all_problems_are_reported_at_once():
    """Not the first only."""

    def change(spec):
        spec["testbed"]["taskManagers"]["replicas"] = 3
        spec["testbed"]["flinkConfiguration"]["heartbeat.timout"] = "1 s"
        spec["faults"][0]["duration"] = "30 s"

    assert len(errors(change)) == 3


def test_a_problem_that_variants_inherit_is_reported_once():
    """At the scenario, not again at each variant."""
    found = errors(lambda s: s["faults"][0].update(duration="30s"))
    assert len(found) == 1


def test_an_option_of_flink_without_effect_is_listed_and_an_unknown_one_is_a_warning():
    """Neither is an error."""
    findings = changed(configured({"rest.port": "1", "my.company.key": "x"}))
    assert findings.errors == ()
    assert findings.without_effect == ("rest.port",)
    assert findings.warnings == (
        "spec.testbed.flinkConfiguration[my.company.key]: is not known; it changes nothing here",
    )


def test_an_alias_is_accepted_with_a_hint_at_the_current_name():
    """akka.ask.timeout is pekko.ask.timeout."""
    findings = changed(configured({"akka.ask.timeout": "5 s"}))
    assert findings.errors == ()
    assert findings.warnings == (
        "spec.testbed.flinkConfiguration[akka.ask.timeout]: akka.ask.timeout is called pekko.ask.timeout today, "
        "and Flink 2.x still reads akka.ask.timeout",
    )


def test_an_option_newer_than_the_version_is_a_warning():
    """partition-request-timeout came with 1.19."""

    def change(spec):
        spec["testbed"]["flinkVersion"] = "1.12"
        spec["testbed"]["flinkConfiguration"]["taskmanager.network.partition-request-timeout"] = "1 s"

    findings = changed(change)
    assert findings.errors == ()
    note = "came with Flink 1.19; 1.12 ignores it (leave it out, or choose 1.19 or later)"
    assert any(note in text for text in findings.warnings)
    assert findings.without_effect == (), "the note says so"


def test_an_option_that_had_another_name_in_the_version_is_a_warning_with_that_name():
    """The buffer timeout was renamed in 1.18; before that, Flink ignores the newer name."""

    def change(spec):
        spec["testbed"]["flinkVersion"] = "1.17"
        spec["testbed"]["flinkConfiguration"]["execution.buffer-timeout.interval"] = "10 ms"

    (warning,) = (text for text in changed(change).warnings if "execution.buffer-timeout" in text)
    assert warning.endswith(
        "came with Flink 1.18; 1.17 ignores it and reads execution.buffer-timeout, but here it has its effect"
    )


def test_a_long_value_is_cut_in_messages():
    """A message stays a line."""
    assert len(errors(lambda s: s["testbed"].update(flinkVersion="x" * 5000))[0]) < 200


@pytest.mark.parametrize("document", [None, [], "text", {"spec": None}, {"apiVersion": 1}])
def test_a_document_that_is_no_scenario_is_reported_and_never_raises(document):
    """Total over plain data."""
    assert validate(document).errors


@pytest.mark.parametrize("key", ["execution.state-recovery.path", "execution.savepoint.path"])
def test_the_folder_of_a_kept_checkpoint_is_named_in_scenarios_of_one_machine_only(key: str):
    """It is not in the pods. By either name, in the testbed and in a variant."""
    option = {key: "headgate-runs/r/files/main-1"}
    run, testbed, scenario = (documents.good(kind) for kind in ("ScenarioRun", "Testbed", "Scenario"))
    assert not validate_kind(run).errors
    assert not validate_kind(testbed).errors
    testbed["spec"] |= {"flinkConfiguration": option, "jobState": "suspended"}
    run["spec"]["scenario"]["testbed"]["flinkConfiguration"] = option
    run["spec"]["scenario"]["variants"][1]["flinkConfiguration"] = option
    scenario["spec"]["testbed"]["flinkConfiguration"] = option
    refused = [error for document in (testbed, run) for error in validate_kind(document).errors]
    assert [error.path for error in refused] == [
        f"spec.flinkConfiguration[{key}]",
        f"spec.scenario.testbed.flinkConfiguration[{key}]",
        f"spec.scenario.variants[1].flinkConfiguration[{key}]",
    ]
    assert all("which pods cannot read" in error.problem for error in refused)
    assert all("--from-checkpoint" in error.hint for error in refused)
    assert not validate_kind(scenario).errors


@pytest.mark.parametrize("key", ["execution.state-recovery.path", "execution.savepoint.path"])
def test_a_kept_checkpoint_in_config_maps_is_brought_by_a_runner(key: str):
    """A run and the suspended testbeds of its trials name it. A testbed that submits its job itself has no runner."""
    option = {key: "configmap://run-checkpoint-0"}
    run, testbed = (documents.good(kind) for kind in ("ScenarioRun", "Testbed"))
    run["spec"]["scenario"]["testbed"]["flinkConfiguration"] = option
    testbed["spec"] |= {"flinkConfiguration": option, "jobState": "suspended"}
    assert [error for document in (testbed, run) for error in validate_kind(document).errors] == []
    testbed["spec"]["jobState"] = "running"
    (refused,) = validate_kind(testbed).errors
    assert "only the job of a run" in refused.problem


@pytest.mark.parametrize("key", ["security.ssl.internal.enabled", "security.ssl.enabled"])
def test_tls_is_accepted_in_every_place(key: str):
    """The option by either name: on one machine the host makes the certificate, in pods the operator."""
    run, testbed, scenario = (documents.good(kind) for kind in ("ScenarioRun", "Testbed", "Scenario"))
    testbed["spec"]["flinkConfiguration"] = {key: "True"}
    run["spec"]["scenario"]["variants"][1]["flinkConfiguration"] = {key: "true"}
    scenario["spec"]["testbed"]["flinkConfiguration"] = {key: "true"}
    assert [error for document in (testbed, run, scenario) for error in validate_kind(document).errors] == []


def test_a_cipher_suite_that_cannot_be_used_is_reported_before_anything_starts():
    """With the path of the option, and the suites that can be used."""
    option = {"security.ssl.internal.enabled": "true", "security.ssl.algorithms": "TLS_RSA_WITH_RC4_128_SHA"}
    (found,) = errors(lambda s: s["testbed"].update(flinkConfiguration=option))
    assert found.startswith(
        "spec.testbed.flinkConfiguration[security.ssl.algorithms]: 'TLS_RSA_WITH_RC4_128_SHA' is not supported"
    )
    assert "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" in found


@pytest.mark.parametrize(
    "key",
    [
        "security.ssl.internal.keystore-password",
        "security.ssl.key-password",
        "security.ssl.rest.key-password",
        "s3.secret-key",
        "fs.s3a.secret.key",
    ],
)
def test_a_password_is_refused_because_documents_are_recorded(key: str):
    """A keystore without effect is accepted and listed, as other options of Flink are. Its password is not."""
    (found,) = errors(configured({key: "changeit"}))
    assert "is a secret" in found
    assert "changeit" not in found
    keystore = {"security.ssl.internal.keystore": "internal.keystore"}
    assert changed(configured(keystore)).errors == ()
