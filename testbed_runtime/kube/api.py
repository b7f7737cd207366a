"""The only caller of the API server in the project: the `kubernetes` client's connections, called in threads of their own.

Objects are JSON. What is harmless to ask twice is asked again after 429, 5xx and broken connections, within `patience_s`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube import paths
from testbed_runtime.kube.connection import Answer, Connection, Stream, Unreachable

CALLS = 16
"""Under way at once, unless told otherwise; more wait, so that one busy caller can not open hundreds of connections."""
WATCH_THREADS = 32
"""Watches at once: each blocks one thread while it waits for an event."""
CALL_LIMIT_S = 30.0
"""One request; the API server's own limit is 60 s, and a caller that waits longer than half of it has a problem."""
PATIENCE_S = 10.0
"""How long a call is repeated before its error is the caller's."""
FIRST_PAUSE_S = 0.2
"""Before the first repetition; doubled for each next one."""
LONGEST_PAUSE_S = 5.0
WATCH_SERVER_LIMIT_S = 60
"""The API server ends a watch after it, so a watch that nobody serves any more is noticed."""
WATCH_GRACE_S = 10.0
"""Silence beyond the server's limit after which a watch's connection is given up."""
CLOSE_LIMIT_S = 5.0
"""A call that takes longer ends with its process."""
LIST_PAGE = 500
"""Objects of one answer; the rest follows by `continue`."""
EVENT_NAME_SPACE = 200
"""Characters of the object's name that fit before the hash in an Event's name (253)."""
MAX_EVENT_TEXT = 1024
"""The API server refuses longer notes."""
RETRIED = frozenset({429, 500, 502, 503, 504})
GONE = 410
_NOT_YAML = re.compile("[\x7f-\x9f\ufeff\ufffe\uffff]")
_Items = list[dict[str, Any]]


class ApiError(HeadgateError):
    """What the API server refused, or that it was not reached (`status` 0, `reason` Unreachable)."""

    def __init__(self, status: int, reason: str, text: str, *, call: str = "") -> None:
        super().__init__(f"{call}: {status or ''} {reason}: {text}".replace(":  ", ": ").removeprefix(": "))
        self.status = status
        self.reason = reason
        self.text = text

    @property
    def conflict(self) -> bool:
        return self.status == 409

    @property
    def unreachable(self) -> bool:
        """Not reached, or not able to answer now: worth asking again later."""
        return self.status == 0 or self.status in RETRIED


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """`LISTED` for each object there at the start (and again after a break), then one `SYNCED`; then ADDED, MODIFIED, DELETED.

    What was deleted while the watch was broken has no DELETED: it is missing among the LISTED before the next SYNCED."""

    type: str
    object: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One call as RBAC sees it."""

    verb: str
    group: str
    resource: str
    """`pods`, `pods/eviction`."""
    namespace: str


@dataclass(frozen=True, slots=True)
class _Request:
    verb: str
    method: str
    path: str
    resource: str
    group: str
    namespace: str
    body: Any = None
    content_type: str = "application/json"
    safe: bool = True
    """Repeating it after a broken connection changes nothing more than doing it once."""


class Api:
    """`namespace` is the one of the login. Close it when done: `await api.close()`, or `async with`."""

    def __init__(
        self,
        connection: Connection,
        *,
        field_manager: str = naming.FIELD_MANAGER,
        component: str = "headgate",
        patience_s: float = PATIENCE_S,
        calls: int = CALLS,
        on_call: Callable[[Call], None] | None = None,
    ) -> None:
        self.namespace = connection.namespace
        self.server = connection.server
        self._connection = connection
        self._field_manager = field_manager
        self._component = component
        self._patience_s = patience_s
        self._on_call = on_call
        self._calls = ThreadPoolExecutor(calls, thread_name_prefix="kube-call")
        self._watches = ThreadPoolExecutor(WATCH_THREADS, thread_name_prefix="kube-watch")
        self._streams: set[Stream] = set()

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends watches; a call that is under way is waited for, not longer than CLOSE_LIMIT_S."""
        for stream in list(self._streams):
            stream.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT_S):
                for pool in (self._calls, self._watches):
                    await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
        self._connection.close()

    # ---- reading

    async def get(
        self, api_version: str, kind: str, namespace: str | None, name: str
    ) -> dict[str, Any] | None:
        """None: not found."""
        answer = await self._ask(_request("get", "GET", api_version, kind, namespace, name), missing=True)
        return None if answer is None else answer.object()

    async def list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: str = "",
    ) -> Sequence[dict[str, Any]]:
        """Of one namespace, or (None) of the whole cluster; every page."""
        return (await self._list(api_version, kind, namespace, labels, fields))[0]

    async def _list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None,
        labels: Mapping[str, str] | None,
        fields: str,
    ) -> tuple[_Items, str]:
        items: _Items = []
        following = ""
        while True:
            query = {
                "labelSelector": paths.selector(labels),
                "fieldSelector": fields,
                "limit": str(LIST_PAGE),
                "continue": following,
            }
            answer = await self._call(_request("list", "GET", api_version, kind, namespace, query=query))
            page = answer.json()
            items += [{"apiVersion": api_version, "kind": kind, **item} for item in page.get("items") or ()]
            following = page.get("metadata", {}).get("continue", "")
            if not following:
                return items, page.get("metadata", {}).get("resourceVersion", "")

    async def watch(
        self,
        api_version: str,
        kind: str,
        namespace: str | None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: str = "",
        server_limit_s: int = WATCH_SERVER_LIMIT_S,
    ) -> AsyncIterator[WatchEvent]:
        """Never ends by itself: lists, watches, and lists again when the thread of versions is lost. Raises ApiError for
        what repeating does not mend (Forbidden, no such kind)."""
        pause = FIRST_PAUSE_S
        version = ""
        while True:
            try:
                if not version:
                    items, version = await self._list(api_version, kind, namespace, labels, fields)
                    for item in items:
                        yield WatchEvent("LISTED", item)
                    yield WatchEvent("SYNCED", {})
                query = {
                    "watch": "1",
                    "labelSelector": paths.selector(labels),
                    "fieldSelector": fields,
                    "resourceVersion": version,
                    "timeoutSeconds": str(server_limit_s),
                    "allowWatchBookmarks": "true",
                }
                request = _request("watch", "GET", api_version, kind, namespace, query=query)
                async for event in self._stream(request, server_limit_s + WATCH_GRACE_S):
                    version = event.object.get("metadata", {}).get("resourceVersion", version)
                    pause = FIRST_PAUSE_S
                    if event.type != "BOOKMARK":
                        yield event
                pause = FIRST_PAUSE_S
            except ApiError as error:
                if error.status == GONE:
                    version = ""
                elif not error.unreachable:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _stream(self, request: _Request, silence_s: float) -> AsyncIterator[WatchEvent]:
        self._tell(request)
        loop = asyncio.get_running_loop()
        stream: Stream | None = None
        try:
            stream = await loop.run_in_executor(
                self._watches, self._connection.stream, request.path, silence_s
            )
            self._streams.add(stream)
            while True:
                line = await loop.run_in_executor(self._watches, stream.line)
                if line is None:
                    return
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error_of(event["object"], _named(request))
                yield WatchEvent(event["type"], event["object"])
        except Unreachable as error:
            if error.answer is not None:
                raise _refusal(error.answer, _named(request)) from error
            raise ApiError(0, "Unreachable", str(error), call=_named(request)) from error
        finally:
            if stream is not None:
                self._streams.discard(stream)
                stream.end()

    # ---- writing

    async def apply(self, manifest: Mapping[str, Any], *, force: bool = True) -> dict[str, Any]:
        """Server-side apply with this Api's field manager."""
        query = {"fieldManager": self._field_manager, "force": "true" if force else ""}
        request = _of(
            manifest,
            "patch",
            "PATCH",
            query=query,
            body=manifest,
            content_type="application/apply-patch+yaml",
        )
        return (await self._call(request)).object()

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        """None: one of that name is there already. With `generateName`, a broken connection is not asked again."""
        metadata = manifest["metadata"]
        request = _request(
            "create",
            "POST",
            manifest["apiVersion"],
            manifest["kind"],
            metadata.get("namespace"),
            query={"fieldManager": self._field_manager},
            body=manifest,
            safe="name" in metadata,
        )
        try:
            return (await self._call(request)).object()
        except ApiError as error:
            if error.status == 409 and error.reason == "AlreadyExists":
                return None
            raise

    async def delete(
        self,
        api_version: str,
        kind: str,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        grace_s: int | None = None,
    ) -> None:
        """In the background. Not found, or another uid: nothing happens."""
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        request = _request("delete", "DELETE", api_version, kind, namespace, name, body=options)
        try:
            await self._ask(request, missing=True)
        except ApiError as error:
            if not (uid and error.conflict):
                raise

    async def patch(
        self,
        api_version: str,
        kind: str,
        namespace: str | None,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> dict[str, Any] | None:
        """A JSON merge patch. None: not found."""
        request = _request(
            "patch",
            "PATCH",
            api_version,
            kind,
            namespace,
            name,
            subresource=subresource,
            query={"fieldManager": self._field_manager},
            body=patch,
            content_type="application/merge-patch+json",
        )
        answer = await self._ask(request, missing=True)
        return None if answer is None else answer.object()

    async def replace(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """PUT; the manifest's `resourceVersion` guards it: 409 raises ApiError with `conflict`."""
        query = {"fieldManager": self._field_manager}
        return (await self._call(_of(manifest, "update", "PUT", query=query, body=manifest))).object()

    async def set_status(self, obj: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any] | None:
        """The status subresource, whole; `resourceVersion` of `obj` guards it. None: the object is gone."""
        query = {"fieldManager": self._field_manager}
        body = {**obj, "status": status}
        request = _of(obj, "update", "PUT", subresource="status", query=query, body=body)
        answer = await self._ask(request, missing=True)
        return None if answer is None else answer.object()

    async def evict(self, namespace: str, pod: str, *, uid: str) -> None:
        """Asks for an eviction; a disruption budget that forbids it is an ApiError 429 after `patience_s`. Not found, or another
        uid: nothing happens."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        request = _request(
            "create", "POST", "v1", "Pod", namespace, pod, subresource="eviction", body=eviction
        )
        try:
            await self._ask(request, missing=True)
        except ApiError as error:
            if not error.conflict:
                raise

    async def event(self, obj: Mapping[str, Any], *, type: str, reason: str, text: str) -> None:  # noqa: A002
        """An Event on `obj`; the same again counts up as long as the first one is kept (an hour, usually)."""
        manifest = event_manifest(obj, type=type, reason=reason, text=text, component=self._component)
        if await self.create(manifest) is not None:
            return
        metadata = manifest["metadata"]
        there = await self.get("v1", "Event", metadata["namespace"], metadata["name"])
        if there is not None:
            again = {"count": int(there.get("count") or 1) + 1, "lastTimestamp": manifest["lastTimestamp"]}
            await self.patch("v1", "Event", metadata["namespace"], metadata["name"], again)

    # ---- calling

    async def _ask(self, request: _Request, *, missing: bool) -> Answer | None:
        try:
            return await self._call(request)
        except ApiError as error:
            if missing and error.status == 404:
                return None
            raise

    async def _call(self, request: _Request) -> Answer:
        """Asks until there is an answer that repeating would not change, or patience ends."""
        self._tell(request)
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                return await self._once(request)
            except ApiError as error:
                worth = error.status == 429 or (error.unreachable and request.safe)
                if not worth or loop.time() + pause > until:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _once(self, request: _Request) -> Answer:
        body = None if request.body is None else encoded(request.body)
        call = _named(request)
        try:
            answer = await asyncio.get_running_loop().run_in_executor(
                self._calls,
                self._connection.call,
                request.method,
                request.path,
                body,
                request.content_type,
                CALL_LIMIT_S,
            )
        except Unreachable as error:
            raise ApiError(0, "Unreachable", str(error), call=call) from error
        if answer.status >= 400:
            raise _refusal(answer, call)
        return answer

    def _tell(self, request: _Request) -> None:
        if self._on_call is not None:
            self._on_call(Call(request.verb, request.group, request.resource, request.namespace))


def encoded(body: Any) -> bytes:
    """JSON that is YAML, too, as which the API server reads what is applied: that knows no pairs of surrogates, and takes no control
    character that is not escaped."""
    text = json.dumps(body, ensure_ascii=False)
    return _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode(errors="replace")


def _request(  # noqa: PLR0917 - as the path is read
    verb: str,
    method: str,
    api_version: str,
    kind: str,
    namespace: str | None,
    name: str = "",
    *,
    subresource: str = "",
    query: Mapping[str, str] | None = None,
    body: Any = None,
    content_type: str = "application/json",
    safe: bool = True,
) -> _Request:
    plural = paths.resource(api_version, kind).plural
    return _Request(
        verb,
        method,
        paths.path(api_version, kind, namespace, name, subresource=subresource, query=query),
        f"{plural}/{subresource}" if subresource else plural,
        paths.group_of(api_version),
        namespace or "",
        body,
        content_type,
        safe,
    )


def _of(manifest: Mapping[str, Any], verb: str, method: str, **others: Any) -> _Request:
    metadata = manifest["metadata"]
    return _request(
        verb,
        method,
        manifest["apiVersion"],
        manifest["kind"],
        metadata.get("namespace"),
        metadata["name"],
        **others,
    )


def _named(request: _Request) -> str:
    return f"{request.verb} {request.path.partition('?')[0]}"


def _refusal(answer: Answer, call: str) -> ApiError:
    try:
        said = json.loads(answer.body)
        if isinstance(said, dict) and said.get("kind") == "Status":
            return _error_of({"code": answer.status, **said}, call)
    except ValueError:
        pass
    return ApiError(answer.status, "", answer.body.decode(errors="replace")[:1000], call=call)


def _error_of(status: Mapping[str, Any], call: str) -> ApiError:
    return ApiError(
        int(status.get("code") or 500), status.get("reason", ""), status.get("message", ""), call=call
    )


def event_manifest(
    obj: Mapping[str, Any],
    *,
    type: str,  # noqa: A002
    reason: str,
    text: str,
    component: str,
    now: datetime | None = None,
) -> dict[str, Any]:
    """The same object, reason and text have the same name: a repetition is a count."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace") or "default"
    digest = hashlib.sha256("\0".join((metadata.get("uid", ""), type, reason, text)).encode()).digest()
    suffix = base64.b32encode(digest[:10]).decode().lower()
    moment = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name'][:EVENT_NAME_SPACE]}.{suffix}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "name": metadata["name"],
            "namespace": metadata.get("namespace", ""),
            "uid": metadata.get("uid", ""),
        },
        "type": type,
        "reason": reason,
        "message": text[:MAX_EVENT_TEXT],
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
