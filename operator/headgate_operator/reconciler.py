"""Reconcile one key once: observe, plan, write the status, execute the actions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, assert_never

from msgspec.structs import replace

from headgate_operator.handler import Context, Handler
from headgate_operator.plan import conditions
from headgate_operator.plan.model import (
    Action,
    Apply,
    Ask,
    Create,
    Delete,
    Emit,
    Key,
    Patch,
    Plan,
    SetFinalizers,
    finalizers_patch,
)
from headgate_operator.queue import NotNow
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.refusals import NOT_ADMITTED, QUOTA_EXCEEDED, TERMINATING, Refusal, refusal_of
from testbed_runtime.api.status import COMPLETE, Status, read, to_json
from testbed_runtime.api.views import Resource
from testbed_runtime.kube.api import ApiError

CONFLICT_PAUSE_S = 0.2
"""Pause after a conflict, because the object has changed meanwhile: it is read and planned for again at once."""
STALLED, READY = "Stalled", "Ready"
STALLED_REASON = "ReconcileFailed"
NO_RIGHTS = "is forbidden: User"
"""Part of the API server's message (403) about a missing permission of the operator's account."""
NO_RIGHTS_HINT = (
    "the operator has no rights in this namespace: add it to rbac.testbedNamespaces of the chart, or bind "
    "the ClusterRole that ends in -acts to the operator's account there"
)
NO_RIGHT_IN_ROLE_HINT = (
    "the operator's Role in this namespace is older or was changed: repeat `helm upgrade`, or, with "
    "rbac.create=false, apply helm/headgate/files/rules"
)
"""The hint of an operator that is limited to namespaces. One whose Role is missing could not report it."""
FAILING = {STALLED_REASON, NOT_ADMITTED, QUOTA_EXCEEDED}

log = logging.getLogger("headgate.reconcile")


class Reconciler:
    """Provides `reconcile` and `stalled` for a KeyedQueue."""

    def __init__(self, context: Context, handlers: Mapping[str, Handler]) -> None:
        self._context = context
        self._handlers = handlers

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile a key. Returns the seconds until the next time, or None to wait for an event. Raises any error."""
        try:
            return await self._once(self._handlers[key.kind], key)
        except ApiError as error:
            if error.conflict:
                return CONFLICT_PAUSE_S
            if is_terminating(error):
                raise NotNow from error
            found = refusal_of(error.text)
            if NO_RIGHTS in error.text:
                wide = self._context.settings.cluster_wide
                found = Refusal(NO_RIGHTS_HINT if wide else NO_RIGHT_IN_ROLE_HINT)
            if found is not None:  # a user has to act, so report it at once
                await self.stalled(key, f"{error}; {found.hint}", reason=found.reason)
            raise

    async def _once(self, handler: Handler, key: Key) -> float | None:
        try:
            observed = await handler.observe(self._context, key)
            if observed is None:
                return None
            plan = handler.plan(observed, self._context.settings, self._context.now())
            await self._execute(handler, observed, plan)
        except Exception:
            self._context.recent.forget(key.namespace)  # an outdated object may be the cause
            raise
        return plan.requeue_after_s

    async def stalled(self, key: Key, text: str, *, reason: str = STALLED_REASON) -> None:
        """Write Stalled=True with the error text, unless this is known, or the object is Stalled with a more exact reason. An object that
        is not Ready gets the same reason, which `kubectl get` shows. A finished one keeps its result."""
        obj = await self._context.cluster.get(key.kind, key.namespace, key.name)
        if obj is None:
            return
        before = status_of(obj)
        if reason == STALLED_REASON and _failing(before) not in {"", STALLED_REASON}:
            return
        wanted = conditions.yes(STALLED, reason, text)
        finished = before.phase == COMPLETE
        ready = [] if finished or before.is_true(READY) else [conditions.no(READY, reason, text)]
        status = conditions.merged(Resource(obj), before, [wanted, *ready], self._context.now())
        status = status if finished else replace(status, message=text)
        # compare this condition only: the others may be in another order
        if status.condition(STALLED) != before.condition(STALLED):
            await self._context.cluster.set_status(obj, to_json(status))
            await self._context.cluster.event(obj, type="Warning", reason=STALLED, text=text)

    async def _execute(self, handler: Handler, observed: Any, plan: Plan) -> None:
        before = status_of(observed.object)
        # a plan was made, so the last failure is over
        status = recovered(plan.status, Resource(observed.object), before, self._context.now())
        obj = await self._write(observed.object, still_failing(status, before))
        for action in plan.actions:
            if obj is None:
                return
            obj = await self._act(handler, observed, obj, action)
        if obj is not None and _failing(before):
            await self._write(obj, status)

    async def _write(self, obj: Mapping[str, Any], status: Status | None) -> Mapping[str, Any] | None:
        if status is None or (written := to_json(status)) == (obj.get("status") or {}):
            return obj
        return await self._context.cluster.set_status(obj, written)

    async def _act(
        self, handler: Handler, observed: Any, obj: Mapping[str, Any], action: Action
    ) -> Mapping[str, Any] | None:
        """Execute an action. Returns the reconciled object as it is afterwards, or None if it no longer exists."""
        cluster = self._context.cluster
        _log(Resource(obj), action)
        match action:
            case Apply(manifest):
                await cluster.apply(manifest)
                written = Resource(manifest)
                self._context.recent.drop(written.kind, written.namespace, written.name)
            case Create(manifest):
                await cluster.create(manifest)
            case Delete(kind, namespace, name, uid, grace_s):
                await cluster.delete(kind, namespace, name, uid=uid, grace_s=grace_s)
                self._context.recent.drop(kind, namespace, name)
            case Patch(kind, namespace, name, patch):
                await cluster.patch(kind, namespace, name, patch)
                self._context.recent.drop(kind, namespace, name)
            case Emit(type_, reason, text):
                await self._emit(obj, type_, reason, text)
            case Ask():
                await handler.ask(self._context, observed, action)
            case SetFinalizers(finalizers):
                return await self._set_finalizers(obj, finalizers)
            case _:
                assert_never(action)
        return obj

    async def _emit(self, obj: Mapping[str, Any], type_: str, reason: str, text: str) -> None:
        """Write an Event. A refused one does not fail the reconcile."""
        try:
            await self._context.cluster.event(obj, type=type_, reason=reason, text=text)
        except ApiError as error:
            if not is_terminating(error):
                log.info("an Event was refused", extra={"reason": reason, "error": str(error)})

    async def _set_finalizers(
        self, obj: Mapping[str, Any], finalizers: tuple[str, ...]
    ) -> Mapping[str, Any] | None:
        of = Resource(obj)
        return await self._context.cluster.patch(
            of.kind, of.namespace, of.name, finalizers_patch(of, finalizers)
        )


def is_terminating(error: ApiError) -> bool:
    """Whether a request was refused because its namespace is being deleted."""
    return error.forbidden and TERMINATING in error.text


def _log(of: Resource, action: Action) -> None:
    """Log an action with the object that it is for. Events contain phases, effects and verdicts."""
    key, target = Key(of.kind, of.namespace, of.name), (of.kind, of.name)
    what = type(action).__name__.lower()
    match action:
        case Emit(type_, reason, text):
            log.info("event", extra={"key": key, "reason": reason, "text": text, "type": type_})
            return
        case Apply(manifest) | Create(manifest):
            target = Resource(manifest).kind, Resource(manifest).name
        case Delete(kind, _, name) | Patch(kind, _, name):
            target = kind, name
        case Ask():
            what = action.what
        case SetFinalizers(finalizers):
            what = f"set finalizers [{', '.join(finalizers)}]"
    log.info("action", extra={"key": key, "action": what, "target": " ".join(target)})


def status_of(obj: Mapping[str, Any]) -> Status:
    return read(CUSTOM_RESOURCES[obj["kind"]].status, obj.get("status"))


def _failing(status: Status) -> str:
    """Return the reason of Stalled if the last reconcile failed, else an empty text."""
    found = status.condition(STALLED)
    return found.reason if found is not None and found.is_true and found.reason in FAILING else ""


def still_failing(status: Status | None, before: Status) -> Status | None:
    """Return the status with the conditions that report the failure unchanged, so that they do not flap while this attempt may still fail."""
    reason = _failing(before)
    if status is None or not reason:
        return status
    kept = {
        c.type: replace(c, observed_generation=status.observed_generation)
        for c in before.conditions
        if c.type == STALLED or (c.type == READY and c.reason == reason)
    }
    listed = tuple(kept.get(c.type, c) for c in status.conditions)
    return replace(status, conditions=listed, message=before.message)


def recovered(status: Status | None, obj: Resource, before: Status, now: float) -> Status | None:
    """Return the status with Stalled=False if reconciling had failed, else the status unchanged."""
    current, failure = before if status is None else status, before.condition(STALLED)
    if _failing(before) and failure is not None and current.message == failure.message:
        status = current = replace(current, message="")
    if not _failing(current):
        return status
    wanted = conditions.no(STALLED, "Recovered", "reconciling works again")
    return conditions.merged(obj, current, [wanted], now)
