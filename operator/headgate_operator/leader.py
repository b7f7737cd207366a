"""Leader election with a Lease: the active operator renews it, and stops reconciling when the Lease is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from testbed_runtime.api.resources import manifest
from testbed_runtime.api.views import Resource
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube.api import Api, ApiError

LEASE_NAME = "headgate-operator"
LEASE_S = 15
"""Another replica takes over after this time without a renewal."""
RENEW_S = 5.0
RENEW_LIMIT_S = 10.0
"""The holder stops acting after this time without a successful renewal. This is well before another replica may take over."""
RETRY_S = 2.0
"""Between attempts of a waiting replica, and between attempts of a renewal that failed."""

log = logging.getLogger("headgate.leader")


class LeaseLost(HeadgateError):
    """Another replica is active now, or will be soon: this process must stop acting."""


class Leader:
    """One candidate for the Lease.

    `now` returns seconds since the epoch for the Lease's fields. Expiry is not decided by these fields but by how long this
    process has seen no change, so the clocks of other machines do not matter."""

    def __init__(
        self,
        cluster: Api,
        *,
        namespace: str,
        identity: str,
        now: Callable[[], float],
        renewed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._identity = identity
        self._now = now
        self._renewed = renewed
        self._seen: tuple[str, float] = ("", 0.0)
        self.holding = False

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease. Errors of the API server are logged and retried."""
        while True:
            try:
                if await self._try():
                    self.holding = True
                    log.info("this replica is active", extra={"identity": self._identity})
                    return
            except ApiError as error:
                log.warning("the Lease could not be read or written", extra={"error": str(error)})
            await asyncio.sleep(RETRY_S)

    async def hold(self) -> None:
        """Renew the Lease until it is lost. Raises LeaseLost."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        pause = RENEW_S
        while True:
            await asyncio.sleep(pause)
            begun = loop.time()
            try:
                async with asyncio.timeout_at(last + RENEW_LIMIT_S):
                    renewed = await self._try()
            except (ApiError, TimeoutError) as error:
                if loop.time() - last >= RENEW_LIMIT_S - RETRY_S:
                    self.holding = False
                    reason = str(error) or "the API server does not answer"
                    raise LeaseLost(f"not renewed for {loop.time() - last:.0f} s: {reason}") from error
                pause = RETRY_S
                continue
            if not renewed:
                self.holding = False
                raise LeaseLost("another replica holds the Lease")
            last, pause = begun, RENEW_S

    async def release(self) -> None:
        """Give up the Lease, so that a waiting replica need not wait until it expires."""
        lease = await self._get()
        if self.holding and lease is not None and self._holder(lease) == self._identity:
            self.holding = False
            await self._patch(lease, {"holderIdentity": "", "leaseDurationSeconds": 1})

    async def _try(self) -> bool:
        """Acquire or renew the Lease. Returns False if another replica holds it or was faster."""
        lease = await self._get()
        if lease is None:
            metadata = {"name": LEASE_NAME, "namespace": self._namespace}
            created = await self._cluster.create(manifest("Lease", metadata, spec=self._spec(transitions=0)))
            return self._succeeded(created)
        transitions = int(lease["spec"].get("leaseTransitions") or 0)
        if self._holder(lease) == self._identity:
            return self._succeeded(await self._patch(lease, {"renewTime": self._moment()}))
        if not self._free(lease):
            return False
        return self._succeeded(await self._patch(lease, self._spec(transitions=transitions + 1)))

    async def _get(self) -> dict[str, Any] | None:
        return await self._cluster.get("Lease", self._namespace, LEASE_NAME)

    async def _patch(self, lease: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any] | None:
        """Change the Lease, or return None if it has changed since it was read."""
        patch = {"metadata": {"resourceVersion": Resource(lease).resource_version}, "spec": dict(spec)}
        try:
            return await self._cluster.patch("Lease", self._namespace, LEASE_NAME, patch)
        except ApiError as error:
            if error.conflict:
                return None
            raise

    def _succeeded(self, lease: Mapping[str, Any] | None) -> bool:
        if lease is None:
            return False
        self._renewed(Resource(lease).resource_version)
        return True

    def _free(self, lease: Mapping[str, Any]) -> bool:
        """Return whether the Lease has no holder, or was not renewed for its whole duration while this process watched."""
        if not self._holder(lease):
            return True
        version, now = Resource(lease).resource_version, asyncio.get_running_loop().time()
        if self._seen[0] != version:
            self._seen = (version, now)
        return now - self._seen[1] > int(lease["spec"].get("leaseDurationSeconds") or LEASE_S)

    def _spec(self, *, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_S,
            "acquireTime": self._moment(),
            "renewTime": self._moment(),
            "leaseTransitions": transitions,
        }

    @staticmethod
    def _holder(lease: Mapping[str, Any]) -> str:
        return str((lease.get("spec") or {}).get("holderIdentity") or "")

    def _moment(self) -> str:
        return datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
