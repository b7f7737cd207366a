"""Resolve a stand-alone fault on its testbed: backend, targets, parts for the agents, and whether it is allowed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from testbed_runtime.api import fault_rules, kinds, naming
from testbed_runtime.api.compile import compile_fault
from testbed_runtime.api.status import MAX_TARGETS
from testbed_runtime.api.views import Fault as FaultObject
from testbed_runtime.api.views import Pod, Testbed
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.faults.links import owners_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.faults.vocabulary import PACKET_BACKENDS, POD_BACKEND, Hides, camel
from testbed_runtime.core.ids import task_manager_names
from testbed_runtime.faults.fanout import Part, split
from testbed_runtime.faults.registry import Capabilities, check_fault
from testbed_runtime.faults.targets import resolve_targets

NO_AGENT = "the testbed has no agent container (set spec.pods.packetFaults: true in the Testbed)"
NO_PROXY = "the testbed has no proxy (set spec.pods.proxy: true in the Testbed)"
AGENT_SILENT = "the agent container does not answer yet"


class Resolved(Struct, frozen=True):
    """A fault as it is injected. `fault.name` is unique to this object, because journals identify faults by name."""

    fault: Fault
    targets: tuple[str, ...]
    backend: str
    why: str
    parts: tuple[Part, ...] = ()


class TestbedState(Struct, frozen=True):
    """The testbed as a fault sees it."""

    __test__ = False

    resource: Testbed
    placement: Mapping[str, str] | None = None
    """None: the JobManager was not reached."""
    packets: Mapping[str, Any] | None = None
    """The agent container's capabilities, `{"backends", "missing"}`. None: there is no agent container, or it does not answer."""
    pods: Mapping[str, Pod] = field(default_factory=dict)
    """The key is the process."""


class NotYet(Exception):
    """The fault cannot be planned yet. `reason` is in CamelCase."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def capabilities(testbed: TestbedState) -> Capabilities:
    """Return the backends that the testbed's pods offer, and why the others are missing."""
    backends = ["channel", "supervisor", POD_BACKEND]
    missing: dict[str, str] = {}
    if testbed.resource.proxy:
        backends.append("proxy")
    else:
        missing["proxy"] = NO_PROXY
    if not testbed.resource.packet_faults:
        missing.update(dict.fromkeys(PACKET_BACKENDS, NO_AGENT))
    elif testbed.packets is None:
        missing.update(dict.fromkeys(PACKET_BACKENDS, AGENT_SILENT))
    else:
        backends += [b for b in testbed.packets.get("backends", ()) if b in PACKET_BACKENDS]
        missing.update(testbed.packets.get("missing") or {})
    return Capabilities("kubernetes", tuple(backends), missing)


def resolve(obj: FaultObject, testbed: TestbedState) -> Resolved:
    """Choose backend and targets. Raises UserError if this can never succeed, NotYet if it cannot succeed now."""
    spec = _spec(obj)
    document = kinds.TestbedResourceSpec.model_validate(testbed.resource.spec)
    for problem in fault_rules.alone(spec.named(obj.name[:40]), "spec", document):
        raise problem
    fault = compile_fault(spec.named(obj.name))
    if needs_agent(obj, testbed.resource) and testbed.packets is None:
        raise NotYet("AgentNotReady", AGENT_SILENT)
    backend, why = check_fault(fault, capabilities(testbed), "spec")
    wants_placement = bool(fault.target.running or fault.target.peers_running)
    if wants_placement and testbed.placement is None:
        raise NotYet("JobUnknown", "the JobManager does not report yet where the tasks run")
    targets = resolve_targets(
        fault,
        placement=testbed.placement or {},
        task_managers=task_manager_names(testbed.resource.replicas),
        seed=spec.seed,
    )
    if len(targets) > MAX_TARGETS:
        many = f"it hits {len(targets)} targets, a stand-alone fault has at most {MAX_TARGETS}"
        raise UserError("spec.target", many, "name fewer processes, or take all of them without peers")
    return _with_parts(obj, testbed, Resolved(fault, targets, backend, why))


def as_planned(obj: FaultObject, testbed: TestbedState) -> Resolved:
    """Return the resolution that the status records: targets and backend are chosen only once."""
    status = obj.status
    fault = compile_fault(_spec(obj).named(obj.name))
    planned = Resolved(fault, status.targets, status.backend, status.why)
    return _with_parts(obj, testbed, planned)


def needs_agent(obj: FaultObject, testbed: Testbed) -> bool:
    """Whether the agent container's capabilities are needed."""
    kind = kind_of(obj)
    wanted = KINDS[kind].backends if kind in KINDS else ()
    return testbed.packet_faults and any(b in PACKET_BACKENDS for b in wanted)


def kind_of(obj: FaultObject) -> str:
    """Return the kind, as in `network.latency`; empty without one."""
    return next((k.name for k in KINDS.values() if camel(k.field) in (obj.spec.get(k.family) or {})), "")


def forbidden(resolved: Resolved, testbed: TestbedState, namespace_allows: bool) -> str:
    """Return why the fault must not hit its target pods, or an empty text. Pods outside the testbed need the namespace's label."""
    if resolved.backend != POD_BACKEND or namespace_allows:
        return ""
    for name in owners_of(resolved.targets):
        pod = testbed.pods.get(name)
        if pod is not None and not pod.owned_by(testbed.resource):
            return (
                f"pod {pod.name} does not belong to the testbed; "
                f"label its namespace {naming.LABEL_FAULTS_ALLOWED}=allowed to let faults hit it"
            )
    return ""


def conflict(own: Resolved, others: Iterable[tuple[str, str, tuple[str, ...]]]) -> str:
    """Return why the fault cannot be active together with another one of the testbed (name, kind, targets), or an empty text.

    Different kinds on one link add up (latency, loss, bandwidth). The same kind twice has no measurable sum, and a fault that
    blocks a link or stops a process hides every other effect there."""
    mine = set(owners_of(own.targets))
    for name, kind, targets in others:
        both = sorted(mine & set(owners_of(targets)))
        if both and (why := _excludes(own.fault.kind, kind)):
            return (
                f"{own.fault.name} ({own.fault.kind}) and {name} ({kind}) both hit {', '.join(both)}: {why}"
            )
    return ""


def expected(resolved: Resolved) -> str:
    """Return the expected effect in a sentence."""
    kind = KINDS[resolved.fault.kind]
    params = ", ".join(
        f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in resolved.fault.params.items()
    )
    asked = f" ({params})" if params else ""
    return f"{kind.doc} On {', '.join(resolved.targets)}, for {resolved.fault.duration_s:g} s{asked}. Measured: {kind.measured}"


def with_duration(parts: Iterable[Part], seconds: float) -> tuple[Part, ...]:
    """Return the parts with durations of at most `seconds`, the time left until the absolute deadline."""
    return tuple(
        replace(p, fault=replace(p.fault, duration_s=min(p.fault.duration_s, seconds))) for p in parts
    )


def _excludes(one: str, other: str) -> str:
    if one == other:
        return "the same kind twice on one target; end one of them first"
    for kind in (one, other):
        if KINDS[kind].hides is Hides.PROCESS:
            return f"{kind} stops the process, so the other's effect could not be measured; end one of them first"
    if one.startswith("network.") and other.startswith("network."):
        for kind in (one, other):
            if KINDS[kind].hides is Hides.LINK:
                return f"nothing passes during {kind}, so the other's effect could not be measured; end one of them first"
    return ""


def _with_parts(obj: FaultObject, testbed: TestbedState, chosen: Resolved) -> Resolved:
    unique = replace(chosen.fault, name=f"{chosen.fault.name}-{obj.uid[:8]}")
    if chosen.backend == POD_BACKEND:
        return replace(chosen, fault=unique)
    names = task_manager_names(testbed.resource.replicas)
    parts = split(unique, chosen.targets, backend=chosen.backend, task_managers=names)
    return replace(chosen, fault=unique, parts=parts)


def _spec(obj: FaultObject) -> kinds.FaultResourceSpec:
    try:
        return kinds.FaultResourceSpec.model_validate(obj.spec)
    except ValueError as error:
        raise UserError("spec", str(error)) from None
