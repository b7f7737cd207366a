"""The plan of a run, compiled from a validated document."""

from __future__ import annotations

import json

import pytest
import yaml
from msgspec import to_builtins
from msgspec.structs import replace

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.trial.manifest import TaskManagersEntry
from testbed_runtime.core.trial.timeline import Windows
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.runner.conclude import expectations_of
from testbed_runtime.runner.manifest import Manifest, RunInfo, job_entry

DOCUMENT = yaml.safe_load("""
apiVersion: headgate.dev/v1alpha1
kind: Scenario
metadata: {name: small}
spec:
  seed: 7
  trials: 2
  testbed:
    taskManagers: {replicas: 3, slots: 2, replaceLost: 500 ms}
    flinkConfiguration: {heartbeat.timeout: 12 s}
    job:
      vertices:
        - {name: source, slotSharingGroup: src, source: {recordsPerSecond: 100}}
        - {name: sink, slotSharingGroup: snk, sink: file, path: words.txt}
      edges: [{from: source, to: sink}]
  timeline: {warmUp: 2 s, baseline: 3 s, observation: 10 s, drain: 4 s}
  faults: [{name: pause, at: 1 s, duration: 8 s, target: {taskManagers: {}}, process: {pause: {}}}]
  variants:
    - {name: short}
    - {name: long, flinkConfiguration: {heartbeat.timeout: 20 s}, taskManagers: {replicas: 4}}
    - {name: quiet, faults: []}
  expect: [{metric: job.state, equals: RUNNING}, {metric: latency, quantile: p99, phase: before, max: 2 s}]
""")


def compiled(folder, **changes):
    scenario = validate({**DOCUMENT, "spec": {**DOCUMENT["spec"], **changes.pop("spec", {})}}).valid()
    return compile_run(scenario, scenario_folder=folder, **changes)


def test_a_plan_has_everything_that_a_trial_needs_in_si_units(tmp_path):
    """Options, replicas, slots, the delay of a replacement, phases, faults, seeds and expectations."""
    plan = compiled(tmp_path, variants=["long"])
    assert [(t.trial, t.seed, t.testbed.job.seed) for t in plan.trials] == [
        ("long-control-1", 7, 7), ("long-1", 7, 7), ("long-2", 8, 8),
    ]  # fmt: skip
    trial = plan.trials[1]
    assert trial.testbed.configuration == {"heartbeat.timeout": "20 s"}
    assert trial.testbed.task_managers == ("tm-0", "tm-1", "tm-2", "tm-3")
    assert trial.windows == Windows(warm_up_s=2, baseline_s=3, observation_s=10, drain_s=4)
    assert trial.testbed.output_paths == ["words.txt"]
    retained = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
    assert replace(trial.testbed, configuration=retained).output_paths == ["jobs", "words.txt"]
    assert [f.kind for f in trial.faults] == ["process.pause"]
    assert [e.text for e in trial.expectations] == [
        "job.state equals RUNNING", "latency p99 (baseline) at most 2 s",
    ]  # fmt: skip


def test_a_variant_without_faults_has_no_control_trial(tmp_path):
    """It would be the same trial."""
    assert [t.trial for t in compiled(tmp_path, variants=["quiet"]).trials] == ["quiet-1", "quiet-2"]
    assert [t.role for t in compiled(tmp_path, control=False).trials] == ["fault"] * 6


def test_a_lost_taskmanager_is_replaced_after_seconds_or_never(tmp_path):
    """`replaceLost` is a number in the plan, and a text again in the manifest."""
    testbed = compiled(tmp_path, variants=["short"]).trials[0].testbed
    assert (testbed.slots, testbed.replace_lost_s) == (2, 0.5)
    assert job_entry(testbed).task_managers == TaskManagersEntry(3, 2, "500 ms")
    never = compiled(tmp_path, variants=["long"]).trials[0].testbed
    assert (never.slots, never.replace_lost_s) == (1, None)
    assert job_entry(never).task_managers.replace_lost == "Never"


def test_an_unknown_variant_is_refused(tmp_path):
    """With the nearest name, or those that exist."""
    with pytest.raises(
        UserError, match=r"--variant: variant 'x' does not exist \(there are short, long, quiet\)"
    ):
        compiled(tmp_path, variants=["x"])
    with pytest.raises(UserError, match=r"'qiet' does not exist \(did you mean quiet\?\)"):
        compiled(tmp_path, variants=["qiet"])
    with pytest.raises(
        UserError, match=r"variants 'qiet', 'shrt' do not exist \(did you mean quiet, short\?\)"
    ):
        compiled(tmp_path, variants=["qiet", "long", "shrt"])
    with pytest.raises(UserError, match=r"'qiet', 'x' do not exist \(there are short, long, quiet\)"):
        compiled(tmp_path, variants=["qiet", "x"])
    with pytest.raises(UserError, match=r"the scenario has no variants: omit --variant"):
        compiled(tmp_path, spec={"variants": []}, variants=["x"])


def test_a_plan_cannot_be_changed(tmp_path):
    """Everybody that reads it sees the same."""
    with pytest.raises(AttributeError, match="immutable"):
        compiled(tmp_path).trials[0].testbed.replicas = 9


def test_the_manifest_gives_the_judge_the_expectations_of_the_plan(tmp_path):
    """Without a look at the document, which a later version may refuse."""
    equals = [{"metric": "job.failure", "equals": ""}, {"metric": "failovers.count", "min": 1, "max": 2}]
    plan = compiled(tmp_path, spec={"variants": [], "expect": equals})
    info = RunInfo("small-1", "simulation", "")
    manifest = Manifest.open(tmp_path, info, plan, {"broken": True}, resume=False)
    for trial in plan.trials:
        manifest.add_trial(trial)
    manifest.save()
    assert expectations_of(read_manifest(tmp_path)) == {"main": list(plan.trials[0].expectations)}
    assert json.loads((tmp_path / "manifest.json").read_text())["place"] == "simulation"


def test_a_manifest_of_another_version_is_refused(tmp_path):
    """The run has to be repeated."""
    (tmp_path / "manifest.json").write_text('{"schema": 1, "trials": []}')
    with pytest.raises(UserError, match="does not have schema 2"):
        read_manifest(tmp_path)


def test_every_expectation_of_a_list_is_judged_and_a_variant_replaces_all_about_the_same(tmp_path):
    """A bound in an item of its own was dropped before. `p99` and `0.99` are the same quantile."""
    bounds = [
        {"metric": "latency", "quantile": "0.99", key: value}
        for key, value in (("min", "1 ms"), ("max", "2 s"))
    ]
    spec = {"expect": [{"metric": "job.state", "equals": "RUNNING"}, *bounds]}
    own = {"name": "own", "expect": [{"metric": "latency", "quantile": "p99", "max": "5 s"}]}
    plan = compiled(tmp_path, control=False, spec={**spec, "variants": [{"name": "all"}, own]})
    texts = {t.variant: [e.text for e in t.expectations] for t in plan.trials}
    assert texts == {
        "all": ["job.state equals RUNNING", "latency p99 at least 1 ms", "latency p99 at most 2 s"],
        "own": ["job.state equals RUNNING", "latency p99 at most 5 s"],
    }


def test_an_expectation_survives_the_manifest():
    """Quantile and phase are written as they are read."""
    item = Expectation.from_item({"metric": "latency", "quantile": "0.99", "phase": "during", "max": "2 s"})
    assert Expectation.from_item({k: v for k, v in to_builtins(item).items() if v is not None}) == item


def test_trials_of_variants_alternate_and_share_seeds(tmp_path):
    """The first trial of each variant, then the second of each; trial n has the same seed in every variant."""
    plan = compiled(tmp_path, control=False)
    assert [(t.trial, t.seed) for t in plan.trials] == [
        ("short-1", 7), ("long-1", 7), ("quiet-1", 7), ("short-2", 8), ("long-2", 8), ("quiet-2", 8),
    ]  # fmt: skip


def test_jitter_moves_a_fault_by_the_seed_of_its_trial(tmp_path):
    """Within the jitter, differently in each trial, the same in every variant and in every compilation."""
    fault = {**DOCUMENT["spec"]["faults"][0], "duration": "2 s", "jitter": "3 s"}
    plan, again = (compiled(tmp_path, control=False, spec={"faults": [fault]}) for _ in range(2))
    begins = {t.trial: t.faults[0].at_s for t in plan.trials if t.faults}
    assert begins == {t.trial: t.faults[0].at_s for t in again.trials if t.faults}
    assert all(1 <= at <= 4 for at in begins.values())
    assert begins["short-1"] == begins["long-1"] != begins["short-2"]


def test_a_comparison_with_the_variant_itself_is_left_out_of_it(tmp_path):
    """An expectation of the whole scenario with `versus: short` is one of the other variants."""
    item = {"metric": "recovery.detect", "versus": "short", "improvesBy": "10 %"}
    plan = compiled(tmp_path, spec={"expect": [item]})
    compared = {t.variant: [e.versus for e in t.expectations] for t in plan.trials}
    assert compared == {"short": [], "long": ["short"], "quiet": ["short"]}
