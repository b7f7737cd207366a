"""Shared by the worker and its caller: the manifest of a run, a scratch folder, errors as one line."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed_runtime.core.errors import HeadgateError

EXIT_ERROR = 2
"""The exit code of a failure that a message explains."""
TEXT_MAX = 600
"""The longest message in characters."""


def read_manifest(run_folder: Path) -> dict[str, Any]:
    """Return the manifest. Raises HeadgateError when the folder is not a run, or the manifest is damaged."""
    path = run_folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise HeadgateError(f"{run_folder} is not the folder of a run: it has no manifest.json.") from None
    except (OSError, ValueError) as error:
        raise HeadgateError(f"{path} is truncated or damaged: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("trials", []), list):
        raise HeadgateError(f"{path} is not a manifest of headgate.")
    return manifest


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a temporary folder for the files that Spark writes."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-spark-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def one_line(error: BaseException) -> str:
    """Return an error as one line. Of a failed Spark job, that is the Python error inside."""
    if isinstance(error, HeadgateError):
        return str(error)[:TEXT_MAX]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Traceback (most recent call last):" in lines:
        after = lines[lines.index("Traceback (most recent call last):") + 1 :]
        named = [line for line in after if not line.startswith(("File ", "^", "~")) and ": " in line]
        return (named[0] if named else lines[0])[:TEXT_MAX]
    if type(error).__name__ in (
        "Py4JNetworkError",
        "ConnectionRefusedError",
        "Py4JError",
        "ConnectionResetError",
    ):
        return "The Spark driver has ended before its work was done (killed, or out of memory)."
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:TEXT_MAX]
