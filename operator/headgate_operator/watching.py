"""The operator's watches, which kopf runs. kopf writes nothing to any object.

docs/decisions/0008-kubernetes-client.md explains which parts of kopf are used and why the others are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import kopf

from headgate_operator.leader import LEASE_NAME
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.resources import resource_type
from testbed_runtime.kube.api import WATCH_SERVER_LIMIT_S

CONNECT_LIMIT_S = 10.0
STOP_LIMIT_S = 5.0
"""Limit for kopf's tasks to end after they were cancelled."""
WATCHER, PAUSE = "watcher for ", "pause-waiter for "
"""The names of kopf's tasks of a watch begin with these. The second outlives its watch until the garbage collector removes that."""
BATCH_WINDOW_S = 0.02
"""kopf passes on only the last of several events of one object within this time. The queue needs no more."""


def registry(kinds: Iterable[str], on_event: Callable[[str | None, Mapping[str, Any]], None]) -> Any:
    """Return kopf handlers that call `on_event(type, object)` for these kinds.

    The type is None for an object of the first list, else ADDED, MODIFIED or DELETED."""
    handlers = kopf.OperatorRegistry()
    kopf.on.login(registry=handlers)(kopf.login_via_client)

    async def handle(event: Any, **_: Any) -> None:
        on_event(event["type"], event["object"])

    for found in map(resource_type, kinds):
        kopf.on.event(found.api_version, found.plural, registry=handlers)(handle)
    return handlers


def kopf_settings() -> Any:
    """Turn off kopf's Events and peering, and let the API server filter what is watched."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None  # it would kill this process after a term that ended
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.watching.server_timeout = WATCH_SERVER_LIMIT_S
    settings.watching.client_timeout = WATCH_SERVER_LIMIT_S + CONNECT_LIMIT_S
    settings.watching.connect_timeout = CONNECT_LIMIT_S
    settings.queueing._batch_window = BATCH_WINDOW_S  # noqa: SLF001 - the public name is deprecated
    managed = f"{naming.LABEL_MANAGED_BY}={naming.MANAGED_BY}"
    settings.watching.label_selectors["v1", "pods"] = managed
    settings.watching.label_selectors["v1", "configmaps"] = managed
    settings.watching.field_selectors["leases"] = f"metadata.name={LEASE_NAME}"
    return settings


async def watch(handlers: Any, settings: Settings) -> None:
    """Watch until SIGTERM or until cancelled. Raises what kopf could not retry; it may be called again.

    `kopf.operator` is not used: it waits for all of its tasks before it raises the error of one. A watch whose request fails in that time
    waits forever for new credentials, because the task that provides them has ended."""
    own = kopf_settings()
    roots = await kopf.spawn_tasks(
        registry=handlers,
        settings=own,
        standalone=True,
        clusterwide=settings.cluster_wide,
        namespaces=settings.namespaces,
    )
    try:
        ended, _ = await asyncio.wait(roots, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping = asyncio.create_task(_stop_all(roots))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:  # the Lease is lost, too: kopf's tasks must end all the same
            await asyncio.wait({stopping})
            raise
        finally:
            own.execution.executor.shutdown(wait=False)  # kopf does not stop its threads
    for task in ended:
        task.result()


async def _stop_all(roots: Collection[asyncio.Task[Any]]) -> None:
    """Stop the watches first, because the end of the roots closes the connections."""
    await _stop(_named(WATCHER))
    await _stop(_named(PAUSE))
    await _stop(roots)


def _named(beginning: str) -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(beginning)]


async def _stop(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for at most STOP_LIMIT_S until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=STOP_LIMIT_S)
        for task in done:
            if not task.cancelled():
                task.exception()  # otherwise asyncio would report it as never retrieved
