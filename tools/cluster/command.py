"""Run a program; its failure is an error with the end of its output."""

from __future__ import annotations

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
) -> str:
    """Run a command, with `text` as its input, and return what it prints. Raises ClusterError with the last lines of its output."""
    done = subprocess.run(
        command, cwd=folder, env=environment, input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-TAIL_LINES:])
        raise ClusterError(f"`{' '.join(command[:3])} …` failed:\n{tail}")
    return done.stdout
