"""The plan of a stand-alone Fault in each of its situations, without a cluster: its actions, its status and when it is looked at again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate_operator.plan.conditions import moment
from headgate_operator.plan.faulttarget import Resolved, conflict, expected, resolve
from headgate_operator.plan.model import Emit, SetFinalizers
from testbed_runtime.api import naming
from testbed_runtime.api.status import rfc3339
from testbed_runtime.api.views import Fault
from testbed_runtime.core.errors import UserError
from tests.operator.injected import (
    UID,
    Obj,
    a_pod,
    bench,
    look,
    made,
    status_of,
)
from tests.operator.planned import conditions, events
from tests.operator.test_scenario_study import NOW

# ---- before anything is injected


@pytest.mark.parametrize(
    ("age_s", "phase", "again"), [(0, "Pending", 2.0), (600, "Pending", 2.0), (601, "Rejected", None)]
)
@pytest.mark.parametrize(
    ("there", "reason", "text"),
    [
        (False, "NoTestbed", "the Testbed 'bench' does not exist in this namespace"),
        (True, "TestbedNotReady", "its Testbed is not ready yet"),
    ],
)
def test_a_fault_waits_ten_minutes_for_its_testbed(
    age_s: float, phase: str, again: float | None, there: bool, reason: str, text: str
) -> None:
    """Then it is refused, with the reason and how long it waited."""
    found = look(made(age_s=age_s), bench(ready=False) if there else None)
    words = text if phase == "Pending" else f"{text}; given up after 600 s"
    assert (status_of(found).phase, status_of(found).message, found.requeue_after_s) == (phase, words, again)
    assert status_of(found).kind == "process.pause", "`kubectl get faults` shows it from the start"
    assert conditions(found)["Ready"] == f"False/{reason}"
    assert status_of(found).reason == reason, "`kubectl get faults` shows it"
    assert events(found) == ([] if phase == "Pending" else [("Warning", reason, words)])


def test_a_fault_on_a_testbed_that_another_fault_makes_unready_does_not_wait() -> None:
    """A paused TaskManager is not ready. A Fault that has ended is no reason."""
    pausing = Fault({**made({"phase": "Active", "kind": "process.pause", "targets": ["tm-2"]})})
    over = Fault({**made({"phase": "Complete", "kind": "process.pause", "targets": ["tm-0"]})})
    assert status_of(look(made(), bench(ready=False), others=(pausing,))).phase == "Planned"
    assert status_of(look(made(), bench(ready=False), others=(over,))).phase == "Pending"
    assert status_of(look(made(), bench(), others=(over,))).phase == "Planned", "it has ended"


def test_a_plan_names_when_the_fault_ends_and_the_pods_that_it_hits() -> None:
    """5 s to measure the path, and the 10 s of the fault. The finalizer comes with it, beside those of others."""
    raw = made()
    raw["metadata"]["finalizers"] = ["other"]
    found = look(raw, bench())
    status = status_of(found)
    assert found.requeue_after_s == 0
    why = resolve(Fault(raw), bench()).why
    assert found.actions == (
        SetFinalizers(("other", naming.FINALIZER)),
        Emit("Normal", "Planned", f"process.pause on tm-0 by {why}"),
    )
    assert (status.phase, status.deadline) == ("Planned", moment(NOW + 15))
    assert (status.planned_at, status.fault_id) == (rfc3339(NOW), UID)
    assert status.pods == {name: f"{name}-uid" for name in ("tm-0", "tm-1", "tm-2")}
    assert status.asked == {"duration_s": "10"}
    assert status.observed_generation == 2
    assert not [a for a in look(made(), bench()).actions if isinstance(a, SetFinalizers)]


def test_a_plan_resets_what_an_earlier_attempt_measured() -> None:
    """The spec of a refused Fault was corrected."""
    old = {
        "phase": "Rejected", "reason": "Invalid", "observedGeneration": 1, "held": ["tm-0"], "verified": False,
        "measured": {"a": "b"}, "residue": {"tm-0": "x"}, "problem": "p", "injectedAt": rfc3339(NOW),
    }  # fmt: skip
    found = status_of(look(made(old), bench()))
    assert (found.phase, found.reason, found.held, found.verified, found.problem) == (
        "Planned",
        "",
        (),
        None,
        "",
    )
    assert (found.measured, found.residue, found.injected_at, found.ended_at) == ({}, {}, None, None)


@pytest.mark.parametrize(
    ("phase", "reason", "generation", "again"),
    [
        ("Rejected", "Invalid", 1, True),
        ("Rejected", "Overlap", 1, True),
        ("Complete", "Planned", 1, True),
        ("Complete", "Ended", 1, False),
        ("Complete", "TestbedGone", 1, False),
        ("Rejected", "Invalid", 2, False),
        ("Complete", "Planned", 2, False),
    ],
)
def test_only_a_fault_that_injected_nothing_and_was_edited_begins_again(
    phase: str, reason: str, generation: int, again: bool
) -> None:
    """One that has ended stays as it is, whatever becomes of its spec."""
    found = look(made({"phase": phase, "reason": reason, "observedGeneration": generation}), bench())
    assert status_of(found).phase == ("Planned" if again else phase)
    assert status_of(found).observed_generation == 2
    assert (found.actions != (SetFinalizers(("other",)),)) == again
    assert found.requeue_after_s == (0 if again else None)


@pytest.mark.parametrize(
    ("spec", "kind", "reason", "text"),
    [
        ({"duration": "-1 s"}, "process.pause", "Invalid", "duration"),
        (
            {"network": {"loss": {"percent": 5}}},
            "network.loss",
            "Invalid",
            "spec: network.loss is not possible",
        ),
        ({"target": {"taskManagers": {"names": ["tm-9"]}}}, "process.pause", "Invalid", "tm-9"),
        ({"network": {}}, "", "Invalid", "needs exactly one kind"),
    ],
)
def test_a_fault_that_is_never_possible_is_refused_at_once(
    spec: Obj, kind: str, reason: str, text: str
) -> None:
    """With a Warning of the same text."""
    found = look(made(**spec), bench())
    assert (status_of(found).phase, status_of(found).reason, found.requeue_after_s) == (
        "Rejected",
        reason,
        None,
    )
    assert text in status_of(found).message
    assert status_of(found).kind == kind
    assert [(level, why) for level, why, _ in events(found)] == [("Warning", reason)]
    assert status_of(found).ended_at == rfc3339(NOW)


def test_a_fault_with_plan_true_is_complete_with_what_it_would_do() -> None:
    """It names kind, targets and duration, and no agent is asked."""
    found = look(made(plan=True), bench())
    text = expected(resolve(Fault(made()), bench()))
    assert events(found) == [("Normal", "Planned", text)]
    assert (status_of(found).phase, status_of(found).reason, status_of(found).message) == (
        "Complete",
        "Planned",
        text,
    )
    assert " On tm-0, for 10 s. Measured: " in text
    latency = made(network={"latency": {"delay": "20 ms", "mode": "one-way"}})
    assert "(latency_s=0.02, mode=one-way, " in expected(
        resolve(Fault(latency), bench(options={"proxy": True}))
    )


@pytest.mark.parametrize(
    ("options", "packets", "backend", "text"),
    [
        ({}, None, "", "spec.pods.proxy: true"),
        ({}, {"backends": ["nfqueue"]}, "", "spec.pods.packetFaults: true"),
        (
            {"proxy": True},
            None,
            "proxy",
            "preferred but not available here: netem (the testbed has no agent container",
        ),
        ({"packetFaults": True}, {"backends": ["nfqueue"]}, "nfqueue", ""),
        ({"packetFaults": True}, {"backends": ["nfqueue", "netem"]}, "netem", ""),
        ({"packetFaults": True}, {"backends": ["other"], "missing": {"netem": "no module"}}, "", "no module"),
        (
            {"packetFaults": True, "proxy": True},
            {"missing": {"netem": "no module"}},
            "proxy",
            "netem (no module)",
        ),
    ],
)
def test_a_latency_is_carried_out_by_what_the_testbed_has(
    options: Obj, packets: Obj | None, backend: str, text: str
) -> None:
    """Packets by the agent container, or else bytes by the proxy. What is missing is named with the field that adds it."""
    raw = made(network={"latency": {"delay": "20 ms", "mode": "one-way"}})
    testbed = bench(options=options, packets=packets)
    if not backend:
        with pytest.raises(UserError, match=text):
            resolve(Fault(raw), testbed)
        return
    found = resolve(Fault(raw), testbed)
    assert found.backend == backend
    assert text in found.why


@pytest.mark.parametrize(
    ("spec", "waits"),
    [
        ({"network": {"latency": {"delay": "20 ms", "mode": "one-way"}}}, True),
        ({"process": {"pause": {}}}, False),
    ],
)
def test_only_a_fault_on_packets_waits_for_the_agent_container(spec: Obj, waits: bool) -> None:
    """A fault on a process does not need it."""
    testbed = bench(options={"packetFaults": True, "proxy": True})
    found = look(made(**spec), testbed)
    assert status_of(found).phase == ("Pending" if waits else "Planned")
    if waits:
        assert conditions(found)["Ready"] == "False/AgentNotReady"


# ---- pods of others, and other faults


@pytest.mark.parametrize(
    ("owner", "allowed", "forbidden"), [("x", False, True), ("bench-uid", False, False), ("x", True, False)]
)
def test_a_pod_of_another_owner_is_hit_only_where_the_namespace_allows_it(
    owner: str, allowed: bool, forbidden: bool
) -> None:
    """Its label is named. A pod that is gone has no owner that could object."""
    pods = {"tm-0": a_pod("tm-0", ownerReferences=[{"uid": owner}])}
    found = look(made(pod={"delete": {}}), bench(pods=pods), namespace_allows=allowed)
    assert status_of(found).phase == ("Rejected" if forbidden else "Planned")
    if forbidden:
        label = f"{naming.LABEL_FAULTS_ALLOWED}=allowed"
        assert status_of(found).message == (
            f"pod bench-tm-0 does not belong to the testbed; label its namespace {label} to let faults hit it"
        )
    assert status_of(look(made(pod={"delete": {}}), bench(pods={}))).phase == "Planned"


@pytest.mark.parametrize(
    ("own", "kind", "targets", "why"),
    [
        (
            "process.pause",
            "process.pause",
            ("tm-0",),
            "the same kind twice on one target; end one of them first",
        ),
        ("process.pause", "process.pause", ("tm-1",), ""),
        ("network.latency", "process.pause", ("tm-0",), "process.pause stops the process, so"),
        ("process.pause", "network.latency", ("tm-0",), "process.pause stops the process, so"),
        ("network.latency", "network.partition", ("tm-0",), "nothing passes during network.partition, so"),
        ("network.partition", "network.latency", ("tm-0",), "nothing passes during network.partition, so"),
        ("network.latency", "network.bandwidth", ("tm-0",), ""),
        ("frames.drop", "network.partition", ("tm-0",), ""),
        ("network.partition", "frames.drop", ("tm-0",), ""),
        ("network.latency", "network.latency", ("tm-0->tm-1",), "the same kind twice"),
    ],
)
def test_two_faults_on_one_target_act_together_only_if_both_can_be_measured(
    own: str, kind: str, targets: tuple[str, ...], why: str
) -> None:
    """Both names and the common target are in the text."""
    resolved = resolve(Fault(made()), bench())
    mine = Resolved(replace(resolved.fault, name="mine", kind=own), ("tm-0",), "supervisor", "")
    found = conflict(mine, [("a", "frames.delay", ("tm-2",)), ("b", kind, targets)])
    begin = f"mine ({own}) and b ({kind}) both hit tm-0: {why}"
    assert found.startswith(begin) if why else found == ""
