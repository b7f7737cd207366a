"""Run a program; its failure is an error with the end of its output."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .settings import ClusterError

TAIL_LINES = 15


def run(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    text: str | None = None,
    named: str = "",
) -> str:
    """Run a command, with `text` as its input, and return what it prints. Raises ClusterError with the last lines of its output.
    `named`: the command in the text of an error, if not the whole of it."""
    done = subprocess.run(
        command, cwd=folder, env=environment, input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-TAIL_LINES:])
        raise ClusterError(f"`{named or shlex.join(command)}` failed:\n{tail}")
    return done.stdout
