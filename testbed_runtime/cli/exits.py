"""Exit codes, and how errors look: a message with the field's path and the mend, no stack trace."""

from __future__ import annotations

import errno
import os
import traceback

import typer

from testbed_runtime.core.errors import HeadgateError

PASS, FAIL, ERROR, INCONCLUSIVE = 0, 1, 2, 3
INTERRUPTED = 130
"""Ctrl-C or SIGTERM, as shells expect (128 + SIGINT)."""
OF_VERDICT = {"Pass": PASS, "Fail": FAIL, "Error": ERROR, "Inconclusive": INCONCLUSIVE}
DEBUG = "HEADGATE_DEBUG"
"""Set to 1 to see stack traces."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM, after the cleaning up; its text says what became of what was under way. Not a KeyboardInterrupt: typer
    would turn that into a bare `Aborted.`"""


def explain(error: BaseException) -> str:
    """What a person needs of an error."""
    if isinstance(error, HeadgateError):
        cause = error.__cause__
        return str(error) + (
            f" Caused by {explain(cause)}" if isinstance(cause, HeadgateError | OSError) else ""
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full: {error.filename or error.strerror}; make room, what was recorded so far is kept"
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    if isinstance(error, BaseExceptionGroup):
        return explain(error.exceptions[0])
    return f"{type(error).__name__}: {error}; this is a bug of Headgate, {DEBUG}=1 shows where"


def report_interrupted(error: BaseException) -> int:
    """Print it on stderr; the exit code."""
    typer.echo("; ".join(["headgate: interrupted", *filter(None, [str(error)])]), err=True)
    return INTERRUPTED


def report(error: BaseException) -> int:
    """Print it on stderr; the exit code."""
    if os.environ.get(DEBUG) == "1":
        traceback.print_exception(error)
    typer.echo(f"headgate: {explain(error)}", err=True)
    return ERROR
