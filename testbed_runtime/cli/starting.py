"""The text of the document that `headgate new` writes: commented YAML that validates and simulates as it is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from msgspec import Struct

from testbed_runtime.cli.questions import CHECKPOINTS, Line, Question
from testbed_runtime.core.exchange.backoff import Backoff, local_backoff
from testbed_runtime.core.judgement.quantities import format_value
from testbed_runtime.core.options import BY_KEY, OWN_PREFIX, Options

if TYPE_CHECKING:
    from jinja2 import Template

_VALUE = re.compile(r"\{([a-z]+\.[a-z.-]+)\}")
"""An option in the comment of a line. Its value is inserted."""
_DURATION = re.compile(r"^( *duration: )(\d+)")
REGISTRATION = "registration:"
"""Part of the line of a fault that delays registrations of partitions."""
MAX_WAITED_S = 600
"""Maximum seconds that a long backoff adds to the observation. The last request may be sent that much later than the
partition is registered."""
ADDED_CHECKPOINTS = Line(
    CHECKPOINTS.key,
    CHECKPOINTS.value,
    "added: your file has no valid one. Write what your job sets in code, if it does",
)


class Given(Struct, frozen=True, kw_only=True):
    """The reader's own Flink configuration."""

    options: Mapping[str, str]
    cluster: str
    """The size of the cluster, in words; empty if unknown."""
    interval_s: int
    """heartbeat.interval. A fault may begin at any moment of it."""
    timeout_s: int
    """heartbeat.timeout, which a scenario may have to wait for."""
    restart_s: int
    """Delay of the first restart."""


class Shape(Struct, frozen=True, kw_only=True):
    """The properties of the job that `headgate new` asks for."""

    flink_version: str = "2.x"
    parallelism: int = 2
    records_per_second: int = 1000
    given: Given | None = None
    """The configuration of --flink-conf."""


def document(question: Question, shape: Shape) -> str:
    """Return the commented scenario. Pure."""
    given = shape.given
    waited_s = given.interval_s + given.timeout_s + given.restart_s if given and question.heartbeats else 0
    limit = f"{question.limit_s + waited_s} s"
    expect = [(text.replace("{limit}", limit), why) for text, why in question.expect]
    if given and REGISTRATION in question.faults:
        waited_s = min(MAX_WAITED_S, math.ceil(_backoff(question, shape).maximum))
    waited_s += _interval_s(question, shape)
    replicas = (3 if question.overload else 2) * shape.parallelism + question.spare
    return _template().render(
        question=question,
        hypothesis=question.hypothesis.replace("{limit}", limit),
        expect=expect,
        shape=shape,
        replicas=replicas,
        options=list(_options(question, shape)),
        faults=list(_faults(question, shape)),
        observation_s=question.observation_s + waited_s,
        overloaded_ms=_overloaded_ms(shape),
        wide=max(len(text) for text, _ in expect) + 2,
    )


def _overloaded_ms(shape: Shape) -> int:
    """Return a service time with which the sinks keep up with at most 5 of 6 records."""
    return math.ceil(1200 * shape.parallelism / shape.records_per_second)


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined  # slow to import, and most commands need no template

    path = Path(__file__).with_name("scenario.yaml.j2")
    found = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - no HTML
    found.keep_trailing_newline = True
    return found.from_string(path.read_text(encoding="utf-8"))


def _faults(question: Question, shape: Shape) -> Iterator[str]:
    for written in question.faults.splitlines():
        line = _VALUE.sub(lambda m: _effective(m[1], question, shape), written)
        line = _DURATION.sub(lambda m: f"{m[1]}{int(m[2]) + _interval_s(question, shape)}", line)
        yield line + (f"; {_budget(question, shape)}" if REGISTRATION in line else "")
        if shape.given and question.heartbeats and line.strip().startswith("at:"):
            jitter = f"  jitter: {shape.given.interval_s} s"
            yield f"{jitter:<41}# up to one heartbeat.interval later; `headgate simulate --seeds 20` shows the range"


def _interval_s(question: Question, shape: Shape) -> int:
    """Return the checkpoint interval of the reader's configuration, by which the fault and the observation are prolonged; 0 if the question
    needs no checkpoint."""
    if not question.checkpoints or shape.given is None:
        return 0
    return math.ceil(_in_effect(question, shape).duration(CHECKPOINTS.key))


def _effective(key: str, question: Question, shape: Shape) -> str:
    """Return the option with the value that it has in the document."""
    seconds = _in_effect(question, shape).duration(key)
    return f"{BY_KEY[key].name_in(shape.flink_version)} = {seconds:g} s"


def _backoff(question: Question, shape: Shape) -> Backoff:
    """Return the backoff of the sinks' requests for partitions, which are in the same TaskManager, with the options of the document."""
    return local_backoff(_in_effect(question, shape))


def _in_effect(question: Question, shape: Shape) -> Options:
    """Return the options of the document."""
    written = shape.given.options if shape.given else {line.key: line.value for line in question.options}
    return Options(written, flink_version=shape.flink_version)


def _budget(question: Question, shape: Shape) -> str:
    """Return how late a partition may be."""
    budget = _backoff(question, shape).budget()
    if budget is None:
        return "its consumers wait without a limit"
    return f"above {format_value(budget, 's')}, the deployment fails with PartitionNotFoundException"


def _options(question: Question, shape: Shape) -> Iterator[str]:
    """Yield the lines of flinkConfiguration. The options of the reader replace those that the question suggests."""
    chosen = [line for line in question.options if not line.before_2 or shape.flink_version.startswith("1.")]
    if shape.given:
        own = [line for line in chosen if line.key.startswith(OWN_PREFIX)]
        checkpoints = [] if CHECKPOINTS.key in shape.given.options else [ADDED_CHECKPOINTS]
        yield from (f"      {key}: {_scalar(value)}" for key, value in shape.given.options.items())
        chosen = [*checkpoints, *own]
    set_to = [(_written(line, shape.flink_version), line.why) for line in chosen]
    width = max((len(text) for text, _ in set_to), default=0) + 2
    yield from (f"      {text:<{width}}# {why}" for text, why in set_to)


def _written(line: Line, flink_version: str) -> str:
    """Return the option with its value in YAML, with the key and the format of this version of Flink."""
    option = BY_KEY[line.key]
    value = (
        _scalar(option.written(line.value, flink_version)) if option.in_millis(flink_version) else line.value
    )
    return f"{option.name_in(flink_version)}: {value}"


def _scalar(text: str) -> str:
    """Return a text in YAML, in quotes if YAML would read something else."""
    try:
        plain = yaml.safe_load(text) == text
    except yaml.YAMLError:
        plain = False
    return text if plain else json.dumps(text, ensure_ascii=False)
