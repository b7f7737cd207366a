"""Run one loaded scenario in an environment and print its verdict, for the commands that run scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from msgspec import Struct

from testbed_runtime.api.compile import compile_run
from testbed_runtime.cli import environments, telemetry
from testbed_runtime.cli.access import Access, connected
from testbed_runtime.cli.exits import Interrupted, say
from testbed_runtime.cli.interrupting import run_interruptible
from testbed_runtime.cli.loading import Loaded
from testbed_runtime.cli.options import Environment, Policy
from testbed_runtime.cli.preflight import kept_checkpoints, require_functions
from testbed_runtime.cli.render import rendering
from testbed_runtime.cli.session import Session
from testbed_runtime.cli.tables import output_width, side_by_side
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement.metrics import fix_of
from testbed_runtime.core.judgement.quantities import counted
from testbed_runtime.core.judgement.verdict import EXIT_CODES, Judged, Verdict, most_severe
from testbed_runtime.core.trial.plan import RunPlan
from testbed_runtime.files import naming
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.results import read_comparison
from testbed_runtime.runner.engine import Runner, RunRequest, RunResult
from testbed_runtime.runner.progress import Progress

NO_LOGIN = Access()
TRIALS_SHOWN = 5
"""Trials of a variant that are listed for the same expectation."""
RETRIES = 1
"""Number of repetitions of an Inconclusive scenario under `--inconclusive retry`."""
GIVEN_UP = "the cluster did not confirm the request to stop: the run may go on there; `headgate heal --all --on kubernetes` ends it"
STOPPED = "the run in the cluster was asked to heal and to stop; it stays there, with what was recorded"


class RunSettings(Struct, frozen=True, kw_only=True):
    """The settings with which a command runs scenarios."""

    out: Path
    environment: Environment = Environment.LOCAL
    variants: Sequence[str] = ()
    control: bool = True
    policy: Policy = Policy.REPORT
    quiet: bool = False
    access: Access = NO_LOGIN


def run_loaded(loaded: Loaded, session: Session, settings: RunSettings) -> RunResult:
    """Run a scenario; once more if it was Inconclusive and the policy is `retry`. Raises HeadgateError, Interrupted."""
    for warning in loaded.warnings:
        say(f"{loaded.path}: {warning}")

    def once() -> RunResult:
        if settings.environment is Environment.KUBERNETES:
            return _in_cluster(loaded, settings)
        return _on_this_machine(loaded, session, settings)

    result = once()
    for _ in range(RETRIES if settings.policy is Policy.RETRY else 0):
        if result.verdict.verdict is not Verdict.INCONCLUSIVE:
            break
        say("Inconclusive: running it once more")
        result = once()
    return result


def _on_this_machine(loaded: Loaded, session: Session, settings: RunSettings) -> RunResult:
    with _request(loaded, settings, "local") as request, rendering(quiet=settings.quiet) as progress:
        host, evaluator = environments.local(request.folder, progress, session.spark, request.plan)
        runner = Runner(request, host=host, evaluator=evaluator, progress=progress)
        return session.run(runner.run())


def still_possible(folder: Path) -> str:
    """Return a hint about how to judge the record of an interrupted run; empty if there is nothing to judge."""
    try:
        manifest = read_manifest(folder)
    except HeadgateError:
        return ""
    recorded = any(entry.phases for entry in manifest.counted)
    return f"`headgate evaluate {folder}` judges the trials that were recorded" if recorded else ""


def _in_cluster(loaded: Loaded, settings: RunSettings) -> RunResult:
    """Run the scenario as a ScenarioRun, which stays in the cluster with its report."""

    async def follow(progress: Progress) -> RunResult:
        async with connected(settings.access) as api:
            from testbed_runtime.kube.client_run import ClientRun

            run = ClientRun(api, api.namespace, progress)
            return await run.run(
                loaded.scenario,
                loaded.document,
                plan=plan,
                out=settings.out,
                variants=settings.variants,
                control=settings.control,
                checkpoints=checkpoints,
                files=files,
            )

    from testbed_runtime.kube.functions import files_of

    plan = _plan(loaded, settings)
    require_functions(plan, pods=True)
    files = files_of(loaded.document, loaded.folder)
    checkpoints = kept_checkpoints(plan)
    with rendering(quiet=settings.quiet) as progress:
        return run_interruptible(follow(progress), became=STOPPED, given_up=GIVEN_UP)


def simulate_loaded(
    loaded: Loaded, *, out: Path, variants: Sequence[str] = (), quiet: bool = False
) -> RunResult:
    """Run a scenario in virtual time."""
    from testbed_runtime.simulation.entry import simulate

    settings = RunSettings(out=out, variants=variants)
    with _request(loaded, settings, "simulation") as request, rendering(quiet=quiet) as progress:
        return simulate(request, progress)


def _plan(loaded: Loaded, settings: RunSettings) -> RunPlan:
    folder = loaded.folder.resolve()
    return compile_run(
        loaded.scenario, scenario_folder=folder, variants=settings.variants, control=settings.control
    )


@contextmanager
def _request(loaded: Loaded, settings: RunSettings, environment: str) -> Iterator[RunRequest]:
    plan = _plan(loaded, settings)
    require_functions(plan)
    kept_checkpoints(plan)
    folder, info = environments.new_run(settings.out, loaded, environment)
    try:
        with naming(folder):
            yield RunRequest(
                plan, loaded.document, info, folder, inconclusive=in_junit(settings.policy, "skip")
            )
    # a simulation has nothing to clean up, so it ends with a KeyboardInterrupt
    except (Interrupted, KeyboardInterrupt) as error:
        raise Interrupted("; ".join(filter(None, [str(error), still_possible(folder)]))) from None
    finally:
        # a run that was refused before it started leaves no empty folder
        if not any(folder.iterdir()):
            folder.rmdir()


def in_junit(policy: Policy, otherwise: str) -> str:
    """Return how junit.xml reports an Inconclusive expectation: `fail`, `pass`, or `otherwise` if the policy does not decide."""
    return {Policy.FAIL: "fail", Policy.PASS: "pass"}.get(policy, otherwise)


def exit_code(verdicts: Iterable[Verdict], policy: Policy) -> int:
    """Return the exit code for the worst of the verdicts. The policy can replace the code of Inconclusive."""
    found = most_severe(verdicts)
    if found is Verdict.INCONCLUSIVE and policy in (Policy.FAIL, Policy.PASS):
        found = Verdict.FAIL if policy is Policy.FAIL else Verdict.PASS
    return EXIT_CODES[found]


def conclude(name: str, result: RunResult) -> None:
    """Print the verdict, and send the trace if a collector is configured."""
    print_verdict(name, result)
    if line := telemetry.export(result.folder):
        say(f"  {line}")


def print_verdict(name: str, result: RunResult) -> None:
    """Print on stdout: the verdict, the variants side by side, the failed expectations, what to do if they decide nothing, what
    quantiles over trials show, and the path of the report."""
    verdict = result.verdict
    typer.echo(f"{name}: {verdict.verdict}: {verdict.summary}")
    for line in verdict.answer:
        typer.echo(f"  {line}")
    for line in _variants(result.folder, output_width()):
        typer.echo(f"  {line}".rstrip())
    failed = [item for item in verdict.judged if item.verdict is not Verdict.PASS]
    failed.sort(key=lambda item: -item.verdict.severity)  # what decided the verdict comes first
    alike = grouped(((i.verdict, i.variant, i.where, _why(i)), i.text) for i in failed)
    trials = grouped(
        ((judged, variant, tuple(asked)), (where, why))
        for (judged, variant, where, why), asked in alike.items()
    )
    for (judged, variant, asked), places in trials.items():
        for where, why in places[:TRIALS_SHOWN]:
            head = f"{judged}: {where}" if where else judged
            if len(asked) == 1:
                typer.echo(f"  {head}: {asked[0]}: {why}")
            else:  # several expectations with one cause: print it once
                typer.echo("\n    ".join([f"  {head}: {why}:", *asked]))
        if (more := len(places) - TRIALS_SHOWN) > 0:
            text = f"also in {counted(more, 'more trial')} of {variant} (verdict.json has all)"
            typer.echo(f"  {judged}: {', '.join(asked)}: {text}")
    if verdict.verdict is Verdict.INCONCLUSIVE:
        reasons = [item.reason for item in verdict.judged if item.verdict is Verdict.INCONCLUSIVE]
        for fix in filter(None, dict.fromkeys(map(fix_of, reasons))):
            typer.echo(f"  what to do: {fix}")
    for item in verdict.judged:
        if item.note and item.quantile is not None and not item.trial:
            typer.echo(f"  {item.variant}: {item.text}: {item.note}")
    typer.echo(f"  report: {result.report}")


def _variants(folder: Path, width: int) -> list[str]:
    """Return the variants of a run side by side, and which of them is better. Empty for a run with one variant."""
    table = read_comparison(folder)
    if len(table.groups) < 2:
        return []
    return ["", *side_by_side(table, width=width - 2), *table.summary, ""]


def _why(item: Judged) -> str:
    """Return why an expectation did not hold: what was measured, the reason, or both if the trials of two variants do not decide."""
    measured = f"measured {item.measured or 'nothing'}"
    if item.verdict is Verdict.ERROR and item.measured:
        return item.measured
    if item.explanation and item.note and item.measured:
        return f"{measured}; {item.explanation}"
    return item.explanation or measured
