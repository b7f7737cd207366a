"""What kopf is for: it watches, and each event puts keys into the queue. Nothing of kopf's is ever written to an object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import kopf

from headgate_operator.leader import LEASE_API, LEASE_NAME
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.kube.api import WATCH_SERVER_LIMIT_S

CONNECT_LIMIT_S = 10.0
BATCH_WINDOW_S = 0.02
"""Events of one object that come closer together are one to the queue, which is all they are needed for."""


def registry(kinds: Iterable[str], told: Callable[[str | None, Mapping[str, Any]], None]) -> Any:
    """kopf's handlers: `told(type, object)` for our kinds, our pods and config maps, and the operator's Lease. Types are None (in a
    list), ADDED, MODIFIED, DELETED."""
    handlers = kopf.OperatorRegistry()
    kopf.on.login(registry=handlers)(kopf.login_via_client)

    async def tell(event: Any, **_: Any) -> None:
        told(event["type"], event["object"])

    for kind in kinds:
        kopf.on.event(naming.GROUP, naming.VERSION, naming.PLURALS[kind], registry=handlers)(tell)
    kopf.on.event("v1", "pods", registry=handlers)(tell)
    kopf.on.event("v1", "configmaps", registry=handlers)(tell)
    group, _, version = LEASE_API.partition("/")
    kopf.on.event(group, version, "leases", registry=handlers)(tell)
    return handlers


def kopf_settings() -> Any:
    """No finalizer, no annotation, no Event, no peering of kopf's; the API server filters."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.watching.server_timeout = WATCH_SERVER_LIMIT_S
    settings.watching.client_timeout = WATCH_SERVER_LIMIT_S + CONNECT_LIMIT_S
    settings.watching.connect_timeout = CONNECT_LIMIT_S
    settings.queueing._batch_window = BATCH_WINDOW_S  # noqa: SLF001 - its public name is deprecated
    ours = f"{naming.LABEL_MANAGED_BY}={naming.MANAGED_BY}"
    settings.watching.label_selectors["v1", "pods"] = ours
    settings.watching.label_selectors["v1", "configmaps"] = ours
    settings.watching.field_selectors["leases"] = f"metadata.name={LEASE_NAME}"
    return settings


async def watch(handlers: Any, settings: Settings) -> None:
    """Until the process is told to end (SIGTERM), or cancelled."""
    await kopf.operator(
        registry=handlers,
        settings=kopf_settings(),
        standalone=True,
        clusterwide=settings.cluster_wide,
        namespaces=settings.namespaces,
    )
