"""TuningStudy and Scenario: neither calls an agent."""

from __future__ import annotations

from headgate_operator import objects_runs
from headgate_operator.handler import Context, Handler
from headgate_operator.handlers.scenariorun import account_keys, named, other_runs, report_of
from headgate_operator.plan import scenario, study
from headgate_operator.plan.model import Key
from testbed_runtime.api.status import COMPLETE, StudyReport
from testbed_runtime.api.views import Pod, Study


class StudyHandler(Handler):
    kind = "TuningStudy"
    plan = staticmethod(study.plan)

    async def observe(self, context: Context, key: Key) -> study.Observed | None:
        namespace = key.namespace
        found = await context.find(Study, key.kind, namespace, key.name)
        if found is None:
            return None
        # without the accounts of a study that has ended, which the operator may no longer be permitted to read
        if found.terminating or found.status.phase == COMPLETE:
            return study.Observed(found)
        shared = frozenset(await named(context, found, account_keys(context, found), recent=True))
        pod = await context.find(Pod, "Pod", namespace, objects_runs.study_pod_name(key.name))
        own = pod if pod is not None and pod.owned_by(found) else None
        runs = own is not None and own.alive and own.containers_run  # a pod reports before it ends
        report, _ = await report_of(context, found, StudyReport, recent=runs)
        return study.Observed(found, own, report, shared, await other_runs(context, found))


class ScenarioHandler(Handler):
    kind = "Scenario"
    plan = staticmethod(scenario.plan)

    async def observe(self, context: Context, key: Key) -> scenario.Observed | None:
        found = await context.cluster.get(key.kind, key.namespace, key.name)
        return None if found is None else scenario.Observed(found)
