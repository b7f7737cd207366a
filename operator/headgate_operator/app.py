"""The operator's process: log in, serve health, list, become the leader, then watch and reconcile until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from headgate_operator import handlers, logs, watching
from headgate_operator.agents import HttpAgents, HttpJobs
from headgate_operator.cluster import Cluster
from headgate_operator.handler import Context, Handler, keys_of
from headgate_operator.health import Health, Metrics, Pages, application
from headgate_operator.leader import LEASE_NAME, Leader, LeaseLost
from headgate_operator.plan.model import Key
from headgate_operator.queue import KeyedQueue
from headgate_operator.reconciler import Reconciler
from headgate_operator.settings import Settings, from_environment
from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.verdict import EXIT_CODES, Verdict
from testbed_runtime.kube.api import ApiError, connect

RESYNC_S = 300.0
"""Every object is listed and reconciled again: against lost events, and to check that the watches deliver."""
TOKEN_BYTES = 32
LIST_RETRY_S = 2.0
CONNECTIONS_BESIDE = 8
"""Connections to the API server beside one for each worker: the Lease's renewal must not wait for a worker's request."""
EXIT_ERROR = EXIT_CODES[Verdict.ERROR]
EXIT_LEASE_LOST = 3

log = logging.getLogger("headgate.operator")


def clock() -> float:
    """Return seconds since the epoch."""
    return datetime.now(UTC).timestamp()


class Operator:
    """Queue, reconciler and health, without kopf. kopf or a test passes every watch event to `on_event`."""

    def __init__(self, context: Context, table: Mapping[str, Handler]) -> None:
        self.kinds = tuple(table)
        self.metrics = Metrics()
        self.health = Health((*self.kinds,))
        reconciler = Reconciler(context, table)
        self.queue = KeyedQueue(
            reconciler.reconcile,
            reconciler.stalled,
            workers=context.settings.workers,
            metrics=self.metrics,
            longest_retry_s=context.settings.longest_retry_s,
        )
        self._context = context
        self._requested: dict[Key, tuple[int, str | None, str | None]] = {}

    def on_event(self, type_: str | None, obj: Mapping[str, Any]) -> None:
        """Handle a watch event: queue the keys that it concerns."""
        metadata, kind = obj["metadata"], str(obj.get("kind"))
        gone = type_ == "DELETED"
        if kind in self.kinds or (kind == "Lease" and metadata.get("namespace") == self._own_namespace):
            version = metadata.get("resourceVersion", "")
            self.health.delivered(kind, _named(metadata), version, gone=gone)
        for key in keys_of(obj):
            if key.kind in self.kinds:
                itself = key == Key(kind, metadata.get("namespace", ""), metadata["name"])
                self.queue.add(key, fresh=itself and self._is_new(key, metadata, gone=gone))

    @property
    def _own_namespace(self) -> str:
        return self._context.settings.namespace

    def _is_new(self, key: Key, metadata: Mapping[str, Any], *, gone: bool) -> bool:
        """Return whether a user changed the spec or an annotation since the last event, or the object was deleted."""
        if gone:
            self._requested.pop(key, None)
            return True
        annotations = metadata.get("annotations") or {}
        requested = (
            int(metadata.get("generation", 0)),
            annotations.get(naming.ANNOTATION_HEAL),
            annotations.get(naming.ANNOTATION_SKIP_HEAL),
        )
        before = self._requested.get(key)
        self._requested[key] = requested
        return before is not None and before != requested

    async def list_all(self, now: float) -> None:
        """List and queue every object of Headgate's kinds. Raises ApiError."""
        for kind in self.kinds:
            names = []
            for namespace in self._context.settings.namespaces or (None,):
                for obj in await self._context.cluster.list(naming.API_VERSION, kind, namespace):
                    metadata = obj["metadata"]
                    names.append(_named(metadata))
                    self.queue.add(Key(kind, metadata["namespace"], metadata["name"]))
                    self.health.expect(kind, names[-1], metadata.get("resourceVersion", ""), now)
            self.health.retain(kind, names)
            self.health.listed(kind)

    async def first_list(self) -> None:
        """List until it succeeds. Without the CRDs or the permissions this replica stays unready and logs why."""
        while True:
            try:
                return await self.list_all(asyncio.get_running_loop().time())
            except ApiError as error:
                log.warning("the first list failed", extra={"error": str(error)})
            await asyncio.sleep(LIST_RETRY_S)

    async def resync(self) -> None:
        """List every RESYNC_S, forever."""
        while True:
            await asyncio.sleep(RESYNC_S)
            try:
                await self.list_all(asyncio.get_running_loop().time())
            except ApiError as error:
                log.warning("a resync failed", extra={"error": str(error)})


def _named(metadata: Mapping[str, Any]) -> str:
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


async def run(settings: Settings) -> None:
    """Run until SIGTERM. Raises LeaseLost when another replica takes over."""
    connections = settings.workers + CONNECTIONS_BESIDE
    async with connect(component="headgate-operator", connections=connections) as cluster:
        context = Context(
            cluster, settings, HttpJobs(), HttpAgents(), clock, lambda: secrets.token_hex(TOKEN_BYTES)
        )
        operator = Operator(context, handlers.table())
        leader = _leader(cluster, settings, operator)
        server = await _serve(operator, leader, settings)
        try:
            await operator.first_list()
            await leader.acquire()
            operator.health.forget()  # the first list may be hours old if another replica was active
            await _lead(operator, leader, settings)
        finally:
            await server.cleanup()


async def _run_until_sigterm(settings: Settings) -> None:
    """Run, and also end on SIGTERM before kopf handles it. PID 1 of a container would ignore the signal otherwise."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await run(settings)


def _leader(cluster: Cluster, settings: Settings, operator: Operator) -> Leader:
    watched = settings.cluster_wide or settings.namespace in settings.namespaces

    def renewed(version: str) -> None:
        """Expect the renewal as a watch event, if this process watches its own namespace."""
        if watched and leader.holding:
            name = f"{settings.namespace}/{LEASE_NAME}"
            operator.health.expect("Lease", name, version, asyncio.get_running_loop().time())

    leader = Leader(
        cluster, namespace=settings.namespace, identity=settings.identity, now=clock, renewed=renewed
    )
    return leader


async def _lead(operator: Operator, leader: Leader, settings: Settings) -> None:
    """Reconcile until kopf ends (SIGTERM), then release the Lease. An error of any part ends all of them."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(leader.hold(), name="lease"),
                group.create_task(operator.queue.run(), name="queue"),
                group.create_task(operator.resync(), name="resync"),
            ]
            await asyncio.sleep(0)  # start these tasks before kopf records which tasks are not its own
            await watching.watch(watching.registry(operator.kinds, operator.on_event), settings)
            for task in tasks:
                task.cancel()
    except* LeaseLost as lost:
        raise lost.exceptions[0] from None
    await leader.release()


async def _serve(operator: Operator, leader: Leader, settings: Settings) -> web.AppRunner:
    loop = asyncio.get_running_loop()
    info = {"version": _version(), "scope": "cluster" if settings.cluster_wide else "namespaces"}
    pages = Pages(
        alive=lambda: operator.health.stalled(loop.time()) if leader.holding else "",
        ready=lambda: operator.health.not_ready,
        metrics=lambda: operator.metrics.text(depth=operator.queue.depth, leader=leader.holding, info=info),
    )
    server = web.AppRunner(application(pages), access_log=None)
    await server.setup()
    await web.TCPSite(server, "0.0.0.0", settings.health_port).start()  # noqa: S104 - probes come from the node
    return server


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("headgate")
    except PackageNotFoundError:
        return "unknown"


def main() -> int:
    """Run the operator. Exit codes: 0 stopped by SIGTERM, 2 an error, 3 the Lease was lost."""
    try:
        settings = from_environment(os.environ)
        logs.configure(settings.log_level)
        asyncio.run(_run_until_sigterm(settings))
    except LeaseLost as error:
        log.warning("the Lease was lost", extra={"error": str(error)})
        return EXIT_LEASE_LOST
    except HeadgateError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return EXIT_ERROR
    except (KeyboardInterrupt, asyncio.CancelledError):
        log.info("stopped by a signal")
    return 0
