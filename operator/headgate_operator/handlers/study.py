"""TuningStudy: its pod and what that pod wrote."""

from __future__ import annotations

from headgate_operator import objects_runs
from headgate_operator.handler import Context, Handler
from headgate_operator.handlers.scenariorun import RBAC, owned_by, report_of
from headgate_operator.plan import study as planner
from headgate_operator.plan.model import Ask, Key, Plan
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.core.errors import LocalProtocolError


class StudyHandler:
    kind = "TuningStudy"

    async def observe(self, context: Context, key: Key) -> planner.Observed | None:
        cluster, namespace = context.cluster, key.namespace
        study = await cluster.get(naming.API_VERSION, key.kind, namespace, key.name)
        if study is None:
            return None
        if study["metadata"].get("deletionTimestamp"):
            return planner.Observed(study)
        shared = set()
        if context.settings.cluster_wide:
            for api_version, kind in (("v1", "ServiceAccount"), (RBAC, "RoleBinding")):
                if await cluster.get(api_version, kind, namespace, naming.STUDY_ACCOUNT) is not None:
                    shared.add((kind, naming.STUDY_ACCOUNT))
        pod = await cluster.get("v1", "Pod", namespace, objects_runs.study_pod_name(key.name))
        report, _ = await report_of(context, study)
        own = pod if pod is not None and owned_by(pod, study) else None
        return planner.Observed(study, own, report, frozenset(shared))

    def plan(self, observed: planner.Observed, settings: Settings, now: float) -> Plan:
        return planner.plan(observed, settings, now)

    async def ask(self, context: Context, observed: planner.Observed, ask: Ask) -> None:
        raise LocalProtocolError(f"a TuningStudy asks nothing of anybody, got {ask.what!r}")


HANDLER: Handler = StudyHandler()
