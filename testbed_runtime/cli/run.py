"""`headgate run`: scenarios, one after the other, on this machine or in a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from testbed_runtime.cli import access, options


def run(  # noqa: PLR0917 - typer passes by name
    scenarios: options.Scenarios,
    variant: options.Variants = None,
    no_control: Annotated[bool, typer.Option("--no-control", help="Skip the control runs.")] = False,
    out: options.Out = options.DEFAULT_OUT,
    inconclusive: options.InconclusivePolicy = options.Policy.REPORT,
    on: options.OnEnvironment = options.Environment.LOCAL,
    quiet: options.Quiet = False,
    namespace: access.Namespace = "",
    context: access.Context = "",
    kubeconfig: access.Kubeconfig = "",
    from_checkpoint: options.FromCheckpoint = None,
) -> None:
    """Run scenarios: create a testbed for each, inject its faults, judge it and write a report.

    Ctrl-C heals faults, stops every process and keeps what was recorded (exit 130)."""
    from testbed_runtime.cli import loading, running
    from testbed_runtime.cli.session import Session

    login = access.access_for(on.value, namespace, context, kubeconfig)
    settings = running.RunSettings(
        out=out,
        environment=on,
        variants=variant or (),
        control=not no_control,
        policy=inconclusive,
        quiet=quiet,
        access=login,
    )
    loaded = [loading.with_checkpoint(item, from_checkpoint) for item in loading.load_all(scenarios)]
    verdicts = []
    with Session() as session:
        for item in loaded:
            result = running.run_loaded(item, session, settings)
            running.conclude(item.scenario.metadata.name, result)
            verdicts.append(result.verdict.verdict)
    raise typer.Exit(running.exit_code(verdicts, inconclusive))
