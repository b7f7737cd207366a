"""How the plan of a Fault follows it, ends it and lets it be deleted, without a cluster."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate_operator.agents import View
from headgate_operator.plan import fault as planner
from headgate_operator.plan import faultstatus
from headgate_operator.plan.conditions import moment, yes
from headgate_operator.plan.faulttarget import resolve
from headgate_operator.plan.model import Ask, Delete, Key, Plan, SetFinalizers
from testbed_runtime.api import naming
from testbed_runtime.api.refusals import NOT_ADMITTED
from testbed_runtime.api.status import rfc3339, to_json
from testbed_runtime.api.views import Fault, Pod
from testbed_runtime.core.errors import UserError
from tests.operator.injected import (
    BOTH,
    CLEAN,
    HELD,
    TM0,
    TM1,
    Obj,
    a_pod,
    active,
    bench,
    look,
    made,
    planned,
    status_of,
)
from tests.operator.planned import conditions, events
from tests.operator.test_scenario_study import NOW

# ---- while it is there


def test_the_parts_that_no_agent_knows_are_injected_until_the_deadline() -> None:
    """They get the time that is left, at least 1 s, and no longer than the fault lasts after the others began it."""
    raw = planned(target=BOTH)
    first = look(raw, bench(), views={TM0: View(), TM1: HELD})
    assert first.actions == (Ask("inject", {"agents": ["tm-0"], "left_s": 15.0}),)
    assert (first.status, first.requeue_after_s) == (None, 0.5)
    late = look(raw, bench(), now=NOW + 14.5, views={TM0: View(), TM1: HELD})
    assert late.actions == (Ask("inject", {"agents": ["tm-0"], "left_s": 1.0}),)
    silent = look(raw, bench(), views={TM0: View(error="timeout"), TM1: View(error="timeout")})
    assert silent.actions == ()
    begun = look(made({**to_json(status_of(look(made(target=BOTH), bench()))), "injectedAt": rfc3339(NOW + 1)}, target=BOTH), bench(), now=NOW + 2, views={TM0: View(), TM1: HELD})  # fmt: skip
    assert begun.actions == (Ask("inject", {"agents": ["tm-0"], "left_s": 9.0}),)


def test_nothing_is_injected_after_the_deadline() -> None:
    """The operator was away for so long. At the deadline itself it is too late."""
    found = look(planned(), bench(), now=NOW + 15, views={TM0: View()})
    assert status_of(found).reason == "NeverInjected"
    assert not [a for a in found.actions if isinstance(a, Ask)]
    assert events(found)[0][:2] == ("Warning", "Complete")


def test_the_agent_that_begins_a_fault_makes_it_active() -> None:
    """Its deadline is the agent's own from then on. The Event comes once."""
    found = look(planned(), bench(), now=NOW + 1, views={TM0: HELD})
    status = status_of(found)
    assert events(found) == [("Normal", "Injected", "process.pause by supervisor")]
    assert (status.phase, status.deadline, status.remaining) == ("Active", moment(NOW + 5), "4 s")
    assert (status.injected_at, status.held, found.requeue_after_s) == (moment(NOW + 1), ("tm-0",), 2.0)
    assert conditions(found)["Ready"] == "True/Active"
    again = look(
        made(status), bench(), now=NOW + 3, views={TM0: View(active={"remaining_s": 90.0}, rows=HELD.rows)}
    )
    assert (events(again), status_of(again).deadline) == ([], moment(NOW + 5))
    assert (status_of(again).remaining, status_of(again).injected_at) == ("2 s", moment(NOW + 1))


def test_a_fault_that_no_agent_has_begun_stays_planned() -> None:
    """An agent that holds it may still be preparing."""
    preparing = View(active={"id": "f"})
    found = look(planned(), bench(), now=NOW + 1, views={TM0: preparing})
    assert (status_of(found).phase, events(found), found.requeue_after_s) == ("Planned", [], 2.0)
    begun = look(planned(), bench(), now=NOW + 1, views={TM0: View(active={"id": "f"}, rows=HELD.rows)})
    assert status_of(begun).deadline == moment(NOW + 15), "the agent does not say how long"


def test_the_deadline_is_that_of_the_agent_that_holds_it_longest_but_never_later_than_planned() -> None:
    """Agents begin one after the other."""
    views = {TM0: HELD, TM1: View(active={"remaining_s": 6.0}, rows=HELD.rows)}
    raw = planned(target=BOTH)
    assert status_of(look(raw, bench(), now=NOW + 1, views=views)).deadline == moment(NOW + 7)
    views[TM1] = View(active={"remaining_s": 60.0}, rows=HELD.rows)
    assert status_of(look(raw, bench(), now=NOW + 1, views=views)).deadline == moment(NOW + 15)


def test_an_agent_that_does_not_answer_makes_an_active_fault_unready() -> None:
    """30 s after the deadline the fault is given up, and it is said who was silent."""
    raw, silent = active(target=BOTH), {TM0: View(error="timeout"), TM1: CLEAN}
    found = look(raw, bench(), now=NOW + 5 + 29, views=silent)
    assert status_of(found).phase == "Active"
    assert conditions(found)["Ready"] == "False/AgentsSilent"
    assert "no answer from tm-0" in [c.message for c in status_of(found).conditions]
    assert status_of(found).remaining == "0 s"
    given_up = look(raw, bench(), now=NOW + 5 + 30, views=silent)
    assert (status_of(given_up).phase, status_of(given_up).reason) == ("Complete", "AgentsSilent")
    assert status_of(given_up).message == "tm-0: timeout"
    assert conditions(given_up)["Stalled"] == "True/AgentsSilent"
    still = {TM0: HELD, TM1: CLEAN}
    held = look(raw, bench(), now=NOW + 5 + 30, views=still)
    assert status_of(held).message == "tm-0: it did not report the end"
    assert Ask("heal") in held.actions
    assert Ask("heal") not in given_up.actions


def test_a_fault_has_ended_when_each_agent_has_measured_what_it_left() -> None:
    """An agent that no longer holds it and has no last row is still at work."""
    raw = active(target=BOTH)
    measuring = View(rows=CLEAN.rows[:2])
    assert status_of(look(raw, bench(), now=NOW + 4, views={TM0: CLEAN, TM1: measuring})).phase == "Active"
    holding = View(active={}, rows=CLEAN.rows)
    assert status_of(look(raw, bench(), now=NOW + 4, views={TM0: CLEAN, TM1: holding})).phase == "Active"
    found = look(raw, bench(), now=NOW + 4, views={TM0: CLEAN, TM1: CLEAN})
    assert (status_of(found).phase, status_of(found).reason, status_of(found).remaining) == (
        "Complete",
        "Ended",
        "",
    )
    assert events(found) == [
        (
            "Normal",
            "EffectVerified",
            "process.pause on tm-0, tm-1 by supervisor: the measured values are in status.measured",
        ),
        ("Normal", "Complete", "Ended; its effect was measured"),
    ]
    assert conditions(found) == {
        "Accepted": "True/Valid", "Reconciling": "False/Ended", "Stalled": "False/Ended", "Ready": "True/Ended",
        "EffectVerified": "True/Measured", "NoResidue": "True/Clean", "Complete": "True/Ended",
    }  # fmt: skip


def test_residue_is_named_by_agent_and_makes_the_fault_stalled() -> None:
    """With the text of the agent, or else what it measured."""
    dirty = View(rows=(*CLEAN.rows[:2], {"state": "residue", "measured": {"rules": 2}}))
    named = View(rows=(*CLEAN.rows[:2], {"state": "residue", "text": "a rule"}))
    found = look(active(target=BOTH), bench(), now=NOW + 4, views={TM0: dirty, TM1: named})
    assert status_of(found).residue == {"tm-0": "rules=2", "tm-1": "a rule"}
    assert events(found)[-1] == ("Warning", "Residue", "tm-0: rules=2; tm-1: a rule")
    assert conditions(found)["Stalled"] == "True/Residue"
    assert conditions(found)["NoResidue"] == "False/Residue"
    half = look(active(target=BOTH), bench(), now=NOW + 4, views={TM0: dirty, TM1: CLEAN})
    assert status_of(half).residue == {"tm-0": "rules=2"}


def test_an_effect_that_one_agent_did_not_measure_is_not_verified() -> None:
    """While another has not reported yet, only a failure is certain."""
    failed = View(
        active={},
        rows=({"state": "injected"}, {"state": "unverified", "measured": {}, "text": "it still ran"}),
    )
    verified = View(active={}, rows=CLEAN.rows[:2])
    raw = active(target=BOTH)
    waiting = look(raw, bench(), now=NOW + 2, views={TM0: verified, TM1: HELD})
    assert (status_of(waiting).verified, conditions(waiting)["EffectVerified"]) == (
        None,
        "Unknown/NotMeasuredYet",
    )
    found = look(raw, bench(), now=NOW + 2, views={TM0: failed, TM1: HELD})
    assert events(found) == [("Warning", "EffectNotVerified", "it still ran")]
    assert (status_of(found).verified, conditions(found)["EffectVerified"]) == (False, "False/NotMeasured")
    both = look(raw, bench(), now=NOW + 2, views={TM0: verified, TM1: failed})
    assert status_of(both).verified is False
    again = look(made(status_of(found), target=BOTH), bench(), now=NOW + 3, views={TM0: failed, TM1: HELD})
    assert events(again) == [], "once"
    ok = look(raw, bench(), now=NOW + 2, views={TM0: verified, TM1: verified})
    assert (status_of(ok).verified, status_of(ok).measured) == (
        True,
        {"tm-0 paused": "true", "tm-1 paused": "true"},
    )
    one = look(active(), bench(), now=NOW + 2, views={TM0: verified})
    assert status_of(one).measured == {"paused": "true"}


def test_an_effect_that_was_never_measured_is_unknown_at_the_end() -> None:
    """The agent had no time to measure it."""
    brief = View(rows=({"state": "injected"}, {"state": "clean"}))
    found = look(active(), bench(), now=NOW + 4, views={TM0: brief})
    assert conditions(found)["EffectVerified"] == "Unknown/NeverMeasured"
    assert (status_of(found).message, events(found)) == (
        "it has ended",
        [("Normal", "Complete", "Ended; it has ended")],
    )


def test_an_agent_that_refuses_a_fault_ends_it() -> None:
    """Before others are asked, with the agent's words."""
    failed = View(rows=({"state": "failed", "text": "no such process"},))
    found = look(planned(target=BOTH), bench(), now=NOW + 1, views={TM0: failed, TM1: View()})
    assert (status_of(found).reason, status_of(found).message) == ("InjectionFailed", "tm-0: no such process")
    assert events(found) == [("Warning", "Complete", "InjectionFailed: tm-0: no such process")]
    named = look(made({**planned()["status"], "problem": "refused"}), bench(), views={TM0: View()})
    assert (status_of(named).reason, status_of(named).message) == ("InjectionFailed", "refused")


RESTARTED = {**bench().pods, "tm-0": a_pod("tm-0", "another")}


@pytest.mark.parametrize(
    ("policy", "pods", "view", "expected"),
    [
        ("Expire", RESTARTED, View(), "TargetRestarted"),
        ("Expire", RESTARTED, HELD, "Active"),
        ("Expire", None, View(), "TargetRestarted"),
        ("Expire", None, View(error="timeout"), "Active"),
        ("Fail", RESTARTED, View(), "TargetRestarted"),
        ("Fail", None, View(error="timeout"), "Active"),
        ("Reapply", RESTARTED, View(), "inject"),
        ("Reapply", None, View(), "inject"),
        ("Reapply", None, View(error="timeout"), "Active"),
        ("Reapply", {"tm-1": a_pod("tm-1")}, View(error="gone"), "Active"),
    ],
)
def test_a_target_that_restarted_is_hit_again_only_if_the_policy_says_so(
    policy: str, pods: dict[str, Pod] | None, view: View, expected: str
) -> None:
    """Its pod is another one, or the agent in the same pod has forgotten the fault. One that does not answer has not forgotten it."""
    raw = active(onTargetRestart=policy)
    found = look(raw, bench(pods=pods), now=NOW + 2, views={TM0: view})
    if expected == "inject":
        assert found.actions == (Ask("inject", {"agents": ["tm-0"], "left_s": 3.0}),)
        return
    status = status_of(found)
    assert (status.reason or status.phase) == expected
    if policy == "Fail" and expected == "TargetRestarted":
        assert status.message == "tm-0 restarted while the fault was active"
        assert conditions(found)["NoResidue"] == "Unknown/NotMeasured"


def test_a_fault_that_is_applied_again_ends_at_its_deadline_also_where_it_was_not() -> None:
    """The target came back too late for it."""
    found = look(active(onTargetRestart="Reapply"), bench(), now=NOW + 5, views={TM0: View()})
    assert (status_of(found).phase, status_of(found).reason) == ("Complete", "TargetRestarted")


@pytest.mark.parametrize("clean", ["True", "False", "Unknown"])
def test_a_finished_fault_loses_its_finalizer(clean: str) -> None:
    """Its deletion heals nothing. The deletion of a namespace may take the operator's rights first, and would wait forever."""
    condition = {"type": "NoResidue", "status": clean, "reason": "Tested", "message": ""}
    found = look(made({"phase": "Complete", "reason": "Ended", "conditions": [condition]}), bench())
    assert found.actions == (SetFinalizers(("other",)),)


def test_a_fault_whose_testbed_is_gone_has_ended() -> None:
    """The processes went with it, so nothing is left."""
    found = look(active(), None, now=NOW + 2)
    assert (status_of(found).reason, conditions(found)["NoResidue"]) == ("TestbedGone", "True/Clean")
    assert events(found) == [
        ("Normal", "Complete", "TestbedGone: its testbed is gone, and the processes with it")
    ]
    silent = look(active(), None, now=NOW + 2, views={TM0: View(error="gone")})
    assert conditions(silent)["NoResidue"] == "Unknown/NotMeasured"


def test_the_finalizer_comes_before_the_injection() -> None:
    """A conflict may have lost it. The status stays as it is."""
    raw = planned()
    raw["metadata"]["finalizers"] = []
    found = look(raw, bench(), views={TM0: View()})
    assert (found.actions, found.status, found.requeue_after_s) == (
        (SetFinalizers((naming.FINALIZER,)),),
        None,
        0.0,
    )


# ---- pods that the operator deletes


@pytest.mark.parametrize("kind", ["delete", "evict"])
def test_each_pod_of_the_plan_is_removed_once(kind: str) -> None:
    """The uid names it, until it is gone. A pod that is terminating is not asked again."""
    raw = planned(pod={kind: {}}, target=BOTH)
    leaving = a_pod("tm-1", deletionTimestamp=rfc3339(NOW))
    found = look(raw, bench(pods={"tm-0": a_pod("tm-0"), "tm-1": leaving}), now=NOW + 1)
    removal = (
        Ask("evict", {"namespace": "lab", "pod": "bench-tm-0", "uid": "tm-0-uid"})
        if kind == "evict"
        else Delete("Pod", "lab", "bench-tm-0", "tm-0-uid", 0)
    )
    assert found.actions == (removal,)
    assert (status_of(found).phase, status_of(found).injected_at, found.requeue_after_s) == (
        "Active",
        moment(NOW + 1),
        2.0,
    )
    begun = made(status_of(found), pod={kind: {}}, target=BOTH)
    gone = look(begun, bench(pods={"tm-0": a_pod("tm-0", "new")}), now=NOW + 3.5)
    assert (status_of(gone).reason, status_of(gone).verified) == ("Ended", True)
    assert status_of(gone).measured == {"pods": "tm-0, tm-1", "after_s": "2.5"}
    late = look(begun, bench(pods={"tm-0": a_pod("tm-0"), "tm-2": a_pod("tm-2")}), now=NOW + 15)
    assert (status_of(late).reason, status_of(late).verified) == ("NotEvicted", False)
    assert status_of(late).message == "tm-0 not gone by the deadline"
    assert status_of(look(begun, bench(pods={"tm-0": a_pod("tm-0")}), now=NOW + 14.9)).phase == "Active"


def test_an_eviction_that_was_refused_ends_with_the_missing_right() -> None:
    """The condition of the last attempt has it; the end replaces that condition."""
    begun = status_of(look(planned(pod={"evict": {}}, target=BOTH), bench(), now=NOW + 1))
    refused = replace(begun, conditions=(yes("Stalled", NOT_ADMITTED, "403 Forbidden: pods/eviction"),))
    late = look(made(refused, pod={"evict": {}}, target=BOTH), bench(), now=NOW + 15)
    assert status_of(late).reason == "NotEvicted"
    assert status_of(late).message.endswith(" not gone by the deadline: 403 Forbidden: pods/eviction")


def test_a_pod_that_was_gone_before_it_was_hit_proves_nothing() -> None:
    """The plan knows no pod of it."""
    raw = made(status_of(look(made(pod={"delete": {}}), bench(pods={}))), pod={"delete": {}})
    found = look(raw, bench(pods={}), now=NOW + 1)
    assert (status_of(found).reason, status_of(found).verified) == ("Ended", False)
    assert status_of(found).measured == {"pods": ""}


# ---- deletion


def deleted(raw: Obj, age_s: float = 0.0) -> Obj:
    raw["metadata"]["deletionTimestamp"] = moment(NOW - age_s)
    return raw


@pytest.mark.parametrize(
    ("view", "healing"),
    [
        (HELD, True),
        (View(error="timeout"), True),
        (View(rows=CLEAN.rows[:2]), True),
        (CLEAN, False),
        (View(), False),
        (View(rows=({"state": "failed", "text": "no"},)), False),
    ],
)
def test_a_deleted_fault_is_healed_while_an_agent_may_hold_it(view: View, healing: bool) -> None:
    """A minute long, then it goes with a Warning that names the agent."""
    found = look(deleted(active(), 60), bench(), views={TM0: view})
    released = (SetFinalizers(("other",)),)
    assert found.actions == ((Ask("heal"),) if healing else released)
    assert (found.status, found.requeue_after_s) == (None, 0.5 if healing else None)
    late = look(deleted(active(), 61), bench(), views={TM0: view})
    assert late.actions[-1:] == released
    text = f"tm-0 not healed within 60 s; finalizer removed, its deadline ends it there ({moment(NOW + 5)})"
    assert events(late) == ([("Warning", "HealTimedOut", text)] if healing else [])


def test_a_deleted_fault_waits_for_no_agent_whose_pod_is_gone() -> None:
    """The report has what the last agents left."""
    assert look(deleted(active()), bench(pods={}), views={TM0: HELD}).actions == (SetFinalizers(("other",)),)
    assert look(deleted(active()), None, views={TM0: HELD}).actions == (SetFinalizers(("other",)),)
    dirty = View(rows=(*CLEAN.rows[:2], {"state": "residue", "text": "a rule"}))
    found = look(deleted(active()), bench(), views={TM0: dirty})
    assert events(found) == [("Warning", "Residue", "a rule")]
    raw = deleted(active())
    raw["metadata"]["finalizers"] = ["other"]
    assert look(raw, bench(), views={TM0: HELD}) == Plan()


def test_the_parts_of_a_fault_are_known_once_it_is_planned() -> None:
    """And none for a Testbed that does not exist, or a status that cannot be read."""
    assert [str(p.agent) for p in planner.parts_of(Fault(planned(target=BOTH)), bench())] == ["tm-0", "tm-1"]
    assert planner.parts_of(Fault(made(target=BOTH)), bench()) == ()
    assert planner.parts_of(Fault(planned()), None) == ()
    assert planner.parts_of(Fault({**planned(), "spec": {"testbedRef": {"name": "bench"}}}), bench()) == ()
    assert planner.journal_name(Fault(planned())) == "slow-01234567"
    assert planner.parts_of(Fault(planned()), bench())[0].fault.name == "slow-01234567"


def test_what_was_planned_meanwhile_is_empty_by_default() -> None:
    """Key and manifest of each claim."""
    observed = planner.Observed(Fault(made()))
    assert (dict(observed.views), observed.others, observed.namespace_allows, observed.claims) == (
        {},
        (),
        False,
        {},
    )
    assert Key("Fault", "lab", "slow") not in observed.claims


@pytest.mark.parametrize(
    ("left", "text"),
    [(10, "10 s"), (10.1, "15 s"), (60, "60 s"), (60.1, "90 s"), (0, "0 s"), (9.1, "10 s"), (61, "90 s")],
)
def test_the_remaining_time_is_rounded_up_to_its_step(left: float, text: str) -> None:
    """1 s up to ten, 5 s up to a minute, then 30 s."""
    assert faultstatus.remaining(left) == text


def test_a_fault_on_processes_that_do_not_exist_is_refused_with_the_field() -> None:
    """The spec cannot be read either."""
    with pytest.raises(UserError, match="spec"):
        resolve(Fault({**made(), "spec": {}}), bench())
