"""Texts, Events and limits of the plans, without a cluster: what a user reads with `kubectl describe`."""

from __future__ import annotations

from typing import Any

import pytest

from headgate_operator.agents import View
from headgate_operator.plan import faultstatus, scenariorun, study
from headgate_operator.plan.faulttarget import NotYet, Resolved, TestbedState, kind_of, resolve
from headgate_operator.plan.model import MAX_RESTARTS, Create, Emit, Plan, pod_loss_reason
from testbed_runtime.api import naming
from testbed_runtime.api.status import MAX_TARGETS, to_json
from testbed_runtime.api.views import Fault, Pod, Run, Study, Testbed
from testbed_runtime.core.errors import UserError
from testbed_runtime.faults.fanout import Agent
from tests.operator.actors import a_fault, a_run
from tests.operator.test_scenario_study import NOW, SETTINGS, a_study
from tests.operator.world import a_testbed


def hits(*names: str) -> dict[str, Any]:
    return {"taskManagers": {"names": list(names)} if names else {}}


def bench(replicas: int = 3, **more: Any) -> TestbedState:
    found = a_testbed(taskManagers={"replicas": replicas})
    found["metadata"]["uid"] = "u-1"
    return TestbedState(Testbed(found), **more)


def resolved(*names: str, replicas: int = 9) -> Resolved:
    return resolve(Fault(a_fault(target=hits(*names))), bench(replicas))


def events(plan: Plan) -> list[tuple[str, str]]:
    return [(action.reason, action.text) for action in plan.actions if isinstance(action, Emit)]


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "tm-0"), (4, "tm-0, tm-1, tm-2, tm-3"), (5, "tm-0, tm-1, tm-2, tm-3 and 1 more")],
)
def test_the_status_of_a_fault_names_four_targets_and_counts_the_others(count: int, text: str) -> None:
    """The column of `kubectl get faults` has room for so many. `targets` has all of them."""
    chosen = resolved(*(f"tm-{n}" for n in range(count)))
    status = faultstatus.only_planned(Fault(a_fault()), chosen, "", NOW)
    assert status.target == text
    assert len(status.targets) == count


@pytest.mark.parametrize("more", [0, 1])
def test_a_stand_alone_fault_has_as_many_targets_as_its_status_holds(more: int) -> None:
    """One more is refused with the number of them."""
    if not more:
        assert len(resolved(replicas=MAX_TARGETS).targets) == MAX_TARGETS
        return
    with pytest.raises(UserError, match=f"hits {MAX_TARGETS + 1} targets, .* at most {MAX_TARGETS}"):
        resolved(replicas=MAX_TARGETS + 1)


def test_a_fault_without_a_known_kind_has_none() -> None:
    """It is an empty text, and the object is refused elsewhere."""
    fault = a_fault()
    assert kind_of(Fault(fault)) == "process.pause"
    assert kind_of(Fault({**fault, "spec": {"target": hits()}})) == ""


@pytest.mark.parametrize(
    ("target", "placement", "reason"),
    [
        ({"taskManagers": {"running": "sink"}}, None, "JobUnknown"),
        ({"taskManagers": {"running": "sink"}}, {"sink-1": "tm-1"}, ""),
        (hits("tm-1"), None, ""),
    ],
)
def test_a_fault_on_the_tasks_of_a_vertex_waits_until_it_is_known_where_they_run(
    target: dict[str, Any], placement: dict[str, str] | None, reason: str
) -> None:
    """Names of TaskManagers need no answer of the JobManager."""
    fault, testbed = Fault(a_fault(target=target)), bench(placement=placement)
    if reason:
        with pytest.raises(NotYet) as caught:
            resolve(fault, testbed)
        assert caught.value.reason == reason
    else:
        assert resolve(fault, testbed).targets == ("tm-1",)


def test_agents_whose_residue_was_not_measured_are_named() -> None:
    """One that answered with an error, and one that knows the fault and has no last row."""
    clean = View(rows=({"state": "clean"},))
    views = {
        Agent("tm-0"): clean,
        Agent("tm-1"): View(error="timeout"),
        Agent("tm-2"): View(rows=({"state": "verified"},)),
    }
    fault = Fault({**a_fault(), "status": {"phase": "Active", "deadline": "2026-01-01T00:00:00Z"}})

    def residue(some: dict[Agent, View], reason: str = "Ended") -> tuple[str, str, str]:
        status = faultstatus.ended(fault, some, NOW, reason=reason, text="")
        found = status.condition("NoResidue")
        assert found is not None
        return found.status, found.reason, found.message

    assert residue(views) == ("Unknown", "NotMeasured", "tm-1, tm-2: not measured")
    assert residue({Agent("tm-0"): clean}) == ("True", "Clean", "measured after its end")
    assert residue({}) == ("True", "Clean", "a pod that is gone leaves nothing behind")


def pod(restarts: int) -> Pod:
    last = {"terminated": {"message": "out of memory", "exitCode": 1}}
    container = {"name": "c", "restartCount": restarts, "state": {}, "lastState": last}
    return Pod({"metadata": {"name": "p"}, "status": {"containerStatuses": [container]}})


def test_a_pod_that_ends_again_and_again_is_given_up_with_the_end_of_its_log() -> None:
    """The sixth end is one too many, and so is the sixth loss of the pod."""
    assert pod_loss_reason(pod(MAX_RESTARTS), 0, "the run") == ""
    assert pod_loss_reason(pod(MAX_RESTARTS + 1), 0, "the run") == (
        "the run's pod ended 6 times; the end of its log: out of memory"
    )
    assert pod_loss_reason(None, MAX_RESTARTS, "the run") == ""
    assert pod_loss_reason(None, MAX_RESTARTS + 1, "the run") == "the run's pod was lost 6 times"


def test_the_first_pod_of_a_study_is_started_and_the_next_one_replaces_a_lost_one() -> None:
    """As Events of the study."""
    first = study.plan(study.Observed(Study(a_study())), SETTINGS, NOW)
    assert events(first) == [("Started", "creating pod knobs-study")]
    again = study.plan(study.Observed(Study(a_study({"podStarts": 1}))), SETTINGS, NOW)
    assert events(again) == [("PodLost", "the study's pod is gone; creating knobs-study again")]


def test_a_run_reports_when_it_is_accepted_which_options_have_no_effect() -> None:
    """Once: later plans have no findings any more."""
    raw = a_run()
    raw["metadata"]["uid"] = "u-1"
    raw["spec"]["scenario"]["testbed"]["flinkConfiguration"] = {"rest.port": "8081"}
    first = scenariorun.plan(scenariorun.Observed(Run(raw)), SETTINGS, NOW)
    assert ("WithoutEffect", "no effect here: rest.port") in events(first)
    assert ("Accepted", "the scenario is valid") in events(first)
    assert first.status is not None
    later = {**raw, "status": to_json(first.status)}
    assert "Accepted" not in dict(events(scenariorun.plan(scenariorun.Observed(Run(later)), SETTINGS, NOW)))


def test_a_run_that_is_healed_before_its_start_does_not_start() -> None:
    """It is Inconclusive, and nothing is created for it. After the start, its runner ends it."""
    raw = a_run()
    raw["metadata"] |= {"uid": "u-1", "annotations": {naming.ANNOTATION_HEAL: "now"}}
    plan = scenariorun.plan(scenariorun.Observed(Run(raw)), SETTINGS, NOW)
    assert plan.status is not None
    assert (plan.status.verdict, plan.status.reason) == ("Inconclusive", "Healed")
    complete = plan.status.condition("Complete")
    assert complete is not None
    assert "it was healed before it started" in f"{plan.status.message} {complete.message}"
    assert not [action for action in plan.actions if isinstance(action, Create)]
