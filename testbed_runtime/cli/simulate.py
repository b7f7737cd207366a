"""`headgate simulate`: the same document in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed_runtime.cli import options
from testbed_runtime.simulation.loop import rare_collections

MAX_SEEDS = 1000
"""Maximum runs of one command. The range from p5 to p95 of 1,000 runs is accurate to about one percentile."""


@rare_collections(last=True)  # around the whole command, so that its imports are covered too
def simulate(  # noqa: PLR0917 - typer passes by name
    scenario: Annotated[Path, typer.Argument(help="A scenario folder, or a YAML file.", show_default=False)],
    seed: Annotated[
        int | None, typer.Option(help="Seed to use instead of the scenario's.", show_default=False)
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_SEEDS,
            help="Number of seeds. With more than one, the distribution of each metric is printed, and which timeout cost each second.",
        ),
    ] = 1,
    out: options.Out = options.DEFAULT_OUT,
    variant: options.Variants = None,
    inconclusive: options.InconclusivePolicy = options.Policy.REPORT,
    quiet: options.Quiet = False,
    from_checkpoint: options.FromCheckpoint = None,
) -> None:
    """Run a scenario in virtual time, without processes or sockets. Its seed makes the run repeatable."""
    from testbed_runtime.cli import loading, running

    loaded = loading.with_checkpoint(loading.load(scenario), from_checkpoint)
    if seed is not None:
        loaded = loading.with_seed(loaded, seed)
    if seeds > 1:
        from testbed_runtime.cli.seeds import simulate_seeds

        verdicts = simulate_seeds(loaded, seeds=seeds, out=out, variants=variant or (), quiet=quiet)
        raise typer.Exit(running.exit_code(verdicts, inconclusive))
    result = running.simulate_loaded(loaded, out=out, variants=variant or (), quiet=quiet)
    running.conclude(loaded.scenario.metadata.name, result)
    raise typer.Exit(running.exit_code([result.verdict.verdict], inconclusive))
