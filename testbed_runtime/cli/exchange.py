"""`headgate exchange`: one partition over the wire, also with Flink at the other end. One JSON object on stdout."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from testbed_runtime.cli import exits
from testbed_runtime.cli.interrupting import run_interruptible
from testbed_runtime.cli.options import Settings, flink_options
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.exchange.codec import BAD_MAGIC
from testbed_runtime.core.exchange.tls import DATA, INTERNAL, TlsSettings
from testbed_runtime.core.faults.links import ENTROPY_BYTES
from testbed_runtime.core.ids import RESULT_PARTITION_ID_BYTES, ResultPartitionID
from testbed_runtime.core.options import Options
from testbed_runtime.core.versions import VERSIONS
from testbed_runtime.ports.network import Address, format_address
from testbed_runtime.transport.exchange import (
    SILENCE_S,
    FetchRequest,
    ServeRequest,
    SubpartitionReport,
    check_fetch,
    check_serve,
    fetch,
    serve,
)
from testbed_runtime.transport.tcp import TcpNetwork

LOOPBACK = "127.0.0.1"
NOT_FLINK_FIX = (
    "use the port of taskmanager.data.port, not that of the RPC or REST, and a producer without TLS"
)
SEGMENT_SIZE = "taskmanager.memory.segment-size"

app = typer.Typer(
    help="One partition over the wire, also with Flink at the other end.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Partition = Annotated[str, typer.Option(help="ResultPartitionID: 120 hexadecimal digits.")]
Version = Annotated[str, typer.Option(help=f"Frame layout and behaviour: {', '.join(VERSIONS)}.")]


@app.command("serve")
def serve_command(  # noqa: PLR0917 - options of the command line
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0: a free one.")],
    partition: Partition,
    subpartitions: Annotated[int, typer.Option(help="Number of subpartitions.")] = 1,
    records: Annotated[int, typer.Option(help="Number of records per subpartition.")] = 10_000,
    record_bytes: Annotated[int, typer.Option(help="Bytes per record, without its 4-byte length.")] = 100,
    seed: Annotated[
        int, typer.Option(help="Seed of the first subpartition; each further one adds its index.")
    ] = 1,
    flink_version: Version = "2.x",
    settings: Settings = [],  # noqa: B006 - typer copies it
) -> None:
    """Serve generated records until every subpartition was consumed."""

    async def run() -> list[SubpartitionReport]:
        options = _options(settings, flink_version)
        request = ServeRequest(
            _partition(partition),
            (LOOPBACK, _port(port, least=0)),
            subpartitions,
            records,
            record_bytes,
            seed,
            options.memory(SEGMENT_SIZE),
        )
        check_serve(request)

        def listening(address: Address) -> None:
            exits.say(f"listening on {format_address(address)}")

        return await serve(TcpNetwork(), request, options, listening=listening)

    _run(run())


@app.command("fetch")
def fetch_command(  # noqa: PLR0917 - options of the command line
    port: Annotated[int, typer.Option(help="Port of the producer.")],
    partition: Partition,
    host: Annotated[str, typer.Option(help="Host of the producer.")] = LOOPBACK,
    subpartition: Annotated[int, typer.Option(help="Index of the subpartition, from 0.")] = 0,
    exclusive: Annotated[int, typer.Option(help="Exclusive buffers: the initial credit.")] = 2,
    floating: Annotated[int, typer.Option(help="Maximum number of floating buffers.")] = 8,
    flink_version: Version = "2.x",
    settings: Settings = [],  # noqa: B006 - typer copies it
) -> None:
    """Fetch a subpartition to its end, as a task would: resume it after each barrier, and acknowledge the end of data."""

    async def run() -> list[SubpartitionReport]:
        options = _options(settings, flink_version)
        entropy = secrets.token_bytes(ENTROPY_BYTES)
        request = FetchRequest(
            _partition(partition),
            (host, _port(port, least=1)),
            subpartition,
            exclusive,
            floating,
            entropy,
            options.memory(SEGMENT_SIZE),
        )
        check_fetch(request)
        return [await fetch(TcpNetwork(), request, options, waiting=lambda: _say_waiting(request.address))]

    _run(run())


def _options(settings: list[str], flink_version: str) -> Options:
    options = flink_options(settings, flink_version)
    if TlsSettings.read(options) is not None:
        problem = "this command has no certificate, so it cannot use TLS"
        raise UserError(f"-D {INTERNAL}", problem, f"leave it out, or add -D {DATA}=false")
    return options


def _partition(text: str) -> ResultPartitionID:
    size = RESULT_PARTITION_ID_BYTES
    problem, fix = (
        f"{text!r} is not a ResultPartitionID",
        f"write its {size} bytes as {2 * size} hexadecimal digits",
    )
    try:
        found = ResultPartitionID.from_bytes(bytes.fromhex(text))
    except ValueError:
        raise UserError("--partition", problem, fix) from None
    if min(found.producer.subtask, found.producer.attempt) < 0:
        problem = f"its producer has subtask {found.producer.subtask} and attempt {found.producer.attempt}, and Flink refuses negative ones"
        raise UserError("--partition", problem, "begin each of the last two groups of 8 digits with 0 to 7")
    return found


def _port(port: int, *, least: int) -> int:
    if not least <= port <= 65535:
        raise UserError("--port", f"{port} is not a port", f"choose {least} to 65535")
    return port


def _say_waiting(address: Address) -> None:
    exits.say(
        f"connected to {format_address(address)}, but nothing was received for {SILENCE_S:.0f} s. Still waiting: the producer has no data "
        f"yet, or this is not the data port of a TaskManager ({NOT_FLINK_FIX})"
    )


def _run(main: Coroutine[Any, Any, list[SubpartitionReport]]) -> None:
    """Run the coroutine. Print its result as one JSON object on stdout, or print an error on stderr and exit with its code."""
    try:
        reports = run_interruptible(main)
    except exits.Interrupted:
        exits.say("headgate: interrupted before the end of the partition")
        raise typer.Exit(exits.INTERRUPTED) from None
    except Exception as error:
        code = exits.report(error)
        if BAD_MAGIC in str(error):
            exits.say(f"headgate: the other end does not speak Flink's protocol: {NOT_FLINK_FIX}")
        raise typer.Exit(code) from None
    sys.stdout.write(json.dumps({"subpartitions": [report.as_json() for report in reports]}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
