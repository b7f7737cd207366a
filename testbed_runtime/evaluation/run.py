"""Shared by the worker and its caller: a scratch folder, errors as one line."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed_runtime.core.errors import HeadgateError

TEXT_MAX = 600
"""The longest message in characters."""
DRIVER_ENDED = ("Py4JNetworkError", "ConnectionRefusedError", "Py4JError", "ConnectionResetError")
_TRACEBACK = "Traceback (most recent call last):"


def _prefix(pid: int) -> str:
    return f"headgate-spark-{pid}-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a temporary folder for the files that Spark writes."""
    folder = Path(tempfile.mkdtemp(prefix=_prefix(os.getpid())))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_scratch(pid: int) -> None:
    """Remove the scratch folder of a process that was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix(pid)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def one_line(error: BaseException) -> str:
    """Return an error as one line. For a failed Spark job, return the Python error inside."""
    if isinstance(error, HeadgateError):
        return str(error)[:TEXT_MAX]
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    traced = next((n for n, line in enumerate(lines) if line.endswith(_TRACEBACK)), None)
    if traced is not None:
        # Frames and their sources are indented.
        named = (line for line in lines[traced + 1 :] if not line.startswith(" "))
        return next(named, lines[0])[:TEXT_MAX]
    if type(error).__name__ in DRIVER_ENDED:
        return "The Spark driver has ended before its work was done (killed, or out of memory)."
    return f"{type(error).__name__}: {lines[0].strip() if lines else 'no message'}"[:TEXT_MAX]
