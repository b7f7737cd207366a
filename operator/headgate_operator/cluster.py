"""The operator's view of an API server, implemented by `testbed_runtime.kube.api.Api` and by the tests' model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Cluster(Protocol):
    """Objects are JSON. Methods raise kube.api.ApiError when the API server refuses a request."""

    async def get(
        self, api_version: str, kind: str, namespace: str | None, name: str
    ) -> dict[str, Any] | None:
        """Return the object, or None if it does not exist."""

    async def list(
        self, api_version: str, kind: str, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[dict[str, Any]]: ...

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Apply on the server with Headgate's field manager."""

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the new object, or None if the name is taken."""

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
        """Delete an object. Does nothing if it does not exist or has another uid."""

    async def patch(
        self, api_version: str, kind: str, namespace: str | None, name: str, patch: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Send a JSON merge patch. Returns None if the object does not exist."""

    async def evict(self, namespace: str, pod: str, *, uid: str) -> None:
        """Evict a pod. A disruption budget that forbids it raises ApiError 429.

        Does nothing if the pod does not exist or has another uid."""

    async def set_status(self, obj: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any] | None:
        """Replace the status. `resourceVersion` of `obj` guards it: 409 raises ApiError."""

    async def event(self, obj: Mapping[str, Any], *, type: str, reason: str, text: str) -> None:  # noqa: A002
        """Write an Event about the object."""
