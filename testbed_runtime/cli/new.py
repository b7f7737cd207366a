"""`headgate new`: write a commented starting document for a question."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from testbed_runtime.api.catalogue import Standing, judge
from testbed_runtime.api.limits import MAX_RATE, MAX_TASKMANAGERS
from testbed_runtime.cli import exits, folders, options, questions, starting, tables
from testbed_runtime.core.errors import UserError, nearest
from testbed_runtime.core.judgement.quantities import counted
from testbed_runtime.core.options import Options
from testbed_runtime.core.versions import LATEST


def _names(incomplete: str) -> list[str]:
    return [name for name in questions.questions() if name.startswith(incomplete)]


DEFAULT = starting.Shape()
MAX_NEW = (MAX_TASKMANAGERS - 1) // 2
"""The largest parallelism of a document that has two TaskManagers for each subtask, and a spare one."""


MAX_ECHO = 200
"""Maximum characters of a pasted text that an error repeats."""


def new(  # noqa: PLR0917 - typer passes by name
    question: Annotated[
        str,
        typer.Argument(
            help="One of the questions that --list prints, an option, or the error in Flink's log. Without it, Headgate asks on the terminal.",
            autocompletion=_names,
        ),
    ] = "",
    listed: Annotated[bool, typer.Option("--list", help="List the questions.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write, - for stdout. By default QUESTION/scenario.yaml.",
            show_default=False,
        ),
    ] = None,
    flink_version: options.GivenVersion = None,
    conf: options.FlinkConfFile = None,
    parallelism: Annotated[
        int, typer.Option(help="Parallelism of each vertex.", min=1, max=MAX_NEW)
    ] = DEFAULT.parallelism,
    records_per_second: Annotated[
        int, typer.Option(help="Records per second of the sources.", min=1, max=MAX_RATE)
    ] = DEFAULT.records_per_second,
) -> None:
    """Write a commented scenario that answers a question. It runs as it is; adapt its job to yours.

    With --flink-conf, it has your options instead of those that the question suggests."""
    if listed:
        _list_questions(tables.output_width())
        return
    shape = starting.Shape(
        flink_version=flink_version or DEFAULT.flink_version,
        parallelism=parallelism,
        records_per_second=records_per_second,
    )
    if conf is not None:
        shape = _with_conf(shape, conf, flink_version)
    if question:
        chosen = find(question)
    elif sys.stdin.isatty() and sys.stderr.isatty():
        chosen, shape = _ask(shape)
    else:
        raise UserError("QUESTION", "is missing", f"write one of {', '.join(questions.questions())}")
    options.known_version(shape.flink_version)
    text = starting.document(chosen, shape)
    _check(text)
    if str(output) == "-":
        typer.echo(text, nl=False)
        return
    path = output or Path(chosen.name) / "scenario.yaml"
    write(path, text)
    shown = path.parent if path.name == "scenario.yaml" else path
    typer.echo(f"{path}: {chosen.question}")
    typer.echo(f"next: headgate simulate {shown}    (seconds, in virtual time)")
    typer.echo(f"      headgate run {shown}         (real processes on this machine)")


def _list_questions(width: int) -> None:
    indent = " " * 25
    for item in questions.questions().values():
        lines = tables.wrapped(item.question, width, first=item.name.ljust(25), then=indent)
        if item.errors:
            errors = f"In Flink's log: {', '.join(item.errors)}"
            lines += tables.wrapped(errors, width, first=indent, then=indent + "  ")
        typer.echo("\n".join(lines))


def _with_conf(shape: starting.Shape, path: Path, flink_version: str | None) -> starting.Shape:
    """Return the shape with the options of a Flink configuration."""
    from testbed_runtime.core.job.restart import restart_strategy

    conf, version, found = options.flink_conf(path, flink_version)
    slots = f" with {counted(conf.slots, 'slot')} each"
    sizes = [counted(conf.taskmanagers, "TaskManager") + slots] if conf.taskmanagers else []
    sizes += [f"parallelism {conf.parallelism}"] if conf.parallelism else []
    effective_here = "has" if len(found.usable) == 1 else "have"
    usable = f"{len(found.usable)} of {counted(len(conf.options), 'option')} {effective_here} an effect here"
    exits.say(f"{path}: {usable} ({options.version_words(conf, version, flink_version)})")
    if questions.CHECKPOINTS.key not in found.usable:
        text = f"has no valid {questions.CHECKPOINTS.key}; the scenario adds {questions.CHECKPOINTS.value}"
        exits.say(
            f"{path}: {text}, because a job without checkpoints restarts from its beginning, or not at all"
        )
    effective = Options(found.usable, flink_version=version)
    restart = restart_strategy(effective, lambda _, high: high)
    restart.notify_failure(0)
    given = starting.Given(
        options=found.usable,
        cluster=", ".join(sizes),
        interval_s=math.ceil(effective.duration("heartbeat.interval")),
        timeout_s=math.ceil(effective.duration("heartbeat.timeout")),
        restart_s=math.ceil(restart.backoff_s(0)),
    )
    return msgspec.structs.replace(shape, flink_version=version, given=given)


def find(name: str) -> questions.Question:
    """Return the question with that name, or the question about that error or option. Raises UserError with other help, or with the nearest
    name."""
    found = questions.questions().get(name) or questions.about(name)
    key = questions.key_in(name)
    known = judge(key, LATEST)
    if known.standing is Standing.TYPO and found is not None and questions.about(known.canonical) is found:
        exits.warn(f"QUESTION: {key!r} is read as {known.canonical}")
    if isinstance(found, questions.Question):
        return found
    if found is not None:
        raise UserError("QUESTION", f"no question is about {name[:MAX_ECHO]!r}: {found.answer}")
    if known.standing is Standing.EFFECTIVE:
        raise UserError(
            "QUESTION", f"no question is about {known.canonical}", "write it into `flinkConfiguration` of any"
        )
    if known.standing is Standing.WITHOUT_EFFECT:
        raise UserError("QUESTION", f"{known.canonical} has no effect here")
    known_names = [n for q in questions.questions().values() for n in (q.name, *q.errors)]
    hint = f"there are {', '.join(questions.questions())}"
    raise UserError("QUESTION", f"no question matches {name[:MAX_ECHO]!r}", nearest(name, known_names, hint))


def write(path: Path, text: str) -> None:
    """Create the file. Raises UserError if it exists (a document that was edited is never overwritten) or cannot be created."""
    with folders.writing("--output", path):
        if path.exists():
            raise UserError(str(path), "exists already", "name another file with --output")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)


def _check(text: str) -> None:
    """Raise InvalidScenario for a version or a size that no scenario can have."""
    from testbed_runtime.api.document import read_document
    from testbed_runtime.api.validate import validate
    from testbed_runtime.cli.loading import valid

    document = read_document(text, name="headgate new")
    valid(document, validate(document.data))


def _ask(shape: starting.Shape) -> tuple[questions.Question, starting.Shape]:
    """Ask for the question and the shape of the job."""
    every = list(questions.questions().values())
    for number, item in enumerate(every, 1):
        exits.say(f"{number}. {item.question}")
    number = 0
    while not 1 <= number <= len(every):
        number = typer.prompt(f"Which question (1 to {len(every)})", type=int, err=True)
    version = typer.prompt("Flink version (1.12 to 2.3, 2.x)", default=shape.flink_version, err=True)
    parallelism = typer.prompt("Parallelism", default=shape.parallelism, type=int, err=True)
    rate = typer.prompt("Records per second", default=shape.records_per_second, type=int, err=True)
    answered = msgspec.structs.replace(
        shape, flink_version=version, parallelism=parallelism, records_per_second=rate
    )
    return every[number - 1], answered
