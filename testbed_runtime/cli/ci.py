"""`headgate ci`: run every scenario of a folder; one JUnit file, one Markdown file, one exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from testbed_runtime.cli import access, exits, options
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.verdict import Verdict
from testbed_runtime.history.manifest import MANIFEST


def ci(  # noqa: PLR0917 - typer passes by name
    folder: Annotated[Path, typer.Argument(help="A folder of scenario folders.", show_default=False)],
    out: options.Out = options.DEFAULT_OUT,
    inconclusive: options.InconclusivePolicy = options.Policy.REPORT,
    on: options.OnEnvironment = options.Environment.LOCAL,
    quiet: options.Quiet = False,
    namespace: access.Namespace = "",
    context: access.Context = "",
    kubeconfig: access.Kubeconfig = "",
) -> None:
    """Run all scenarios of a folder, and write one JUnit and one Markdown file. The exit code covers all scenarios."""
    from testbed_runtime.cli import folders, loading, running
    from testbed_runtime.cli.session import Session

    login = access.access_for(on.value, namespace, context, kubeconfig)
    settings = running.RunSettings(out=out, environment=on, policy=inconclusive, quiet=quiet, access=login)
    loaded = loading.load_all(loading.find_all(folder))
    folders.make_folder(out, exist_ok=True)
    results: list[Any] = []
    refused: list[tuple[str, str]] = []
    verdicts: list[Verdict] = []
    with Session() as session:
        for item in loaded:
            name = item.scenario.metadata.name
            try:
                result = running.run_loaded(item, session, settings)
            except HeadgateError as error:
                exits.report(error)
                refused.append((name, str(error)))
                verdicts.append(Verdict.ERROR)
                continue
            running.conclude(name, result)
            if (result.folder / MANIFEST).exists():
                results.append(result)
            else:  # the operator ended a run in the cluster before it had a report
                refused.append((name, result.verdict.summary))
            verdicts.append(result.verdict.verdict)
    _summary(out, results, refused, inconclusive)
    raise typer.Exit(running.exit_code(verdicts, inconclusive))


def _summary(out: Path, results: list[Any], refused: list[tuple[str, str]], policy: options.Policy) -> None:
    from testbed_runtime.cli import running
    from testbed_runtime.report import write_summary

    if results or refused:
        folders = [result.folder for result in results]
        shown = running.in_junit(policy, "error")
        written = write_summary(out, folders, refused=refused, inconclusive=shown)
        exits.say(f"summary: {written}, {written.with_name('junit.xml')}")
