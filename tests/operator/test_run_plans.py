"""The plan of a ScenarioRun in each of its situations, without a cluster: its actions, its status and when it is looked at again."""

from __future__ import annotations

from typing import Any

import pytest

from headgate_operator import objects_runs
from headgate_operator.plan import runstatus
from headgate_operator.plan.model import Ask, Create, Delete, Patch, SetFinalizers
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import rfc3339, to_json
from testbed_runtime.api.views import Pod, Run
from tests.operator.planned import conditions, events, message, others
from tests.operator.runs import (
    ACCEPTED,
    KNOWN,
    PRESENT,
    RECORDER,
    RUNNER,
    SPARK,
    Obj,
    a_pod,
    look,
    made,
    pods,
    report,
    shared,
    status_of,
)
from tests.operator.test_scenario_study import NOW, SETTINGS

# ---- while it runs


def test_a_run_at_work_needs_nothing() -> None:
    """It is looked at again in 5 s."""
    found = look(made(KNOWN), report=report())
    assert (found.actions, found.requeue_after_s) == ((), 5.0)
    assert (status_of(found).runner_starts, status_of(found).recorder_starts) == (1, 1)
    assert status_of(found).started_at == rfc3339(NOW)
    assert conditions(found) == {
        "Accepted": "True/Valid", "Reconciling": "True/Running", "Ready": "True/Running", "Stalled": "False/Working",
        "EffectVerified": "Unknown/NotMeasuredYet", "NoResidue": "Unknown/NotMeasuredYet", "Complete": "False/Running",
    }  # fmt: skip
    later = look(made({**KNOWN, "startedAt": rfc3339(NOW - 9)}), report=report())
    assert status_of(later).started_at == rfc3339(NOW - 9)


def test_a_run_that_begins_gets_all_that_it_needs() -> None:
    """Its own objects and those that it shares, once it has its finalizer."""
    raw = made()
    raw["metadata"]["finalizers"] = ["other"]
    first = look(raw, pods={}, shared={}, present=frozenset())
    assert others(first) == [SetFinalizers(("other", naming.FINALIZER))]
    assert first.requeue_after_s == 0
    found = look(made(), pods={}, shared={}, present=frozenset(), tokens=("one", "two"))
    assert all(isinstance(a, Create) for a in others(found))
    assert sorted((a.manifest["kind"], a.manifest["metadata"]["name"]) for a in others(found)) == sorted([
        *((m["kind"], m["metadata"]["name"]) for m in objects_runs.accounts(Run(made()), SETTINGS)),
        ("Secret", naming.token_name(SPARK)), ("Service", SPARK), ("Pod", SPARK),
        ("Secret", naming.token_name("trial-run")), ("Service", RECORDER), ("Pod", RECORDER), ("Pod", RUNNER),
    ])  # fmt: skip
    secrets = {
        a.manifest["metadata"]["name"]: a.manifest for a in others(found) if a.manifest["kind"] == "Secret"
    }
    assert secrets[naming.token_name(SPARK)] == objects_runs.spark_secret(Run(made()), "two")
    assert secrets[naming.token_name("trial-run")] == objects_runs.token_secret(
        Run(made()), "trial-run", "one"
    )
    assert events(found) == [("Normal", "Started", f"creating runner pod {RUNNER}")]
    assert message(found, "Ready") == "there is no runner pod yet"


@pytest.mark.parametrize(
    ("storage", "present", "claims"), [("", False, 0), ("1Gi", False, 1), ("1Gi", True, 0)]
)
def test_a_recorder_has_a_claim_where_the_installation_has_storage(
    storage: str, present: bool, claims: int
) -> None:
    """It is made once."""
    there = PRESENT | ({("PersistentVolumeClaim", RECORDER)} if present else set())
    found = look(made(KNOWN), settings=Settings(recorder_storage=storage), present=there)
    assert [a.manifest["kind"] for a in others(found)] == ["PersistentVolumeClaim"] * claims


def test_what_a_namespaced_spark_has_belongs_to_each_run_that_uses_it() -> None:
    """The patch has the version that was read, so that two runs do not overwrite each other."""
    found = look(made(KNOWN), shared=shared("first"), pods=pods(spark=a_pod(SPARK, owner="first")))
    assert [(a.kind, a.namespace, a.name) for a in others(found) if isinstance(a, Patch)] == [
        ("Secret", "lab", naming.token_name(SPARK)), ("Service", "lab", SPARK), ("Pod", "lab", SPARK),
    ]  # fmt: skip
    patch = others(found)[-1].patch["metadata"]
    assert patch["resourceVersion"] == "7"
    assert [o["uid"] for o in patch["ownerReferences"]] == ["first", "u"]
    assert "controller" not in patch["ownerReferences"][1]
    gone = look(made(KNOWN), pods=pods(spark=None))
    assert [a.manifest["kind"] for a in others(gone)] == ["Pod"]


@pytest.mark.parametrize(
    ("role", "reason", "text"),
    [
        ("runner", "RunnerLost", "the runner pod is gone; creating it again (1 of 5)"),
        ("recorder", "RecorderLost", f"the recorder's pod is gone, creating it again; the record went with it. To keep the record, {runstatus.KEEP_RECORD}"),
        ("spark", "", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ended", [False, True])
def test_a_pod_that_ended_is_deleted_and_one_that_is_gone_is_created(
    role: str, reason: str, text: str, ended: bool
) -> None:
    """With a Warning when it is created again. A pod that is terminating is left alone."""
    name = {"runner": RUNNER, "recorder": RECORDER, "spark": SPARK}[role]
    found = look(made(KNOWN), pods=pods(**{role: a_pod(name, "Failed") if ended else None}))
    if ended:
        assert others(found) == [Delete("Pod", "lab", name, f"{name}-uid")]
        leaving = a_pod(name, "Failed", deletionTimestamp=rfc3339(NOW))
        assert look(made(KNOWN), pods=pods(**{role: leaving})).actions == ()
        return
    assert [a.manifest["metadata"]["name"] for a in others(found)] == [name]
    assert events(found) == ([("Warning", reason, text)] if reason else [])


def test_a_recorder_with_a_volume_loses_no_record() -> None:
    """And one that is created for the first time is not reported."""
    there = PRESENT | {("PersistentVolumeClaim", RECORDER)}
    found = look(
        made(KNOWN), settings=Settings(recorder_storage="1Gi"), present=there, pods=pods(recorder=None)
    )
    text = "the recorder's pod is gone, creating it again; the record is on its volume"
    assert events(found) == [("Warning", "RecorderLost", text)]
    first = look(made({**KNOWN, "recorderStarts": 0, "recorderUid": ""}), pods=pods(recorder=None))
    assert events(first) == []


def test_each_pod_that_is_new_is_counted() -> None:
    """A pod is new if its uid is."""
    old = {"runnerStarts": 2, "runnerUid": "old", "recorderStarts": 3, "recorderUid": "old"}
    found = status_of(look(made(old)))
    assert (found.runner_starts, found.runner_uid) == (3, f"{RUNNER}-uid")
    assert (found.recorder_starts, found.recorder_uid) == (4, f"{RECORDER}-uid")
    gone = status_of(look(made(old), pods={}))
    assert (gone.runner_starts, gone.recorder_starts) == (2, 3)


@pytest.mark.parametrize(("starts", "phase"), [(5, "Running"), (6, "Complete")])
def test_a_runner_that_is_lost_for_the_sixth_time_is_given_up(starts: int, phase: str) -> None:
    """The verdict is Error."""
    found = look(made({**KNOWN, "runnerStarts": starts}), pods=pods(runner=None), report=report())
    assert status_of(found).phase == phase
    if phase == "Complete":
        assert (status_of(found).verdict, status_of(found).reason) == ("Error", "RunnerLost")
        assert events(found) == [("Warning", "RunnerLost", "the runner's pod was lost 6 times")]
        assert (others(found), found.requeue_after_s) == ([], 0.0)


def test_a_run_waits_for_objects_of_another_owner_with_its_names() -> None:
    """Usually those of an earlier run of its name. Nothing is created meanwhile."""
    found = look(
        made(), taken=("ConfigMap trial-run-status", "Pod trial-run-runner"), pods={}, present=frozenset()
    )
    assert (others(found), found.requeue_after_s, status_of(found).phase) == ([], 1.0, "Starting")
    text = (
        "waits until ConfigMap trial-run-status, Pod trial-run-runner of another owner is gone; "
        "if that object is to stay, give this run another name"
    )
    assert message(found, "Ready") == text


@pytest.mark.parametrize(
    ("phase", "runner", "spark", "ready"),
    [
        ("Running", a_pod(RUNNER), a_pod(SPARK, "Pending"), "True/Running"),
        ("Running", a_pod(RUNNER, "Pending"), a_pod(SPARK), "False/RunnerNotReady"),
        ("Running", None, a_pod(SPARK), "False/RunnerNotReady"),
        ("Evaluating", a_pod(RUNNER), a_pod(SPARK, "Pending"), "False/SparkNotReady"),
        ("Evaluating", a_pod(RUNNER), None, "False/SparkNotReady"),
        ("Evaluating", a_pod(RUNNER), a_pod(SPARK), "True/Running"),
        ("", a_pod(RUNNER), a_pod(SPARK), "True/Running"),
    ],
)
def test_a_run_is_ready_when_the_pod_that_works_now_runs(
    phase: str, runner: Pod | None, spark: Pod | None, ready: str
) -> None:
    """The runner's, and while the trials are evaluated Spark's too."""
    found = look(made(KNOWN), pods=pods(runner=runner, spark=spark), report=report(phase=phase))
    assert conditions(found)["Ready"] == ready
    assert status_of(found).phase == (phase or "Starting")
    if runner is not None and runner.phase == "Pending":
        assert message(found, "Ready") == f"pod {RUNNER}: the pod is Pending"


# ---- heal


def test_a_run_that_is_healed_asks_the_agents_at_each_look() -> None:
    """Its runner ends it. The operator looks each second."""
    healed = {"annotations": {naming.ANNOTATION_HEAL: "now"}}
    found = look(made(KNOWN, **healed))
    assert (others(found), found.requeue_after_s) == ([Ask("heal-all")], 1.0)
    assert conditions(found)["Healing"] == "True/Asked"


@pytest.mark.parametrize(
    ("runner", "age_s", "text"),
    [
        (a_pod(RUNNER), 60, ""),
        (a_pod(RUNNER), 61, "it was healed, and its runner did not end it within 60 s"),
        (a_pod(RUNNER, "Pending"), 0, "it was healed while its runner was not at work"),
        (None, 0, "it was healed while its runner was not at work"),
    ],
)
def test_a_heal_that_no_runner_answers_is_carried_out_by_the_operator(
    runner: Pod | None, age_s: float, text: str
) -> None:
    """After a minute, or at once where no runner is at work."""
    healing = {
        "type": "Healing",
        "status": "True",
        "reason": "Asked",
        "message": "",
        "lastTransitionTime": rfc3339(NOW - age_s),
    }
    raw = made({**KNOWN, "conditions": [*ACCEPTED, healing]}, annotations={naming.ANNOTATION_HEAL: "now"})
    found = look(raw, pods=pods(runner=runner), report=report(trialsDone=1, trialsTotal=3))
    assert (status_of(found).phase == "Complete") == bool(text)
    if text:
        status = status_of(found)
        assert (status.verdict, status.reason, status.text, status.progress) == (
            "Inconclusive",
            "Healed",
            text,
            "1/3",
        )
        assert events(found) == [("Normal", "Healed", text)]
        assert conditions(found)["Healing"] == "False/Complete"
        assert conditions(found)["Stalled"] == "True/Healed"


def test_a_heal_that_was_taken_back_counts_from_the_next_one() -> None:
    """The condition is False then."""
    healing = {
        "type": "Healing",
        "status": "False",
        "reason": "X",
        "message": "",
        "lastTransitionTime": rfc3339(NOW - 99),
    }
    raw = made({**KNOWN, "conditions": [*ACCEPTED, healing]}, annotations={naming.ANNOTATION_HEAL: "now"})
    assert status_of(look(raw)).phase == "Starting"


@pytest.mark.parametrize(
    ("starts", "runner", "phase"),
    [(0, None, "Suspended"), (1, None, "Starting"), (0, a_pod(RUNNER), "Starting")],
)
def test_only_a_run_that_has_not_begun_can_be_suspended(starts: int, runner: Pod | None, phase: str) -> None:
    """Later, its runner obeys `spec.suspend` between two trials."""
    found = look(made({"runnerStarts": starts}, suspend=True), pods=pods(runner=runner))
    assert status_of(found).phase == phase
    if phase == "Suspended":
        assert (found.actions, found.requeue_after_s) == ((), None)


@pytest.mark.parametrize(
    ("phase", "trial_phase", "shown"),
    [("Running", "fault", "Running"), ("Running", "", "Suspended"), ("Evaluating", "", "Evaluating")],
)
def test_a_run_that_is_suspended_later_says_when_it_waits(phase: str, trial_phase: str, shown: str) -> None:
    """The trial in progress ends first. A run that waits for its user makes no progress that kstatus could wait for."""
    reported = report(phase=phase, trialPhase=trial_phase, message="no other trial starts")
    found = look(made(KNOWN, suspend=True), report=reported)
    assert status_of(found).phase == shown
    waits = shown == "Suspended"
    assert conditions(found)["Reconciling"] == ("False/Suspended" if waits else f"True/{phase}")
    assert conditions(found)["Ready"].endswith("/Suspended") == waits
    resumed = look(made(KNOWN), report=reported)
    assert status_of(resumed).phase == phase


# ---- what the runner reports


@pytest.mark.parametrize(
    ("fields", "progress", "remaining"),
    [
        ({"trialsDone": 1, "trialsTotal": 3}, "1/3", ""),
        ({"trialsDone": 0, "trialsTotal": 0}, "0/9", ""),
        ({"remainingSeconds": 12.4}, "0/9", "12 s"),
        ({"remainingSeconds": -2.0}, "0/9", "0 s"),
        ({"remainingSeconds": 0.4}, "0/9", "0 s"),
    ],
)
def test_the_status_mirrors_how_far_the_runner_is(fields: Obj, progress: str, remaining: str) -> None:
    """The progress stays as it was until the number of trials is known. A countdown that is not reported is over."""
    found = status_of(look(made({**KNOWN, "progress": "0/9", "remaining": "old"}), report=report(**fields)))
    assert (found.progress, found.remaining) == (progress, remaining)


def test_a_status_keeps_the_newest_trials_and_the_first_faults() -> None:
    """64 and 32 of them."""
    names = [{"name": f"n{n}"} for n in range(70)]
    active = [{"name": f"n{n}", "kind": "k", "deadline": rfc3339(NOW)} for n in range(70)]
    found = status_of(
        look(made(KNOWN), report=report(trials=names, faults=names, activeFaults=active, text="x" * 5000))
    )
    assert [len(found.trials), len(found.faults), len(found.active_faults), len(found.text)] == [
        64,
        32,
        32,
        4000,
    ]
    assert (found.trials[0].name, found.trials[-1].name, found.faults[0].name) == ("n6", "n69", "n0")
    assert found.active_faults[-1].name == "n31"


@pytest.mark.parametrize(
    ("faults", "effect", "residue"),
    [
        ([], ("Unknown/NotMeasuredYet", ""), ("Unknown/NotMeasuredYet", "")),
        ([{"name": "a", "verified": True, "residue": ""}], ("True/Measured", "a"), ("True/Clean", "measured after each fault")),
        ([{"name": "a", "verified": True, "residue": ""}, {"name": "b"}], ("Unknown/NotMeasuredYet", "b"), ("Unknown/NotMeasuredYet", "b")),
        ([{"name": "a", "verified": False, "residue": "rule"}, {"name": "b"}], ("False/NotMeasured", "no effect was measured of a"), ("False/Residue", "a: rule")),
    ],
)  # fmt: skip
def test_the_conditions_speak_of_all_faults_so_far(faults: list[Obj], effect: Any, residue: Any) -> None:
    """One that was not measured is no success."""
    found = look(made(KNOWN), report=report(faults=faults))
    for type_, expected in (("EffectVerified", effect), ("NoResidue", residue)):
        assert (conditions(found)[type_], message(found, type_)) == expected


def test_each_change_that_a_user_looks_for_is_an_event_once() -> None:
    """The next trial, a voided one, a fault that was measured, and the evaluation."""
    trials = [{"name": "main-1", "voided": True, "reason": "the runner was killed"}, {"name": "main-2"}]
    faults = [
        {"name": "a", "backend": "proxy", "verified": True, "residue": ""},
        {"name": "b", "why": "still ran", "verified": False, "residue": "a rule"},
        {"name": "c"},
    ]  # fmt: skip
    said = report(trial="main-2", trialsDone=1, trialsTotal=3, trials=trials, faults=faults)
    first = look(made(KNOWN), report=said)
    assert events(first) == [
        ("Normal", "TrialStarted", "main-2 (1/3 done)"),
        ("Warning", "TrialVoided", "main-1: the runner was killed"),
        ("Normal", "EffectVerified", "a by proxy"),
        ("Warning", "EffectNotVerified", "b: still ran"),
        ("Warning", "Residue", "b: a rule"),
    ]
    raw = made(to_json(status_of(first)))
    assert events(look(raw, report=said)) == []
    faults[0]["verified"], faults[2]["residue"] = False, "x"
    again = look(
        raw, report=report(trial="main-2", trialsDone=1, trialsTotal=3, trials=trials, faults=faults)
    )
    assert events(again) == [("Warning", "EffectNotVerified", "a: "), ("Warning", "Residue", "c: x")]
    evaluating = look(raw, report=report(phase="Evaluating", trials=trials))
    assert events(evaluating) == [("Normal", "Evaluating", "the trials are done")]
    assert (
        events(look(made({**raw["status"], "phase": "Evaluating"}), report=report(phase="Evaluating"))) == []
    )


@pytest.mark.parametrize(
    ("fields", "kind", "text", "ready"),
    [
        ({"verdict": "Pass", "text": "every expectation holds"}, "Normal", "Pass: every expectation holds", "True/Pass"),
        ({"verdict": "Fail", "reason": "Expectation", "text": "slow"}, "Warning", "Fail Expectation: slow", "True/Expectation"),
        ({"verdict": "Error", "reason": "RunFailed"}, "Warning", "Error RunFailed", "False/RunFailed"),
        ({"verdict": "Inconclusive", "reason": "NoData", "text": "a"}, "Normal", "Inconclusive NoData: a", "False/NoData"),
        ({"verdict": "Inconclusive"}, "Normal", "Inconclusive", "False/Inconclusive"),
    ],
)  # fmt: skip
def test_a_run_ends_with_the_verdict_of_its_runner(fields: Obj, kind: str, text: str, ready: str) -> None:
    """It is Ready only where the verdict is a judgement."""
    said = report(
        phase="Complete",
        remainingSeconds=3.0,
        activeFaults=[{"name": "a", "kind": "k", "deadline": rfc3339(NOW)}],
        **fields,
    )
    found = look(made({**KNOWN, "startedAt": rfc3339(NOW - 9)}), report=said)
    status = status_of(found)
    assert events(found)[-1] == (kind, "Complete", text)
    assert (conditions(found)["Ready"], found.requeue_after_s) == (ready, 0.0)
    assert conditions(found)["Stalled"] == (
        "False/Complete" if ready.startswith("True") else f"True/{ready.partition('/')[2]}"
    )
    assert (status.remaining, status.remaining_seconds, status.active_faults) == ("", None, ())
    assert (status.started_at, status.completed_at) == (rfc3339(NOW - 9), rfc3339(NOW))
    assert status.report == naming.report_name("trial-run")
    assert "Healing" not in conditions(found)
    at_once = status_of(look(made(KNOWN), report=said))
    assert at_once.started_at == rfc3339(NOW)


def test_a_report_without_a_verdict_is_no_end() -> None:
    """Nor is a verdict that comes before the end."""
    assert look(made(KNOWN), report=report(phase="Complete")).requeue_after_s == 5.0
    assert look(made(KNOWN), report=report(verdict="Pass")).requeue_after_s == 5.0


OOM = {
    "state": {},
    "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "heap"}},
    "name": "c",
}


@pytest.mark.parametrize(
    ("container", "texts"),
    [
        (None, ["no answer"]),
        ({"name": "c", "state": {"running": {}}}, ["no answer"]),
        ({"name": "c", "state": {"terminated": {"exitCode": 0, "message": ""}}}, ["no answer"]),
        ({"name": "c", "state": {"terminated": {"exitCode": 2}}}, ["no answer", "Spark's container ended with exit code 2 (Error): "]),
        ({"name": "c", "state": {"terminated": {"exitCode": 0, "message": "bye"}}}, ["no answer", "Spark's container ended with exit code 0 (Error): bye"]),
        ({"name": "c", "state": {"terminated": {"message": "bye"}}}, ["no answer", "Spark's container ended (Error): bye"]),
        (OOM, ["no answer", "Spark's container ended with exit code 137 (OOMKilled): heap"]),
    ],
)  # fmt: skip
def test_an_evaluation_that_failed_is_reported_with_how_spark_ended(
    container: Obj | None, texts: list[str]
) -> None:
    """Only a verdict Error has these Events. A record that was lost does not explain a container that failed."""
    spark = a_pod(SPARK, status={"containerStatuses": [container] if container else []})
    said = report(phase="Complete", verdict="Error", reason="RunFailed", evaluationFailure="no answer")
    found = look(made(KNOWN), pods=pods(spark=spark), report=said)
    assert [text for _, reason, text in events(found) if reason == "EvaluationFailed"] == texts
    lost = look(made({**KNOWN, "recorderStarts": 2}), pods=pods(spark=spark), report=said)
    assert status_of(lost).reason == ("RecorderLost" if len(texts) == 1 else "RunFailed")
    stored = look(
        made({**KNOWN, "recorderStarts": 2}),
        pods=pods(spark=spark),
        report=said,
        settings=Settings(recorder_storage="1Gi"),
    )
    assert status_of(stored).reason == "RunFailed"
    no_spark = look(made(KNOWN), pods=pods(spark=None), report=said)
    assert [text for _, reason, text in events(no_spark) if reason == "EvaluationFailed"] == ["no answer"]
    passed = look(
        made(KNOWN),
        pods=pods(spark=spark),
        report=report(phase="Complete", verdict="Pass", evaluationFailure="x"),
    )
    assert not [reason for _, reason, _ in events(passed) if reason == "EvaluationFailed"]


@pytest.mark.parametrize(
    ("executors", "modes", "expected", "words"),
    [
        (0, ("ReadWriteMany",), "", ""),
        (2, None, "False/NoClaim", "the claim 'hist' does not exist in the namespace; create it, or set executors: 0"),
        (2, ("ReadWriteMany",), "True/Shared", "claim 'hist' can be mounted on several nodes"),
        (2, ("ReadOnlyMany",), "True/Shared", "claim 'hist' can be mounted on several nodes"),
        (2, ("ReadWriteOnce", "ReadWriteOncePod"), "Unknown/OneNode", "claim 'hist' has ReadWriteOnce, ReadWriteOncePod: executors can read it only on the driver's node"),
        (2, (), "Unknown/OneNode", "claim 'hist' has none: executors can read it only on the driver's node"),
    ],
)  # fmt: skip
def test_executors_need_a_claim_that_several_nodes_can_mount(
    executors: int, modes: tuple[str, ...] | None, expected: str, words: str
) -> None:
    """A run without executors has no such condition."""
    raw = made(KNOWN, evaluation={"executors": executors, "historyClaim": "hist"})
    found = look(raw, claim_modes=modes)
    assert conditions(found).get("HistoryReachable", "") == expected
    if expected:
        assert message(found, "HistoryReachable") == words
        ended = look(raw, claim_modes=modes, report=report(phase="Complete", verdict="Pass"))
        assert conditions(ended)["HistoryReachable"] == expected


def test_a_run_that_is_refused_is_complete_at_once() -> None:
    """With the texts of the command line, and nothing is created."""
    raw = made({"conditions": [], "phase": ""})
    raw["spec"]["scenario"]["trials"] = 0
    found = look(raw)
    assert (status_of(found).phase, status_of(found).verdict, found.requeue_after_s) == (
        "Complete",
        "Error",
        0.0,
    )
    assert [(kind, reason) for kind, reason, _ in events(found)] == [("Warning", "Rejected")]
    assert (others(found), status_of(found).completed_at) == ([], rfc3339(NOW))
    assert conditions(found)["Accepted"] == "False/Invalid"


def test_many_warnings_are_counted() -> None:
    """Sixteen have an Event of their own."""

    def warned(number: int) -> list[str]:
        raw = made({"conditions": [], "phase": ""})
        options = {f"my.own.option-{n}": "1" for n in range(number)}
        raw["spec"]["scenario"]["testbed"]["flinkConfiguration"] = options
        return [text for _, reason, text in events(look(raw)) if reason == "Warning"]

    more = len(warned(1)) - 1  # warnings that are not about these options
    assert len(warned(16 - more)) == 16
    assert warned(16 - more)[-1].partition(" ")[0] != "and"
    for over in (1, 2):
        assert warned(16 + over - more)[16:] == [f"and {over} more"]
