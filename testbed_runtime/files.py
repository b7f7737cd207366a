"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, data: bytes, *, temporary: str = "", durable: bool = True) -> Path:
    """Write a file in an existing folder: first under a temporary name, then renamed, so that a reader never sees half of it.

    With `durable`, it is on the disk when the call returns. Writers of one path at the same time need a `temporary` name each.
    """
    unfinished = path.with_name(temporary or f".{path.name}.part")
    try:
        unfinished.write_bytes(data)
        if durable:
            sync(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    if durable:
        sync(path.parent)
    return path
