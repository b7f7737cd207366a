"""`headgate report`: the report of runs, written anew from their metrics, without Spark."""

from __future__ import annotations

import typer

from testbed_runtime.cli import options


def report(runs: options.RunFolders, inconclusive: options.InconclusivePolicy = options.Policy.TELL) -> None:
    """Write the reports of evaluated runs anew, without Spark."""
    from testbed_runtime.cli import running
    from testbed_runtime.runner import judge
    from testbed_runtime.runner.engine import RunResult

    verdicts = []
    for folder in runs:
        verdict, path = judge.reread(folder)
        running.tell_verdict(folder.name, RunResult(folder, verdict, path))
        verdicts.append(verdict["verdict"])
    raise typer.Exit(running.exit_code(running.worst(verdicts), inconclusive))
