"""Testbed: what is there of it, and how its job goes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from headgate_operator import objects
from headgate_operator.handler import Context, Handler
from headgate_operator.plan import testbed as planner
from headgate_operator.plan.model import Ask, Key, Plan
from headgate_operator.plan.podview import view
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.core.errors import LocalProtocolError


class TestbedHandler:
    __test__ = False

    kind = "Testbed"

    async def observe(self, context: Context, key: Key) -> planner.TestbedObserved | None:
        cluster, namespace = context.cluster, key.namespace
        testbed = await cluster.get(naming.API_VERSION, key.kind, namespace, key.name)
        if testbed is None:
            return None
        if testbed["metadata"].get("deletionTimestamp"):
            return planner.TestbedObserved(testbed)
        pods = await cluster.list("v1", "Pod", namespace, labels={naming.LABEL_TESTBED: key.name})
        secret = await cluster.get("v1", "Secret", namespace, objects.token_secret_name(testbed))
        claim = objects.store_claim(testbed)
        return planner.TestbedObserved(
            testbed,
            tuple(pods),
            secret,
            await cluster.get("v1", "ConfigMap", namespace, objects.config_map_name(testbed)),
            await cluster.get("v1", "Service", namespace, naming.service_name(key.name)),
            await cluster.get(
                "v1", "PersistentVolumeClaim", namespace, naming.pod_name(key.name, objects.STORE)
            )
            if claim
            else None,
            await _job(context, pods, secret),
            context.entropy() if secret is None else "",
        )

    def plan(self, observed: planner.TestbedObserved, settings: Settings, now: float) -> Plan:
        return planner.plan(observed, settings, now)

    async def ask(self, context: Context, observed: planner.TestbedObserved, ask: Ask) -> None:
        raise LocalProtocolError(f"a Testbed asks nothing of anybody, got {ask.what!r}")


async def _job(context: Context, pods: Any, secret: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """None: there is nobody to ask, or no answer."""
    views = [view(pod) for pod in pods]
    jobmanager = next((v for v in views if v.process == objects.JOBMANAGER and v.alive and v.address), None)
    if jobmanager is None or jobmanager.phase != "Running" or secret is None:
        return None
    token = base64.b64decode((secret.get("data") or {}).get("token", "")).decode().strip()
    return await context.jobs.job(jobmanager.address, token)


HANDLER: Handler = TestbedHandler()
