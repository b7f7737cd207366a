"""Fault: what its testbed and the agents say of it, and the calls to them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headgate_operator import objects
from headgate_operator.agents import Agents, HttpAgents, Reach, View
from headgate_operator.handler import Context, Handler
from headgate_operator.plan import fault as planner
from headgate_operator.plan.faulttarget import Place, as_planned, needs_agent, with_duration
from headgate_operator.plan.model import Ask, Key, Manifest, Plan
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError, LocalProtocolError, UserError
from testbed_runtime.faults.fanout import Agent
from testbed_runtime.faults.http import Unreachable
from testbed_runtime.kube.api import ApiError

HTTP = HttpAgents()


def agents_of(context: Context) -> Agents:
    found: Agents = context.ports.get("agents", HTTP)
    return found


class FaultHandler:
    kind = "Fault"

    async def observe(self, context: Context, key: Key) -> planner.Observed | None:
        cluster, namespace = context.cluster, key.namespace
        obj = await cluster.get(naming.API_VERSION, key.kind, namespace, key.name)
        if obj is None or (obj.get("status") or {}).get("phase") not in (None, "Pending"):
            context.claims.pop(key, None)
        if obj is None:
            return None
        name = _testbed_of(obj)
        testbed = await cluster.get(naming.API_VERSION, "Testbed", namespace, name) if name else None
        if testbed is None or not _needs_place(obj):
            return planner.Observed(obj)
        pods = await pods_of(context, namespace, name)
        reach = await reach_of(context, testbed, pods)
        place = await _place(context, obj, testbed, pods, reach)
        agents = [part.agent for part in planner.parts_of(obj, place)]
        others = await cluster.list(naming.API_VERSION, "Fault", namespace)
        return planner.Observed(
            obj,
            place,
            await _views(context, obj, reach, agents, pods),
            tuple(
                o for o in others
                if o["metadata"]["uid"] != obj["metadata"]["uid"]
                and _testbed_of(o) == name
            ),
            await _allows(context, obj),
            context.claims,
        )  # fmt: skip

    def plan(self, observed: planner.Observed, settings: Settings, now: float) -> Plan:
        """Nothing is awaited between the look at the claims and the own one."""
        made = planner.plan(replace(observed, others=_with_claims(observed)), settings, now)
        if made.status is not None and made.status.get("phase") == "Planned":
            observed.claims[_key(observed.object)] = {**observed.object, "status": made.status}
        return made

    async def ask(self, context: Context, observed: planner.Observed, ask: Ask) -> None:
        if observed.place is None:
            return
        if ask.what == "evict":
            await _evict(context, ask)
            return
        reach = await reach_of(context, observed.place.testbed, observed.place.pods)
        if ask.what == "inject":
            await _inject(context, observed, reach, ask.body)
        elif ask.what == "heal":
            uid = observed.object["metadata"]["uid"]
            await agents_of(context).heal(reach, list(observed.views), fault_id=uid)
        else:
            raise LocalProtocolError(f"a Fault does not ask {ask.what!r}")


def _key(obj: Manifest) -> Key:
    return Key("Fault", obj["metadata"]["namespace"], obj["metadata"]["name"])


def _testbed_of(obj: Manifest) -> str:
    return str((obj["spec"].get("testbedRef") or {}).get("name", ""))


def _with_claims(observed: planner.Observed) -> tuple[Manifest, ...]:
    """The other Faults of the testbed, those that were planned since they were read as they are planned."""
    own = _key(observed.object)
    claims = {
        key: claim
        for key, claim in observed.claims.items()
        if key != own
        and key.namespace == own.namespace
        and _testbed_of(claim) == _testbed_of(observed.object)
    }
    return (*(o for o in observed.others if _key(o) not in claims), *claims.values())


async def pods_of(context: Context, namespace: str, testbed: str) -> dict[str, Manifest]:
    """The testbed's pods by process. Of two pods of one process (one on its way out) the newer."""
    pods = await context.cluster.list("v1", "Pod", namespace, labels={naming.LABEL_TESTBED: testbed})
    prefix = f"{testbed}-"
    found: dict[str, Manifest] = {}
    for pod in sorted(pods, key=lambda p: str(p["metadata"].get("creationTimestamp", ""))):
        found[pod["metadata"]["name"].removeprefix(prefix)] = pod
    return found


async def reach_of(context: Context, testbed: Manifest, pods: Mapping[str, Manifest]) -> Reach:
    """Addresses as they are now: one that was another pod's before is no longer in the list, and the token differs."""
    namespace = testbed["metadata"]["namespace"]
    secret = await context.cluster.get("v1", "Secret", namespace, objects.token_secret_name(testbed))
    data = ((secret or {}).get("data") or {}).get("token", "")
    hosts = {
        process: str(pod["status"]["podIP"])
        for process, pod in pods.items()
        if (pod.get("status") or {}).get("podIP") and pod["status"].get("phase") == "Running"
    }
    return Reach(hosts, base64.b64decode(data).decode().strip())


def _needs_place(obj: Manifest) -> bool:
    """One that is over, and one that never had anything, need nobody asked."""
    if obj["metadata"].get("deletionTimestamp"):
        return planner.is_active(obj)
    return True


async def _place(
    context: Context, obj: Manifest, testbed: Manifest, pods: Mapping[str, Manifest], reach: Reach
) -> Place:
    if planner.is_active(obj):
        return Place(testbed, pods=pods)
    job = None
    host = reach.hosts.get(objects.JOBMANAGER)
    if host and reach.token:
        job = await context.jobs.job(host, reach.token)
    packets = None
    if needs_agent(obj, testbed):
        process = next((p for p in sorted(reach.hosts) if p.startswith("tm-")), "")
        packets = await agents_of(context).capabilities(reach, process)
    placement = None if job is None else dict(job.get("placement") or {})
    return Place(testbed, placement, packets, pods)


async def _views(
    context: Context, obj: Manifest, reach: Reach, agents: Sequence[Agent], pods: Mapping[str, Any]
) -> Mapping[Agent, View]:
    if not agents:
        return {}
    found = await agents_of(context).views(
        reach, agents, fault_id=obj["metadata"]["uid"], name=planner.journal_name(obj)
    )
    gone = {a: View(error=f"the pod of {a.process} is gone") for a in agents if a.process not in pods}
    return {**found, **gone}


async def _allows(context: Context, obj: Manifest) -> bool:
    """Whether the namespace has the opt-in label. Who may not read namespaces takes it as not given."""
    if not (obj["spec"].get("pod") or {}):
        return False
    try:
        namespace = await context.cluster.get("v1", "Namespace", None, obj["metadata"]["namespace"])
    except ApiError as error:
        if error.status == 403:
            return False
        raise
    labels = (namespace or {}).get("metadata", {}).get("labels") or {}
    return bool(labels.get(naming.LABEL_FAULTS_ALLOWED) == "allowed")


async def _inject(
    context: Context, observed: planner.Observed, reach: Reach, body: Mapping[str, Any]
) -> None:
    """What an agent refuses for good is written down; the planner ends it then. Raises Unreachable: asked again."""
    assert observed.place is not None
    wanted = set(body["agents"])
    parts = [p for p in as_planned(observed.object, observed.place).parts if str(p.agent) in wanted]
    try:
        await agents_of(context).inject(
            reach,
            with_duration(parts, float(body["left_s"])),
            fault_id=observed.object["metadata"]["uid"],
        )
    except Unreachable:
        raise
    except (UserError, HeadgateError) as error:
        await _problem(context, observed.object, str(error))


async def _problem(context: Context, obj: Manifest, text: str) -> None:
    metadata = obj["metadata"]
    newest = await context.cluster.get(naming.API_VERSION, "Fault", metadata["namespace"], metadata["name"])
    if newest is not None and newest["metadata"]["uid"] == metadata["uid"]:
        await context.cluster.set_status(newest, {**(newest.get("status") or {}), "problem": text})


async def _evict(context: Context, ask: Ask) -> None:
    """A budget that forbids it is asked again until the deadline."""
    try:
        await context.cluster.evict(ask.body["namespace"], ask.body["pod"], uid=ask.body["uid"])
    except ApiError as error:
        if error.status != 429:
            raise


HANDLER: Handler = FaultHandler()
