"""Shared by the console scripts: the messages and exit codes of errors, and the answer to Ctrl-C and SIGTERM."""

from __future__ import annotations

import atexit
import functools
import gc
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperArgument, TyperGroup

from testbed_runtime.cli import exits

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
WRAPPED = re.compile(r"(?<!\n)\n(?!\n)")
"""A line break within a paragraph."""


class _Commands(TyperGroup):
    """The commands of a console script. Unlike typer's own messages, those for an invalid option contain the value, and Ctrl-C is reported."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = exits.bad_value(error)
            raise
        except KeyboardInterrupt:  # Ctrl-C during a command without a cleanup, such as simulate
            raise exits.Interrupted from None

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """Find the command. Typer suggests a command for a misspelt name, and this method suggests one for an abbreviation."""
        word = args[0] if args else ""
        meant = [repr(n) for n, c in self.commands.items() if word and n.startswith(word) and not c.hidden]
        if meant and word not in self.commands and not ctx.resilient_parsing:  # the shell completes a line
            ctx.fail(f"No such command {word!r}. Did you mean {', '.join(meant)}?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """Return the command. Its arguments are named as in the documentation (`SCENARIOS...`) with every version of typer.

        The line breaks of its docstring are removed, so that the help is as wide as the terminal. Typer would keep them."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help:
            command.help = WRAPPED.sub(" ", inspect.cleandoc(command.help))
        for argument in command.params if command is not None else ():
            if isinstance(argument, TyperArgument):
                argument.metavar = name = str(argument.name).upper()
                pieces = [
                    (name if argument.required else f"[{name}]") + ("" if argument.nargs == 1 else "...")
                ]
                setattr(argument, "get_usage_pieces", lambda ctx, pieces=pieces: pieces)  # noqa: B010
        return command

    def make_context(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().make_context(*args, **extra)
        except KeyboardInterrupt:
            raise exits.Interrupted from None


def command_tree(name: str, text: str, *, completes: bool = True) -> typer.Typer:
    """Return a console script without commands. `completes`: whether it installs completion for the shell."""
    return typer.Typer(
        name=name,
        cls=_Commands,
        help=text,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=completes,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def fixed(command: Callable[..., Any], **values: Any) -> Callable[..., Any]:
    """Return a command without some of its options, which have these values."""

    @functools.wraps(command)
    def call(**given: Any) -> Any:
        return command(**given, **values)

    signature = inspect.signature(command, eval_str=True)
    left = [option for name, option in signature.parameters.items() if name not in values]
    setattr(call, "__signature__", signature.replace(parameters=left))  # noqa: B010 - where inspect looks for it
    return call


def run_command_line(build: Callable[[], typer.Typer], name: str) -> None:
    """Run a console script. An error becomes a message and an exit code."""
    atexit.register(gc.freeze)  # skip the interpreter's last garbage collection: the process ends anyway
    with _noting_interrupts() as noted:
        try:
            build()(prog_name=name)
        except (exits.Interrupted, KeyboardInterrupt) as error:
            _end_interrupted(error)
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):
                _end_unread()
            raise
        except Exception as error:
            if noted:
                _end_interrupted(exits.Interrupted())
            sys.exit(exits.report(error))


@contextmanager
def _noting_interrupts() -> Iterator[list[int]]:
    """Yield a list to which each Ctrl-C and SIGTERM is added. Libraries may turn the KeyboardInterrupt into errors of their own, as
    pydantic does while it is imported."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    for number in INTERRUPTS:
        if signal.getsignal(number) is signal.default_int_handler:
            signal.signal(number, note)
    try:
        yield noted
    finally:
        for number in INTERRUPTS:
            if signal.getsignal(number) is note:
                signal.signal(number, signal.default_int_handler)


def _end_unread() -> NoReturn:
    """End a command whose output is no longer read. Typer and rich exit with 1 then, which means Fail."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(exits.ERROR)


def _end_interrupted(error: BaseException) -> NoReturn:
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)  # the cleanup is already done
    exits.say("; ".join(["headgate: interrupted", *filter(None, [str(error)])]))
    sys.exit(exits.INTERRUPTED)
