"""`headgate heal --all`: every fault of ours on this machine, or in a cluster, ends now."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from testbed_runtime.cli import access, options


def heal(  # noqa: PLR0917 - typer passes by name
    every: Annotated[bool, typer.Option("--all", help="Every fault of every running testbed.")] = False,
    on: options.OnPlace = options.Place.LOCAL,
    namespace: access.Namespace = "",
    all_namespaces: access.AllNamespaces = False,
    context: access.Context = "",
    kubeconfig: access.Kubeconfig = "",
) -> None:
    """End faults now, whoever asked for them. In a cluster: the Faults go, runs stop with Inconclusive (Healed)."""
    from testbed_runtime.core.errors import UserError

    login = access.Access(namespace, context, kubeconfig)
    access.require_cluster(on.value, login)
    if not every:
        raise UserError(
            "--all", "is missing", f"write `headgate heal --all`; it ends every fault {_where(on)}"
        )
    if on is options.Place.KUBERNETES:
        in_cluster(login, all_namespaces=all_namespaces)
        return
    from testbed_runtime.local import registry

    for line in registry.heal_all():
        typer.echo(line)


def _where(on: options.Place) -> str:
    return "of the namespace" if on is options.Place.KUBERNETES else "on this machine"


def in_cluster(login: access.Access, *, all_namespaces: bool) -> None:
    """Healed, waited for and told."""
    from testbed_runtime.cli import cluster_heal

    healed, where = asyncio.run(cluster_heal.heal(login, all_namespaces=all_namespaces))
    for one in healed:
        typer.echo(f"{one}: healed")
    if not healed:
        typer.echo(f"no fault and no run is active in {where}")
