"""Testbed: reads its objects and asks its JobManager about the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from headgate_operator import objects
from headgate_operator.handler import Context, Handler
from headgate_operator.plan import testbed as planner
from headgate_operator.plan.model import Key
from testbed_runtime.api import naming
from testbed_runtime.api.views import Pod, Resource, Secret, Testbed
from testbed_runtime.core.ids import JOBMANAGER, STORE, is_task_manager

R = TypeVar("R", bound=Resource)


class TestbedHandler(Handler):
    __test__ = False

    kind = "Testbed"
    plan = staticmethod(planner.plan)

    async def observe(self, context: Context, key: Key) -> planner.TestbedObserved | None:
        cluster, namespace = context.cluster, key.namespace
        testbed = await context.find(Testbed, key.kind, namespace, key.name)
        if testbed is None:
            return None
        if testbed.terminating:
            return planner.TestbedObserved(testbed)
        listed = await cluster.list("Pod", namespace, labels={naming.LABEL_TESTBED: key.name})
        pods = tuple(Pod(pod) for pod in listed)
        # new pods are built from these objects, so read them again, unless every process has its pod and none is created
        own = {pod.process for pod in pods if pod.controller == testbed.uid}
        recent = own.issuperset(objects.processes(testbed.spec))

        async def beside(view: type[R], kind: str, name: str, *, given: bool = False) -> R | None:
            """Read an object that pods need. Unless it was `given` by the user, it may still belong to an earlier Testbed."""
            if not name:
                return None
            return await context.recall(
                view, kind, namespace, name, trusted=lambda o: recent and (given or o.owned_by(testbed))
            )

        secret = await beside(Secret, "Secret", testbed.token_secret, given=True)
        certificate = await beside(Secret, "Secret", testbed.certificate_secret)
        config_map = await beside(Resource, "ConfigMap", testbed.config_map)
        mounted = any(is_task_manager(pod.process) for pod in pods)
        makes = bool(testbed.certificate_secret) and certificate is None and not mounted
        run = testbed.labels.get(naming.LABEL_RUN, "")
        claim = naming.pod_name(key.name, STORE) if objects.store_claim(testbed.raw) else ""
        return planner.TestbedObserved(
            testbed,
            pods,
            secret,
            config_map.raw if config_map else None,
            await beside(Resource, "Service", naming.service_name(key.name)),
            await beside(Resource, "PersistentVolumeClaim", claim),
            await _job(context, pods, secret),
            context.entropy() if secret is None else "",
            certificate,
            context.certificate() if makes else b"",
            await beside(Pod, "Pod", naming.runner_name(run), given=True) if run else None,
        )


async def _job(context: Context, pods: Sequence[Pod], secret: Secret | None) -> Mapping[str, Any] | None:
    """Return the JobManager's answer; None without a JobManager or without an answer."""
    jobmanager = next((p for p in pods if p.process == JOBMANAGER and p.alive and p.address), None)
    if jobmanager is None or jobmanager.phase != "Running" or secret is None:
        return None
    return await context.jobs.job(jobmanager.address, secret.token)
