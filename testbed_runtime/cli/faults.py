"""`headgate faults`: what can be done here and what cannot, and which faults are active now."""

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
    """List the fault kinds with their backends here, or why there is none, and the faults that are active."""
    if metrics:
        _list_metrics()
        return
    _list_kinds()
    _list_active()


def _list_kinds() -> None:
    from testbed_runtime.api.fault_fields import fields_of
    from testbed_runtime.core.errors import UserError
    from testbed_runtime.faults.model import KINDS
    from testbed_runtime.faults.registry import LOCAL, choose_backend

    refused: list[str] = []
    typer.echo(f"{'kind':<{KIND_WIDTH}}{'by':<{BACKEND_WIDTH}}what happens (and its fields)")
    for kind in KINDS.values():
        try:
            backend, _ = choose_backend(kind.name, LOCAL)
        except UserError as error:
            backend = "–"
            refused.append(f"{error.problem}; {error.hint}")
        named = ", ".join(fields_of(kind.name))
        typer.echo(
            f"{kind.name:<{KIND_WIDTH}}{backend:<{BACKEND_WIDTH}}{kind.doc}{f' ({named})' if named else ''}"
        )
    for problem in refused:
        typer.echo(f"\nnot here: {problem}")


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
