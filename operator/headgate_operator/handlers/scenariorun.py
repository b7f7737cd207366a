"""ScenarioRun: what is there of it, and healing the agents of its testbeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate_operator import objects_runs
from headgate_operator.handler import Context, Handler
from headgate_operator.handlers.fault import agents_of, pods_of, reach_of
from headgate_operator.plan import scenariorun as planner
from headgate_operator.plan.conditions import seconds
from headgate_operator.plan.model import Ask, Key, Manifest, Plan
from headgate_operator.settings import Settings
from testbed_runtime.core.errors import HeadgateError, LocalProtocolError
from testbed_runtime.faults.fanout import PACKETS, Agent
from testbed_runtime.spec import naming

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
        testbeds = await cluster.list(
            naming.API_VERSION, "Testbed", namespace, labels={naming.LABEL_RUN: key.name}
        )
        found = await _named(context, namespace, [("v1", "Pod", name) for name in names])
        runs = await cluster.list(naming.API_VERSION, key.kind, namespace)
        unfinished, last_end = _batch(run, runs)
        report = await report_of(context, namespace, naming.status_name(key.name))
        going = not planner.finished(run) and not run["metadata"].get("deletionTimestamp")
        shared = await _named(context, namespace, _shared(context, run, spark)) if going else {}
        own = await _named(context, namespace, _own(context, key.name)) if going else {}
        return planner.Observed(
            run,
            pods={name: pod for (_, name), pod in found.items()},
            shared=shared,
            present=frozenset(own),
            report=report,
            testbeds=tuple(testbeds),
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
        agents += [Agent(process, PACKETS) for process in reach.hosts]
    try:
        await agents_of(context).heal_all(reach, agents)
    except HeadgateError:
        return


async def report_of(context: Context, namespace: str, name: str) -> Mapping[str, Any] | None:
    """`status.json` of a ConfigMap; None: not there, or not to be read."""
    found = await context.cluster.get("v1", "ConfigMap", namespace, name)
    text = ((found or {}).get("data") or {}).get(STATUS_KEY, "")
    try:
        report = msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return None
    return report if isinstance(report, dict) else None


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


def _batch(run: Manifest, runs: Sequence[Manifest]) -> tuple[int, float]:
    """Of the namespace's runs with the warm Spark: how many others are not over, and when the last one was."""
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
