"""The commands of `headgate`, and the messages and exit codes of their errors."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from testbed_runtime.cli import (
    ci,
    compare,
    doctor,
    evaluate,
    executions,
    exits,
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

HELP = """Show which timeout cost you each second of a streaming recovery.

Headgate runs a scenario on a testbed that speaks Flink's wire protocol, injects its faults, judges the recorded history, and writes a report.

Exit codes: 0 Pass, 1 Fail, 2 Error (bad input, or the run could not be carried out), 3 Inconclusive, 130 interrupted."""
ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
EXCHANGE_HELP = "Serve or fetch one partition over the wire, also with Flink at the other end."


class _Commands(TyperGroup):
    """The commands. Unlike typer's own messages, those for an invalid option contain the value, and Ctrl-C is reported."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = exits.bad_value(error)
            raise
        except KeyboardInterrupt:  # of a command without a cleanup, such as simulate
            raise exits.Interrupted from None

    def make_context(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().make_context(*args, **extra)
        except KeyboardInterrupt:
            raise exits.Interrupted from None


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
    del version  # its callback has already ended the program


def _supervise(context: typer.Context) -> None:
    """Internal: start, watch, pause and kill Headgate's processes, and hold the deadlines of faults."""
    from testbed_runtime.entry.supervisor import main

    sys.argv = ["headgate supervise", *context.args]
    raise typer.Exit(main())


def build(*, whole: bool = False) -> typer.Typer:
    """Return the command tree. Unless `whole`, `exchange` is imported only if it is called: it needs numpy and the transport."""
    app = typer.Typer(
        name="headgate",
        cls=_Commands,
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=HELP)(_root)
    app.command("new")(new.new)
    app.command("validate")(validate.validate)
    app.command("run")(run.run)
    app.command("ci")(ci.ci)
    app.command("simulate")(simulate.simulate)
    app.command("evaluate")(evaluate.evaluate)
    app.command("report")(report.report)
    app.command("faults")(faults.faults)
    app.command("heal")(heal.heal)
    app.command("tune")(tune.tune)
    app.command("compare")(compare.compare)
    app.command("trend")(compare.trend)
    app.command("memory")(memory.memory)
    app.command("plan")(plan.plan)
    app.command("executions")(executions.executions)
    app.command("trace")(trace.trace)
    app.command("state")(state.state)
    app.command("doctor")(doctor.doctor)
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


def run_command_line() -> None:
    """Run the command line. An error becomes a message and an exit code."""
    atexit.register(gc.freeze)  # skip the interpreter's last garbage collection: the process ends anyway
    with _noting_interrupts() as noted:
        try:
            build()(prog_name="headgate")
        except (exits.Interrupted, KeyboardInterrupt) as error:
            _end_interrupted(error)
        except BrokenPipeError:
            # the reader of stdout is gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(exits.ERROR)
        except Exception as error:
            if noted:
                _end_interrupted(exits.Interrupted())
            sys.exit(exits.report(error))


@contextmanager
def _noting_interrupts() -> Iterator[list[int]]:
    """Yield a list that gets each Ctrl-C: libraries turn its KeyboardInterrupt into errors of their own, as pydantic does while it
    is imported."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_interrupted(error: BaseException) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the cleanup is already done
    sys.exit(exits.report_interrupted(error))
