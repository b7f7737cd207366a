"""The text of the document that `headgate new` writes: commented YAML that validates and simulates as it is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

import yaml
from msgspec import Struct

from testbed_runtime.api.catalogue import OWN_PREFIX
from testbed_runtime.cli.questions import CHECKPOINTS, Line, Question
from testbed_runtime.core.exchange.backoff import remote_backoff
from testbed_runtime.core.judgement.quantities import format_value
from testbed_runtime.core.options import BY_KEY, Options

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
    """heartbeat.interval: a fault may happen at any moment of it."""
    timeout_s: int
    """heartbeat.timeout, which a scenario may have to wait for."""


class Shape(Struct, frozen=True, kw_only=True):
    """The properties of the job that `headgate new` asks for."""

    flink_version: str = "2.x"
    parallelism: int = 2
    records_per_second: int = 1000
    given: Given | None = None
    """The configuration of --flink-conf."""


def document(question: Question, shape: Shape) -> str:
    """Return the commented scenario. Pure."""
    replicas = 2 * shape.parallelism + question.spare
    spare = f"   # {question.spare} spare" if question.spare else ""
    options = list(_options(question, shape))
    paste = "# Paste your own flinkConfiguration here. A duration has a unit (15 s, 500 ms), unless Flink reads milliseconds."
    described = "# The shape of your job: vertices with their parallelism, edges with their partitioning."
    observation_s = question.observation_s
    if shape.given:
        size = f" Your cluster has {shape.given.cluster}." if shape.given.cluster else ""
        paste, described = "# Your options that have an effect here.", described + size
        if question.heartbeats:
            observation_s += shape.given.interval_s + shape.given.timeout_s
    sink = "main, sink: ledger"
    if question.overload:
        sink = f"sink, sink: ledger, serviceTime: {_overloaded_ms(shape)} ms"
        replicas += shape.parallelism
    wide = max(len(text) for text, _ in question.expect) + 2
    expect = [f"    - {text:<{wide}}# {why}" for text, why in question.expect]
    faults = ["  faults:", *(f"    {line}" for line in _faults(question, shape))] if question.faults else []
    lines = [
        f"# {question.question}",
        "# headgate validate FILE    headgate plan FILE    headgate simulate FILE    headgate run FILE",
        "apiVersion: headgate.dev/v1alpha1",
        "kind: Scenario",
        f"metadata: {{name: {question.name}}}",
        "spec:",
        "  # One sentence that the run can prove wrong.",
        f"  hypothesis: {question.hypothesis}",
        "  seed: 7                                      # the same seed repeats the same simulation",
        "  testbed:",
        f'    flinkVersion: "{shape.flink_version}"' + " " * 8 + "# 1.12 to 2.3, or 2.x: defaults and behaviour differ",
        f"    taskManagers: {{replicas: {replicas}, slots: 1, replaceLost: {question.replace_lost}}}{spare}",
        f"    {paste}",
        "    flinkConfiguration:",
        *options,
        f"    {described}",
        "    job:",
        "      vertices:",
        f"        - {{name: source, parallelism: {shape.parallelism}, slotSharingGroup: src, "
        f"source: {{recordsPerSecond: {shape.records_per_second}, recordBytes: 100, keys: 1000}}}}",
        f"        - {{name: count, parallelism: {shape.parallelism}, slotSharingGroup: main, operator: keyed-count}}",
        f"        - {{name: sink, parallelism: {shape.parallelism}, slotSharingGroup: {sink}}}",
        "      edges:",
        "        - {from: source, to: count, partitioning: hash}",
        "        - {from: count, to: sink, partitioning: forward}",
        "  # observation counts from the end of the baseline, and contains the faults.",
        f"  timeline: {{warmUp: 2 s, baseline: {question.baseline}, observation: {observation_s} s, drain: {question.drain_s} s}}",
        *faults,
        f"  control: {str(question.control).lower():<36}# also a run without the fault, to compare with",
        "  trials: 1                                    # more trials give distributions instead of one value",
        "  # What you promise. `headgate faults --metrics` lists the metrics.",
        "  expect:",
        *expect,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _overloaded_ms(shape: Shape) -> int:
    """Return a time for each record with which the sinks process at most 5 of 6 records."""
    return math.ceil(1200 * shape.parallelism / shape.records_per_second)


def _faults(question: Question, shape: Shape) -> Iterator[str]:
    for line in question.faults:
        yield line + (f"; {_budget(question, shape)}" if "registration:" in line else "")
        if shape.given and question.heartbeats and line.strip().startswith("at:"):
            jitter = f"  jitter: {shape.given.interval_s} s"
            yield f"{jitter:<41}# up to one heartbeat.interval later; `headgate simulate --seeds 20` shows the range"


def _budget(question: Question, shape: Shape) -> str:
    """Return how late a partition may be, with the options of the document."""
    written = shape.given.options if shape.given else {line.key: line.value for line in question.options}
    backoff = remote_backoff(Options(written, flink_version=shape.flink_version))
    budget = backoff.budget()
    if budget is None:
        return "its consumers wait without a limit"
    fails = "may fail" if backoff.waits_at_producer else "fails"
    return f"above {format_value(budget, 's')}, the job {fails} with PartitionNotFoundException"


def _options(question: Question, shape: Shape) -> Iterator[str]:
    """Yield the lines of flinkConfiguration. The options of the reader replace those that the question suggests."""
    chosen = [line for line in question.options if shape.flink_version in line.versions]
    if shape.given:
        own = [line for line in chosen if line.key.startswith(OWN_PREFIX)]
        checkpoints = [] if CHECKPOINTS.key in shape.given.options else [ADDED_CHECKPOINTS]
        yield from (f"      {key}: {_scalar(value)}" for key, value in shape.given.options.items())
        chosen = [*checkpoints, *own]
    set_to = [(_written(line, shape.flink_version), line.why) for line in chosen]
    width = max((len(text) for text, _ in set_to), default=0) + 2
    yield from (f"      {text:<{width}}# {why}" for text, why in set_to)


def _written(line: Line, flink_version: str) -> str:
    """Return the option with its value in YAML, as this version of Flink knows and reads them."""
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
