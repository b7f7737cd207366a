"""The console script `kubectl-headgate`: `kubectl headgate run|report|heal|faults`, with kubectl's flags and headgate's exit codes."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from testbed_runtime.api.views import Fault, Run
from testbed_runtime.cli import access, heal, options, report, run
from testbed_runtime.cli.commandline import command_tree, fixed
from testbed_runtime.cli.tables import aligned

HELP = """Headgate's runs and faults in a cluster.

Exit codes: 0 Pass, 1 Fail, 2 Error (bad input, or it could not be carried out), 3 Inconclusive, 130 interrupted."""
RUN_HELP = "Run scenarios as ScenarioRuns and follow them to their verdicts."
HEAL_HELP = "End every fault of the namespace now; runs stop with Inconclusive (Healed)."
COLUMNS = ("NAMESPACE", "FAULT", "PHASE", "BACKEND", "TARGETS")


def fetch(  # noqa: PLR0917 - typer passes by name
    name: Annotated[str, typer.Argument(help="A ScenarioRun.", show_default=False)],
    output: report.Output = "",
    out: options.Out = options.DEFAULT_OUT,
    namespace: access.Namespace = "",
    context: access.Context = "",
    kubeconfig: access.Kubeconfig = "",
) -> None:
    """Fetch the report of a run."""
    from testbed_runtime.cli import running

    verdict = report.fetch_one(name, access.Access(namespace, context, kubeconfig), output, out)
    raise typer.Exit(running.exit_code([verdict], options.Policy.REPORT))


def faults(
    namespace: access.Namespace = "",
    all_namespaces: access.AllNamespaces = False,
    context: access.Context = "",
    kubeconfig: access.Kubeconfig = "",
) -> None:
    """List the faults: stand-alone ones, and those of runs that are not complete."""
    login = access.Access(namespace, context, kubeconfig)
    rows = asyncio.run(_rows(login, all_namespaces=all_namespaces))
    if not rows:
        typer.echo("there are no faults")
        return
    typer.echo("\n".join(aligned([COLUMNS, *rows])))


async def _rows(login: access.Access, *, all_namespaces: bool) -> list[tuple[str, ...]]:
    async with access.connected(login) as api:
        where = None if all_namespaces else api.namespace
        alone = await api.list("Fault", where)
        runs = await api.list("ScenarioRun", where)
    rows = [row_of(Fault(one)) for one in alone]
    return rows + [row for run in map(Run, runs) if heal.is_active(run) for row in rows_of_run(run)]


def row_of(fault: Fault) -> tuple[str, ...]:
    """Return the row of a stand-alone Fault: namespace, name, phase, backend, targets. Pure."""
    status = fault.status
    targets = ",".join(status.targets) or f"testbed {fault.testbed}"
    return fault.namespace, fault.name, status.phase or "Pending", status.backend or "–", targets


def rows_of_run(run: Run) -> list[tuple[str, ...]]:
    """Return the rows of the faults that a run has reported. Pure."""
    faults = run.status.faults
    return [(run.namespace, f.name, "Running", f.backend or "–", f"run {run.name}") for f in faults]


def build() -> typer.Typer:
    app = command_tree("kubectl headgate", HELP, completes=False)
    here = options.Environment.KUBERNETES
    app.command("run", help=RUN_HELP)(fixed(run.run, on=here, from_checkpoint=None))
    app.command("report")(fetch)
    app.command("heal", help=HEAL_HELP)(fixed(heal.heal, on=here, every=True))
    app.command("faults")(faults)
    return app
