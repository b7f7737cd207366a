"""The operator's face of the API server. `KubernetesCluster` is the real one; tests have a model of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Cluster(Protocol):
    """Objects as JSON. Raises kube.api.ApiError (status, reason, text) for what the API server refuses."""

    async def get(
        self, api_version: str, kind: str, namespace: str | None, name: str
    ) -> dict[str, Any] | None:
        """None: not found."""

    async def list(
        self, api_version: str, kind: str, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[dict[str, Any]]: ...

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply with our field manager."""

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        """None: it is there already."""

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
        """Not found, or another uid: nothing happens."""

    async def patch(
        self, api_version: str, kind: str, namespace: str | None, name: str, patch: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """A JSON merge patch. None: not found."""

    async def evict(self, namespace: str, pod: str, *, uid: str) -> None:
        """By the eviction subresource; a budget that forbids it raises ApiError 429. Not found, or another uid: nothing happens."""

    async def set_status(self, obj: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any] | None:
        """The status subresource, whole; `resourceVersion` of `obj` guards it (409 raises ApiError)."""

    async def event(self, obj: Mapping[str, Any], *, type: str, reason: str, text: str) -> None:  # noqa: A002
        ...
