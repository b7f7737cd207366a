"""`headgate faults`: list the fault kinds that this machine can inject, and the faults that are active now."""

from __future__ import annotations

from typing import Annotated

import typer

KIND_WIDTH, BACKEND_WIDTH, METRIC_WIDTH, UNIT_WIDTH = 24, 12, 36, 11
"""Characters of the columns: the longest entry and two spaces."""


def faults(
    metrics: Annotated[
        bool, typer.Option("--metrics", help="List the metrics that `expect` can name.")
    ] = False,
) -> None:
    """List the fault kinds with their backends here, or why one is not possible, and the active faults."""
    if metrics:
        _list_metrics()
        return
    _list_kinds()
    _list_active()


def _list_kinds() -> None:
    from testbed_runtime.core.errors import UserError
    from testbed_runtime.core.faults.kinds import KINDS
    from testbed_runtime.faults.registry import LOCAL, choose_backend

    refused: dict[str, list[str]] = {}
    typer.echo(f"{'kind':<{KIND_WIDTH}}{'backend':<{BACKEND_WIDTH}}what happens (and its fields)")
    for kind in KINDS.values():
        try:
            backend, _ = choose_backend(kind, LOCAL)
        except UserError as error:
            backend = "–"
            reason = error.problem.removeprefix(f"{kind.name} is ")
            refused.setdefault(f"{reason}; {error.hint}", []).append(kind.name)
        fields = ", ".join(parameter.alias for parameter in kind.parameters)
        typer.echo(
            f"{kind.name:<{KIND_WIDTH}}{backend:<{BACKEND_WIDTH}}{kind.doc}{f' ({fields})' if fields else ''}"
        )
    for reason, names in refused.items():
        typer.echo(f"\n{', '.join(names)}: {reason}")


def _list_metrics() -> None:
    from testbed_runtime.core.judgement.metrics import METRICS

    for metric in METRICS.values():
        extra = [w for w, on in (("phase", metric.phased), ("quantile", metric.quantiles)) if on]
        more = f" (takes {' and '.join(extra)})" if extra else ""
        typer.echo(f"{metric.name:<{METRIC_WIDTH}}{metric.unit:<{UNIT_WIDTH}}{metric.doc}{more}")


def _list_active() -> None:
    from testbed_runtime.local import registry

    active = registry.active_faults()
    typer.echo("\nactive faults:" if active else "\nno fault is active on this machine")
    for fault in active:
        typer.echo(f"  {fault}")
