"""Read and write whole files."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

T = TypeVar("T", dict[str, Any], list[Any])

DOCUMENT_MAX = 2**30
"""Maximum bytes of a JSON document. A run of 2,000 trials has less than half of it."""

TEMPORARY = ".tmp-"
"""Prefix of the name of a file that is being written. Readers of the folder ignore it."""
_REPEATABLE = contextvars.ContextVar("headgate_repeatable", default=False)


def require_regular(mode: int) -> None:
    """Raise ValueError unless the mode is that of a regular file. Reading a FIFO or a device may not end."""
    if not stat.S_ISREG(mode):
        raise ValueError("it is not a regular file")


def read_document(path: Path) -> Any:
    """Return the content of a JSON file. Raises OSError, and ValueError for anything that Headgate does not write: a FIFO, a file that
    does not fit into memory, a key that an object has twice, NaN, or nesting without end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        require_regular(found.st_mode)
        if found.st_size > DOCUMENT_MAX:
            raise ValueError(f"it has {found.st_size} bytes, at most {DOCUMENT_MAX} are possible")
        text = file.read(DOCUMENT_MAX).decode("utf-8-sig")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {twice!r:.60} twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it contains {constant}, which is not JSON")


def field_of(error: msgspec.ValidationError) -> str:
    """Return the field of a document that has a wrong type or value, and why it is wrong."""
    problem, _, place = str(error).partition(" - at `$")
    return f"{place.strip('.`')}: {problem}" if place else problem


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
