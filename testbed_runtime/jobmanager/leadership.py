"""The leadership of a JobManager process: contends for the lease in the checkpoint store, renews it, and reports what it won or lost
(Flink's DefaultLeaderElectionService and KubernetesLeaderElectionDriver; a ConfigMap is an object of the store here).

The store keeps the lease while the process is paused or dead. A fault on the store (`store.failing`) keeps the process from renewing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import msgspec

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.job.leaderelection import (
    INFORMATION_KEY,
    LEASE_DURATION,
    LEASE_KEY,
    RENEW_DEADLINE,
    RETRY_PERIOD,
    LeaderElectionConfig,
    LeaderElector,
    LeaderInformation,
    Lease,
)
from testbed_runtime.core.job.limits import option_limit
from testbed_runtime.core.waits import Outcome
from testbed_runtime.history.waits import OpenWait
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.timeouts import cancel_all

WHO, WHAT = "JobManager", "lease"
"""The names in waits."""


class Leadership:
    """Contends from `start` to `close`. At most one of the callbacks runs at a time.

    `on_grant` starts the services of a new leader session, and is cancelled if the leadership is lost meanwhile. `on_revoke(why)`
    stops them. `on_fatal(text)` is called when `on_grant` failed after `start`: the process cannot lead, and must end."""

    def __init__(
        self,
        config: LeaderElectionConfig,
        services: Services,
        *,
        identity: str,
        on_grant: Callable[[], Coroutine[None, None, None]],
        on_revoke: Callable[[str], Awaitable[None]],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._elector = LeaderElector(config, identity)
        self._services = services
        self._on_grant = on_grant
        self._on_revoke = on_revoke
        self._on_fatal = on_fatal
        self._chance = services.random.stream("leader-election")
        self.granted = False
        """Whether the services of a leader session run, or are being started."""
        self._granting: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._wait: OpenWait | None = None

    async def start(self) -> None:
        """Contend. If the lease is free, return when the services have started; raises what `on_grant` raises."""
        self._contend()
        await self._attempt()
        loop = asyncio.get_running_loop()
        self._worker = loop.create_task(self._run(), name="leader-election")
        self._worker.add_done_callback(self._ended)
        if self._elector.leading:
            self.granted = True
            first = self._granting = loop.create_task(self._on_grant(), name="grant-leadership")
            await asyncio.wait([first])
            if not first.cancelled():
                first.result()

    async def confirm(self, leader: str) -> None:
        """Publish the leader session, once its services run (LeaderElection.confirmLeadership). Raises OSError."""
        await self._services.blobs.put(INFORMATION_KEY, msgspec.json.encode(LeaderInformation(leader)))

    async def close(self) -> None:
        """Stop contending, and release the lease (LeaderElectionConfig.releaseOnCancel). Idempotent."""
        await cancel_all(self._worker, self._granting)
        self._worker = self._granting = None
        if self._elector.leading:
            self._elector.leading = False
            await self._release()

    # ---- contend, renew

    def _ended(self, worker: asyncio.Task[None]) -> None:
        """Report that the worker failed: without the worker, nothing renews the lease."""
        if not worker.cancelled() and (error := worker.exception()) is not None:
            self._on_fatal(f"Leader election of the JobManager failed: {error!r}")

    async def _run(self) -> None:
        elector = self._elector
        while True:
            await asyncio.sleep(elector.pause_s(self._chance.random()))
            await self._check_deadline()
            await self._attempt()
            if await self._check_deadline():  # the process was paused meanwhile, or the store was slow
                await self._attempt()
            if self.granted and not elector.leading:
                await self._revoke("Another contender holds the lease.")
            elif elector.leading and not self.granted:
                self.granted = True
                self._granting = asyncio.get_running_loop().create_task(
                    self._grant(), name="grant-leadership"
                )

    async def _attempt(self) -> None:
        """Renew or acquire the lease. A store that does not answer is asked again at the next attempt."""
        elector, waits = self._elector, self._services.waits
        try:
            lease = elector.attempt(await self._read(), self._services.clock.now())
            if lease is None:
                return
            await self._write(lease)
        except (OSError, HeadgateError):
            return
        late_since = elector.on_written(lease)
        if late_since is not None:
            limit = option_limit(self._services.options, RENEW_DEADLINE)
            waits.begin("lease", WHO, WHAT, limit=limit, since_s=late_since).end()
        self._acquired()

    async def _read(self) -> Lease | None:
        try:
            return msgspec.json.decode(await self._services.blobs.get(LEASE_KEY), type=Lease)
        except KeyError:
            return None
        except msgspec.DecodeError as error:
            raise HeadgateError(f"{LEASE_KEY} in the blob store cannot be read: {error}") from None

    async def _write(self, lease: Lease) -> None:
        await self._services.blobs.put(LEASE_KEY, msgspec.json.encode(lease))

    async def _release(self) -> None:
        try:
            lease = self._elector.release(await self._read(), self._services.clock.now())
            if lease is not None:
                await self._write(lease)
        except (OSError, HeadgateError):
            return  # it expires by itself

    # ---- granted, revoked

    async def _grant(self) -> None:
        try:
            await self._on_grant()
        except (OSError, HeadgateError) as error:
            self._on_fatal(f"Exception during leader election of the JobManager occurred: {error}")

    async def _check_deadline(self) -> bool:
        """Give up the leadership if the lease was not renewed in time: stop the services, release the lease, contend again. Return
        whether it was given up."""
        if not self._elector.expired(self._services.clock.now()):
            return False
        limit = option_limit(self._services.options, RENEW_DEADLINE)
        why = f"The lease was not renewed within {limit.option} = {limit.value}."
        since_s = self._elector.renewed_s
        wait = self._services.waits.begin("lease", WHO, WHAT, limit=limit, since_s=since_s)
        wait.end(Outcome.EXPIRED, cause=why)
        await self._revoke(why)
        await self._release()
        return True

    async def _revoke(self, why: str) -> None:
        granted, self.granted = self.granted, False
        granting, self._granting = self._granting, None
        await cancel_all(granting)
        if granted:
            await self._on_revoke(why)
        self._contend()

    # ---- waits

    def _contend(self) -> None:
        self._elector.free_s = None
        self._wait = self._services.waits.begin("leadership", WHO, WHAT)

    def _acquired(self) -> None:
        """End the wait for the leadership: for the lease of another process to expire, then for the next attempt."""
        wait, self._wait = self._wait, None
        free_s = self._elector.free_s
        if wait is None or free_s is None:
            if wait is not None:
                wait.end()
            return
        waits, options = self._services.waits, self._services.options
        wait.limit = option_limit(options, LEASE_DURATION)
        if free_s > waits.now():  # its holder released it earlier
            wait.end()
            return
        wait.end(Outcome.EXPIRED, at_s=free_s)
        retry = option_limit(options, RETRY_PERIOD)
        waits.begin("leadership", WHO, WHAT, limit=retry, since_s=free_s, after=(wait,)).end(Outcome.FIRED)
