"""`headgate report`: rewrite the reports of runs from their metrics, without Spark, or fetch them from a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from testbed_runtime.cli import access, options
from testbed_runtime.core.judgement.verdict import Verdict
from testbed_runtime.history.manifest import read_manifest

Runs = Annotated[
    list[str],
    typer.Argument(
        help="Folders of runs (headgate-runs/…); with --on kubernetes names of ScenarioRuns.",
        show_default=False,
    ),
]
Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        help="With --on kubernetes: this one file (.html, .md, .xml, .json), or - for stdout.",
    ),
]


def report(  # noqa: PLR0917 - typer passes by name
    runs: Runs,
    inconclusive: options.InconclusivePolicy = options.Policy.REPORT,
    on: options.OnEnvironment = options.Environment.LOCAL,
    output: Output = "",
    out: options.Out = options.DEFAULT_OUT,
    namespace: access.Namespace = "",
    context: access.Context = "",
    kubeconfig: access.Kubeconfig = "",
) -> None:
    """Rewrite the reports of evaluated runs, without Spark, or fetch those of runs in a cluster."""
    from testbed_runtime.cli import running

    login = access.access_for(on.value, namespace, context, kubeconfig)
    if on is options.Environment.KUBERNETES:
        verdicts = [fetch_one(name, login, output, out) for name in runs]
    else:
        verdicts = [_rewrite(Path(name)) for name in runs]
    raise typer.Exit(running.exit_code(verdicts, inconclusive))


def _rewrite(folder: Path) -> Verdict:
    from testbed_runtime.cli import folders, running
    from testbed_runtime.runner.conclude import reread
    from testbed_runtime.runner.engine import RunResult

    read_manifest(folder)
    folders.check_writable(folder)
    verdict, path = reread(folder)
    running.print_verdict(folder.name, RunResult(folder, verdict, path))
    return verdict.verdict


def fetch_one(name: str, login: access.Access, output: str, out: Path) -> Verdict:
    """Fetch a report, write it and print its verdict. Return the verdict."""
    from testbed_runtime.cli import cluster_report, running
    from testbed_runtime.kube.progress import read_verdict
    from testbed_runtime.runner.engine import RunResult

    files = asyncio.run(cluster_report.fetch(login, name))
    path = cluster_report.write(files, output, out / name)
    verdict = read_verdict(files)
    if path is not None:
        running.print_verdict(name, RunResult(path.parent, verdict, path))
    return verdict.verdict
