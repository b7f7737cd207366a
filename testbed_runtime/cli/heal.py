"""`headgate heal --all`: every fault of ours on this machine ends now."""

from __future__ import annotations

from typing import Annotated

import typer


def heal(
    every: Annotated[bool, typer.Option("--all", help="Every fault of every running testbed.")] = False,
) -> None:
    """End faults now, whoever asked for them."""
    from testbed_runtime.core.errors import UserError
    from testbed_runtime.local import registry

    if not every:
        raise UserError(
            "--all", "is missing", "write `headgate heal --all`; it ends every fault on this machine"
        )
    for line in registry.heal_all():
        typer.echo(line)
