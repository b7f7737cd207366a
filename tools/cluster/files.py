"""Delete folders with tens of thousands of files, as unpacked images are."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_ONCE = 8
"""Deletions at the same time. A file system that discards freed blocks (ext4 with `discard`) waits 2 ms for each, one after another."""


def remove(folder: Path) -> None:
    """Delete a folder with everything in it. Raises OSError for what cannot be deleted."""
    folders: defaultdict[int, list[Path]] = defaultdict(list)
    with ThreadPoolExecutor(AT_ONCE) as workers:
        for path, below, files in os.walk(folder):
            where = Path(path)
            folders[len(where.parts)].append(where)
            links = [name for name in below if (where / name).is_symlink()]
            workers.submit(_unlink, where, [*files, *links])
    with ThreadPoolExecutor(AT_ONCE) as workers:
        for depth in sorted(folders, reverse=True):
            list(workers.map(_rmdir, folders[depth]))
    if folder.exists():
        shutil.rmtree(folder)  # the error says what is in the way


def _unlink(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def _rmdir(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
