"""`headgate evaluate`: histories of runs → metrics, verdict, report, again."""

from __future__ import annotations

import typer

from testbed_runtime.cli import options


def evaluate(
    runs: options.RunFolders,
    inconclusive: options.InconclusivePolicy = options.Policy.TELL,
    quiet: options.Quiet = False,
) -> None:
    """Evaluate recorded histories with Spark, judge them, write their reports."""
    from testbed_runtime.cli import places, running
    from testbed_runtime.cli.interrupting import run_interruptible
    from testbed_runtime.cli.render import rendering
    from testbed_runtime.runner.engine import judge_run

    verdicts = []
    for folder in runs:
        with rendering(quiet=quiet) as progress:
            result = run_interruptible(judge_run(folder, places.spark(progress), progress))
        running.tell_verdict(folder.name, result)
        verdicts.append(result.verdict["verdict"])
    raise typer.Exit(running.exit_code(running.worst(verdicts), inconclusive))
