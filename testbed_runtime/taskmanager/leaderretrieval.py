"""The leader session that a JobManager with high availability has published (Flink's DefaultLeaderRetrievalService)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from testbed_runtime.core.job.leaderelection import INFORMATION_KEY, LeaderElectionConfig, LeaderInformation
from testbed_runtime.core.options import Options
from testbed_runtime.ports.storage import BlobStore
from testbed_runtime.timeouts import cancel_all

POLL_S = 0.2
"""Interval between two reads of the store. Flink watches its ConfigMap, which reports a change within milliseconds."""


class LeaderRetrieval:
    """Calls `on_leader(leader session id)` for the first leader session and for each new one. Does nothing without high availability."""

    def __init__(self, options: Options, blobs: BlobStore, on_leader: Callable[[str], None]) -> None:
        self._blobs = blobs
        self._on_leader = on_leader
        self._enabled = LeaderElectionConfig.of(options) is not None
        self._worker: asyncio.Task[None] | None = None
        self._known = ""

    def start(self) -> None:
        if self._enabled:
            self._worker = asyncio.get_running_loop().create_task(self._watch(), name="leader-retrieval")

    async def close(self) -> None:
        await cancel_all(self._worker)
        self._worker = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            leader = await self._read()
            if leader and leader != self._known:
                self._known = leader
                self._on_leader(leader)

    async def _read(self) -> str:
        """Return the leader session id; empty if none is published, or the store does not answer."""
        try:
            return msgspec.json.decode(await self._blobs.get(INFORMATION_KEY), type=LeaderInformation).leader
        except (KeyError, OSError, msgspec.DecodeError):
            return ""
