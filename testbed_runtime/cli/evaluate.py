"""`headgate evaluate`: recompute metrics, verdict and report from the histories of runs."""

from __future__ import annotations

import os

import typer

from testbed_runtime.cli import options
from testbed_runtime.files import naming
from testbed_runtime.history.manifest import read_manifest

KEPT = "what was recorded is kept"


def evaluate(
    runs: options.RunFolders,
    inconclusive: options.InconclusivePolicy = options.Policy.REPORT,
    quiet: options.Quiet = False,
) -> None:
    """Evaluate recorded histories with Spark, judge them, and write their reports."""
    from testbed_runtime.cli import environments, folders, running
    from testbed_runtime.cli.render import rendering
    from testbed_runtime.cli.session import Session
    from testbed_runtime.evaluation.session import require_spark
    from testbed_runtime.runner.engine import judge_run

    for folder in runs:
        read_manifest(folder)  # before Spark starts
        folders.check_writable(folder)
    require_spark(os.environ)  # otherwise a failed evaluation would replace the results of an earlier one
    verdicts = []
    with Session() as session:
        for folder in runs:
            with naming(folder), rendering(quiet=quiet) as progress:
                judging = judge_run(folder, environments.spark(progress, session.spark), progress)
                result = session.run(judging, became=KEPT)
            running.conclude(folder.name, result)
            verdicts.append(result.verdict.verdict)
    raise typer.Exit(running.exit_code(verdicts, inconclusive))
