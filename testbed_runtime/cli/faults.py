"""`headgate faults`: list the fault kinds that this machine can inject, and the faults that are active now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from testbed_runtime.cli import tables
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement.metrics import METRICS

if TYPE_CHECKING:
    from testbed_runtime.core.faults.vocabulary import Kind
    from testbed_runtime.faults.registry import Capabilities


def faults(
    metrics: Annotated[
        bool, typer.Option("--metrics", help="List the metrics that `expect` can name.")
    ] = False,
) -> None:
    """List the fault kinds with the backends that this machine offers, or the reason why none does, and the active faults."""
    if metrics:
        _list_metrics()
        return
    from testbed_runtime.local import packets

    for line in kind_lines(asyncio.run(packets.capabilities()), tables.terminal_width()):
        typer.echo(line)
    _list_active()


def kind_lines(offered: Capabilities, width: int) -> Iterator[str]:
    """Yield the table of the kinds, then why some are not possible: each sentence once. Pure."""
    from testbed_runtime.core.faults.kinds import KINDS
    from testbed_runtime.faults.registry import LOCAL, choose_backend

    refused: list[Kind] = []
    rows = [("kind", "backend", "what happens (and its fields)")]
    for kind in KINDS.values():
        backend = "–"
        for capabilities in (LOCAL, offered):  # as `run` does: packets only if no other backend can
            with suppress(UserError):
                backend = choose_backend(kind, capabilities)[0]
                break
        else:
            refused.append(kind)
        fields = ", ".join(parameter.alias for parameter in kind.parameters)
        more = f" ({fields})" if fields else ""
        rows.append((kind.name, backend, f"{kind.doc}{more}"))
    yield from tables.described(rows, width)
    for line in _why_refused(refused, offered):
        yield from tables.wrapped(line, width, then="    ")


def _why_refused(kinds: Sequence[Kind], offered: Capabilities) -> Iterator[str]:
    if not kinds:
        return
    yield ""
    yield "Not possible on this machine:"
    for need, names in grouped((" or ".join(k.backends), k.name) for k in kinds).items():
        yield f"  {', '.join(names)}: need {need}"
    missing = {name for kind in kinds for name in kind.backends if name not in offered.backends}
    for why, names in grouped((offered.missing.get(n, "not offered"), n) for n in sorted(missing)).items():
        yield f"  {', '.join(names)}: {why}"
    for instead, names in grouped((k.instead, k.name) for k in kinds).items():
        yield f"  instead of {', '.join(names)}: {instead}"


def _list_metrics() -> None:
    rows = []
    for metric in METRICS.values():
        extra = [w for w, on in (("phase", metric.phased), ("quantile", metric.quantiles)) if on]
        more = f" (takes {' and '.join(extra)})" if extra else ""
        rows.append((metric.name, metric.unit, f"{metric.doc}{more}"))
    for line in tables.described(rows, tables.terminal_width()):
        typer.echo(line)


def _list_active() -> None:
    from testbed_runtime.local import registry

    active = registry.active_faults()
    typer.echo("\nactive faults:" if active else "\nno fault is active on this machine")
    for fault in active:
        typer.echo(f"  {fault}")
