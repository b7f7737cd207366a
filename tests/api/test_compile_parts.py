"""Parts of a document as data of core: variants, job graph, faults."""

from __future__ import annotations

import pytest
import yaml

from testbed_runtime.api import models
from testbed_runtime.api.compile import compile_fault, job_graph, merged_variants
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.job.jobgraph import JobEdge, SourceConfig
from testbed_runtime.core.job.slots import needed_slots


def spec_of(text):
    return models.ScenarioSpec.model_validate(yaml.safe_load(text))


JOB = """
testbed:
  flinkConfiguration: {a: "1", b: "1"}
  job:
    vertices:
      - {name: source, parallelism: 200, slotSharingGroup: s, source: {recordsPerSecond: 500, keySkew: "1.5"}}
      - {name: count, parallelism: 3, operator: keyed-count, serviceTime: 5us}
      - {name: windows, parallelism: 4, operator: window, window: 2 s}
      - {name: sink, parallelism: 2, sink: ledger, delivery: at-least-once}
    edges: [{from: source, to: count}, {from: count, to: windows, partitioning: rebalance}, {from: windows, to: sink, partitioning: broadcast}]
"""


def test_the_job_graph_has_seconds_and_flinks_maximum_parallelism():
    """200 → 512 key groups; 5us is 5e-6 s."""
    graph = job_graph(spec_of(JOB).testbed.job, seed=3)
    assert [v.max_parallelism for v in graph.vertices] == [512, 128, 128, 128]
    assert graph.vertex("source").source.key_skew == 1.5
    assert graph.vertex("count").operator.service_time_s == pytest.approx(5e-6)
    assert graph.vertex("windows").operator.window_s == 2.0
    assert graph.vertex("sink").sink.delivery == "at-least-once"
    assert graph.edges[0] == JobEdge("source", "count", "hash")


def test_every_field_of_a_source_in_a_document_reaches_the_job():
    """msgspec converts a source by the names of its fields; one that is missing would silently keep its default."""
    assert set(models.Source.model_fields) == set(SourceConfig.__struct_fields__)


def test_needed_slots_are_the_largest_parallelism_of_each_group_added_up():
    """200 of group s, 4 of the default group."""
    assert len(needed_slots(job_graph(spec_of(JOB).testbed.job, seed=1))) == 204


def test_a_scenario_without_variants_has_one_called_main():
    """With everything of the scenario."""
    (setting,) = merged_variants(spec_of(JOB))
    assert (setting.name, setting.control, setting.faults) == ("main", True, ())


def test_a_variant_merges_options_and_expectations_and_replaces_the_rest():
    """Key by key; item by item of the same metric, quantile and phase."""
    spec = spec_of(
        JOB
        + """
expect: [{metric: job.state, equals: RUNNING}, {metric: latency, quantile: "0.5", max: 1 s}]
faults: [{name: f, duration: 1 s, jobmanager: {kill: {}}}]
variants:
  - name: v
    flinkVersion: "1.12"
    control: false
    faults: []
    taskManagers: {replicas: 9}
    flinkConfiguration: {b: "2"}
    expect: [{metric: job.state, equals: FAILED}, {metric: latency, quantile: "0.99", max: 2 s}]
"""
    )
    (setting,) = merged_variants(spec)
    assert setting.testbed.flink_configuration == {"a": "1", "b": "2"}
    assert setting.testbed.flink_version == "1.12"
    assert setting.testbed.task_managers.replicas == 9
    assert (setting.faults, setting.control) == ((), False)
    assert [(e.metric, e.quantile, e.equals) for e in setting.expect] == [
        ("job.state", None, "FAILED"), ("latency", "0.5", None), ("latency", "0.99", None),
    ]  # fmt: skip


FAULTS = [
    (
        "{network: {latency: {delay: 50ms, mode: one-way, jitter: 5ms}}}",
        "network.latency",
        {"latency_s": 0.05, "mode": "one-way", "jitter_s": 0.005, "correlation": 0},
    ),
    ("{network: {loss: {percent: 3}}}", "network.loss", {"percent": 3, "burst": 1}),
    (
        "{network: {loss: {percent: 3, burst: 5}}}",
        "network.loss",
        {"percent": 3, "burst": 5},
    ),
    (
        "{network: {latency: {delay: 50ms, mode: one-way, jitter: 5ms, correlation: 25}}}",
        "network.latency",
        {"latency_s": 0.05, "mode": "one-way", "jitter_s": 0.005, "correlation": 25},
    ),
    ("{network: {duplicate: {percent: 3}}}", "network.duplicate", {"percent": 3}),
    ("{network: {reorder: {percent: 3}}}", "network.reorder", {"percent": 3, "delay_s": 0.01}),
    ("{network: {corrupt: {percent: 3}}}", "network.corrupt", {"percent": 3}),
    ("{pod: {delete: {}}}", "pod.delete", {}),
    ("{pod: {evict: {}}}", "pod.evict", {}),
    ("{network: {partition: {}}}", "network.partition", {}),
    ("{network: {reset: {}}}", "network.reset", {}),
    ("{network: {stall: {}}}", "network.stall", {}),
    ("{network: {halfOpen: {}}}", "network.half-open", {}),
    ("{network: {bandwidth: {bytesPerSecond: 1000}}}", "network.bandwidth", {"bytes_per_s": 1000}),
    (
        "{frames: {delay: {frameClass: credit, delay: 1 s}}}",
        "frames.delay",
        {"frame_class": "credit", "delay_s": 1.0},
    ),
    ("{frames: {drop: {frameClass: buffer}}}", "frames.drop", {"frame_class": "buffer", "percent": 100}),
    ("{frames: {withholdCredit: {}}}", "frames.withhold-credit", {}),
    ("{registration: {delay: {delay: 3 s}}}", "registration.delay", {"delay_s": 3.0}),
    (
        "{registration: {delay: {attempts: 4, vertex: source}}}",
        "registration.delay",
        {"attempts": 4, "vertex": "source"},
    ),
    ("{heartbeats: {mute: {direction: request}}}", "heartbeats.mute", {"direction": "request"}),
    (
        "{rpc: {delay: {method: SubmitTask, delay: 1 s}}}",
        "rpc.delay",
        {"method": "SubmitTask", "delay_s": 1.0},
    ),
    ("{process: {kill: {}}}", "process.kill", {}),
    ("{process: {pause: {}}}", "process.pause", {}),
    ("{jobmanager: {kill: {}}}", "jobmanager.kill", {}),
    ("{jobmanager: {pause: {}}}", "jobmanager.pause", {}),
    ("{store: {slow: {delay: 1 s}}}", "store.slow", {"delay_s": 1.0}),
    ("{store: {failing: {}}}", "store.failing", {}),
]


@pytest.mark.parametrize(
    ("text", "kind", "params"), FAULTS, ids=[f"{k}-{n}" for n, (_, k, _) in enumerate(FAULTS)]
)
def test_every_fault_kind_of_the_model_can_be_written(text, kind, params):
    """Kind and parameters as core.faults.kinds declares them."""
    spec = models.FaultSpec.model_validate({"name": "f", "duration": "2 s", **yaml.safe_load(text)})
    fault = compile_fault(spec)
    assert (fault.kind, fault.params) == (kind, params)
    assert set(params) <= {p.key for p in KINDS[kind].parameters}


def test_the_documents_kinds_are_those_of_the_model():
    """Neither has one more."""
    assert {kind for _, kind, _ in FAULTS} == set(KINDS)


def test_at_deploy_is_before_the_submission():
    """Not a time of the timeline."""
    spec = models.FaultSpec.model_validate(
        {"name": "f", "at": "deploy", "duration": "2 s", "store": {"failing": {}}}
    )
    assert (compile_fault(spec).before_submit, compile_fault(spec).at_s) == (True, 0.0)
