"""How the plan of a ScenarioRun ends it, cleans up after it and lets it be deleted, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from headgate_operator import objects_runs
from headgate_operator.plan.model import Ask, Create, Delete, Emit, Plan, SetFinalizers
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import rfc3339
from testbed_runtime.api.views import Pod, Run, Testbed
from tests.operator.planned import message
from tests.operator.runs import (
    ACCEPTED,
    KNOWN,
    RECORDER,
    RUNNER,
    Obj,
    a_pod,
    look,
    made,
    pods,
    report,
)
from tests.operator.test_scenario_study import NOW
from tests.operator.world import a_testbed

# ---- a suspended run


def created_pods(plan: Plan) -> list[str]:
    made = [action.manifest for action in plan.actions if isinstance(action, Create)]
    return [manifest["metadata"]["name"] for manifest in made if manifest["kind"] == "Pod"]


@pytest.mark.parametrize(
    ("since_s", "last_end_s", "unfinished", "executors", "gone"),
    [
        (119, 500, 0, 0, False),
        (120, 119, 0, 0, False),
        (120, 120, 0, 0, True),
        (500, 500, 1, 0, False),
        (119, 0, 0, 2, False),
        (120, 500, 0, 2, True),
    ],
)
def test_a_run_that_waits_between_two_trials_gives_up_its_spark_after_two_minutes(
    since_s: float, last_end_s: float, unfinished: int, executors: int, gone: bool
) -> None:
    """The warm one unless another run uses it. It is not created again before the run is resumed."""
    waits = {"type": "Reconciling", "status": "False", "reason": "Suspended", "message": ""}
    conditions = [*ACCEPTED, {**waits, "lastTransitionTime": rfc3339(NOW - since_s)}]
    known = {**KNOWN, "phase": "Suspended", "conditions": conditions}
    evaluation = {"executors": executors, "historyClaim": "h"} if executors else {}
    raw = made(known, suspend=True, evaluation=evaluation)
    name = objects_runs.spark_name(Run(raw))
    more: dict[str, Any] = {"report": report(), "unfinished": unfinished, "last_end": NOW - last_end_s}
    used = pods(spark=None) | {name: a_pod(name)}
    found = look(raw, pods=used, **more)
    spark = [action for action in found.actions if isinstance(action, Delete)]
    assert spark == ([Delete("Pod", "lab", name, f"{name}-uid")] if gone else [])
    assert created_pods(look(raw, pods=pods(spark=None), **more)) == []
    resumed = made(known, evaluation=evaluation)
    assert created_pods(look(resumed, pods=pods(spark=None), **more)) == [name]


# ---- the end


def done(age_s: float = 0.0, status: Obj | None = None, **more: Any) -> Obj:
    """A finished run without Headgate's finalizer."""
    found = made(
        {
            **KNOWN,
            "phase": "Complete",
            "verdict": "Pass",
            "completedAt": rfc3339(NOW - age_s),
            **(status or {}),
        },
        **more,
    )
    found["metadata"]["finalizers"] = ["other"]
    return found


ENDED = a_pod(RUNNER, "Succeeded")
RELEASED = SetFinalizers(("other",))


@pytest.mark.parametrize(
    ("age_s", "runner", "actions", "again"),
    [
        (59, a_pod(RUNNER), 0, 1.0),
        (60, a_pod(RUNNER), 2, 840.0),
        (0, ENDED, 0, 900.0),
        (61, a_pod(RUNNER, deletionTimestamp=rfc3339(NOW)), 0, 839.0),
    ],
)
def test_a_runner_that_does_not_exit_is_deleted_a_minute_after_its_run(
    age_s: float, runner: Pod, actions: int, again: float
) -> None:
    """With a Warning. One that has ended stays for as long as the recorder."""
    found = look(done(age_s), pods=pods(runner=runner, spark=None))
    assert (len(found.actions), found.requeue_after_s) == (actions, again)
    if actions:
        text = "the runner had not exited 60 s after its run; deleting its pod"
        assert found.actions == (
            Emit("Warning", "RunnerHangs", text),
            Delete("Pod", "lab", RUNNER, f"{RUNNER}-uid"),
        )


@pytest.mark.parametrize(
    ("age_s", "ttl_s", "study", "gone"),
    [(899, 900, False, False), (900, 900, False, True), (0, -1, False, False), (9e5, -1, False, False), (0, -1, True, True), (0, 900, True, True), (0, 0, False, True)],
)  # fmt: skip
def test_the_pods_of_a_finished_run_go_when_their_time_has_passed(
    age_s: float, ttl_s: int, study: bool, gone: bool
) -> None:
    """Those of a study's runs at once. A negative time keeps them as long as the run."""
    raw = done(age_s, labels={naming.LABEL_STUDY: "knobs"} if study else {})
    found = look(raw, pods=pods(runner=ENDED, spark=None), settings=Settings(pods_ttl_s=ttl_s))
    names = [a.name for a in found.actions if isinstance(a, Delete)]
    assert names == ([RECORDER, RUNNER] if gone else [])
    assert found.requeue_after_s == (None if gone or ttl_s < 0 else 900 - age_s)
    leaving = a_pod(RECORDER, deletionTimestamp=rfc3339(NOW))
    again = look(
        raw, pods=pods(recorder=leaving, runner=None, spark=None), settings=Settings(pods_ttl_s=ttl_s)
    )
    assert again.actions == ()


@pytest.mark.parametrize(("age_s", "gone"), [(29, False), (30, True)])
def test_a_run_goes_after_its_time(age_s: float, gone: bool) -> None:
    """With an Event that says how long that was."""
    found = look(done(age_s, ttlSecondsAfterFinished=30), pods={})
    if gone:
        assert found.actions == (
            Emit("Normal", "Expired", "it ended 30 s ago"),
            Delete("ScenarioRun", "lab", "trial-run", "u"),
        )
        return
    assert (found.actions, found.requeue_after_s) == ((), 1.0)
    unknown = look(done(status={"completedAt": None}, ttlSecondsAfterFinished=30), pods={})
    assert (unknown.actions, unknown.requeue_after_s) == ((), 30.0)


@pytest.mark.parametrize(
    ("executors", "unfinished", "since_s", "gone", "again"),
    [
        (0, 0, 119, False, 1.0),
        (0, 0, 120, True, None),
        (0, 1, 500, False, None),
        (2, 1, 0, True, None),
    ],
)
def test_the_warm_spark_stays_two_minutes_after_the_last_run_that_uses_it(
    executors: int, unfinished: int, since_s: float, gone: bool, again: float | None
) -> None:
    """A run with executors has one of its own, which goes at once."""
    raw = done(evaluation={"executors": executors, "historyClaim": "h"})
    name = objects_runs.spark_name(Run(raw))
    more: dict[str, Any] = {"unfinished": unfinished, "last_end": NOW - since_s}
    found = look(raw, pods={name: a_pod(name)}, **more)
    assert found.actions == ((Delete("Pod", "lab", name, f"{name}-uid"),) if gone else ())
    assert found.requeue_after_s == again
    leaving = a_pod(name, deletionTimestamp=rfc3339(NOW))
    assert look(raw, pods={name: leaving}, **more).actions == ()


def a_trial(name: str, **metadata: Any) -> Testbed:
    found = a_testbed(name)
    found["metadata"] |= {"uid": f"{name}-uid", **metadata}
    return Testbed(found)


@pytest.mark.parametrize(("runner", "cleans"), [(a_pod(RUNNER), False), (ENDED, True), (None, True)])
def test_testbeds_that_a_runner_left_are_healed_and_deleted_when_it_has_ended(
    runner: Pod | None, cleans: bool
) -> None:
    """While it runs, it does that itself. One that is terminating is not deleted again."""
    left = (a_trial("one"), a_trial("two", deletionTimestamp=rfc3339(NOW)))
    found = look(done(), pods=pods(recorder=None, runner=runner, spark=None), testbeds=left)
    expected = (Ask("heal-all"), Delete("Testbed", "lab", "one", "one-uid"))
    assert found.actions == (expected if cleans else ())
    assert found.requeue_after_s == (1.0 if cleans else 60.0)


@pytest.mark.parametrize(
    ("runner", "left", "goes"),
    [(a_pod(RUNNER), (), False), (ENDED, (a_trial("one"),), False), (ENDED, (), True), (None, (), True)],
)
def test_a_finished_run_loses_its_finalizer_when_nothing_is_left_to_heal(
    runner: Pod | None, left: tuple[Testbed, ...], goes: bool
) -> None:
    """The deletion of a namespace may take the operator's rights first, and would wait for the finalizer forever."""
    raw = done()
    raw["metadata"]["finalizers"] = ["other", naming.FINALIZER]
    found = look(raw, pods=pods(recorder=None, runner=runner, spark=None), testbeds=left)
    assert (RELEASED in found.actions) is goes


# ---- deletion


def deleted(age_s: float = 0.0, **more: Any) -> Obj:
    raw = made(KNOWN, **more)
    raw["metadata"]["deletionTimestamp"] = rfc3339(NOW - age_s)
    return raw


def test_a_deleted_run_waits_for_its_runner_and_its_testbeds() -> None:
    """The runner goes first, so that it injects nothing more; the agents heal while a testbed is there."""
    one, two = a_trial("one"), a_trial("two", deletionTimestamp=rfc3339(NOW))
    found = look(deleted(60), testbeds=(one, two))
    assert found.actions == (
        Delete("Pod", "lab", RUNNER, f"{RUNNER}-uid", 1), Delete("Testbed", "lab", "one", "one-uid"), Ask("heal-all"),
    )  # fmt: skip
    assert (message(found, "Reconciling"), found.requeue_after_s) == ("waits until one, two are gone", 1.0)
    alone = look(deleted(60), testbeds=(one,), pods={})
    assert message(alone, "Reconciling") == "waits until one is gone"
    runner = look(deleted(60), pods={RUNNER: a_pod(RUNNER, deletionTimestamp=rfc3339(NOW))})
    assert (runner.actions, message(runner, "Reconciling")) == ((), "waits until the runner pod is gone")
    assert look(deleted(), pods={}).actions == (RELEASED,)


@pytest.mark.parametrize(
    ("left", "what"), [((a_trial("one"), a_trial("two")), "one, two"), ((), "the runner pod")]
)
def test_a_deletion_that_takes_more_than_a_minute_lets_go(left: tuple[Testbed, ...], what: str) -> None:
    """With a Warning that names what is still there."""
    text = f"{what} not gone after 60 s; finalizer removed, the agents end every fault at its deadline"
    assert look(deleted(61), testbeds=left).actions == (Emit("Warning", "DeletionTimedOut", text), RELEASED)


def test_a_deletion_that_skips_the_healing_lets_go_at_once() -> None:
    """As its annotation asks. Another value of the annotation does not."""
    asked = deleted(annotations={naming.ANNOTATION_SKIP_HEAL: "true"})
    text = f"finalizer removed without healing, as {naming.ANNOTATION_SKIP_HEAL} requests"
    assert look(asked, testbeds=(a_trial("one"),)).actions == (Emit("Warning", "HealSkipped", text), RELEASED)
    other = deleted(annotations={naming.ANNOTATION_SKIP_HEAL: "false"})
    assert RELEASED not in look(other, testbeds=(a_trial("one"),)).actions
    raw = deleted()
    raw["metadata"]["finalizers"] = ["other"]
    assert look(raw, testbeds=(a_trial("one"),)) == Plan()
