"""ScenarioRun: reads its objects, and heals the agents of its testbeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate_operator import objects, objects_runs
from headgate_operator.handler import Context, Handler
from headgate_operator.handlers.fault import pods_of, reach_of
from headgate_operator.plan import scenariorun as planner
from headgate_operator.plan.model import Ask, Key
from headgate_operator.plan.scenariorun import KindAndName
from testbed_runtime.api import naming
from testbed_runtime.api.refusals import QUOTA_EXCEEDED
from testbed_runtime.api.status import SUSPENDED, RunReport
from testbed_runtime.api.views import ConfigMap, M, Pod, Resource, Run, Study, Testbed, seconds
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.faults.fanout import PACKETS, Agent

ACCOUNT_KINDS = frozenset({"ServiceAccount", "RoleBinding"})
"""Kinds of objects without an owner, because every run and study of the namespace uses them."""


class ScenarioRunHandler(Handler):
    kind = "ScenarioRun"
    plan = staticmethod(planner.plan)

    async def observe(self, context: Context, key: Key) -> planner.Observed | None:
        namespace = key.namespace
        run = await context.find(Run, key.kind, namespace, key.name)
        if run is None:
            return None
        active = not run.finished and not run.terminating
        # if the run ends, is healed or deleted, read everything again: an object that is overlooked now stays in the cluster
        recent = active and not run.heal_requested
        spark = objects_runs.spark_name(run)
        names = (naming.runner_name(key.name), naming.recorder_name(key.name), spark)
        pods = await named(context, run, [("Pod", name) for name in names], recent=recent)
        if _may_end(run, pods) and await context.is_ending(namespace):
            return planner.Observed(run, namespace_ends=True)
        # read after the pods: once the runner is gone, no further testbed is created
        testbeds = () if recent else await _testbeds(context, run)
        found = {name: Pod(pod.raw) for (_, name), pod in pods.items()}
        runner, warm = found.get(naming.runner_name(key.name)), found.get(spark)
        earlier = warm is not None and planner.is_earlier(warm, run, runner, context.settings)
        unfinished, last_end = await _batch(context, run, waits=earlier) if warm else (0, 0.0)
        # a runner reports before it ends, but the event of its pod may arrive before that of the report
        runs = recent and runner is not None and _is_settled(runner, run)
        report, status_map = await report_of(context, run, RunReport, recent=runs)
        shared = await named(context, run, _shared(context, run, spark), recent=recent) if active else {}
        own = await named(context, run, _own(context, key.name), recent=recent) if active else {}
        taken = _taken(run, {**pods, **own, **status_map})
        return planner.Observed(
            run,
            pods={name: pod for name, pod in found.items() if ("Pod", name) not in taken},
            shared=shared,
            present=frozenset(own),
            taken=tuple(sorted(f"{kind} {name}" for kind, name in taken)),
            report=report,
            testbeds=testbeds,
            unfinished=unfinished,
            last_end=last_end,
            others=await other_runs(context, run) if active else (),
            claim_modes=await _claim_modes(context, run) if active else None,
            tokens=(context.entropy(), context.entropy()) if active else ("", ""),
        )

    async def ask(self, context: Context, observed: planner.Observed, ask: Ask) -> None:
        if ask.what != "heal-all":
            await super().ask(context, observed, ask)
        for testbed in observed.testbeds:
            await heal_testbed(context, testbed)


def _may_end(run: Run, pods: Mapping[KindAndName, Resource]) -> bool:
    """Return whether the run or one of its own pods is terminating or missing, as when its namespace is being deleted."""
    own = [pods.get(("Pod", name(run.name))) for name in (naming.runner_name, naming.recorder_name)]
    held = not run.finished or naming.FINALIZER in run.finalizers
    return run.terminating or (held and any(pod is None or pod.terminating for pod in own))


async def heal_testbed(context: Context, testbed: Testbed) -> None:
    """Heal all faults of every agent in the testbed's pods. An agent that does not answer is tried again at the next reconcile, and its
    faults end at their deadlines anyway."""
    pods = await pods_of(context, testbed.namespace, testbed.name)
    reach = await reach_of(context, testbed, pods)
    agents = [Agent(process) for process in reach.hosts]
    if testbed.packet_faults:
        agents += [Agent(p, PACKETS) for p in reach.hosts if objects.has_agent(p)]
    try:
        await context.agents.heal_all(reach, agents)
    except HeadgateError:
        return


async def _testbeds(context: Context, run: Run) -> tuple[Testbed, ...]:
    """Return the run's testbeds. An active run that is not being healed does not need them."""
    labels = {naming.LABEL_RUN: run.name}
    listed = await context.cluster.list("Testbed", run.namespace, labels=labels)
    return tuple(t for t in map(Testbed, listed) if t.owned_by(run))


async def report_of(
    context: Context, owner: Resource, model: type[M], *, recent: bool
) -> tuple[M | None, dict[KindAndName, Resource]]:
    """Return `status.json` of the owner's ConfigMap, and that ConfigMap. None: missing, of another owner, or malformed."""
    name = naming.status_name(owner.name)
    config_map = await context.recall(
        ConfigMap, "ConfigMap", owner.namespace, name, trusted=lambda found: recent and found.owned_by(owner)
    )
    if config_map is None:
        return None, {}
    return config_map.report(owner, model), {("ConfigMap", name): config_map}


def _taken(run: Run, found: Mapping[KindAndName, Resource]) -> set[KindAndName]:
    """Return the objects of other owners whose names this run needs. The warm Spark belongs to all runs, so it is never among them."""
    shared = ("Pod", objects_runs.SPARK_NAME)
    return {key for key, obj in found.items() if key != shared and not obj.owned_by(run)}


async def named(
    context: Context, owner: Resource, wanted: Sequence[KindAndName], *, recent: bool
) -> dict[KindAndName, Resource]:
    """Return those of the wanted objects that exist. `recent`: as they were in the last RECENT_S seconds."""
    found: dict[KindAndName, Resource] = {}
    for kind, name in wanted:
        obj = await context.recall(
            Resource, kind, owner.namespace, name, trusted=lambda obj: recent and _is_settled(obj, owner)
        )
        if obj is not None:
            found[kind, name] = obj
    return found


def _is_settled(obj: Resource, owner: Resource) -> bool:
    """Return whether only the existence of an object matters, so that it need not be read again. An object of another owner does matter,
    because the run waits until it is gone. So does a pod that does not run, because the run may fail because of it."""
    if obj.kind == "Pod" and not (Pod(obj.raw).alive and Pod(obj.raw).containers_run):
        return False
    return obj.owned_by(owner) or obj.kind in ACCOUNT_KINDS


def _own(context: Context, run: str) -> list[KindAndName]:
    recorder = naming.recorder_name(run)
    found = [("Secret", naming.token_name(run)), ("Service", recorder)]
    if context.settings.recorder_storage:
        found.append(("PersistentVolumeClaim", recorder))
    return found


def _shared(context: Context, run: Run, spark: str) -> list[KindAndName]:
    found = [("Secret", naming.token_name(spark)), ("Service", spark)]
    return found + account_keys(context, run)


def account_keys(context: Context, owner: Run | Study) -> list[KindAndName]:
    manifests = objects_runs.accounts(owner, context.settings)
    return [(m["kind"], m["metadata"]["name"]) for m in manifests]


async def other_runs(context: Context, owner: Run | Study) -> tuple[Run, ...]:
    """Return the other runs of the namespace, whose end would free some of a full quota. Empty if the owner does not wait for quota."""
    refusal = owner.status.refusal
    if refusal is None or refusal.reason != QUOTA_EXCEEDED:
        return ()
    listed = await context.cluster.list("ScenarioRun", owner.namespace)
    return tuple(r for r in map(Run, listed) if r.uid != owner.uid)


async def _batch(context: Context, run: Run, *, waits: bool = False) -> tuple[int, float]:
    """Return how many other runs with the warm Spark are unfinished in the namespace, and when the last one ended.

    Only a finished or suspended run checks whether the Spark pod can be removed, and one that `waits` counts those that have begun: a study
    has hundreds of runs, each reconciled every second."""
    if not (run.uses_warm_spark and (waits or run.finished or run.status.phase == SUSPENDED)):
        return 0, 0.0
    listed = await context.cluster.list("ScenarioRun", run.namespace)
    warm = [r for r in map(Run, listed) if r.uses_warm_spark]
    # a run that is suspended or being deleted needs no Spark
    others = [r for r in warm if r.uid != run.uid and not (r.finished or r.terminating)]
    unfinished = sum(
        not (r.suspended and r.status.phase == SUSPENDED) and (r.status.runner_starts > 0 or not waits)
        for r in others
    )
    ends = [seconds(at) for r in warm if (at := r.status.completed_at)]
    return unfinished, max(ends, default=0.0)


async def _claim_modes(context: Context, run: Run) -> tuple[str, ...] | None:
    if not run.history_claim or not run.executors:
        return None
    claim = await context.find(Resource, "PersistentVolumeClaim", run.namespace, run.history_claim)
    return None if claim is None else tuple(claim.spec.get("accessModes") or ())
