"""The pods of a ScenarioRun that do not start: its status, and what the plan does about them, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate_operator.plan.model import Delete
from headgate_operator.reconciler import still_failing
from testbed_runtime.api import naming
from testbed_runtime.api.status import rfc3339, to_json
from testbed_runtime.api.views import (
    HOW_TO_BIND,
    HOW_TO_PULL,
    HOW_TO_REACH_VOLUME,
    HOW_TO_SCHEDULE,
    HOW_TO_SELECT,
    HOW_TO_TOLERATE,
    Pod,
    Run,
)
from tests.operator.planned import conditions, events, message, others
from tests.operator.runs import (
    ACCEPTED,
    KNOWN,
    RECORDER,
    RUNNER,
    SPARK,
    Obj,
    a_pod,
    look,
    made,
    pods,
    report,
    status_of,
)
from tests.operator.test_scenario_study import NOW, SETTINGS


def test_a_pod_that_is_replaced_before_it_had_its_image_does_not_count_as_lost() -> None:
    """It ran nothing and recorded nothing. The pod after it begins the run."""
    leaving = {"deletionTimestamp": rfc3339(NOW)}  # a deleted pod that had nothing passes through Failed
    for phase, more in (("Pending", {}), ("Failed", leaving)):
        waiting = pods(runner=a_pod(RUNNER, phase, **more), recorder=a_pod(RECORDER, phase, **more))
        before = status_of(look(made(), pods=waiting))
        assert (before.runner_starts, before.recorder_starts) == (0, 0)
    after = look(made(to_json(before)), pods=pods(runner=None, recorder=None))
    assert [(kind, reason) for kind, reason, _ in events(after)] == [("Normal", "Started")]


@pytest.mark.parametrize("role", ["runner", "recorder", "spark"])
def test_a_pod_without_a_node_ends_the_run_unless_it_is_sparks(role: str) -> None:
    """Spark may wait for the place of the last testbed. 600 s are not too long."""
    name = {"runner": RUNNER, "recorder": RECORDER, "spark": SPARK}[role]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no cpu"}
    pod = a_pod(name, "Pending", status={"conditions": [condition]})
    assert look(made(KNOWN), pods=pods(**{role: pod}), now=NOW + 600).requeue_after_s == 5.0
    found = look(made(KNOWN), pods=pods(**{role: pod}), now=NOW + 601)
    if role == "spark":
        assert found.requeue_after_s == 5.0
        return
    text = f"pod {name} has no node after 600 s: Unschedulable: no cpu; {HOW_TO_SCHEDULE}"
    assert (status_of(found).reason, status_of(found).text) == ("Unschedulable", text)
    assert others(found) == [Delete("Pod", "lab", RUNNER, f"{RUNNER}-uid")]


@pytest.mark.parametrize(
    ("role", "age_s", "reason", "late"),
    [
        ("runner", 601, "ImagePullBackOff", True), ("recorder", 601, "ErrImagePull", True), ("runner", 600, "ErrImagePull", False),
        ("runner", 601, "ContainerCreating", False), ("spark", 601, "ErrImagePull", False),
    ],
)  # fmt: skip
def test_a_run_whose_pod_does_not_start_ends_after_ten_minutes(
    role: str, age_s: float, reason: str, late: bool
) -> None:
    """With the kubelet's words, from when it has a node. An image that is still being pulled has no problem; the evaluation has its own limit for Spark."""
    waiting = {"waiting": {"reason": reason, "message": "no such tag"}}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(NOW + 300)}
    status = {"containerStatuses": [{"name": role, "state": waiting}], "conditions": [scheduled]}
    name = {"runner": RUNNER, "recorder": RECORDER, "spark": SPARK}[role]
    pending = pods(**{role: a_pod(name, "Pending", status=status)})
    found = look(made(KNOWN), pods=pending, now=NOW + 300 + age_s)
    ended = (status_of(found).verdict, status_of(found).reason)
    assert ended == (("Error", "PodNotStarted") if late else ("", ""))
    text = f"pod {name} has not started after 600 s: {reason}: no such tag; {HOW_TO_PULL}"
    assert (status_of(found).text == text) == late


def refused(reason: str) -> Obj:
    """The status of a run for which the API server refuses an object since NOW."""
    stalled = {
        "type": "Stalled",
        "status": "True",
        "reason": reason,
        "message": "exceeded quota: q; raise it",
        "lastTransitionTime": rfc3339(NOW),
    }
    return {"phase": "Starting", "conditions": [*ACCEPTED, stalled]}


def another(labels: Obj | None = None, **status: Any) -> Run:
    """Another run of the namespace."""
    return Run(made({"phase": "Running", "conditions": [], **status}, labels=labels))


WAITS = {"type": "Ready", "status": "False", "reason": "QuotaExceeded", "message": ""}
OVER = {"phase": "Complete", "completedAt": rfc3339(NOW), "runnerStarts": 1}


@pytest.mark.parametrize(
    ("reason", "others", "age_s", "ends"),
    [
        ("QuotaExceeded", (), 601, True),
        ("QuotaExceeded", (), 600, False),
        ("NotAdmitted", (), 601, True),
        ("ReconcileFailed", (), 601, False),
        ("QuotaExceeded", (another(runnerStarts=1),), 601, False),
        ("QuotaExceeded", (another(),), 601, True),
        ("QuotaExceeded", (another(runnerStarts=1, conditions=[WAITS]),), 601, True),
        ("QuotaExceeded", (another(runnerStarts=1, phase="Suspended"),), 601, True),
        ("QuotaExceeded", (another(**OVER, recorderStarts=1),), 601, False),
        ("QuotaExceeded", (another(**OVER, recorderStarts=1),), SETTINGS.pods_ttl_s, True),
        ("QuotaExceeded", (another(**OVER),), 601, True),
        ("QuotaExceeded", (another({naming.LABEL_STUDY: "s"}, **OVER, recorderStarts=1),), 601, True),
    ],
    ids=["alone", "ten minutes are not too long", "Pod Security", "another error", "another run is at work", "all wait",
         "both lost their runners",          "the other was always suspended", "a recorder is left", "no recorder is left", "there was no recorder", "a study's recorder is gone"],
)  # fmt: skip
def test_a_run_whose_pod_is_never_admitted_ends(
    reason: str, others: tuple[Run, ...], age_s: float, ends: bool
) -> None:
    """A pipeline that waits for the run would wait forever. A run that is queued for a quota does not end."""
    found = look(made(refused(reason)), pods=pods(runner=None), others=others, now=NOW + age_s)
    ended = (status_of(found).verdict, status_of(found).reason)
    assert ended == (("Error", "PodNotCreated") if ends else ("", ""))
    text = "an object of the run was not admitted within 600 s: exceeded quota: q; raise it"
    assert (status_of(found).text == text) == ends


@pytest.mark.parametrize(
    "left", [(), (another(runnerStarts=1, phase="Suspended"),)], ids=["gone", "suspended"]
)
def test_a_queued_run_has_ten_minutes_from_the_end_of_the_queue(left: tuple[Run, ...]) -> None:
    """The other run may be deleted or suspended after hours, which nothing else in the cluster records."""
    waits, turn = pods(runner=None), NOW + 7200
    raw = made(refused("QuotaExceeded"))
    found = look(raw, pods=waits, others=(another(runnerStarts=1),), now=NOW + 1)
    assert conditions(found)["Reconciling"] == "False/Queued"
    for now, ends in ((turn, False), (turn + 600, False), (turn + 601, True)):
        refused_again = still_failing(found.status, Run(raw).status)
        assert refused_again is not None
        raw = made(to_json(refused_again))
        found = look(raw, pods=waits, others=left, now=now)
        assert (status_of(found).reason == "PodNotCreated") == ends
        assert ends or conditions(found)["Reconciling"] == "True/Starting"


def test_an_operator_that_was_down_tries_for_ten_minutes_before_it_ends_a_run() -> None:
    """The quota may have been raised meanwhile."""
    for age_s, ends in ((600, False), (601, True)):
        settings = replace(SETTINGS, since=NOW + 7200)
        raw = made(refused("QuotaExceeded"))
        found = look(raw, pods=pods(runner=None), settings=settings, now=NOW + 7200 + age_s)
        assert (status_of(found).reason == "PodNotCreated") == ends


def test_a_run_at_work_does_not_end_because_spark_is_refused() -> None:
    """Spark may get the room of the testbed when the trials are done."""
    waiting = pods(spark=None)
    assert status_of(look(made(KNOWN | refused("QuotaExceeded")), pods=waiting, now=NOW + 601)).verdict == ""


@pytest.mark.parametrize("role", ["runner", "recorder", "spark"])
@pytest.mark.parametrize(
    ("reason", "since", "gone"),
    [("ImagePullBackOff", NOW + 1, True), ("ContainerCreating", NOW + 1, False), ("ImagePullBackOff", NOW, False)],
)  # fmt: skip
def test_a_pod_whose_image_cannot_be_pulled_is_replaced_once_the_installation_is_upgraded(
    role: str, reason: str, since: float, gone: bool
) -> None:
    """An administrator who corrects the image or the pull secrets has to delete no pod. A pod of this operator is not replaced again."""
    name = {"runner": RUNNER, "recorder": RECORDER, "spark": SPARK}[role]
    status = {"containerStatuses": [{"name": role, "state": {"waiting": {"reason": reason}}}]}
    pending = a_pod(name, "Pending", status=status)
    found = look(made(KNOWN), pods=pods(**{role: pending}), settings=replace(SETTINGS, since=since))
    assert others(found) == ([Delete("Pod", "lab", name, f"{name}-uid")] if gone else [])


PULLING = a_pod(
    "any", "Pending",
    status={"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]},
)  # fmt: skip


PULLING = Pod({**PULLING.raw, "spec": {"containers": [{"name": "c", "image": "headgate:typo"}]}})
PULLING_TEXT = f"pod any: ErrImagePull: no such image; {HOW_TO_PULL}"


def test_a_pod_with_a_pull_secret_that_cannot_pull_names_the_secret() -> None:
    """The kubelet ignores a Secret that does not exist in the pod's namespace, and only says that it may not pull."""
    secrets = [{"name": "login"}, {"name": "mirror"}]
    pod = Pod({**PULLING.raw, "spec": {**PULLING.raw["spec"], "imagePullSecrets": secrets}})
    assert pod.problem == (
        "ErrImagePull: no such image; correct image.* of the installation, or in this namespace the pull secret login, mirror"
    )


@pytest.mark.parametrize(
    ("nodes", "hints"),
    [
        ("1 Insufficient cpu", ["free resources, add a node, or change pods.resources of the testbed"]),
        ("1 node(s) had untolerated taint(s)", [HOW_TO_TOLERATE]),
        ("3 node(s) had untolerated taint {a: }, 1 node(s) didn't match Pod's node affinity/selector", [HOW_TO_TOLERATE, HOW_TO_SELECT]),
        ("pod has unbound immediate PersistentVolumeClaims", [HOW_TO_BIND]),
        ("1 node(s) didn't find available persistent volumes to bind", [HOW_TO_BIND]),
        ("1 node(s) had volume node affinity conflict", [HOW_TO_REACH_VOLUME]),
        ("1 node(s) exceed max volume count", [HOW_TO_SCHEDULE]),
        ("1 node(s) were unschedulable", [HOW_TO_SCHEDULE]),
    ],
)  # fmt: skip
def test_a_pod_without_a_node_says_what_to_change(nodes: str, hints: list[str]) -> None:
    """More room does not help against a taint. The rest of the scheduler's message is about preemption."""
    said = f"0/4 nodes are available: {nodes}."
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": f"{said} preemption: none",
    }
    pod = a_pod(RUNNER, "Pending", status={"conditions": [condition]})
    assert pod.problem == "; ".join([f"Unschedulable: {said[:-1]}", *hints])


NO_NODE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "no cpu. preemption: none",
}
FULL = a_pod("any", "Pending", status={"conditions": [NO_NODE]})


@pytest.mark.parametrize(
    ("phase", "pod", "text", "ready"),
    [
        ("", {"runner": PULLING}, PULLING_TEXT, "RunnerNotReady"),
        ("Running", {"recorder": FULL}, f"pod any: Unschedulable: no cpu; {HOW_TO_SCHEDULE}", "RecorderNotReady"),
        ("Evaluating", {"spark": PULLING}, PULLING_TEXT, "SparkNotReady"),
        ("Evaluating", {"spark": None}, "at it", "SparkNotReady"),
        ("Running", {"spark": PULLING}, PULLING_TEXT, "Running"),
        ("Running", {"spark": FULL}, "at it", "Running"),
    ],
)  # fmt: skip
def test_a_run_whose_pod_cannot_start_says_so_in_its_message(
    phase: str, pod: Obj, text: str, ready: str
) -> None:
    """With the pod and what to do. `kubectl get` and the command line show the message; it goes when the pod has started. A Spark without
    its image is reported before the trials are over; one without a node may wait for the place of the testbed."""
    at_work = report(phase=phase, message="at it") if phase else None
    found = look(made(KNOWN), pods=pods(**pod), report=at_work)
    assert status_of(found).message == text
    assert conditions(found)["Ready"].partition("/")[2] == ready
    later = look(made({**KNOWN, "message": text}), report=at_work)
    assert status_of(later).message == ("at it" if phase else "")


def test_a_run_whose_spark_never_had_its_image_ends_with_the_kubelets_reason() -> None:
    """And not with the connection that the runner could not open. A run that was evaluated keeps its text, whatever Spark does now."""
    failed = {"phase": "Complete", "verdict": "Error", "reason": "RunFailed", "text": "no answer"}
    for failure, text in (("no answer", f"the history was not evaluated: {PULLING_TEXT}"), ("", "no answer")):
        found = look(
            made(KNOWN), pods=pods(spark=PULLING), report=report(**failed, evaluationFailure=failure)
        )
        assert (status_of(found).verdict, status_of(found).text) == ("Error", text)


@pytest.mark.parametrize(
    ("exit_code", "ready", "text"),
    [
        (0, "True/Running", "at it"),
        (1, "False/RecorderNotReady", f"pod {RECORDER}: the container ended with exit code 1 (Error)"),
    ],
)
def test_an_init_container_that_has_done_its_work_is_no_problem(
    exit_code: int, ready: str, text: str
) -> None:
    """A service mesh adds some to every pod of its namespaces."""
    ended = {"terminated": {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}}
    recorder = a_pod(RECORDER, status={"initContainerStatuses": [{"name": "mesh-init", "state": ended}]})
    found = look(made(KNOWN), pods=pods(recorder=recorder), report=report(phase="Running", message="at it"))
    assert (conditions(found)["Ready"], status_of(found).message) == (ready, text)


def test_a_container_that_ends_again_and_again_is_shown_with_the_end_of_its_log() -> None:
    """The reason is in the log's last line, for which the user would have to search."""
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "Traceback:\nno space left\n"}}
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}}
    recorder = a_pod(
        RECORDER, status={"containerStatuses": [{"name": "r", "state": waits, "lastState": ended}]}
    )
    found = look(made(KNOWN), pods=pods(recorder=recorder))
    text = f"pod {RECORDER}: CrashLoopBackOff: back-off 20s; its log ends with: no space left"
    assert message(found, "Ready") == text


@pytest.mark.parametrize(
    ("seen", "reason"),
    [({"taken": ("Pod trial-run-runner",)}, "NamesTaken"), ({"pods": pods(runner=None)}, "Suspended")],
)
def test_a_run_that_waits_for_a_user_says_for_what_instead_of_an_earlier_problem(
    seen: Obj, reason: str
) -> None:
    """Its pod that could not start is gone."""
    found = look(made({"message": PULLING_TEXT}, suspend=reason == "Suspended"), **seen)
    assert conditions(found)["Ready"] == f"False/{reason}"
    assert status_of(found).message == message(found, "Ready")
