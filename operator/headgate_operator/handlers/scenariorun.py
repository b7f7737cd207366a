"""ScenarioRun: what is there of it, and healing the agents of its testbeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate_operator import objects, objects_runs
from headgate_operator.handler import Context, Handler
from headgate_operator.handlers.fault import agents_of, pods_of, reach_of
from headgate_operator.plan import scenariorun as planner
from headgate_operator.plan.conditions import seconds
from headgate_operator.plan.model import Ask, Key, Manifest, Plan
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError, LocalProtocolError
from testbed_runtime.faults.fanout import PACKETS, Agent

STATUS_KEY = "status.json"
RBAC = "rbac.authorization.k8s.io/v1"


class ScenarioRunHandler:
    kind = "ScenarioRun"

    async def observe(self, context: Context, key: Key) -> planner.Observed | None:
        cluster, namespace = context.cluster, key.namespace
        run = await cluster.get(naming.API_VERSION, key.kind, namespace, key.name)
        if run is None:
            return None
        spark = objects_runs.spark_name(run)
        names = (naming.runner_name(key.name), naming.recorder_name(key.name), spark)
        pods = await _named(context, namespace, [("v1", "Pod", name) for name in names])
        # after the pods: once the runner is gone, there are no more of them than these
        testbeds = await cluster.list(
            naming.API_VERSION, "Testbed", namespace, labels={naming.LABEL_RUN: key.name}
        )
        unfinished, last_end = await _batch(context, run) if ("Pod", spark) in pods else (0, 0.0)
        report, status_map = await report_of(context, run)
        going = not planner.finished(run) and not run["metadata"].get("deletionTimestamp")
        shared = await _named(context, namespace, _shared(context, run, spark)) if going else {}
        own = await _named(context, namespace, _own(context, key.name)) if going else {}
        others = _of_others(run, {**pods, **own, **status_map})
        return planner.Observed(
            run,
            pods={name: pod for (kind, name), pod in pods.items() if (kind, name) not in others},
            shared=shared,
            present=frozenset(own),
            taken=tuple(sorted(f"{kind} {name}" for kind, name in others)),
            report=report,
            testbeds=tuple(t for t in testbeds if owned_by(t, run)),
            unfinished=unfinished,
            last_end=last_end,
            claim_modes=await _claim_modes(context, run) if going else None,
            tokens=(context.entropy(), context.entropy()) if going else ("", ""),
        )

    def plan(self, observed: planner.Observed, settings: Settings, now: float) -> Plan:
        return planner.plan(observed, settings, now)

    async def ask(self, context: Context, observed: planner.Observed, ask: Ask) -> None:
        if ask.what != "heal-all":
            raise LocalProtocolError(f"a ScenarioRun does not ask {ask.what!r}")
        for testbed in observed.testbeds:
            await heal_testbed(context, testbed)


async def heal_testbed(context: Context, testbed: Manifest) -> None:
    """Every agent of its pods. Who does not answer now is asked again with the next look; a deadline holds anyway."""
    metadata = testbed["metadata"]
    pods = await pods_of(context, metadata["namespace"], metadata["name"])
    reach = await reach_of(context, testbed, pods)
    agents = [Agent(process) for process in reach.hosts]
    if (testbed["spec"].get("pods") or {}).get("packetFaults"):
        agents += [Agent(p, PACKETS) for p in reach.hosts if objects.has_agent(p)]
    try:
        await agents_of(context).heal_all(reach, agents)
    except HeadgateError:
        return


async def report_of(
    context: Context, owner: Manifest
) -> tuple[Mapping[str, Any] | None, dict[tuple[str, str], Manifest]]:
    """`status.json` of the owner's ConfigMap (None: not there, not its own or not to be read), and that ConfigMap."""
    namespace, name = owner["metadata"]["namespace"], naming.status_name(owner["metadata"]["name"])
    found = await context.cluster.get("v1", "ConfigMap", namespace, name)
    if found is None:
        return None, {}
    there: dict[tuple[str, str], Manifest] = {("ConfigMap", name): found}
    text = (found.get("data") or {}).get(STATUS_KEY, "") if owned_by(found, owner) else ""
    try:
        report = msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return None, there
    return (report if isinstance(report, dict) else None), there


def owned_by(obj: Manifest, owner: Manifest) -> bool:
    """By uid: an earlier object of the same name had others, which are collected soon after it."""
    uid = owner["metadata"]["uid"]
    return any(o["uid"] == uid for o in obj["metadata"].get("ownerReferences") or ())


def _of_others(run: Manifest, found: Mapping[tuple[str, str], Manifest]) -> set[tuple[str, str]]:
    """What bears a name that this run needs and is not its own; the warm Spark is everybody's."""
    shared = ("Pod", objects_runs.SPARK_NAME)
    return {key for key, obj in found.items() if key != shared and not owned_by(obj, run)}


async def _named(
    context: Context, namespace: str, wanted: Sequence[tuple[str, str, str]]
) -> dict[tuple[str, str], Manifest]:
    found: dict[tuple[str, str], Manifest] = {}
    for api_version, kind, name in wanted:
        obj = await context.cluster.get(api_version, kind, namespace, name)
        if obj is not None:
            found[kind, name] = obj
    return found


def _own(context: Context, run: str) -> list[tuple[str, str, str]]:
    recorder = naming.recorder_name(run)
    found = [("v1", "Secret", naming.token_name(run)), ("v1", "Service", recorder)]
    if context.settings.recorder_storage:
        found.append(("v1", "PersistentVolumeClaim", recorder))
    return found


def _shared(context: Context, run: Manifest, spark: str) -> list[tuple[str, str, str]]:
    found = [("v1", "Secret", naming.token_name(spark)), ("v1", "Service", spark)]
    if context.settings.cluster_wide:
        for name in (
            naming.RUNNER_ACCOUNT,
            *([naming.SPARK_ACCOUNT] if objects_runs.executors(run) else []),
        ):
            found += [("v1", "ServiceAccount", name), (RBAC, "RoleBinding", name)]
    return found


async def _batch(context: Context, run: Manifest) -> tuple[int, float]:
    """Of the namespace's runs with the warm Spark: how many others are not over, and when the last one was. Only who is over
    himself asks, whether Spark may go: a study has hundreds of runs, and each is looked at every second."""
    if not (planner.finished(run) and planner.uses_warm_spark(run)):
        return 0, 0.0
    runs = await context.cluster.list(naming.API_VERSION, "ScenarioRun", run["metadata"]["namespace"])
    warm = [r for r in runs if planner.uses_warm_spark(r)]
    uid = run["metadata"]["uid"]
    unfinished = sum(r["metadata"]["uid"] != uid and not planner.finished(r) and not _idle(r) for r in warm)
    ends = [seconds(at) for r in warm if (at := (r.get("status") or {}).get("completedAt"))]
    return unfinished, max(ends, default=0.0)


def _idle(run: Manifest) -> bool:
    """Suspended before it began, or on its way out."""
    return bool(
        (run.get("status") or {}).get("phase") == "Suspended" or run["metadata"].get("deletionTimestamp")
    )


async def _claim_modes(context: Context, run: Manifest) -> tuple[str, ...] | None:
    name = (run["spec"].get("evaluation") or {}).get("historyClaim", "")
    if not name or not objects_runs.executors(run):
        return None
    namespace = run["metadata"]["namespace"]
    claim = await context.cluster.get("v1", "PersistentVolumeClaim", namespace, name)
    return None if claim is None else tuple(claim["spec"].get("accessModes") or ())


HANDLER: Handler = ScenarioRunHandler()
