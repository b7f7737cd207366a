"""The commands of `headgate`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from testbed_runtime.cli import (
    ci,
    compare,
    doctor,
    evaluate,
    executions,
    faults,
    heal,
    memory,
    new,
    plan,
    report,
    run,
    simulate,
    state,
    trace,
    tune,
    validate,
)
from testbed_runtime.cli.commandline import command_tree

HELP = """Show which timeout cost you each second of a streaming recovery.

Headgate runs a scenario on a testbed that speaks Flink's wire protocol, injects its faults, judges the recorded history, and writes a report.

Exit codes: 0 Pass, 1 Fail, 2 Error (bad input, or the run could not be carried out), 3 Inconclusive, 130 interrupted."""
ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
COMMANDS: tuple[Callable[..., None], ...] = (
    new.new, validate.validate, run.run, ci.ci, simulate.simulate, evaluate.evaluate, report.report, faults.faults, heal.heal, tune.tune,
    compare.compare, compare.trend, memory.memory, plan.plan, executions.executions, trace.trace, state.state, doctor.doctor,
)  # fmt: skip
"""In the order in which the help lists them."""
EXCHANGE_HELP = "Serve or fetch one partition over the wire, also with Flink at the other end."


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headgate {version('headgate')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version  # the callback of the option has already ended the program


def _supervise(context: typer.Context) -> None:
    """Internal: start, watch, pause and kill Headgate's processes, and hold the deadlines of faults."""
    from testbed_runtime.entry.supervisor import main

    sys.argv = ["headgate supervise", *context.args]
    raise typer.Exit(main())


def build(*, whole: bool = False) -> typer.Typer:
    """Return the command tree. Unless `whole`, `exchange` is imported only if it is called: it needs numpy and the transport."""
    app = command_tree("headgate", HELP)
    app.callback(help=HELP)(_root)
    for command in COMMANDS:
        app.command(command.__name__)(command)
    app.command("supervise", hidden=True, context_settings=ANY_ARGUMENTS)(_supervise)
    app.add_typer(_exchange(whole), name="exchange", help=EXCHANGE_HELP)
    return app


def _exchange(whole: bool) -> typer.Typer:
    if whole or "exchange" in sys.argv[1:] or "_HEADGATE_COMPLETE" in os.environ:
        from testbed_runtime.cli import exchange

        return exchange.app
    stub = typer.Typer()
    stub.callback(invoke_without_command=True)(lambda: None)
    return stub
