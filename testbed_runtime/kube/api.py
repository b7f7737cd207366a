"""The project's only client of the Kubernetes API server: objects as JSON, on an aiohttp session of `kubernetes.aio`.

Requests that are safe to repeat are retried after 429, 5xx and broken connections, for at most `patience_s`, and any request after a 403
of a server that has just started.
Why the typed and dynamic clients of `kubernetes` are not used: docs/decisions/0008-kubernetes-client.md.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from msgspec import Struct

from testbed_runtime.api import naming
from testbed_runtime.api.resources import manifest, resource_type
from testbed_runtime.api.status import rfc3339
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube.connection import CONNECTIONS, Login, login, proxy_hint
from testbed_runtime.timeouts import polled, repeated

CALL_LIMIT_S = 30.0
"""One request. The API server's own limit is 60 s."""
CONNECT_LIMIT_S = 5.0
"""Opening a connection takes milliseconds when the server is up."""
PATIENCE_S = 10.0
"""How long a request is retried before its error is raised."""
FIRST_PAUSE_S = 0.2
"""Before the first retry; doubled for each further one."""
LONGEST_PAUSE_S = 5.0
WATCH_SERVER_LIMIT_S = 60
"""The API server closes a watch after this time, so it notices clients that are gone."""
WATCH_GRACE_S = 10.0
"""Silence beyond the server's limit after which a watch connection counts as broken."""
STARTING_S = 60.0
"""How long after an outage a user's lack of rights may be temporary: a server that has just started knows no roles yet."""
NO_RIGHT = ": User "
"""Part of the text of such a 403. Those of quotas and admission do not have it."""
LIST_PAGE = 500
"""Objects per page of a list."""
EVENT_NAME_SPACE = 200
"""Characters of the object's name that fit before the hash in an Event's name (253 in total)."""
MAX_EVENT_TEXT = 1024
"""The API server rejects longer notes."""
RETRIED = frozenset({429, 500, 502, 503, 504})
LISTED, SYNCED, DELETED = "LISTED", "SYNCED", "DELETED"
"""Types of a WatchEvent."""
GONE = 410
UNAUTHORIZED = 401
_NOT_YAML = re.compile("[\x7f-\x9f\ufeff\ufffe\uffff]")
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""Errors that mean that there is no usable answer. ValueError: a line of a watch was cut off or is too long."""
T = TypeVar("T")
_Items = list[dict[str, Any]]


class ApiError(HeadgateError):
    """The API server refused a request, or could not be reached (`status` 0, `reason` Unreachable)."""

    def __init__(self, status: int, reason: str, text: str, *, call: str = "") -> None:
        super().__init__(f"{call}: {status or ''} {reason}: {text}".replace(":  ", ": ").removeprefix(": "))
        self.status = status
        self.reason = reason
        self.text = text

    @property
    def conflict(self) -> bool:
        return self.status == 409

    @property
    def not_found(self) -> bool:
        """Whether the object, its kind or its namespace does not exist."""
        return self.status == 404

    @property
    def forbidden(self) -> bool:
        """Whether the account has no permission for the request, or admission refuses it."""
        return self.status == 403

    @property
    def unreachable(self) -> bool:
        """Whether the server could not be reached or cannot answer now, so that a later retry may succeed."""
        return self.status == 0 or self.status in RETRIED


class WatchEvent(Struct, frozen=True):
    """`LISTED` for each existing object (again after an interruption), then one `SYNCED`, then ADDED, MODIFIED and DELETED.

    An object that was deleted during an interruption gets no DELETED; it is missing from the LISTED before the next SYNCED."""

    type: str
    object: dict[str, Any]


class Call(Struct, frozen=True):
    """One request in RBAC's terms."""

    verb: str
    group: str
    resource: str
    """A resource such as `pods` or `pods/eviction`."""
    namespace: str


_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
"""The HTTP method of each RBAC verb."""


class _Request(Struct, frozen=True):
    verb: str
    kind: str
    namespace: str | None
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] | None = None
    body: Any = None
    content_type: str = "application/json"
    safe: bool = True
    """Whether sending the request twice has the same effect as sending it once."""

    @property
    def path(self) -> str:
        return path_of(self.kind, self.namespace, self.name, subresource=self.subresource)

    @property
    def call(self) -> Call:
        found = resource_type(self.kind)
        name = f"{found.plural}/{self.subresource}" if self.subresource else found.plural
        return Call(self.verb, found.group, name, self.namespace or "")

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


@asynccontextmanager
async def connect(
    *,
    kubeconfig: str = "",
    context: str = "",
    namespace: str = "",
    field_manager: str = naming.FIELD_MANAGER,
    component: str = "headgate",
    patience_s: float = PATIENCE_S,
    connections: int = CONNECTIONS,
    on_answer: Callable[[Call, int], None] = lambda *_: None,
) -> AsyncIterator[Api]:
    """Log in and yield the Api. `component` is named in Events. Raises LoginFailed.

    `on_answer` is notified of each answer's status (0: the server was not reached)."""
    credentials = await login(kubeconfig=kubeconfig, context=context, namespace=namespace)
    async with credentials.session(connections=connections) as session:
        yield Api(credentials, session, field_manager, component, patience_s, on_answer)


class Api:
    """Made by `connect`. `namespace` is the login's own."""

    def __init__(  # noqa: PLR0917 - only `connect` calls it
        self,
        credentials: Login,
        session: aiohttp.ClientSession,
        field_manager: str,
        component: str,
        patience_s: float,
        on_answer: Callable[[Call, int], None],
    ) -> None:
        self.namespace = credentials.namespace
        self.server = credentials.server
        self._login = credentials
        self._session = session
        self._field_manager = field_manager
        self._component = component
        self._patience_s = patience_s
        self._on_answer = on_answer
        self._unreachable_at = -STARTING_S

    # ---- reading

    async def get(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None:
        """Return the object, or None if it does not exist."""
        return await self._find(_Request("get", kind, namespace, name))

    async def list(
        self, kind: str, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[dict[str, Any]]:
        """Return every object of a namespace, or of the whole cluster (None)."""
        return (await self._list(kind, namespace, labels, ""))[0]

    async def _list(
        self, kind: str, namespace: str | None, labels: Mapping[str, str] | None, fields: str
    ) -> tuple[_Items, str]:
        """Return the objects and the resourceVersion from which to watch."""
        items: _Items = []
        following = ""
        while True:
            query = {
                "labelSelector": selector_of(labels),
                "fieldSelector": fields,
                "limit": str(LIST_PAGE),
                "continue": following,
            }
            page = await self._call(_Request("list", kind, namespace, query=query))
            items += [
                {"apiVersion": resource_type(kind).api_version, "kind": kind, **item}
                for item in page.get("items") or ()
            ]
            following = page.get("metadata", {}).get("continue", "")
            if not following:
                return items, page.get("metadata", {}).get("resourceVersion", "")

    async def watch(
        self,
        kind: str,
        namespace: str | None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: str = "",
        server_limit_s: int = WATCH_SERVER_LIMIT_S,
    ) -> AsyncIterator[WatchEvent]:
        """List, then watch without end; list again when the server no longer has the last seen version.

        Raises ApiError where retrying does not help (Forbidden, except right after an outage; unknown kind)."""
        pause = FIRST_PAUSE_S
        version = ""
        while True:
            try:
                if not version:
                    items, version = await self._list(kind, namespace, labels, fields)
                    for item in items:
                        yield WatchEvent(LISTED, item)
                    yield WatchEvent(SYNCED, {})
                query = {
                    "watch": "1",
                    "labelSelector": selector_of(labels),
                    "fieldSelector": fields,
                    "resourceVersion": version,
                    "timeoutSeconds": str(server_limit_s),
                    "allowWatchBookmarks": "true",
                }
                request = _Request("watch", kind, namespace, query=query)
                async for event in self._stream(request, server_limit_s + WATCH_GRACE_S):
                    version = event.object.get("metadata", {}).get("resourceVersion", version)
                    pause = FIRST_PAUSE_S
                    if event.type != "BOOKMARK":
                        yield event
                pause = FIRST_PAUSE_S
            except ApiError as error:
                if error.status == GONE:
                    version = ""
                elif not self._may_pass(error):
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _stream(self, request: _Request, silence_s: float) -> AsyncIterator[WatchEvent]:
        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT_S, sock_read=silence_s)
        try:
            async with await self._send(request, limit) as response:
                if response.status >= 400:
                    raise _refusal(response.status, await response.read(), request)
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error_of(event["object"], request)
                    yield WatchEvent(event["type"], event["object"])
        except _BROKEN as error:
            raise self._unreachable(error, request) from error

    # ---- writing

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Apply on the server with this Api's field manager, taking over fields of other managers."""
        query = {"fieldManager": self._field_manager, "force": "true"}
        content_type = "application/apply-patch+yaml"
        return await self._call(
            _about(manifest, "patch", query=query, body=manifest, content_type=content_type)
        )

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the new object, or None if the name is taken. With `generateName` it is not retried.

        A field that an older definition of Headgate's kinds does not know is refused. By default the API server would drop it."""
        metadata = manifest["metadata"]
        strict = {"fieldValidation": "Strict"} if manifest["apiVersion"] == naming.API_VERSION else {}
        request = _Request(
            "create",
            manifest["kind"],
            metadata.get("namespace"),
            query={"fieldManager": self._field_manager, **strict},
            body=manifest,
            safe="name" in metadata,
        )
        try:
            return await self._call(request)
        except ApiError as error:
            if error.conflict and error.reason == "AlreadyExists":
                return None
            raise

    async def delete(
        self, kind: str, namespace: str | None, name: str, *, uid: str = "", grace_s: int | None = None
    ) -> None:
        """Delete in the background. Does nothing if the object does not exist or has another uid."""
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        request = _Request("delete", kind, namespace, name, body=options)
        try:
            await self._find(request)
        except ApiError as error:
            if not (uid and error.conflict):
                raise

    async def patch(
        self, kind: str, namespace: str | None, name: str, patch: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Send a JSON merge patch. Returns the object, or None if it does not exist.

        A `resourceVersion` in the patch guards it: 409 raises ApiError with `conflict`."""
        query = {"fieldManager": self._field_manager}
        content_type = "application/merge-patch+json"
        return await self._find(
            _Request(
                "patch", kind, namespace, name,
                query=query, body=patch, content_type=content_type,
            )
        )  # fmt: skip

    async def set_status(self, obj: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any] | None:
        """Replace the status. `resourceVersion` of `obj` guards it. Returns None if the object does not exist."""
        query = {"fieldManager": self._field_manager}
        body = {**obj, "status": status}
        return await self._find(_about(obj, "update", subresource="status", query=query, body=body))

    async def evict(self, namespace: str, pod: str, *, uid: str) -> None:
        """Ask for an eviction. Does nothing if the pod does not exist or has another uid.

        A disruption budget that forbids it raises ApiError 429 after `patience_s`."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        request = _Request("create", "Pod", namespace, pod, subresource="eviction", body=eviction)
        try:
            await self._find(request)
        except ApiError as error:
            if not error.conflict:
                raise

    async def event(self, obj: Mapping[str, Any], *, type: str, reason: str, text: str) -> None:  # noqa: A002
        """Write an Event about `obj`. A repetition raises the count of the existing one."""
        manifest = event_manifest(obj, type=type, reason=reason, text=text, component=self._component)
        if await self.create(manifest) is not None:
            return
        metadata = manifest["metadata"]
        there = await self.get("Event", metadata["namespace"], metadata["name"])
        if there is not None:
            again = {"count": int(there.get("count") or 1) + 1, "lastTimestamp": manifest["lastTimestamp"]}
            await self.patch("Event", metadata["namespace"], metadata["name"], again)

    # ---- requests

    async def _find(self, request: _Request) -> dict[str, Any] | None:
        """Send a request about one object. Returns None if it does not exist."""
        try:
            return await self._call(request)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def _call(self, request: _Request) -> dict[str, Any]:
        """Send a request, and retry it while that may help and `patience_s` is not used up."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                answer = await self._once(request)
            except ApiError as error:
                self._on_answer(request.call, error.status)
                may_help = self._may_pass(error) and (request.safe or error.status in {403, 429})
                if not may_help or loop.time() + pause > until:
                    raise
            else:
                self._on_answer(request.call, 200)
                return answer
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _may_pass(self, error: ApiError) -> bool:
        """Return whether the same request may succeed later."""
        now = asyncio.get_running_loop().time()
        if error.unreachable and error.status != 429:  # which a running server answers
            self._unreachable_at = now
        starting = now - self._unreachable_at < STARTING_S
        return error.unreachable or (error.forbidden and NO_RIGHT in str(error) and starting)

    async def _once(self, request: _Request) -> dict[str, Any]:
        limit = aiohttp.ClientTimeout(total=CALL_LIMIT_S, sock_connect=CONNECT_LIMIT_S)
        try:
            async with await self._send(request, limit) as response:
                status, body = response.status, await response.read()
            answer: dict[str, Any] = json.loads(body) if status < 400 else {}
        except _BROKEN as error:
            raise self._unreachable(error, request) from error
        if status >= 400:
            raise _refusal(status, body, request)
        return answer

    async def _send(self, request: _Request, limit: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Send once, or twice if the credentials have expired. The caller closes the response."""
        response = await self._send_with_token(request, limit)
        if response.status == UNAUTHORIZED and self._login.renew is not None:
            response.release()
            await self._login.renew()
            response = await self._send_with_token(request, limit)
        return response

    async def _send_with_token(
        self, request: _Request, limit: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", **await self._login.headers()}
        body = None if request.body is None else encoded(request.body)
        if body is not None:
            headers["Content-Type"] = request.content_type
        return await self._session.request(
            _METHODS[request.verb],
            self.server + request.path,
            params={key: value for key, value in (request.query or {}).items() if value},
            data=body,
            headers=headers,
            timeout=limit,
            allow_redirects=False,
            server_hostname=self._login.configuration.tls_server_name,
        )

    def _unreachable(self, error: Exception, request: _Request) -> ApiError:
        text = f"{self.server}{proxy_hint(self.server)}: {type(error).__name__}: {error}"
        return ApiError(0, "Unreachable", text, call=str(request))


async def patiently(call: Callable[[], Awaitable[T]], *, limit_s: float, every_s: float) -> T:
    """Repeat a request while the API server is unreachable. Raises the last ApiError when `limit_s` leaves no time for another
    attempt."""
    return await repeated(
        call, lambda e: isinstance(e, ApiError) and e.unreachable, limit_s=limit_s, every_s=every_s
    )


async def polled_patiently(call: Callable[[], Awaitable[T]], *, limit_s: float, every_s: float) -> T:
    """Repeat a request until its answer is true, also while the API server is unreachable. Return the last answer."""
    return await polled(
        lambda: patiently(call, limit_s=limit_s, every_s=every_s), limit_s=limit_s, every_s=every_s
    )


def encoded(body: Any) -> bytes:
    """Encode as JSON that is also YAML, which is how the API server parses an apply.

    YAML has no surrogate pairs and takes control characters only when they are escaped."""
    text = json.dumps(body, ensure_ascii=False)
    return _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode(errors="replace")


def _about(manifest: Mapping[str, Any], verb: str, **others: Any) -> _Request:
    metadata = manifest["metadata"]
    return _Request(verb, manifest["kind"], metadata.get("namespace"), metadata["name"], **others)


def _refusal(code: int, body: bytes, request: _Request) -> ApiError:
    try:
        status = json.loads(body)
        if isinstance(status, dict) and status.get("kind") == "Status":
            return _error_of({"code": code, **status}, request)
    except ValueError:
        pass
    return ApiError(code, "", body.decode(errors="replace")[:1000], call=str(request))


def _error_of(status: Mapping[str, Any], request: _Request) -> ApiError:
    return ApiError(
        int(status.get("code") or 500), status.get("reason", ""), status.get("message", ""), call=str(request)
    )


def event_manifest(
    obj: Mapping[str, Any],
    *,
    type: str,  # noqa: A002
    reason: str,
    text: str,
    component: str,
) -> dict[str, Any]:
    """Return an Event whose name is derived from object, type, reason and text, so that a repetition finds it."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace") or "default"
    digest = hashlib.sha256("\0".join((metadata.get("uid", ""), type, reason, text)).encode()).digest()
    suffix = base64.b32encode(digest[:10]).decode().lower()
    moment = rfc3339(datetime.now(UTC).timestamp())
    return manifest(
        "Event",
        {"name": f"{metadata['name'][:EVENT_NAME_SPACE]}.{suffix}", "namespace": namespace},
        involvedObject={
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "name": metadata["name"],
            "namespace": metadata.get("namespace", ""),
            "uid": metadata.get("uid", ""),
        },
        type=type,
        reason=reason,
        message=text[:MAX_EVENT_TEXT],
        source={"component": component},
        reportingComponent=component,
        firstTimestamp=moment,
        lastTimestamp=moment,
        count=1,
    )


def path_of(kind: str, namespace: str | None, name: str = "", *, subresource: str = "") -> str:
    """Return for example `/api/v1/namespaces/x/pods/y/eviction`; `namespace` None is the whole cluster."""
    found = resource_type(kind)
    parts = ["apis" if found.group else "api", *found.api_version.split("/")]
    if found.namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (found.plural, name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def selector_of(labels: Mapping[str, str] | None) -> str:
    """Return a label selector. The value `*` only requires that the label exists."""
    return ",".join(key if value == "*" else f"{key}={value}" for key, value in (labels or {}).items())
