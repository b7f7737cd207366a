"""The engine on a place in memory, in virtual time: whole runs, from the document to the verdict."""

from __future__ import annotations

import asyncio
import json

import pytest

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.core.errors import HeadgateError, TestbedNotReady, UserError
from testbed_runtime.faults.registry import SIMULATION
from testbed_runtime.runner.engine import placed
from testbed_runtime.runner.progress import Notice, PhaseEntered, RunEnded, Sample
from tests.metricrows import metric_row


def phases(played, trial):
    return [e.phase for e in played.progress.events if isinstance(e, PhaseEntered) and e.trial == trial]


def test_a_run_goes_from_the_control_run_over_the_trial_to_a_verdict_and_a_report(play, document):
    """Control first; both go through every phase; verdict and report are there."""
    played = play(document)
    assert played.error is None
    assert [t["trial"] for t in played.trials] == ["main-control-1", "main-1"]
    assert played.result.verdict.verdict == "Pass"
    assert played.result.report.is_file()
    assert (played.folder / "verdict.json").is_file()
    assert isinstance(played.progress.events[-1], RunEnded)
    whole = [
        "create",
        "deploy",
        "warmUp",
        "baseline",
        "fault",
        "observation",
        "drain",
        "end",
        "seal",
        "dispose",
    ]
    assert phases(played, "main-1") == whole
    assert phases(played, "main-control-1") == whole


def test_the_manifest_says_what_was_asked_and_what_was_done(play, document):
    """Faults with their targets and backend, phases with their times, the job, the outcome."""
    entry = play(document).trials[1]
    assert entry["role"] == "fault"
    assert entry["job_state"] == "FINISHED"
    assert entry["drained"] is True
    fault = entry["faults"][0]
    assert (fault["kind"], fault["backend"], fault["at_s"], fault["duration_s"]) == (
        "process.pause",
        "supervisor",
        1.0,
        8.0,
    )
    assert fault["targets"] in (["tm-1"], ["tm-2"])
    spans = {p["name"]: (p["end_ns"] - p["start_ns"]) / 1e9 for p in entry["phases"]}
    assert spans["warmUp"] == pytest.approx(2.0)
    assert spans["baseline"] == pytest.approx(3.0)
    assert spans["fault"] == pytest.approx(9.0)
    assert spans["observation"] == pytest.approx(1.0)
    assert [v["role"] for v in entry["job"]["vertices"]] == ["source", "sink"]


def test_a_control_run_has_the_same_phases_and_no_fault(play, document):
    """Nothing is injected, and its entry lists no fault."""
    played = play(document)
    control = played.host.testbeds[0]
    assert not [text for _, text in control.log if text.startswith(("inject", "heal"))]
    assert played.trials[0]["faults"] == []


def test_a_fault_comes_at_its_time_and_its_lease_is_renewed_every_three_seconds(play, document):
    """Job running at 0.5 s, warm-up 2 s, baseline 3 s, the fault 1 s later; healed after its 8 s."""
    log = play(document).host.testbeds[1].log
    times = {text: at for at, text in log}
    injected = times["inject pause"]
    assert injected == pytest.approx(0.5 + 2 + 3 + 1, abs=0.2)
    assert [at - injected for at, text in log if text == "renew"] == pytest.approx([3.0, 6.0], abs=0.05)
    assert times["heal"] - injected == pytest.approx(8.0, abs=0.05)


def test_the_phases_are_rows_of_the_history(play, document):
    """Row `trial.phase` for each phase that is entered."""
    rows = play(document).host.testbeds[1].history.rows
    assert [r["subject"] for t, r in rows if t == "events" and r["kind"] == "trial.phase"] == [
        "deploy", "warmUp", "baseline", "fault", "observation", "drain", "end",
    ]  # fmt: skip


def test_the_same_seed_hits_the_same_target(play, document):
    """`mode: one` is drawn by the seed."""
    first = play(document).trials[1]["faults"][0]["targets"]
    assert play(document).trials[-1]["faults"][0]["targets"] == first


def test_a_trial_whose_lease_lapsed_is_void_and_repeated_under_a_new_id(play, document, habits):
    """The void trial stays in the manifest, its repetition counts."""
    habits.loses_faults_of = {"main-1"}
    played = play(document, control=False)
    assert [(t["trial"], t["voided"]) for t in played.trials] == [("main-1", True), ("main-1-r2", False)]
    assert played.result.verdict.verdict == "Pass"


def test_a_trial_whose_fault_was_never_injected_is_void_and_repeated(play, document, habits):
    """An agent that is on its way back is no verdict on the scenario."""
    habits.silent_agents_of = {"main-1"}
    played = play(document, control=False)
    assert [(t["trial"], t["voided"]) for t in played.trials] == [("main-1", True), ("main-1-r2", False)]
    assert "fault `pause` could not be injected: the agent of tm-1/packets" in played.trials[0]["void_reason"]
    assert played.result.verdict.verdict == "Pass"


def test_a_trial_whose_fault_ended_unseen_is_void_and_repeated(play, document, habits):
    """Too short for a renewal to notice it: what was to be seen was not there."""
    habits.short_faults_of = {"main-1"}
    played = play(document, control=False)
    assert [(t["trial"], t["voided"]) for t in played.trials] == [("main-1", True), ("main-1-r2", False)]
    assert "fault `pause` did not last: the agent of tm-1/packets died" in played.trials[0]["void_reason"]
    assert [text for _, text in played.host.testbeds[0].log].count("heal") == 1
    assert played.result.verdict.verdict == "Pass"


def test_a_trial_that_becomes_void_injects_nothing_more_even_what_is_due_that_moment(play, document, habits):
    """A second fault begins when the first one ends; of the void trial it belongs to nothing."""
    habits.short_faults_of = {"main-1"}
    first = document["spec"]["faults"][0]
    begin = float(first["at"].split()[0]) + float(first["duration"].split()[0])
    document["spec"]["timeline"]["observation"] = "20 s"
    document["spec"]["faults"].append({**first, "name": "second", "at": f"{begin:g} s"})
    played = play(document, control=False)
    void, counting = ([text for _, text in bed.log] for bed in played.host.testbeds)
    assert "inject second" not in void
    assert "inject second" in counting


@pytest.mark.parametrize("fails", [False, True], ids=["runs on", "fails at once"])
@pytest.mark.parametrize("at", [0.0, 3.0, 3.3, 6.2, 9.0])
def test_a_trial_whose_testbed_is_disrupted_is_void_and_repeated(play, document, habits, at, fails):
    """A drained node is no verdict on the scenario. Its fault is healed, and nothing more is injected. Pods are looked at once a
    second: a job that fails because of one may have failed before."""
    habits.disrupted_at_s = {"main-1": at}
    habits.fails_of = {"main-1": at + 0.1} if fails else {}
    played = play(document, control=False)
    assert [(t["trial"], t["voided"]) for t in played.trials] == [("main-1", True), ("main-1-r2", False)]
    assert "tm-0 was disrupted: EvictionByEvictionAPI" in played.trials[0]["void_reason"]
    assert not played.trials[0]["error"], "its agents do not answer either, which is no second failure"
    void = [text for _, text in played.host.testbeds[0].log]
    assert sum("inject" in text for text in void) == void.count("heal")
    assert played.result.verdict.verdict == "Pass"


def test_a_trial_is_repeated_at_most_three_times(play, document, habits):
    """Then the verdict is Inconclusive, never Pass."""
    habits.loses_faults_of = {"main-1", "main-1-r2", "main-1-r3"}
    played = play(document, control=False)
    assert [t["voided"] for t in played.trials] == [True, True, True]
    assert played.result.verdict.verdict == "Inconclusive"


def test_a_job_that_fails_cuts_the_trial_short_and_may_be_what_was_expected(play, document, habits):
    """Nothing is drained, faults are healed, the expectation decides."""
    habits.fails_at_s = 8.0
    document["spec"]["expect"] = [{"metric": "job.state", "equals": "FAILED"}]
    played = play(document, control=False)
    entry = played.trials[0]
    assert (entry["job_state"], entry["drained"]) == ("FAILED", False)
    assert "stop" not in [text for _, text in played.host.testbeds[0].log]
    assert played.host.testbeds[0].log[-1][1] == "heal"
    assert played.result.verdict.verdict == "Pass"


def test_a_fault_at_deploy_is_there_before_the_job_is_submitted(play, document):
    """Its duration counts from there, and it is healed while the job goes through its phases."""
    document["spec"]["faults"] = [
        {
            "name": "late",
            "at": "deploy",
            "duration": "4s",
            "target": {"taskManagers": {}},
            "registration": {"delay": {"delay": "3s"}},
        }
    ]
    played = play(document, control=False)
    log = [text for _, text in played.host.testbeds[0].log]
    assert log[:2] == ["inject late", "submit"]
    assert played.host.testbeds[0].targets["late"] == ("tm-0", "tm-1", "tm-2")
    assert played.result.verdict.verdict == "Pass"


def test_a_job_that_fails_during_its_deployment_ends_the_trial_at_once(play, document, habits):
    """No warm-up for a job that is gone."""
    habits.never_runs, habits.fails_at_s = True, 1.0
    document["spec"]["expect"] = [{"metric": "job.state", "equals": "FAILED"}]
    played = play(document, control=False)
    assert [p["name"] for p in played.trials[0]["phases"]] == ["deploy", "drain"]
    shown = [e.phase for e in played.progress.events if isinstance(e, PhaseEntered)]
    assert "drain" not in shown, "nothing is drained, and no final checkpoint is taken"
    assert "ended" in shown


def test_a_job_that_never_runs_is_an_error(play, document, habits):
    """Verdict Error with the reason, and what it waits for; the testbed is disposed of."""
    habits.never_runs, habits.waits_for = True, "a slot for each task: 4 slots (for 59.0 s)"
    played = play(document, control=False)
    assert "not all of its tasks ran within 60 s of its submission" in played.trials[0]["error"]
    assert "The JobMaster waits for a slot for each task: 4 slots (for 59.0 s)" in played.trials[0]["error"]
    assert played.result.verdict.verdict == "Error"
    assert played.host.alive == []


def test_a_job_that_never_runs_is_reported_with_its_root_cause(play, document, habits):
    """The verdict, verdict.json and the manifest name the last failure of a job that restarts forever."""
    habits.failure = ("PythonFunction", "ModuleNotFoundError: No module named 'x' (functions.py:3)")
    played = play(document, control=False)
    cause = "PythonFunction: ModuleNotFoundError: No module named 'x' (functions.py:3)"
    assert played.trials[0]["cause"] == cause
    assert f"The last failure: {cause}" in played.trials[0]["error"]
    verdict = json.loads((played.folder / "verdict.json").read_text())
    assert cause in verdict["summary"]
    assert verdict["causes"] == [{"trial": "main-1", "cause": cause}]


def test_a_job_that_failed_is_reported_with_its_root_cause(play, document, habits):
    """The job ran, then failed for good. The expectation that it runs says why it does not."""
    habits.fails_at_s = 8.0
    verdict = play(document, control=False).result.verdict
    assert "PartitionNotFoundException: Partition p not found." in verdict.summary


def test_a_job_that_runs_again_has_no_cause(play, document):
    """The cause of an earlier restart says nothing about a job that runs."""
    played = play(document, control=False)
    assert played.trials[0]["cause"] == ""
    assert played.result.verdict.causes == ()


def test_a_job_that_does_not_drain_is_recorded_as_such(play, document, habits):
    """`drained` is false; the run goes on."""
    habits.drains = False
    assert play(document, control=False).trials[0]["drained"] is False


def test_a_refused_stop_ends_the_drain_at_once_with_its_reason(play, document, habits):
    """The reason is that of the delivery too."""
    habits.refuses_to_stop = "Not all required tasks are currently running."
    entry = play(document, control=False).trials[0]
    assert (entry["drained"], entry["stop_refused"]) == (False, habits.refuses_to_stop)
    (drain,) = (p for p in entry["phases"] if p["name"] == "drain")
    assert drain["end_ns"] - drain["start_ns"] < 1e9


def test_ctrl_c_heals_disposes_and_keeps_what_was_recorded(play, document):
    """In the middle of a fault: healed, sealed, disposed of; the manifest says interrupted."""
    played = play(document, cancel_after_s=9.0, control=False)
    assert played.error is not None
    testbed = played.host.testbeds[0]
    assert testbed.log[-1][1] == "heal"
    assert testbed.faults == {}
    assert testbed.sealed
    assert played.host.alive == []
    assert played.manifest["interrupted"] is True
    assert [p["name"] for p in played.trials[0]["phases"]][-1] == "fault"


def test_a_second_ctrl_c_gives_up_the_history_and_the_run_is_over_only_when_its_testbed_is_gone(
    play, document, habits
):
    """While the history is sealed, which would take 20 s: what is being done is given up, and the last step done."""
    habits.seals_for_s, habits.stops_for_s = 20.0, 2.0
    played = play(document, cancel_after_s=9.0, again_after_s=1.0, control=False)
    assert isinstance(played.error, asyncio.CancelledError)
    testbed = played.host.testbeds[0]
    assert testbed.faults == {}
    assert not testbed.sealed
    assert played.host.alive == []
    assert played.trials[0]["ended"]
    assert played.manifest["interrupted"]


def test_a_testbed_that_cannot_start_is_an_error_with_its_reason(play, document, habits):
    """The run goes on to its verdict: Error."""
    habits.create_fails = HeadgateError("the JobManager said: port in use")
    played = play(document)
    assert [t["error"] for t in played.trials] == ["the JobManager said: port in use"] * 2
    assert played.result.verdict.verdict == "Error"


def test_a_testbed_that_was_not_ready_in_time_ends_the_run(play, document, habits):
    """In a cluster without room, each further trial would wait ten minutes for the same pods."""
    habits.create_fails = TestbedNotReady("tm-0 has no node")
    played = play(document)
    assert [t["error"] for t in played.trials] == ["tm-0 has no node"]
    assert played.result.verdict.verdict == "Error"
    notices = [event.text for event in played.progress.events if isinstance(event, Notice)]
    assert "1 trial not run: the testbed of main-control-1 was not ready in time" in notices


def test_an_injection_that_fails_is_an_error_and_leaves_nothing(play, document, habits):
    """The trial ends, the testbed is disposed of."""
    habits.refuses_injection = True
    played = play(document, control=False)
    assert "gone" in played.trials[0]["error"]
    assert played.host.alive == []
    assert played.host.testbeds[0].sealed


def test_residue_is_never_a_pass(play, document, habits):
    """A fault that leaves something behind makes the verdict an Error."""
    habits.residue = {"proxy": ["tm-0->tm-1"]}
    played = play(document, control=False)
    assert played.trials[0]["residue"] == {"proxy": ["tm-0->tm-1"]}
    assert played.result.verdict.verdict == "Error"


def test_a_failed_evaluation_is_an_error_with_its_reason(play, document, evaluator):
    """A killed Spark driver gives a verdict and a report all the same."""
    evaluator.fails = True
    played = play(document)
    assert played.result.verdict.verdict == "Error"
    assert "Spark driver" in str(played.result.verdict)
    assert played.result.report.is_file()


def test_a_fault_that_this_place_cannot_do_is_refused_before_anything_starts(play, document):
    """network.loss needs packets; no folder, no testbed."""
    document["spec"]["faults"][0].pop("process")
    document["spec"]["faults"][0]["network"] = {"loss": {"percent": 5}}
    played = play(document)
    assert isinstance(played.error, UserError)
    assert "network.loss" in str(played.error)
    assert played.host.testbeds == []
    assert not played.folder.exists()


def test_the_proxy_is_in_the_path_of_the_control_run_too(play, document):
    """When a fault of the variant uses it; else nowhere."""
    assert play(document).host.with_proxy == [False, False]
    document["spec"]["faults"][0].pop("process")
    document["spec"]["faults"][0]["network"] = {"latency": {"delay": "50ms", "mode": "round-trip"}}
    assert play(document).host.with_proxy == [True, True]


def test_processes_count_their_frames_only_if_a_fault_may_hold_some(document, tmp_path):
    """In the control run too. A large simulated job does without it otherwise."""

    def counting():
        plan = compile_run(validate(document).valid(), scenario_folder=tmp_path)
        return [placed(trial, SIMULATION).testbed.frame_faults for trial in plan.trials]

    assert counting() == [False, False]
    document["spec"]["faults"][0].pop("process")
    document["spec"]["faults"][0]["frames"] = {"delay": {"frameClass": "credit", "delay": "50 ms"}}
    assert counting() == [True, True]


def test_a_jobmanager_that_does_not_answer_does_not_hold_the_schedule(play, document, habits):
    """Faults and phases keep their times while the status is silent."""
    habits.silent_status_after_s = 4.0
    entry = play(document, control=False).trials[0]
    spans = {p["name"]: (p["end_ns"] - p["start_ns"]) / 1e9 for p in entry["phases"]}
    assert spans["fault"] == pytest.approx(9.0, abs=0.2)


def test_a_trial_ends_when_something_it_needs_is_gone(play, document, habits):
    """Not at the end of its observation: an Error that says what is gone, and the testbed is closed."""
    habits.loses_jobmanager_after_s = 4.0
    played = play(document, control=False)
    entry = played.trials[0]
    assert "the jobmanager was killed by SIGKILL" in entry["error"]
    assert sum(p["end_ns"] - p["start_ns"] for p in entry["phases"]) / 1e9 < 6.5
    assert played.result.verdict.verdict == "Error"
    assert "the jobmanager was killed by SIGKILL" in played.result.verdict.summary
    assert played.host.alive == []


def test_an_unknown_variant_is_refused_with_those_there_are(play, document):
    """`--variant` names one of the document."""
    document["spec"]["variants"] = [{"name": "short"}]
    played = play(document, variants=["shrt"])
    assert isinstance(played.error, UserError)
    assert "short" in str(played.error)


def test_a_variant_changes_only_what_it_says(play, document):
    """Configuration is merged, faults are replaced, the rest stays."""
    document["spec"]["variants"] = [
        {"name": "calm", "faults": []},
        {"name": "long", "flinkConfiguration": {"heartbeat.timeout": "60 s"}},
    ]
    trials = play(document).trials
    assert [t["trial"] for t in trials] == ["calm-1", "long-control-1", "long-1"]
    assert trials[0]["configuration"] == {"execution.checkpointing.interval": "1 s"}
    assert trials[2]["configuration"] == {
        "execution.checkpointing.interval": "1 s",
        "heartbeat.timeout": "60 s",
    }


def test_progress_tells_state_phase_and_time_that_remains(play, document):
    """Samples carry what the live line shows."""
    events = play(document, control=False).progress.events
    entered = next(i for i, e in enumerate(events) if isinstance(e, PhaseEntered) and e.phase == "baseline")
    first = next(e for e in events[entered:] if isinstance(e, Sample))
    assert first.job_state == "RUNNING"
    assert first.job.counters["records_per_s"] == pytest.approx(100.0)
    assert 10 < first.remaining_s <= 13


def comparing(document, detect, *, trials=20):
    """A document with two variants, and an evaluator's rows of `detect[variant]` seconds, plus a little of each trial."""
    spec = document["spec"]
    item = {"metric": "recovery.detect", "versus": "slow", "improvesBy": "20 %"}
    spec.update(
        control=False,
        trials=trials,
        stopEarly={"minTrials": 7},
        variants=[{"name": "slow"}, {"name": "fast", "expect": [item]}],
    )

    def rows(run, entry):
        steps = {"slow": 7, "fast": 3}[entry["variant"]]
        value = detect[entry["variant"]] + 0.03 * (entry["number"] * steps % 10)
        return metric_row("recovery.detect", value, run=run, trial=entry["trial"])

    return rows


@pytest.mark.parametrize(
    ("fast", "trials", "verdict"), [(1.0, 7, "Pass"), (1.573, 20, "Inconclusive"), (2.0, 7, "Fail")]
)
def test_a_run_stops_when_its_comparison_is_decided(play, document, evaluator, fast, trials, verdict):
    """Seven trials decide a clear difference or none; a difference as large as asked needs all twenty and stays undecided."""
    extra = comparing(document, {"slow": 2.0, "fast": fast})
    plain = evaluator._rows
    evaluator._rows = lambda run, entry: [*plain(run, entry), extra(run, entry)]
    played = play(document)
    assert played.manifest["looks"] == [7, 14, 20]
    assert [t["trial"] for t in played.trials[:4]] == ["slow-1", "fast-1", "slow-2", "fast-2"]
    assert len(played.trials) == 2 * trials
    assert played.result.verdict.verdict == verdict
    item = next(i for i in played.result.verdict.judged if i.metric == "recovery.detect")
    assert "98.33 % confidence" in item.note
    stopped = (
        "Stopped after 7 of 20 trials of each variant: every comparison was decided." if trials == 7 else ""
    )
    assert played.result.verdict.stopped == stopped
    shown = (played.folder / "report.html").read_text()
    assert stopped in shown
    assert ("Stopped after" in shown) == bool(stopped)


def test_a_run_does_not_stop_because_a_look_failed(play, document, evaluator):
    """A failed evaluation decides nothing: all trials run."""
    comparing(document, {}, trials=8)
    evaluator.fails = True
    played = play(document)
    assert len(played.trials) == 16
    assert played.manifest["decided"] is None


def test_the_comparison_of_variants_is_written_beside_the_verdict(play, document):
    """comparison.json has a group for each variant."""
    document["spec"]["variants"] = [{"name": "one"}, {"name": "two"}]
    found = json.loads((play(document).folder / "comparison.json").read_text())
    assert [g["name"] for g in found["groups"]] == ["one", "two"]
