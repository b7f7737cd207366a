"""What a stand-alone fault comes to on a testbed: backend, targets, parts for the agents, and whether it may. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headgate_operator.plan.model import Manifest
from testbed_runtime.api import fault_rules, kinds, naming, to_core
from testbed_runtime.api.crd_status import MAX_TARGETS
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.kinds import FAMILIES, KINDS
from testbed_runtime.core.faults.links import owners_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.fanout import Part, split
from testbed_runtime.faults.registry import Capabilities, check_fault

PACKETS = ("netem", "nfqueue", "nftables")
NO_AGENT = "the testbed has no agent container; write spec.pods.packetFaults: true in the Testbed"
NO_PROXY = "the testbed has no proxy; write spec.pods.proxy: true in the Testbed"
AGENT_SILENT = "the agent container does not answer yet"
KUBERNETES = "kubernetes"
"""Backend of pod faults: carried out by the operator itself."""
HIDING = ("network.partition", "network.reset", "network.stall", "network.half-open")
"""Nothing passes while they last: the effect of another fault on the same link could not be measured."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A fault as it is injected. `fault.name` names this object alone: journals speak of faults by name."""

    fault: Fault
    targets: tuple[str, ...]
    backend: str
    why: str
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """The testbed as a fault sees it."""

    testbed: Manifest
    placement: Mapping[str, str] | None = None
    """None: the JobManager was not reached."""
    packets: Mapping[str, Any] | None = None
    """What an agent container says it can: `{"backends", "missing"}`; None: there is none, or it does not answer."""
    pods: Mapping[str, Manifest] = field(default_factory=dict)
    """By process."""


class NotYet(Exception):
    """It can not be planned now; later perhaps. `reason` in CamelCase."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def capabilities(place: Place) -> Capabilities:
    """What the testbed's pods offer, and why not the rest."""
    pods = place.testbed["spec"].get("pods") or {}
    backends = ["channel", "supervisor", KUBERNETES]
    missing: dict[str, str] = {}
    if pods.get("proxy"):
        backends.append("proxy")
    else:
        missing["proxy"] = NO_PROXY
    if not pods.get("packetFaults"):
        missing.update(dict.fromkeys(PACKETS, NO_AGENT))
    elif place.packets is None:
        missing.update(dict.fromkeys(PACKETS, AGENT_SILENT))
    else:
        backends += [b for b in place.packets.get("backends", ()) if b in PACKETS]
        missing.update(place.packets.get("missing") or {})
    return Capabilities("kubernetes", tuple(backends), missing)


def resolve(obj: Manifest, place: Place) -> Resolved:
    """Raises UserError for what can never be, NotYet for what has to wait."""
    spec = _spec(obj)
    testbed = kinds.TestbedResourceSpec.model_validate(place.testbed["spec"])
    for problem in fault_rules.alone(spec.named(obj["metadata"]["name"][:40]), "spec", testbed):
        raise problem
    fault = to_core.fault(spec.named(obj["metadata"]["name"]))
    if _wants_agent(fault, testbed) and place.packets is None:
        raise NotYet("AgentNotReady", AGENT_SILENT)
    backend, why = check_fault(fault, capabilities(place))
    wants_placement = bool(fault.target.running or fault.target.peers_running)
    if wants_placement and place.placement is None:
        raise NotYet("JobUnknown", "the JobManager does not say yet where the tasks run")
    targets = to_core.resolve_targets(
        fault,
        placement=place.placement or {},
        task_managers=to_core.task_manager_names(testbed),
        seed=spec.seed,
    )
    if len(targets) > MAX_TARGETS:
        many = f"it hits {len(targets)} targets, a stand-alone fault has at most {MAX_TARGETS}"
        raise UserError("spec.target", many, "name fewer processes, or take all of them without peers")
    return _with_parts(obj, place, Resolved(fault, targets, backend, why))


def as_planned(obj: Manifest, place: Place) -> Resolved:
    """The same again from what stands in the status: targets and backend are chosen once."""
    status = obj["status"]
    fault = to_core.fault(_spec(obj).named(obj["metadata"]["name"]))
    planned = Resolved(fault, tuple(status["targets"]), status["backend"], status.get("why", ""))
    return _with_parts(obj, place, planned)


def needs_agent(obj: Manifest, testbed: Manifest) -> bool:
    """Whether the agent container has to be asked what it can."""
    kind = kind_of(obj)
    wanted = KINDS[kind].backends if kind in KINDS else ()
    return bool((testbed["spec"].get("pods") or {}).get("packetFaults")) and any(b in PACKETS for b in wanted)


def kind_of(obj: Manifest) -> str:
    """`network.latency`; empty when the object does not pass class A."""
    spec = obj.get("spec") or {}
    for family in FAMILIES:
        for name in spec.get(family) or {}:
            return f"{family}.{_dashed(name)}"
    return ""


def forbidden(resolved: Resolved, place: Place, namespace_allows: bool) -> str:
    """Why its pods may not be hit, empty when they may: pods that are not the testbed's own need the namespace's label."""
    if resolved.backend != KUBERNETES or namespace_allows:
        return ""
    uid = place.testbed["metadata"]["uid"]
    for name in owners_of(resolved.targets):
        pod = place.pods.get(name)
        owners = (pod or {}).get("metadata", {}).get("ownerReferences") or ()
        if pod is not None and not any(owner["uid"] == uid for owner in owners):
            return (
                f"pod {pod['metadata']['name']} is not the testbed's own; "
                f"label its namespace {naming.LABEL_FAULTS_ALLOWED}=allowed to let faults hit it"
            )
    return ""


def conflict(own: Resolved, others: Iterable[tuple[str, str, tuple[str, ...]]]) -> str:
    """Why it can not act together with another active fault of the testbed (name, kind, targets), naming both; empty: it can.

    Different kinds on one link add up (latency, loss, bandwidth); the same kind twice has no measurable sum, and what hides a
    link or stops a process hides every other effect there."""
    mine = set(owners_of(own.targets))
    for name, kind, targets in others:
        both = sorted(mine & set(owners_of(targets)))
        if both and (why := _excludes(own.fault.kind, kind)):
            return (
                f"{own.fault.name} ({own.fault.kind}) and {name} ({kind}) both hit {', '.join(both)}: {why}"
            )
    return ""


def expected(resolved: Resolved) -> str:
    """What would happen, in a sentence."""
    kind = KINDS[resolved.fault.kind]
    params = ", ".join(
        f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in resolved.fault.params.items()
    )
    asked = f" ({params})" if params else ""
    return f"{kind.doc} On {', '.join(resolved.targets)}, for {resolved.fault.duration_s:g} s{asked}. Measured: {kind.measured}"


def with_duration(parts: Iterable[Part], seconds: float) -> tuple[Part, ...]:
    """Parts that end within `seconds`: what is left until the absolute deadline."""
    return tuple(
        replace(p, fault=replace(p.fault, duration_s=min(p.fault.duration_s, seconds))) for p in parts
    )


def _excludes(one: str, other: str) -> str:
    if one == other:
        return "the same kind twice on one target; end one of them first"
    for kind in (one, other):
        if kind.endswith((".kill", ".pause")) or kind.startswith("pod."):
            return f"{kind} stops the process, so the other's effect could not be measured; end one of them first"
    if one.startswith("network.") and other.startswith("network."):
        for kind in (one, other):
            if kind in HIDING:
                return f"nothing passes during {kind}, so the other's effect could not be measured; end one of them first"
    return ""


def _with_parts(obj: Manifest, place: Place, chosen: Resolved) -> Resolved:
    unique = replace(chosen.fault, name=f"{chosen.fault.name}-{obj['metadata']['uid'][:8]}")
    if chosen.backend == KUBERNETES:
        return replace(chosen, fault=unique)
    testbed = kinds.TestbedResourceSpec.model_validate(place.testbed["spec"])
    names = to_core.task_manager_names(testbed)
    parts = split(unique, chosen.targets, backend=chosen.backend, task_managers=names)
    return replace(chosen, fault=unique, parts=parts)


def _wants_agent(fault: Fault, testbed: kinds.TestbedResourceSpec) -> bool:
    return testbed.pods.packet_faults and any(b in PACKETS for b in KINDS[fault.kind].backends)


def _spec(obj: Manifest) -> kinds.FaultResourceSpec:
    try:
        return kinds.FaultResourceSpec.model_validate(obj["spec"])
    except ValueError as error:
        raise UserError("spec", str(error)) from None


def _dashed(name: str) -> str:
    """`halfOpen` → `half-open`."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name)
