"""The operator's process: log in, serve health, list, become the leader, then watch and reconcile until the end."""

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
from headgate_operator.cluster import Cluster
from headgate_operator.handler import Context, Handler, keys_of
from headgate_operator.health import Health, Metrics, Pages, application
from headgate_operator.jobs import HttpJobs
from headgate_operator.leader import LEASE_NAME, Leader, LeaseLost
from headgate_operator.plan.model import Key
from headgate_operator.queue import KeyedQueue
from headgate_operator.reconciler import Reconciler
from headgate_operator.settings import Settings, from_environment
from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube.api import ApiError, connect

RESYNC_S = 300.0
"""Everything is looked at again: a guard against events that were lost, and the proof that watches tell what lists show."""
TOKEN_BYTES = 32
LIST_RETRY_S = 2.0
CONNECTIONS_BESIDE = 8
"""Connections to the API server beside one for each worker: the Lease's renewal must not wait for a worker's request."""
EXIT_ERROR = 2
EXIT_LEASE_LOST = 3

log = logging.getLogger("headgate.operator")


def clock() -> float:
    """Seconds since the epoch."""
    return datetime.now(UTC).timestamp()


class Operator:
    """Queue, reconciler and what was heard, without kopf: `told` is given every event, by kopf or by a test."""

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
        self._asked: dict[Key, tuple[int, str | None, str | None]] = {}

    def told(self, type_: str | None, obj: Mapping[str, Any]) -> None:
        """An event of a watch."""
        metadata, kind = obj["metadata"], str(obj.get("kind"))
        gone = type_ == "DELETED"
        if kind in self.kinds or (kind == "Lease" and metadata.get("namespace") == self._own_namespace):
            version = metadata.get("resourceVersion", "")
            self.health.heard(kind, _named(metadata), version, gone=gone)
        for key in keys_of(obj):
            if key.kind in self.kinds:
                itself = key == Key(kind, metadata.get("namespace", ""), metadata["name"])
                self.queue.add(key, fresh=itself and self._is_new(key, metadata, gone=gone))

    @property
    def _own_namespace(self) -> str:
        return self._context.settings.namespace

    def _is_new(self, key: Key, metadata: Mapping[str, Any], *, gone: bool) -> bool:
        """Something else is asked of it than when it was told of last (by its spec, or by an annotation), or it is to go."""
        if gone:
            self._asked.pop(key, None)
            return True
        annotations = metadata.get("annotations") or {}
        asked = (
            int(metadata.get("generation", 0)),
            annotations.get(naming.ANNOTATION_HEAL),
            annotations.get(naming.ANNOTATION_SKIP_HEAL),
        )
        before = self._asked.get(key)
        self._asked[key] = asked
        return before is not None and before != asked

    async def list_all(self, now: float) -> None:
        """Every object of ours: readiness, and what watches are to tell of. Raises ApiError."""
        for kind in self.kinds:
            names = []
            for namespace in self._context.settings.namespaces or (None,):
                for obj in await self._context.cluster.list(naming.API_VERSION, kind, namespace):
                    metadata = obj["metadata"]
                    names.append(_named(metadata))
                    self.queue.add(Key(kind, metadata["namespace"], metadata["name"]))
                    self.health.seen(kind, names[-1], metadata.get("resourceVersion", ""), now)
            self.health.gone(kind, names)
            self.health.listed(kind)

    async def first_list(self) -> None:
        """Until it is answered: without the CRDs or the rights this replica is not ready, and says why."""
        while True:
            try:
                return await self.list_all(asyncio.get_running_loop().time())
            except ApiError as error:
                log.warning("the first list was not answered", extra={"error": str(error)})
            await asyncio.sleep(LIST_RETRY_S)

    async def resync(self) -> None:
        """For ever, each RESYNC_S."""
        while True:
            await asyncio.sleep(RESYNC_S)
            try:
                await self.list_all(asyncio.get_running_loop().time())
            except ApiError as error:
                log.warning("a resync was not answered", extra={"error": str(error)})


def _named(metadata: Mapping[str, Any]) -> str:
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def context_of(cluster: Cluster, settings: Settings, jobs: Any, ports: Mapping[str, Any]) -> Context:
    return Context(cluster, settings, jobs, clock, lambda: secrets.token_hex(TOKEN_BYTES), ports)


async def run(settings: Settings) -> None:
    """Until SIGTERM. Raises LeaseLost when another replica is to act."""
    connections = settings.workers + CONNECTIONS_BESIDE
    async with (
        connect(component="headgate-operator", connections=connections) as cluster,
        HttpJobs() as jobs,
        handlers.ports(settings) as ports,
    ):
        operator = Operator(context_of(cluster, settings, jobs, ports), handlers.table())
        leader = _leader(cluster, settings, operator)
        server = await _serve(operator, leader, settings)
        try:
            await operator.first_list()
            await leader.acquire()
            operator.health.forget()  # of the first list, which may be hours ago where another replica acted
            await _lead(operator, leader, settings)
        finally:
            await server.cleanup()


async def _until_told(settings: Settings) -> None:
    """SIGTERM ends it while it waits for the Lease, too: as the first process of a container it would be ignored otherwise."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await run(settings)


def _leader(cluster: Cluster, settings: Settings, operator: Operator) -> Leader:
    told = settings.cluster_wide or settings.namespace in settings.namespaces

    def renewed(version: str) -> None:
        """Its renewal must come back by a watch, where this process watches its own namespace at all."""
        if told and leader.holding:
            name = f"{settings.namespace}/{LEASE_NAME}"
            operator.health.seen("Lease", name, version, asyncio.get_running_loop().time())

    leader = Leader(
        cluster, namespace=settings.namespace, identity=settings.identity, now=clock, renewed=renewed
    )
    return leader


async def _lead(operator: Operator, leader: Leader, settings: Settings) -> None:
    """Ends in order when kopf was told to end; an error of any part ends all."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(leader.hold(), name="lease"),
                group.create_task(operator.queue.run(), name="queue"),
                group.create_task(operator.resync(), name="resync"),
            ]
            await asyncio.sleep(0)  # every task of ours is there before kopf looks which ones are not its own
            await watching.watch(watching.registry(operator.kinds, operator.told), settings)
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
    """Exit codes: 0 ended in order, 2 could not go on, 3 the Lease was lost."""
    try:
        settings = from_environment(os.environ)
        logs.configure(settings.log_level)
        asyncio.run(_until_told(settings))
    except LeaseLost as error:
        log.warning("ends", extra={"error": str(error)})
        return EXIT_LEASE_LOST
    except HeadgateError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return EXIT_ERROR
    except (KeyboardInterrupt, asyncio.CancelledError):
        log.info("told to end")
    return 0
