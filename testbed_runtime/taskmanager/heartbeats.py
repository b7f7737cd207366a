"""The watch of a TaskExecutor over one peer that beats: armed while connected, one verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from testbed_runtime.core.job.heartbeat import HeartbeatConfig, HeartbeatMonitor


class PeerWatch:
    """Calls `on_silence` once when the peer was silent for heartbeat.timeout."""

    def __init__(self, config: HeartbeatConfig, on_silence: Callable[[], None]) -> None:
        self._config = config
        self._on_silence = on_silence
        self._monitor: HeartbeatMonitor | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The peer is there now."""
        self.stop()
        self._monitor = HeartbeatMonitor(self._config, asyncio.get_running_loop().time())
        self._arm()

    def stop(self) -> None:
        if self._monitor is not None:
            self._monitor.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._monitor = self._timer = None

    def on_heartbeat(self) -> None:
        if self._monitor is not None:
            self._monitor.on_heartbeat(asyncio.get_running_loop().time())

    def extend(self, seconds: float) -> None:
        """This process did not run for so long. As long as that is below the timeout, nobody is judged by it; after a longer
        stall the peers have given us up, and to go on would make a zombie: not even for heartbeats that were on their way
        since before."""
        if self._monitor is None:
            return
        if seconds < self._config.timeout_s:
            self._monitor.extend(seconds)
        else:
            self.stop()
            self._on_silence()

    def _arm(self) -> None:
        if self._monitor is not None:
            self._timer = asyncio.get_running_loop().call_at(self._monitor.deadline, self._on_timer)

    def _on_timer(self) -> None:
        monitor = self._monitor
        if monitor is None:
            return
        if not monitor.on_time(asyncio.get_running_loop().time()):
            self._arm()
            return
        self.stop()
        self._on_silence()
