"""The interface of a kind's handler: it observes, its planner decides, the reconciler acts. `handlers.table()` lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct, field

from headgate_operator.agents import Agents, Jobs
from headgate_operator.plan.model import Ask, Key, Plan
from headgate_operator.recent import Recent
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.views import Resource
from testbed_runtime.core.errors import LocalProtocolError
from testbed_runtime.kube.api import Api, ApiError

R = TypeVar("R", bound=Resource)


class Context(Struct, frozen=True):
    """The context in which handlers act. `now`: seconds since the epoch. `entropy`: a new token (hexadecimal, 256 bits).
    `certificate`: a new private key with its certificate (PEM); making one takes about 0.1 s."""

    cluster: Api
    settings: Settings
    jobs: Jobs
    agents: Agents
    now: Callable[[], float]
    entropy: Callable[[], str]
    certificate: Callable[[], bytes]
    claims: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    """Faults that were planned here, until the status is seen in the cluster: two workers must not plan conflicting faults."""

    recent: Recent = field(default_factory=Recent)

    async def find(self, view: type[R], kind: str, namespace: str | None, name: str) -> R | None:
        """Read an object. Returns None if it does not exist."""
        found = await self.recent.read(
            (kind, namespace or "", name), lambda: self.cluster.get(kind, namespace, name)
        )
        return None if found is None else view(found)

    async def recall(
        self, view: type[R], kind: str, namespace: str, name: str, *, trusted: Callable[[R], bool]
    ) -> R | None:
        """Return an object as it was within the last RECENT_S seconds, if it is remembered and `trusted` accepts it. Otherwise read it."""
        known = self.recent.find((kind, namespace, name))
        if known is not None and trusted(found := view(known)):
            return found
        return await self.find(view, kind, namespace, name)

    async def namespace(self, name: str) -> Resource | None:
        """Read a namespace. Returns None also without permission to read it."""
        try:
            return await self.find(Resource, "Namespace", None, name)
        except ApiError as error:
            if error.forbidden:
                return None
            raise

    async def is_ending(self, namespace: str) -> bool:
        """Return whether a namespace is being deleted, and with it every pod and every fault in it."""
        found = await self.namespace(namespace)
        return found is not None and found.terminating


class Handler:
    """The handler of one kind. Handlers are stateless: everything that must be remembered is in the object's status."""

    kind: str

    async def observe(self, context: Context, key: Key) -> Any | None:
        """Read what the planner needs. Return it as a frozen value with the object's JSON as `object`, or None if the object is gone."""
        raise NotImplementedError

    def plan(self, observed: Any, settings: Settings, now: float) -> Plan:
        """Decide what to do. Pure. `plan.status` is the whole status."""
        raise NotImplementedError

    async def ask(self, context: Context, observed: Any, ask: Ask) -> None:
        """Carry out an Ask. If it raises, the key is retried with backoff."""
        raise LocalProtocolError(f"a {self.kind}'s plan cannot contain the call {ask.what!r}")


def keys_of(obj: Mapping[str, Any]) -> tuple[Key, ...]:
    """Return the keys to reconcile when this object changes: the object itself and the owners named in its labels."""
    found = Resource(obj)
    keys = []
    if obj.get("apiVersion") == naming.API_VERSION and obj.get("kind") in CUSTOM_RESOURCES:
        keys.append(Key(found.kind, found.namespace, found.name))
    for kind, declared in CUSTOM_RESOURCES.items():
        if declared.label and (owner := found.labels.get(declared.label)):
            keys.append(Key(kind, found.namespace, owner))
    return tuple(dict.fromkeys(keys))
