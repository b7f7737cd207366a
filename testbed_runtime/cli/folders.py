"""Folders and files that a command writes. If one cannot be written, the command fails before its work, with the option or folder to
change."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed_runtime.core.errors import UserError
from testbed_runtime.files import naming


def make_folder(folder: Path, *, exist_ok: bool = False) -> None:
    """Create a folder below `--out`. Raises FileExistsError, and UserError if it cannot be created there or not be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError as error:
        if not exist_ok:
            raise
        raise _refused("--out", folder, f"cannot be created: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise _refused("--out", folder, f"cannot be created: {error.strerror}") from None
    if not _is_writable(folder):
        raise _refused("--out", folder, "is read-only for this account")


def check_writable(folder: Path) -> None:
    """Raise UserError if this account cannot write to the folder of a run."""
    if not _is_writable(folder):
        raise UserError(
            str(folder), "is read-only for this account", "copy it to a folder that you can write to"
        )


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Raise UserError if this one file, which `option` names, cannot be written in the block."""
    try:
        with naming(path):
            yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise _refused(option, path, f"cannot be written: {error.strerror}", "name another file") from None


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _refused(
    option: str, path: Path, problem: str, hint: str = "name a folder that you can write to"
) -> UserError:
    return UserError(option, f"{path} {problem}", hint)
