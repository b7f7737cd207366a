"""Adapters of time, chance and ids: the loop's clock, seeded streams, ids from the system or from a seed."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from random import Random

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ID_BYTES = 16


class LoopClock:
    """`ports.execution.Clock` on the running loop. In simulation the boot id is `sim`."""

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id

    @property
    def boot_id(self) -> str:
        return self._boot_id

    def now(self) -> float:
        return asyncio.get_running_loop().time()


def system_boot_id() -> str:
    """The kernel's, or `unknown`, which is comparable with nobody's."""
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
