"""Fault: reads its testbed and the agents' views, and calls the agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from headgate_operator.agents import Reach, View
from headgate_operator.handler import Context, Handler
from headgate_operator.plan import fault as planner
from headgate_operator.plan.faulttarget import TestbedState, as_planned, needs_agent, with_duration
from headgate_operator.plan.model import Ask, Key, Plan
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import PLANNED, to_json
from testbed_runtime.api.views import Fault, Pod, Secret, Testbed
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.ids import JOBMANAGER, is_task_manager
from testbed_runtime.faults.backend import Unreachable
from testbed_runtime.faults.fanout import Agent
from testbed_runtime.kube.api import ApiError


class FaultHandler(Handler):
    kind = "Fault"

    async def observe(self, context: Context, key: Key) -> planner.Observed | None:
        cluster, namespace = context.cluster, key.namespace
        fault = await context.find(Fault, key.kind, namespace, key.name)
        if fault is None or fault.status.phase not in ("", "Pending"):
            context.claims.pop(key, None)
        if fault is None:
            return None
        if (fault.terminating and not fault.active) or planner.is_over(fault):
            return planner.Observed(fault)
        name = fault.testbed
        # targets are chosen and compared with other Faults now, so read both again; later, the plan in the status decides
        testbed = (
            await context.recall(Testbed, "Testbed", namespace, name, trusted=lambda _: fault.active)
            if name
            else None
        )
        if testbed is None:
            return planner.Observed(fault)
        pods = await pods_of(context, namespace, name)
        if _loses_pods(fault, pods) and await context.is_ending(namespace):
            return planner.Observed(fault, namespace_ends=True)
        reach = await reach_of(context, testbed, pods, recent=fault.active and not fault.terminating)
        state = await _state(context, fault, testbed, pods, reach)
        agents = [part.agent for part in planner.parts_of(fault, state)]
        views = await _views(context, fault, reach, agents, pods)
        if fault.active:
            return planner.Observed(fault, state, views, claims=context.claims)
        listed = [Fault(o) for o in await cluster.list("Fault", namespace)]
        return planner.Observed(
            fault,
            state,
            views,
            tuple(o for o in listed if o.uid != fault.uid and o.testbed == name),
            await _allows(context, fault),
            context.claims,
        )

    def plan(self, observed: planner.Observed, settings: Settings, now: float) -> Plan:
        """Plan, and add this fault's claim. There is no await between reading the other claims and adding this one."""
        made = planner.plan(replace(observed, others=_with_claims(observed)), settings, now)
        if made.status is not None and made.status.phase == PLANNED:
            observed.claims[_key(observed.fault)] = {**observed.object, "status": to_json(made.status)}
        return made

    async def ask(self, context: Context, observed: planner.Observed, ask: Ask) -> None:
        testbed = observed.testbed
        if testbed is None:
            return
        if ask.what == "evict":
            await _evict(context, ask)
            return
        reach = await reach_of(context, testbed.resource, testbed.pods)
        if ask.what == "inject":
            await _inject(context, observed, testbed, reach, ask)
        elif ask.what == "heal":
            await context.agents.heal(reach, list(observed.views), fault_id=observed.fault.uid)
        else:
            await super().ask(context, observed, ask)


def _loses_pods(fault: Fault, pods: Mapping[str, Pod]) -> bool:
    """Return whether a pod of the fault's plan is gone or terminating, as when its namespace is being deleted."""
    return any((pod := pods.get(name)) is None or pod.terminating for name in fault.status.pods)


def _key(fault: Fault) -> Key:
    return Key("Fault", fault.namespace, fault.name)


def _with_claims(observed: planner.Observed) -> tuple[Fault, ...]:
    """Return the other Faults of the testbed, with the plans that were made since they were read."""
    own, testbed = _key(observed.fault), observed.fault.testbed
    claims = {
        key: Fault(claim)
        for key, claim in observed.claims.items()
        if key != own and key.namespace == own.namespace and Fault(claim).testbed == testbed
    }
    return (*(o for o in observed.others if _key(o) not in claims), *claims.values())


async def pods_of(context: Context, namespace: str, testbed: str) -> dict[str, Pod]:
    """Return the testbed's pods by process."""
    pods = await context.cluster.list("Pod", namespace, labels={naming.LABEL_TESTBED: testbed})
    return {pod.name.removeprefix(f"{testbed}-"): pod for pod in map(Pod, pods)}


async def reach_of(
    context: Context, testbed: Testbed, pods: Mapping[str, Pod], *, recent: bool = False
) -> Reach:
    """Return the present addresses and the token. A pod that took over an address rejects another testbed's token.

    With `recent`, the Secret may be as it was within the last RECENT_S seconds."""
    secret = await context.recall(
        Secret, "Secret", testbed.namespace, testbed.token_secret, trusted=lambda _: recent
    )
    hosts = {process: pod.address for process, pod in pods.items() if pod.address and pod.phase == "Running"}
    return Reach(hosts, secret.token if secret else "")


async def _state(
    context: Context, fault: Fault, testbed: Testbed, pods: Mapping[str, Pod], reach: Reach
) -> TestbedState:
    if fault.active:
        return TestbedState(testbed, pods=pods)
    job = None
    host = reach.hosts.get(JOBMANAGER)
    if host and reach.token:
        job = await context.jobs.job(host, reach.token)
    packets = None
    if needs_agent(fault, testbed):
        process = next((p for p in sorted(reach.hosts) if is_task_manager(p)), "")
        packets = await context.agents.capabilities(reach, process)
    placement = None if job is None else dict(job.get("placement") or {})
    return TestbedState(testbed, placement, packets, pods)


async def _views(
    context: Context, fault: Fault, reach: Reach, agents: Sequence[Agent], pods: Mapping[str, Pod]
) -> Mapping[Agent, View]:
    if not agents:
        return {}
    found = await context.agents.views(reach, agents, fault_id=fault.uid, name=planner.journal_name(fault))
    gone = {a: View(error=f"the pod of {a.process} is gone") for a in agents if a.process not in pods}
    return {**found, **gone}


async def _allows(context: Context, fault: Fault) -> bool:
    """Return whether the namespace has the opt-in label. Without permission to read the namespace, the label counts as missing."""
    if not fault.spec.get("pod"):
        return False
    namespace = await context.namespace(fault.namespace)
    labels = namespace.labels if namespace else {}
    return labels.get(naming.LABEL_FAULTS_ALLOWED) == "allowed"


async def _inject(
    context: Context, observed: planner.Observed, testbed: TestbedState, reach: Reach, ask: Ask
) -> None:
    """Inject parts. If an agent refuses, the reason is written to the status, and the planner ends the fault.

    Raises Unreachable, for a retry."""
    wanted = set(ask.body["agents"])
    parts = [p for p in as_planned(observed.fault, testbed).parts if str(p.agent) in wanted]
    try:
        await context.agents.inject(
            reach, with_duration(parts, float(ask.body["left_s"])), fault_id=observed.fault.uid
        )
    except Unreachable:
        raise
    except (UserError, HeadgateError) as error:
        await _problem(context, observed.fault, str(error))


async def _problem(context: Context, fault: Fault, text: str) -> None:
    newest = await context.find(Fault, "Fault", fault.namespace, fault.name)
    if newest is not None and newest.uid == fault.uid:
        status = msgspec.structs.replace(newest.status, problem=text)
        await context.cluster.set_status(newest.raw, to_json(status))


async def _evict(context: Context, ask: Ask) -> None:
    """Evict a pod. While a disruption budget forbids it, this is repeated until the deadline."""
    try:
        await context.cluster.evict(ask.body["namespace"], ask.body["pod"], uid=ask.body["uid"])
    except ApiError as error:
        if error.status != 429:
            raise
