"""Adapters of time, randomness and ids: the loop's clock, the stall meter, seeded streams, ids from the system or a seed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from testbed_runtime.core.waits import STALL_TICK_S

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ID_BYTES = 16


CLOCK_VARIABLE = "HEADGATE_CLOCK"
SHARED = "shared"
"""The value of CLOCK_VARIABLE when the processes of a testbed run on several machines."""
OFFSET_GRAIN_NS = 100_000
"""The offset is rounded to this, so that all processes of one boot use the same one. It changes only when the clock is set."""
SAMPLES = 16
STALL_S = 0.2
"""A gap longer than this is a stall. The scheduling noise of a loaded machine stays below it."""


def wall_offset_ns() -> int:
    """Return CLOCK_REALTIME minus CLOCK_MONOTONIC, by the sample that took the least time."""
    found = []
    for _ in range(SAMPLES):
        before, wall, after = (
            time.monotonic_ns(),
            time.clock_gettime_ns(time.CLOCK_REALTIME),
            time.monotonic_ns(),
        )
        found.append((after - before, wall - (before + after) // 2))
    offset = min(found)[1]
    return (offset + OFFSET_GRAIN_NS // 2) // OFFSET_GRAIN_NS * OFFSET_GRAIN_NS


class SharedClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is comparable between machines with synchronized clocks (NTP: to milliseconds) and between boots.

    It is monotonic: the offset is taken once. A float of this size holds a quarter of a microsecond."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self._offset_s = wall_offset_ns() / 1e9
        super().__init__(selector)

    def time(self) -> float:
        return time.monotonic() + self._offset_s


def loop_factory(
    selector: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector,
) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the loop factory for asyncio.Runner in the processes of a testbed and in its runner.

    It is asyncio's own loop (uvloop's time has whole milliseconds), with HEADGATE_CLOCK=shared one whose times are the same
    on every node."""
    kind = SharedClockLoop if os.environ.get(CLOCK_VARIABLE) == SHARED else asyncio.SelectorEventLoop
    return lambda: kind(selector())


class LoopClock:
    """`ports.execution.Clock` on the running loop. In simulation the boot id is `sim`."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id

    def now(self) -> float:
        self.now = asyncio.get_running_loop().time  # type: ignore[method-assign]  # asked several times for each buffer
        return self.now()


def system_boot_id() -> str:
    """Return the kernel's boot id, or an `unknown-…` that equals no other process's."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"unknown-{os.getpid()}"


class SeededRandom:
    """`ports.execution.RandomSource`: one generator per purpose, each from the seed and its name."""

    def __init__(self, seed: int | str) -> None:
        self._seed = seed
        self._streams: dict[str, Random] = {}

    def stream(self, purpose: str) -> Random:
        if purpose not in self._streams:
            digest = hashlib.blake2b(f"{self._seed}/{purpose}".encode(), digest_size=8).digest()
            self._streams[purpose] = Random(int.from_bytes(digest, "big"))  # noqa: S311 - reproducible on purpose
        return self._streams[purpose]


class SystemIds:
    """`ports.execution.IdSource` of a real process."""

    def bytes16(self) -> bytes:
        return os.urandom(ID_BYTES)


class SeededIds:
    """`ports.execution.IdSource` of a simulation: the same every time."""

    def __init__(self, seed: int | str) -> None:
        self._random = SeededRandom(seed).stream("ids")

    def bytes16(self) -> bytes:
        return self._random.randbytes(ID_BYTES)


class StallMeter:
    """Notice that this process did not run for a while (it was paused, or its loop was blocked).

    A plain timer, so it fires before the deadlines that passed in the meantime."""

    def __init__(self, on_stall: Callable[[float], None], needed: Callable[[], bool]) -> None:
        self._on_stall = on_stall
        self._needed = needed
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Start measuring. Idempotent; the meter stops when `needed` returns False."""
        if self._timer is None:
            self._due = asyncio.get_running_loop().time()
            self._arm()

    def expect_pause(self) -> None:
        """Set the timer for the next tick if none is set. In virtual time, only a pause stops a process, and each pause is announced by this
        call."""
        if self._timer is None:
            self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._due <= now:
            self._due += STALL_TICK_S
        self._timer = loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        gap = now - self._due
        if gap >= STALL_S:
            self._on_stall(gap)
        self._timer, self._due = None, now
        if self._needed():
            self._due += STALL_TICK_S  # already passed if the process has stalled again meanwhile
            self._timer = asyncio.get_running_loop().call_at(self._due, self._tick)
