"""`headgate tune`: search a bounded grid of option values in virtual time, confirm the best in real runs; or run it in a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed_runtime.api.status import COMPLETE, REJECTED
from testbed_runtime.cli import access, exits, options
from testbed_runtime.core.errors import UserError
from testbed_runtime.files import naming
from testbed_runtime.process.machine import cores

if TYPE_CHECKING:
    from testbed_runtime.api.kinds import TuningStudy
    from testbed_runtime.cli.loading import Loaded
    from testbed_runtime.cli.study_runs import StudyRuns

LOOK_S = 2.0
"""The time between two polls of a study in a cluster."""
STUDY_FILE = "study.yaml"


def tune(  # noqa: PLR0917 - typer passes by name
    study: Annotated[
        Path,
        typer.Argument(
            help=f"A TuningStudy: a YAML file, or a folder with {STUDY_FILE}.", show_default=False
        ),
    ],
    scenarios: Annotated[
        list[Path] | None,
        typer.Option(
            help="A scenario of the study, or a folder of them; may be repeated. By default they are beside the study.",
            show_default=False,
        ),
    ] = None,
    confirm: Annotated[
        int, typer.Option(min=0, help="Repeat this many of the best rows in real runs of every scenario.")
    ] = 0,
    real: Annotated[bool, typer.Option("--real", help="Run every row with real processes.")] = False,
    jobs: Annotated[
        int, typer.Option(min=0, help="Number of simulations at the same time; 0: one per core.")
    ] = 0,
    out: options.Out = options.DEFAULT_OUT,
    on: options.OnEnvironment = options.Environment.LOCAL,
    quiet: options.Quiet = False,
    namespace: access.Namespace = "",
    context: access.Context = "",
    kubeconfig: access.Kubeconfig = "",
) -> None:
    """Try every combination of a study's option values, and show which is best, what it costs and how close it is to its limits.

    The search runs in virtual time. Exit code 0: at least one combination passes; 1: none does."""
    login = access.access_for(on.value, namespace, context, kubeconfig)
    resource, document = load_study(study)
    if on is options.Environment.KUBERNETES:
        from testbed_runtime.cli.interrupting import run_interruptible

        goes_on = (
            f"the study goes on in the cluster, until `kubectl delete tuningstudy {resource.metadata.name}`"
        )
        raise typer.Exit(run_interruptible(_in_cluster(document, login), became=goes_on, given_up=goes_on))
    found = find_scenarios(resource, scenarios or scenario_folders(study))
    from testbed_runtime.cli.study_runs import StudyRuns

    runs = StudyRuns(study=resource, scenarios=found, out=out, jobs=jobs or cores(), quiet=quiet)
    raise typer.Exit(_run_locally(runs, confirm=confirm, real=real))


def load_study(path: Path) -> tuple[TuningStudy, dict[str, Any]]:
    """Read a study. Raises UserError for a missing file or another kind, InvalidScenario with every problem of a study."""
    from testbed_runtime.api.kinds import TuningStudy
    from testbed_runtime.api.validate_kinds import validate_kind
    from testbed_runtime.cli import loading

    if path.is_dir() and not (path / STUDY_FILE).is_file():
        raise UserError(str(path), f"contains no {STUDY_FILE}", _hint_for_folder(path))
    path = path / STUDY_FILE if path.is_dir() else path
    if not path.is_file():
        raise UserError(str(path), "does not exist", "name a study, such as those of studies/")
    document = loading.read(path)
    resource = loading.valid(document, validate_kind(document.data))
    if not isinstance(resource, TuningStudy):
        kind = document.data["kind"]
        hint = f"`headgate run {path}` runs a scenario" if kind == "Scenario" else "name a study"
        raise UserError(f"{path}: kind", f"is {kind}, not TuningStudy", hint)
    return resource, document.data


def _hint_for_folder(folder: Path) -> str:
    """Return a hint about a folder that contains no study file."""
    from testbed_runtime.cli.loading import SCENARIO_FILE

    if (folder / SCENARIO_FILE).is_file():
        return f"`headgate run {folder}` runs a scenario"
    studies = sorted(str(p.parent) for p in folder.glob(f"*/{STUDY_FILE}"))
    return f"name one of {', '.join(studies)}" if studies else "name a study, such as those of studies/"


def scenario_folders(study: Path) -> list[Path]:
    """Return the folders to search for a study's scenarios: its own, `scenarios` there, and `scenarios` in each parent folder."""
    folder = study.resolve() if study.is_dir() else study.resolve().parent
    above = [folder.parent, folder.parent.parent] if study.is_dir() else [folder.parent]
    places = [folder, folder / "scenarios", *(place / "scenarios" for place in above)]
    return [place for place in places if place.is_dir()]


def find_scenarios(study: TuningStudy, places: Sequence[Path]) -> dict[str, Loaded]:
    """Return the study's scenarios by name, from files and folders; the first place that has one counts. Raises UserError for a
    name that no scenario has."""
    from testbed_runtime.cli import loading
    from testbed_runtime.tuning import grid

    paths: dict[str, Path] = {}
    for place in places:
        for path in _scenario_files(place):
            paths.setdefault(_scenario_name(path), path)
    paths.pop("", None)
    for index, reference in enumerate(study.spec.scenarios):
        if reference.name not in paths:
            raise UserError(
                f"spec.scenarios[{index}].name",
                f"the scenario {reference.name!r} does not exist in {', '.join(map(str, places))}",
                f"there are {', '.join(sorted(paths)) or 'none'}; or name a file or folder with --scenarios",
            )
    found = {reference.name: loading.load(paths[reference.name]) for reference in study.spec.scenarios}
    known = {name: [v.name for v in one.scenario.spec.variants] for name, one in found.items()}
    grid.check_variants(study.spec, known)
    return found


def _scenario_files(place: Path) -> list[Path]:
    from testbed_runtime.cli.loading import SCENARIO_FILE, find

    if not place.is_dir():
        return [find(place)]
    return [
        *sorted(place.glob(SCENARIO_FILE)),
        *sorted(place.glob(f"*/{SCENARIO_FILE}")),
        *sorted(place.glob("*.yaml")),
    ]


def _scenario_name(path: Path) -> str:
    """Return the name of the scenario in a file; empty if it holds something else."""
    from testbed_runtime.cli.loading import read

    try:
        data = read(path).data
    except UserError:
        return ""
    is_scenario = isinstance(data, Mapping) and data.get("kind") == "Scenario"
    return str((data.get("metadata") or {}).get("name", "")) if is_scenario else ""


def _run_locally(runs: StudyRuns, *, confirm: int, real: bool) -> int:
    """Run the study on this machine, print its result and write it. Return the exit code."""
    from msgspec.structs import replace

    from testbed_runtime.cli import folders, tables
    from testbed_runtime.tuning import production, score, table
    from testbed_runtime.tuning.grid import CURRENT, DEFAULT
    from testbed_runtime.tuning.picture import picture

    study, out = runs.study, runs.out
    folders.make_folder(out, exist_ok=True)
    specs = {name: loaded.document["spec"] for name, loaded in runs.scenarios.items()}
    if not real:
        spec = study.spec.model_copy(update={"references": [DEFAULT, CURRENT]})
        values = production.reference_values(spec, specs)
        if production.same_values(spec, values[DEFAULT], values[CURRENT]):
            spec = spec.model_copy(update={"references": [DEFAULT]})
        study = study.model_copy(update={"spec": spec})
        runs = replace(runs, study=study)
    for doubt in runs.doubts():
        exits.warn(doubt)
    detectors = production.detectors(study.spec, specs)
    outcomes = runs.run_real() if real else runs.search(detectors)
    lines = production.merged(study.spec, specs, score.table(study.spec, outcomes, detectors))
    confirmed = {} if real else runs.confirm(lines, confirm)
    shown = production.reference_values(study.spec, specs)
    text = table.markdown(study.spec, lines, confirmed, shown)
    columns = list(zip(*table.rows(study.spec, lines, shown), strict=True))
    written = out / f"{study.metadata.name}.study.md"
    data = json.dumps(table.to_json(study.spec, lines), indent=1, ensure_ascii=False)
    drawn = picture(study.spec, lines)
    # print before writing the files, so that a full disk does not lose the result
    for line in tables.fitting(columns, tables.output_width(), repeated=len(study.spec.options)):
        typer.echo(line)
    typer.echo(f"\n{table.sentences(study.spec, lines, confirmed)}")
    for suffix, content in ((".md", f"{text}\n"), (".json", f"{data}\n"), (".svg", drawn)):
        with naming(path := written.with_suffix(suffix)):
            if content:
                path.write_text(content, encoding="utf-8")
    typer.echo(f"table: {written}")
    if drawn:
        typer.echo(f"picture: {written.with_suffix('.svg')}")
    best = next((line for line in lines if line.best), None)
    if best and not real and not confirm:
        typer.echo("This is the answer of virtual time. `--confirm 1` repeats the best row in real runs.")
    return 0 if best else 1


async def _in_cluster(document: dict[str, Any], login: access.Access) -> int:
    """Apply the study and follow it until it finishes. Return the exit code."""
    import asyncio

    from testbed_runtime.tuning.score import NO_ROW

    async with access.connected(login) as api:
        name = document["metadata"]["name"]
        await api.apply({**document, "metadata": {**document["metadata"], "namespace": api.namespace}})
        last = ""
        while True:
            found = await api.get("TuningStudy", api.namespace, name) or {}
            status = found.get("status") or {}
            phase = status.get("phase", "waiting for the operator")
            shown = " ".join(filter(None, (phase, status.get("progress"), status.get("message"))))
            if shown != last:
                exits.say(last := shown)
            if not found or status.get("phase") in (COMPLETE, REJECTED):
                break
            await asyncio.sleep(LOOK_S)
    for row in status.get("table") or ():
        values = row.get("reference") or ", ".join(f"{k}={v}" for k, v in row["options"].items())
        objectives = ", ".join(f"{k}: {v}" for k, v in (row.get("objectives") or {}).items())
        costs = "".join(f"; {key}: {text}" for key, text in (row.get("costs") or {}).items())
        why = f"; {row['reason']}" if row.get("reason") else ""
        typer.echo(f"{'* ' if row.get('best') else '  '}{values}: {row['verdict']}; {objectives}{costs}{why}")
    for line in status.get("answer") or [
        f"best: {status['best']}" if status.get("best") else status.get("message") or NO_ROW
    ]:
        typer.echo(line)
    return 0 if status.get("best") else 1
