"""`headgate supervise`: the parent of our processes. Internal."""

from __future__ import annotations

import typer

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def supervise(context: typer.Context) -> None:
    """Start, watch, pause and kill our processes, and hold the deadlines of faults."""
    import sys

    from testbed_runtime.entry.supervisor import main

    sys.argv = ["headgate supervise", *context.args]
    raise typer.Exit(main())
