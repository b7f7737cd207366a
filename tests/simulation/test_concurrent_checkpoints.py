"""Jobs with several checkpoints at a time, on a store that takes longer for some objects than for others."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from msgspec.structs import replace

from testbed_runtime.store.blobstore import MemoryBlobStore
from tests.simulation.smallswarm import ALIGNED_TIMEOUT, UNALIGNED, Drawn, draw, run_seed

CONCURRENT = "execution.checkpointing.max-concurrent-checkpoints"


class UnevenStore(MemoryBlobStore):
    """Takes up to 0.3 s to write an object."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(f"store/{seed}")

    async def put(self, key: str, data: bytes) -> None:
        await asyncio.sleep(self._random.choice((0.0, 0.0, 0.0, 0.01, 0.1, 0.3)))
        await super().put(key, data)


def concurrent(seed: int) -> Drawn:
    """The job of a seed with 2 to 8 checkpoints at a time, which are aligned: others exclude each other."""
    drawn, random = draw(seed), Random(f"concurrent/{seed}")
    settings = {
        UNALIGNED: "false",
        ALIGNED_TIMEOUT: "0 ms",
        CONCURRENT: random.choice(("2", "3", "8")),
        "execution.checkpointing.interval": random.choice(("30 ms", "60 ms")),
    }
    faults = tuple(fault for fault in drawn.faults if fault.kind != "jobmanager")
    return replace(drawn, configuration=drawn.configuration | settings, faults=faults)


@pytest.mark.parametrize("seed", range(8))
def test_a_restore_never_goes_back_behind_a_checkpoint_that_has_committed(seed: int) -> None:
    """Nothing is lost or duplicated, whichever of the checkpoints is stored first."""
    assert run_seed(seed, drawn=concurrent(seed), blobs=UnevenStore(seed)).violations == []
