"""`headgate trace`: the path of one network buffer, from its builder to the credit that it returns, or why each buffer is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from testbed_runtime.cli import exits
from testbed_runtime.cli.options import AsJson, FlinkVersion, Settings, flink_options, show
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.values import missing_unit, parse_duration

if TYPE_CHECKING:
    from testbed_runtime.simulation.buffertrace import Sent, Step


def trace(  # noqa: PLR0917 - options of the command line
    buffer: Annotated[int, typer.Option(help="The buffer to follow, by its sequence number (from 0).")] = 3,
    latency: Annotated[str, typer.Option(help="Latency of the network, in each direction.")] = "1 ms",
    service_time: Annotated[str, typer.Option(help="How long the consumer works on each buffer.")] = "10 ms",
    sent: Annotated[
        bool,
        typer.Option(
            "--sent",
            help="Instead, list all buffers sent up to this one, each with the reason for sending it.",
        ),
    ] = False,
    rate: Annotated[
        float,
        typer.Option(
            min=0, help="Records of 100 bytes that the producer writes per second; 0: as fast as it can."
        ),
    ] = 0.0,
    barriers: Annotated[str, typer.Option(help="Interval of checkpoint barriers; 0: none.")] = "0 s",
    flink_version: FlinkVersion = "2.x",
    settings: Settings = [],  # noqa: B006 - typer copies it
    as_json: AsJson = False,
) -> None:
    """Follow one network buffer between two TaskManagers in virtual time, from its builder to the returned credit.

    Each line is a step: builder, subpartition, wire, channel, reader, recycle and credit. It shows the credit and the backlog of the
    producer, the credit that the consumer has not announced yet, and the buffers in use on both sides.

    With --sent, the buffers are listed with the reason why each was sent: it was full, the output flusher
    (execution.buffer-timeout.interval) sent it, or an event followed it."""
    from testbed_runtime.simulation.buffertrace import MAX_SEQUENCE, TraceRequest, trace_buffer, trace_sent

    if not 0 <= buffer <= MAX_SEQUENCE:
        raise UserError("--buffer", f"{buffer} is not a sequence number", f"choose 0 to {MAX_SEQUENCE}")
    seconds = {}
    for name, text in (("--latency", latency), ("--service-time", service_time), ("--barriers", barriers)):
        try:
            seconds[name] = parse_duration(text)
        except ValueError as error:
            raise UserError(name, str(error)) from None
        if doubt := missing_unit(text):
            exits.warn(f"{name}: {doubt}")
    if not sent and (rate or seconds["--barriers"]):
        name = "--rate" if rate else "--barriers"
        raise UserError(name, "is only valid with --sent", f"add --sent, or leave out {name}")
    options = flink_options(settings, flink_version)
    if not options.boolean("taskmanager.network.credit-model"):
        raise UserError(
            "-D", "legacy mode has no credits to trace", "leave out taskmanager.network.credit-model"
        )
    times = seconds["--latency"], seconds["--service-time"]
    request = TraceRequest(buffer, options, *times, rate=rate, barriers_s=seconds["--barriers"])
    output: dict[str, Any]
    if sent:
        found = trace_sent(request)
        output, table = msgspec.to_builtins(found), sent_lines(found)
    else:
        steps = trace_buffer(request)
        output, table = {"steps": [msgspec.to_builtins(step) for step in steps]}, lines(buffer, steps)
    show(output, table, as_json=as_json)


def sent_lines(sent: Sent) -> Iterator[str]:
    """Yield what was sent as a table, and the number of each reason. Pure."""
    yield f"{'ms':>9} {'number':>7} {'bytes':>7} {'backlog':>8} {'credit':>7}  reason"
    for buffer in sent.buffers:
        yield (
            f"{buffer.at_s * 1000:>9.3f} {buffer.sequence:>7} {buffer.size:>7} {buffer.backlog:>8} {buffer.credit:>7}  "
            f"{buffer.reason}"
        )
    counts = Counter(buffer.reason for buffer in sent.buffers)
    numbers = ", ".join(f"{counts.pop(reason, 0)} {reason}" for reason in ("full", "timeout", "event"))
    yield f"buffers: {numbers}; other events: {counts.total()}; the output flusher ran {sent.flushes} times"


def lines(buffer: int, steps: Sequence[Step]) -> Iterator[str]:
    """Yield the steps as a table. Pure."""
    yield f"buffer {buffer}"
    yield f"{'ms':>9}  {'side':<9} {'place':<13}{'credit':>7}{'backlog':>8}{'unannounced':>12}{'in use':>9}"
    for step in steps:
        used = f"{step.producer_buffers}/{step.consumer_buffers}"
        yield (
            f"{step.at_s * 1000:>9.3f}  {step.side:<9} {step.place:<13}{step.credit:>7}{step.backlog:>8}"
            f"{step.unannounced:>12}{used:>9}  {step.text}"
        )
