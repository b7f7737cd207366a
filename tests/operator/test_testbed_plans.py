"""The plan of a Testbed in each of its situations, without a cluster: its pods, its status and when it is looked at again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate_operator import objects
from headgate_operator.plan import testbed as planner
from headgate_operator.plan import testbed_status
from headgate_operator.plan.conditions import moment
from headgate_operator.plan.model import Apply, Create, Delete, Plan
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import TestbedStatus, rfc3339, to_json
from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.api.views import HOW_TO_PULL, HOW_TO_SCHEDULE, Pod, Resource, Secret, Testbed
from tests.operator.planned import conditions, events, message
from tests.operator.test_scenario_study import NOW, SETTINGS
from tests.operator.world import a_testbed

Obj = dict[str, Any]
ALL = ("store", "jobmanager", "tm-0", "tm-1", "tm-2")
RUNNING = {
    "state": "RUNNING",
    "running": 2,
    "total": 2,
    "restarts": 1,
    "checkpoints": 4,
    "placement": {"sink-0": "tm-1"},
}


def made(status: Obj | None = None, **spec: Any) -> Obj:
    found = a_testbed(**spec)
    found["metadata"] |= {"uid": "u", "generation": 3}
    found["status"] = {"incarnations": dict.fromkeys(ALL, 1), "members": list(ALL), **(status or {})}
    return found


def a_secret(name: str = "", uid: str = "s") -> Secret:
    return Secret({"kind": "Secret", "metadata": {"name": name or "token", "uid": uid}})


def a_pod(raw: Obj, process: str, *, ready: bool = True, phase: str = "Running", incarnation: int = 1, secret: str = "s", status: Obj | None = None, **metadata: Any) -> Pod:  # fmt: skip
    """A pod of the Testbed as the operator creates it, at work."""
    found = objects.pod(raw, process, incarnation=incarnation, secret_uid=secret, settings=SETTINGS)
    found["metadata"] |= {"uid": f"{process}-{incarnation}", "creationTimestamp": rfc3339(NOW), **metadata}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    found["status"] = {"phase": phase, "conditions": conditions, **(status or {})}
    return Pod(found)


def pods(raw: Obj, without: tuple[str, ...] = (), **changed: Obj) -> tuple[Pod, ...]:
    """One pod of each process; `changed` by process, with `tm_0` for `tm-0`."""
    return tuple(
        a_pod(raw, p, **changed.get(p.replace("-", "_"), {}))
        for p in objects.processes(raw["spec"])
        if p not in without
    )


def look(
    raw: Obj,
    there: tuple[Pod, ...] | None = None,
    *,
    now: float = NOW,
    settings: Settings = SETTINGS,
    **more: Any,
) -> Plan:
    claim = objects.store_claim(raw)
    more.setdefault("config_map", None if validate_kind(raw).errors else objects.config_map(raw))
    given = {
        "pods": pods(raw) if there is None else there, "secret": a_secret(),
        "service": Resource(objects.service(raw)), "claim": Resource(claim) if claim else None, "job": RUNNING, **more,
    }  # fmt: skip
    return planner.plan(planner.TestbedObserved(Testbed(raw), **given), settings, now)


def status_of(plan: Plan) -> TestbedStatus:
    assert isinstance(plan.status, TestbedStatus)
    return plan.status


def created(plan: Plan) -> list[str]:
    return [
        Pod(a.manifest).process if a.manifest["kind"] == "Pod" else a.manifest["kind"]
        for a in plan.actions
        if isinstance(a, Create)
    ]


def deleted(plan: Plan) -> list[str]:
    return [a.uid for a in plan.actions if isinstance(a, Delete)]


def settled(**spec: Any) -> Obj:
    """A Testbed whose status is up to date."""
    return made(to_json(status_of(look(made(**spec)))), **spec)


# ---- the status


def test_a_settled_testbed_needs_nothing() -> None:
    """It is looked at again in 10 s, and its status stays."""
    found = look(settled())
    assert (found.actions, found.requeue_after_s) == ((), 10.0)
    status = status_of(found)
    assert conditions(found) == {
        "Accepted": "True/Valid", "Ready": "True/AllReady", "Reconciling": "False/Settled",
        "Stalled": "False/Progressing", "JobRunning": "True/Running",
    }  # fmt: skip
    assert (status.phase, status.message, message(found, "Ready")) == ("Ready", "", "5 pods are ready")
    assert (status.task_managers, status.ready_task_managers, status.tasks) == (3, 3, "2/2")
    assert (status.job_state, status.restarts, status.checkpoints) == ("RUNNING", 1, 4)
    assert (status.placement, message(found, "JobRunning")) == (
        {"sink-0": "tm-1"},
        "2 of 2 tasks are running",
    )
    assert status.selector == f"{naming.LABEL_TESTBED}=bench,{naming.LABEL_ROLE}=taskmanager"
    assert status.members == tuple(sorted(ALL))


def test_the_first_look_at_a_ready_testbed_says_so_once() -> None:
    """And that its job runs."""
    found = look(made())
    assert events(found) == [
        ("Normal", "Ready", "generation 3 is ready"),
        ("Normal", "JobRunning", "the job is running"),
    ]


@pytest.mark.parametrize(
    ("before", "job", "spec", "reported"),
    [
        ("RUNNING", "FAILED", {}, True),
        ("FAILED", "FAILED", {}, False),
        ("RUNNING", "RESTARTING", {}, False),
        ("RUNNING", "FAILED", {"jobState": "suspended"}, False),  # that of a run, which reports it itself
    ],
)
def test_a_job_that_failed_for_good_is_reported_once(
    before: str, job: str, spec: Obj, reported: bool
) -> None:
    """A new JobManager does not know it any more: its state is then NONE, with a sentence about that."""
    found = look(made({"jobState": before}, **spec), job={"state": job})
    assert ("JobFailed" in [reason for _, reason, _ in events(found)]) is reported
    caused = look(made({"jobState": before}, **spec), job={"state": job, "cause": "IOException: the store"})
    assert message(caused, "JobRunning") == f"state {job}: IOException: the store"
    gone = look(made({"jobState": job}), job={})
    assert "ended before this JobManager started" in message(gone, "JobRunning")


@pytest.mark.parametrize(
    ("job", "spec", "running", "again", "tasks"),
    [
        (None, {}, "Unknown/JobManagerNotReached", 1.0, ""),
        ({"state": "RUNNING", "running": 1, "total": 2}, {}, "True/Running", 10.0, "1/2"),
        ({"state": "RUNNING", "running": 0, "total": 2}, {}, "False/Deploying", 1.0, "0/2"),
        ({}, {}, "False/NotRunning", 1.0, "0/0"),
        ({}, {"jobState": "suspended"}, "False/Suspended", 10.0, "0/0"),
        ({"state": "CREATED"}, {"jobState": "suspended"}, "False/NotRunning", 10.0, "0/0"),
        ({"state": "RESTARTING", "running": 1, "total": 2}, {}, "False/NotRunning", 1.0, "1/2"),
        ({"state": "FAILED"}, {}, "False/NotRunning", 10.0, "0/0"),
        ({"state": "FINISHED"}, {}, "False/NotRunning", 10.0, "0/0"),
    ],
)
def test_a_job_that_changes_by_itself_is_asked_for_each_second(
    job: Obj | None, spec: Obj, running: str, again: float, tasks: str
) -> None:
    """One that runs or has ended every ten."""
    found = look(made(**spec), job=job)
    assert (conditions(found)["JobRunning"], found.requeue_after_s) == (running, again)
    assert status_of(found).tasks == tasks
    if job is None:
        assert (conditions(found)["Ready"], status_of(found).job_state) == (
            "False/JobManagerNotReached",
            "UNKNOWN",
        )
        assert status_of(found).message == "the JobManager does not answer the operator"
    else:
        assert status_of(found).job_state == (job.get("state") or "NONE")
        assert (status_of(found).restarts, status_of(found).placement) == (0, {})


def test_a_jobmanager_that_is_gone_is_not_asked_soon() -> None:
    """Its next pod comes as an event."""
    raw = made()
    assert look(raw, pods(raw, ("jobmanager",)), job=None).requeue_after_s == 10.0


def _waiting(text: str) -> Obj:
    state = {"waiting": {"reason": "ImagePull", "message": text}}
    status = {"conditions": [], "containerStatuses": [{"name": "c", "state": state}]}
    return {"ready": False, "status": status}


@pytest.mark.parametrize(("number", "more"), [(4, ""), (5, " (and 1 more)")])
def test_pods_that_are_not_ready_are_named_with_what_is_wrong(number: int, more: str) -> None:
    """Four different problems; the others are counted."""
    raw = made()
    bad = {p.replace("-", "_"): _waiting(f"no {p}") for p in ALL[:number]}
    found = look(raw, pods(raw, **bad))
    shown = "; ".join(f"{name}: ImagePull: no {name}" for name in ALL[:4])
    assert message(found, "Ready") == f"not ready: {', '.join(ALL[:number])}. {shown}{more}"
    assert (conditions(found)["Ready"], status_of(found).phase) == ("False/PodsNotReady", "Starting")
    assert conditions(found)["Reconciling"] == "True/Starting"
    silent = look(raw, pods(raw, tm_0={"ready": False}))
    assert message(silent, "Ready") == "not ready: tm-0"
    assert status_of(silent).ready_task_managers == 2


def test_one_problem_of_many_pods_is_shown_once() -> None:
    """Eight names are shown; on a full node each pod has the scheduler's sentence."""
    raw = made(taskManagers={"replicas": 20})
    found = look(raw, pods(raw, **{f"tm_{n}": _waiting("full") for n in range(20)}))
    names = f"{', '.join(f'tm-{n}' for n in range(8))} and 12 more"
    assert message(found, "Ready") == f"not ready: {names}. {names}: ImagePull: full"


NO_NODE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "no cpu. preemption: none",
}
HAS_NODE = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(NOW)}
PULLING = [{"name": "c", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such tag"}}}]


@pytest.mark.parametrize("age_s", [600, 601])
@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        ({"conditions": [NO_NODE]}, "Unschedulable", f"has no node after 600 s: Unschedulable: no cpu; {HOW_TO_SCHEDULE}"),
        ({"conditions": [HAS_NODE], "containerStatuses": PULLING}, "PodNotStarted",
         f"has not started after 600 s: ErrImagePull: no such tag; {HOW_TO_PULL}"),
    ],
)  # fmt: skip
def test_a_pod_that_cannot_start_stalls_the_testbed_after_ten_minutes(
    status: Obj, reason: str, text: str, age_s: float
) -> None:
    """With one Event, which has the pod, Kubernetes' reason, and what to do."""
    raw = made()
    waiting = {"phase": "Pending", "status": status}
    found = look(raw, pods(raw, tm_2=waiting), now=NOW + age_s)
    late = age_s > 600
    assert conditions(found)["Stalled"] == (f"True/{reason}" if late else "False/Progressing")
    assert events(found)[:1] == (
        [("Warning", reason, f"pod bench-tm-2 {text}")]
        if late
        else [("Normal", "JobRunning", "the job is running")]
    )
    assert conditions(found)["Reconciling"] == (f"False/{reason}" if late else "True/Starting")
    again = look(made(to_json(status_of(found))), pods(raw, tm_2=waiting), now=NOW + age_s)
    assert events(again) == []


# ---- the objects that pods need


def test_a_new_testbed_gets_what_its_pods_need_first() -> None:
    """The Secret before the pods, which mount it."""
    raw = made({"incarnations": {}, "members": []})
    more: Obj = {"config_map": None, "service": None, "claim": None, "job": None, "new_token": "t"}
    found = look(raw, (), secret=None, **more)
    assert [a.manifest["kind"] for a in found.actions if isinstance(a, Apply)] == ["ConfigMap", "Service"]
    assert created(found) == ["Secret", *(["PersistentVolumeClaim"] if objects.store_claim(raw) else [])]
    assert (status_of(found).phase, found.requeue_after_s) == ("Starting", 0.0)
    assert conditions(found)["Ready"] == "False/WaitingForSecret"
    then = look(raw, (), job=None)
    assert created(then) == list(ALL)
    assert events(then) == [("Normal", "Creating", "5 pods")]
    assert [
        a.manifest["metadata"]["labels"][naming.LABEL_INCARNATION]
        for a in then.actions
        if isinstance(a, Create)
    ] == ["1"] * 5
    assert status_of(then).incarnations == dict.fromkeys(ALL, 1)
    assert (status_of(then).members, conditions(then)["Reconciling"]) == ((), "True/Scaling")


def test_a_config_map_of_another_spec_is_applied_again() -> None:
    """One with the same data is left."""
    found = look(settled(), config_map={"data": {"testbed.json": "{}"}})
    assert [a.manifest["kind"] for a in found.actions if isinstance(a, Apply)] == ["ConfigMap"]


@pytest.mark.parametrize("secret", [None, Secret({"metadata": {"uid": "s"}, "data": {"password": "eA=="}})])
def test_a_testbed_with_a_given_secret_waits_for_it_and_its_token(secret: Secret | None) -> None:
    """It is looked for each second, and none is made instead. The kubelet would start no pod without the key."""
    raw = made(pods={"tokenSecret": "theirs"})
    found = look(raw, (), secret=secret, job=None)
    assert (created(found), found.requeue_after_s) == ([], 1.0)
    assert message(found, "Ready") == "waits for Secret theirs with a key `token`"


def test_a_pod_mounts_only_the_token_of_a_given_secret() -> None:
    """A user who may create a Testbed but read no Secrets could otherwise read any Secret with a Python function."""
    raw = made(pods={"tokenSecret": "theirs"})
    mounted = [v["secret"] for v in a_pod(raw, "tm-0").raw["spec"]["volumes"] if "secret" in v]
    assert [(s["secretName"], s["items"]) for s in mounted] == [
        ("theirs", [{"key": "token", "path": "token"}])
    ]


def test_pods_whose_secret_is_gone_are_all_replaced_before_a_new_one_is_made() -> None:
    """They reject every request. No pod is created without a Secret."""
    raw = settled()
    found = look(raw, pods(raw, ("tm-0",)), secret=None, job=None)
    assert created(found) == []
    assert sorted(deleted(found)) == ["jobmanager-1", "store-1", "tm-1-1", "tm-2-1"]
    other = look(raw, secret=a_secret(uid="another"))
    assert sorted(deleted(other)) == ["jobmanager-1", "store-1", "tm-0-1", "tm-1-1", "tm-2-1"]
    assert conditions(other)["Reconciling"] == "True/Replacing"


@pytest.mark.parametrize(
    ("kind", "owner", "waits"),
    [("service", "x", True), ("claim", "x", True), ("service", "u", False), ("service", "", False)],
)
def test_a_testbed_waits_for_objects_with_its_names_of_another_owner(
    kind: str, owner: str, waits: bool
) -> None:
    """An object without any owner is taken."""
    owners = [{"uid": owner}] if owner else []
    other = Resource({"kind": kind.title(), "metadata": {"name": "bench", "ownerReferences": owners}})
    found = look(made(), **{kind: other})
    assert (conditions(found)["Ready"] == "False/NamesTaken") == waits
    if waits:
        assert (found.actions, found.requeue_after_s) == ((), 1.0)
        assert message(found, "Ready").startswith(
            f"waits until {kind.title()} bench of another owner is gone; "
        )


def test_a_refused_spec_leaves_the_pods_and_is_reported_once() -> None:
    """Another error is reported again."""
    raw = {**settled(), "spec": a_testbed(jobState="x")["spec"]}
    first = look(raw, ())
    assert (status_of(first).phase, status_of(first).configuration) == ("Rejected", "")
    assert status_of(first).members == tuple(sorted(ALL))
    assert [reason for _, reason, _ in events(first)] == ["Rejected"]
    assert status_of(first).message == message(first, "Accepted").partition("\n")[0]
    again = made(to_json(status_of(first)), jobState="x")
    assert look(again).actions == ()
    again["spec"]["jobState"] = "y"
    assert [reason for _, reason, _ in events(look(again))] == ["Rejected"]
    gone = made()
    gone["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert look(gone, ()) == Plan()


# ---- losses


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (None, "its pod was deleted"),
        ({"deletionTimestamp": rfc3339(NOW)}, "its pod was deleted"),
        ({"phase": "Failed", "ready": False}, "its pod ended"),
        (
            {"phase": "Failed", "ready": False, "status": {"reason": "Evicted", "message": "memory"}},
            "Evicted: memory",
        ),
    ],
)
def test_a_lost_taskmanager_is_reported_once_and_replaced_after_its_delay(how: Obj | None, why: str) -> None:
    """5 s, as its next incarnation. What is left of its pod is deleted first."""
    raw = settled(taskManagers={"replaceLost": "5 s"})
    there = pods(raw, ("tm-1",)) + (() if how is None else (a_pod(raw, "tm-1", **how),))
    found = look(raw, there)
    assert events(found) == [("Warning", "TaskManagerLost", f"tm-1 (incarnation 1): {why}")]
    assert (status_of(found).lost, found.requeue_after_s) == ({"tm-1": moment(NOW)}, 5.0)
    assert (conditions(found)["Ready"], message(found, "Ready")) == ("False/TaskManagerLost", "lost: tm-1")
    assert status_of(found).phase == "Degraded"
    assert conditions(found)["Reconciling"] == "False/Settled"
    lost = made(to_json(status_of(found)), taskManagers={"replaceLost": "5 s"})
    before = look(lost, there, now=NOW + 4.5)
    assert (events(before), created(before), deleted(before), before.requeue_after_s) == ([], [], [], 0.5)
    due = look(lost, there, now=NOW + 5)
    if how is None:
        assert (created(due), status_of(due).incarnations["tm-1"]) == (["tm-1"], 2)
        assert events(due) == [("Normal", "PodReplaced", "creating tm-1, incarnation 2")]
        assert (status_of(due).lost, "tm-1" in status_of(due).members) == ({}, False)
        assert conditions(due)["Reconciling"] == "True/Scaling"
    else:
        assert (created(due), deleted(due)) == ([], [] if "deletionTimestamp" in how else ["tm-1-1"])
    never = settled()
    assert created(look(never, pods(never, ("tm-1",)), now=NOW + 9e6)) == []
    assert look(never, pods(never, ("tm-1",))).requeue_after_s == 10.0


def test_a_helper_that_is_lost_is_created_at_once() -> None:
    """It is not a lost TaskManager."""
    raw = settled()
    found = look(raw, pods(raw, ("store",)))
    assert (created(found), status_of(found).lost) == (["store"], {})
    ended = look(raw, pods(raw, store={"phase": "Failed", "ready": False}))
    assert (created(ended), deleted(ended)) == ([], ["store-1"])
    leaving = look(raw, pods(raw, store={"deletionTimestamp": rfc3339(NOW)}))
    assert (created(leaving), deleted(leaving)) == ([], [])


def test_an_incarnation_is_used_once_also_if_the_status_was_lost() -> None:
    """The pod's label counts."""
    raw = made({"incarnations": {"tm-0": 7}, "members": []}, taskManagers={"replaceLost": "0 s"})
    there = pods(raw, ("tm-0", "tm-1"), tm_2={"incarnation": 4})
    found = look(raw, there)
    assert status_of(found).incarnations == {"tm-0": 8, "tm-1": 1, "tm-2": 4, "jobmanager": 1, "store": 1}
    assert ("Normal", "ScaledUp", "creating tm-1, incarnation 1") in events(found)
    assert ("Normal", "PodReplaced", "creating tm-0, incarnation 8") in events(found)


def test_a_name_that_another_testbeds_pod_has_is_waited_for() -> None:
    """Each second. An earlier Testbed of the name is going."""
    raw = made({"incarnations": {}, "members": []})
    old = a_pod(raw, "tm-1", ownerReferences=[{"uid": "earlier", "controller": True}])
    found = look(raw, (old,), job=None)
    assert created(found) == [p for p in ALL if p != "tm-1"]
    assert found.requeue_after_s == 1.0
    none = look(raw, (), job=None)
    assert none.requeue_after_s == 10.0


# ---- scaling and rolling


def test_scaling_takes_the_highest_ordinals() -> None:
    """And adds the next ones. A pod that is going is not deleted again."""
    small = settled(taskManagers={"replicas": 1, "slots": 4})
    there = tuple(a_pod(small, p) for p in ALL)
    found = look(small, there)
    assert deleted(found) == ["tm-2-1", "tm-1-1"]
    assert events(found) == [
        ("Normal", "ScaledDown", "deleting tm-2"),
        ("Normal", "ScaledDown", "deleting tm-1"),
    ]
    assert (conditions(found)["Reconciling"], message(found, "Reconciling")) == (
        "True/Scaling",
        "pods are being created or deleted",
    )
    assert (status_of(found).task_managers, status_of(found).ready_task_managers) == (3, 1)
    leaving = (*there[:4], a_pod(small, "tm-2", deletionTimestamp=rfc3339(NOW)))
    assert deleted(look(small, leaving)) == ["tm-1-1"]
    gone = look(small, (*there[:3], leaving[4]))
    assert (deleted(gone), conditions(gone)["Reconciling"]) == ([], "True/Scaling")
    big = settled(taskManagers={"replicas": 4})
    big["status"] = settled()["status"]
    more = look(big, pods(big, ("tm-3",)))
    assert (created(more), events(more)) == (
        ["tm-3"],
        [("Normal", "ScaledUp", "creating tm-3, incarnation 1")],
    )


def stale(raw: Obj, process: str, **more: Any) -> Pod:
    found = a_pod(raw, process, **more)
    labels = {**found.raw["metadata"]["labels"], naming.LABEL_CONFIG: "old"}
    return Pod({**found.raw, "metadata": {**found.raw["metadata"], "labels": labels}})


@pytest.mark.parametrize(
    ("old", "broken", "gone"),
    [
        (ALL, (), ["tm-2-1"]),
        (("jobmanager", "tm-0"), (), ["tm-0-1"]),
        (("jobmanager", "store"), (), ["store-1"]),
        (("jobmanager",), (), ["jobmanager-1"]),
        (("jobmanager", "tm-0"), ("jobmanager",), ["jobmanager-1"]),
        (("tm-0",), ("tm-2",), []),
        (("tm-0", "tm-1"), ("tm-0", "tm-1"), ["tm-1-1"]),
    ],
)
def test_a_changed_configuration_replaces_one_pod_at_a_time(
    old: tuple[str, ...], broken: tuple[str, ...], gone: list[str]
) -> None:
    """The highest TaskManager first, the JobManager last. One that is not ready goes before the others; else all have to be ready."""
    raw = settled()
    there = tuple((stale if p in old else a_pod)(raw, p, ready=p not in broken) for p in ALL)
    found = look(raw, there)
    assert deleted(found) == gone
    names = [uid.removesuffix("-1") for uid in gone]
    assert events(found)[: len(gone)] == [
        ("Normal", "Replacing", f"replacing {name} for generation 3") for name in names
    ]
    assert (conditions(found)["Reconciling"], status_of(found).phase) == ("True/Replacing", "Rolling")
    order = [p for p in ("tm-2", "tm-1", "tm-0", "store", "jobmanager") if p in old]
    assert message(found, "Reconciling") == f"still to be replaced: {', '.join(order)}"


@pytest.mark.parametrize(("since", "gone"), [(NOW, []), (NOW + 1, ["tm-2-1"])])
@pytest.mark.parametrize(
    "stuck",
    [
        {"initContainerStatuses": [{"name": "agent", "state": {"waiting": {"reason": "ErrImagePull"}}}]},
        {"conditions": [NO_NODE]},
    ],
    ids=["no image", "no node"],
)
def test_pods_that_cannot_start_are_replaced_once_the_installation_is_upgraded(
    since: float, gone: list[str], stuck: dict[str, Any]
) -> None:
    """They keep the image, the pull secrets and the tolerations of the earlier installation. So do running pods, which stay."""
    raw = settled(pods={"packetFaults": True})
    there = pods(raw, tm_2={"phase": "Pending", "ready": False, "status": stuck})
    found = look(raw, there, settings=replace(SETTINGS, since=since))
    assert deleted(found) == gone
    why = "replacing tm-2: it could not start, and the settings of the installation may have changed"
    assert (("Normal", "Replacing", why) in events(found)) == bool(gone)


@pytest.mark.parametrize(
    ("process", "incarnation", "job", "gone"),
    [
        ("tm-2", 1, {"state": "NONE"}, True), ("tm-2", 1, None, True), ("jobmanager", 1, None, True),
        ("tm-2", 2, RUNNING, False), ("tm-2", 2, None, False), ("jobmanager", 2, None, False), ("tm-2", 1, RUNNING, False),
    ],
)  # fmt: skip
def test_an_operator_that_starts_again_replaces_no_pod_of_a_trial(
    process: str, incarnation: int, job: Obj | None, gone: bool
) -> None:
    """The deletion would void the trial. A pod that replaces one that a fault has killed may wait for a node."""
    stuck = {
        "phase": "Pending",
        "ready": False,
        "status": {"conditions": [NO_NODE]},
        "incarnation": incarnation,
    }
    later = replace(SETTINGS, since=NOW + 1)
    for labels, replaced in (({}, True), ({naming.LABEL_RUN: "r"}, gone)):
        raw = settled()
        raw["metadata"]["labels"] = labels
        found = look(raw, pods(raw, **{process.replace("-", "_"): stuck}), job=job, settings=later)
        assert deleted(found) == ([f"{process}-{incarnation}"] if replaced else [])


def test_nothing_is_rolled_while_pods_come_or_go() -> None:
    """A TaskManager that is lost for good does not hold it up."""
    raw = settled()
    old = stale(raw, "tm-2")
    assert deleted(look(raw, (*pods(raw, ("tm-2", "store")), old))) == []
    assert deleted(look(raw, (*pods(raw, ("tm-2", "tm-1")), old))) == ["tm-2-1"]
    small = settled(taskManagers={"replicas": 2})
    assert deleted(look(small, (*pods(small, ("tm-1",)), stale(small, "tm-1"), a_pod(small, "tm-2")))) == [
        "tm-2-1"
    ]


def test_the_order_of_rolling_is_by_ordinal_and_not_by_name() -> None:
    """tm-10 comes before tm-9."""
    assert planner.rolling_order(["jobmanager", "tm-9", "store", "tm-10"]) == [
        "tm-10",
        "tm-9",
        "store",
        "jobmanager",
    ]
    assert [testbed_status.ordinal(p) for p in ("tm-10", "store")] == [10, 0]


def test_a_testbed_with_tls_gets_its_certificate_before_its_pods() -> None:
    """A pod whose certificate is another one is replaced."""
    raw = made({"members": []}, flinkConfiguration={"security.ssl.internal.enabled": "true"})
    name = Testbed(raw).certificate_secret
    found = look(raw, (), job=None, new_certificate=b"pem")
    assert (created(found), found.requeue_after_s) == (["Secret"], 0.0)
    assert message(found, "Ready") == f"waits for Secret {name}"
    assert created(look(raw, (), job=None)) == [], "nor without a certificate"
    certificate = a_secret(name, "c")
    assert created(look(raw, (), job=None, certificate=certificate)) == list(ALL)
    there = tuple(a_pod(raw, p, secret="s.c" if p.startswith("tm-") else "s") for p in ALL)
    assert deleted(look(raw, there, certificate=certificate)) == []
    assert deleted(look(raw, there, certificate=a_secret(name, "d"))) == ["tm-2-1", "tm-1-1", "tm-0-1"]
    assert created(look(raw, there[:4])) == []
