"""The plan of a TuningStudy in each of its situations, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate_operator.handler import Context
from headgate_operator.handlers.study import StudyHandler
from headgate_operator.plan import study
from headgate_operator.plan.conditions import clip, tail, yes
from headgate_operator.plan.model import Delete, Key, Plan
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import StudyReport, TuningStudyStatus, read, rfc3339, to_json
from testbed_runtime.api.views import HOW_TO_PULL, HOW_TO_SCHEDULE, Pod, Run, Study
from testbed_runtime.kube.api import ApiError
from tests.operator.actors import a_run
from tests.operator.model import ModelApi
from tests.operator.planned import events, others
from tests.operator.test_scenario_study import NOW, SETTINGS, a_study, condition

Obj = dict[str, Any]
ACCOUNTS = frozenset({("ServiceAccount", naming.STUDY_ACCOUNT), ("RoleBinding", "headgate-study")})


def a_pod(phase: str = "Running", **metadata: Any) -> Pod:
    image = {naming.ANNOTATION_IMAGES: SETTINGS.image}
    given = {"name": "knobs-study", "namespace": "lab", "uid": "p", "annotations": image}
    return Pod({"metadata": {**given, **metadata}, "spec": {}, "status": {"phase": phase}})


def look(
    status: Obj | None = None,
    pod: Pod | None = None,
    report: Obj | None = None,
    *,
    settings: Settings = SETTINGS,
    others: tuple[Run, ...] = (),
    now: float = NOW,
    **spec: Any,
) -> Plan:
    said = None if report is None else read(StudyReport, report)
    observed = study.Observed(Study(a_study(status, **spec)), pod, said, ACCOUNTS, others)
    return study.plan(observed, settings, now)


def status_of(plan: Plan) -> TuningStudyStatus:
    assert isinstance(plan.status, TuningStudyStatus)
    return plan.status


def test_a_pod_is_counted_once_and_the_study_begins_with_its_first_look() -> None:
    """It is looked at again in 5 s."""
    first = look(pod=a_pod(), report={"phase": "Running", "message": "run 1"})
    assert (status_of(first).pod_starts, status_of(first).pod_uid) == (1, "p")
    assert (status_of(first).started_at, first.requeue_after_s, first.actions) == (rfc3339(NOW), 5.0, ())
    assert [condition(first, t) for t in ("Ready", "Reconciling", "Complete")] == [
        "True/Running",
        "True/Running",
        "False/Running",
    ]
    again = look({"podStarts": 3, "podUid": "p", "startedAt": rfc3339(NOW - 9)}, a_pod("Pending"))
    assert (status_of(again).pod_starts, status_of(again).started_at) == (3, rfc3339(NOW - 9))
    assert condition(again, "Ready") == "False/Starting"
    other = look({"podStarts": 3, "podUid": "old"}, a_pod())
    assert (status_of(other).pod_starts, status_of(other).pod_uid) == (4, "p")


def test_only_a_study_without_a_pod_can_be_suspended() -> None:
    """It has not started then."""
    found = look(suspend=True)
    assert (found.actions, found.requeue_after_s, status_of(found).phase) == ((), None, "Suspended")
    assert (status_of(found).started_at, condition(found, "Reconciling")) == (None, "False/Suspended")
    assert look(pod=a_pod(), suspend=True).requeue_after_s == 5.0


@pytest.mark.parametrize(("phase", "leaving", "gone"), [("Failed", False, True), ("Failed", True, False), ("Running", False, False)])  # fmt: skip
def test_a_pod_that_ended_is_deleted_once(phase: str, leaving: bool, gone: bool) -> None:
    """The uid names it."""
    pod = a_pod(phase, **({"deletionTimestamp": rfc3339(NOW)} if leaving else {}))
    assert look(pod=pod).actions == ((Delete("Pod", "lab", "knobs-study", "p"),) if gone else ())


def test_a_pod_whose_image_cannot_be_pulled_is_replaced_once_the_installation_is_upgraded() -> None:
    """Otherwise the study would wait forever."""
    found = a_pod("Pending", creationTimestamp=rfc3339(NOW - 61)).raw
    waiting = [{"name": "study", "state": {"waiting": {"reason": "ErrImagePull"}}}]
    spec = {"serviceAccountName": naming.STUDY_ACCOUNT}
    pod = Pod({**found, "spec": spec, "status": {"phase": "Pending", "containerStatuses": waiting}})
    for since, gone in ((NOW, True), (NOW - 61, False)):
        after = look(pod=pod, settings=replace(SETTINGS, since=since))
        assert after.actions == ((Delete("Pod", "lab", "knobs-study", "p"),) if gone else ())


PULLING = [{"name": "study", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such tag"}}}]


@pytest.mark.parametrize("age_s", [600, 601])
@pytest.mark.parametrize(
    ("has_node", "reason", "text"),
    [
        (False, "Unschedulable", f"Unschedulable: no cpu; {HOW_TO_SCHEDULE}"),
        (True, "PodNotStarted", f"ErrImagePull: no such tag; {HOW_TO_PULL}"),
    ],
)
def test_a_study_whose_pod_cannot_start_says_so_and_ends_after_ten_minutes(
    has_node: bool, reason: str, text: str, age_s: float
) -> None:
    """With the pod, Kubernetes' reason, and what to do. A pod that never started is not one that was lost."""
    since = rfc3339(NOW - age_s)
    scheduled = {
        "type": "PodScheduled",
        "status": str(has_node),
        "reason": "Unschedulable",
        "message": "no cpu",
    }
    conditions = [{**scheduled, "lastTransitionTime": since}]
    status = {"phase": "Pending", "conditions": conditions, "containerStatuses": PULLING if has_node else []}
    raw = a_pod("Pending", creationTimestamp=since).raw
    pod = Pod({**raw, "spec": {"serviceAccountName": naming.STUDY_ACCOUNT}, "status": status})
    late = age_s > 600
    found = look(pod=pod)
    assert text in status_of(found).message
    assert "pod knobs-study" in status_of(found).message
    assert condition(found, "Ready") == f"False/{reason if late else 'PodsNotReady'}"
    assert (status_of(found).phase, condition(found, "Stalled").startswith("True")) == (
        ("Complete", True) if late else ("Starting", False)
    )
    assert others(found) == ([Delete("Pod", "lab", "knobs-study", "p")] if late else [])
    assert status_of(found).pod_starts == 0


AT_WORK = Run({**a_run(), "status": {"phase": "Running", "runnerStarts": 1}})


@pytest.mark.parametrize(
    ("reason", "pod", "others", "age_s", "ends"),
    [
        ("QuotaExceeded", None, (), 601, True),
        ("QuotaExceeded", None, (), 600, False),
        ("NotAdmitted", None, (), 601, True),
        ("ReconcileFailed", None, (), 601, False),
        ("QuotaExceeded", None, (AT_WORK,), 601, False),
        ("QuotaExceeded", a_pod(), (), 601, False),
    ],
    ids=["alone", "ten minutes are not too long", "Pod Security", "another error", "a run is at work", "it has its pod"],
)  # fmt: skip
def test_a_study_whose_pod_is_never_admitted_ends(
    reason: str, pod: Pod | None, others: tuple[Run, ...], age_s: float, ends: bool
) -> None:
    """A pipeline that waits for the study would wait forever. A study that is queued for a quota does not end."""
    stalled = yes("Stalled", reason, "exceeded quota: q; raise it")
    status = TuningStudyStatus(conditions=(replace(stalled, last_transition_time=rfc3339(NOW)),))
    found = look(to_json(status), pod, others=others, now=NOW + age_s)
    assert (status_of(found).phase == "Complete") == ends
    text = "an object of the study was not admitted within 600 s: exceeded quota: q; raise it"
    assert (status_of(found).message == text) == ends
    assert (condition(found, "Ready") == "False/PodNotCreated") == ends
    assert (condition(found, "Reconciling") == "False/Queued") == bool(others)


def test_a_study_whose_pod_has_started_keeps_no_problem_of_it() -> None:
    """Also before the pod's first report, and after its pod is gone."""
    for pod in (a_pod(), None):
        assert status_of(look({"message": "pod knobs-study: ErrImagePull"}, pod)).message == ""


def test_a_study_that_is_suspended_between_its_runs_is_not_ready() -> None:
    """Its pod waits. The message says how to go on."""
    found = look(
        {"startedAt": rfc3339(NOW)},
        a_pod(),
        {"phase": "Suspended", "message": "how", "runsTotal": 2},
        suspend=True,
    )
    assert [condition(found, t) for t in ("Ready", "Reconciling", "Complete")] == ["False/Suspended"] * 3
    assert (status_of(found).phase, status_of(found).message) == ("Suspended", "how")


@pytest.mark.parametrize(
    ("report", "kind", "text", "ready"),
    [
        ({"runsDone": 2, "runsTotal": 2}, "Normal", "2/2 runs", "True/TableComplete"),
        ({"runsDone": 2, "runsTotal": 2, "best": "a=1", "applied": "bench"}, "Normal", "2/2 runs; best: a=1; applied to bench", "True/TableComplete"),
        ({"runsDone": 1, "runsTotal": 2, "reason": "Healed", "message": "it was healed"}, "Warning", "1/2 runs; it was healed", "False/Healed"),
        ({"runsTotal": 0}, "Normal", "old runs", "True/TableComplete"),
        ({"progress": "", "reason": "Invalid", "message": "no Scenario"}, "Warning", "no Scenario", "False/Invalid"),
    ],
)  # fmt: skip
def test_a_study_ends_with_its_best_row(report: Obj, kind: str, text: str, ready: str) -> None:
    """Or with the reason for which its table is not complete."""
    before = {"progress": report.get("progress", "old")}
    found = look(before, a_pod("Succeeded"), {"phase": "Complete", **report})
    assert events(found) == [(kind, "Complete", text)]
    assert (condition(found, "Ready"), status_of(found).completed_at) == (ready, rfc3339(NOW))
    assert condition(found, "Stalled").startswith("False" if ready.startswith("True") else "True")
    assert found.requeue_after_s is None


@pytest.mark.parametrize(("starts", "given_up"), [(5, False), (6, True)])
def test_a_study_whose_pod_is_lost_for_the_sixth_time_is_given_up(starts: int, given_up: bool) -> None:
    """The table so far stays."""
    found = look({"podStarts": starts}, None, {"phase": "Running", "runsDone": 1, "runsTotal": 4})
    assert (status_of(found).phase == "Complete") == given_up
    assert status_of(found).progress == "1/4"
    if given_up:
        assert events(found) == [("Warning", "Complete", "1/4 runs; the study's pod was lost 6 times")]


def test_a_refused_study_is_reported_and_a_deleted_one_left_alone() -> None:
    """Nothing is created for it."""
    found = look(objectives=[])
    assert [(kind, reason) for kind, reason, _ in events(found)] == [("Warning", "Rejected")]
    assert (status_of(found).phase, condition(found, "Complete")) == ("Rejected", "False/Invalid")
    raw = a_study()
    raw["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert study.plan(study.Observed(Study(raw)), SETTINGS, NOW) == Plan()


@pytest.mark.parametrize(("length", "kept"), [(900, 900), (901, 900)])
def test_a_long_text_keeps_its_beginning_in_an_event_and_its_end_in_a_log(length: int, kept: int) -> None:
    """The API server takes 1,024 characters."""
    text = "b" + "x" * (length - 2) + "e"
    assert (len(clip(text)), clip(text)[0], clip(text)[-1]) == (kept, "b", "e" if length == kept else "…")
    shown = tail(text)
    assert (shown[0], shown[-1], len(shown)) == ("b" if length == kept else "…", "e", length)


async def test_a_study_that_has_ended_is_left_alone_where_the_operator_has_no_rights_any_more() -> None:
    """Its accounts are not read, so it does not become Stalled (`NotAdmitted`) after its end."""
    api = ModelApi(now=lambda: NOW)
    ended = {"phase": "Complete"}
    api.objects["TuningStudy", "lab", "knobs"] = {**api.put(a_study()), "status": ended}
    account = lambda verb, kind, name: kind in ("ServiceAccount", "RoleBinding")  # noqa: E731
    api.failing.append((account, ApiError(403, "Forbidden", "no Role here")))
    context = Context(api, Settings(), None, None, lambda: NOW, lambda: "0", lambda: b"0")
    observed = await StudyHandler().observe(context, Key("TuningStudy", "lab", "knobs"))
    assert observed is not None
    assert study.plan(observed, SETTINGS, NOW).actions == ()
