"""`headgate tune`: run a bounded grid of option values, on this machine or as a TuningStudy in a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed_runtime.cli import access, options

if TYPE_CHECKING:
    from testbed_runtime.api.kinds import TuningStudy
    from testbed_runtime.cli.loading import Loaded
    from testbed_runtime.tuning.grid import PlannedRun
    from testbed_runtime.tuning.score import Line

LOOK_S = 2.0
"""The time between two polls of a study in a cluster."""
NO_ROW = "No row passes: nothing is recommended."


def tune(  # noqa: PLR0917 - typer passes by name
    study: Annotated[Path, typer.Argument(help="A TuningStudy (YAML).", show_default=False)],
    scenarios: Annotated[
        Path, typer.Option(help="Folder of the scenarios that it names, on this machine.")
    ] = Path("scenarios"),
    out: options.Out = options.DEFAULT_OUT,
    on: options.OnEnvironment = options.Environment.LOCAL,
    quiet: options.Quiet = False,
    namespace: access.Namespace = "",
    context: access.Context = "",
    kubeconfig: access.Kubeconfig = "",
) -> None:
    """Try every combination of a study's option values, and say which is best.

    Exit code 0: a row passes and is the best; 1: none does."""
    from testbed_runtime.tuning import score

    login = access.Access(namespace, context, kubeconfig)
    access.require_cluster(on.value, login)
    resource, document = load_study(study)
    if on is options.Environment.KUBERNETES:
        from testbed_runtime.cli.interrupting import run_interruptible

        goes_on = (
            f"the study goes on in the cluster, until `kubectl delete tuningstudy {resource.metadata.name}`"
        )
        raise typer.Exit(run_interruptible(_in_cluster(document, login), became=goes_on, given_up=goes_on))
    lines = run_here(resource, find_scenarios(resource, scenarios), out=out, quiet=quiet)
    text = score.markdown(resource.spec, lines)
    out.mkdir(parents=True, exist_ok=True)
    table = out / f"{resource.metadata.name}.study.md"
    table.write_text(text + "\n", encoding="utf-8")
    typer.echo(text)
    best = next((line for line in lines if line.best), None)
    typer.echo(f"best: {best.row.text}" if best else NO_ROW)
    typer.echo(f"table: {table}")
    raise typer.Exit(0 if best else 1)


def load_study(path: Path) -> tuple[TuningStudy, dict[str, Any]]:
    """Read a study. Raises UserError for a missing file or another kind, InvalidScenario with every problem of a study."""
    from testbed_runtime.api.document import read_document
    from testbed_runtime.api.kinds import TuningStudy
    from testbed_runtime.api.validate import InvalidScenario
    from testbed_runtime.api.validate_kinds import validate_kind
    from testbed_runtime.core.errors import UserError

    if not path.is_file():
        raise UserError(str(path), "there is no such study", "name a YAML file, such as those of studies/")
    document = read_document(path.read_text(encoding="utf-8"), name=str(path))
    findings = validate_kind(document.data)
    if findings.errors:
        lines = {e.path: line for e in findings.errors if (line := document.line(e.path))}
        raise InvalidScenario(findings.errors, name=str(path), lines=lines)
    if not isinstance(findings.resource, TuningStudy):
        raise UserError(f"{path}: kind", "is no TuningStudy", "`headgate run` runs a Scenario")
    return findings.resource, document.data


def find_scenarios(study: TuningStudy, folder: Path) -> dict[str, Loaded]:
    """Return the study's scenarios by name. Raises UserError for a name that no scenario of the folder has."""
    from testbed_runtime.cli import loading
    from testbed_runtime.core.errors import UserError

    there = {
        (loaded := loading.load(path)).scenario.metadata.name: loaded for path in loading.find_all(folder)
    }
    for index, reference in enumerate(study.spec.scenarios):
        if reference.name not in there:
            raise UserError(
                f"spec.scenarios[{index}].name",
                f"there is no scenario {reference.name!r} in {folder}",
                f"there are {', '.join(sorted(there))}; or name another folder with --scenarios",
            )
    return {reference.name: there[reference.name] for reference in study.spec.scenarios}


def run_here(study: TuningStudy, scenarios: dict[str, Loaded], *, out: Path, quiet: bool) -> tuple[Line, ...]:
    """Run one row after another. Return the table of the whole grid."""
    from testbed_runtime.cli import running
    from testbed_runtime.cli.session import Session
    from testbed_runtime.tuning import grid, score

    planned = grid.planned_runs(study.metadata.name, study.spec)
    outcomes = []
    with Session() as session:
        for number, run in enumerate(planned, 1):
            running.say(f"{number}/{len(planned)} {run.scenario}: {run.row.text}")
            result = running.run_loaded(
                with_row(scenarios[run.scenario], study, run),
                session=session,
                out=out,
                environment=options.Environment.LOCAL,
                variants=study.spec.variants,
                quiet=quiet,
            )
            running.print_verdict(run.name, result)
            outcomes.append(score.Outcome(run, result.verdict))
    return score.table(study.spec, outcomes)


def with_row(loaded: Loaded, study: TuningStudy, run: PlannedRun) -> Loaded:
    """Return the scenario with the row's values. Raises InvalidScenario when they contradict it."""
    from testbed_runtime.api.validate import InvalidScenario, validate
    from testbed_runtime.cli.loading import Loaded, notes
    from testbed_runtime.tuning import grid

    document = {
        **loaded.document,
        "spec": grid.scenario_spec(loaded.document["spec"], study.spec, run.row),
    }
    findings = validate(document)
    if findings.errors or findings.scenario is None:
        raise InvalidScenario(findings.errors, name=f"{loaded.path} with {run.row.text}")
    return Loaded(loaded.path, findings.scenario, document, notes(findings))


async def _in_cluster(document: dict[str, Any], login: access.Access) -> int:
    """Apply the study and follow it until it finishes. Return the exit code."""
    import asyncio

    from testbed_runtime.api.naming import API_VERSION
    from testbed_runtime.cli.running import say

    async with access.connected(login) as api:
        name = document["metadata"]["name"]
        await api.apply({**document, "metadata": {**document["metadata"], "namespace": api.namespace}})
        last = ""
        while True:
            found = await api.get(API_VERSION, "TuningStudy", api.namespace, name) or {}
            status = found.get("status") or {}
            phase = status.get("phase", "waiting for the operator")
            shown = " ".join(filter(None, (phase, status.get("progress"), status.get("message"))))
            if shown != last:
                say(last := shown)
            if not found or status.get("phase") in ("Complete", "Rejected"):
                break
            await asyncio.sleep(LOOK_S)
    for row in status.get("table") or ():
        values = ", ".join(f"{k}={v}" for k, v in row["options"].items())
        objectives = ", ".join(f"{k}: {v}" for k, v in (row.get("objectives") or {}).items())
        typer.echo(f"{'* ' if row.get('best') else '  '}{values}: {row['verdict']}; {objectives}")
    typer.echo(f"best: {status['best']}" if status.get("best") else status.get("message") or NO_ROW)
    return 0 if status.get("best") else 1
