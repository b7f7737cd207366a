"""Copies the published files of file sinks from the testbed's store to the run's folder, which outlives the testbed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from testbed_runtime.ports.storage import BlobStore
from testbed_runtime.workload.sinks import STAGED


async def keep_outputs(blobs: BlobStore, paths: Iterable[str], folder: Path) -> list[Path]:
    """Copy every published part of the sinks at `paths`. Return the files, sorted. Staged parts were never committed.

    Raises OSError when the folder cannot be written."""
    kept = []
    for path in sorted({path.strip("/") for path in paths}):
        for key in await blobs.list(f"{path}/"):
            if STAGED not in key:
                target = folder / key
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(await blobs.get(key))
                kept.append(target)
    return kept
