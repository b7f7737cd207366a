"""Exit codes and messages on stderr. An error is shown with the field's path and how to fix it, without a stack trace."""

from __future__ import annotations

import errno
import os
import traceback

import typer

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.verdict import EXIT_CODES, EXIT_ERROR, Verdict

PASS, ERROR = EXIT_CODES[Verdict.PASS], EXIT_ERROR
INTERRUPTED = 130
"""Ctrl-C or SIGTERM, as shells expect (128 + SIGINT)."""
DEBUG = "HEADGATE_DEBUG"
"""Set to 1 to see stack traces."""

NUMBERS = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of at most 4300 digits",
    "float_parsing": "a number",
}
"""The expected kinds of values, by the type of the error of pydantic, which typer uses, for a value that it could not read."""
LIMITS = {"ge": "or more", "le": "or less"}
"""How the message for a value outside of its limits begins, by the name of the limit in pydantic's error."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM, raised after the cleanup; its text says what happened to the run. Not a KeyboardInterrupt, which typer
    would turn into a bare `Aborted.`"""


def say(text: str) -> None:
    """Print a message on stderr."""
    typer.echo(text, err=True)


def warn(text: str) -> None:
    say(f"warning: {text}")


def explain(error: BaseException) -> str:
    """Return the message for an error."""
    if isinstance(error, HeadgateError):
        cause = error.__cause__
        return str(error) + (
            f" Caused by {explain(cause)}" if isinstance(cause, HeadgateError | OSError) else ""
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full: {error.filename or error.strerror}; free some space; what was recorded so far is kept"
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    if isinstance(error, BaseExceptionGroup):
        return explain(error.exceptions[0])
    return f"{type(error).__name__}: {error}; this is a bug in Headgate; {DEBUG}=1 shows where"


def bad_value(error: typer.BadParameter) -> str:
    """Return the message for a value that an option or argument cannot have, with the value and what to write instead."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return error.message or str(getattr(error.param, "help", None) or "")  # a missing value has none
    found = details()[0]
    given, limits = found["input"], found.get("ctx") or {}
    if found["type"] in NUMBERS:
        return f"{given!r} is not {NUMBERS[found['type']]}"
    for limit, words in LIMITS.items():
        if limit in limits:
            return f"{given} is out of range: write {limits[limit]:.15g} {words}"
    return str(found["msg"]).removeprefix("Value error, ").rstrip(".")


def report(error: BaseException) -> int:
    """Print the error on stderr and return the exit code."""
    if os.environ.get(DEBUG) == "1":
        traceback.print_exception(error)
    say(f"headgate: {explain(error)}")
    return ERROR
