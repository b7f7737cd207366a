"""Arguments and options that several commands share."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class Policy(enum.StrEnum):
    """What to do about an Inconclusive verdict: report it (exit 3), fail (exit 1), run once more, or pass (exit 0)."""

    TELL = "tell"
    FAIL = "fail"
    RETRY = "retry"
    PASS = "pass"  # noqa: S105


class Environment(enum.StrEnum):
    """Where a scenario runs."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


RunFolders = Annotated[
    list[Path], typer.Argument(help="Folders of runs (headgate-runs/…).", show_default=False)
]
Scenarios = Annotated[list[Path], typer.Argument(help="Scenario folders, or YAML files.", show_default=False)]
Out = Annotated[Path, typer.Option("--out", help="Folder for the runs' folders.")]
InconclusivePolicy = Annotated[
    Policy,
    typer.Option(
        "--inconclusive",
        help="What to do about Inconclusive: tell (exit 3), fail (exit 1), retry (run once more), pass (exit 0).",
    ),
]
OnEnvironment = Annotated[Environment, typer.Option("--on", help="Where it runs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the verdict.")]

DEFAULT_OUT = Path("headgate-runs")
