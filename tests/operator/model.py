"""A model of the API server: what the operator may rely on, and failures when a test asks for them. In memory, on any event loop.

Resource versions, uids, generations, owner references with garbage collection, finalizers, merge patches, server-side apply (good
enough: our fields are merged in), the status subresource, conflicts, watches. `latency_s` passes in each call.
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.resources import resource_type
from testbed_runtime.api.status import rfc3339, to_json
from testbed_runtime.kube.api import ApiError
from testbed_runtime.simulation.loop import PROCESS

Obj = dict[str, Any]
Address = tuple[str, str, str]
"""Kind, namespace, name."""
Watcher = Callable[[str, Obj], None]

NO_NODE = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available."
WITHOUT_GENERATION = frozenset({"ConfigMap", "Secret", "Event", "Lease", "Service"})


@dataclass
class ModelApi:
    """A model of `testbed_runtime.kube.api.Api`. `now`: seconds since the epoch."""

    now: Callable[[], float] = lambda: asyncio.get_running_loop().time()
    latency_s: float = 0.0
    objects: dict[Address, Obj] = field(default_factory=dict)
    watchers: list[Watcher] = field(default_factory=list)
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """Verb, kind, namespace/name: everything that was asked."""
    down: bool = False
    """Nothing is reached."""
    failing: list[tuple[Callable[[str, str, str], bool], ApiError]] = field(default_factory=list)
    """(verb, kind, name) → this error, for each call that matches."""
    closed: set[str] = field(default_factory=set)
    """Namespaces that refuse every request, as those do whose Roles are gone."""
    closed_kinds: set[tuple[str, str]] = field(default_factory=set)
    """(kind, namespace) that refuse every request, as where a Role does not name the kind."""
    events: list[tuple[str, str, str, str]] = field(default_factory=list)
    """Object's name, type, reason and text, in order."""
    _version: int = 0
    _uids: int = 0

    # ---- the methods of Api that the operator calls

    async def get(self, kind: str, namespace: str | None, name: str) -> Obj | None:
        await self._enter("get", kind, namespace, name)
        return self._copy((kind, namespace or "", name))

    async def list(
        self, kind: str, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[Obj]:
        await self._enter("list", kind, namespace, "")
        return [_copied(o) for o in self.select(kind, namespace, labels)]

    async def apply(self, manifest: Mapping[str, Any]) -> Obj:
        address = _address(manifest)
        await self._enter("apply", *address)
        there = self.objects.get(address)
        if there is None:
            return self._insert(manifest)
        wanted = {k: v for k, v in manifest.items() if k != "status"}
        return self._update(address, _applied(there, wanted))

    async def create(self, manifest: Mapping[str, Any]) -> Obj | None:
        address = _address(manifest)
        await self._enter("create", *address)
        return None if address in self.objects else self._insert(manifest)

    async def delete(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        grace_s: int | None = None,
    ) -> None:
        await self._enter("delete", kind, namespace, name)
        there = self.objects.get((kind, namespace or "", name))
        if there is not None and (not uid or there["metadata"]["uid"] == uid):
            self.remove((kind, namespace or "", name), graceful=kind == "Pod" and grace_s != 0)

    async def patch(
        self, kind: str, namespace: str | None, name: str, patch: Mapping[str, Any]
    ) -> Obj | None:
        await self._enter("patch", kind, namespace, name)
        there = self.objects.get((kind, namespace or "", name))
        if there is None:
            return None
        self._guard(there, (patch.get("metadata") or {}).get("resourceVersion"))
        return self._update((kind, namespace or "", name), _merged(there, patch))

    async def evict(self, namespace: str, pod: str, *, uid: str) -> None:
        await self._enter("evict", "Pod", namespace, pod)
        there = self.objects.get(("Pod", namespace, pod))
        if there is not None and there["metadata"]["uid"] == uid:
            self.remove(("Pod", namespace, pod), graceful=True)

    async def set_status(self, obj: Mapping[str, Any], status: Mapping[str, Any]) -> Obj | None:
        address = _address(obj)
        await self._enter("status", *address)
        there = self.objects.get(address)
        if there is None:
            return None
        self._guard(there, obj["metadata"].get("resourceVersion"))
        json.dumps(status)  # what is not JSON is not written
        written = (
            msgspec.convert(status, CUSTOM_RESOURCES[obj["kind"]].status)
            if obj["kind"] in CUSTOM_RESOURCES
            else None
        )
        assert written is None or to_json(written) == status, f"not the model of the CRD: {status}"
        return self._update(address, {**there, "status": _copied(dict(status))})

    async def event(self, obj: Mapping[str, Any], *, type: str, reason: str, text: str) -> None:  # noqa: A002
        await self._enter("event", "Event", obj["metadata"].get("namespace"), obj["metadata"]["name"])
        self.events.append((obj["metadata"]["name"], type, reason, text))

    # ---- for tests and models, at once and without calls being counted

    def put(self, manifest: Mapping[str, Any]) -> Obj:
        """As a user would: create, or replace the spec."""
        address = _address(manifest)
        if address not in self.objects:
            return self._insert(manifest)
        there = self.objects[address]
        return self._update(address, {**there, **{k: v for k, v in manifest.items() if k != "metadata"}})

    def change(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]) -> Obj:
        address = (kind, namespace, name)
        return self._update(address, _merged(self.objects[address], patch))

    def select(self, kind: str, namespace: str | None, labels: Mapping[str, str] | None = None) -> list[Obj]:
        """The objects themselves, by name."""
        return [
            o
            for (k, ns, _), o in sorted(self.objects.items())
            if k == kind and namespace in (None, ns) and _has(o, labels or {})
        ]

    def one(self, kind: str, namespace: str, name: str) -> Obj | None:
        return self.objects.get((kind, namespace, name))

    def remove(self, address: Address, *, graceful: bool = False) -> None:
        """Deletion: waits for finalizers (and, graceful, for the kubelet), then collects what it owned."""
        there = self.objects.get(address)
        if there is None:
            return
        if there["metadata"].get("finalizers") or graceful:
            if not there["metadata"].get("deletionTimestamp"):
                self._update(
                    address, _merged(there, {"metadata": {"deletionTimestamp": rfc3339(self.now())}})
                )
            return
        del self.objects[address]
        self._tell("DELETED", there)
        uid = there["metadata"]["uid"]
        for other, obj in list(self.objects.items()):
            if any(o["uid"] == uid for o in obj["metadata"].get("ownerReferences") or ()):
                self.remove(other, graceful=other[0] == "Pod")

    # ---- inside

    async def _enter(self, verb: str, kind: str, namespace: str | None, name: str) -> None:
        self.calls.append((verb, kind, f"{namespace or ''}/{name}"))
        await asyncio.sleep(self.latency_s)
        if self.down:
            raise ApiError(0, "Unreachable", "the model is down", call=f"{verb} {kind} {name}")
        if namespace in self.closed or (kind, namespace) in self.closed_kinds:
            raise ApiError(
                403, "Forbidden", f'{kind} is forbidden: User "operator" cannot {verb} it in {namespace}'
            )
        for matches, error in self.failing:
            if matches(verb, kind, name):
                raise error

    def _copy(self, address: Address) -> Obj | None:
        there = self.objects.get(address)
        return None if there is None else _copied(there)

    def _insert(self, manifest: Mapping[str, Any]) -> Obj:
        obj = _copied(dict(manifest))
        json.dumps(obj)
        self._uids += 1
        obj.pop("status", None)
        if obj.get("kind") == "Secret":
            obj["data"] = _encoded(obj.pop("stringData", {})) | (obj.get("data") or {})
        obj["metadata"] |= {"uid": f"uid-{self._uids}", "creationTimestamp": rfc3339(self.now())}
        if obj["kind"] not in WITHOUT_GENERATION:
            obj["metadata"]["generation"] = 1
        address = _address(obj)
        self.objects[address] = obj
        self._stamp(obj)
        self._tell("ADDED", obj)
        return _copied(obj)

    def _update(self, address: Address, obj: Obj) -> Obj:
        before = self.objects[address]
        if _plain(before) == _plain(obj):
            return _copied(before)
        obj = _copied(obj)
        if obj.get("spec") != before.get("spec") and "generation" in before["metadata"]:
            obj["metadata"]["generation"] = before["metadata"]["generation"] + 1
        self.objects[address] = obj
        self._stamp(obj)
        self._tell("MODIFIED", obj)
        leaving = obj["metadata"].get("deletionTimestamp") and not obj["metadata"].get("finalizers")
        if leaving and obj["kind"] != "Pod":
            self.remove(address)
        return _copied(obj)

    def _stamp(self, obj: Obj) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)

    def _guard(self, there: Obj, version: str | None) -> None:
        if version is not None and version != there["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")

    def _tell(self, type_: str, obj: Obj) -> None:
        for watcher in list(self.watchers):
            watcher(type_, _copied(obj))


def _copied(obj: Obj) -> Obj:
    """Return a deep copy. `copy.deepcopy` took two fifths of the tests of the operator."""
    made: Obj = pickle.loads(pickle.dumps(obj))
    return made


def _address(obj: Mapping[str, Any]) -> Address:
    assert obj["apiVersion"] == resource_type(obj["kind"]).api_version
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _has(obj: Obj, labels: Mapping[str, str]) -> bool:
    there = obj["metadata"].get("labels") or {}
    return all(k in there if v == "*" else there.get(k) == v for k, v in labels.items())


def _plain(obj: Obj) -> Obj:
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}}


def _encoded(data: Mapping[str, str]) -> dict[str, str]:
    return {k: base64.b64encode(v.encode()).decode() for k, v in data.items()}


def _merged(there: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, Mapping):
        return patch
    base = dict(there) if isinstance(there, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        else:
            base[key] = _merged(base.get(key), value)
    return base


def _applied(there: Any, wanted: Any) -> Any:
    """Our fields over what is there; maps are merged, lists are ours as a whole."""
    if isinstance(there, Mapping) and isinstance(wanted, Mapping):
        return {**there, **{k: _applied(there.get(k), v) for k, v in wanted.items()}}
    return wanted


def later(delay_s: float, call: Callable[..., Any], *args: Any) -> None:
    """A timer that belongs to the world: it outlives the process in whose call it was set."""
    context = contextvars.copy_context()
    context.run(PROCESS.set, "")
    asyncio.get_running_loop().call_later(delay_s, call, *args, context=context)


@dataclass
class Kubelet:
    """Gives pods an address, starts them, and ends those that are deleted. A test fails or holds what it likes."""

    api: ModelApi
    start_s: float = 1.0
    stop_s: float = 1.0
    held: Callable[[Obj], bool] = lambda _: False
    """Pods that never become ready."""
    nodes: bool = True
    """Whether there is a node for a new pod."""
    tokens: dict[str, str] = field(default_factory=dict)
    """Address of a pod → the token that its volume holds."""
    _secrets: dict[tuple[str, str], tuple[str, set[str]]] = field(default_factory=dict)
    """Immutable Secret (namespace, name) → its token, as it was first read, and the uids of the pods that mount it.

    The real kubelet reads an immutable Secret once, for as long as any pod on the node refers to its name."""
    _addresses: Iterator[int] = field(default_factory=lambda: iter(range(1, 10**6)))

    def attach(self) -> None:
        self.api.watchers.append(self._on)

    def _on(self, type_: str, obj: Obj) -> None:
        if obj["kind"] != "Pod" or type_ == "DELETED":
            return
        address, uid = _address(obj), obj["metadata"]["uid"]
        if obj["metadata"].get("deletionTimestamp"):
            later(self.stop_s, self._end, address, uid)
        elif type_ == "ADDED":
            later(self.start_s, self._start, address, uid)

    def _there(self, address: Address, uid: str) -> Obj | None:
        obj = self.api.objects.get(address)
        return obj if obj is not None and obj["metadata"]["uid"] == uid else None

    def _start(self, address: Address, uid: str) -> None:
        obj = self._there(address, uid)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            return
        if not self.nodes:
            unscheduled = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": NO_NODE,
            }
            self.set(address, {"phase": "Pending", "conditions": [unscheduled]})
            return
        ready = "False" if self.held(obj) else "True"
        number = next(self._addresses)
        ip = f"10.0.{number // 250}.{number % 250}"
        self._mount(obj, ip)
        self.set(
            address,
            {
                "phase": "Running",
                "podIP": ip,
                "conditions": [{"type": "Ready", "status": ready}],
            },
        )

    def add_node(self) -> None:
        """Start the pods that waited for a node."""
        self.nodes = True
        for pod in self.api.select("Pod", None):
            if (pod.get("status") or {}).get("phase") == "Pending":
                later(self.start_s, self._start, _address(pod), pod["metadata"]["uid"])

    def _mount(self, pod: Obj, ip: str) -> None:
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        for volume in pod["spec"].get("volumes") or ():
            if volume["name"] != "token" or "secret" not in volume:
                continue
            name = volume["secret"]["secretName"]
            secret = self.api.one("Secret", namespace, name) or {}
            token = (secret.get("data") or {}).get("token", "")
            pods = {p["metadata"]["uid"] for p in self.api.select("Pod", namespace)}
            cached = self._secrets.get((namespace, name), ("", set()))
            token, users = cached if cached[1] & pods else (token, set())
            if secret.get("immutable"):
                self._secrets[namespace, name] = token, users | {uid}
            self.tokens[ip] = base64.b64decode(token).decode()

    def _end(self, address: Address, uid: str) -> None:
        if self._there(address, uid) is not None:
            self.api.remove(address)

    def set(self, address: Address, status: Obj) -> None:
        if address in self.api.objects:
            self.api._update(address, {**self.api.objects[address], "status": status})

    def fail(self, namespace: str, name: str, *, code: int = 137) -> None:
        """The pod's container ended, and its restartPolicy lets it."""
        ended = {"terminated": {"exitCode": code, "reason": "Error"}}
        self.set(
            ("Pod", namespace, name),
            {
                "phase": "Failed",
                "conditions": [{"type": "Ready", "status": "False"}],
                "containerStatuses": [{"name": "main", "state": ended}],
            },
        )

    def vanish(self, namespace: str, name: str) -> None:
        """Remove a pod at once, as after the loss of a node."""
        self.api.remove(("Pod", namespace, name))
