"""Stand-alone Faults in virtual time: planned once, injected once, ended at their deadline, healed before they go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate_operator.agents import View
from headgate_operator.plan import faultstatus
from testbed_runtime.api import naming
from testbed_runtime.api.status import MAX_TARGETS
from testbed_runtime.api.views import Fault as FaultObject
from testbed_runtime.api.views import seconds
from testbed_runtime.faults.fanout import Agent
from testbed_runtime.kube.api import ApiError
from tests.operator.actors import ModelAgents, a_fault
from tests.operator.model import Obj
from tests.operator.world import World, a_testbed, find, is_true, kstatus, simulate

LATE_S = 1.0
"""Between the injection and the operator's next look (LOOK_SOON_S), with the calls of the model."""
BOTH = {"taskManagers": {"names": ["tm-0", "tm-1"]}}
LATENCY = {"latency": {"delay": "20 ms", "mode": "one-way"}}


class Lab:
    """A world with a ready Testbed `bench` of three TaskManagers."""

    def __init__(self, world: World) -> None:
        self.world, self.api = world, world.api
        self.agents = ModelAgents(world.api)
        world.agents = self.agents

    async def open(self, **spec: Any) -> None:
        self.world.start()
        self.api.put(a_testbed(**spec))
        await self.world.until(
            lambda: is_true((self.api.one("Testbed", "lab", "bench") or {}).get("status") or {}, "Ready"),
            limit_s=60,
        )

    def status(self, name: str = "slow") -> Obj:
        return (self.api.one("Fault", "lab", name) or {}).get("status") or {}

    def condition(self, type_: str, name: str = "slow") -> str:
        found = find(self.status(name), type_)
        return f"{found['status']}/{found['reason']}" if found else ""

    def text(self, type_: str, name: str = "slow") -> str:
        found = find(self.status(name), type_)
        return str(found["message"]) if found else ""

    async def phase(self, phase: str, name: str = "slow", limit_s: float = 60.0) -> None:
        await self.world.until(lambda: self.status(name).get("phase") == phase, limit_s=limit_s)


def play(scenario: Callable[[Lab], Coroutine[Any, Any, None]]) -> None:
    simulate(lambda world: scenario(Lab(world)))


def test_a_fault_is_injected_once_measured_and_over_at_its_deadline() -> None:
    """Two targets, two agents; the effect verified, no residue, Complete."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.api.put(a_fault(target=BOTH))
        await lab.phase("Active")
        assert lab.status()["targets"] == ["tm-0", "tm-1"]
        assert lab.status()["target"] == "tm-0, tm-1"
        assert lab.status()["backend"] == "supervisor"
        assert lab.condition("Ready") == "True/Active"
        await lab.phase("Complete")
        assert len(lab.agents.injections) == 2
        assert lab.condition("EffectVerified") == "True/Measured"
        assert lab.condition("NoResidue") == "True/Clean"
        assert lab.condition("Complete") == "True/Ended"
        assert {"Planned", "Injected", "EffectVerified", "Complete"} <= {r for _, _, r, _ in lab.api.events}

    play(scenario)


def test_a_rejected_fault_has_failed_and_is_neither_complete_nor_free_of_residue() -> None:
    """kstatus, and with it Flux and Argo CD, sees Failed at once. A corrected spec is injected."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.api.put(a_fault(network={"loss": {"percent": 5}}))
        await lab.phase("Rejected")
        assert lab.condition("Complete") == "False/Invalid"
        assert lab.condition("NoResidue") == "Unknown/NotInjected"
        assert lab.condition("Reconciling") == "False/Invalid"
        assert lab.condition("Stalled") == "True/Invalid"
        assert kstatus(lab.api.one("Fault", "lab", "slow")) == "Failed"
        assert lab.status()["reason"] == "Invalid"
        lab.api.change("Fault", "lab", "slow", {"spec": {"network": None, "process": {"pause": {}}}})
        await lab.phase("Complete")
        assert lab.condition("NoResidue") == "True/Clean"
        assert kstatus(lab.api.one("Fault", "lab", "slow")) == "Current"

    play(scenario)


def test_the_deadline_of_an_active_fault_is_when_its_agents_end_it() -> None:
    """The plan's deadline includes 5 s to prepare. From the injection on, it is the injection plus the duration."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.api.put(a_fault(duration="4 s"))
        await lab.phase("Active")
        status = lab.status()
        lasts = seconds(status["deadline"]) - seconds(status["injectedAt"])
        assert 4 - LATE_S <= lasts <= 4  # seen up to LATE_S after the injection
        assert int(status["remaining"].split()[0]) <= 4

    play(scenario)


@pytest.mark.parametrize(
    ("measured", "fields"),
    [
        ({"after_s": 0.25, "paused": True}, {"after_s": "0.25", "paused": "true"}),
        ({"stopped": ["tm-1", "tm-2"]}, {"stopped": "tm-1, tm-2"}),
        (
            {"lost": {"tm-1": {"sent": 3, "share": 0.5}}, "note": None},
            {"lost.tm-1.sent": "3", "lost.tm-1.share": "0.5"},
        ),
        ({"pairs": [{"from": "a", "ms": 1.5}]}, {"pairs": "from=a, ms=1.5"}),
    ],
)
def test_measurements_are_fields_and_not_python(measured: dict[str, Any], fields: dict[str, str]) -> None:
    """An object's fields are named `a.b`, a list is its items; there are no brackets and no quotes."""
    assert faultstatus.texts(measured) == fields


def test_the_plan_stands_in_the_status_before_anything_is_injected() -> None:
    """The first injection finds targets, backend and deadline already written, and the finalizer on the object."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        seen: list[Obj] = []
        inject = lab.agents.inject

        async def watched(*args: Any, **more: Any) -> None:
            seen.append(
                {
                    **lab.status(),
                    "finalizers": (lab.api.one("Fault", "lab", "slow") or {})["metadata"].get("finalizers"),
                }
            )
            await inject(*args, **more)

        lab.agents.inject = watched  # type: ignore[method-assign]
        lab.api.put(a_fault())
        await lab.phase("Active")
        assert seen[0]["targets"] == ["tm-0"]
        assert seen[0]["deadline"]
        assert seen[0]["finalizers"] == [naming.FINALIZER]

    play(scenario)


def test_a_plan_injects_nothing() -> None:
    """`plan: true`: targets, backend and the expected effect, Complete with reason Planned."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.api.put(a_fault(plan=True))
        await lab.phase("Complete")
        assert lab.condition("Complete") == "True/Planned"
        assert "tm-0" in lab.status()["expected"]
        assert not lab.agents.injections
        lab.api.change("Fault", "lab", "slow", {"spec": {"plan": False}})
        await lab.phase("Active")
        assert len(lab.agents.injections) == 1

    play(scenario)


def test_a_fault_that_is_deleted_is_healed_first() -> None:
    """Gone within seconds, and no agent holds it."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.api.put(a_fault(duration="300 s"))
        await lab.phase("Active")
        assert lab.agents.holding()
        lab.api.remove(("Fault", "lab", "slow"))
        took = await lab.world.until(lambda: lab.api.one("Fault", "lab", "slow") is None, limit_s=20)
        assert took < 5
        assert not lab.agents.holding()

    play(scenario)


def test_an_agent_that_does_not_answer_holds_a_deletion_for_a_minute() -> None:
    """Then it goes with a Warning that names the agent and the deadline."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.api.put(a_fault(duration="300 s"))
        await lab.phase("Active")
        lab.agents.silent.add("tm-0")
        lab.api.remove(("Fault", "lab", "slow"))
        took = await lab.world.until(lambda: lab.api.one("Fault", "lab", "slow") is None, limit_s=120)
        assert 55 < took < 75
        assert any(r == "HealTimedOut" and "tm-0" in t for _, _, r, t in lab.api.events)

    play(scenario)


def test_the_escape_lets_go_at_once() -> None:
    """Annotation `headgate.dev/skip-heal: "true"`."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.api.put(a_fault(duration="300 s"))
        await lab.phase("Active")
        lab.agents.silent.add("tm-0")
        lab.api.change(
            "Fault", "lab", "slow", {"metadata": {"annotations": {naming.ANNOTATION_SKIP_HEAL: "true"}}}
        )
        lab.api.remove(("Fault", "lab", "slow"))
        await lab.world.until(lambda: lab.api.one("Fault", "lab", "slow") is None, limit_s=5)

    play(scenario)


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"process": {"pause": {}}}, {"process": {"pause": {}}}, "the same kind twice"),
        ({"process": {"pause": {}}}, {"network": LATENCY}, "stops the process"),
        ({"network": LATENCY}, {"network": {"partition": {}}}, "nothing passes"),
    ],
)
def test_a6_overlapping_faults_that_can_not_be_measured_are_refused_with_both_names(
    first: dict[str, Any], second: dict[str, Any], why: str
) -> None:
    """The second names itself and the first; it is not injected."""

    async def scenario(lab: Lab) -> None:
        await lab.open(pods={"proxy": True})
        lab.api.put(a_fault("one", duration="60 s", **first))
        await lab.phase("Active", "one")
        lab.api.put(a_fault("two", duration="60 s", **second))
        await lab.phase("Rejected", "two")
        assert lab.condition("Accepted", "two") == "False/Overlap"
        text = lab.text("Accepted", "two")
        assert "one" in text
        assert "two" in text
        assert why in text
        assert len(lab.agents.injections) == 1

    play(scenario)


def test_a6_faults_that_add_up_are_composed() -> None:
    """Latency and a bandwidth ceiling on one target; a pause of another target."""

    async def scenario(lab: Lab) -> None:
        await lab.open(pods={"proxy": True})
        lab.api.put(a_fault("one", network=LATENCY))
        lab.api.put(a_fault("two", network={"bandwidth": {"bytesPerSecond": 1000}}))
        lab.api.put(a_fault("three", target={"taskManagers": {"names": ["tm-1"]}}, process={"pause": {}}))
        for name in ("one", "two", "three"):
            await lab.phase("Active", name)

    play(scenario)


def test_a6_a_testbed_that_a_fault_makes_unready_is_ready_enough_for_the_next_one() -> None:
    """A paused TaskManager is not Ready: what meets its fault is judged at once, not when that is over."""

    async def scenario(lab: Lab) -> None:
        await lab.open(pods={"proxy": True})
        lab.api.put(a_fault("one", duration="300 s", process={"pause": {}}))
        await lab.phase("Active", "one")
        unready = [{"type": "Ready", "status": "False"}]
        lab.world.kubelet.set(("Pod", "lab", "bench-tm-0"), {"conditions": unready})
        bench = ("Testbed", "lab", "bench")
        await lab.world.until(lambda: not is_true((lab.api.one(*bench) or {})["status"], "Ready"), limit_s=30)
        lab.api.put(a_fault("two", duration="60 s", process={"pause": {}}))
        lab.api.put(a_fault("three", target={"taskManagers": {"names": ["tm-1"]}}, network=LATENCY))
        await lab.phase("Rejected", "two", limit_s=10)
        assert lab.condition("Accepted", "two") == "False/Overlap"
        await lab.phase("Active", "three", limit_s=10)

    play(scenario)


def test_a8_an_effect_that_was_not_measured_is_no_success() -> None:
    """EffectVerified=False, never True."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.agents.unverified = True
        lab.api.put(a_fault())
        await lab.phase("Complete")
        assert lab.condition("EffectVerified") == "False/NotMeasured"

    play(scenario)


def test_residue_is_reported() -> None:
    """NoResidue=False with what was left, and an Event; kstatus tools show the object as failed, not as ready."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.agents.dirty = True
        lab.api.put(a_fault())
        await lab.phase("Complete")
        assert lab.condition("NoResidue") == "False/Residue"
        assert (lab.condition("Ready"), lab.condition("Stalled")) == ("False/Residue", "True/Residue")
        assert any(r == "Residue" for _, _, r, _ in lab.api.events)

    play(scenario)


def test_a_refusal_by_an_agent_is_final_and_reported() -> None:
    """InjectionFailed with the agent's words, injected nowhere."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.agents.refuse = "it is not there"
        lab.api.put(a_fault())
        await lab.phase("Complete")
        assert lab.condition("Complete") == "True/InjectionFailed"
        assert kstatus(lab.api.one("Fault", "lab", "slow")) == "Failed"
        assert "it is not there" in lab.status()["message"]

    play(scenario)


@pytest.mark.parametrize(
    ("policy", "reason", "injections"),
    [("Expire", "TargetRestarted", 1), ("Fail", "TargetRestarted", 1), ("Reapply", "Ended", 2)],
)
def test_a3_a_pod_that_comes_again_is_hit_only_where_the_policy_says_so(
    policy: str, reason: str, injections: int
) -> None:
    """The pod of the target is another one in mid-fault; an address that another pod has now is never asked."""

    async def scenario(lab: Lab) -> None:
        await lab.open(taskManagers={"replaceLost": "1 s"})
        lab.api.put(a_fault(duration="60 s", onTargetRestart=policy))
        await lab.phase("Active")
        lab.world.kubelet.vanish("lab", "bench-tm-0")
        await lab.phase("Complete", limit_s=120)
        assert lab.condition("Complete") == f"True/{reason}"
        assert len(lab.agents.injections) == injections

    play(scenario)


@pytest.mark.parametrize(
    ("policy", "reason", "residue", "injections"),
    [
        ("Expire", "TargetRestarted", "Unknown/NotMeasured", 1),
        ("Fail", "TargetRestarted", "Unknown/NotMeasured", 1),
        ("Reapply", "Ended", "True/Clean", 2),
    ],
)
def test_an_agent_that_comes_again_in_the_same_pod_is_asked_only_where_the_policy_says_so(
    policy: str, reason: str, residue: str, injections: int
) -> None:
    """A container that was started again has forgotten the fault; the pod, its uid and its address are the same."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.api.put(a_fault(duration="30 s", onTargetRestart=policy))
        await lab.phase("Active")
        pod = lab.api.one("Pod", "lab", "bench-tm-0")
        assert pod is not None
        lab.agents.restart(pod["status"]["podIP"])
        await lab.phase("Complete", limit_s=120)
        assert lab.condition("Complete") == f"True/{reason}"
        assert lab.condition("NoResidue") == residue
        assert len(lab.agents.injections) == injections
        assert not lab.agents.holding()

    play(scenario)


def test_a_fault_waits_for_its_testbed() -> None:
    """Made first, it is Pending with the reason; when the Testbed is ready it begins."""

    async def scenario(lab: Lab) -> None:
        lab.world.start()
        lab.api.put(a_fault())
        await lab.phase("Pending")
        assert lab.condition("Ready") == "False/NoTestbed"
        lab.api.put(a_testbed())
        await lab.phase("Active")

    play(scenario)


@pytest.mark.parametrize("kind", ["delete", "evict"])
def test_pods_are_taken_once_and_only_by_their_uid(kind: str) -> None:
    """pod.delete and pod.evict: the new pod of the same name stays; verified by the old one's absence."""

    async def scenario(lab: Lab) -> None:
        await lab.open(taskManagers={"replaceLost": "1 s"})
        before = (lab.api.one("Pod", "lab", "bench-tm-0") or {})["metadata"]["uid"]
        lab.api.put(a_fault(pod={kind: {}}))
        await lab.phase("Complete")
        assert lab.condition("EffectVerified").startswith("True")
        measured = lab.status()["measured"]
        assert measured["pods"] == "tm-0"
        assert 0 <= float(measured["after_s"]) < 20
        await asyncio.sleep(20)
        after = (lab.api.one("Pod", "lab", "bench-tm-0") or {})["metadata"]["uid"]
        assert after != before
        assert sum(v == kind and n == "lab/bench-tm-0" for v, _, n in lab.api.calls) == 1

    play(scenario)


def test_a16_pods_that_are_not_the_testbeds_own_are_forbidden_without_the_label() -> None:
    """A pod that only bears the name: Accepted=False, reason Forbidden, with the label that would allow it."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.api.change("Pod", "lab", "bench-tm-0", {"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "another"}]}})  # fmt: skip
        lab.api.put(a_fault(pod={"delete": {}}))
        await lab.phase("Rejected")
        assert lab.condition("Accepted") == "False/Forbidden"
        assert naming.LABEL_FAULTS_ALLOWED in lab.text("Accepted")
        assert lab.api.one("Pod", "lab", "bench-tm-0")

    play(scenario)


def test_a7_what_needs_packets_says_what_the_testbed_lacks() -> None:
    """Loss without the agent container: Accepted=False with how to fix it."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.api.put(a_fault(network={"loss": {"percent": 5}}))
        await lab.phase("Rejected")
        assert "packetFaults: true" in lab.text("Accepted")

    play(scenario)


@pytest.mark.parametrize("seed", range(30))
def test_a1_an_operator_that_is_killed_at_any_moment_injects_nothing_twice(seed: int) -> None:
    """Three kills over the life of a fault: one injection for each target, it ends, nothing is held."""

    async def scenario(lab: Lab) -> None:
        random_ = random.Random(seed)
        await lab.open()
        lab.api.put(a_fault(target=BOTH))
        for number in range(3):
            await asyncio.sleep(random_.uniform(0.0, 6.0))
            for name in list(lab.world.operators):
                lab.world.kill(name)
            await asyncio.sleep(random_.uniform(0.1, 6.0))
            lab.world.start(f"operator-{number + 1}")
        await lab.phase("Complete", limit_s=120)
        assert len(lab.agents.injections) == len(set(lab.agents.injections)) <= 2
        await asyncio.sleep(10)
        assert not lab.agents.holding()

    play(scenario)


def test_two_faults_that_come_together_are_not_both_planned() -> None:
    """Looked at by two workers at once: the overlap is refused as if they had come one after the other."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        lab.api.put(a_fault("one", duration="60 s"))
        lab.api.put(a_fault("two", duration="60 s"))
        await lab.world.until(
            lambda: {lab.status(n).get("phase") for n in ("one", "two")} == {"Active", "Rejected"}, limit_s=20
        )
        refused = next(n for n in ("one", "two") if lab.status(n)["phase"] == "Rejected")
        assert lab.condition("Accepted", refused) == "False/Overlap"
        assert len(lab.agents.injections) == 1

    play(scenario)


def test_nothing_is_injected_before_the_finalizer_is_there() -> None:
    """A conflict comes between the plan and the finalizer: it is set at the next look, and the injection waits for it."""

    async def scenario(lab: Lab) -> None:
        await lab.open()
        refusal = ApiError(409, "Conflict", "the object has been modified")
        lab.api.failing.append(
            (lambda verb, kind, name: (verb, kind, name) == ("patch", "Fault", "slow"), refusal)
        )
        lab.api.put(a_fault(duration="60 s"))
        await lab.phase("Planned")
        await asyncio.sleep(5)
        assert not lab.agents.injections
        lab.api.failing.clear()
        await lab.phase("Active")
        assert (lab.api.one("Fault", "lab", "slow") or {})["metadata"]["finalizers"] == [naming.FINALIZER]

    play(scenario)


def test_what_many_agents_measured_fits_the_status() -> None:
    """The schema takes so many values; a status that is refused would leave the fault Active forever."""
    rows = ({"state": "verified", "measured": {f"value_{n}": n for n in range(9)}},)
    views = {Agent(f"tm-{n}"): View(rows=rows) for n in range(40)}
    obj = {**a_fault(), "status": {"phase": "Active", "deadline": "2026-01-01T00:00:00Z"}}
    status = faultstatus.active(FaultObject(obj), views, 0.0, began=True)
    assert len(status.measured) == MAX_TARGETS
    assert status.verified is True


@pytest.mark.parametrize(
    ("left", "text"),
    [(0.0, "0 s"), (0.2, "1 s"), (9.4, "10 s"), (11.0, "15 s"), (58.0, "60 s"), (61.0, "90 s")],
)
def test_the_remaining_time_of_a_fault_is_coarse_while_it_is_long(left: float, text: str) -> None:
    """Each text is a write, and news for every watch; never less than there is."""
    assert faultstatus.remaining(left) == text
