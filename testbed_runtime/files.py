"""Read and write whole files."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T", dict[str, Any], list[Any])

TEMPORARY = ".tmp-"
"""Prefix of the name of a file that is being written. Readers of the folder ignore it."""
_REPEATABLE = contextvars.ContextVar("headgate_repeatable", default=False)


def read_json(path: Path, otherwise: T) -> T:
    """Return the content of a JSON file, or `otherwise` if the file is missing or damaged, or holds another type."""
    try:
        found: T = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return otherwise
    return found if isinstance(found, type(otherwise)) else otherwise


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """Leave it to the kernel when files get to the disk: what this block writes can be computed again."""
    before = _REPEATABLE.set(True)
    try:
        yield
    finally:
        _REPEATABLE.reset(before)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to an error that names none, as that of a full disk does not if the file was open already."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:
            error.filename = str(path)
        raise


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk. Does nothing in a `repeatable` block."""
    if _REPEATABLE.get():
        return
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, data: bytes, *, temporary: str = "", durable: bool = True) -> Path:
    """Write a file in an existing folder: first under a temporary name, then renamed, so that a reader never sees half of it.

    With `durable`, it is on the disk when the call returns, unless the block is `repeatable`. Writers of one path at the same time
    need a `temporary` name each.
    """
    unfinished = path.with_name(temporary or f".{path.name}.part")
    try:
        with naming(path):
            unfinished.write_bytes(data)
            if durable:
                sync(unfinished)
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    if durable:
        sync(path.parent)
    return path
