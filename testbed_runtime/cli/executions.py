"""`headgate executions`: the states of every execution of a run, with times, attempts and causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from testbed_runtime.cli.options import AsJson, show
from testbed_runtime.core.documents import HISTORY_FOLDER
from testbed_runtime.core.errors import UserError
from testbed_runtime.history.manifest import read_manifest

if TYPE_CHECKING:
    from testbed_runtime.checking.executions import ExecutionHistory

CAUSE_CHARACTERS = 100
"""Longest cause in the table; --json has all of it."""


def executions(
    run: Annotated[Path, typer.Argument(help="Folder of a run (headgate-runs/…).", show_default=False)],
    trial: Annotated[
        list[str] | None, typer.Option(help="Only this trial; may be repeated.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the states of every execution (an attempt of a subtask), from CREATED to FINISHED, CANCELED or FAILED.

    Each state has the time at which it was reached, the TaskManager and the cause."""
    from testbed_runtime.checking.executions import executions as executions_of
    from testbed_runtime.history.reader import read_trial

    manifest = read_manifest(run)
    names = [e.trial for e in manifest.trials if not e.error and not e.abandoned]
    for name in trial or ():
        if name not in names:
            raise UserError("--trial", f"{name!r} is not a trial of this run", f"choose {', '.join(names)}")
    found = {
        entry.trial: executions_of(
            read_trial(run / HISTORY_FOLDER / entry.trial, run=manifest.run, entry=entry)
        )
        for entry in manifest.trials
        if entry.trial in (trial or names)
    }
    data = {"trials": {name: [msgspec.to_builtins(one) for one in every] for name, every in found.items()}}
    tables = ("\n".join(lines(name, every)) for name, every in found.items())
    show(data, ["\n\n".join(tables)], as_json=as_json)


def lines(trial: str, every: Sequence[ExecutionHistory]) -> Iterator[str]:
    """Yield the executions of one trial as a table, and how many ended in which state. Pure."""
    yield f"trial {trial}: seconds since the job started"
    width = max((len(one.task) for one in every), default=0)
    for one in every:
        states = " → ".join(name if at is None else f"{name} {at:.3f}" for name, at in one.states)
        cause = one.cause if len(one.cause) <= CAUSE_CHARACTERS else one.cause[: CAUSE_CHARACTERS - 1] + "…"
        yield f"{one.task:<{width}} attempt {one.attempt}  {one.taskmanager or '-':<8} {states}{cause and f'  {cause}'}"
    counts = Counter(one.states[-1][0] for one in every)
    yield f"{len(every)} executions: " + ", ".join(
        f"{count} {name}" for name, count in sorted(counts.items())
    )
