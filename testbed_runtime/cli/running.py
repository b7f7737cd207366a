"""Running one loaded scenario in a place, for `run` and `ci`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import typer

from testbed_runtime.api.compile import compile_run
from testbed_runtime.cli import exits, places
from testbed_runtime.cli.access import Access, connected
from testbed_runtime.cli.interrupting import run_interruptible
from testbed_runtime.cli.loading import Loaded
from testbed_runtime.cli.options import Place, Policy
from testbed_runtime.cli.render import rendering
from testbed_runtime.cli.session import Session
from testbed_runtime.runner.engine import Runner, RunRequest, RunResult
from testbed_runtime.runner.progress import Progress

NOWHERE = Access()
RETRIES = 1
"""More runs of an Inconclusive scenario under `--inconclusive retry`."""
PERHAPS_NOT_TOLD = "nobody waited for the answer of the cluster: the run may go on there; `headgate heal --all --on kubernetes` ends it"
TOLD_TO_STOP = "the run in the cluster was told to heal and to stop; it stays there, with what was recorded"


def run_loaded(
    loaded: Loaded,
    *,
    session: Session,
    out: Path,
    place: Place,
    variants: Sequence[str] = (),
    control: bool = True,
    policy: Policy = Policy.TELL,
    quiet: bool = False,
    access: Access = NOWHERE,
) -> RunResult:
    """Once, or again when it was Inconclusive and the policy says so. Raises HeadgateError, KeyboardInterrupt."""
    for warning in loaded.warnings:
        say(f"{loaded.path}: {warning}")
    once = (
        partial(_in_cluster, access=access)
        if place is Place.KUBERNETES
        else partial(_once, session=session, junit=_in_junit(policy))
    )
    result = once(loaded, out, place, variants=variants, control=control, quiet=quiet)
    for _ in range(RETRIES if policy is Policy.RETRY else 0):
        if result.verdict["verdict"] != "Inconclusive":
            break
        say("Inconclusive: running it once more")
        result = once(loaded, out, place, variants=variants, control=control, quiet=quiet)
    return result


def _once(
    loaded: Loaded,
    out: Path,
    place: Place,
    *,
    variants: Sequence[str],
    control: bool,
    quiet: bool,
    session: Session,
    junit: str,
) -> RunResult:
    with (
        _request(loaded, out, place.value, variants=variants, control=control, junit=junit) as request,
        rendering(quiet=quiet) as progress,
    ):
        host, evaluator = places.local(request.folder, progress, session.spark, request.plan)
        runner = Runner(request, host=host, evaluator=evaluator, progress=progress)
        return session.run(runner.run())


def _in_cluster(
    loaded: Loaded,
    out: Path,
    place: Place,
    *,
    variants: Sequence[str],
    control: bool,
    quiet: bool,
    access: Access,
) -> RunResult:
    """The same through a ScenarioRun, which stays in the cluster with its report."""
    del place  # there is one cluster

    async def follow(progress: Progress) -> RunResult:
        async with connected(access) as api:
            from testbed_runtime.kube.client_run import ClientRun

            run = ClientRun(api, api.namespace, progress)
            return await run.run(
                loaded.scenario, loaded.document, out=out, variants=variants, control=control
            )

    with rendering(quiet=quiet) as progress:
        return run_interruptible(follow(progress), became=TOLD_TO_STOP, given_up=PERHAPS_NOT_TOLD)


def simulate_loaded(
    loaded: Loaded, *, out: Path, variants: Sequence[str] = (), quiet: bool = False
) -> RunResult:
    """The same in virtual time."""
    from testbed_runtime.simulation.entry import simulate

    with (
        _request(loaded, out, "simulation", variants=variants, control=True) as request,
        rendering(quiet=quiet) as progress,
    ):
        return simulate(request, progress)


@contextmanager
def _request(
    loaded: Loaded,
    out: Path,
    place: str,
    *,
    variants: Sequence[str],
    control: bool,
    junit: str = "skip",
) -> Iterator[RunRequest]:
    plan = compile_run(
        loaded.scenario, scenario_folder=loaded.folder.resolve(), variants=variants, control=control
    )
    folder, info = places.new_run(out, loaded, place)
    try:
        yield RunRequest(
            plan=plan,
            document=loaded.document,
            info=info,
            folder=folder,
            inconclusive=junit,
        )
    finally:
        # refused before it began: no empty folder stays behind
        if not any(folder.iterdir()):
            folder.rmdir()


def _in_junit(policy: Policy) -> str:
    """What an Inconclusive expectation is in junit.xml."""
    return {Policy.FAIL: "fail", Policy.PASS: "pass"}.get(policy, "skip")


def exit_code(verdict: str, policy: Policy) -> int:
    """Of one verdict, by the policy for Inconclusive."""
    if verdict == "Inconclusive":
        return {Policy.FAIL: exits.FAIL, Policy.PASS: exits.PASS}.get(policy, exits.INCONCLUSIVE)
    return exits.OF_VERDICT[verdict]


def tell_verdict(name: str, result: RunResult) -> None:
    """Verdict, what did not hold, and where the report is; on stdout, because it is the answer."""
    verdict = result.verdict
    typer.echo(f"{name}: {verdict['verdict']}: {verdict['summary']}")
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for item in verdict["expectations"]:
        if item["verdict"] == "Pass":
            continue
        where = item["trial"] or item["variant"]
        measured = f"measured {item['measured'] or 'nothing'}"
        why = (item["verdict"] == "Error" and item["measured"]) or item["explanation"] or measured
        grouped.setdefault((item["verdict"], where, why), []).append(item["text"])
    for (judged, where, why), asked in grouped.items():
        place = f"{judged}: {where}" if where else judged
        if len(asked) == 1:
            typer.echo(f"  {place}: {asked[0]}: {why}")
        else:  # one cause: its reason once
            typer.echo("\n    ".join([f"  {place}: {why}:", *asked]))
    typer.echo(f"  report: {result.report}")


def worst(verdicts: Sequence[str]) -> str:
    """Error > Fail > Inconclusive > Pass, wherever it stands."""
    return max(verdicts, key=("Pass", "Inconclusive", "Fail", "Error").index, default="Inconclusive")


def say(text: str) -> None:
    """For people, on stderr."""
    typer.echo(text, err=True)
