"""The operator's process: log in, serve health, list, become the leader, then watch and reconcile until SIGTERM.

An API server that cannot be reached never ends the process: a lost Lease or a watch that fails ends a term, and the next begins."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from headgate_operator import handlers, logs, watching, webhook
from headgate_operator.agents import Agents, Jobs
from headgate_operator.exposition import process_lines
from headgate_operator.handler import Context, Handler, keys_of
from headgate_operator.health import Health, Metrics, Pages, application
from headgate_operator.leader import LEASE_NAME, Leader, LeaseLost
from headgate_operator.plan.model import Key, finalizers_patch
from headgate_operator.population import Population
from headgate_operator.queue import KeyedQueue
from headgate_operator.reconciler import Reconciler
from headgate_operator.settings import Settings, from_environment
from testbed_runtime.api import naming
from testbed_runtime.api.certificates import make_certificate
from testbed_runtime.api.views import Resource
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.verdict import EXIT_ERROR
from testbed_runtime.http import serve
from testbed_runtime.kube.api import DELETED, ApiError, connect

RESYNC_S = 300.0
"""Interval in which every object is listed and reconciled again, in case of lost events and to check that the watches deliver."""
TOKEN_BYTES = 32
LIST_RETRY_S = 2.0
NO_KINDS = "install the custom resource definitions: crds.install=true in one Helm release, or manifests/crds"
ADMISSION_EVERY_S = 15.0
"""How often the operator checks whether a namespace that refused it admits it now."""
NEXT_TERM_S = 2.0
"""Pause after a term that ended by an error."""
CONNECTIONS_BESIDE = 8
"""Connections to the API server in addition to one for each worker. The renewal of the Lease must not wait for a worker's request."""

log = logging.getLogger("headgate.operator")


class WatchFailed(HeadgateError):
    """The watches ended with an error, for example because the API server was unreachable for a minute."""


class NamespacesChanged(HeadgateError):
    """A namespace began or ceased to admit the operator: the watches begin again with the namespaces that admit it now."""


def clock() -> float:
    """Return seconds since the epoch."""
    return datetime.now(UTC).timestamp()


class Operator:
    """Queue, reconciler and health, without kopf. kopf or a test passes every watch event to `on_event`."""

    def __init__(
        self, context: Context, table: Mapping[str, Handler], metrics: Metrics | None = None
    ) -> None:
        self.kinds = tuple(table)
        self.metrics = metrics or Metrics()
        self.population = Population()
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
        self.refused: frozenset[str] = frozenset()
        """Namespaces of the settings that refused the last list, for example deleted namespaces, whose Roles are gone too."""
        self._requested: dict[tuple[str, str], tuple[int, str | None, str | None]] = {}
        """The generation and annotations that the user last set, by (kind, path)."""

    def on_event(self, type_: str | None, obj: Mapping[str, Any]) -> None:
        """Handle a watch event: queue the keys that it concerns."""
        found, gone = Resource(obj), type_ == DELETED
        kind = str(obj.get("kind"))
        if kind in self.kinds or (kind == "Lease" and found.namespace == self._context.settings.namespace):
            self.health.delivered(kind, found.path, found.resource_version, gone=gone)
        if kind in self.kinds:
            self.population.seen(obj, self._context.now(), gone=gone)
        self._context.recent.on_event(obj, gone=gone)
        for key in keys_of(obj):
            if key.kind in self.kinds:
                itself = key == Key(kind, found.namespace, found.name)
                self.queue.add(key, fresh=itself and self._is_new(kind, found, gone=gone))

    def _is_new(self, kind: str, found: Resource, *, gone: bool) -> bool:
        """Return whether a user changed the spec or an annotation since the last event, or the object was deleted."""
        key = kind, found.path
        if gone:
            self._requested.pop(key, None)
            return True
        requested = (
            found.generation,
            found.annotations.get(naming.ANNOTATION_HEAL),
            found.annotations.get(naming.ANNOTATION_SKIP_HEAL),
        )
        before = self._requested.get(key)
        self._requested[key] = requested
        return before is not None and before != requested

    def begin_term(self) -> None:
        """Forget all expectations, plans and objects of an earlier term: another replica may have acted since."""
        self.health.forget()
        self._context.claims.clear()
        self._context.recent.forget()

    @property
    def served(self) -> tuple[str, ...]:
        """The namespaces of the settings that do not refuse the operator."""
        return tuple(n for n in self._context.settings.namespaces if n not in self.refused)

    @property
    def watched(self) -> tuple[str, ...]:
        """The kinds that are watched. The Lease is included only if the operator's own namespace, which contains it, is watched."""
        settings = self._context.settings
        own = settings.cluster_wide or settings.namespace in self.served
        return (*self.kinds, "Pod", "ConfigMap", *(("Lease",) if own else ()))

    async def list_all(self, now: float) -> None:
        """List and queue every object of Headgate's kinds. Raises ApiError, except when only some of the namespaces refuse the list."""
        refused: dict[str, str] = {}
        known, listed = {}, {}
        for kind in self.kinds:
            known[kind] = self.health.known(kind)
            listed[kind] = await self._list(kind, refused)
            self.health.listed(kind)
        # all kinds are listed first: a namespace that refuses one of them is not watched
        for kind, objects in listed.items():
            served = [found for found in map(Resource, objects) if found.namespace not in refused]
            for found in served:
                self.queue.add(Key(kind, found.namespace, found.name))
                self.health.expect(kind, found.path, found.resource_version, now)
            for name in self.health.gone(kind, known[kind], {found.path for found in served}):
                self.population.forget(kind, name)
                self._requested.pop((kind, name), None)
                key = Key(kind, *name.split("/", 1))
                if key.namespace not in refused:
                    self.queue.add(key, fresh=True)
        for namespace in refused.keys() - self.refused:
            extra = {"namespace": namespace, "error": refused[namespace]}
            log.warning("a namespace does not exist or refuses the operator; it is not served", extra=extra)
        self.refused = frozenset(refused)

    async def _list(self, kind: str, refused: dict[str, str]) -> list[Mapping[str, Any]]:
        """List a kind in every namespace, and add those that refuse to `refused`. Raises ApiError if all of them refuse."""
        namespaces = self._context.settings.namespaces
        found: list[Mapping[str, Any]] = []
        for namespace in namespaces or (None,):
            try:
                found += await self._context.cluster.list(kind, namespace)
            except ApiError as error:
                if namespace is None or not error.forbidden:
                    raise
                refused[namespace] = str(error)
                if len(refused) == len(namespaces):
                    raise
        return found

    async def first_list(self) -> None:
        """List until it succeeds. Without the CRDs or the permissions, this replica stays unready and logs why, each time the reason changes."""
        logged = ""
        while True:
            try:
                return await self.list_all(asyncio.get_running_loop().time())
            except ApiError as error:
                if (text := str(error)) != logged:
                    hint = {"hint": NO_KINDS} if error.not_found else {}
                    log.warning("the first list failed; trying again", extra={"error": text, **hint})
                    logged = text
                if error.not_found:
                    await self._release_deleted()
            await asyncio.sleep(LIST_RETRY_S)

    async def _release_deleted(self) -> None:
        """Remove Headgate's finalizer from deleted objects if there are no Testbeds any more: their pods end, and the faults with them. The
        definitions of the other kinds would otherwise be Terminating until someone removes the finalizers."""
        try:
            await self._list("Testbed", {})
        except ApiError as error:
            if not error.not_found:
                return
        else:
            return
        for kind in self.kinds:
            with contextlib.suppress(ApiError):  # its definition is gone too, or the object has just changed
                for found in map(Resource, await self._list(kind, {})):
                    if found.terminating and naming.FINALIZER in found.finalizers:
                        others = [f for f in found.finalizers if f != naming.FINALIZER]
                        patch = finalizers_patch(found, others)
                        await self._context.cluster.patch(kind, found.namespace, found.name, patch)
                        key = Key(kind, found.namespace, found.name)
                        log.info(
                            "finalizer removed, because Testbeds do not exist any more", extra={"key": key}
                        )

    async def resync(self) -> None:
        """List every RESYNC_S, forever. Raises NamespacesChanged."""
        while True:
            await asyncio.sleep(RESYNC_S)
            served = self.served
            try:
                await self.list_all(asyncio.get_running_loop().time())
            except ApiError as error:
                log.warning("a resync failed", extra={"error": str(error)})
            if self.served != served:
                raise NamespacesChanged(f"served now: {', '.join(self.served)}")

    async def wait_admitted(self) -> None:
        """Wait until a namespace that refused the operator admits it, then raise NamespacesChanged. Never returns."""
        while True:
            await asyncio.sleep(ADMISSION_EVERY_S)
            for namespace in sorted(self.refused):
                try:
                    for kind in self.kinds:
                        await self._context.cluster.list(kind, namespace)
                except ApiError:
                    continue
                raise NamespacesChanged(f"{namespace} admits the operator")


async def run(settings: Settings) -> None:
    """Run until SIGTERM."""
    settings = replace(settings, since=clock())
    connections = settings.workers + CONNECTIONS_BESIDE
    metrics = Metrics()
    async with connect(
        component="headgate-operator", connections=connections, on_answer=metrics.answered
    ) as cluster:
        context = Context(
            cluster,
            settings,
            Jobs(),
            Agents(),
            clock,
            lambda: secrets.token_hex(TOKEN_BYTES),
            lambda: make_certificate(datetime.now(UTC)),
        )
        operator = Operator(context, handlers.table(), metrics)
        leader = leader_for(operator, context)
        server = await _serve(operator, leader, settings)
        try:
            async with _webhook(settings, metrics):
                await lead(operator, leader, lambda: _watch(operator, settings))
        finally:
            await server.cleanup()


@contextlib.asynccontextmanager
async def _webhook(settings: Settings, metrics: Metrics) -> AsyncIterator[None]:
    """Serve the webhook during the block, if it has a certificate."""
    if not settings.webhook_folder:
        yield
        return
    serving = webhook.serve(Path(settings.webhook_folder), naming.WEBHOOK_PORT, metrics.reviewed)
    task = asyncio.create_task(serving, name="webhook")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _watch(operator: Operator, settings: Settings) -> None:
    """Watch until SIGTERM. kopf handles that signal while it runs, and does not restore the handler before it."""
    try:
        registered = watching.registry(operator.watched, operator.on_event)
        await watching.watch(registered, replace(settings, namespaces=operator.served))
    finally:
        _cancel_on_sigterm()


async def _run_until_sigterm(settings: Settings) -> None:
    """Run, and also end on SIGTERM while kopf does not run. PID 1 of a container would ignore the signal otherwise."""
    _cancel_on_sigterm()
    await run(settings)


def _cancel_on_sigterm() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def leader_for(operator: Operator, context: Context) -> Leader:
    """Return this replica's candidate for the Lease. The operator's health expects its renewals."""
    settings = context.settings

    def renewed(version: str) -> None:
        """Expect the renewal as a watch event, if this process watches its own namespace."""
        if "Lease" in operator.watched and leader.holding:
            name = f"{settings.namespace}/{LEASE_NAME}"
            operator.health.expect("Lease", name, version, asyncio.get_running_loop().time())

    leader = Leader(
        context.cluster,
        namespace=settings.namespace,
        identity=settings.identity,
        now=context.now,
        renewed=renewed,
    )
    return leader


async def lead(operator: Operator, leader: Leader, watch: Callable[[], Awaitable[None]]) -> None:
    """Reconcile whenever this replica holds the Lease, until `watch` returns (SIGTERM). Then release the Lease."""
    while True:
        await operator.first_list()
        await leader.acquire()
        operator.begin_term()  # the first list may be hours old if another replica was active
        try:
            await _term(operator, leader, watch)
        except (LeaseLost, WatchFailed, NamespacesChanged) as ended:
            leader.holding = False
            operator.metrics.interrupted()
            log.warning("reconciling is interrupted; it continues in a new term", extra={"error": str(ended)})
            await asyncio.sleep(NEXT_TERM_S)
        else:
            return await _release(leader)


async def _release(leader: Leader) -> None:
    try:
        await leader.release()
    except ApiError as error:
        log.warning("the Lease is not released and will expire", extra={"error": str(error)})


async def _term(operator: Operator, leader: Leader, watch: Callable[[], Awaitable[None]]) -> None:
    """Reconcile until the watches end. Raises LeaseLost, WatchFailed or NamespacesChanged; each ends all parts."""
    interruption: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(leader.hold(), name="lease"),
                group.create_task(operator.queue.run(), name="queue"),
                group.create_task(operator.resync(), name="resync"),
                group.create_task(operator.wait_admitted(), name="namespaces"),
            ]
            try:
                await watch()
            except Exception as error:  # kopf raises its own errors and those of aiohttp
                raise WatchFailed(f"{type(error).__name__}: {error}") from error
            for task in tasks:
                task.cancel()
    except* (LeaseLost, WatchFailed, NamespacesChanged) as ended:
        interruption = ended.exceptions[0]  # raised here, it would be in an exception group again
    if interruption is not None:
        raise interruption


async def _serve(operator: Operator, leader: Leader, settings: Settings) -> web.AppRunner:
    loop = asyncio.get_running_loop()
    info = {"version": _version(), "scope": "cluster" if settings.cluster_wide else "namespaces"}
    pages = Pages(
        alive=lambda: operator.health.stalled(loop.time()) if leader.holding else "",
        ready=lambda: operator.health.not_ready,
        metrics=lambda: page(operator, leading=leader.holding, info=info),
    )
    server, _ = await serve(application(pages), ("0.0.0.0", settings.health_port))  # noqa: S104 - probes come from the node
    return server


def page(operator: Operator, *, leading: bool, info: Mapping[str, str]) -> str:
    """Return the page of metrics. Only the active replica watches, so only it knows the objects."""
    own = operator.metrics.text(depth=operator.queue.depth, leader=leading, info=info)
    lines = [*(operator.population.lines(clock()) if leading else ()), *process_lines()]
    return own + "\n".join(lines) + "\n"


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("headgate")
    except PackageNotFoundError:
        return "unknown"


def main() -> int:
    """Run the operator. Exit codes: 0 stopped by SIGTERM, 2 an error."""
    try:
        settings = from_environment(os.environ)
        logs.configure(settings.log_level)
        asyncio.run(_run_until_sigterm(settings))
    except HeadgateError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return EXIT_ERROR
    except (KeyboardInterrupt, asyncio.CancelledError):
        log.info("stopped by a signal")
    return 0
